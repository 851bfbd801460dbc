"""``parties completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from parties.commands.errors import MistakeError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, to be read by it at its start.

    \b
    Examples:
      parties completion bash > /etc/bash_completion.d/parties
      parties completion zsh > "${fpath[1]}/_parties"
      parties completion fish > ~/.config/fish/completions/parties.fish
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    kind = get_completion_class(shell)
    if kind is None:
        raise MistakeError(f"there is no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "parties", "_PARTIES_COMPLETE").source())

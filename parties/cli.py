"""The command line: finds subcommands, and turns every error into one message and an exit code.

Subcommands of the program are in ``BUILT_IN``; others come from installed packages through the entry-point group
``parties.commands``. Both are imported only when they are asked for.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple, NoReturn

import click

from parties import __version__
from parties.commands.errors import EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_OK, explain
from parties.signals import hold

ENTRY_POINT_GROUP = "parties.commands"
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EPILOG = "Exit codes: 0 all right, 1 failed at run time, 2 a mistake in the configuration or the call, 130 interrupted (Ctrl-C)."


class BuiltIn(NamedTuple):
    """Where a subcommand is, and its line in the help."""

    place: str  # "module:attribute"
    summary: str


BUILT_IN: Mapping[str, BuiltIn] = {
    "run": BuiltIn("parties.commands.run:run", "Run the controller until it is stopped, then put everything back."),
    "restore": BuiltIn("parties.commands.restore:restore", "Put back every value that a run has left changed."),
    "verify": BuiltIn("parties.commands.verify:verify", "Compare what every kernel value should be with what it is."),
    "check": BuiltIn("parties.commands.check:check", "Say everything that is wrong with a configuration."),
    "doctor": BuiltIn("parties.commands.doctor:doctor", "Say what this machine has, what it lacks, and what to change."),
    "replay": BuiltIn("parties.commands.replay:replay_command", "Say what a policy would have decided in a recorded run."),
    "conformance": BuiltIn("parties.commands.conformance:conformance", "Test a client of the histogram socket."),
    "completion": BuiltIn("parties.commands.completion:completion", "Print the completion script of a shell."),
}


class CommandLine(click.Group):
    """The ``parties`` command: lazy subcommands and one place for errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The program's own subcommands, then those of other packages."""
        del ctx
        return [*BUILT_IN, *sorted(set(_plug_ins()) - set(BUILT_IN))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; None if there is none of that name. Raises ClickException for a broken plug-in."""
        del ctx
        if cmd_name in BUILT_IN:
            module, _, attribute = BUILT_IN[cmd_name].place.partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)  # noqa: S101 - the table above is ours
            return command
        plug_in = _plug_ins().get(cmd_name)
        return None if plug_in is None else _load(plug_in)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand of a call. Raises UsageError with the nearest name for one that does not exist."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(name, names, n=1)
            ctx.fail(f"there is no command {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands; only those of other packages have to be imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in BUILT_IN:
            return BUILT_IN[name].summary
        try:
            command = self.get_command(ctx, name)
        except click.ClickException:
            return "(cannot be loaded; call it to see why)"
        return command.get_short_help_str(80) if command is not None else ""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "parties",
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - click's signature
        **extra: Any,  # noqa: ANN401 - click's signature
    ) -> NoReturn:
        """Run a command line and exit with its code; no exception gets through, unless ``--debug`` is given."""
        del standalone_mode
        words = list(sys.argv[1:] if args is None else args)
        if args is None and next((word for word in words if not word.startswith("-")), "") == "run":
            hold()  # until it can act on them: what an earlier run left in force would have nobody to put it back
        sys.exit(self._code(words, prog_name, complete_var, extra))

    def _code(self, words: list[str], prog_name: str | None, complete_var: str | None, extra: dict[str, Any]) -> int:
        try:
            result = super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        except (click.Abort, KeyboardInterrupt):
            click.echo("parties: interrupted", err=True)
            return EXIT_INTERRUPTED
        except click.UsageError as error:
            error.show()
            return EXIT_MISTAKE
        except click.ClickException as error:
            click.echo(f"parties: {error.format_message()}", err=True)
            return error.exit_code
        except Exception as error:  # noqa: BLE001 - the last place where an error can become a message
            return explain(error, debug="--debug" in words)
        return result if isinstance(result, int) else EXIT_OK


def _plug_ins() -> dict[str, metadata.EntryPoint]:
    return {entry_point.name: entry_point for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _load(plug_in: metadata.EntryPoint) -> click.Command:
    package = plug_in.dist.name if plug_in.dist is not None else plug_in.value
    try:
        command = plug_in.load()
    except Exception as error:
        raise click.ClickException(
            f"the command {plug_in.name!r} of the package {package!r} cannot be loaded: {type(error).__name__}: {error}; "
            "install what it needs, or remove the package"
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(
            f"the command {plug_in.name!r} of the package {package!r} is no command: {plug_in.value}; mend or remove the package"
        )
    return command


@click.group("parties", cls=CommandLine, context_settings=SETTINGS, epilog=EPILOG)
@click.version_option(__version__, message="parties %(version)s")
@click.option("--debug", is_flag=True, help="Show where an unknown error came from.")
def main(*, debug: bool) -> None:
    """Keep several latency-critical services on one server within their tail-latency targets (PARTIES, ASPLOS 2019).

    \b
    parties check parties.toml      is the configuration good, and does it fit this machine?
    parties run -c parties.toml     run the controller; Ctrl-C puts everything back
    parties restore                 put everything back after a crash
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    del debug  # read where an error becomes a message

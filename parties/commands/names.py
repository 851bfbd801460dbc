"""Option types for names that the program knows: unknown ones get the nearest, and shells complete them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem


class NameType(click.ParamType[str]):
    """One of the names that ``known`` gives when it is asked, so that a help text loads nothing.

    ``free`` says which other texts are let through as they are, for example the name of a file.
    """

    def __init__(self, name: str, known: Callable[[], Iterable[str]], *, free: Callable[[str], bool] = lambda _text: False) -> None:
        self.name = name
        self._known = known
        self._free = free

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it is."""
        text = str(value)
        known = tuple(self._known())
        if text not in known and not self._free(text):
            near = difflib.get_close_matches(text, known, cutoff=0.5)
            hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
            self.fail(f"no {self.name} is named {text!r}; {hint}", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The known names that begin like this."""
        del ctx, param
        return [CompletionItem(name) for name in self._known() if name.startswith(incomplete)]

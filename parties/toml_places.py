"""On which line of a TOML text a key stands, so that a message can say where a mistake is.

``tomllib`` gives values without their places. This scanner reads only what it needs of a text that ``tomllib`` has already found
valid: table headers, keys, and where a value ends.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence

Path = tuple[str | int, ...]
"""Keys and, after the key of an array of tables, the index in it: ("service", 1, "target")."""

_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*"
_STATEMENT = re.compile(rf"[ \t]*(?P<header>\[\[?|)[ \t]*(?P<key>{_KEY})")
_PART = re.compile(_KEY_PART)
_TOKEN = re.compile(
    r'''"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\[{]|[\]}]|\n''',
    re.DOTALL,
)


class TomlPlaces:
    """Line numbers (from 1) of the keys and tables of a valid TOML text."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}
        self._scan(text)

    def line(self, path: Path) -> int | None:
        """The line of a key or table, or of the innermost one around it that is written out; None if there is none."""
        return next((self._lines[path[:size]] for size in range(len(path), 0, -1) if path[:size] in self._lines), None)

    def _scan(self, text: str) -> None:
        table: Path = ()
        position, line = 0, 1
        while position < len(text):
            statement = _STATEMENT.match(text, position)
            end = _statement_end(text, position)
            if statement is not None:
                parts = tuple(_unquoted(part) for part in _PART.findall(statement["key"]))
                if statement["header"]:
                    table = self._table(parts, line, array=statement["header"] == "[[")
                else:
                    self._lines.setdefault(table + parts, line)
            line += text.count("\n", position, end)
            position = end

    def _table(self, parts: Sequence[str], line: int, *, array: bool) -> Path:
        path = (*self._resolved(parts[:-1]), parts[-1]) if array else self._resolved(parts)
        self._lines.setdefault(path, line)
        if array:
            self._counts[path] = self._counts.get(path, 0) + 1
            path = (*path, self._counts[path] - 1)
            self._lines[path] = line
        return path

    def _resolved(self, parts: Sequence[str]) -> Path:
        """A header's key with the index of the last element after each array of tables on the way."""
        path: Path = ()
        for part in parts:
            path = (*path, part)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        return path


def _statement_end(text: str, position: int) -> int:
    """Just after the newline that ends the statement that begins at ``position``."""
    depth = 0
    for token in _TOKEN.finditer(text, position):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
        elif token[0] == "\n" and depth == 0:
            return token.end()
    return len(text)


def _unquoted(part: str) -> str:
    if part[0] not in "\"'":
        return part
    (key,) = tomllib.loads(f"{part} = 0")
    return str(key)

"""The configuration: a TOML file becomes ``ControlSettings``, or one message with everything that is wrong with it.

``load`` looks at the file alone; ``parties.config_machine`` compares it with the machine. ``load_data`` does the same for files of
other data classes (simulated nodes, services and jobs).
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from parties import __version__, config_checks, config_schema
from parties.config_checks import show_path
from parties.config_schema import Mistake
from parties.settings import ControlSettings
from parties.toml_places import Path as TomlPath
from parties.toml_places import TomlPlaces

CONFIG_VERSION = 1

_LARGEST_BYTES = 1 << 20
_SAY_WHERE = "; say where it is with -c FILE"
T = TypeVar("T")
_TOML_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration: where (as ``service[1].target``; "" is the whole file), what, and what to do."""

    path: str
    message: str
    line: int | None = None
    name: str = ""  # of the service or job that it is about
    warning: bool = False  # does not stand in the way of a run

    def __str__(self) -> str:
        place = ["warning"] if self.warning else []
        place += [f"line {self.line}"] if self.line else []
        if self.path:
            place.append(f"{self.path} ({self.name})" if self.name else self.path)
        return f"{', '.join(place)}: {self.message}" if place else self.message


class ConfigError(Exception):
    """A configuration that cannot be used: an operator's mistake. The text is the whole message, one line for each problem."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__(file, self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"{self.file}: {self.problems[0]}"
        warnings = sum(problem.warning for problem in self.problems)
        counts = [(len(self.problems) - warnings, "mistake"), (warnings, "warning")]
        count = " and ".join(f"{number} {what}{'s' if number > 1 else ''}" for number, what in counts if number)
        return "\n".join([f"{self.file}: {count}", *(f"  {problem}" for problem in self.problems)])


@dataclass(frozen=True, slots=True)
class Configuration:
    """A good configuration, and where in its file each key stands."""

    file: str
    settings: ControlSettings
    places: TomlPlaces

    def problem(self, mistake: Mistake) -> Problem:
        """A mistake found later on (on the machine), with its place in the file."""
        return _problem(mistake, self.places, {}, self.settings)


def load(file: Path) -> Configuration:
    """Read and check a file. Raises ConfigError with every mistake in it."""
    return parse(_text(file, _SAY_WHERE), str(file))


def parse(text: str, file: str = "configuration") -> Configuration:
    """Settings from TOML text; ``file`` names it in messages. Raises ConfigError with every mistake in it."""
    settings, places = _parsed(text, file, ControlSettings, config_checks.mistakes)
    return Configuration(file, settings, places)


def load_data(file: Path, root: type[T], check: Callable[[T], Iterable[Mistake]]) -> T:
    """Another data class from its file, in the same format. Raises ConfigError with every mistake in it.

    ``check`` yields what is wrong between values that are right by themselves.
    """
    return parse_data(_text(file, ""), str(file), root, check)


def parse_data(text: str, file: str, root: type[T], check: Callable[[T], Iterable[Mistake]]) -> T:
    """As ``load_data``, from TOML text; ``file`` names it in messages."""
    settings, _ = _parsed(text, file, root, check)
    return settings


def _text(file: Path, absent_hint: str) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)
    except OSError as error:
        hint = {2: absent_hint, 13: "; read it as root, or change its mode"}.get(error.errno or 0, "")
        raise ConfigError(str(file), [Problem("", f"cannot be read: {error.strerror}{hint}")]) from error
    if len(data) > _LARGEST_BYTES:
        raise ConfigError(str(file), [Problem("", "is larger than 1 MiB; is it a configuration?")])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(str(file), [Problem("", "is not UTF-8 text; save it as UTF-8", line)]) from error


def _parsed(text: str, file: str, root: type[T], check: Callable[[T], Iterable[Mistake]]) -> tuple[T, TomlPlaces]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file, [_syntax_problem(str(error), text)]) from error
    places = TomlPlaces(text)
    version = data.pop("version", None)
    if version is not None and (version != CONFIG_VERSION or isinstance(version, bool)):
        message = f"{version!r} is not known to parties {__version__}, which reads version {CONFIG_VERSION}"
        raise ConfigError(file, [Problem("version", message, places.line(("version",)))])
    settings, mistakes = config_schema.read(data, root)
    if version is None:
        mistakes.append(Mistake(("version",), f"is missing; begin the file with version = {CONFIG_VERSION}"))
    mistakes += _independent(check(settings), mistakes)
    if mistakes:
        problems = [_problem(mistake, places, data, settings) for mistake in mistakes]
        raise ConfigError(file, sorted(problems, key=lambda problem: problem.line or 0))
    return settings, places


def _independent(found: Iterable[Mistake], known: Sequence[Mistake]) -> list[Mistake]:
    """Those mistakes between values that do not hang on a value which is wrong by itself."""
    wrong = [path for mistake in known for path in (mistake.path, *mistake.involves)]
    return [m for m in found if not any(_touches(path, other) for path in (m.path, *m.involves) for other in wrong)]


def _touches(path: TomlPath, other: TomlPath) -> bool:
    size = min(len(path), len(other))
    return path[:size] == other[:size]


def _problem(mistake: Mistake, places: TomlPlaces, data: Mapping[str, Any], settings: object) -> Problem:
    spellings = config_schema.spellings(mistake.path, type(settings))
    line, path = max(((places.line(spelling) or 0, spelling) for spelling in spellings), key=_first)
    name = _member_name(path, data, settings)
    return Problem(show_path(path), mistake.text, line or None, name, mistake.warning)


def _first(pair: tuple[int, TomlPath]) -> int:
    return pair[0]


def _member_name(path: TomlPath, data: Mapping[str, Any], settings: object) -> str:
    """What the file calls the service or job that a path leads into."""
    name: object = None
    if len(path) > 1 and isinstance(path[1], int):
        with contextlib.suppress(LookupError, TypeError):
            name = data[str(path[0])][path[1]]["name"] if data else _named(settings, path)
    return name if isinstance(name, str) else ""


def _named(settings: object, path: TomlPath) -> str:
    if not isinstance(settings, ControlSettings):
        return ""
    members = settings.services if path[0] == "service" else settings.best_effort
    return members[int(path[1])].name


def _syntax_problem(text: str, source: str) -> Problem:
    match = _TOML_PLACE.search(text)
    line = int(match[1]) if match else source.count("\n") + 1
    return Problem("", f"is not valid TOML: {_TOML_PLACE.sub('', text).removesuffix(' (at end of document)')}", line)

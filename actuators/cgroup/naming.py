"""Services named by systemd unit or by container, turned into control-group paths; and which paths are systemd's units.

Who is asked: the control-group tree itself. A unit that runs has a directory of its own name somewhere below the slices, which
holds with any manager version, without a bus, and cannot be out of date. Unit files only serve the messages: is a name unknown, an
alias, masked, or merely not running.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from actuators.cgroup.containers import ENGINES, Container, find_containers
from actuators.cgroup.hierarchy import Hierarchies
from parties.settings import BestEffortSettings, ControlSettings, ServiceSettings

_MemberT = TypeVar("_MemberT", ServiceSettings, BestEffortSettings)

_UNIT_TYPES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")
_UNIT_DIRECTORIES = (
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/transient",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_NAMED_HIERARCHY = "name=systemd"
_MASK = Path("/dev/null")
_DEEPEST = 12
"""Groups are looked for so many levels down; deeper ones belong to what runs inside a container."""


@dataclass(frozen=True, slots=True)
class NamingProblem:
    """A unit or container that cannot be found: of which service or job, under which key, and what to do."""

    member: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.member}: {self.text}"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings with every member's control groups filled in.

    ``units`` are the paths that are units of the running systemd, with the unit's name: their values are set by asking systemd.
    What lies below a unit's own group (a delegated one) is not among them and is written directly.
    """

    settings: ControlSettings
    units: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[NamingProblem, ...] = ()


def resolve(settings: ControlSettings, root: Path = Path("/")) -> Resolved:
    """Find the groups of every unit and container that the settings name. Nothing is changed, and no error is raised for a name.

    Raises SetupError if the machine's mounts cannot be read or a controller's mount point is none.
    """
    names = GroupNames(root, Hierarchies.find(root, settings.controllers))
    problems: list[NamingProblem] = []
    filled = dataclasses.replace(
        settings,
        services=tuple(_filled(service, names, problems) for service in settings.services),
        best_effort=tuple(_filled(job, names, problems) for job in settings.best_effort),
    )
    paths = [path for members in (filled.services, filled.best_effort) for member in members for path in member.cgroups]
    return Resolved(filled, names.units_among(paths), tuple(problems))


def _filled(member: _MemberT, names: GroupNames, problems: list[NamingProblem]) -> _MemberT:
    found = list(member.cgroups)
    for key, each, find in (("units", member.units, names.of_unit), ("containers", member.containers, names.of_container)):
        for name in each:
            path, problem = find(name)
            if problem:
                problems.append(NamingProblem(member.name, key, problem))
            elif path not in found:
                found.append(path)
    return dataclasses.replace(member, cgroups=tuple(found))


class GroupNames:
    """The control groups of a machine by name. ``hierarchies`` are those below ``root``."""

    def __init__(self, root: Path, hierarchies: Hierarchies) -> None:
        self._root = root
        self._hierarchies = hierarchies

    @property
    def systemd_runs(self) -> bool:
        """Whether systemd is the service manager here."""
        return (self._root / "run/systemd/system").is_dir()

    def units_among(self, paths: Iterable[str]) -> dict[str, str]:
        """Those paths that are units of the running systemd; none where another init runs."""
        if not self.systemd_runs:
            return {}
        named = {"/" + path.strip("/"): unit_of(path) for path in paths}
        return {path: unit for path, unit in named.items() if unit}

    def of_unit(self, name: str) -> tuple[str, str]:
        """A unit's path, and why there is none."""
        unit = name if name.endswith(_UNIT_TYPES) else f"{name}.service"
        real = self._alias(unit)
        paths = [path for path in self._paths.get(_escaped(real), ()) if unit_of(path) == real]
        if paths:
            return paths[0], ""
        return "", self._no_unit(unit, real)

    def of_container(self, name: str) -> tuple[str, str]:
        """A container's path, and why there is none."""
        prefix, colon, short = name.partition(":")
        engine = ENGINES.get(prefix)
        if not colon or not short or engine is None:
            ways = ", ".join(f'"{known}:NAME"' for known in ENGINES)
            return "", f'container "{name}" names no engine that is known; say {ways}, or the control group itself in cgroups'
        found, known = find_containers(engine, short, self._root)
        placed = {path: container for container in found for path in self._of(container)}
        if len(placed) == 1:
            return next(iter(placed)), ""
        if placed:
            ways = ", ".join(sorted({f'"{prefix}:{container.key}"' for container in placed.values()}))
            return "", f'container "{name}" can be any of {len(placed)}: {ways}; name one of these'
        if found and (prefix != "lxc" or short in known):
            return "", f'container "{name}" is not running, so it has no control group; start it (see {engine.lists})'
        return "", f'there is no container "{name}"; {_nearest(short, known, f"see {engine.lists}")}'

    def _of(self, container: Container) -> list[str]:
        """The groups of a container: outermost ones only, as a container may have made groups of the same names inside."""
        found = [path for group in container.groups for path in self._below(group)]
        return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]

    def _below(self, group: str) -> Iterable[str]:
        if group.startswith("/"):
            return [path for path in self._paths.get(group.rpartition("/")[2], ()) if path == group]
        return self._paths.get(group, ())

    def _no_unit(self, unit: str, real: str) -> str:
        if not self.systemd_runs:
            return f'unit "{unit}" cannot be found, because systemd is not the service manager here; give control groups in cgroups'
        for directory in self._unit_directories:
            file = directory / _template(real)
            if (directory / real).is_symlink() and (directory / real).readlink() == _MASK:
                return f'unit "{unit}" is masked; systemctl unmask {unit} && systemctl start {unit}'
            if file.exists() or (directory / real).exists():
                return f'unit "{unit}" is not active, so it has no control group; systemctl start {unit}'
        return f'there is no unit "{unit}"; {_nearest(unit, self._unit_names(), "see systemctl list-units --all")}'

    def _unit_names(self) -> list[str]:
        files = {entry.name for place in self._unit_directories for entry in place.iterdir() if entry.name.endswith(_UNIT_TYPES)}
        running = {unit for paths in self._paths.values() for path in paths if (unit := unit_of(path))}
        return sorted(files | running)

    def _alias(self, unit: str) -> str:
        """The unit that an alias stands for ("mysql.service" is a link to "mariadb.service")."""
        for directory in self._unit_directories:
            link = directory / unit
            if link.is_symlink() and (target := link.readlink()) != _MASK:
                return unit if target.name == _template(unit) else target.name
        return unit

    @cached_property
    def _unit_directories(self) -> tuple[Path, ...]:
        return tuple(place for directory in _UNIT_DIRECTORIES if (place := self._root / directory).is_dir())

    @cached_property
    def _paths(self) -> Mapping[str, tuple[str, ...]]:
        """Every group's path by its last component, of all hierarchies together."""
        found: dict[str, dict[str, None]] = {}
        for tree in self._trees():
            for path in _walk(str(tree), _DEEPEST):
                found.setdefault(path.rpartition("/")[2], {})[path] = None
        return {name: tuple(paths) for name, paths in found.items()}

    def _trees(self) -> Iterator[Path]:
        """The v2 tree, systemd's own hierarchy of v1, and the controllers'."""
        if self._hierarchies.v2 is not None:
            yield self._hierarchies.v2
        if (named := _named_hierarchy(self._root)) is not None:
            yield named
        yield from dict.fromkeys(self._hierarchies.v1.values())


def unit_of(path: str) -> str:
    """The unit whose own group this path is; empty for a group below a unit's, or beside the slices."""
    *above, last = path.strip("/").split("/")
    if not last.endswith(_UNIT_TYPES) or not all(part.endswith(".slice") for part in above):
        return ""
    return last.removeprefix("_")


def _escaped(unit: str) -> str:
    """The directory's name of a unit: systemd puts "_" before what could be mistaken for a kernel file."""
    return f"_{unit}" if unit.startswith(("_", ".", "cgroup.")) else unit


def _template(unit: str) -> str:
    """The unit file's name: an instance "web@1.service" comes from "web@.service"."""
    stem, at, rest = unit.partition("@")
    return f"{stem}@.{rest.rpartition('.')[2]}" if at else unit


def _nearest(name: str, known: Iterable[str], advice: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f'did you mean "{near[0]}"?' if near else advice


def _walk(tree: str, levels: int, below: str = "") -> Iterator[str]:
    """Every group below a tree's root, a group before those in it."""
    try:
        with os.scandir(tree + below) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # gone meanwhile
        return
    for name in names:
        yield f"{below}/{name}"
        if levels > 1:
            yield from _walk(tree, levels - 1, f"{below}/{name}")


def _named_hierarchy(root: Path) -> Path | None:
    """Where systemd keeps its units on v1: a hierarchy of its own without a controller."""
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        kinds = filesystem.split()
        if kinds[:1] == ["cgroup"] and _NAMED_HIERARCHY in kinds[-1].split(","):
            return root / mount.split()[4].lstrip("/")
    return None

"""What of the rest is there now: movable kernel threads, interrupts, control groups. Looked for by the process for upkeep.

What is found to be on the reserved CPUs exactly is *kept*, what may run elsewhere is *loose*; what somebody has bound to a part of
the reserved CPUs is left as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from actuators.rest.groups import CPUS, confinable_v1, confinable_v2
from monitors.rest import Process, parse_process
from parties.knob import KnobRef, Sensor
from parties.units import parse_cpu_list

MOST: Final = 1000
"""Of each sort in one look: an answer has to fit into one message."""

_FOLLOWS_ITS_INTERRUPT: Final = "irq/"
_WHOLE_LOOK_EVERY: Final = 12


@dataclass(frozen=True, slots=True)
class Things:
    """Threads as "TID START NAME", interrupts by number, groups by path."""

    threads: tuple[str, ...] = ()
    interrupts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """One look."""

    loose: Things = field(default_factory=Things)
    kept: Things = field(default_factory=Things)

    def text(self) -> str:
        """For the journey from the other process."""
        return json.dumps([[list(getattr(things, name)) for name in _SORTS] for things in (self.loose, self.kept)])

    @classmethod
    def parse(cls, text: str) -> Found:
        """The inverse of ``text``. Raises ValueError, TypeError."""
        return cls(*(Things(*(tuple(map(str, sort)) for sort in things)) for things in json.loads(text)))


_SORTS: Final = ("threads", "interrupts", "groups")


@dataclass(frozen=True, slots=True)
class Scope:
    """What to look for; a sort is not looked for where its path is empty. ``registered`` are groups that belong to somebody."""

    reserved: str
    proc: str = ""
    interrupts: str = ""
    groups: str = ""
    version: str = "2"  # of the control groups
    registered: tuple[str, ...] = ()

    def address(self) -> tuple[str, ...]:
        """As a knob's address."""
        return (self.reserved, self.proc, self.interrupts, self.groups, self.version, *self.registered)

    @classmethod
    def of(cls, address: tuple[str, ...]) -> Scope:
        """The inverse of ``address``."""
        reserved, proc, interrupts, groups, version, *registered = address
        return cls(reserved, proc, interrupts, groups, version, tuple(registered))


class RestScanKnob(Sensor):
    """Not a value to set: reading it looks, and setting it does nothing. It lives in the process for upkeep."""

    KIND = "rest.scan"

    def __init__(self, scope: Scope, affinity: Callable[[int], Iterable[int]] = os.sched_getaffinity) -> None:
        self.ref = KnobRef(self.KIND, scope.address())
        self._scope = scope
        self._reserved = frozenset(parse_cpu_list(scope.reserved))
        self._affinity = affinity
        self._threads: dict[str, Process | None] = {}  # None for what is no movable kernel thread
        self._looks = 0

    def read(self) -> str | None:
        """What is there now."""
        scope = self._scope
        sorts = (
            self._sorted_out(self._kernel_threads(Path(scope.proc))) if scope.proc else ((), ()),
            self._sorted_out(_interrupts(Path(scope.interrupts))) if scope.interrupts else ((), ()),
            self._sorted_out(self._groups(Path(scope.groups))) if scope.groups else ((), ()),
        )
        return Found(*(Things(*(sort[index] for sort in sorts)) for index in (0, 1))).text()

    def _sorted_out(self, things: Iterator[tuple[str, frozenset[int]]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        loose, kept = [], []
        for thing, allowed in things:
            if allowed == self._reserved:
                kept.append(thing)
            elif not allowed <= self._reserved:
                loose.append(thing)
        return tuple(loose[:MOST]), tuple(kept[:MOST])

    def _kernel_threads(self, proc: Path) -> Iterator[tuple[str, frozenset[int]]]:
        """What was looked at before is not read again for a while: a look at every process costs 0.05 ms each."""
        present = [name for name in os.listdir(proc) if name.isdecimal()] if proc.is_dir() else []  # noqa: PTH208 (thousands)
        whole, self._looks = self._looks % _WHOLE_LOOK_EVERY == 0, self._looks + 1
        known = {} if whole else self._threads
        self._threads = {name: known[name] if name in known else _movable(proc / name) for name in present}
        for tid, thread in sorted(self._threads.items(), key=lambda item: int(item[0])):
            if thread is None:
                continue
            try:
                yield f"{tid} {thread.start_ticks} {thread.name}", frozenset(self._affinity(int(tid)))
            except OSError:
                continue  # it has ended

    def _groups(self, root: Path) -> Iterator[tuple[str, frozenset[int]]]:
        confinable = confinable_v1 if self._scope.version == "1" else confinable_v2
        for path in confinable(root, self._scope.registered):
            yield path, _cpus_of(root / path.strip("/"))


def _cpus_of(group: Path) -> frozenset[int]:
    """What a group was confined to; every number there is where nothing was said."""
    try:
        return frozenset(parse_cpu_list((group / CPUS).read_text(encoding="ascii").strip())) or _ALL
    except (OSError, ValueError):
        return _ALL


_ALL: Final = frozenset({-1})


def _movable(directory: Path) -> Process | None:
    try:
        found = parse_process((directory / "stat").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, IndexError):
        return None
    follows = found.name.startswith(_FOLLOWS_ITS_INTERRUPT)
    return None if not found.kernel_thread or found.fixed or follows else found


def _interrupts(directory: Path) -> Iterator[tuple[str, frozenset[int]]]:
    """Those that somebody handles: their directory has one of its own, named after the handler."""
    try:
        numbers = sorted((name for name in os.listdir(directory) if name.isdecimal()), key=int)  # noqa: PTH208 (hundreds)
    except OSError:
        return
    for number in numbers:
        try:
            with os.scandir(directory / number) as entries:
                handled = any(entry.is_dir() for entry in entries)
            if handled:
                text = (directory / number / "smp_affinity_list").read_text(encoding="ascii")
                yield number, frozenset(parse_cpu_list(text.strip()))
        except (OSError, ValueError):
            continue

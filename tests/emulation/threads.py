"""The machine's threads, as resctrl sees them: each belongs to a group, and what it starts begins in the same one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Origin:
    """Who started a thread (for a process's first: its parent process), and when, in clock ticks since boot."""

    parent: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a thread was put, and when; ``start_ticks`` tells it from a later one of the same number."""

    group: int
    start_ticks: int
    put_ticks: int


class Threads:
    """Which group (by its number, 0 the root) each thread of the machine is in.

    A thread that was never put anywhere is where its origin is, if it began after that was put there. Which thread of a process
    started another is not to be seen: its first one is taken.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._places: dict[int, _Place] = {}

    def put(self, tid: int, group: int) -> bool:
        """Put a thread in a group; False where there is no such thread."""
        origin = self._origin(tid)
        if origin is None:
            return False
        self._places[tid] = _Place(group, origin.start_ticks, self._now_ticks())
        return True

    def group_of(self, tid: int) -> int:
        """The group that a thread is in."""
        return self._placed(tid, self._origin(tid))

    def inside(self, group: int) -> list[int]:
        """The threads of a group, by number."""
        if group and all(place.group != group for place in self._places.values()):
            return []  # whoever is in a group was put there, or began in one that was
        return sorted(tid for tid in self._all() if self.group_of(tid) == group)

    def move_all(self, group: int, target: int) -> None:
        """Put every thread of a group, and what it starts, in another one."""
        for tid in self.inside(group):
            self.put(tid, target)
        self._places = {tid: place for tid, place in self._places.items() if place.group != group}

    def _placed(self, tid: int, origin: _Origin | None) -> int:
        for _ in range(64):  # a chain of processes is short; a loop cannot be
            if origin is None:
                return 0
            place = self._places.get(tid)
            if place is not None and place.start_ticks == origin.start_ticks:
                return place.group
            parent = self._places.get(origin.parent)
            if parent is not None and origin.start_ticks < parent.put_ticks:
                return 0
            tid, origin = origin.parent, self._origin(origin.parent)
        return 0

    def _all(self) -> Iterator[int]:
        for process in self._proc.iterdir():
            if process.name.isdecimal():
                with contextlib.suppress(OSError):
                    yield from [int(task.name) for task in (process / "task").iterdir()]

    def _origin(self, tid: int) -> _Origin | None:
        try:
            fields = (self._proc / str(tid) / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            status = (self._proc / str(tid) / "status").read_text(errors="replace")
        except OSError:
            return None
        leader = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("Tgid:")), tid)
        return _Origin(int(fields[1]) if leader == tid else leader, int(fields[19]))

    def _now_ticks(self) -> int:
        return int(float((self._proc / "uptime").read_text().split()[0]) * _TICKS_PER_S)

"""Pressure stall information of each holder: the fraction of an interval in which some of its processes waited for a resource.

The kernel keeps it for each group of the v2 tree, also on machines whose controllers are v1: there a group of the same path in the
v2 tree, with the same processes, serves as the sensor. A group without processes tells nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from actuators.cgroup.files import KeptFile, figure
from actuators.cgroup.pressure import Pressure, parse_pressure, some_total_ns
from actuators.holders import ManagedGroups
from parties.knob import KnobError
from parties.model import NS_PER_S, Holder

RESOURCES = ("cpu", "memory", "io")
_LOOK_AGAIN_NS = 2 * NS_PER_S


class Waits(NamedTuple):
    """Fractions of the interval, 0 to 1, in which some process waited; None where that is not known."""

    cpu: float | None = None
    memory: float | None = None
    io: float | None = None


_UNKNOWN = Waits()


@dataclass(slots=True)
class _Group:
    """The files of one group and its totals at the last sample, by resource."""

    events: KeptFile
    files: Mapping[str, KeptFile]
    totals: dict[str, int] = field(default_factory=dict)
    at_ns: int = 0
    absent_until_ns: int = 0


class PressureMonitor:
    """Reads the groups of every holder below ``tree``, the v2 mount point; None where there is none, and nothing is known.

    Costs four reads of kept descriptors for each group. A group that is not there, or a kernel without PSI, gives None; many a v1
    machine has none of them, and looking for them costs as much as reading them, so it is done every two seconds only.
    """

    def __init__(self, tree: Path | None, managed: ManagedGroups) -> None:
        self._groups = {
            holder: tuple(_open(tree / path.strip("/")) for path in paths) if tree is not None else ()
            for holder, paths in managed.items()
        }

    def sample(self, now_ns: int) -> Mapping[Holder, Waits]:
        """Waits since the last call; of several groups the one that waits most counts. The first call gives None."""
        return {
            holder: _sample(groups[0], now_ns) if len(groups) == 1 else _most([_sample(group, now_ns) for group in groups])
            for holder, groups in self._groups.items()
        }

    def close(self) -> None:
        """Give up descriptors."""
        for group in (group for groups in self._groups.values() for group in groups):
            for file in (group.events, *group.files.values()):
                file.close()


def read_pressure(directory: Path) -> Mapping[str, Pressure]:
    """Everything that the kernel says of one group, by resource: some and full, running total and average of ten seconds."""
    found = {}
    for resource in RESOURCES:
        file = _pressure_file(directory, resource)
        try:
            found[resource] = parse_pressure(file.read())
        except KnobError:
            continue
        finally:
            file.close()
    return found


def _open(directory: Path) -> _Group:
    events = KeptFile(directory / "cgroup.events", writable=False)
    return _Group(events, {resource: _pressure_file(directory, resource) for resource in RESOURCES})


def _pressure_file(directory: Path, resource: str) -> KeptFile:
    return KeptFile(directory / f"{resource}.pressure", writable=False)


def _sample(group: _Group, now_ns: int) -> Waits:
    before, elapsed_ns = group.totals, now_ns - group.at_ns
    group.totals, group.at_ns = _totals(group, now_ns), now_ns
    if not before or not group.totals:
        return _UNKNOWN
    return Waits(*[_fraction(before.get(resource), group.totals.get(resource), elapsed_ns) for resource in RESOURCES])


def _totals(group: _Group, now_ns: int) -> dict[str, int]:
    """The running totals; none where the group is gone or has no process, whose waiting it could tell."""
    try:
        if now_ns < group.absent_until_ns or not figure(group.events.raw(), b"populated"):
            return {}
    except KnobError:
        group.absent_until_ns = now_ns + _LOOK_AGAIN_NS
        return {}
    totals = {}
    for resource, file in group.files.items():
        try:
            totals[resource] = some_total_ns(file.raw())
        except (KnobError, ValueError):  # no PSI in this kernel, or switched off for this group (cgroup.pressure)
            continue
    return totals


def _fraction(before: int | None, now: int | None, elapsed_ns: int) -> float | None:
    if before is None or now is None or elapsed_ns <= 0 or now < before:
        return None
    return min(1.0, round((now - before) / elapsed_ns, 4))


def _most(waits: list[Waits]) -> Waits:
    if not waits:
        return _UNKNOWN
    return Waits(*(max((wait for wait in column if wait is not None), default=None) for column in zip(*waits, strict=True)))

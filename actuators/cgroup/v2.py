"""Control groups v2: one tree for all controllers, each enabled group by group."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from actuators.cgroup.files import figure, line_after
from actuators.cgroup.group import Controller, Direction
from actuators.cgroup.hierarchy import ControllerMissingError, Hierarchies
from actuators.cgroup.processes import ProcessList
from actuators.cgroup.v2_files import ControllerFile
from actuators.cgroup.v2_knobs import CpuBandwidthKnob, CpuClassKnob, DiskThrottleKnob, FreezerKnob, ListKnob
from actuators.cgroup.v2_memory import MemoryKnob
from actuators.cgroup.v2_subtree import NAMES, SubtreePath
from parties.knob import Knob

_NS_PER_US = 1000


class GroupLayerV2:
    """The v2 tree of a machine. ``root`` is the file system's root. Raises ControllerMissingError where no tree is mounted."""

    def __init__(self, hierarchies: Hierarchies, root: Path = Path("/")) -> None:
        if hierarchies.v2 is None:
            raise ControllerMissingError("no control-group v2 tree; mount it: mount -t cgroup2 none /sys/fs/cgroup")
        self.hierarchies = hierarchies
        self._tree = hierarchies.v2
        self._root = root

    @cached_property
    def offers(self) -> frozenset[Controller]:
        """What the kernel has bound to the tree; freezing and counting CPU time every tree can."""
        try:
            bound = (self._tree / "cgroup.controllers").read_text(encoding="ascii").split()
        except OSError:
            bound = []
        return frozenset(need for need in Controller if need not in NAMES or NAMES[need] in bound)

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Why ``needs`` cannot be had here, and what to do; empty if they can."""
        absent = [NAMES[need] for need in needs if need not in self.offers]
        if not absent:
            return ""
        found = ", ".join(sorted(NAMES[need] for need in self.offers if need in NAMES)) or "none of those that are needed"
        return (
            f"no control-group controller {', '.join(absent)} in {self._tree / 'cgroup.controllers'} (found: {found}); "
            f"is it switched off by cgroup_disable= on the kernel's command line, or held by a v1 hierarchy?"
        )

    def group(self, path: str) -> ControlGroupV2:
        """The group of that path, whether it exists or not."""
        return ControlGroupV2(self.hierarchies, self._tree, path, self._root)


class ControlGroupV2:
    """A group of the tree at ``tree``. Readers give None for what a controller would count that is not enabled."""

    def __init__(self, hierarchies: Hierarchies, tree: Path, path: str, root: Path = Path("/")) -> None:
        self.path = "/" + path.strip("/")
        self._hierarchies = hierarchies
        self._place = tree / self.path.lstrip("/")
        self._subtree = SubtreePath(tree, self._place, root)
        self._throttles: dict[tuple[str, Direction], DiskThrottleKnob] = {}
        self._counters: dict[str, ControllerFile] = {}
        self._processes = ProcessList(str(self._place))

    def directory(self, controller: Controller) -> Path:  # noqa: ARG002 (v1 has one for each)
        """Where the group is."""
        return self._place

    def missing(self, needs: Iterable[Controller]) -> tuple[str, ...]:
        """The directory, if it should be there and is not."""
        return (str(self._place),) if tuple(needs) and not self._place.is_dir() else ()

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Which controllers a group above does not pass on, where that is not ours to change, and what to do."""
        forbidden = self._subtree.forbidden(_names(needs))
        if not forbidden:
            return ""
        first = forbidden[0]
        return (
            f"{self._place} has no {first.controller} controller: {first.directory}/cgroup.subtree_control does not name it, and "
            f"that part of the tree is systemd's; set Delegate={first.controller} (or yes) in the unit that holds the group, "
            "or name the service by its unit"
        )

    def enabling(self, needs: Iterable[Controller]) -> tuple[Knob, ...]:
        """The words that cgroup.subtree_control needs on the way here, from the root down, where that is not systemd's."""
        return tuple(self._subtree.ours(_names(needs)))

    @cached_property
    def cpus(self) -> Knob:
        """cpuset.cpus."""
        return ListKnob(self._place / "cpuset.cpus")

    @cached_property
    def mems(self) -> Knob:
        """cpuset.mems."""
        return ListKnob(self._place / "cpuset.mems")

    @cached_property
    def cpu_bandwidth(self) -> Knob:
        """cpu.max."""
        return CpuBandwidthKnob(self._place)

    @cached_property
    def cpu_class(self) -> Knob:
        """cpu.idle and cpu.weight."""
        return CpuClassKnob(self._place)

    @cached_property
    def memory_limit(self) -> Knob:
        """memory.high and memory.max."""
        return MemoryKnob(self._place)

    @cached_property
    def freezer(self) -> Knob:
        """cgroup.freeze."""
        return FreezerKnob(self._place)

    def disk_throttle(self, device: str, direction: Direction) -> Knob:
        """A key of the device's line in io.max."""
        key = (device, direction)
        if key not in self._throttles:
            self._throttles[key] = DiskThrottleKnob.of(self._place, device, direction)
        return self._throttles[key]

    def cpus_in_force(self) -> str | None:
        """cpuset.cpus.effective, or the nearest one above where the controller is not enabled; the root has one."""
        for place in (self._place, *self._place.parents):
            text = self._counter("cpuset.cpus.effective", place).read_if_enabled()
            if text is not None:
                return text.strip() or None
            if not (place / "cgroup.controllers").exists():
                break
        return None

    def pids(self) -> tuple[int, ...]:
        """cgroup.procs of the group and of those below it; none where it is gone."""
        return self._processes.read() or ()

    def cpu_usage_ns(self) -> int | None:
        """usage_usec of cpu.stat, which counts the groups below as well and needs no controller."""
        return figure(self._counter("cpu.stat").raw(), b"usage_usec") * _NS_PER_US

    def memory_bytes(self) -> int | None:
        """memory.current less inactive_file of memory.stat."""
        usage = self._counter("memory.current").raw_if_enabled()
        if usage is None:
            return None
        return max(0, int(usage) - figure(self._counter("memory.stat").raw(), b"inactive_file"))

    def disk_bytes(self, device: str) -> int | None:
        """Rbytes and wbytes of the device's line in io.stat; a device without a line has not been used."""
        text = self._counter("io.stat").raw_if_enabled()
        if text is None:
            return None
        fields = line_after(text, device.encode() + b" ") or b""
        counts = dict(field.split(b"=", 1) for field in fields.split())
        return int(counts.get(b"rbytes", 0)) + int(counts.get(b"wbytes", 0))

    def close(self) -> None:
        """Give up descriptors: they go with the knobs that hold them."""
        for name in ("cpus", "mems", "cpu_bandwidth", "cpu_class", "memory_limit", "freezer"):
            self.__dict__.pop(name, None)
        self._throttles.clear()
        self._counters.clear()
        self._processes = ProcessList(str(self._place))

    def _counter(self, name: str, place: Path | None = None) -> ControllerFile:
        key = name if place is None else f"{place}/{name}"
        if key not in self._counters:
            self._counters[key] = ControllerFile(place or self._place, name, writable=False)
        return self._counters[key]


def _names(needs: Iterable[Controller]) -> tuple[str, ...]:
    return tuple(NAMES[need] for need in needs if need in NAMES)

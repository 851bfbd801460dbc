"""Control groups v1: one hierarchy for each controller."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from actuators.cgroup.files import KeptFile, figure, line_after
from actuators.cgroup.group import Controller, Direction
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.processes import ProcessList
from actuators.cgroup.v1_knobs import (
    CpuBandwidthKnob,
    CpuClassKnob,
    DiskThrottleKnob,
    FreezerKnob,
    ListKnob,
    MemoryLimitKnob,
)
from parties.knob import Knob

_PROCESS_ORDER = (Controller.CPU, Controller.CPUACCT, Controller.CPUSET, Controller.MEMORY, Controller.DISK, Controller.FREEZER)
_KNOBS = ("cpus", "mems", "cpu_bandwidth", "cpu_class", "memory_limit", "freezer")
_OPENED = (*_KNOBS, "_cpu_usage", "_memory_usage", "_memory_stat", "_disk_usage", "_processes")


class GroupLayerV1:
    """The v1 hierarchies of a machine."""

    def __init__(self, hierarchies: Hierarchies) -> None:
        self.hierarchies = hierarchies

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Why ``needs`` cannot be had here, and what to do; empty if they can."""
        return self.hierarchies.lacks(tuple(need.value for need in needs))

    def group(self, path: str) -> ControlGroupV1:
        """The group of that path, whether it exists or not."""
        return ControlGroupV1(self.hierarchies, path)


class ControlGroupV1:
    """A group of the same path in every hierarchy. A knob whose controller is not mounted raises ControllerMissingError."""

    def __init__(self, hierarchies: Hierarchies, path: str) -> None:
        self.path = "/" + path.strip("/")
        self._hierarchies = hierarchies
        self._throttles: dict[tuple[str, Direction], DiskThrottleKnob] = {}

    def directory(self, controller: Controller) -> Path:
        """Where the group is in a controller's hierarchy. Raises ControllerMissingError."""
        return self._hierarchies.mount_point(controller.value) / self.path.lstrip("/")

    def missing(self, needs: Iterable[Controller]) -> tuple[str, ...]:
        """The directories that should be there for ``needs`` and are not."""
        return tuple(str(place) for place in map(self.directory, needs) if not place.is_dir())

    def lacks(self, needs: Iterable[Controller]) -> str:  # noqa: ARG002 (the interface's)
        """Nothing: a group that is in a hierarchy can do all that the hierarchy can."""
        return ""

    def enabling(self, needs: Iterable[Controller]) -> tuple[Knob, ...]:  # noqa: ARG002 (the interface's)
        """Nothing has to be enabled."""
        return ()

    @cached_property
    def cpus(self) -> Knob:
        """cpuset.cpus."""
        return ListKnob(self.directory(Controller.CPUSET) / "cpuset.cpus")

    @cached_property
    def mems(self) -> Knob:
        """cpuset.mems."""
        return ListKnob(self.directory(Controller.CPUSET) / "cpuset.mems")

    @cached_property
    def cpu_bandwidth(self) -> Knob:
        """cpu.cfs_quota_us and cpu.cfs_period_us."""
        return CpuBandwidthKnob(self.directory(Controller.CPU))

    @cached_property
    def cpu_class(self) -> Knob:
        """cpu.idle and cpu.shares."""
        return CpuClassKnob(self.directory(Controller.CPU))

    @cached_property
    def memory_limit(self) -> Knob:
        """memory.limit_in_bytes."""
        return MemoryLimitKnob(self.directory(Controller.MEMORY))

    @cached_property
    def freezer(self) -> Knob:
        """freezer.state."""
        return FreezerKnob(self.directory(Controller.FREEZER))

    def disk_throttle(self, device: str, direction: Direction) -> Knob:
        """A line of blkio.throttle.read_bps_device or write_bps_device."""
        key = (device, direction)
        if key not in self._throttles:
            path = self.directory(Controller.DISK) / f"blkio.throttle.{direction.value}_bps_device"
            self._throttles[key] = DiskThrottleKnob(path, device)
        return self._throttles[key]

    def cpus_in_force(self) -> str | None:
        """cpuset.cpus: empty means none here."""
        return self.cpus.read()

    def pids(self) -> tuple[int, ...]:
        """Its processes and those of the groups below it, in the first hierarchy that has the group; none where it is gone."""
        for processes in self._processes:
            found = processes.read()
            if found is not None:
                return found
        return ()

    def cpu_usage_ns(self) -> int | None:
        """cpuacct.usage, which counts the groups below as well."""
        counter = self._cpu_usage
        return None if counter is None else int(counter.raw())

    def memory_bytes(self) -> int | None:
        """memory.usage_in_bytes less total_inactive_file."""
        usage, stat = self._memory_usage, self._memory_stat
        if usage is None or stat is None:
            return None
        return max(0, int(usage.raw()) - figure(stat.raw(), b"total_inactive_file"))

    def disk_bytes(self, device: str) -> int | None:
        """blkio.throttle.io_service_bytes_recursive: the device's total.

        None where it has no line: recent kernels count a device only once a limit has been set on it (in any group).
        """
        counter = self._disk_usage
        total = None if counter is None else line_after(counter.raw(), device.encode() + b" Total ")
        return None if total is None else int(total)

    def close(self) -> None:
        """Give up descriptors: they go with the knobs that hold them."""
        for name in _OPENED:
            self.__dict__.pop(name, None)
        self._throttles.clear()

    @cached_property
    def _cpu_usage(self) -> KeptFile | None:
        return self._counter(Controller.CPUACCT, "cpuacct.usage")

    @cached_property
    def _memory_usage(self) -> KeptFile | None:
        return self._counter(Controller.MEMORY, "memory.usage_in_bytes")

    @cached_property
    def _memory_stat(self) -> KeptFile | None:
        return self._counter(Controller.MEMORY, "memory.stat")

    @cached_property
    def _disk_usage(self) -> KeptFile | None:
        return self._counter(Controller.DISK, "blkio.throttle.io_service_bytes_recursive")

    def _counter(self, controller: Controller, name: str) -> KeptFile | None:
        mounted = controller.value in self._hierarchies.v1
        return KeptFile(self.directory(controller) / name, writable=False) if mounted else None

    @cached_property
    def _processes(self) -> tuple[ProcessList, ...]:
        """The group in every hierarchy that there is; its processes should be the same in each."""
        mounted = (controller for controller in _PROCESS_ORDER if controller.value in self._hierarchies.v1)
        return tuple(ProcessList(str(self.directory(controller))) for controller in mounted)

"""The choice between v1 and v2, for each controller by itself: a machine may have some in either (hybrid)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from actuators.cgroup.group import ControlGroup, Controller, Direction, GroupLayer
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import GroupLayerV1
from actuators.cgroup.v2 import GroupLayerV2
from parties.knob import Knob


def find_layer(hierarchies: Hierarchies, root: Path = Path("/")) -> GroupLayer:
    """The layer that fits: a controller that is mounted as v1 is v1, else it is v2 if the tree has it.

    ``root`` is the file system's root. Where v1 has every controller, or there is no v2 tree, the layer is plain v1; where v1 has
    none that is needed, plain v2.
    """
    on_v1 = frozenset(need for need in Controller if need.value in hierarchies.v1)
    if hierarchies.v2 is None or len(on_v1) == len(Controller):
        return GroupLayerV1(hierarchies)
    v2 = GroupLayerV2(hierarchies, root)
    return MixedLayer(GroupLayerV1(hierarchies), v2, on_v1) if on_v1 else v2


class MixedLayer:
    """Both versions. A group is the same path below every mount point, and its processes should be in each."""

    def __init__(self, v1: GroupLayerV1, v2: GroupLayerV2, on_v1: frozenset[Controller]) -> None:
        self._v1 = v1
        self._v2 = v2
        self._on_v1 = on_v1

    @property
    def hierarchies(self) -> Hierarchies:
        """Where both are mounted."""
        return self._v1.hierarchies

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Which of ``needs`` neither version has, and what to do; empty if every one is in one of them."""
        absent = [need.value for need in needs if need not in self._on_v1 and need not in self._v2.offers]
        if not absent:
            return ""
        found = f"v1: {', '.join(sorted(need.value for need in self._on_v1))}; v2: {self.hierarchies.v2}"
        return (
            f"no control-group controller for {', '.join(absent)} in either version ({found}); if cgroup_disable= on the kernel's "
            f"command line does not switch it off, mount it, for example: mount -t cgroup -o {absent[0]} {absent[0]} "
            f"/sys/fs/cgroup/{absent[0]}"
        )

    def group(self, path: str) -> ControlGroup:
        """The group of that path, whether it exists or not."""
        return MixedGroup(self._v1.group(path), self._v2.group(path), self._on_v1)


class MixedGroup:
    """A group of which every knob and counter is taken from the version that has its controller."""

    def __init__(self, v1: ControlGroup, v2: ControlGroup, on_v1: frozenset[Controller]) -> None:
        self.path = v1.path
        self._v1 = v1
        self._v2 = v2
        self._on_v1 = on_v1

    def missing(self, needs: Iterable[Controller]) -> tuple[str, ...]:
        """The directories that should be there for ``needs`` and are not."""
        on_v1, on_v2 = self._divided(needs)
        return (*self._v1.missing(on_v1), *self._v2.missing(on_v2))

    def lacks(self, needs: Iterable[Controller]) -> str:
        """What of ``needs`` the group in the v2 tree cannot do."""
        return self._v2.lacks(self._divided(needs)[1])

    def enabling(self, needs: Iterable[Controller]) -> tuple[Knob, ...]:
        """What has to be enabled in the v2 tree."""
        return self._v2.enabling(self._divided(needs)[1])

    @property
    def cpus(self) -> Knob:
        """Of cpuset."""
        return self._of(Controller.CPUSET).cpus

    @property
    def mems(self) -> Knob:
        """Of cpuset."""
        return self._of(Controller.CPUSET).mems

    @property
    def cpu_bandwidth(self) -> Knob:
        """Of cpu."""
        return self._of(Controller.CPU).cpu_bandwidth

    @property
    def cpu_class(self) -> Knob:
        """Of cpu."""
        return self._of(Controller.CPU).cpu_class

    @property
    def memory_limit(self) -> Knob:
        """Of memory."""
        return self._of(Controller.MEMORY).memory_limit

    @property
    def freezer(self) -> Knob:
        """Of the v1 freezer, or of the v2 tree itself."""
        return self._of(Controller.FREEZER).freezer

    def disk_throttle(self, device: str, direction: Direction) -> Knob:
        """Of blkio or io."""
        return self._of(Controller.DISK).disk_throttle(device, direction)

    def cpus_in_force(self) -> str | None:
        """Of cpuset."""
        return self._of(Controller.CPUSET).cpus_in_force()

    def pids(self) -> tuple[int, ...]:
        """Of the first v1 hierarchy that has the group, else of the v2 tree."""
        return self._v1.pids() or self._v2.pids()

    def cpu_usage_ns(self) -> int | None:
        """Of cpuacct, or of the v2 tree itself."""
        return self._of(Controller.CPUACCT).cpu_usage_ns()

    def memory_bytes(self) -> int | None:
        """Of memory."""
        return self._of(Controller.MEMORY).memory_bytes()

    def disk_bytes(self, device: str) -> int | None:
        """Of blkio or io."""
        return self._of(Controller.DISK).disk_bytes(device)

    def close(self) -> None:
        """Give up descriptors."""
        self._v1.close()
        self._v2.close()

    def _of(self, controller: Controller) -> ControlGroup:
        return self._v1 if controller in self._on_v1 else self._v2

    def _divided(self, needs: Iterable[Controller]) -> tuple[list[Controller], list[Controller]]:
        wanted = list(needs)
        return [need for need in wanted if need in self._on_v1], [need for need in wanted if need not in self._on_v1]

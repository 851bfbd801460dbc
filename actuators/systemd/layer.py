"""The control-group layer of a machine that systemd runs: what is a unit is written through systemd, all else directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from actuators.cgroup.group import ControlGroup, Controller, Direction, GroupLayer
from actuators.cgroup.hierarchy import Hierarchies
from actuators.systemd.bus import SystemdBus
from actuators.systemd.knobs import Unit, owned_by
from parties.knob import Knob

_PERSISTENT = "etc/systemd/system.control"
_RUNTIME = "run/systemd/system.control"
_FILE_DIRECTORIES = (
    _PERSISTENT,
    _RUNTIME,
    "etc/systemd/system",
    "run/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)
_SETTINGS = (
    *("AllowedCPUs", "AllowedMemoryNodes", "CPUQuota", "CPUQuotaPeriodSec", "CPUWeight"),
    *("MemoryHigh", "MemoryMax", "IOReadBandwidthMax", "IOWriteBandwidthMax"),
)


class SystemdLayer:
    """A layer over another. ``units`` are the paths that are units (``actuators.cgroup.naming``), ``root`` is the file system's."""

    def __init__(self, base: GroupLayer, units: Mapping[str, str], root: Path = Path("/"), bus: SystemdBus | None = None) -> None:
        self._base = base
        self._units = units
        self._root = root
        self._bus = bus or SystemdBus(root)

    @property
    def hierarchies(self) -> Hierarchies:
        """Where control groups are mounted."""
        return self._base.hierarchies

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Why ``needs`` cannot be had here, and what to do; empty if they can."""
        return self._base.lacks(needs)

    def group(self, path: str) -> ControlGroup:
        """The group of that path, whether it exists or not."""
        group, tree = self._base.group(path), self.hierarchies.v2
        unit = self._units.get("/" + path.strip("/"))
        if unit is None or tree is None:
            return group
        return UnitGroup(group, Unit(unit, tree / path.strip("/"), self._bus, self._root))

    def warnings(self) -> tuple[str, ...]:
        """Settings in unit files that win over a runtime property whenever systemd reads its files anew."""
        return tuple(warning for unit in dict.fromkeys(self._units.values()) for warning in self._contested(unit))

    def _contested(self, unit: str) -> Iterator[str]:
        for directory in _FILE_DIRECTORIES:
            for file in sorted((self._root / directory / f"{unit}.d").glob("*.conf")):
                for name in _settings_in(file):
                    ours = f"50-{name}.conf"
                    if file.name > ours or (file.name == ours and directory == _PERSISTENT):
                        yield (
                            f"{file} sets {name}, which comes back at each systemctl daemon-reload and is then written over again; "
                            f"remove it while {unit} is managed"
                        )


class UnitGroup:
    """A unit's own control group.

    Read as ``group`` reads it. Where a controller is not enabled nobody has to enable it: systemd does when the property is set.
    """

    def __init__(self, group: ControlGroup, unit: Unit) -> None:
        self.path = group.path
        self._group = group
        self._unit = unit
        self._throttles: dict[tuple[str, Direction], Knob] = {}

    def missing(self, needs: Iterable[Controller]) -> tuple[str, ...]:
        """The directories that should be there for ``needs`` and are not."""
        return self._group.missing(needs)

    def lacks(self, needs: Iterable[Controller]) -> str:  # noqa: ARG002 (the interface's)
        """Nothing: systemd passes controllers on as needed."""
        return ""

    def enabling(self, needs: Iterable[Controller]) -> tuple[Knob, ...]:  # noqa: ARG002 (the interface's)
        """Nothing, for the same reason."""
        return ()

    @cached_property
    def cpus(self) -> Knob:
        """AllowedCPUs."""
        return owned_by(self._unit, self._group.cpus)

    @cached_property
    def mems(self) -> Knob:
        """AllowedMemoryNodes."""
        return owned_by(self._unit, self._group.mems)

    @cached_property
    def cpu_bandwidth(self) -> Knob:
        """CPUQuota and CPUQuotaPeriodSec."""
        return owned_by(self._unit, self._group.cpu_bandwidth)

    @cached_property
    def cpu_class(self) -> Knob:
        """CPUWeight."""
        return owned_by(self._unit, self._group.cpu_class)

    @cached_property
    def memory_limit(self) -> Knob:
        """MemoryHigh and MemoryMax."""
        return owned_by(self._unit, self._group.memory_limit)

    @property
    def freezer(self) -> Knob:
        """cgroup.freeze, written directly: a reload leaves it alone, and systemd thaws a unit that it stops."""
        return self._group.freezer

    def disk_throttle(self, device: str, direction: Direction) -> Knob:
        """One disk of IOReadBandwidthMax or IOWriteBandwidthMax."""
        key = (device, direction)
        if key not in self._throttles:
            self._throttles[key] = owned_by(self._unit, self._group.disk_throttle(device, direction))
        return self._throttles[key]

    def cpus_in_force(self) -> str | None:
        """The CPUs that its processes really may run on; None where there are none."""
        return self._group.cpus_in_force()

    def pids(self) -> tuple[int, ...]:
        """Its processes, those of groups below it included."""
        return self._group.pids()

    def cpu_usage_ns(self) -> int | None:
        """CPU time used so far."""
        return self._group.cpu_usage_ns()

    def memory_bytes(self) -> int | None:
        """The working set."""
        return self._group.memory_bytes()

    def disk_bytes(self, device: str) -> int | None:
        """Bytes read and written so far on one disk."""
        return self._group.disk_bytes(device)

    def close(self) -> None:
        """Give up descriptors."""
        for name in ("cpus", "mems", "cpu_bandwidth", "cpu_class", "memory_limit"):
            self.__dict__.pop(name, None)
        self._throttles.clear()
        self._group.close()


def _settings_in(file: Path) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for name in _SETTINGS:
        if any(line.replace(" ", "").startswith(f"{name}=") for line in lines):
            yield name

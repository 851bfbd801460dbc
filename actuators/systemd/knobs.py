"""The knobs of a unit: those of control groups v2, read from the kernel as they are, written through the unit's properties.

What they compare, refuse and take back is what the kernel's own knobs do; only the way in is another. So the values survive
``systemctl daemon-reload`` and a restart of the unit. Every kind is slow: systemd is asked over D-Bus by another process.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from actuators.cgroup.group import IDLE_CLASS
from actuators.cgroup.v2_knobs import LEAST_WEIGHT, CpuBandwidthKnob, CpuClassKnob, DiskThrottleKnob, ListKnob
from actuators.cgroup.v2_memory import MemoryKnob
from actuators.systemd.beside import BesideKnob
from actuators.systemd.bus import SystemdBus
from actuators.systemd.drop_ins import DropInKnob, ReloadKnob
from actuators.systemd.properties import (
    DiskLimits,
    ListFile,
    PropertyFile,
    cpu_bandwidth,
    cpu_idle,
    cpu_list,
    cpu_weight,
    memory,
)
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import Resource

_LIST_NAMES = {"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}
_LEAST = f"weight={LEAST_WEIGHT}"


class Unit:
    """A unit, its control group, and how to reach systemd. ``root`` is the file system's root."""

    def __init__(self, name: str, directory: Path, bus: SystemdBus, root: Path = Path("/")) -> None:
        self.name = name
        self.directory = directory
        self.bus = bus
        self.root = root

    def ref(self, kind: str, *rest: str) -> KnobRef:
        """The reference of one of its knobs."""
        return KnobRef(kind, (self.name, str(self.directory), *rest))

    def journalled_first(self, resource: Resource | None) -> Sequence[Knob]:
        """What setting a property of this resource changes besides."""
        drop_ins = DropInKnob(resource, self.name, self.directory, self.root)
        return (ReloadKnob(self.bus, self.root), drop_ins, BesideKnob(self.directory))


class UnitListKnob(ListKnob):
    """AllowedCPUs or AllowedMemoryNodes."""

    KIND = "systemd.list"

    def __init__(self, unit: Unit, name: str) -> None:
        super().__init__(unit.directory / name)
        self._file = ListFile(unit.directory, name, unit.name, unit.bus, cpu_list(_LIST_NAMES[name]))
        self._unit = unit
        self.ref = unit.ref(self.KIND, name)

    def journalled_first(self) -> Sequence[Knob]:
        """The unit's drop-ins."""
        return self._unit.journalled_first(Resource.CORES)


class UnitCpuBandwidthKnob(CpuBandwidthKnob):
    """CPUQuota and CPUQuotaPeriodSec."""

    KIND = "systemd.cpu-bandwidth"

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit.directory)
        self._file = PropertyFile(unit.directory, "cpu.max", unit.name, unit.bus, cpu_bandwidth)
        self._unit = unit
        self.ref = unit.ref(self.KIND)

    def journalled_first(self) -> Sequence[Knob]:
        """The unit's drop-ins."""
        return self._unit.journalled_first(Resource.CORES)


class UnitCpuClassKnob(CpuClassKnob):
    """CPUWeight. systemd before 252 has no idle class and refuses it; "idle=1" is then enforced by the least weight."""

    KIND = "systemd.cpu-class"

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit.directory)
        self._weight = PropertyFile(unit.directory, "cpu.weight", unit.name, unit.bus, cpu_weight)
        self._idle = PropertyFile(unit.directory, "cpu.idle", unit.name, unit.bus, cpu_idle)
        self._unit = unit
        self.ref = unit.ref(self.KIND)

    def write(self, value: str) -> None:
        """Enter the idle class, or leave it for a weight."""
        try:
            super().write(value)
        except KnobError as error:
            if value != IDLE_CLASS or error.errno != errno.EINVAL:
                raise
            self._weight.write(str(LEAST_WEIGHT))

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare; the least weight counts as the idle class."""
        return super().same(wanted, found) or (wanted == IDLE_CLASS and found == _LEAST)

    def journalled_first(self) -> Sequence[Knob]:
        """The unit's drop-ins."""
        return self._unit.journalled_first(Resource.CORES)


class UnitMemoryKnob(MemoryKnob):
    """MemoryHigh and MemoryMax, lowered with the same care as the kernel's own."""

    KIND = "systemd.memory"

    def __init__(self, unit: Unit) -> None:
        super().__init__(unit.directory)
        self._high = PropertyFile(unit.directory, "memory.high", unit.name, unit.bus, memory("MemoryHigh"))
        self._max = PropertyFile(unit.directory, "memory.max", unit.name, unit.bus, memory("MemoryMax"))
        self._unit = unit
        self.ref = unit.ref(self.KIND)

    def journalled_first(self) -> Sequence[Knob]:
        """The unit's drop-ins."""
        return self._unit.journalled_first(Resource.MEMORY)


class UnitDiskThrottleKnob(DiskThrottleKnob):
    """One disk of IOReadBandwidthMax or IOWriteBandwidthMax."""

    KIND = "systemd.disk-throttle"

    def __init__(self, unit: Unit, device: str, key: str) -> None:
        super().__init__(unit.directory, device, key)
        limits = DiskLimits(unit.name, unit.bus, unit.root)
        self._file = PropertyFile(unit.directory, "io.max", unit.name, unit.bus, limits.translate)
        self._unit = unit
        self.ref = unit.ref(self.KIND, device, key)

    def journalled_first(self) -> Sequence[Knob]:
        """The unit's drop-ins."""
        return self._unit.journalled_first(Resource.DISK)


def owned_by(unit: Unit, knob: Knob) -> Knob:
    """The unit's knob for one of its control group's; one that systemd has no property for (the freezer), or of v1, as it is."""
    make = _MAKERS.get(knob.ref.kind)
    return knob if make is None else make(unit, knob.ref.address)


_MAKERS: Mapping[str, Callable[[Unit, tuple[str, ...]], Knob]] = {
    ListKnob.KIND: lambda unit, address: UnitListKnob(unit, Path(address[0]).name),
    CpuBandwidthKnob.KIND: lambda unit, _: UnitCpuBandwidthKnob(unit),
    CpuClassKnob.KIND: lambda unit, _: UnitCpuClassKnob(unit),
    MemoryKnob.KIND: lambda unit, _: UnitMemoryKnob(unit),
    DiskThrottleKnob.KIND: lambda unit, address: UnitDiskThrottleKnob(unit, address[1], address[2]),
}


def knob_kinds(bus: SystemdBus, root: Path = Path("/")) -> KnobKinds:
    """Every kind, asking this systemd."""

    def unit(address: tuple[str, ...]) -> Unit:
        return Unit(address[0], Path(address[1]), bus, root)

    def kind(make: Callable[[tuple[str, ...]], Knob], resource: Resource) -> KnobKind:
        return KnobKind(make, resource, slow=True, safe=_unset)

    return {
        UnitListKnob.KIND: kind(lambda address: UnitListKnob(unit(address), address[2]), Resource.CORES),
        UnitCpuBandwidthKnob.KIND: kind(lambda address: UnitCpuBandwidthKnob(unit(address)), Resource.CORES),
        UnitCpuClassKnob.KIND: kind(lambda address: UnitCpuClassKnob(unit(address)), Resource.CORES),
        UnitMemoryKnob.KIND: kind(lambda address: UnitMemoryKnob(unit(address)), Resource.MEMORY),
        UnitDiskThrottleKnob.KIND: kind(lambda address: UnitDiskThrottleKnob(unit(address), *address[2:]), Resource.DISK),
        ReloadKnob.KIND: KnobKind(lambda address: ReloadKnob(bus, Path(address[0])), slow=True),
        **{
            f"{DropInKnob.KIND}.{resource}": KnobKind(partial(_drop_in, resource), resource, slow=True)
            for resource in (Resource.CORES, Resource.MEMORY, Resource.DISK)
        },
        f"{DropInKnob.KIND}.rest": KnobKind(partial(_drop_in, None), slow=True),
        BesideKnob.KIND: KnobKind(lambda address: BesideKnob(Path(address[0]))),
    }


def _drop_in(resource: Resource | None, address: tuple[str, ...]) -> Knob:
    return DropInKnob(resource, address[0], Path(address[1]), Path(address[2]))


def _unset(_: Knob) -> str | None:
    """What suits a machine without us: no limit of its own."""
    return None


KINDS: KnobKinds = knob_kinds(SystemdBus())

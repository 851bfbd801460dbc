"""The knobs of pqos: the way mask of a class of service, and the class that a CPU is associated with.

A knob of the actuator reads the snapshot, at no cost. One that was found again by its reference (in the slow writer, in a restore)
runs pqos for a read as well, since there nothing may be believed that was not looked at.
"""

from __future__ import annotations

import errno
from functools import lru_cache
from pathlib import Path

from actuators.cache.pqos_command import Pqos
from actuators.cache.pqos_output import PqosState
from actuators.cache.resctrl import Mask
from parties.interfaces import Finding
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef, Sensor
from parties.model import NS_PER_S, Resource

DEFAULT_CLASS = 0
"""The class that every CPU begins in: of whoever is no holder."""

LOOK = "look"
PERIOD_NS = 3 * NS_PER_S


class PqosMaskKnob:
    """The ways that a class of service may fill in one unit, in hex; "CODE/DATA" where CDP keeps them apart."""

    KIND = "pqos.mask"

    def __init__(self, pqos: Pqos, unit: int, service_class: int, *, live: bool = False) -> None:
        self._pqos, self._unit, self._class, self._live = pqos, unit, service_class, live
        self.ref = KnobRef(self.KIND, pqos.address(str(unit), str(service_class)))

    def read(self) -> str:
        """The mask in force."""
        try:
            return str(_state(self._pqos, live=self._live).masks[self._unit, self._class])
        except KeyError:
            raise KnobError(errno.EIO, f"{self.ref}: pqos shows no mask of class {self._class} in unit {self._unit}") from None

    def write(self, value: str) -> None:
        """Set the mask, which has to be contiguous."""
        self._pqos.set_mask(self._unit, self._class, Mask.parse(value))

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as numbers."""
        return found is not None and (wanted == found or Mask.parse(wanted) == Mask.parse(found))

    def restore(self, old: str | None) -> None:
        """Bring back the mask."""
        if old is not None:
            self.write(old)

    def everything(self) -> str:
        """Every way."""
        return f"{(1 << self._pqos.abilities().ways) - 1:x}"


class PqosCpuKnob:
    """The class of service that one CPU is associated with."""

    KIND = "pqos.cpu"

    def __init__(self, pqos: Pqos, cpu: int, *, live: bool = False) -> None:
        self._pqos, self._cpu, self._live = pqos, cpu, live
        self.ref = KnobRef(self.KIND, pqos.address(str(cpu)))

    def read(self) -> str:
        """The class in force; ENODEV where the CPU is offline."""
        try:
            return str(_state(self._pqos, live=self._live).cpus[self._cpu].service_class)
        except KeyError:
            raise KnobError(errno.ENODEV, f"{self.ref}: pqos shows no CPU {self._cpu}; is it offline?") from None

    def write(self, value: str) -> None:
        """Associate the CPU."""
        self._pqos.set_class(self._cpu, int(value))

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Bring back the class."""
        if old is not None:
            self.write(old)


class PqosLookKnob(Sensor):
    """Not a value: setting it has pqos look at everything, for the snapshot that the others are read from."""

    KIND = "pqos.look"

    def __init__(self, pqos: Pqos) -> None:
        self._pqos = pqos
        self.ref = KnobRef(self.KIND, pqos.address())

    def read(self) -> str:
        """That it was done."""
        return LOOK

    def write(self, value: str) -> None:  # noqa: ARG002 (there is only one)
        """Look."""
        self._pqos.look()


class PqosLookTask:
    """The upkeep: a new snapshot every few seconds, so that what others change is noticed."""

    value = LOOK
    period_ns = PERIOD_NS

    def __init__(self, pqos: Pqos) -> None:
        self.ref = PqosLookKnob(pqos).ref
        self._told = ""

    def judge(self, found: str | None, error: OSError | None) -> Finding:  # noqa: ARG002 (the interface's)
        """A warning where pqos fails, once for each reason: until it works again foreign changes of masks are not seen."""
        told, self._told = self._told, str(error.strerror or error) if error is not None else ""
        if not self._told or self._told == told:
            return Finding()
        return Finding(warnings=(f"cache ways are not looked at: {self._told}",))


def _state(pqos: Pqos, *, live: bool) -> PqosState:
    return pqos.recent() if live else pqos.seen()


@lru_cache(maxsize=8)
def _pqos(snapshot: str, interface: str, command: str) -> Pqos:
    """One for all knobs of a process, so that one look serves all of them."""
    return Pqos(Path(snapshot), interface, command)


def _mask_knob(address: tuple[str, ...]) -> PqosMaskKnob:
    snapshot, interface, command, unit, number = address
    return PqosMaskKnob(_pqos(snapshot, interface, command), int(unit), int(number), live=True)


def _cpu_knob(address: tuple[str, ...]) -> PqosCpuKnob:
    snapshot, interface, command, cpu = address
    return PqosCpuKnob(_pqos(snapshot, interface, command), int(cpu), live=True)


def _everything(knob: Knob) -> str | None:
    return knob.everything() if isinstance(knob, PqosMaskKnob) else None


KINDS: KnobKinds = {
    PqosMaskKnob.KIND: KnobKind(_mask_knob, Resource.CACHE, slow=True, safe=_everything),
    PqosCpuKnob.KIND: KnobKind(_cpu_knob, Resource.CACHE, slow=True, safe=lambda _: str(DEFAULT_CLASS)),
    PqosLookKnob.KIND: KnobKind(lambda address: PqosLookKnob(_pqos(*address)), Resource.CACHE, slow=True),
}

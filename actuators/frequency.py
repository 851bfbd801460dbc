"""CPU frequency: what this machine has for it, and why it is not managed.

This version reports; it sets no frequency. What it reports is what it finds below /sys/devices/system/cpu.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from parties.knob import KnobWrite
from parties.model import Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement


class FrequencyActuator:
    """Offers one unmanaged pool for each domain, with the reason. ``root`` is where /sys is."""

    resource = Resource.FREQUENCY

    def __init__(self, domains: Sequence[Domain], *, root: Path = Path("/")) -> None:
        self._domains = tuple(domains)
        self._root = root

    def pools(self) -> tuple[Pool, ...]:
        """Unmanaged pools that carry the reason."""
        return tuple(
            Pool(PoolKey(Resource.FREQUENCY, domain.id), managed=False, reason=why_not_managed(domain.cpus, self._root))
            for domain in self._domains
        )

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:  # noqa: ARG002 (the interface's)
        """None: nothing is managed."""
        return ()

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """Nothing: nothing is managed."""
        return {}

    def close(self) -> None:
        """There is nothing to give up."""


def why_not_managed(cpus: Sequence[int], root: Path = Path("/")) -> str:
    """What this machine has for setting the frequency of these CPUs, and why it is not used."""
    system = root / "sys/devices/system/cpu"
    drivers = {driver for cpu in cpus if (driver := _text(system / f"cpu{cpu}/cpufreq/scaling_driver"))}
    if drivers:
        governors = _text(system / f"cpu{cpus[0]}/cpufreq/scaling_available_governors")
        offers = f" with governors {', '.join(governors.split())}" if governors else ""
        return f"cpufreq driver {', '.join(sorted(drivers))}{offers} found; managing it is not part of this version"
    if (system / "cpufreq").is_dir():
        why = "the kernel has cpufreq but no driver is active (none fits, as in most virtual machines, or the firmware forbids it)"
    else:
        why = "the kernel has no cpufreq (CONFIG_CPU_FREQ)"
    return f"no frequency scaling: {system}/cpu*/cpufreq does not exist; {why}"


def _text(file: Path) -> str:
    """Empty where there is none: a machine that does not tell has not got it."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

"""What a holder's cores run at, from the speeds of single CPUs that another process reads (``actuators.frequency.speed``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


class FrequencyMonitor:
    """``speeds`` gives the last reading of each CPU in Hz; it costs the tick one look-up for each CPU."""

    def __init__(self, speeds: Callable[[], Mapping[int, int]]) -> None:
        self._speeds = speeds

    def of(self, cpus: Iterable[int]) -> int | None:
        """The mean over these CPUs in Hz; those that are not known do not count, and of none nothing is known."""
        speeds = self._speeds()
        known = [speeds[cpu] for cpu in cpus if cpu in speeds]
        return sum(known) // len(known) if known else None

"""Pressure stall information (PSI) of one resource, as the kernel tells it for a control group or the machine."""

from __future__ import annotations

from dataclasses import dataclass

_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class Stall:
    """Time in which processes waited for a resource: the running total, and the fraction of the last ten seconds."""

    total_ns: int = 0
    avg10: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """``some``: at least one process waited. ``full``: all that were not idle did."""

    some: Stall
    full: Stall


def parse_pressure(text: str) -> Pressure:
    """What a file such as memory.pressure says; a line that is not there (cpu has had no "full" for long) is zero.

    Raises ValueError.
    """
    stalls = {"some": Stall(), "full": Stall()}
    for line in text.splitlines():
        kind, *fields = line.split()
        values = dict(field.split("=", 1) for field in fields)
        if kind in stalls:
            stalls[kind] = Stall(int(values["total"]) * _NS_PER_US, float(values["avg10"]) / 100)
    return Pressure(**stalls)


def some_total_ns(text: bytes) -> int:
    """The running total of ``some`` alone, which is all that a tick needs. Raises ValueError."""
    return int(text[text.index(b"total=") + 6 : text.index(b"\n")]) * _NS_PER_US

"""Quantities as people write them ("500ms", "1.5GiB", "250m") and as the program keeps them: exact integers in base units.

Each quantity is a ``Quantity``: ``parse`` reads a text, ``format`` writes the shortest text that reads back as the same integer.
Nothing is rounded: a text that is not a whole number of base units is refused. A bare number is refused too, since nobody can
see from it what was meant. Nothing outside the standard library is imported, so that every part may use this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

LARGEST_CPU = 8191
"""The largest CPU number of any Linux kernel (CONFIG_NR_CPUS is at most 8192)."""

_LARGEST = 2**63 - 1
_NUMBER = re.compile(r"([+-]?\d{1,30}(?:\.\d{1,30})?)\s*(\S.*)?", re.ASCII | re.DOTALL)
_CPU_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_DECIMALS = 3
_SHOWN = 60


class UnitError(ValueError):
    """A text is not the quantity that was expected; the message says what was read, what is accepted, and an example."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One kind of quantity. ``units`` maps what people write to base units, ``forms`` is what ``format`` may choose from.

    ``singular`` replaces a unit where the number before it is 1. ``spaced`` puts a blank between number and unit.
    """

    name: str
    base: str
    units: Mapping[str, int]
    forms: tuple[str, ...]
    example: str
    spaced: frozenset[str] = frozenset()
    singular: Mapping[str, str] | None = None

    def parse(self, text: object, *, zero: bool = False) -> int:
        """The integer in base units. Raises UnitError; 0 is refused unless ``zero``, less than 0 always."""
        if not isinstance(text, str):
            raise UnitError(self._bare(text))
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            raise UnitError(f'cannot read {_shown(text)} as {self.name}; say "{self.example}" ({self._accepted()})')
        number, unit = match.groups(default="")
        if not unit:
            raise UnitError(self._bare(text))
        if unit not in self.units:
            raise UnitError(self._unknown(text, unit))
        return self._checked(text, Fraction(number) * self.units[unit], zero=zero)

    def format(self, value: int) -> str:
        """A short text that ``parse`` reads as exactly ``value`` (in base units, at least 0)."""
        candidates = [
            (len(number), -self.units[unit], number, unit)
            for unit in self.forms
            if (value >= self.units[unit] or self.units[unit] == 1) and (number := _decimal(Fraction(value, self.units[unit])))
        ]
        _, _, number, unit = min(candidates)
        if self.singular is not None and number == "1":
            unit = self.singular.get(unit, unit)
        return f"{number}{' ' if unit in self.spaced else ''}{unit}"

    def _checked(self, text: str, value: Fraction, *, zero: bool) -> int:
        if value < 0 or (value == 0 and not zero):
            least = "must not be negative" if zero else "must be more than zero"
            raise UnitError(f'{_shown(text)}: {self.name} {least}; say "{self.example}"')
        if value.denominator != 1:
            raise UnitError(f'{_shown(text)} is not a whole number of {self.base}; say "{self.example}"')
        if value > _LARGEST:
            raise UnitError(f'{_shown(text)} is too large for {self.name}; say "{self.example}"')
        return int(value)

    def _accepted(self) -> str:
        return f"accepted units: {', '.join(self.units)}"

    def _bare(self, found: object) -> str:
        bare = isinstance(found, str | int | float) and not isinstance(found, bool)
        trouble = f"{_shown(found)} has no unit" if bare else f"{_shown(found)} is not {self.name}"
        return f'{trouble}; say "{self.example}" ({self._accepted()})'

    def _unknown(self, text: str, unit: str) -> str:
        near = [known for known in self.units if known.lower() == unit.lower()]
        meant = f"; did you mean {' or '.join(repr(known) for known in near)}?" if near else f'; say "{self.example}"'
        return f"{_shown(text)}: {unit[:_SHOWN]!r} is no unit of {self.name}{meant} ({self._accepted()})"


def _shown(found: object) -> str:
    """What was read, in quotes as in the file, cut if long."""
    text = f'"{found}"' if isinstance(found, str) else str(found).lower() if isinstance(found, bool) else repr(found)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _decimal(value: Fraction) -> str | None:
    """A fraction as an exact decimal, or None where that takes more than ``_DECIMALS`` decimals."""
    scaled = value * 10**_DECIMALS
    if scaled.denominator != 1:
        return None
    whole, decimals = divmod(int(scaled), 10**_DECIMALS)
    return f"{whole}.{decimals:0{_DECIMALS}d}".rstrip("0").rstrip(".")


_DECIMAL_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BYTES = {**_DECIMAL_BYTES, **_BINARY_BYTES}

DURATION = Quantity(
    name="a duration",
    base="nanoseconds",
    units={"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9},
    forms=("ns", "us", "ms", "s"),
    example="500ms",
)
SIZE = Quantity(name="a size", base="bytes", units=_BYTES, forms=tuple(_BYTES), example="1GiB")
BYTE_RATE = Quantity(
    name="a byte rate",
    base="bytes/s",
    units={f"{unit}/s": factor for unit, factor in _BYTES.items()},
    forms=tuple(f"{unit}/s" for unit in _BYTES),
    example="100MB/s",
)
BIT_RATE = Quantity(
    name="a bit rate",
    base="bits/s",
    units={"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9, "Tbit/s": 10**12},
    forms=("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"),
    example="1Gbit/s",
)
FREQUENCY = Quantity(
    name="a frequency",
    base="Hz",
    units={"Hz": 1, "kHz": 10**3, "MHz": 10**6, "GHz": 10**9},
    forms=("Hz", "kHz", "MHz", "GHz"),
    example="2.2GHz",
)
MILLICORES = Quantity(
    name="an amount of CPU",
    base="millicores",
    units={"m": 1, "core": 1000, "cores": 1000},
    forms=("m", "cores"),
    example="0.25 cores",
    spaced=frozenset({"core", "cores"}),
    singular={"cores": "core"},
)
WAYS = Quantity(
    name="an amount of cache",
    base="ways",
    units={"way": 1, "ways": 1},
    forms=("ways",),
    example="2 ways",
    spaced=frozenset({"way", "ways"}),
    singular={"ways": "way"},
)


def parse_cpu_list(text: object) -> tuple[int, ...]:
    """CPU numbers, ascending and without repetition, from "0-3,8" as the kernel writes them; "" is none. Raises UnitError."""
    if not isinstance(text, str):
        raise UnitError(f'a CPU list is written as a text, not {_shown(text)}; say "0-3,8"')
    cpus: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = _CPU_RANGE.fullmatch(part.strip())
        if match is None:
            raise UnitError(f'cannot read {_shown(part.strip())} in the CPU list {_shown(text)}; say "0-3,8" or ""')
        first, last = match[1][-_SHOWN:], (match[2] or match[1])[-_SHOWN:]
        if int(first) > int(last):
            raise UnitError(f'{_shown(part.strip())} in the CPU list {_shown(text)} runs backwards; say "{last}-{first}"')
        if int(last) > LARGEST_CPU:
            raise UnitError(f"{_shown(part.strip())} in the CPU list {_shown(text)}: the largest CPU number is {LARGEST_CPU}")
        cpus.update(range(int(first), int(last) + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """The shortest CPU list that ``parse_cpu_list`` reads as these CPUs."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

"""What the command pqos of intel-cmt-cat prints, taken apart: ``pqos -s`` (what is in force) and ``pqos -D`` (what can be).

Versions before 5 say COS, later ones CLOS. Masks are given per *unit*, which they call a socket: on Intel's processors the
socket, on AMD's the L3. A value that could not be read is printed as ERROR and is left out here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from actuators.cache.resctrl import Mask

_UNIT = re.compile(r"^\S*L3CA\S* CL?OS definitions for (?:Socket|L3ID) (\d+):")
_MASK = re.compile(r"^\s+L3CA CL?OS(\d+) => MASK 0x([0-9a-fA-F]+)\s*$")
_DATA_CODE = re.compile(r"^\s+L3CA CL?OS(\d+) => DATA 0x([0-9a-fA-F]+),\s*CODE 0x([0-9a-fA-F]+)\s*$")
_SOCKET = re.compile(r"^Core information for socket (\d+):")
_CORE = re.compile(r"^\s+Core (\d+), (?:L2ID \d+, )?L3ID (\d+) => CL?OS(\d+)\b")
_NUMBERS = {
    "classes": re.compile(r"Num CL?OS: (\d+)"),
    "shareable": re.compile(r"Ways contention bit-mask: 0x([0-9a-fA-F]+)"),
    "least": re.compile(r"Min CBM bits: (\d+)"),
    "ways": re.compile(r"Max CBM bits: (\d+)"),
}


@dataclass(frozen=True, slots=True)
class PqosCpu:
    """One CPU: its socket, its L3, and the class of service it is associated with."""

    socket: int
    l3: int
    service_class: int


@dataclass(frozen=True, slots=True)
class PqosState:
    """What is in force. ``masks`` is by unit and class of service, ``cpus`` by Linux CPU number."""

    masks: Mapping[tuple[int, int], Mask]
    cpus: Mapping[int, PqosCpu]

    def units(self) -> Mapping[int, int]:
        """The unit of each L3, by its id. Raises ValueError where they cannot be matched."""
        units = {unit for unit, _ in self.masks}
        sockets: dict[int, set[int]] = {}
        for cpu in self.cpus.values():
            sockets.setdefault(cpu.socket, set()).add(cpu.l3)
        if units and all(len(caches) == 1 for caches in sockets.values()) and units == set(sockets):
            return {cache: socket for socket, caches in sockets.items() for cache in caches}
        caches = {cpu.l3 for cpu in self.cpus.values()}
        if units and units == caches:
            return {cache: cache for cache in caches}
        raise ValueError(f"masks for {sorted(units) or 'nothing'}, but L3 caches {sorted(caches)} in sockets {sorted(sockets)}")


@dataclass(frozen=True, slots=True)
class PqosAbilities:
    """What the hardware can. ``least`` is None where pqos does not know it."""

    classes: int
    ways: int
    shareable: int = 0
    least: int | None = None


@dataclass(slots=True)
class _Reading:
    masks: dict[tuple[int, int], Mask] = field(default_factory=dict)
    cpus: dict[int, PqosCpu] = field(default_factory=dict)
    unit: int | None = None
    socket: int | None = None


def parse_state(text: str) -> PqosState:
    """What ``pqos -s`` printed. Raises ValueError where there is no L3 mask or no core in it."""
    reading = _Reading()
    for line in text.splitlines():
        if match := _UNIT.match(line):
            reading.unit = int(match[1])
        elif match := _SOCKET.match(line):
            reading.unit, reading.socket = None, int(match[1])
        elif not line.startswith(" "):
            reading.unit = None
        elif reading.unit is not None:
            _take_mask(reading, reading.unit, line)
        elif reading.socket is not None and (match := _CORE.match(line)):
            reading.cpus[int(match[1])] = PqosCpu(reading.socket, int(match[2]), int(match[3]))
    if not reading.masks or not reading.cpus:
        missing = "mask of an L3 cache" if not reading.masks else "class of a core"
        raise ValueError(f"pqos -s shows no {missing}")
    return PqosState(reading.masks, reading.cpus)


def _take_mask(reading: _Reading, unit: int, line: str) -> None:
    if match := _MASK.match(line):
        mask = int(match[2], 16)
        reading.masks[unit, int(match[1])] = Mask(mask, mask)
    elif match := _DATA_CODE.match(line):
        reading.masks[unit, int(match[1])] = Mask(code=int(match[3], 16), data=int(match[2], 16))


def parse_abilities(text: str) -> PqosAbilities:
    """What ``pqos -D`` printed of the L3. Raises ValueError where it has no allocation."""
    part = text.partition("L3 CAT")[2]
    part = re.split(r"^ {0,12}\S", part, maxsplit=1, flags=re.MULTILINE)[0]
    found = {name: match[1] for name, pattern in _NUMBERS.items() if (match := pattern.search(part))}
    if "classes" not in found:
        raise ValueError("pqos -D shows no allocation of an L3 cache (L3 CAT)")
    least = int(found["least"]) if "least" in found else None
    return PqosAbilities(int(found["classes"]), int(found.get("ways", "0")), int(found.get("shareable", "0"), 16), least)

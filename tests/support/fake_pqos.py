"""A pqos that keeps its state in this process: two units of four classes, and the errors that a test orders."""

from __future__ import annotations

import re
from pathlib import Path

from actuators.cache.pqos_command import Pqos
from parties.knob import KnobError

UNITS = {0: (0, 1, 4, 5), 1: (2, 3, 6, 7)}
FULL = 0x7FF


class FakePqos(Pqos):
    """Answers as the command does.

    ``refuse`` is the errno with which the next change fails, ``narrow`` what masks are cut to, ``ran`` the changes so far.
    """

    def __init__(self, snapshot: Path, classes: int = 4, *, shareable: int = 0x600, least: str = "1") -> None:
        super().__init__(snapshot)
        self.classes_there, self.shareable, self.least_text = classes, shareable, least
        self.masks = {(unit, number): FULL for unit in UNITS for number in range(classes)}
        self.cpus = {cpu: 0 for cpus in UNITS.values() for cpu in cpus}
        self.refuse: int | None = None
        self.narrow = FULL
        self.ran: list[str] = []

    def _run(self, *arguments: str) -> str:
        if arguments == ("-s",):
            return self._shown()
        if arguments == ("-D",):
            return (
                f"            L3 CAT\n                Num COS: {self.classes_there}\n"
                f"                Ways contention bit-mask: 0x{self.shareable:x}\n"
                f"                Min CBM bits: {self.least_text}\n                Max CBM bits: 11\n"
            )
        self.ran.append(arguments[1])
        if self.refuse is not None:
            number, self.refuse = self.refuse, None
            raise KnobError(number, f"pqos {' '.join(arguments)}: refused")
        if match := re.fullmatch(r"llc@(\d+):(\d+)=0x([0-9a-f]+)", arguments[1]):
            self.masks[int(match[1]), int(match[2])] = int(match[3], 16) & self.narrow
        elif match := re.fullmatch(r"core:(\d+)=(\d+)", arguments[1]):
            self.cpus[int(match[2])] = int(match[1])
        else:
            raise AssertionError(arguments)
        return ""

    def _shown(self) -> str:
        lines = []
        for unit in UNITS:
            lines.append(f"L3CA COS definitions for Socket {unit}:")
            lines += [f"    L3CA COS{number} => MASK 0x{mask:x}" for (where, number), mask in self.masks.items() if where == unit]
        for unit, cpus in UNITS.items():
            lines.append(f"Core information for socket {unit}:")
            lines += [f"    Core {cpu}, L2ID {cpu}, L3ID {unit} => COS{self.cpus[cpu]}, RMID0" for cpu in cpus]
        return "\n".join(lines) + "\n"

"""What processors answer to CPUID, composed from the tables of Intel's SDM (volume 2A, CPUID); none was at hand to record it.

The device's file cannot be an ordinary one: its position is the leaf, so that 16 bytes at 7 and 16 bytes at 0x10 are not one text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from actuators.cache import cpuid

Registers = tuple[int, int, int, int]
Answers = Mapping[tuple[int, int], Registers]
"""EAX, EBX, ECX and EDX by leaf and subleaf; the others are zeros."""

BROADWELL: Answers = {
    (0, 0): (0x14, 0x756E6547, 0x6C65746E, 0x49656E69),  # GenuineIntel, leaves up to 0x14
    (7, 0): (0, 0x0000_9000, 0, 0),  # PQM (12) and PQE (15)
    (0x10, 0): (0, 0b010, 0, 0),  # L3 only
    (0x10, 1): (19, 0xC0000, 0b100, 15),  # 20 ways, two of them shared with devices, CDP, classes 0 to 15
}
"""A Xeon E5-2699 v4, as in the paper."""

WITHOUT: Answers = {**BROADWELL, (7, 0): (0, 0x1000, 0, 0), (0x10, 0): (0, 0, 0, 0), (0x10, 1): (0, 0, 0, 0)}
"""One that only monitors."""


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Answers], list[tuple[int, int]]]:
    """Puts a processor below a root, and gives the list of the leaves and subleaves that it is asked for."""

    def put(root: Path, answers: Answers) -> list[tuple[int, int]]:
        asked: list[tuple[int, int]] = []
        file = root / "dev/cpu/0/cpuid"
        file.parent.mkdir(parents=True)
        file.touch()

        def pread(_descriptor: int, size: int, position: int) -> bytes:
            leaf, subleaf = position & 0xFFFF_FFFF, position >> 32
            asked.append((leaf, subleaf))
            return struct.pack("<4I", *answers.get((leaf, subleaf), (0, 0, 0, 0)))[:size]

        monkeypatch.setattr(cpuid, "pread", pread)
        return asked

    return put

"""Asks the processor itself, by CPUID, whether its L3 cache can be partitioned.

Linux before 4.10 does not show it in /proc/cpuinfo. The module ``cpuid`` gives each CPU a file whose position is the leaf, with the
subleaf in its upper half, and whose 16 bytes are EAX, EBX, ECX and EDX (cpuid(4); Intel's SDM, volume 2A, CPUID).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from os import pread
from pathlib import Path

_HIGHEST, _FEATURES, _ALLOCATION = 0, 7, 0x10
"""Leaves: the highest one that there is, structured extended features, allocation of shared resources."""

_L3 = 1
"""Of the leaf of allocation: the subleaf of the L3 cache, and its bit in EBX of subleaf 0."""

_PQE = 1 << 15
"""In EBX of the features: the processor can allocate shared resources."""

_LENGTH = 0x1F
_HIGHEST_CLASS = 0xFFFF
_REGISTERS = struct.Struct("<4I")


@dataclass(frozen=True, slots=True)
class L3Allocation:
    """What the processor says of it: how many ways a mask has, and how many classes of service there are."""

    ways: int
    classes: int


def cpuid_file(root: Path = Path("/")) -> Path | None:
    """The file of one CPU, below ``root``; None where the module ``cpuid`` is not loaded."""
    return min((root / "dev/cpu").glob("[0-9]*/cpuid"), default=None)


def l3_allocation(root: Path = Path("/")) -> L3Allocation | None:
    """What one processor, which stands for all, can; None where it cannot or must not be asked."""
    file = cpuid_file(root)
    if file is None:
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _ask(descriptor)
    except (OSError, struct.error):
        return None
    finally:
        os.close(descriptor)


def _ask(descriptor: int) -> L3Allocation | None:
    highest, _, _, _ = _registers(descriptor, _HIGHEST)
    if highest < _ALLOCATION:  # of a leaf above the highest, Intel's processors answer with the highest
        return None
    _, features, _, _ = _registers(descriptor, _FEATURES)
    _, resources, _, _ = _registers(descriptor, _ALLOCATION)
    if not features & _PQE or not resources >> _L3 & 1:
        return None
    length, _, _, classes = _registers(descriptor, _ALLOCATION, _L3)
    return L3Allocation((length & _LENGTH) + 1, (classes & _HIGHEST_CLASS) + 1)


def _registers(descriptor: int, leaf: int, subleaf: int = 0) -> tuple[int, int, int, int]:
    """EAX, EBX, ECX and EDX. Raises OSError, struct.error."""
    eax, ebx, ecx, edx = _REGISTERS.unpack(pread(descriptor, _REGISTERS.size, leaf | subleaf << 32))
    return eax, ebx, ecx, edx

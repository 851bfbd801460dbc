"""Whether the processor can partition its L3 cache, by its own word, where the kernel does not say."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cpuid_kit import BROADWELL, WITHOUT, Answers

from actuators.cache import cpuid
from actuators.cache.cpuid import L3Allocation, cpuid_file, l3_allocation

Processor = Callable[[Path, Answers], list[tuple[int, int]]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, L3Allocation(20, 16)),
        (
            {(0x10, 1): (0xFFFF_FFE0 | 10, 0, 0, 0xFFFF_0000 | 3)},
            L3Allocation(11, 4),
        ),  # the rest is reserved
        ({(0, 0): (0xD, 0, 0, 0)}, None),  # a processor without leaf 0x10 answers with its highest instead
        ({(7, 0): (0, 0x1000, 0, 0)}, None),  # it monitors, and allocates nothing
        ({(0x10, 0): (0, 0b100, 0, 0)}, None),  # it allocates the L2 cache
        (WITHOUT, None),
    ],
)
def test_what_the_registers_say(tmp_path: Path, processor: Processor, change: Answers, expected: L3Allocation | None) -> None:
    """Each bit that stands for allocation of the L3 cache has to be there, and the numbers are one more than is written."""
    processor(tmp_path, {**BROADWELL, **change})
    assert l3_allocation(tmp_path) == expected


def test_the_leaf_is_the_position_and_the_subleaf_its_upper_half(tmp_path: Path, processor: Processor) -> None:
    """Four answers are enough, and those that hang on others come after them."""
    asked = processor(tmp_path, BROADWELL)
    l3_allocation(tmp_path)
    assert asked == [(0, 0), (7, 0), (0x10, 0), (0x10, 1)]


def test_without_the_module_nobody_can_be_asked(tmp_path: Path) -> None:
    """No file, no answer."""
    assert cpuid_file(tmp_path) is None
    assert l3_allocation(tmp_path) is None


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.ENXIO, errno.EPERM, 0])
def test_a_file_that_cannot_be_read_says_nothing(
    number: int, tmp_path: Path, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error, or too few bytes, it is as if the processor could not; and the descriptor is given up."""
    processor(tmp_path, BROADWELL)

    def fail(*_: int) -> bytes:
        if number:
            raise OSError(number, os.strerror(number))
        return b"\0" * 8

    before = os.listdir("/proc/self/fd")  # noqa: PTH208 (names are all that is asked for)
    monkeypatch.setattr(cpuid, "pread", fail)
    assert l3_allocation(tmp_path) is None
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 (as above)


def test_a_file_that_must_not_be_opened_says_nothing(tmp_path: Path, processor: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user: an error at opening is no error here."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    asked = processor(tmp_path, BROADWELL)
    monkeypatch.setattr("os.open", refuse)
    assert l3_allocation(tmp_path) is None
    assert asked == []


@pytest.mark.kernel
def test_the_kernels_file_is_read_as_the_kernel_means_it() -> None:
    """On this machine vendor and highest leaf, read in the same way, are those of /proc/cpuinfo."""
    file = cpuid_file()
    if file is None or os.geteuid() != 0:
        pytest.skip("needs root and the module cpuid")
    with file.open("rb") as opened:
        highest, *name = cpuid._registers(opened.fileno(), 0)
    text = Path("/proc/cpuinfo").read_text()
    assert f"cpuid level\t: {highest}\n" in text
    ebx, ecx, edx = name
    assert f"vendor_id\t: {struct.pack('<3I', ebx, edx, ecx).decode()}\n" in text
    assert (l3_allocation() is not None) == (" cat_l3 " in text)

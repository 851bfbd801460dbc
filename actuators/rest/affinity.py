"""Where single threads and interrupts may run, and the defaults for new ones: four kinds of knob, each a list of CPUs.

There may be hundreds of threads and interrupts, and nobody fights for them every second, so that a look at one is remembered for
two to four seconds: what a foreign writer does is noticed that much later, and a tick pays for a part of them only.
"""

from __future__ import annotations

import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from monitors.rest import parse_process
from parties.knob import KnobError, KnobRef
from parties.model import NS_PER_S
from parties.units import format_cpu_list, parse_cpu_list

REMEMBERED_NS: Final = 2 * NS_PER_S
_TURNS: Final = 16
_WORD_BITS: Final = 32


class _SeldomReadKnob(ABC):
    """A knob that is really read once in a while; after a write at once. ``turn`` spreads many of them over the ticks."""

    ref: KnobRef

    def __init__(self, turn: int, clock: Callable[[], int]) -> None:
        self._remembered_ns = REMEMBERED_NS + turn % _TURNS * (REMEMBERED_NS // _TURNS)
        self._clock = clock
        self._seen = ""
        self._look_again_ns = 0

    def read(self) -> str | None:
        """The CPUs, as a list."""
        now_ns = self._clock()
        if now_ns >= self._look_again_ns:
            self._look_again_ns = 0
            self._seen = self._read()
            self._look_again_ns = now_ns + self._remembered_ns
        return self._seen

    def write(self, value: str) -> None:
        """Allow these CPUs and no others."""
        self._look_again_ns = 0
        self._write(value)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as sets."""
        return found is not None and parse_cpu_list(wanted) == parse_cpu_list(found)

    def restore(self, old: str | None) -> None:
        """``read`` never gives None."""
        if old is not None:
            self.write(old)

    @abstractmethod
    def _read(self) -> str: ...

    @abstractmethod
    def _write(self, value: str) -> None: ...


class TaskAffinityKnob(_SeldomReadKnob):
    """Where one thread may run. It is told by its number and its start, so that another one of that number counts as vanished."""

    KIND = "task.affinity"

    def __init__(
        self, tid: int, start_ticks: int, proc: Path = Path("/proc"), clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__(tid, clock)
        self._tid = tid
        self._start_ticks = start_ticks
        self._stat = proc / str(tid) / "stat"
        self._allowed: set[int] | None = None  # as last read of the very thread
        self._text = ""
        self.ref = KnobRef(self.KIND, (str(tid), str(start_ticks), str(proc)))

    def _read(self) -> str:
        try:
            found = os.sched_getaffinity(self._tid)
        except OSError as error:
            raise KnobError(error.errno, f"thread {self._tid}: its affinity cannot be read: {error.strerror}") from error
        if found != self._allowed:  # to make sure who it is costs ten times as much
            self._check_identity()
            self._allowed, self._text = found, format_cpu_list(found)
        return self._text

    def _write(self, value: str) -> None:
        self._check_identity()
        try:
            os.sched_setaffinity(self._tid, parse_cpu_list(value))
        except OSError as error:
            cause = _THREAD_CAUSES.get(error.errno or 0, "")
            words = f"thread {self._tid}: cannot be put on CPUs {value}: {error.strerror}"
            raise KnobError(error.errno, f"{words} ({cause})" if cause else words) from error

    def _check_identity(self) -> None:
        try:
            found = parse_process(self._stat.read_text(encoding="utf-8", errors="replace")).start_ticks
        except (FileNotFoundError, ProcessLookupError) as error:
            raise KnobError(errno.ESRCH, f"thread {self._tid} has ended") from error
        except OSError as error:
            raise KnobError(error.errno, f"{self._stat}: cannot be read: {error.strerror}") from error
        except (ValueError, IndexError) as error:
            raise KnobError(errno.EIO, f"{self._stat}: this is no thread's status") from error
        if found != self._start_ticks:
            raise KnobError(errno.ESRCH, f"thread {self._tid} has ended; its number is another one's now")


_THREAD_CAUSES = {
    errno.EINVAL: "the kernel keeps it where it is, or none of these CPUs is online and allowed by its control group",
    errno.EPERM: "run as root, or with CAP_SYS_NICE",
}


class InterruptAffinityKnob(_SeldomReadKnob):
    """Where one interrupt may be delivered: smp_affinity_list. ``directory`` is /proc/irq."""

    KIND = "irq.affinity"

    def __init__(self, directory: Path, number: str, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(int(number), clock)
        self._file = directory / number / "smp_affinity_list"
        self.ref = KnobRef(self.KIND, (str(directory), number))

    def _read(self) -> str:
        return _read_text(self._file)

    def _write(self, value: str) -> None:
        _write_text(self._file, value, _INTERRUPT_CAUSES)


_INTERRUPT_CAUSES = {
    errno.EIO: "the kernel or its driver keeps it where it is",
    errno.EPERM: "the kernel or its driver keeps it where it is, or we are not root",
    errno.EINVAL: "none of these CPUs is online",
    errno.ENOSPC: "these CPUs have no interrupt vector left; reserve more CPUs",
}


class MaskKnob:
    """A file with one mask of CPUs in hexadecimal; its value is the list."""

    def __init__(self, kind: str, path: Path) -> None:
        self._path = path
        self.ref = KnobRef(kind, (str(path),))

    def read(self) -> str | None:
        """The CPUs, as a list."""
        text = _read_text(self._path)
        try:
            return format_cpu_list(parse_mask(text))
        except ValueError as error:
            raise KnobError(errno.EIO, f"{self._path}: {text!r} is no mask of CPUs") from error

    def write(self, value: str) -> None:
        """Allow these CPUs and no others."""
        _write_text(self._path, format_mask(parse_cpu_list(value)), {errno.EINVAL: "none of these CPUs is possible here"})

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as sets."""
        return found is not None and parse_cpu_list(wanted) == parse_cpu_list(found)

    def restore(self, old: str | None) -> None:
        """``read`` never gives None."""
        if old is not None:
            self.write(old)


def parse_mask(text: str) -> frozenset[int]:
    """The CPUs in a mask such as "ff,00000001": words of 32 bits, the highest first. Raises ValueError."""
    bits = 0
    for word in text.strip().split(","):
        value = int(word, 16)
        if not 0 <= value < 1 << _WORD_BITS:
            raise ValueError(text)
        bits = bits << _WORD_BITS | value
    return frozenset(number for number in range(bits.bit_length()) if bits >> number & 1)


def format_mask(cpus: frozenset[int] | tuple[int, ...]) -> str:
    """The inverse of ``parse_mask``."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words = [f"{bits & 0xFFFFFFFF:08x}"]
    while bits := bits >> _WORD_BITS:
        words.append(f"{bits & 0xFFFFFFFF:08x}")
    return ",".join(reversed(words))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError as error:
        number = errno.ENOENT if not file.exists() else error.errno  # an interrupt that was freed while it was read says EIO
        raise KnobError(number, f"{file}: cannot be read: {error.strerror}") from error


def _write_text(file: Path, text: str, causes: dict[int, str]) -> None:
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC | os.O_TRUNC)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)
    except OSError as error:
        cause = causes.get(error.errno or 0, "")
        raise KnobError(error.errno, f"{file}: cannot set {text!r}: {error.strerror}{f' ({cause})' if cause else ''}") from error

"""The knobs of control groups v1. Each kind can be found again from its address by another process (``KINDS``)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from actuators.cgroup.files import FileKnob, KeptFile, Seen, bare, is_set, text_of
from actuators.cgroup.group import FROZEN, IDLE_CLASS, THAWED, CpuBandwidth
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import Resource
from parties.units import parse_cpu_list

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
UNLIMITED_BYTES = (2**63 - 1) // PAGE_BYTES * PAGE_BYTES
"""What memory.limit_in_bytes says where no limit is set."""

LEAST_QUOTA_US = 1000
LONGEST_PERIOD_US = 1_000_000
LEAST_SHARES = 2


class ListKnob(FileKnob):
    """cpuset.cpus or cpuset.mems. None means empty, which is how a new group comes."""

    KIND = "cgroup1.list"

    def __init__(self, path: Path) -> None:
        self.file = KeptFile(path)
        self.ref = KnobRef(self.KIND, (str(path),))

    def look(self) -> Seen:
        """The file."""
        return ((self.file, self.file.raw()),)

    def parse(self, seen: Seen) -> str | None:
        """The list in the kernel's form."""
        return text_of(seen[0]).strip() or None

    def write(self, value: str) -> None:
        """Set the list; ``value`` may be in any order."""
        try:
            self.file.write(value)
        except KnobError as error:
            raise self.file.refused(bare(error), value, _LIST_CAUSES.get(error.errno or 0, "")) from error

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as sets."""
        return parse_cpu_list(wanted) == parse_cpu_list(found or "")

    def restore(self, old: str | None) -> None:
        """Empty it where it was empty; refused (ENOSPC) while there are processes."""
        self.write(old or "")


_LIST_CAUSES = {
    errno.ERANGE: "a number that this machine does not have",
    errno.EINVAL: "not a list, or a CPU or node that is not online or not in the parent group",
    errno.EACCES: "the parent group has not all of these",
    errno.EBUSY: "a group below needs more than this, or a sibling holds it exclusively",
    errno.ENOSPC: "the group has processes and may not be left without",
}


class CpuBandwidthKnob(FileKnob):
    """cpu.cfs_quota_us and cpu.cfs_period_us as one value, "QUOTA PERIOD" or "max PERIOD".

    Where both change, the order is the one that passes through the smaller share: between the two writes the group never has more
    than before or after.
    """

    KIND = "cgroup1.cpu-bandwidth"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._quota = KeptFile(directory / "cpu.cfs_quota_us")
        self._period = KeptFile(directory / "cpu.cfs_period_us")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """Both files."""
        return (self._quota, self._quota.raw()), (self._period, self._period.raw())

    def parse(self, seen: Seen) -> str | None:
        """Quota and period."""
        return str(_bandwidth(seen))

    def write(self, value: str) -> None:
        """Set both; a refused second write takes the first one back."""
        old, new = _bandwidth(self.look()), CpuBandwidth.parse(value)
        steps = [
            step
            for step, differs in (
                (self._set_quota, old.quota_us != new.quota_us),
                (self._set_period, old.period_us != new.period_us),
            )
            if differs
        ]
        if len(steps) > 1 and self._period_first(old, new):
            steps.reverse()
        done = []
        try:
            for step in steps:
                step(new)
                done.append(step)
        except KnobError as error:
            for step in reversed(done):
                step(old)
            raise self._quota.refused(bare(error), value, self._cause(new)) from error

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare quota and period."""
        return found is not None and CpuBandwidth.parse(wanted) == CpuBandwidth.parse(found)

    def restore(self, old: str | None) -> None:
        """``read`` never gives None: the unset value is "max PERIOD"."""
        if old is not None:
            self.write(old)

    def _set_quota(self, value: CpuBandwidth) -> None:
        self._quota.write("-1" if value.quota_us is None else str(value.quota_us))

    def _set_period(self, value: CpuBandwidth) -> None:
        self._period.write(str(value.period_us))

    @staticmethod
    def _period_first(old: CpuBandwidth, new: CpuBandwidth) -> bool:
        if old.quota_us is None:
            return True  # without a quota the period means nothing
        return new.quota_us is not None and old.quota_us * old.period_us < new.quota_us * new.period_us

    def _cause(self, new: CpuBandwidth) -> str:
        if new.quota_us is not None and new.quota_us < LEAST_QUOTA_US:
            return f"the kernel takes no quota under {LEAST_QUOTA_US} us"
        if not LEAST_QUOTA_US <= new.period_us <= LONGEST_PERIOD_US:
            return f"the kernel takes periods from {LEAST_QUOTA_US} us to {LONGEST_PERIOD_US} us"
        return f"does a group above {self._directory} have less, or a group below it more, or cpu.cfs_burst_us exceed the quota?"


def _bandwidth(seen: Seen) -> CpuBandwidth:
    quota_us, period_us = (int(text_of(one)) for one in seen)
    return CpuBandwidth(None if quota_us < 0 else quota_us, period_us)


class CpuClassKnob(FileKnob):
    """cpu.idle and cpu.shares as one value: "idle=1" or "shares=N".

    Leaving the idle class resets the shares, and shares cannot be set within it; so the two are one knob. Where the kernel has no
    cpu.idle (before 5.15), "idle=1" is enforced by the least shares there are.
    """

    KIND = "cgroup1.cpu-class"

    def __init__(self, directory: Path) -> None:
        self._shares = KeptFile(directory / "cpu.shares")
        self._idle = KeptFile(directory / "cpu.idle")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """cpu.idle, and out of the idle class cpu.shares, which mean nothing in it."""
        idle = (self._idle, self._idle_raw())
        return (idle,) if is_set(idle) else (idle, (self._shares, self._shares.raw()))

    def parse(self, seen: Seen) -> str | None:
        """The class in force."""
        return IDLE_CLASS if is_set(seen[0]) else f"shares={int(text_of(seen[1]))}"

    def write(self, value: str) -> None:
        """Enter the idle class, or leave it for these shares."""
        idle = self._is_idle()
        if value == IDLE_CLASS:
            if idle is None:
                self._shares.write(str(LEAST_SHARES))
            else:
                self._idle.write("1")
            return
        if idle:
            self._idle.write("0")
        try:
            self._shares.write(value.removeprefix("shares="))
        except KnobError:
            if idle:
                self._idle.write("1")
            raise

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare; without cpu.idle the least shares count as the idle class."""
        return wanted == found or (wanted == IDLE_CLASS and found == f"shares={LEAST_SHARES}" and self._is_idle() is None)

    def restore(self, old: str | None) -> None:
        """``read`` never gives None."""
        if old is not None:
            self.write(old)

    def _is_idle(self) -> bool | None:
        """None where the kernel has no idle class for groups."""
        idle = (self._idle, self._idle_raw())
        return None if idle[1] is None else is_set(idle)

    def _idle_raw(self) -> bytes | None:
        try:
            return self._idle.raw()
        except KnobError as error:
            if error.errno == errno.ENOENT and self._shares.path.exists():
                return None
            raise


class MemoryLimitKnob(FileKnob):
    """memory.limit_in_bytes; None means no limit. The kernel rounds down to whole pages."""

    KIND = "cgroup1.memory-limit"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = KeptFile(directory / "memory.limit_in_bytes")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """The file."""
        return ((self._file, self._file.raw()),)

    def parse(self, seen: Seen) -> str | None:
        """The limit in bytes."""
        limit = int(text_of(seen[0]))
        return None if limit >= UNLIMITED_BYTES else str(limit)

    def write(self, value: str) -> None:
        """Set the limit. Lowering it blocks in reclaim and is refused (EBUSY) under what is in use."""
        try:
            self._file.write(value)
        except KnobError as error:
            raise self._file.refused(bare(error), value, self._cause(error.errno)) from error

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare whole pages."""
        return found is not None and int(wanted) // PAGE_BYTES == int(found) // PAGE_BYTES

    def restore(self, old: str | None) -> None:
        """Bring back the limit, or that there was none."""
        self.write("-1" if old is None else old)

    def _cause(self, number: int | None) -> str:
        if number == errno.EBUSY:
            return f"more than that is in use: {self._neighbour('memory.usage_in_bytes')} bytes"
        if number == errno.EINVAL:
            return (
                f"over the limit of memory and swap, memory.memsw.limit_in_bytes: {self._neighbour('memory.memsw.limit_in_bytes')}"
            )
        return ""

    def _neighbour(self, name: str) -> str:
        try:
            return (self._directory / name).read_text(encoding="ascii").strip()
        except OSError:
            return "unknown"


class DiskThrottleKnob(FileKnob):
    """One device's line of blkio.throttle.read_bps_device or write_bps_device, in bytes/s; None where there is no line."""

    KIND = "cgroup1.disk-throttle"

    def __init__(self, path: Path, device: str) -> None:
        self._file = KeptFile(path)
        self._device = device
        self.ref = KnobRef(self.KIND, (str(path), device))

    def look(self) -> Seen:
        """The file, with a line for each device."""
        return ((self._file, self._file.raw()),)

    def parse(self, seen: Seen) -> str | None:
        """The limit in bytes/s."""
        for line in text_of(seen[0]).splitlines():
            device, _, rate = line.partition(" ")
            if device == self._device:
                return rate.strip()
        return None

    def write(self, value: str) -> None:
        """Set the limit; the kernel takes 0 as no limit."""
        self._file.write(f"{self._device} {value}", f"is {self._device} a whole disk, not a partition?")

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare; 0 is the same as no line."""
        return int(wanted) == int(found or 0)

    def restore(self, old: str | None) -> None:
        """Bring back the line, or remove it."""
        self.write(old or "0")


class FreezerKnob(FileKnob):
    """freezer.state: FROZEN or THAWED.

    FREEZING is FROZEN here: a process that was told to stop runs no more of its own code, it only has yet to be scheduled once to
    say so. In the idle class beside busy neighbours that takes more than a second, which nobody should wait for.
    """

    KIND = "cgroup1.freezer"

    def __init__(self, directory: Path) -> None:
        self._file = KeptFile(directory / "freezer.state")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """The file."""
        return ((self._file, self._file.raw()),)

    def parse(self, seen: Seen) -> str | None:
        """Whether the group is stopped."""
        return THAWED if text_of(seen[0]).strip() == THAWED else FROZEN

    def write(self, value: str) -> None:
        """Freeze or thaw. A group below a frozen one cannot be thawed (EBUSY)."""
        self._file.write(value)
        if value == THAWED and self.read() != THAWED:
            raise self._file.refused(OSError(errno.EBUSY, os.strerror(errno.EBUSY)), value, "a group above it is frozen")

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """``read`` never gives None."""
        if old is not None:
            self.write(old)


def _all_of_the_parent(knob: Knob) -> str | None:
    file = Path(knob.ref.address[0])
    return ListKnob(file.parent.parent / file.name).read()


def _unset(_knob: Knob) -> None:
    return None


_UNLIMITED_CPU = str(CpuBandwidth(None))
_DEFAULT_CLASS = "shares=1024"

KINDS: KnobKinds = {
    ListKnob.KIND: KnobKind(lambda address: ListKnob(Path(address[0])), Resource.CORES, safe=_all_of_the_parent),
    CpuBandwidthKnob.KIND: KnobKind(
        lambda address: CpuBandwidthKnob(Path(address[0])), Resource.CORES, safe=lambda _knob: _UNLIMITED_CPU
    ),
    CpuClassKnob.KIND: KnobKind(lambda address: CpuClassKnob(Path(address[0])), Resource.CORES, safe=lambda _knob: _DEFAULT_CLASS),
    MemoryLimitKnob.KIND: KnobKind(
        lambda address: MemoryLimitKnob(Path(address[0])), Resource.MEMORY, safe=_unset, slow_to_shrink=True
    ),
    DiskThrottleKnob.KIND: KnobKind(lambda address: DiskThrottleKnob(Path(address[0]), address[1]), Resource.DISK, safe=_unset),
    FreezerKnob.KIND: KnobKind(lambda address: FreezerKnob(Path(address[0])), Resource.CORES, safe=lambda _knob: THAWED),
}

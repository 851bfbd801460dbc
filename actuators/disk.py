"""Disk bandwidth of one device: a throttle for each holder's groups (section 4.1).

Reads and writes are throttled alike, each to the holder's amount. Control groups v1 do not throttle buffered writes that the kernel
writes back on its own; v2 does, where the file system supports it (ext4, btrfs, xfs) and memory is enabled in the same groups.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actuators.cgroup.group import ControlGroup, Controller, Direction, GroupLayer
from actuators.cgroup.hierarchy import SetupError
from actuators.holders import HolderGroups, ManagedGroups, changes, effect, split
from parties.knob import KnobWrite
from parties.model import BEST_EFFORT, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import DiskSettings

_NEEDS = (Controller.DISK,)
_STEPS = 20  # of the device's rate, where no step is set
TRICKLE_BYTES_PER_S = 65_536
"""What each best-effort group keeps at zero. The kernel takes 0 as no limit; frozen, a job that computes would stop for want of a
resource it may not use; and under a few bytes per second a process would be stuck in an uninterruptible wait for hours."""

_BLOCK_BYTES = 1 << 20
_MEASURE_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Disk:
    """A whole disk: its number "MAJ:MIN" and its node in /dev."""

    number: str
    node: Path


def find_disk(device: str, root: Path = Path("/")) -> Disk:
    """The whole disk behind a device node ("/dev/sda1") or a number ("8:1"); a partition stands for its disk. Raises SetupError."""
    number = device if _is_number(device) else _number(root / device.lstrip("/"))
    block = root / "sys/dev/block" / number
    if not block.exists():
        raise SetupError(f"disk: {device} ({number}) is not a block device of this machine; see lsblk")
    block = block.resolve()
    if (block / "partition").exists():
        block = block.parent
        number = (block / "dev").read_text(encoding="ascii").strip()
    return Disk(number, root / "dev" / block.name.replace("!", "/"))


def _is_number(device: str) -> bool:
    major, colon, minor = device.partition(":")
    return bool(colon) and major.isdecimal() and minor.isdecimal()


def _number(node: Path) -> str:
    try:
        status = node.stat()
    except OSError as error:
        raise SetupError(f"disk: {node}: {error.strerror}; name a disk such as /dev/sda, see lsblk") from error
    if not stat.S_ISBLK(status.st_mode):
        raise SetupError(f"disk: {node} is not a block device; name a disk such as /dev/sda, see lsblk")
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def measure_rate(node: Path, longest_ns: int = _MEASURE_NS) -> int:
    """Bytes/s of one sequential reader past the page cache, over at most a second. Writes nothing. Raises SetupError."""
    try:
        fd = os.open(node, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        raise SetupError(f"disk: cannot read {node} to measure its rate: {error.strerror}; set rate in [node.disk]") from error
    try:
        with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
            return _read_for(fd, buffer, longest_ns)
    except OSError as error:
        raise SetupError(f"disk: measuring the rate of {node}: {error.strerror}; set rate in [node.disk]") from error
    finally:
        os.close(fd)


def _read_for(fd: int, buffer: mmap.mmap, longest_ns: int) -> int:
    begin_ns = time.monotonic_ns()
    elapsed_ns = total = offset = 0
    while elapsed_ns < longest_ns:
        got = os.preadv(fd, [buffer], offset)
        if got == 0:
            if offset == 0:
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
            offset = 0
            continue
        offset += got
        total += got
        elapsed_ns = time.monotonic_ns() - begin_ns
    return total * 1_000_000_000 // elapsed_ns


class DiskActuator:
    """Throttles one disk. A rate of 0 in the settings is measured here, which takes a second.

    Raises SetupError for a device that is none or a step that does not fit the rate, GroupMissingError.
    """

    resource = Resource.DISK

    def __init__(self, layer: GroupLayer, managed: ManagedGroups, settings: DiskSettings, *, root: Path = Path("/")) -> None:
        self._key = PoolKey(Resource.DISK)
        self.disk = find_disk(settings.device, root)
        self._reason = layer.lacks(_NEEDS)
        self._groups = HolderGroups(layer, managed, () if self._reason else _NEEDS)
        self._reason = self._reason or self._groups.lacks()
        rate = settings.rate_bytes_per_s or (0 if self._reason else measure_rate(self.disk.node))
        self._step = settings.step_bytes_per_s or max(1, rate // _STEPS)
        self._total = rate // self._step * self._step
        least = (TRICKLE_BYTES_PER_S + 1) * max((len(paths) for paths in managed.values()), default=1)
        if not self._reason and (self._total <= 0 or self._step < least):
            raise SetupError(
                f"disk: steps of {self._step} bytes/s of a rate of {rate}: a step has to be {least} or more, within the rate"
            )

    def pools(self) -> tuple[Pool, ...]:
        """One pool for the node."""
        if self._reason:
            return (Pool(self._key, managed=False, reason=self._reason),)
        return (Pool(self._key, total=self._total, step=self._step, floor=self._step),)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """Throttles of every holder whose amount changes; at the start of all. Raises KnobError at the start."""
        if self._reason:
            return ()
        plan = self._groups.enabling() if before is None else []
        for change in changes(self._groups, self._key, placement, before):
            plan += self._throttles(*change)
        return plan

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The smaller of both directions; without a throttle a holder has all there is. Raises KnobError."""
        if self._reason:
            return {}
        held: dict[Holder, int] = {}
        for holder in self._groups:
            found = self._groups.read(holder, lambda group: min(self._in_force(group, direction) for direction in Direction))
            if found is not None:
                trickles = holder == BEST_EFFORT and all(rate == TRICKLE_BYTES_PER_S for rate in found)
                held[holder] = 0 if trickles else min(sum(found), self._total)
        return {self._key: held}

    def close(self) -> None:
        """Give up descriptors."""
        self._groups.close()

    def _throttles(self, holder: Holder, new: int, old: int | None) -> list[KnobWrite]:
        groups = self._groups.of(holder)
        plan = []
        for group, share in zip(groups, split(new, len(groups)) if groups else (), strict=True):
            rate = share or TRICKLE_BYTES_PER_S
            for direction in Direction:
                change = effect(self._in_force(group, direction), rate) if old is None else effect(old, new)
                plan.append(KnobWrite(group.disk_throttle(self.disk.number, direction), str(rate), holder, change))
        return plan

    def _in_force(self, group: ControlGroup, direction: Direction) -> int:
        rate = group.disk_throttle(self.disk.number, direction).read()
        return self._total if rate is None else int(rate)

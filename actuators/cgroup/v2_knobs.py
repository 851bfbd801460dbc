"""The knobs of control groups v2, except memory. Each kind can be found again from its address by another process (``KINDS``).

None ("inherited" for lists) stands for the kernel's default and for a controller that is not enabled. Enabling one is a knob too
(``v2_subtree``), so what is journalled before it is enabled reads the same once it is disabled again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from actuators.cgroup import v2_subtree
from actuators.cgroup.files import FileKnob, KeptFile, Seen, figure, is_set, text_of
from actuators.cgroup.group import FROZEN, IDLE_CLASS, THAWED, CpuBandwidth, Direction
from actuators.cgroup.v1_knobs import LEAST_QUOTA_US, LONGEST_PERIOD_US
from actuators.cgroup.v2_files import ControllerFile
from actuators.cgroup.v2_memory import MemoryKnob
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import Resource
from parties.units import parse_cpu_list

LEAST_WEIGHT = 1
DEFAULT_WEIGHT = 100
_NO_QUOTA = CpuBandwidth(None)
INHERITED = "inherited"
_IN_FORCE = " in force: "


class ListKnob(FileKnob):
    """cpuset.cpus or cpuset.mems. "inherited" means empty, or no such controller: all that the group above has.

    The kernel takes any list, and puts in force what of it the group above has and no partition has for itself (the file's
    ".effective" sibling). Where the two differ, ``read`` tells both, "0-3 in force: 0-1", and that is not the same as "0-3".

    Under processes the kernel refuses to empty a list again (ENOSPC). "inherited" is then brought back as all that the group above
    has in force, which is the same for them; what takes the controller away later takes the list with it.
    """

    KIND = "cgroup2.list"

    def __init__(self, path: Path) -> None:
        self._file = ControllerFile(path.parent, path.name)
        self._effective = ControllerFile(path.parent, f"{path.name}.effective", writable=False)
        self._events = KeptFile(path.parent / "cgroup.events", writable=False)
        self._above = ControllerFile(path.parent.parent, f"{path.name}.effective", writable=False)
        self.ref = KnobRef(self.KIND, (str(path),))

    def look(self) -> Seen:
        """What was asked for, and what is in force of it where anything was."""
        asked = (self._file, self._file.raw_if_enabled())
        return (asked, (self._effective, self._effective.raw())) if text_of(asked).strip() else (asked,)

    def parse(self, seen: Seen) -> str | None:
        """The list in the kernel's form, and what is in force of it if that is not all."""
        asked = text_of(seen[0]).strip()
        if not asked:
            return INHERITED
        effective = text_of(seen[1]).strip()
        return asked if asked == effective else f"{asked}{_IN_FORCE}{effective}"

    def write(self, value: str) -> None:
        """Set the list; ``value`` may be in any order. Refused, and as before, if not all of it is in force then."""
        if value == INHERITED:
            self.restore(value)
            return
        old = self.read()
        self._put(value.partition(_IN_FORCE)[0])
        found = self.read()
        if not self.same(value, found):
            with contextlib.suppress(KnobError):
                self.restore(old)
            in_force = (found or "").partition(_IN_FORCE)[2] or "none"
            raise self._file.refused(
                OSError(errno.EBUSY, os.strerror(errno.EBUSY)),
                value,
                f"taken, but in force are only {in_force}: the group above has no more, or a partition has them for itself; "
                f"see {self._effective.path.name} there and cpuset.cpus.partition beside it",
            )

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as sets. What is wanted is to be in force, unless it was not when it was read."""
        if wanted == INHERITED:
            return found in (INHERITED, None) or self._is_all_that_can_be(found or "")
        if found in (INHERITED, None):
            return False
        asked, limited, _ = wanted.partition(_IN_FORCE)
        has, limits, _ = (found or "").partition(_IN_FORCE)
        return parse_cpu_list(asked) == parse_cpu_list(has) and (not limits or bool(limited))

    def restore(self, old: str | None) -> None:
        """Bring back what was asked for, whether or not it is in force, or that nothing was."""
        if old not in (INHERITED, None):
            self._put((old or "").partition(_IN_FORCE)[0])
        elif (self._file.read_if_enabled() or "").strip():
            self._empty()

    def _empty(self) -> None:
        try:
            self._put("")
        except KnobError as error:
            everything = (self._above.read_if_enabled() or "").strip()
            if error.errno != errno.ENOSPC or not everything:
                raise
            self._put(everything)

    def _is_all_that_can_be(self, found: str) -> bool:
        """Whether a list leaves out nothing that the group above has, and could not be emptied for its processes."""
        try:
            everything = parse_cpu_list(self._above.read_if_enabled() or "")
            populated = figure(self._events.raw(), b"populated")
        except KnobError:
            return False
        return bool(everything and populated) and set(everything) <= set(parse_cpu_list(found.partition(_IN_FORCE)[0]))

    def _put(self, value: str) -> None:
        try:
            self._file.write(value)
        except KnobError as error:
            raise self._file.explained(error, value, _LIST_CAUSES.get(error.errno or 0, "")) from error


_LIST_CAUSES = {
    errno.ERANGE: "a number that this machine does not have",
    errno.EINVAL: "not a list, or a CPU or node that a sibling's partition has for itself",
    errno.EBUSY: "a sibling's partition has some of these for itself, or a group below needs more than this",
    errno.ENOSPC: "the group has processes and may not be left without, or a group below is a partition and would be",
}


class CpuBandwidthKnob(FileKnob):
    """cpu.max, "QUOTA PERIOD" or "max PERIOD"; None means no quota in the kernel's own period of 100 ms."""

    KIND = "cgroup2.cpu-bandwidth"

    def __init__(self, directory: Path) -> None:
        self._file = ControllerFile(directory, "cpu.max")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """The file."""
        return ((self._file, self._file.raw_if_enabled()),)

    def parse(self, seen: Seen) -> str | None:
        """Quota and period."""
        text = text_of(seen[0])
        bandwidth = CpuBandwidth.parse(text) if text else _NO_QUOTA
        return None if bandwidth == _NO_QUOTA else str(bandwidth)

    def write(self, value: str) -> None:
        """Set both in one write."""
        try:
            self._file.write(value)
        except KnobError as error:
            raise self._file.explained(error, value, self._cause(value)) from error

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare quota and period."""
        return CpuBandwidth.parse(wanted) == CpuBandwidth.parse(found or str(_NO_QUOTA))

    def restore(self, old: str | None) -> None:
        """Bring back both, or the default."""
        self.write(old or str(_NO_QUOTA))

    @staticmethod
    def _cause(value: str) -> str:
        try:
            new = CpuBandwidth.parse(value)
        except ValueError:
            return "neither QUOTA PERIOD nor max PERIOD"
        if new.quota_us is not None and new.quota_us < LEAST_QUOTA_US:
            return f"the kernel takes no quota under {LEAST_QUOTA_US} us"
        if not LEAST_QUOTA_US <= new.period_us <= LONGEST_PERIOD_US:
            return f"the kernel takes periods from {LEAST_QUOTA_US} us to {LONGEST_PERIOD_US} us"
        return "does cpu.max.burst exceed the quota?"


class CpuClassKnob(FileKnob):
    """cpu.idle and cpu.weight as one value: "idle=1" or "weight=N"; None means a weight of 100.

    Leaving the idle class resets the weight, and a weight cannot be set within it; so the two are one knob. Where the kernel has no
    cpu.idle (before 5.15), "idle=1" is enforced by the least weight there is.
    """

    KIND = "cgroup2.cpu-class"

    def __init__(self, directory: Path) -> None:
        self._weight = ControllerFile(directory, "cpu.weight")
        self._idle = ControllerFile(directory, "cpu.idle")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """cpu.idle, and out of the idle class cpu.weight, which means nothing in it."""
        idle = (self._idle, self._idle.raw_if_enabled())
        return (idle,) if is_set(idle) else (idle, (self._weight, self._weight.raw_if_enabled()))

    def parse(self, seen: Seen) -> str | None:
        """The class in force."""
        if is_set(seen[0]):
            return IDLE_CLASS
        weight = int(text_of(seen[1]) or DEFAULT_WEIGHT)
        return None if weight == DEFAULT_WEIGHT else f"weight={weight}"

    def write(self, value: str) -> None:
        """Enter the idle class, or leave it for this weight; a refused second write takes the first one back."""
        if value != IDLE_CLASS:
            self._leave_for(value.removeprefix("weight="))
        elif self._is_idle() is None and self._weight.read_if_enabled() is not None:
            self._weight.write(str(LEAST_WEIGHT))
        else:
            self._idle.write("1")

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare; without cpu.idle the least weight counts as the idle class."""
        found = found or f"weight={DEFAULT_WEIGHT}"
        return wanted == found or (wanted == IDLE_CLASS and found == f"weight={LEAST_WEIGHT}" and self._is_idle() is None)

    def restore(self, old: str | None) -> None:
        """Bring back the class, or the default weight."""
        self.write(old or f"weight={DEFAULT_WEIGHT}")

    def _leave_for(self, weight: str) -> None:
        was_idle = self._is_idle()
        if was_idle:
            self._idle.write("0")
        try:
            self._weight.write(weight)
        except KnobError as error:
            if was_idle:
                with contextlib.suppress(KnobError):
                    self._idle.write("1")
            cause = f"the kernel takes weights from {LEAST_WEIGHT} to 10000" if error.errno == errno.ERANGE else ""
            raise self._weight.explained(error, weight, cause) from error

    def _is_idle(self) -> bool | None:
        """None where the kernel has no idle class for groups, or the controller is not enabled."""
        raw = self._idle.raw_if_enabled()
        return None if raw is None else int(raw) == 1


class DiskThrottleKnob(FileKnob):
    """One key of a device's line in io.max, "rbps" or "wbps", in bytes/s; None where it is not limited. Other keys stay."""

    KIND = "cgroup2.disk-throttle"

    def __init__(self, directory: Path, device: str, key: str) -> None:
        self._file = ControllerFile(directory, "io.max")
        self._device = device
        self._key = f"{key}="
        self.ref = KnobRef(self.KIND, (str(directory), device, key))

    @classmethod
    def of(cls, directory: Path, device: str, direction: Direction) -> DiskThrottleKnob:
        """The knob of one direction."""
        return cls(directory, device, "rbps" if direction is Direction.READ else "wbps")

    def look(self) -> Seen:
        """The file, with a line for each device."""
        return ((self._file, self._file.raw_if_enabled()),)

    def parse(self, seen: Seen) -> str | None:
        """The limit in bytes/s."""
        for line in text_of(seen[0]).splitlines():
            device, _, fields = line.partition(" ")
            if device == self._device:
                rates = (field.removeprefix(self._key) for field in fields.split() if field.startswith(self._key))
                return next((rate for rate in rates if rate != "max"), None)
        return None

    def write(self, value: str) -> None:
        """Set the limit."""
        self._put(value)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return found is not None and int(wanted) == int(found)

    def restore(self, old: str | None) -> None:
        """Bring back the limit, or remove it."""
        self._put(old or "max")

    def _put(self, rate: str) -> None:
        text = f"{self._device} {self._key}{rate}"
        try:
            self._file.write(text)
        except KnobError as error:
            cause = {
                errno.ENODEV: f"is {self._device} a whole disk, not a partition?",
                errno.ERANGE: "a limit has to be at least 1 byte/s",
                errno.EINVAL: "a limit has to be at least 1 byte/s",
            }.get(error.errno or 0, "")
            raise self._file.explained(error, text, cause) from error


class FreezerKnob(FileKnob):
    """cgroup.freeze: FROZEN or THAWED.

    A group that was told to freeze is FROZEN here, whatever cgroup.events still says: its processes run no more of their own code,
    they only have yet to be scheduled once to say so (as on v1).
    """

    KIND = "cgroup2.freezer"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = KeptFile(directory / "cgroup.freeze")
        self.ref = KnobRef(self.KIND, (str(directory),))

    def look(self) -> Seen:
        """The file."""
        return ((self._file, self._file.raw()),)

    def parse(self, seen: Seen) -> str | None:
        """Whether the group was told to stop."""
        return FROZEN if text_of(seen[0]).strip() == "1" else THAWED

    def write(self, value: str) -> None:
        """Freeze or thaw. Thawing a group below a frozen one has no effect: that is refused (EBUSY), and as before."""
        was = self.read()
        self._file.write(_FREEZE[value])
        if value == THAWED and (frozen := self._frozen_above()):
            if was == FROZEN:
                with contextlib.suppress(KnobError):
                    self._file.write(_FREEZE[FROZEN])
            raise self._file.refused(OSError(errno.EBUSY, os.strerror(errno.EBUSY)), value, f"{frozen} above it is frozen")

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """``read`` never gives None."""
        if old is not None:
            self._file.write(_FREEZE[old])

    def _frozen_above(self) -> Path | None:
        for place in self._directory.parents:
            try:
                if (place / "cgroup.freeze").read_text(encoding="ascii").strip() == "1":
                    return place
            except OSError:  # the root of the tree has none
                return None
        return None


_FREEZE = {FROZEN: "1", THAWED: "0"}


def _unset(_: Knob) -> str | None:
    """What suits a machine without us: no limit of its own."""
    return None


def _kind(make: Callable[[tuple[str, ...]], Knob], resource: Resource) -> KnobKind:
    return KnobKind(make, resource, safe=_unset)


KINDS: KnobKinds = {
    ListKnob.KIND: _kind(lambda address: ListKnob(Path(address[0])), Resource.CORES),
    CpuBandwidthKnob.KIND: _kind(lambda address: CpuBandwidthKnob(Path(address[0])), Resource.CORES),
    CpuClassKnob.KIND: _kind(lambda address: CpuClassKnob(Path(address[0])), Resource.CORES),
    MemoryKnob.KIND: KnobKind(lambda address: MemoryKnob(Path(address[0])), Resource.MEMORY, safe=_unset, slow_to_shrink=True),
    DiskThrottleKnob.KIND: _kind(lambda address: DiskThrottleKnob(Path(address[0]), address[1], address[2]), Resource.DISK),
    FreezerKnob.KIND: KnobKind(lambda address: FreezerKnob(Path(address[0])), Resource.CORES, safe=lambda _: THAWED),
    **v2_subtree.KINDS,
}

"""The knobs of cpufreq, one for each policy. Each kind can be found again from its address by another process (``KINDS``).

A step of the loop writes one file through a kept descriptor. Governor and limits, which change when cores are taken under
management or given back, are set through cpupower's library where it is there; where it fails the same is written by file, for the
kernel's words.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

from actuators.cgroup.files import FileKnob, KeptFile, Seen, text_of
from actuators.frequency import cpupower
from actuators.frequency.policy import SYSTEM, frequencies_in_table, number, text, turbo_on, widest
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef, Said
from parties.model import Resource

USERSPACE = "userspace"
PERFORMANCE = "performance"
_WITH_SPEED = 4  # files that tell of a policy whose governor is userspace
ROUNDING_KHZ = 12_500
"""Closer than half of the finest ratio (25 MHz) two frequencies are the same, where the driver has no table of its own."""

_COOLING = Path("sys/class/thermal")
_COOLS_BY_FREQUENCY = ("Processor", "cpufreq-", "thermal-cpufreq-")


class Setting(NamedTuple):
    """What a policy is set to, in kHz: "GOVERNOR SPEED MIN MAX" as text, SPEED being "-" except for the userspace governor."""

    governor: str
    speed_khz: int | None
    min_khz: int
    max_khz: int

    def __str__(self) -> str:
        return f"{self.governor} {self.speed_khz or '-'} {self.min_khz} {self.max_khz}"

    @classmethod
    def parse(cls, value: str) -> Setting:
        """The setting that a text stands for. Raises ValueError."""
        governor, speed, low, high = value.split()
        return cls(governor, None if speed == "-" else int(speed), int(low), int(high))


class Cap(NamedTuple):
    """The highest frequency that may be chosen, in kHz, and the lowest: "MAX MIN", or "MAX" where the lowest does not matter."""

    max_khz: int
    min_khz: int | None = None

    def __str__(self) -> str:
        return str(self.max_khz) if self.min_khz is None else f"{self.max_khz} {self.min_khz}"

    @classmethod
    def parse(cls, value: str) -> Cap:
        """The cap that a text stands for. Raises ValueError."""
        return cls(*(int(word) for word in value.split()))


class _PolicyKnob(FileKnob):
    """What knobs of a policy have in common. ``directory`` is that of the policy, or one that links to it."""

    KIND = ""

    def __init__(self, directory: Path) -> None:
        self.ref = KnobRef(self.KIND, (str(directory),))
        self._directory = directory
        self._governor = self._file("scaling_governor")
        self._speed = self._file("scaling_setspeed")
        self._min = self._file("scaling_min_freq")
        self._max = self._file("scaling_max_freq")
        self._exact: bool | None = None

    @property
    def widest_khz(self) -> tuple[int, int]:
        """The widest limits that the hardware has. Raises KnobError."""
        low, high = (self._get_khz(KeptFile(self._directory / f"cpuinfo_{end}_freq", writable=False)) for end in ("min", "max"))
        return widest(frequencies_in_table(self._directory), low, high)

    def restore(self, old: str | None) -> None:
        """``read`` never gives None."""
        if old is not None:
            self.write(old)

    def write(self, value: str) -> None:
        """Set it."""
        raise NotImplementedError

    def _file(self, name: str) -> KeptFile:
        return KeptFile(self._directory / name)

    def _get(self, file: KeptFile) -> tuple[KeptFile, bytes]:
        try:
            return file, file.raw()
        except KnobError as error:
            if error.errno != errno.EBUSY:
                raise
            file.close()
            # So the kernel answers for a policy all of whose CPUs are offline, where a directory remains of it.
            raise KnobError(errno.ENODEV, f"{file.path}: the CPUs of this policy are offline") from error

    def _get_khz(self, file: KeptFile) -> int:
        return _khz(self._get(file))

    def _set_limits(self, low: int, high: int, min_khz: int, max_khz: int) -> None:
        """From ``low`` and ``high`` in force to others, in the order in which at no moment the lowest is above the highest."""
        steps = [(self._max, high, max_khz), (self._min, low, min_khz)]
        if max_khz < low:
            steps.reverse()
        for file, in_force, wanted in steps:
            if wanted != in_force:
                file.write(str(wanted))

    def _near(self, wanted: int, found: int) -> bool:
        """Whether the driver may have rounded the one to the other: not if it has a table, as only what is in it is asked for."""
        if wanted == found:
            return True
        if self._exact is None:
            self._exact = bool(frequencies_in_table(self._directory))
        return not self._exact and abs(wanted - found) < ROUNDING_KHZ

    def _limit_holds(self, wanted: int, found: int) -> bool:
        """Whether an upper limit is as wanted, or lower because something else holds it down for the time being.

        Firmware, a cooling device and turbo switched off are limits beside ours, which the kernel shows in the same file. They are
        no foreign writer to be contested: theirs passes, and ours is in force again.
        """
        return self._near(wanted, found) or (found < wanted and self._held_down(found))

    def _held_down(self, found: int) -> bool:
        bios_limit = number(self._directory / "bios_limit")
        system = next((above for above in self._directory.parents if above.match(str(SYSTEM))), None)
        return 0 < bios_limit <= found or (system is not None and (not turbo_on(self._directory, system) or _cooling(system)))


class UserspaceKnob(_PolicyKnob):
    """Governor, speed and limits of a policy as one value (``Setting``).

    ``scaling_setspeed`` gives the frequency that the driver was last asked for, so a write that was accepted and ignored is seen.
    """

    KIND = "cpufreq.userspace"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._library = cpupower.load() if directory.is_relative_to(Path("/") / SYSTEM) else None

    def said(self) -> Said:
        """Without the governor where there is a speed: under all but userspace the kernel shows "<unsupported>" in its place."""
        said = super().said()
        if len(said) < _WITH_SPEED or not said[-1][1].strip().isdigit():
            return said
        low, high, _governor, speed = said
        return low, high, speed

    def look(self) -> Seen:
        """Limits and governor, and the speed where it is the userspace governor's."""
        seen = self._get(self._min), self._get(self._max), self._get(self._governor)
        return (*seen, self._get(self._speed)) if text_of(seen[2]).strip() == USERSPACE else seen

    def parse(self, seen: Seen) -> str | None:
        """Governor, speed and limits."""
        return str(_setting(seen))

    def write(self, value: str) -> None:
        """Limits first, so that the frequency is within them; then the governor; then the speed, which only userspace takes."""
        new, old = Setting.parse(value), _setting(self.look())
        if new[2:] != old[2:] or new.governor != old.governor:
            self._set_policy(old, new)
        if new.speed_khz is not None:
            self._speed.write(str(new.speed_khz), "only the userspace governor takes a frequency, and not every driver follows it")

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as the driver rounds; while something else holds the upper limit down, what lies above it counts as the limit."""
        if found is None:
            return False
        asked, has = Setting.parse(wanted), Setting.parse(found)
        if asked.governor != has.governor or not self._near(asked.min_khz, has.min_khz):
            return False
        if not self._limit_holds(asked.max_khz, has.max_khz):
            return False
        if asked.speed_khz is None or has.speed_khz is None:
            return asked.speed_khz == has.speed_khz
        return self._near(min(asked.speed_khz, has.max_khz), has.speed_khz)

    def _set_policy(self, old: Setting, new: Setting) -> None:
        if self._set_by_library(new):
            return
        self._set_limits(old.min_khz, old.max_khz, new.min_khz, new.max_khz)
        if new.governor != old.governor:
            known = text(self._directory / "scaling_available_governors")
            self._governor.write(new.governor, f"governors loaded: {known}" if known else "")

    def _set_by_library(self, new: Setting) -> bool:
        cpus = text(self._directory / "affected_cpus").split() if self._library is not None else ()
        if self._library is None or not cpus:
            return False
        return self._library.set_policy(int(cpus[0]), cpupower.PolicyLimits(new.min_khz, new.max_khz, new.governor))


class CapKnob(_PolicyKnob):
    """scaling_max_freq, and scaling_min_freq as far as it is in the way, as one value (``Cap``)."""

    KIND = "cpufreq.cap"

    def look(self) -> Seen:
        """The files of both limits."""
        return self._get(self._min), self._get(self._max)

    def parse(self, seen: Seen) -> str | None:
        """The highest and the lowest frequency."""
        return str(_cap(seen))

    def write(self, value: str) -> None:
        """Set the highest frequency; the lowest as well where it is given or would be above it."""
        new, old = Cap.parse(value), _cap(self.look())
        low = new.min_khz if new.min_khz is not None else min(old.min_khz or 0, new.max_khz)
        self._set_limits(old.min_khz or 0, old.max_khz, low, new.max_khz)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as the driver rounds; while something else holds the upper limit down, that counts as wanted."""
        if found is None:
            return False
        asked, has = Cap.parse(wanted), Cap.parse(found)
        if not self._limit_holds(asked.max_khz, has.max_khz):
            return False
        return asked.min_khz is None or self._near(asked.min_khz, has.min_khz or 0)


def _setting(seen: Seen) -> Setting:
    low, high, governor, *speed = seen
    asked = text_of(speed[0]).strip() if speed else ""
    return Setting(text_of(governor).strip(), int(asked) if asked.isdecimal() else None, _khz(low), _khz(high))


def _cap(seen: Seen) -> Cap:
    low, high = seen
    return Cap(_khz(high), _khz(low))


def _khz(seen: tuple[KeptFile, bytes | None]) -> int:
    found = text_of(seen).strip()
    try:
        return int(found)
    except ValueError:
        raise KnobError(errno.EIO, f"{seen[0].path}: {found!r} is not a frequency in kHz") from None


def _cooling(system: Path) -> bool:
    """Whether a cooling device of the kernel slows processors now, on the machine whose CPUs are in ``system``."""
    root = system.parents[len(SYSTEM.parts) - 1]
    return any(
        number(device / "cur_state") > 0
        for device in (root / _COOLING).glob("cooling_device*")
        if text(device / "type").startswith(_COOLS_BY_FREQUENCY)
    )


def _full_speed(knob: Knob) -> str | None:
    """What suits a machine without us: the hardware's whole range, and all of it asked for."""
    if isinstance(knob, UserspaceKnob):
        return str(Setting(PERFORMANCE, None, *knob.widest_khz))
    return str(Cap(knob.widest_khz[1])) if isinstance(knob, CapKnob) else None


KINDS: KnobKinds = {
    UserspaceKnob.KIND: KnobKind(lambda address: UserspaceKnob(Path(address[0])), Resource.FREQUENCY, safe=_full_speed),
    CapKnob.KIND: KnobKind(lambda address: CapKnob(Path(address[0])), Resource.FREQUENCY, safe=_full_speed),
}
"""The kinds of this module, for the table of all kinds."""

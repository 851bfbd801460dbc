"""What the cores really run at, read by a process of its own, and whether that is what was asked for.

Reading back governor and speed tells that the driver took a request, not that the hardware follows it: a hypervisor, a mode in
which the hardware decides or a shared clock may not. The reading is no part of the tick: kernels before 5.19 wait 10 ms for each
core that has not been looked at for a while, some AMD machines take 20 ms, and ``cpuinfo_cur_freq`` interrupts the core it asks.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from actuators.cgroup.files import KeptFile
from actuators.frequency.knobs import USERSPACE
from actuators.frequency.levels import HZ_PER_KHZ
from parties.interfaces import Finding
from parties.knob import KnobError, KnobKind, KnobKinds, KnobRef, Sensor
from parties.model import NS_PER_S, Resource

PERIOD_NS = 2 * NS_PER_S
SHARE = 20
"""Where a reading takes so long that it would fill more than one part in so many of the time, it is done less often."""

IN_A_ROW = 5
"""Readings in a row that must differ before it is told: one is an average over a few ms, of a core that may have slept."""

TOLERANCE = 0.10
LEAST_TOLERANCE_KHZ = 100_000
"""What may lie between asked and measured: the step, or a tenth. Measured averages are off by some percent where a core slept."""


class Reading(NamedTuple):
    """One policy: what the kernel measured, what the hardware's register says (0: not told), what was asked for, all in kHz."""

    measured_khz: int
    register_khz: int
    asked_khz: int
    fixed: bool  # asked for exactly this, not for at most this

    @property
    def follows(self) -> bool:
        """Whether the hardware does as asked.

        A driver without counters gives back what was asked for as if it were measured; then the register decides.
        """
        echoed = self.measured_khz == self.asked_khz and self.register_khz
        found = self.register_khz if echoed else self.measured_khz
        allowed = max(LEAST_TOLERANCE_KHZ, int(self.asked_khz * TOLERANCE))
        return found <= self.asked_khz + allowed and (not self.fixed or found >= self.asked_khz - allowed)


class SpeedKnob(Sensor):
    """A sensor in the shape of a knob: it reads all policies at once, one line each, and writes nothing.

    The first line is how long that took, in ns; the others "MEASURED REGISTER ASKED FIXED", or "-" for a policy that is gone or
    offline.
    """

    KIND = "cpufreq.speed"

    def __init__(self, directories: Sequence[Path]) -> None:
        self.ref = KnobRef(self.KIND, tuple(str(directory) for directory in directories))
        self._policies = [_PolicyFiles(directory) for directory in directories]

    def read(self) -> str | None:
        """The lines, in the order of the address."""
        begun_ns = time.monotonic_ns()
        lines = [policy.line() for policy in self._policies]
        return "\n".join([str(time.monotonic_ns() - begun_ns), *lines])


class _PolicyFiles:
    """The files of one policy that a reading needs."""

    def __init__(self, directory: Path) -> None:
        names = ("scaling_governor", "scaling_setspeed", "scaling_max_freq", "scaling_cur_freq", "cpuinfo_cur_freq")
        self._files = {name: KeptFile(directory / name, writable=False) for name in names}

    def line(self) -> str:
        try:
            fixed = self._text("scaling_governor") == USERSPACE
            asked = self._text("scaling_setspeed" if fixed else "scaling_max_freq")
            measured = self._text("scaling_cur_freq")
        except KnobError:
            return "-"
        if not asked.isdecimal() or not measured.isdecimal():
            return "-"
        return f"{measured} {self._register()} {asked} {int(fixed)}"

    def _register(self) -> str:
        """Only some drivers have it, and only root may read it."""
        try:
            found = self._text("cpuinfo_cur_freq")
        except KnobError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EBUSY, errno.ENODEV):
                raise
            return "0"
        return found if found.isdecimal() else "0"

    def _text(self, name: str) -> str:
        return self._files[name].read().strip()


@dataclass(slots=True)
class SpeedTask:
    """Looks again and again at what the policies run at, and tells which of them does not follow. ``cpus`` of each, in order."""

    ref: KnobRef
    cpus: Sequence[tuple[int, ...]]
    value: str = ""
    period_ns: int = PERIOD_NS
    hz: Mapping[int, int] = field(default_factory=dict)  # of each CPU, at the last reading
    _misses: dict[str, int] = field(default_factory=dict)

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """Note the speeds; a warning for each policy that has just been off for long enough."""
        if error is not None or found is None:
            self.hz = {}
            return Finding(warnings=(f"the frequency of the cores cannot be read: {error}",))
        took_ns, readings = parse_readings(found)
        self.period_ns = max(PERIOD_NS, SHARE * took_ns)
        self.hz = {
            cpu: reading.measured_khz * HZ_PER_KHZ
            for reading, cpus in zip(readings, self.cpus, strict=True)
            if reading is not None
            for cpu in cpus
        }
        return Finding(warnings=tuple(filter(None, map(self._judge, self.ref.address, readings))))

    def _judge(self, directory: str, reading: Reading | None) -> str:
        misses = self._misses.get(directory, 0) + 1 if reading is not None and not reading.follows else 0
        self._misses[directory] = misses
        if reading is None or misses != IN_A_ROW:
            return ""
        asked = f"{reading.asked_khz} kHz{'' if reading.fixed else ' at most'}"
        return (
            f"{directory}: asked for {asked}, the cores run at {reading.measured_khz} kHz, {IN_A_ROW} times in a row; the hardware "
            "does not follow (a power or thermal limit, a clock shared with other cores, or firmware that decides by itself)"
        )


def parse_readings(text: str) -> tuple[int, tuple[Reading | None, ...]]:
    """How long a ``SpeedKnob`` took in ns, and what it read; None for a policy that is gone. Raises ValueError."""
    took, *lines = text.splitlines()
    return int(took), tuple(None if line == "-" else _parse(line) for line in lines)


def _parse(line: str) -> Reading:
    measured, register, asked, fixed = (int(word) for word in line.split())
    return Reading(measured, register, asked, bool(fixed))


KINDS: KnobKinds = {
    SpeedKnob.KIND: KnobKind(lambda address: SpeedKnob([Path(name) for name in address]), Resource.FREQUENCY, slow=True),
}
"""The kinds of this module, for the table of all kinds."""

"""What systemd calls the values of a control group: a kernel file's text as properties of the unit that owns the group."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from actuators.cgroup.group import DEFAULT_PERIOD_US, CpuBandwidth
from actuators.cgroup.v2_files import ControllerFile
from actuators.cgroup.v2_knobs import ListKnob
from actuators.systemd.beside import BesideKnob
from actuators.systemd.bus import Property, SystemdBus
from parties.knob import KnobError
from parties.units import parse_cpu_list

UNSET = 2**64 - 1
"""How systemd says "infinity" and "not set"."""

IDLE_WEIGHT = 0
"""CPUWeight=idle, since systemd 252."""

DISK_LIMITS = {"rbps": "IOReadBandwidthMax", "wbps": "IOWriteBandwidthMax"}
"""What a key of io.max is to systemd."""

_DEFAULT_WEIGHT = 100
_US_PER_S = 1_000_000
_BITS = 8

Translate = Callable[[str], Sequence[Property]]


class PropertyFile(ControllerFile):
    """A controller's file that is read as it is and written through properties of its unit.

    systemd enables the controller for a property that needs it, so that the file may not be there before the first write, nor after
    the last. What it writes besides stays as it is. Raises KnobError: ENOENT if the unit does not run, and nothing was set then.
    """

    def __init__(self, directory: Path, name: str, unit: str, bus: SystemdBus, translate: Translate) -> None:
        super().__init__(directory, name)
        self._unit = unit
        self._bus = bus
        self._translate = translate
        self._beside = BesideKnob(directory)

    def write(self, text: str, cause: str = "") -> None:
        """Set the properties; they are in force, and in a drop-in, when this returns."""
        if not self.path.parent.is_dir():
            raise self.refused(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), text, f"{self._unit} does not run")
        before = self._beside.read()
        try:
            self._bus.set_properties(self._unit, self._translate(text))
            self._beside.restore(before)
        except KnobError as error:
            number = error.errno or errno.EIO
            words = "; ".join(part for part in (error.strerror, cause) if part)
            raise self.refused(OSError(number, os.strerror(number)), text, words) from error
        finally:
            self.close()  # the file may have come, gone, or be another one now

    def explained(self, error: KnobError, text: str, cause: str) -> KnobError:  # noqa: ARG002 (systemd has told the cause)
        """The refusal as it is: the kernel's causes are not systemd's."""
        return error


class ListFile(PropertyFile):
    """cpuset.cpus or cpuset.mems.

    systemd (252) forgets an emptied list, but while another unit keeps the controller enabled the kernel has the old one still:
    that is done away with here.
    """

    def write(self, text: str, cause: str = "") -> None:
        """Set the list, or none."""
        super().write(text, cause)
        if not text:
            ListKnob(self.path).restore(None)


def cpu_list(name: str) -> Translate:
    """AllowedCPUs or AllowedMemoryNodes: a bit for each number, in bytes; no bytes for none."""

    def translate(text: str) -> Sequence[Property]:
        numbers = parse_cpu_list(text)
        mask = bytearray(max(numbers, default=-1) // _BITS + 1)
        for number in numbers:
            mask[number // _BITS] |= 1 << number % _BITS
        return (Property(name, "ay", bytes(mask)),)

    return translate


def cpu_bandwidth(text: str) -> Sequence[Property]:
    """CPUQuotaPerSecUSec and CPUQuotaPeriodUSec.

    systemd multiplies back and rounds down, so the quota per second is rounded up: the quota in force is the one asked for.
    """
    bandwidth = CpuBandwidth.parse(text)
    quota_us, period_us = bandwidth.quota_us, bandwidth.period_us
    per_second = UNSET if quota_us is None else -(-quota_us * _US_PER_S // period_us)
    return (
        Property("CPUQuotaPerSecUSec", "t", per_second),
        Property("CPUQuotaPeriodUSec", "t", UNSET if period_us == DEFAULT_PERIOD_US else period_us),
    )


def cpu_weight(text: str) -> Sequence[Property]:
    """CPUWeight; the kernel's default is the property's absence."""
    return (Property("CPUWeight", "t", UNSET if int(text) == _DEFAULT_WEIGHT else int(text)),)


def cpu_idle(text: str) -> Sequence[Property]:
    """CPUWeight=idle, or its absence."""
    return (Property("CPUWeight", "t", IDLE_WEIGHT if int(text) else UNSET),)


def memory(name: str) -> Translate:
    """MemoryHigh or MemoryMax."""
    return lambda text: (Property(name, "t", UNSET if text == "max" else int(text)),)


class DiskLimits:
    """IOReadBandwidthMax and IOWriteBandwidthMax of one unit.

    systemd keeps a limit for each path that it was told and applies them all, so where the unit has one for the same disk by
    another path ("/dev/disk/by-id/..."), that path is used.
    """

    def __init__(self, unit: str, bus: SystemdBus, root: Path = Path("/")) -> None:
        self._unit = unit
        self._bus = bus
        self._root = root

    def translate(self, text: str) -> Sequence[Property]:
        """A write to io.max, "MAJ:MIN rbps=N"."""
        device, _, assignment = text.partition(" ")
        key, _, rate = assignment.partition("=")
        name = DISK_LIMITS[key]
        value = [(self._path(device, name), UNSET if rate == "max" else int(rate))]
        return (Property(name, "a(st)", value),)

    def _path(self, device: str, name: str) -> str:
        for path, _ in self._bus.property(self._unit, name):
            if self._number(path) == device:
                return str(path)
        try:
            lines = (self._root / f"sys/dev/block/{device}/uevent").read_text(encoding="ascii").splitlines()
        except OSError:
            lines = []
        names = [line.removeprefix("DEVNAME=") for line in lines if line.startswith("DEVNAME=")]
        return f"/dev/{names[0]}" if names else f"/dev/block/{device}"

    def _number(self, path: str) -> str:
        try:
            number = (self._root / path.lstrip("/")).stat().st_rdev
        except OSError:
            return ""
        return f"{os.major(number)}:{os.minor(number)}"

"""Disk bandwidth: throttles of control groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actuators.cgroup.group import Controller
from actuators.disk import DiskActuator
from parties.doctor import control_groups
from parties.doctor.examine import Specialist, amount
from parties.doctor.model import Lack, Offer, Weight
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.model import Pool

_DECIMAL = ("B/s", "kB/s", "MB/s", "GB/s")


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:
    """The device, its rate and the step."""
    v1 = Controller.DISK.value in subject.layer.hierarchies.v1
    knob = "blkio.throttle" if v1 else "io.max"
    mechanism = f"{knob} ({control_groups.version_of(subject, Controller.DISK)})"
    device = f"{actuator.disk.node} ({actuator.disk.number})" if isinstance(actuator, DiskActuator) else "the disk"
    settings, pool = subject.settings.node.disk, pools[0]
    if settings is not None and settings.rate_bytes_per_s:
        text = f"{amount(pool.total, 1000, _DECIMAL)} in steps of {amount(pool.step, 1000, _DECIMAL)}"
    else:
        text = "a twentieth of its rate at a step; the rate is measured at the start, unless it is set"
    return Offer(mechanism, "byte/s", f"{device}: {text}")


def remedy(subject: Subject, reason: str) -> str:
    """Of control groups, and of a device that is none."""
    named = "name a disk in [node.disk]: see lsblk" if "block device" in reason or "/dev/" in reason else ""
    return control_groups.remedy(subject, reason) or named


def is_there(subject: Subject) -> Iterator[Lack]:
    """A machine may have no disk of its own."""
    if subject.given is None and subject.settings.node.disk is None:
        yield Lack("disk.none", "there is no disk in /sys/block", "", Weight.PREVENTS)


def throttles_all(subject: Subject) -> Iterator[Lack]:
    """v1 throttles what a process itself reads and writes, not what the kernel writes back for it later."""
    if Controller.DISK.value in subject.layer.hierarchies.v1:
        text = "control groups v1 do not throttle buffered writes, which the kernel writes back by itself"
        yield Lack("disk.buffered-writes", text, f"use control groups v2: {control_groups.unified(subject)}")


SPECIALIST = Specialist(describe, remedy, (is_there, throttles_all))

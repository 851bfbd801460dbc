"""Classes that are read together: cheaper, and still what the kernel says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from actuators.network.actuator import DEVICE_CLASS, FIRST_SERVICE_CLASS, NetworkUsage, htb_class
from actuators.network.device import HANDLE, Device
from actuators.network.knobs import ClassKnob, QdiscKnob
from actuators.network.tc import handle_text
from parties.model import Holder

pytestmark = pytest.mark.kernel

RATE = 125_000_000
NAME = f"parties-look-{os.getpid()}"
SECOND_CLASS = FIRST_SERVICE_CLASS + 1
CLASSES: dict[Holder, int] = {"a": FIRST_SERVICE_CLASS, "b": SECOND_CLASS}


def settings(rate: int) -> str:
    return htb_class(DEVICE_CLASS, rate, rate, 0).text()


@pytest.fixture
def device() -> Iterator[Device]:
    """The loopback device of a network namespace of its own, with two classes."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a network namespace")
    subprocess.run(["ip", "netns", "add", NAME], check=True)
    found = Device("lo", NAME)
    try:
        QdiscKnob(found).write(f"default {handle_text(SECOND_CLASS)}")
        ClassKnob(found, DEVICE_CLASS).write(htb_class(HANDLE, RATE, RATE, 0).text())
        for class_id in CLASSES.values():
            ClassKnob(found, class_id).write(settings(RATE // 2))
        yield found
    finally:
        found.close()
        subprocess.run(["ip", "netns", "delete", NAME], check=True)


def test_one_look_shows_what_single_reads_show(device: Device) -> None:
    """The same text for each class, None for one that is not there, and traffic for the usage monitor."""
    knobs = [ClassKnob(device, class_id) for class_id in (DEVICE_CLASS, *CLASSES.values(), HANDLE | 0x77)]
    single = [knob.read() for knob in knobs]
    with device.one_look():
        assert [knob.read() for knob in knobs] == single
        usage = NetworkUsage(device, CLASSES)
        assert usage.sample(1) == {}
    assert usage.sample(2) == {"a": 0, "b": 0}
    assert single[-1] is None
    assert single[1] == settings(RATE // 2)


def test_a_write_is_read_back_from_the_kernel_within_a_look(device: Device) -> None:
    """Nothing that was seen before a write is believed after it."""
    knob = ClassKnob(device, FIRST_SERVICE_CLASS)
    with device.one_look():
        assert knob.read() == settings(RATE // 2)
        knob.write(settings(RATE // 4))
        assert knob.read() == settings(RATE // 4)
        knob.restore(None)
        assert knob.read() is None


def test_a_foreign_change_is_seen_by_the_next_look(device: Device) -> None:
    """A look ends with its block: the next one asks the kernel again."""
    knob, foreign = ClassKnob(device, FIRST_SERVICE_CLASS), Device("lo", NAME)
    try:
        with device.one_look():
            assert knob.read() == settings(RATE // 2)
            ClassKnob(foreign, FIRST_SERVICE_CLASS).write(settings(RATE // 8))
        with device.one_look():
            assert knob.read() == settings(RATE // 8)
    finally:
        foreign.close()

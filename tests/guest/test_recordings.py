"""What a real kernel answers is what was recorded of it, and so what the emulations are held to.

With PARTIES_RECORD=1 the recordings are written anew from the real kernel, the steps staying as they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.emulation.answers.perform import differences

from .image import GuestImage
from .machine import GuestMachine
from .resctrl_trick import why_not

pytestmark = pytest.mark.guest

ANSWERS = Path(__file__).parents[1] / "emulation/answers"
PERFORM = "/opt/project/tests/emulation/answers/perform.py"


def _compare(guest: GuestMachine, name: str, place: str) -> list[str]:
    file = ANSWERS / name
    guest.write("/run/steps.json", file.read_text())
    text = guest.output("python3", PERFORM, place, "/run/steps.json")
    if os.environ.get("PARTIES_RECORD"):
        file.write_text(text)
    recorded, found = json.loads(file.read_text()), json.loads(text)
    return [told for step, answer in zip(recorded["steps"], found["steps"], strict=True) for told in differences(step, answer)]


def test_acpi_cpufreq_answers_as_recorded(guest: GuestMachine) -> None:
    """The kernel's acpi-cpufreq with the userspace governor gives every recorded error and value."""
    assert guest.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").strip() == "acpi-cpufreq"
    assert _compare(guest, "cpufreq-6.1.json", "/sys/devices/system/cpu") == []


def test_resctrl_answers_as_recorded(guest: GuestMachine, image: GuestImage) -> None:
    """The kernel's own resctrl gives every recorded error, status and value."""
    if reason := why_not(image.kernel_version):
        pytest.skip(reason)
    assert _compare(guest, "resctrl-6.1.json", "/sys/fs/resctrl") == []


def test_cpupower_sets_the_frequency_that_the_kernel_then_says(guest: GuestMachine) -> None:
    """Debian's cpupower drives the real driver: a governor and a frequency, on one CPU alone."""
    where = "/sys/devices/system/cpu/cpu2/cpufreq"
    guest.output("cpupower", "-c", "2", "frequency-set", "-g", "userspace")
    guest.output("cpupower", "-c", "2", "frequency-set", "-f", "1500MHz")
    assert guest.read(f"{where}/scaling_cur_freq").strip() == "1500000"
    assert guest.read("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor").strip() == "schedutil"
    guest.output("cpupower", "-c", "2", "frequency-set", "-g", "schedutil")


def test_pqos_sets_a_mask_that_the_kernel_then_says(guest: GuestMachine, image: GuestImage) -> None:
    """Debian's pqos drives the kernel's resctrl, with its groups gone after a reset of the technology."""
    if reason := why_not(image.kernel_version):
        pytest.skip(reason)
    guest.output("pqos", "-I", "-e", "llc:1=0xff")
    assert guest.read("/sys/fs/resctrl/COS1/schemata").strip() == "L3:0=000ff"
    guest.shell("for group in /sys/fs/resctrl/COS*; do rmdir $group; done")

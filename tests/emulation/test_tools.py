import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.emulation.cpufreq import CpufreqOptions, mounted_cpufreq
from tests.emulation.namespace import CallError, Overlay
from tests.emulation.resctrl import Mounted, ResctrlOptions, mounted_resctrl

pytestmark = pytest.mark.emulation


class Machine(NamedTuple):
    overlay: Overlay
    resctrl: Mounted
    cpu: Mounted

    def value(self, cpu: int, name: str) -> str:
        return (self.cpu.path / f"cpu{cpu}/cpufreq" / name).read_text().strip()


@pytest.fixture
def machine(fuse: None, tmp_path: Path) -> Iterator[Machine]:
    """Two sockets of two cores with two threads each, an L3 and its classes of service for each socket."""
    shape = CpufreqOptions(sockets=2, cores=2, threads=2)
    cache = ResctrlOptions(domains={0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}, closids=4)
    with mounted_cpufreq(tmp_path / "cpu", shape) as cpu, mounted_resctrl(tmp_path / "resctrl", cache) as resctrl:
        yield Machine(Overlay(resctrl.path, cpu.path), resctrl, cpu)


def test_pqos_reads_the_emulation(machine: Machine, pqos_command: None) -> None:
    """The real pqos sees the sockets, cores, caches, classes and masks that are emulated."""
    shown = machine.overlay.run("pqos", "--iface=os", "-s")
    assert shown.returncode == 0, shown.stdout
    assert "L3CA COS definitions for Socket 1:\n    L3CA COS0 => MASK 0x7ff" in shown.stdout
    assert "COS4" not in shown.stdout
    assert "Core 6, L2ID 2, L3ID 1 => COS0" in shown.stdout


def test_pqos_sets_masks_and_cores(machine: Machine, pqos_command: None) -> None:
    """What the real pqos sets is in force: a mask of one socket, then cores of the class; a reset takes both away."""
    assert machine.overlay.run("pqos", "--iface=os", "-e", "llc@1:2=0x70").returncode == 0
    assert machine.overlay.run("pqos", "--iface=os", "-a", "core:2=3,7").returncode == 0
    state = machine.resctrl.order("get_state")
    assert state["COS2"]["schemata"] == "    L3:0=7ff;1=070\n"
    assert state["COS2"]["cpus"] == [3, 7]
    assert state[""]["cpus"] == [0, 1, 2, 4, 5, 6]
    assert machine.overlay.run("pqos", "--iface=os", "-R").returncode == 0
    state = machine.resctrl.order("get_state")
    assert state["COS2"]["schemata"] == "    L3:0=7ff;1=7ff\n"
    assert state[""]["cpus"] == list(range(8))


def test_cpupower_reads_the_emulation(machine: Machine, cpupower_command: None) -> None:
    """The real cpupower names the driver, the steps and the governors that are emulated."""
    shown = machine.overlay.run("cpupower", "-c", "1", "frequency-info").stdout
    assert "driver: acpi-cpufreq" in shown
    assert "hardware limits: 1.20 GHz - 2.20 GHz" in shown
    assert "conservative ondemand userspace powersave performance schedutil" in shown


def test_cpupower_sets_frequencies(machine: Machine, cpupower_command: None) -> None:
    """The governor, a frequency and a cap that the real cpupower sets are in force on those CPUs alone."""
    assert machine.overlay.run("cpupower", "-c", "1", "frequency-set", "-f", "1500MHz").returncode == 0
    assert (machine.value(1, "scaling_governor"), machine.value(1, "scaling_cur_freq")) == ("userspace", "1500000")
    assert machine.overlay.run("cpupower", "-c", "2", "frequency-set", "-g", "performance", "-u", "1900MHz").returncode == 0
    assert (machine.value(2, "scaling_governor"), machine.value(2, "scaling_max_freq")) == ("performance", "1900000")
    assert (machine.value(0, "scaling_governor"), machine.value(0, "scaling_max_freq")) == ("schedutil", "2201000")


def test_cpupower_is_refused(machine: Machine, cpupower_command: None) -> None:
    """A governor that the emulated kernel lacks makes the real cpupower fail."""
    refused = machine.overlay.run("cpupower", "-c", "0", "frequency-set", "-g", "nonsense")
    assert refused.returncode != 0
    assert machine.value(0, "scaling_governor") == "schedutil"


def test_a_function_sees_the_overlay(machine: Machine) -> None:
    """A Python function runs with the trees in place, control groups still there; outside nothing is mounted."""
    names, groups, line = machine.overlay.call(_look)
    assert "schemata" in names
    assert groups == sorted(os.listdir("/sys/fs/cgroup"))  # noqa: PTH208 (names)
    assert line
    assert not Path("/sys/fs/resctrl/schemata").exists()


def _look() -> tuple[list[str], list[str], bool]:
    listed = "nodev\tresctrl\n" in Path("/proc/filesystems").read_text()
    return sorted(os.listdir("/sys/fs/resctrl")), sorted(os.listdir("/sys/fs/cgroup")), listed  # noqa: PTH208 (names)


@pytest.mark.parametrize("divisor", [1, 0])
def test_nothing_of_an_overlay_stays(machine: Machine, divisor: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a function returns or raises, no scratch directory is left, and the control groups that were bound are untouched."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    before = _modes()
    with contextlib.suppress(CallError):
        machine.overlay.call(divmod, 1, divisor)
    machine.overlay.run("true")
    assert list((tmp_path / "scratch").iterdir()) == []
    assert _modes() == before


def _modes() -> dict[str, int]:
    """The permissions of the control-group hierarchies and their own files."""
    return {str(path): path.stat().st_mode for path in Path("/sys/fs/cgroup").glob("*/cgroup.*")} | {
        str(path): path.stat().st_mode for path in Path("/sys/fs/cgroup").iterdir()
    }


def test_what_a_function_raises_is_told(machine: Machine) -> None:
    """The test gets the traceback of what failed there."""
    with pytest.raises(CallError, match="ZeroDivisionError"):
        machine.overlay.call(divmod, 1, 0)

"""Every write fails in every way, on this machine's control groups and on a device in a network namespace of the test's own."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_kit import fault_points

from actuators.cgroup.group import FROZEN, IDLE_CLASS, Controller, CpuBandwidth, Direction
from actuators.cgroup.v1 import ControlGroupV1
from actuators.network.device import HANDLE, Device
from actuators.network.filters import FilterKnob
from actuators.network.knobs import ClassKnob, QdiscKnob
from actuators.network.tc import HtbClass
from actuators.registry import KINDS
from parties.journal import Journal
from parties.knob import Effect, KnobWrite
from parties.model import BEST_EFFORT
from parties.restore import Fate, restore
from parties.settings import ExitPolicy, ExitSettings

pytestmark = pytest.mark.kernel

MIB = 1024**2
TOTAL_BYTES = 1024 * MIB
FILES = {
    Controller.CPU: ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpu.idle"),
    Controller.CPUSET: ("cpuset.cpus", "cpuset.mems"),
    Controller.MEMORY: ("memory.limit_in_bytes",),
    Controller.DISK: ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    Controller.FREEZER: ("freezer.state",),
}


def device() -> str:
    """A whole disk of this machine, as MAJ:MIN; only the tests' own groups are throttled on it."""
    for disk in sorted(Path("/sys/block").iterdir()):
        if (disk / "size").read_text().strip() != "0":
            return (disk / "dev").read_text().strip()
    pytest.skip("no disk to throttle")


def snapshot(*groups: ControlGroupV1) -> dict[str, str]:
    """Every value that could have been touched, as the kernel's files give it."""
    files = [group.directory(controller) / name for group in groups for controller, names in FILES.items() for name in names]
    return {str(file): file.read_text() for file in files if file.exists()}


@pytest.fixture
def groups(cgroup_factory: Callable[[str], ControlGroupV1]) -> tuple[ControlGroupV1, ControlGroupV1]:
    """A giver that has most of memory and a taker that has little; the rest is unset."""
    giver, taker = cgroup_factory("giver"), cgroup_factory("taker")
    giver.memory_limit.write(str(768 * MIB))
    taker.memory_limit.write(str(256 * MIB))
    return giver, taker


def every_v1_kind(giver: ControlGroupV1, taker: ControlGroupV1, disk: str) -> list[KnobWrite]:
    """A plan with every kind of version 1, unset values among them."""
    return [
        KnobWrite(taker.memory_limit, str(512 * MIB), "taker", Effect.GIVE),
        KnobWrite(taker.cpu_bandwidth, str(CpuBandwidth(None, 50000)), "taker", Effect.GIVE),
        KnobWrite(giver.memory_limit, str(512 * MIB), "giver", Effect.TAKE, slow=True),
        KnobWrite(giver.cpus, "0", "giver", Effect.TAKE),
        KnobWrite(giver.cpu_bandwidth, "20000 100000", "giver", Effect.TAKE),
        KnobWrite(giver.disk_throttle(disk, Direction.READ), str(MIB), "giver", Effect.TAKE),
        KnobWrite(taker.cpu_class, IDLE_CLASS, BEST_EFFORT, Effect.TAKE),
        KnobWrite(taker.freezer, FROZEN, BEST_EFFORT, Effect.TAKE),
    ]


@pytest.mark.usefixtures("without_fsync")
def test_control_groups(groups: tuple[ControlGroupV1, ControlGroupV1], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of version 1: no moment at which more memory is out than there is, every value of every file as before."""
    giver, taker = groups
    disk = device()

    def conserved() -> None:
        held = [int(group.memory_limit.read() or 0) for group in groups]
        assert sum(held) <= TOTAL_BYTES, held

    points = fault_points(
        lambda: every_v1_kind(giver, taker, disk),
        KINDS,
        tmp_path / "state",
        invariant=conserved,
        snapshot=lambda: snapshot(giver, taker),
    )
    with capsys.disabled():
        print(f"\n{points} fault points covered on control groups")  # noqa: T201 - the figure is wanted
    assert points == 8 * 9 * 2


def test_what_is_safe(groups: tuple[ControlGroupV1, ControlGroupV1], tmp_path: Path) -> None:
    """The exit policy "safe" takes every limit off, thaws, and gives all CPUs; a restore still knows what was before."""
    giver, taker = groups
    before = snapshot(giver, taker)
    policy = ExitSettings(*itertools.repeat(ExitPolicy.SAFE, 7))
    journal = Journal(tmp_path, started_unix_ns=1, exit_policy=policy)
    for write in every_v1_kind(giver, taker, device()):
        journal.save([(write.knob.ref, write.knob.read())])
        write.knob.write(write.value)
    journal.close()
    report = restore(journal.path, KINDS, at_exit=True)
    assert {entry.fate for entry in report.entries} == {Fate.SAFE}, report
    for group in groups:
        assert group.memory_limit.read() is None
        assert group.freezer.read() == "THAWED"
    assert giver.cpu_bandwidth.read() == "max 100000"
    assert taker.cpu_class.read() == "shares=1024"
    assert giver.cpus.read() == (giver.directory(Controller.CPUSET).parent / "cpuset.cpus").read_text().strip()
    assert restore(journal.path, KINDS).complete
    assert snapshot(giver, taker) == before


@pytest.fixture
def own_device(layer: object) -> Iterator[Device]:
    """The loopback device of a network namespace of its own."""
    name = f"parties-fault-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Device("lo", name, keep=False)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def shown(device: Device) -> str:
    """What `tc` says of the device, without its counters."""
    words = (["qdisc", "show"], ["class", "show"], ["filter", "show"])
    outputs = [
        subprocess.run(["tc", "-n", device.namespace, *kind, "dev", device.name], check=True, capture_output=True, text=True)
        for kind in words
    ]
    return "".join(output.stdout for output in outputs)


@pytest.mark.usefixtures("without_fsync")
def test_traffic_control(own_device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Qdisc, classes and filters that were not there are gone again after every fault, and `tc` shows what it showed."""
    root, one, two = HANDLE | 1, HANDLE | 0x10, HANDLE | 0x20

    def settings(rate: int, ceiling: int, parent: int) -> str:
        return HtbClass(parent, rate, ceiling, 100_000, 100_000, 10_000, 0).text()

    def plan() -> list[KnobWrite]:
        return [
            KnobWrite(QdiscKnob(own_device), "default 7061:20", "idle", Effect.TAKE),
            KnobWrite(ClassKnob(own_device, root), settings(10**8, 10**8, HANDLE), "idle", Effect.TAKE),
            KnobWrite(ClassKnob(own_device, one), settings(10**7, 10**7, root), "web", Effect.NEUTRAL),
            KnobWrite(ClassKnob(own_device, two), settings(10**6, 10**8, root), "idle", Effect.NEUTRAL),
            KnobWrite(FilterKnob(own_device), "port=8080>7061:10", "web", Effect.GIVE),
        ]

    points = fault_points(plan, KINDS, tmp_path / "state", snapshot=lambda: shown(own_device))
    with capsys.disabled():
        print(f"\n{points} fault points covered on traffic control")  # noqa: T201 - the figure is wanted
    assert points == 5 * 9 * 2

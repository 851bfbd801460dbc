"""Every kind of knob there is has its writes failed in every way: what is covered here, and that nothing is left out."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_pqos import FULL, FakePqos
from fake_systemd import FakeSystemd
from fault_kit import COVERED, ERRNOS, fault_points, restore_points
from fault_table import DRIVEN, WRITES_NOTHING, summary

from actuators.cache.knobs import PRESENT, GroupKnob
from actuators.cache.pqos_knobs import LOOK, PqosCpuKnob, PqosLookKnob, PqosMaskKnob
from actuators.cache.tasks import ALL, ResctrlTasksKnob
from actuators.cgroup.group import IDLE_CLASS, Direction
from actuators.cgroup.layer import find_layer
from actuators.frequency.speed import SpeedKnob
from actuators.network.net_cls import CLASS_ID, ClassIdKnob
from actuators.registry import KINDS
from actuators.rest.groups import RestUnitKnob
from actuators.rest.kinds import knob_kinds as rest_kinds
from actuators.systemd.bus import SystemdBus
from actuators.systemd.knobs import Unit, knob_kinds
from actuators.systemd.layer import SystemdLayer
from monitors.resctrl import ResctrlCountersKnob
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, Knob, KnobKind, KnobKinds, KnobRef, KnobWrite
from parties.model import NS_PER_S
from parties.restore import restore
from parties.slow_writer import SlowResult, SlowWriter
from tests.emulation.cpufreq import mounted_cpufreq
from tests.emulation.fuse_tree import Mounted, why_not
from tests.emulation.namespace import Overlay
from tests.emulation.resctrl import ResctrlOptions, mounted_resctrl

ROOT = Path(__file__).parents[2]
WEB, JOB, OTHER = (f"/system.slice/{name}.service" for name in ("web", "job", "other"))
UNITS = {WEB: "web.service", JOB: "job.service"}
TOTAL_BYTES = 900_000_000


# Nothing is left out


def test_every_kind_is_driven() -> None:
    """A kind of knob that is in the registry has a test that fails its writes, or a reason for not having any."""
    assert not DRIVEN.keys() & WRITES_NOTHING.keys()
    known = DRIVEN.keys() | WRITES_NOTHING.keys()
    assert not (lacking := KINDS.keys() - known), (
        f"no test fails the writes of {sorted(lacking)}: write one, name it in fault_table.py"
    )
    assert not (gone := known - KINDS.keys()), f"{sorted(gone)} are no kinds of knob any more"


@pytest.mark.parametrize("node", sorted(set(DRIVEN.values())))
def test_every_driving_test_is_there(node: str) -> None:
    """The test that the table names exists under that name, so that what it has to cover is looked at when it runs."""
    file, _, name = node.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()


def test_the_summary_is_one_line() -> None:
    """The sum, and each kind with its own."""
    assert summary({"b": 2, "a": 1}) == "fault points: 3 (a 1, b 2)"


# Units of systemd


@pytest.fixture
def systemd(systemd: FakeSystemd) -> FakeSystemd:
    """Three units, one of which has limits of its own, some that systemd does not know of, and one of which is nobody's."""
    systemd.start("web.service", WEB)
    systemd.start("other.service", OTHER)
    job = systemd.start("job.service", JOB, CPUQuotaPerSecUSec=500_000, MemoryMax=700_000_000)
    (job / "memory.swap.max").write_text("0\n")
    return systemd


class Units:
    """Plans on the units. Every plan has a connection of its own, as every process has."""

    def __init__(self, systemd: FakeSystemd) -> None:
        self.systemd, self.root = systemd, systemd.root
        self.bus = SystemdBus(self.root)
        self.kinds = {**knob_kinds(self.bus, self.root), **rest_kinds(self.bus, self.root)}

    def plan(self) -> list[KnobWrite]:
        self.bus.close()
        layer = SystemdLayer(find_layer(self.systemd.hierarchies, self.root), UNITS, self.root, self.bus)
        web, job = layer.group(WEB), layer.group(JOB)
        other = Unit("other.service", self.systemd.tree / OTHER[1:], self.bus, self.root)
        return [
            KnobWrite(RestUnitKnob(other, "cpuset.cpus"), "0", "rest", Effect.NEUTRAL),
            KnobWrite(web.mems, "0", "web", Effect.TAKE),
            KnobWrite(web.cpus, "1-2", "web", Effect.TAKE),
            KnobWrite(job.memory_limit, "500000000", "job", Effect.TAKE),
            KnobWrite(job.disk_throttle("254:16", Direction.READ), "1000000", "job", Effect.TAKE),
            KnobWrite(web.cpu_bandwidth, "3300 10000", "web", Effect.NEUTRAL),
            KnobWrite(job.cpu_class, IDLE_CLASS, "job", Effect.NEUTRAL),
            KnobWrite(web.memory_limit, "400000000", "web", Effect.GIVE),
        ]


@pytest.mark.slow
@pytest.mark.usefixtures("without_fsync")
def test_units(systemd: FakeSystemd, tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """Every property of units: no more memory is out than there is, and after a restore not even a drop-in is left."""
    units = Units(systemd)

    def conserved() -> None:
        held = [limit for path in (WEB, JOB) if (limit := (systemd.tree / path[1:] / "memory.max").read_text().strip()) != "max"]
        assert sum(map(int, held)) <= TOTAL_BYTES, held

    points = fault_points(units.plan, units.kinds, tmp_path / "state", invariant=conserved, left_by_rolling_back=systemd.snapshot)
    said(points, "units of systemd")
    assert points == 8 * 9 * 2


@pytest.mark.slow
@pytest.mark.usefixtures("without_fsync")
def test_restoring_units(systemd: FakeSystemd, tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """A restore in which a property, a drop-in or the reload fails, or that is killed there, is mended by the next one."""
    units = Units(systemd)
    points = restore_points(units.plan, units.kinds, tmp_path / "state", snapshot=systemd.snapshot)
    said(points, "restoring units of systemd")
    assert points >= 13 * 6 * 2


# pqos


class FilePqos(FakePqos):
    """A pqos whose machine is a file, so that processes share it."""

    def __init__(self, machine: Path, snapshot: Path) -> None:
        super().__init__(snapshot)
        self._machine = machine
        if not machine.exists():
            self._keep()

    def _run(self, *arguments: str) -> str:
        content = json.loads(self._machine.read_text())
        self.masks = {(unit, number): mask for unit, number, mask in content["masks"]}
        self.cpus = dict(content["cpus"])
        answer = super()._run(*arguments)
        self._keep()
        return answer

    def _keep(self) -> None:
        masks = [(*place, mask) for place, mask in self.masks.items()]
        self._machine.write_text(json.dumps({"masks": masks, "cpus": list(self.cpus.items())}))


@pytest.mark.slow
@pytest.mark.usefixtures("without_fsync")
def test_pqos(tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """Masks and CPUs of two classes, taken from one and given to the other: at no moment is a way in both."""
    machine, snapshot = tmp_path / "machine", tmp_path / "pqos.json"

    def pqos() -> FilePqos:
        """Of one process, with a fresh look."""
        one = FilePqos(machine, snapshot)
        one.look()
        return one

    kinds: KnobKinds = {
        PqosMaskKnob.KIND: KnobKind(lambda at: PqosMaskKnob(pqos(), int(at[3]), int(at[4]), live=True), slow=True),
        PqosCpuKnob.KIND: KnobKind(lambda at: PqosCpuKnob(pqos(), int(at[3]), live=True), slow=True),
    }
    first = pqos()
    PqosMaskKnob(first, 0, 1).write("ff")
    PqosMaskKnob(first, 0, 2).write("700")

    def plan() -> list[KnobWrite]:
        one = pqos()
        return [
            KnobWrite(PqosMaskKnob(one, 0, 1), "f", "web", Effect.TAKE),
            KnobWrite(PqosCpuKnob(one, 4), "2", "job", Effect.NEUTRAL),
            KnobWrite(PqosMaskKnob(one, 0, 2), "7f0", "job", Effect.GIVE),
        ]

    def nobody_shares() -> None:
        masks = pqos().masks
        assert not masks[0, 1] & masks[0, 2], masks

    points = fault_points(plan, kinds, tmp_path / "state", invariant=nobody_shares, snapshot=machine.read_text)
    points += restore_points(plan, kinds, tmp_path / "state", snapshot=machine.read_text)
    said(points, "pqos")
    assert FULL in FilePqos(machine, snapshot).masks.values()
    assert points == 3 * 9 * 2 + 3 * 6 * 2


# Threads in groups of resctrl, which are no plan's business but upkeep's


@pytest.fixture
def resctrl(tmp_path: Path) -> Iterator[Mounted]:
    """An emulated tree."""
    if reason := why_not():
        pytest.skip(reason)
    with mounted_resctrl(tmp_path / "resctrl", ResctrlOptions(monitoring=True)) as mounted:
        yield mounted


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the test's own."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.slow
@pytest.mark.emulation
def test_threads_in_resctrl(
    resctrl: Mounted, sleeper: subprocess.Popen[bytes], tmp_path: Path, said: Callable[[int, str], None]
) -> None:
    """Moving threads fails with every errno, hangs, or is killed: the restore of the group returns whoever was moved."""
    (tmp_path / "members").mkdir()
    (tmp_path / "members/tasks").write_text(f"{sleeper.pid}\n")
    group = GroupKnob(resctrl.path, "parties-web")
    ref = ResctrlTasksKnob(resctrl.path, "parties-web", [str(tmp_path / "members")]).ref
    before = resctrl.order("get_state")
    faults: list[int | tuple[str, str]] = [*ERRNOS, *itertools.product(("hang", "SIGKILL"), ("before", "after"))]
    for number, fault in enumerate(faults):
        journal = Journal(tmp_path / f"state{number}", started_unix_ns=1)
        journal.save([(group.ref, group.read())])
        journal.close()
        group.write(PRESENT)
        _meets(resctrl, ref, fault)
        assert restore(tmp_path / f"state{number}" / JOURNAL_NAME, KINDS).complete
        assert str(sleeper.pid) in (resctrl.path / "tasks").read_text().split(), fault
        assert {name: held["schemata"] for name, held in resctrl.order("get_state").items()} == {
            name: held["schemata"] for name, held in before.items()
        }, fault
        COVERED[ref.kind] += 1
    said(len(faults), "threads in resctrl")


def _meets(resctrl: Mounted, ref: KnobRef, fault: int | tuple[str, str]) -> None:
    """Have the threads moved by the process for upkeep, which meets the fault."""
    resctrl.clear()
    if isinstance(fault, int):
        resctrl.fail(fault, "/parties-web/tasks")
        error = _set(ref, SlowWriter()).error
        assert error is None if fault == errno.ESRCH else error is not None  # a thread that has ended is none
        return
    what, when = fault
    if when == "after":
        assert _set(ref, SlowWriter()).error is None
        return
    resctrl.hang("/parties-web/tasks")
    writer = SlowWriter(limit_ns=NS_PER_S // 5 if what == "hang" else 60 * NS_PER_S)
    done = len(resctrl.log())
    writer.submit(ref, ALL, time.monotonic_ns())
    while len(resctrl.log()) == done:
        time.sleep(0.002)
    if what == "SIGKILL":
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
    else:
        time.sleep(0.25)
        writer.poll(time.monotonic_ns())
    resctrl.release()  # the kernel lets nobody go out of a write before it is done
    _until(lambda: writer.poll(time.monotonic_ns()))
    writer.close()


def _set(ref: KnobRef, writer: SlowWriter) -> SlowResult:
    try:
        writer.submit(ref, ALL, time.monotonic_ns())
        return _until(lambda: writer.poll(time.monotonic_ns()))[0]
    finally:
        writer.close()


def _until(poll: Callable[[], list[SlowResult]]) -> list[SlowResult]:
    deadline = time.monotonic() + 120
    while not (results := poll()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return results


# Marks of traffic


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.usefixtures("without_fsync")
def test_net_cls(tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """The class id of a group of the test's own, in this kernel's net_cls, mounted for the test's process only."""
    if os.geteuid() != 0 or "\nnet_cls\t" not in Path("/proc/cgroups").read_text():
        pytest.skip("needs root and a kernel with net_cls")
    points = Overlay().call(_fail_marking, tmp_path)
    COVERED[ClassIdKnob.KIND] += points
    said(points, "net_cls")
    assert points == 9 * 2


def _fail_marking(directory: Path) -> int:
    mount = directory / "net_cls"
    mount.mkdir()
    subprocess.run(["mount", "-t", "cgroup", "-o", "net_cls", "none", str(mount)], check=True)
    group = mount / f"parties-fault-{os.getpid()}"
    group.mkdir()
    try:
        marking = KnobWrite(ClassIdKnob(group / CLASS_ID), "65552", "web", Effect.NEUTRAL)
        return fault_points(lambda: [marking], KINDS, directory / "state")
    finally:
        group.rmdir()


# Sensors


@pytest.mark.slow
@pytest.mark.emulation
def test_sensors_write_nothing(resctrl: Mounted, tmp_path: Path) -> None:
    """What is set only to be read again changes no value, so there is nothing to undo."""
    with mounted_cpufreq(tmp_path / "cpu") as cpu:
        pqos = FakePqos(tmp_path / "pqos.json")
        sensors: list[tuple[Knob, str]] = [
            (SpeedKnob([cpu.path / "cpufreq/policy0"]), "look"),
            (PqosLookKnob(pqos), LOOK),
            (ResctrlCountersKnob(resctrl.path, ("parties-web",)), "read"),
        ]
        for knob, value in sensors:
            knob.write(value)
            knob.restore(knob.read())
        assert [*cpu.log(), *resctrl.log(), *pqos.ran] == []
        assert {knob.ref.kind for knob, _ in sensors} <= WRITES_NOTHING.keys()

"""The group for the root's processes on this machine's cpuset, below a group of the test's own that stands for the root; faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fault_kit import fault_points
from machine_tree import MachineTree

from actuators.cgroup.v1 import ControlGroupV1
from actuators.registry import KINDS
from actuators.rest.affinity import InterruptAffinityKnob, MaskKnob, TaskAffinityKnob
from actuators.rest.groups import ALL, GROUP, RestGroupKnob, RestListV1Knob, RestMembersKnob
from actuators.rest.kinds import NEW_INTERRUPTS, WORK_QUEUES
from monitors.rest import read_process
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, KnobWrite
from parties.model import RESERVED, MoveStatus
from parties.restore import Fate, restore
from parties.slow_writer import SlowWriter

pytestmark = pytest.mark.kernel

CgroupFactory = Callable[[str], ControlGroupV1]
_TWO = 2
_SPAWNS = "import subprocess, sys; input(); p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); input(); p.kill()"


@pytest.fixture(scope="module", autouse=True)
def two_cpus() -> None:
    """One CPU leaves nothing to keep anybody off."""
    if len(os.sched_getaffinity(0)) < _TWO:
        pytest.skip("needs two CPUs")


@pytest.fixture
def above(cgroup_factory: CgroupFactory) -> Path:
    """A cpuset group that stands for the root."""
    group = cgroup_factory("root")
    return Path(group.cpus.ref.address[0]).parent


@pytest.fixture
def inside(above: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in it that starts another one when it is told to."""
    with subprocess.Popen((sys.executable, "-c", _SPAWNS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            (above / "cgroup.procs").write_text(str(process.pid))
            yield process
        finally:
            process.kill()


def group_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.rpartition("/")[2] for line in lines if line.split(":")[1] == "cpuset")


def carried_out(state: Path, writes: Sequence[KnobWrite]) -> None:
    """By the enforcer, with its slow writer; journalled in ``state``."""
    journal, slow_writer = Journal(state, started_unix_ns=1), SlowWriter()
    try:
        enforcer = Enforcer(journal, slow_writer, kinds=KINDS)
        outcomes = {outcome.ticket: outcome for outcome in enforcer.apply_apart(writes, time.monotonic_ns())}
        while any(outcome.status is MoveStatus.PENDING for outcome in outcomes.values()):
            outcomes |= dict(enforcer.poll(time.monotonic_ns()))
            time.sleep(0.01)
        assert {outcome.status for outcome in outcomes.values()} == {MoveStatus.DONE}, outcomes
    finally:
        slow_writer.close()
        journal.close()


def test_the_root_s_processes_are_confined_and_return(above: Path, inside: subprocess.Popen[str], tmp_path: Path) -> None:
    """They and what they start run on the reserved CPU only; a restore from the journal alone puts all of it back."""
    directory = above / GROUP
    before = os.sched_getaffinity(inside.pid)
    carried_out(tmp_path, [KnobWrite(RestGroupKnob(directory), "0", RESERVED, Effect.NEUTRAL)])
    members = RestMembersKnob(directory)
    assert members.read() == f"stray {inside.pid}"
    members.write(ALL)
    assert members.read() == ALL
    assert os.sched_getaffinity(inside.pid) == {0}
    assert inside.stdin is not None
    assert inside.stdout is not None
    inside.stdin.write("\n")
    inside.stdin.flush()
    child = int(inside.stdout.readline())
    assert group_of(child) == GROUP
    assert os.sched_getaffinity(child) == {0}
    report = restore(tmp_path / JOURNAL_NAME, KINDS)
    assert [entry.fate for entry in report.entries] == [Fate.RESTORED]
    assert not directory.exists()
    assert group_of(inside.pid) == group_of(child) == above.name
    assert os.sched_getaffinity(inside.pid) == os.sched_getaffinity(child) == before


def test_a_group_that_was_there_keeps_its_members(above: Path, inside: subprocess.Popen[str]) -> None:
    """What an earlier run left is given the CPUs that it had."""
    knob = RestGroupKnob(above / GROUP)
    knob.write("1")
    RestMembersKnob(above / GROUP).write(ALL)
    old = knob.read()
    knob.write("0")
    knob.restore(old)
    assert (knob.read(), group_of(inside.pid)) == ("1", GROUP)
    knob.restore(None)
    assert knob.read() is None


def test_what_one_refuses_undoes_no_other(above: Path, inside: subprocess.Popen[str], tmp_path: Path) -> None:
    """A thread that is another one by now does not stand in the way of the next write; both were journalled at once."""
    journal, slow_writer = Journal(tmp_path, started_unix_ns=1), SlowWriter()
    found = read_process(Path(f"/proc/{inside.pid}"))
    assert found is not None
    try:
        enforcer = Enforcer(journal, slow_writer, kinds=KINDS)
        wrong = KnobWrite(TaskAffinityKnob(inside.pid, found.start_ticks), "1000", RESERVED, Effect.NEUTRAL)
        right = KnobWrite(RestListV1Knob(above / "cpuset.cpus"), "0", RESERVED, Effect.NEUTRAL)
        refused, pending = enforcer.apply_apart([wrong, right], time.monotonic_ns())
        assert refused.status is MoveStatus.REFUSED
        assert "keeps it where it is" in refused.detail
        assert pending.status is MoveStatus.PENDING
        inside.kill()
        inside.wait()
        while not enforcer.poll(time.monotonic_ns()):
            time.sleep(0.01)
        assert RestListV1Knob(above / "cpuset.cpus").read() == "0"
    finally:
        slow_writer.close()
        journal.close()
    assert {entry.fate for entry in restore(tmp_path / JOURNAL_NAME, KINDS).entries} == {Fate.RESTORED, Fate.GONE}


def test_a_thread_that_ends_is_forgotten(inside: subprocess.Popen[str], tmp_path: Path) -> None:
    """Nothing is said of it, and no list of what is managed grows with those that are gone."""
    found = read_process(Path(f"/proc/{inside.pid}"))
    assert found is not None
    journal, slow_writer = Journal(tmp_path, started_unix_ns=1), SlowWriter()
    try:
        enforcer = Enforcer(journal, slow_writer, kinds=KINDS)
        knob = TaskAffinityKnob(inside.pid, found.start_ticks)
        enforcer.apply_apart([KnobWrite(knob, "0", RESERVED, Effect.NEUTRAL)], time.monotonic_ns())
        assert knob.ref in enforcer.wanted
        inside.kill()
        inside.wait()
        knob._look_again_ns = 0
        assert enforcer.drift(time.monotonic_ns()) == []
        assert enforcer.wanted == {}
        enforcer.apply_apart([KnobWrite(knob, "0", RESERVED, Effect.NEUTRAL)], time.monotonic_ns())
        assert enforcer.wanted == {}
    finally:
        slow_writer.close()
        journal.close()


@pytest.mark.slow
def test_fault_points(
    above: Path,
    inside: subprocess.Popen[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every kind fails in every way: a thread and a group of the test's own, interrupts and work queues of a fixture tree."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)
    tree = MachineTree(tmp_path / "root")
    interrupts = tree.interrupt("24", "0-1")
    found = read_process(Path(f"/proc/{inside.pid}"))
    assert found is not None

    def plan() -> list[KnobWrite]:
        knobs = (
            TaskAffinityKnob(inside.pid, found.start_ticks),
            InterruptAffinityKnob(interrupts, "24"),
            MaskKnob(NEW_INTERRUPTS, interrupts / "default_smp_affinity"),
            MaskKnob(WORK_QUEUES, tree.root / "sys/devices/virtual/workqueue/cpumask"),
            RestGroupKnob(above / GROUP),
        )
        return [KnobWrite(knob, "0", RESERVED, Effect.NEUTRAL) for knob in knobs]

    points = fault_points(plan, KINDS, tmp_path / "state", snapshot=lambda: (group_of(inside.pid), sorted(os.listdir(above))))  # noqa: PTH208
    with capsys.disabled():
        print(f"\n{points} fault points covered on the rest of the machine")  # noqa: T201 - the figure is wanted

"""Every write that keeps the rest of the machine off the managed CPUs fails in every way: on files, own processes, own groups."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_cgroup2 import Cgroup2
from fault_kit import COVERED, InjectedKnob, fault_points, injectors, killed_in

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1
from actuators.registry import KINDS
from actuators.rest.affinity import InterruptAffinityKnob, MaskKnob, TaskAffinityKnob
from actuators.rest.groups import ALL, RestGroupKnob, RestListV1Knob, RestListV2Knob, RestMembersKnob
from actuators.rest.kinds import NEW_INTERRUPTS, WORK_QUEUES
from monitors.rest import read_process
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, Knob, KnobError, KnobWrite
from parties.restore import restore

REST = "rest"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the test's own."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def neutral(knobs: dict[Knob, str]) -> list[KnobWrite]:
    """A plan that takes nothing from anybody."""
    return [KnobWrite(knob, value, REST, Effect.NEUTRAL) for knob, value in knobs.items()]


@pytest.mark.slow
@pytest.mark.usefixtures("without_fsync")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU leaves no choice")
def test_threads_and_interrupts(sleeper: subprocess.Popen[bytes], tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """A real thread's affinity; interrupts, new ones and work queues as files; a v1 group's CPUs."""
    files = {"24/smp_affinity_list": "0-3\n", "default_smp_affinity": "f\n", "cpumask": "0000000f\n", "cpuset.cpus": "0-3\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_process(Path(f"/proc/{sleeper.pid}"))
    assert found is not None
    start_ticks, one = found.start_ticks, str(min(os.sched_getaffinity(0)))

    def plan() -> list[KnobWrite]:
        return neutral(
            {
                TaskAffinityKnob(sleeper.pid, start_ticks): one,
                InterruptAffinityKnob(tmp_path, "24"): "0",
                MaskKnob(NEW_INTERRUPTS, tmp_path / "default_smp_affinity"): "0",
                MaskKnob(WORK_QUEUES, tmp_path / "cpumask"): "0",
                RestListV1Knob(tmp_path / "cpuset.cpus"): "0",
            }
        )

    points = fault_points(plan, KINDS, tmp_path / "state")
    said(points, "threads and interrupts of the rest")
    assert points == 5 * 9 * 2


@pytest.mark.slow
@pytest.mark.usefixtures("without_fsync")
def test_groups_v2(v2: Cgroup2, tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """The CPUs of a group of version 2 that is nobody's."""
    v2.make("/other", "cpuset")
    before = v2.snapshot()
    points = fault_points(
        lambda: neutral({RestListV2Knob(v2.tree / "other/cpuset.cpus"): "0-1"}), KINDS, tmp_path / "state", snapshot=v2.snapshot
    )
    said(points, "groups v2 of the rest")
    assert points == 9 * 2
    assert v2.snapshot() == before


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.usefixtures("without_fsync")
def test_the_roots_processes(
    cgroup_factory: Callable[[str], ControlGroupV1],
    spawn: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    said: Callable[[int, str], None],
) -> None:
    """A group is made beside the root's processes and these are moved into it: the restore returns them and removes it."""
    root = cgroup_factory("root")
    process = spawn(root, "sleep", "600")
    above = root.directory(Controller.CPUSET)
    group, members = RestGroupKnob(above / "parties-rest"), RestMembersKnob(above / "parties-rest")

    def outside() -> tuple[bool, bool]:
        return (above / "parties-rest").exists(), str(process.pid) in (above / "cgroup.procs").read_text().split()

    before = outside()
    points = fault_points(lambda: neutral({group: "0"}), KINDS, tmp_path / "state", snapshot=outside)
    for what, injector in injectors([True], kills=True):
        journal = Journal(tmp_path / "state", started_unix_ns=1)
        journal.save([(group.ref, group.read())])
        journal.close()
        group.write("0")
        moving = InjectedKnob(members, injector)
        if not killed_in(lambda moving=moving: moving.write(ALL), injector, what):  # type: ignore[misc]
            with pytest.raises(OSError, match="rest"):
                moving.write(ALL)
        assert restore(tmp_path / "state" / JOURNAL_NAME, KINDS).complete, what
        assert outside() == before, what
        points += 1
        COVERED[members.ref.kind] += 1
    said(points, "the root's processes")
    assert points == 2 * 9 * 2


def test_a_member_that_cannot_be_moved_is_told(tmp_path: Path) -> None:
    """Without the group there is nowhere to move to."""
    with pytest.raises(KnobError, match="the group is gone"):
        RestMembersKnob(tmp_path / "parties-rest").read()

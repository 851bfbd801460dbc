"""Threads in resctrl groups: those of a holder's control groups are moved, those in others' groups are left and named."""

import errno
import os
import stat
from pathlib import Path

import pytest
from resctrl_trees import XEON, add_files, make_tree

from actuators.cache import tasks as module
from actuators.cache.tasks import KINDS, MembershipTask, ResctrlTasksKnob, threads_below
from parties.knob import KnobError

GROUP = "parties-a"


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A resctrl with a group of ours that is empty."""
    mount = make_tree(tmp_path / "resctrl")
    add_files(mount / GROUP, XEON)
    return mount


def control_group(path: Path, *threads: int, name: str = "tasks") -> Path:
    """A control group with these threads."""
    path.mkdir(parents=True, exist_ok=True)
    (path / name).write_text("".join(f"{thread}\n" for thread in threads))
    return path


def members(group: Path) -> list[int]:
    return [int(thread) for thread in (group / "tasks").read_text().split()]


def test_threads_of_both_versions_and_of_groups_below(tmp_path: Path) -> None:
    """v1 lists them in tasks, v2 in cgroup.threads; 0 stands for a thread of another PID namespace, which cannot be moved."""
    control_group(tmp_path / "one", 11, 12)
    control_group(tmp_path / "one/below/deeper", 13, 0)
    control_group(tmp_path / "two", 21, 0, name="cgroup.threads")
    assert threads_below(str(tmp_path / "one")) == {11, 12, 13}
    assert threads_below(str(tmp_path / "two")) == {21}
    assert threads_below(str(tmp_path / "none")) == frozenset()


def test_every_thread_is_moved(tmp_path: Path, mount: Path) -> None:
    """Of all control groups; then the value is "all", and nothing more is written."""
    groups = [control_group(tmp_path / "web", 11, 12), control_group(tmp_path / "db", 13)]
    knob = ResctrlTasksKnob(mount, GROUP, [str(group) for group in groups])
    assert knob.read() == "stray 11 12 13"
    knob.write("all")
    assert (members(mount / GROUP), knob.read()) == ([11, 12, 13], "all")
    before = (mount / GROUP / "tasks").stat().st_mtime_ns
    knob.write("all")
    assert (mount / GROUP / "tasks").stat().st_mtime_ns == before


def test_threads_in_another_tool_s_group_stay_there(tmp_path: Path, mount: Path) -> None:
    """They are named, and the rest is moved; a group of ours is no other tool's."""
    add_files(mount / "vm", XEON, tasks=(12,))
    add_files(mount / "parties-b", XEON, tasks=(13,))
    knob = ResctrlTasksKnob(mount, GROUP, [str(control_group(tmp_path / "web", 11, 12, 13))])
    knob.write("all")
    assert (members(mount / GROUP), knob.read()) == ([11, 13], "vm 12")


def test_whoever_left_the_control_group_goes_back(tmp_path: Path, mount: Path) -> None:
    """To the root group, as its ways are not theirs any more."""
    (mount / GROUP / "tasks").write_text("11\n99\n")
    ResctrlTasksKnob(mount, GROUP, [str(control_group(tmp_path / "web", 11))]).write("all")
    assert members(mount) == [99]


def test_new_threads_are_caught(tmp_path: Path, mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come while others are moved are moved in the next pass; a holder that starts some without end ends the passes."""
    group = control_group(tmp_path / "web", 11)
    moved: list[list[int]] = []

    def moving(threads: frozenset[int], tasks: str) -> None:
        moved.append(sorted(threads))
        with Path(tasks).open("a") as file:
            file.writelines(f"{thread}\n" for thread in threads)
        if len(moved) < limit:
            control_group(group, *range(11, 12 + len(moved)))

    monkeypatch.setattr(module, "_move", moving)
    knob = ResctrlTasksKnob(mount, GROUP, [str(group)])
    limit = 3
    knob.write("all")
    assert (moved, knob.read()) == ([[11], [12], [13]], "all")
    limit = 1000
    (mount / GROUP / "tasks").write_text("")
    knob.write("all")
    assert len(moved) == 3 + 10
    assert knob.read() != "all"


class Pipes:
    """Stands for the kernel at the write of a thread's number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, numbers: dict[int, int]) -> None:
        self.written: list[int] = []
        self._numbers = numbers
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return self._write(fd, data)
        thread = int(data)
        self.written.append(thread)
        if number := self._numbers.get(thread):
            raise OSError(number, os.strerror(number))
        return self._write(fd, data)


def test_a_thread_that_ended_is_none(tmp_path: Path, mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ESRCH is normal; the numbers go in one write each, as the kernel takes one."""
    pipes = Pipes(monkeypatch, {11: errno.ESRCH})
    group = control_group(tmp_path / "web", 11, 12)
    ResctrlTasksKnob(mount, GROUP, [str(group)]).write("all")
    assert pipes.written[:2] == [11, 12]
    assert members(mount / GROUP) == [12]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.EPERM, errno.EIO])
def test_one_thread_s_trouble_does_not_keep_the_others(
    tmp_path: Path, mount: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Every other thread is moved; the error names the group and the thread, with the kernel's errno."""
    Pipes(monkeypatch, {11: number})
    group = control_group(tmp_path / "web", 11, 12)
    with pytest.raises(KnobError, match="parties-a/tasks: cannot move thread 11") as error:
        ResctrlTasksKnob(mount, GROUP, [str(group)]).write("all")
    assert error.value.errno == number
    assert members(mount / GROUP) == [12]


def test_a_group_that_is_gone(tmp_path: Path, mount: Path) -> None:
    """ENOENT, of which the upkeep says nothing: the group's own knob does."""
    knob = ResctrlTasksKnob(mount, "parties-gone", [str(control_group(tmp_path / "web", 11))])
    for call in (knob.read, lambda: knob.write("all")):
        with pytest.raises(KnobError) as error:
            call()
        assert error.value.errno == errno.ENOENT
    assert MembershipTask("a", knob).judge(None, error.value).warnings == ()


def test_the_knob_is_found_again_from_its_address(tmp_path: Path, mount: Path) -> None:
    """By the process that does the upkeep; it is slow, so never on the tick."""
    knob = ResctrlTasksKnob(mount, GROUP, [str(control_group(tmp_path / "web", 11)), str(tmp_path / "db")])
    kind = KINDS[knob.ref.kind]
    again = kind.make(knob.ref.address)
    assert (again.ref, again.read(), kind.slow) == (knob.ref, "stray 11", True)


@pytest.fixture
def task(mount: Path) -> MembershipTask:
    """The upkeep of "a"."""
    return MembershipTask("a", ResctrlTasksKnob(mount, GROUP, ["/web"]))


def test_what_an_operator_is_told(task: MembershipTask) -> None:
    """Who stays where, once for each place; nothing where all is well."""
    assert task.judge("all", None).warnings == ()
    words = task.judge("stray 11; vm 12 13", None).warnings
    assert "new threads could not all be given" in words[0]
    assert "in the resctrl group vm of another tool and stay there, with its ways: 12 13" in words[1]
    assert task.judge("vm 12 13 14", None).warnings == ()
    assert "vm2" in task.judge("vm 12; vm2 15", None).warnings[0]
    assert "no permission" in task.judge(None, KnobError(errno.EPERM, "no permission")).warnings[0]

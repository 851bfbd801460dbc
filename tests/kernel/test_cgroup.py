"""The knobs on this machine's own control groups."""

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from actuators.cgroup.group import Controller, Direction
from actuators.cgroup.hierarchy import GroupMissingError, Hierarchies
from actuators.cgroup.libcgroup import GroupBusyError, Libcgroup, LibcgroupError
from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1
from actuators.disk import find_disk
from actuators.registry import KINDS
from parties.knob import Knob, KnobError

pytestmark = pytest.mark.kernel

Factory = Callable[[str], ControlGroupV1]
_COUNTERS = ("max_usage", "failcnt", "tasks", "procs", "cpuacct.usage", "stat", "numa")


def snapshot(group: ControlGroupV1) -> dict[str, str]:
    """Every value of the group that can be set."""
    values = {}
    for controller in Controller:
        for file in sorted(group.directory(controller).iterdir()):
            if file.is_file() and file.stat().st_mode & 0o600 == 0o600 and not any(word in file.name for word in _COUNTERS):
                values[str(file)] = file.read_text()
    return values


def root_disk() -> str:
    """The number of some disk of this machine."""
    for name in sorted(block.name for block in Path("/sys/block").iterdir()):
        if not name.startswith(("loop", "ram", "zram")):
            return find_disk(Path(f"/sys/block/{name}/dev").read_text().strip()).number
    pytest.skip("this machine has no disk")


def knob_of(group: ControlGroupV1, kind: str) -> Knob:
    """The knob of that name."""
    if kind in {"read", "write"}:
        return group.disk_throttle(root_disk(), Direction(kind))
    knob: Knob = getattr(group, kind)
    return knob


WRITES = [
    ("cpus", ["0"]),
    ("mems", ["0"]),
    ("cpu_bandwidth", ["20000 100000", "5000 10000", "30000 50000", "max 10000", "2000 20000"]),
    ("cpu_class", ["shares=17", "idle=1", "idle=1", "shares=4000"]),
    ("memory_limit", ["1000000000", "50000000", "50003968"]),
    ("read", ["1000000", "70000000000"]),
    ("write", ["1000000"]),
    ("freezer", ["FROZEN", "THAWED", "FROZEN"]),
]


@pytest.mark.parametrize(("kind", "values"), WRITES, ids=[kind for kind, _ in WRITES])
def test_every_knob_reads_what_was_written_and_restores_what_was(cgroup_factory: Factory, kind: str, values: list[str]) -> None:
    """From the unset state, and again from a state that somebody had set; every file of the group is compared."""
    group = cgroup_factory("a")
    knob = knob_of(group, kind)
    for start in (None, values[0]):
        if start is not None:
            knob.write(start)
        before, files = knob.read(), snapshot(group)
        for value in values:
            knob.write(value)
            assert knob.same(value, knob.read()), (value, knob.read())
        KINDS[knob.ref.kind].make(knob.ref.address).restore(before)
        assert snapshot(group) == files
        assert knob.read() == before


def test_shares_survive_the_idle_class(cgroup_factory: Factory) -> None:
    """The kernel resets them to 1024 on leaving and refuses them within: the knob brings back 300."""
    group = cgroup_factory("a")
    (group.directory(Controller.CPU) / "cpu.shares").write_text("300")
    files, before = snapshot(group), group.cpu_class.read()
    group.cpu_class.write("idle=1")
    assert snapshot(group) != files
    group.cpu_class.restore(before)
    assert snapshot(group) == files


def test_a_group_that_was_made_anew_is_noticed_and_then_found(cgroup_factory: Factory) -> None:
    """A service manager removes and makes the group on restart; the kept descriptor, which is of the old one, says so once."""
    group = cgroup_factory("a")
    group.memory_limit.write("50003968")
    directory = group.directory(Controller.MEMORY)
    directory.rmdir()
    directory.mkdir()
    with pytest.raises(KnobError, match=r"memory\.limit_in_bytes") as caught:
        group.memory_limit.read()
    assert caught.value.errno == errno.ENODEV
    assert group.memory_limit.read() is None
    directory.rmdir()
    with pytest.raises(KnobError):
        group.memory_limit.write("50003968")
    with pytest.raises(KnobError) as caught:
        group.memory_limit.read()
    assert caught.value.errno == errno.ENOENT
    directory.mkdir()
    group.memory_limit.write("40001536")
    assert (directory / "memory.limit_in_bytes").read_text() == "40001536\n"


@pytest.mark.parametrize(
    ("kind", "value", "number", "message"),
    [
        ("cpu_bandwidth", "999 10000", errno.EINVAL, "cpu.cfs_quota_us: cannot set '999 10000': Invalid argument .*under 1000 us"),
        ("cpu_bandwidth", "2000 2000000", errno.EINVAL, "cannot set '2000 2000000'.*periods from"),
        ("cpu_bandwidth", "60000 100000", errno.EINVAL, "does a group above .* have less"),
        ("cpus", "999", errno.ERANGE, "cpuset.cpus: cannot set '999': .*does not have"),
        ("cpu_class", "shares=-1", errno.EINVAL, "cpu.shares: cannot set '-1'"),
        ("memory_limit", "much", errno.EINVAL, "memory.limit_in_bytes: cannot set 'much'"),
        ("freezer", "MOLTEN", errno.EINVAL, "freezer.state: cannot set 'MOLTEN'"),
    ],
)
def test_a_refusal_names_file_value_and_cause_and_changes_nothing(
    cgroup_factory: Factory, kind: str, value: str, number: int, message: str
) -> None:
    """The parent has half a core; each refused value leaves the group as it was, two-file knobs included."""
    cgroup_factory("a").cpu_bandwidth.write("50000 100000")
    group = cgroup_factory("a/b")
    group.cpu_bandwidth.write("20000 50000")
    group.cpu_class.write("idle=1")
    files = snapshot(group)
    with pytest.raises(KnobError, match=message) as caught:
        knob_of(group, kind).write(value)
    assert caught.value.errno == number
    assert snapshot(group) == files


def test_a_group_below_a_frozen_one_cannot_be_thawed(cgroup_factory: Factory) -> None:
    """The kernel takes the write and nothing happens: that is an error here."""
    above, group = cgroup_factory("a"), cgroup_factory("a/b")
    above.freezer.write("FROZEN")
    assert group.freezer.read() == "FROZEN"
    with pytest.raises(KnobError, match=r"a/b/freezer\.state: cannot set 'THAWED': .* \(a group above it is frozen\)") as caught:
        group.freezer.write("THAWED")
    assert caught.value.errno == errno.EBUSY
    above.freezer.write("THAWED")
    assert group.freezer.read() == "THAWED"


def test_a_device_that_is_not_there_is_refused(cgroup_factory: Factory) -> None:
    """ENODEV, with the question that mostly answers it."""
    with pytest.raises(KnobError, match=r"cannot set '9:99 1000': No such device \(is 9:99 a whole disk") as caught:
        cgroup_factory("a").disk_throttle("9:99", Direction.READ).write("1000")
    assert caught.value.errno == errno.ENODEV


def test_processes_are_seen_as_they_come_and_go(cgroup_factory: Factory, spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Asked many times a second: the kernel caches the list of an open file for as long as somebody reads it that often."""
    group = cgroup_factory("a")
    assert group.pids() == ()
    process = spawn(group, "sleep", "600")
    until(lambda: group.pids() == (process.pid,))
    process.kill()
    process.wait()
    until(lambda: group.pids() == ())


def test_a_cpu_set_under_processes_cannot_be_emptied(
    cgroup_factory: Factory, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Restoring the empty set that a process has joined since is refused and named, not forced."""
    group = cgroup_factory("a")
    spawn(group, "sleep", "600")
    until(lambda: group.pids() != ())
    with pytest.raises(KnobError, match="has processes and may not be left without") as caught:
        group.cpus.restore(None)
    assert caught.value.errno == errno.ENOSPC


@pytest.fixture
def libcgroup(layer: GroupLayerV1) -> Libcgroup:
    """libcgroup, where it is installed."""
    try:
        return Libcgroup(layer.hierarchies)
    except LibcgroupError as error:
        pytest.skip(str(error))


def test_libcgroup_makes_groups_that_take_processes(
    cgroup_factory: Factory, libcgroup: Libcgroup, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """A nested group in several hierarchies, CPUs inherited, a process moved in; a busy group is not removed, a free one is."""
    controllers = ["cpu", "cpuset", "memory"]
    base = cgroup_factory("base")
    path = f"{base.path}/deep/er"
    libcgroup.create(controllers, path)
    libcgroup.create(controllers, path)
    process = spawn(base, "sleep", "600")
    until(lambda: base.pids() == (process.pid,))
    libcgroup.move(controllers, path, process.pid)
    assert [libcgroup.pids(controller, path) for controller in controllers] == [(process.pid,)] * 3
    assert base.pids() == (process.pid,)  # below it
    with pytest.raises(GroupBusyError, match=f"deep/er still has processes {process.pid}"):
        libcgroup.remove(controllers, path)
    with pytest.raises(GroupBusyError, match="deep still has groups below it: er"):
        libcgroup.remove(controllers, f"{base.path}/deep")
    assert libcgroup.pids("memory", path) == (process.pid,)
    libcgroup.move(controllers, base.path, process.pid)
    libcgroup.remove(controllers, path)
    libcgroup.remove(controllers, path)
    assert not any(libcgroup.exists(controller, path) for controller in controllers)


def test_libcgroup_says_what_is_wrong(cgroup_factory: Factory, libcgroup: Libcgroup) -> None:
    """A missing group, a missing process and a path that is too long are operator's mistakes with one message each."""
    group = cgroup_factory("a")
    with pytest.raises(GroupMissingError, match=r"/nowhere does not exist"):
        libcgroup.move(["cpu"], "/nowhere", os.getpid())
    with pytest.raises(LibcgroupError, match=r"cannot move process 4194305 to .*: No such process"):
        libcgroup.move(["cpu"], group.path, 4194305)
    with pytest.raises(LibcgroupError, match=r"File name too long"):
        libcgroup.create(["cpu"], group.path + "/a" * 3000)


def test_the_layer_finds_this_machine() -> None:
    """The mount points found are those of the kernel: each has a root group of its controller."""
    for controller, path in Hierarchies.find().v1.items():
        assert (path / "cgroup.procs").exists(), controller

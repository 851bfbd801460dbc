"""The control-group layer on fixture trees."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cgroup import v1_knobs
from actuators.cgroup.files import FileKnob, KeptFile, Seen, figure, line_after
from actuators.cgroup.group import Controller, CpuBandwidth, Direction
from actuators.cgroup.hierarchy import ControllerMissingError, GroupMissingError, Hierarchies, SetupError
from actuators.cgroup.processes import ProcessList
from actuators.cgroup.v1 import GroupLayerV1
from actuators.cgroup.v1_knobs import (
    PAGE_BYTES,
    UNLIMITED_BYTES,
    CpuBandwidthKnob,
    CpuClassKnob,
    DiskThrottleKnob,
    FreezerKnob,
    ListKnob,
    MemoryLimitKnob,
)
from actuators.holders import HolderGroups, check_disjoint, split
from parties.knob import KnobError
from parties.model import BEST_EFFORT, IDLE
from parties.units import format_cpu_list

HYBRID = r"""23 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /mnt/with\040blank rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""


def tree(root: Path, mountinfo: str) -> Path:
    """A root with a mountinfo."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    return root


def test_finds_joined_controllers_named_hierarchies_and_v2(tmp_path: Path) -> None:
    """Two controllers in one mount both get it, a named hierarchy is no controller, blanks are unescaped, v2 is told apart."""
    found = Hierarchies.find(tree(tmp_path, HYBRID))
    joined = tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    assert found.v1 == {"cpu": joined, "cpuacct": joined, "memory": tmp_path / "mnt/with blank"}
    assert found.v2 == tmp_path / "sys/fs/cgroup/unified"


def test_a_missing_controller_is_named_with_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    """The message names the controller, what is there instead, and a command."""
    found = Hierarchies.find(tree(tmp_path, HYBRID))
    with pytest.raises(ControllerMissingError, match=r"no control-group v1 hierarchy for cpuset .*cpu, cpuacct, memory.*mount -t"):
        found.mount_point("cpuset")
    assert GroupLayerV1(found).lacks([Controller.CPU, Controller.MEMORY]) == ""
    assert "freezer, blkio" in GroupLayerV1(found).lacks([Controller.CPU, Controller.FREEZER, Controller.DISK])


def test_an_override_wins_and_must_be_a_directory(tmp_path: Path) -> None:
    """A mount point from the configuration replaces the one found; a wrong one is an operator's mistake."""
    root = tree(tmp_path, HYBRID)
    assert Hierarchies.find(root, {"cpu": str(tmp_path)}).v1["cpu"] == tmp_path
    with pytest.raises(SetupError, match=r"controllers\.cpu: .*/nowhere is not a directory"):
        Hierarchies.find(root, {"cpu": str(tmp_path / "nowhere")})


def test_an_unreadable_mountinfo_is_one_message(tmp_path: Path) -> None:
    """No /proc ends in a sentence, not in a traceback of OSError."""
    with pytest.raises(SetupError, match=r"mountinfo: cannot read the mounts: No such file"):
        Hierarchies.find(tmp_path)


def test_a_kept_file_reads_what_is_there_now(tmp_path: Path) -> None:
    """The descriptor is kept, the text is not."""
    path = tmp_path / "value"
    path.write_text("1\n")
    file = KeptFile(path)
    assert file.read() == "1\n"
    path.write_text("22\n")
    assert file.read() == "22\n"
    file.write("3")
    assert path.read_text() == "3\n"


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 4096, 65536, 200_000])
def test_a_kept_file_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    """However many pieces that takes; a short one is not asked for more."""
    path = tmp_path / "value"
    path.write_text("7" * size)
    assert KeptFile(path).read() == "7" * size


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_a_kept_file_says_just_what_it_says(tmp_path_factory: pytest.TempPathFactory, there: bytes, asked: bytes) -> None:
    """A text that only begins so, or is longer, is another one."""
    path = tmp_path_factory.getbasetemp() / "says"
    path.write_bytes(there)
    file = KeptFile(path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.says(asked)  # nobody has read it yet
    file.raw()
    assert file.says(asked) is (there == asked)


TEXTS = st.sampled_from(["0", "1", "-1", "5", "50000", "max", "8:0 5", "8:0 5\n8:1 6", "", "0-3", "FROZEN", "THAWED", "\xff"])
OF_FILES: list[tuple[Callable[[Path], FileKnob], tuple[str, ...]]] = [
    (lambda place: ListKnob(place / "cpuset.cpus"), ("cpuset.cpus",)),
    (CpuBandwidthKnob, ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    (CpuClassKnob, ("cpu.idle", "cpu.shares")),
    (MemoryLimitKnob, ("memory.limit_in_bytes",)),
    (lambda place: DiskThrottleKnob(place / "bps", "8:0"), ("bps",)),
    (FreezerKnob, ("freezer.state",)),
]


def read(knob: FileKnob) -> object:
    """The value, or the error's words."""
    try:
        return knob.read()
    except (KnobError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize(("make", "names"), OF_FILES)
@given(st.data())
def test_a_knob_that_remembers_reads_what_a_new_one_reads(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], FileKnob], names: tuple[str, ...], data: st.DataObject
) -> None:
    """Whatever its files say one after the other, nonsense included; and it knows which bytes that value came from."""
    place = tmp_path_factory.mktemp("group")
    knob = make(place)
    for _ in range(4):
        for name in names:
            (place / name).write_text(data.draw(TEXTS) + "\n", encoding="latin-1")
        found = read(knob)
        assert found == read(make(place))
        if not isinstance(found, str) or "invalid" not in found:
            assert all(file.says(text) for file, text in knob.said())


def test_what_is_not_there_cannot_be_asked(tmp_path: Path) -> None:
    """Without cpu.idle (before 5.15), and of a text that may have more to it, the bytes are not all that there is to know."""
    (tmp_path / "cpu.shares").write_text("1024\n")
    (tmp_path / "bps").write_text("8:0 5\n" + "7:0 1\n" * 400)
    shares, throttle = CpuClassKnob(tmp_path), DiskThrottleKnob(tmp_path / "bps", "8:0")
    assert (shares.read(), throttle.read()) == ("shares=1024", "5")
    assert shares.said() == throttle.said() == ()
    (tmp_path / "cpu.idle").write_text("0\n")
    assert shares.read() == "shares=1024"
    assert [text for _file, text in shares.said()] == [b"0\n", b"1024\n"]


def test_a_kept_file_says_once_that_its_group_is_gone_and_then_opens_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENODEV from the old descriptor reaches the caller; the next use is of the new file under the path, or says ENOENT."""
    path = tmp_path / "value"
    path.write_text("old\n")
    file = KeptFile(path)
    file.read()
    path.write_text("new\n")
    gone = OSError(errno.ENODEV, "No such device")
    with monkeypatch.context() as patch:
        patch.setattr("os.pread", Mock(side_effect=gone))
        with pytest.raises(KnobError, match="No such device") as caught:
            file.read()
    assert caught.value.errno == errno.ENODEV
    assert file.read() == "new\n"
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", Mock(side_effect=gone))
        with pytest.raises(KnobError, match="No such device"):
            file.write("lost")
    path.unlink()
    with pytest.raises(KnobError) as caught:
        file.read()
    assert caught.value.errno == errno.ENOENT
    assert str(path) in str(caught.value)


@given(st.sets(st.integers(0, 200)))
def test_lists_compare_as_sets(cpus: set[int]) -> None:
    """Any spelling of the same CPUs is the same; one CPU more is not."""
    knob = ListKnob(Path("/nonexistent"))
    spelled = ",".join(str(cpu) for cpu in sorted(cpus, reverse=True))
    assert knob.same(spelled, format_cpu_list(cpus) or None)
    assert not knob.same(spelled, format_cpu_list(cpus | {201}))


def test_empty_lists_are_unset_and_come_back_empty(tmp_path: Path) -> None:
    """A new cpuset has no CPUs; restoring None empties it again."""
    path = tmp_path / "cpuset.cpus"
    path.write_text("\n")
    knob = ListKnob(path)
    assert knob.read() is None
    knob.write("0-1")
    knob.restore(None)
    assert path.read_text() == "\n"


@given(
    st.one_of(st.none(), st.integers(1000, 10**6)),
    st.integers(1000, 10**6),
    st.one_of(st.none(), st.integers(1000, 10**6)),
    st.integers(1000, 10**6),
)
def test_between_quota_and_period_the_share_is_never_over_both(
    old_quota: int | None, old_period: int, new_quota: int | None, new_period: int
) -> None:
    """Where both change, the value in between gives no more than the larger of before and after (take before give)."""
    in_force = [CpuBandwidth(old_quota, old_period)]
    knob = CpuBandwidthKnob(Path("/nonexistent"))
    knob.look = lambda: files_of(in_force[-1])  # type: ignore[method-assign]
    knob._set_quota = lambda value: in_force.append(CpuBandwidth(value.quota_us, in_force[-1].period_us))  # type: ignore[method-assign]
    knob._set_period = lambda value: in_force.append(CpuBandwidth(in_force[-1].quota_us, value.period_us))  # type: ignore[method-assign]
    knob.write(str(CpuBandwidth(new_quota, new_period)))
    assert in_force[-1] == CpuBandwidth(new_quota, new_period)
    most = max(share(in_force[0]), share(in_force[-1]))
    assert all(share(value) <= most for value in in_force)


def files_of(bandwidth: CpuBandwidth) -> Seen:
    """What the kernel's two files say."""
    file = KeptFile(Path("/nonexistent"))
    quota_us = -1 if bandwidth.quota_us is None else bandwidth.quota_us
    return (file, f"{quota_us}\n".encode()), (file, f"{bandwidth.period_us}\n".encode())


def share(bandwidth: CpuBandwidth) -> float:
    """The fraction of a core."""
    return float("inf") if bandwidth.quota_us is None else bandwidth.quota_us / bandwidth.period_us


def test_a_refused_second_write_takes_the_first_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a bandwidth is never left behind, and the message gives the cause."""
    (tmp_path / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    knob = CpuBandwidthKnob(tmp_path)

    def refuse(value: CpuBandwidth) -> None:
        raise KnobError(errno.EINVAL, f"Invalid argument: {value}")

    monkeypatch.setattr(knob, "_set_period", refuse)
    with pytest.raises(KnobError, match=r"cannot set '2000 10000': Invalid argument \(does a group above") as caught:
        knob.write("2000 10000")
    assert caught.value.errno == errno.EINVAL
    assert knob.read() == "50000 100000"


@pytest.mark.parametrize(("value", "cause"), [("999 10000", "no quota under 1000 us"), ("2000 500", "periods from 1000 us")])
def test_the_cause_of_a_refused_bandwidth_is_named(tmp_path: Path, value: str, cause: str) -> None:
    """EINVAL alone tells an operator nothing."""
    assert cause in CpuBandwidthKnob(tmp_path)._cause(CpuBandwidth.parse(value))


def test_leaving_the_idle_class_brings_the_shares_back(tmp_path: Path) -> None:
    """The shares from before, not the kernel's default."""
    (tmp_path / "cpu.shares").write_text("300\n")
    (tmp_path / "cpu.idle").write_text("0\n")
    knob = CpuClassKnob(tmp_path)
    before = knob.read()
    assert before == "shares=300"
    knob.write("idle=1")
    assert knob.read() == "idle=1"
    (tmp_path / "cpu.shares").write_text("1024\n")  # what the kernel does on leaving
    knob.restore(before)
    assert knob.read() == "shares=300"


def test_without_an_idle_class_the_least_shares_stand_for_it(tmp_path: Path) -> None:
    """Kernels before 5.15 have no cpu.idle; other shares are not taken for it, nor the least shares where there is a class."""
    (tmp_path / "cpu.shares").write_text("300\n")
    knob = CpuClassKnob(tmp_path)
    before = knob.read()
    knob.write("idle=1")
    assert (tmp_path / "cpu.shares").read_text() == "2\n"
    assert knob.same("idle=1", knob.read())
    assert not knob.same("idle=1", before)
    knob.restore(before)
    assert knob.read() == "shares=300"
    (tmp_path / "cpu.idle").write_text("0\n")
    assert not CpuClassKnob(tmp_path).same("idle=1", "shares=2")


def test_memory_limits_compare_as_pages_and_none_is_unlimited(tmp_path: Path) -> None:
    """The kernel rounds down to pages; its huge default is no limit."""
    file = tmp_path / "memory.limit_in_bytes"
    file.write_text(f"{UNLIMITED_BYTES}\n")
    knob = MemoryLimitKnob(tmp_path)
    assert knob.read() is None
    knob.restore(None)
    assert file.read_text() == "-1\n"
    assert knob.same("1000000000", str(1_000_000_000 // PAGE_BYTES * PAGE_BYTES))
    assert not knob.same("1000000000", str(1_000_000_000 // PAGE_BYTES * PAGE_BYTES - PAGE_BYTES))
    assert not knob.same("1000000000", None)


def test_a_throttle_is_one_device_among_others(tmp_path: Path) -> None:
    """The line of another device is not read; an absent line is unset, and 8:1 is not 8:16."""
    path = tmp_path / "blkio.throttle.read_bps_device"
    path.write_text("8:16 1000\n254:0 2000\n")
    assert DiskThrottleKnob(path, "254:0").read() == "2000"
    assert DiskThrottleKnob(path, "8:1").read() is None
    assert DiskThrottleKnob(path, "8:16").same("1000", "1000")
    assert DiskThrottleKnob(path, "8:16").same("0", None)
    DiskThrottleKnob(path, "8:16").restore(None)
    assert path.read_text() == "8:16 0\n"


def test_a_group_on_its_way_to_frozen_is_frozen(tmp_path: Path) -> None:
    """It runs no more code of its own; restoring that state is not THAWED."""
    file = tmp_path / "freezer.state"
    file.write_text("FREEZING\n")
    knob = FreezerKnob(tmp_path)
    assert knob.same("FROZEN", knob.read())
    knob.restore(knob.read())
    assert file.read_text() == "FROZEN\n"


def test_every_kind_finds_its_knob_again(layer: GroupLayerV1, make_group: Callable[[str], None]) -> None:
    """A knob made from the reference of another reads the same; this is what restore after a crash leans on."""
    make_group("/a")
    group = layer.group("/a")
    throttle = group.disk_throttle("254:0", Direction.READ)
    throttle.write("5000")
    knobs = [group.cpus, group.mems, group.cpu_bandwidth, group.cpu_class, group.memory_limit, throttle, group.freezer]
    assert {knob.ref.kind for knob in knobs} == set(v1_knobs.KINDS)
    for knob in knobs:
        twin = v1_knobs.KINDS[knob.ref.kind].make(knob.ref.address)
        assert twin.ref == knob.ref
        assert twin.read() == knob.read()


def test_a_vanished_group_gives_its_errno_and_path(layer: GroupLayerV1, make_group: Callable[[str], None]) -> None:
    """Reading and writing what is gone is a KnobError with ENOENT, which the caller takes for absent."""
    make_group("/a")
    shutil.rmtree(layer.hierarchies.v1["memory"] / "a")
    knob = layer.group("/a").memory_limit
    with pytest.raises(KnobError, match=r"memory/a/memory.limit_in_bytes: cannot read") as unread:
        knob.read()
    with pytest.raises(KnobError, match=r"memory/a/memory.limit_in_bytes: cannot set '4096'") as unwritten:
        knob.write("4096")
    assert unread.value.errno == unwritten.value.errno == errno.ENOENT


def test_processes_below_a_group_are_its_own(layer: GroupLayerV1, make_group: Callable[[str], None]) -> None:
    """A container puts its processes one level deeper; the service is not absent for that."""
    make_group("/a")
    assert layer.group("/a").pids() == ()
    make_group("/a/inner")
    (layer.hierarchies.v1["cpu"] / "a/inner/cgroup.procs").write_text("11\n7\n")
    assert layer.group("/a").pids() == (7, 11)
    assert layer.group("/gone").pids() == ()


def test_a_list_of_processes_is_new_only_where_it_differs(tmp_path: Path) -> None:
    """In order, with those below, and the same object while nothing changed; a long one is read to its end."""
    listed = ProcessList(str(tmp_path))
    assert listed.read() is None
    (tmp_path / "cgroup.procs").write_text("11\n7\n")
    first = listed.read()
    assert first == (7, 11)
    assert listed.read() is first
    (tmp_path / "cgroup.procs").write_text("11\n8\n")
    assert listed.read() == (8, 11)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/cgroup.procs").write_text("9\n")
    assert listed.read() == (8, 9, 11)
    many = range(1_000_000, 1_030_000)
    (tmp_path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in many))
    assert listed.read() == (9, *many)
    (tmp_path / "cgroup.procs").unlink()
    assert listed.read() is None


def test_a_list_of_processes_is_of_the_group_under_the_path(tmp_path: Path) -> None:
    """One that was removed and made anew is found at once, though the directory was kept open."""
    group = tmp_path / "group"
    listed = ProcessList(str(group))
    for pid in (7, 8, 9):
        assert listed.read() is None
        group.mkdir()
        (group / "cgroup.procs").write_text(f"{pid}\n")
        assert listed.read() == (pid,)
        shutil.rmtree(group)
        if pid == 8:
            group.mkdir()
            (group / "cgroup.procs").write_text("10\n")
            assert listed.read() == (10,)
            shutil.rmtree(group)
    assert listed.read() is None
    group.write_text("not a directory")
    with pytest.raises(KnobError, match="group: cannot open: Not a directory"):
        listed.read()


def test_a_closed_group_keeps_nothing_open(layer: GroupLayerV1, make_group: Callable[[str], None]) -> None:
    """Neither files nor directories; what is asked after that opens them again."""
    make_group("/a")
    group = layer.group("/a")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        assert group.pids() == ()
        assert group.memory_limit.read() is None
        assert len(list(Path("/proc/self/fd").iterdir())) > before
        group.close()
        assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("text", "begin", "rest"),
    [
        (b"a 1\nab 2\nb 3\n", b"a ", b"1"),
        (b"a 1\nab 2\nb 3\n", b"b ", b"3"),
        (b"total_a 1\na 2", b"a ", b"2"),
        (b"total_a 1\n", b"a ", None),
        (b"", b"a ", None),
    ],
)
def test_a_line_is_found_by_how_it_begins(text: bytes, begin: bytes, rest: bytes | None) -> None:
    """At its beginning and not within another, with or without an end."""
    assert line_after(text, begin) == rest
    assert figure(text, begin.strip()) == int(rest or 0)


def test_missing_groups_are_named_all_at_once(layer: GroupLayerV1, make_group: Callable[[str], None]) -> None:
    """Two missing groups, one message, with holder and directory."""
    make_group("/a")
    with pytest.raises(GroupMissingError, match=r"web: .*/cg/cpu/x; web: .*/cg/memory/x; db: .*/cg/cpu/y"):
        HolderGroups(layer, {"a": ("/a",), "web": ("/x",), "db": ("/y",)}, [Controller.CPU, Controller.MEMORY])


@pytest.mark.parametrize(
    ("managed", "message"),
    [
        ({"a": ("/x",), "b": ("x/",)}, r"/x: given to a and to b"),
        ({"a": ("/x",), "b": ("/x/y",)}, r"/x of a and /x/y of b: one lies below the other"),
        ({"a": ("/x/y", "/x")}, r"one lies below the other"),
        ({"a": ("/",)}, r"the root group cannot be managed"),
        ({"a": ()}, r"a: no control group"),
        ({IDLE: ("/x",)}, r"idle owns no control group"),
    ],
)
def test_groups_that_cannot_be_told_apart_are_refused(managed: dict[str, tuple[str, ...]], message: str) -> None:
    """One group, one holder; siblings whose names begin alike are well."""
    check_disjoint({"a": ("/x",), "b": ("/xy",), BEST_EFFORT: ()})
    with pytest.raises(SetupError, match=message):
        check_disjoint(managed)


@given(st.integers(0, 10**12), st.integers(1, 20))
def test_a_split_adds_up_and_is_even(amount: int, parts: int) -> None:
    """Nothing is lost between several groups of one holder, and no two parts differ by more than a unit."""
    shares = split(amount, parts)
    assert sum(shares) == amount
    assert max(shares) - min(shares) <= 1

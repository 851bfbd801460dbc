"""The knobs of control groups v2 on a tree with a kernel's behaviour."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_cgroup2 import Cgroup2, remove
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.cgroup import v2_knobs
from actuators.cgroup.group import ENABLED, Controller, CpuBandwidth, Direction
from actuators.cgroup.v2 import ControlGroupV2, GroupLayerV2
from actuators.cgroup.v2_knobs import ListKnob
from parties.knob import Knob, KnobError
from parties.model import Resource
from parties.units import format_cpu_list

ALL = ("cpu", "cpuset", "memory", "io")
ERRNOS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)


def group_of(v2: Cgroup2, path: str = "/rack/web") -> ControlGroupV2:
    """The group of that path."""
    return GroupLayerV2(v2.hierarchies, v2.root).group(path)


def knobs_of(group: ControlGroupV2) -> dict[str, Knob]:
    """Every knob of a group by name."""
    return {
        "cpus": group.cpus,
        "mems": group.mems,
        "bandwidth": group.cpu_bandwidth,
        "class": group.cpu_class,
        "memory": group.memory_limit,
        "read": group.disk_throttle("8:0", Direction.READ),
        "write": group.disk_throttle("8:0", Direction.WRITE),
        "freezer": group.freezer,
    }


VALUES = {
    "cpus": ["0-1", "3"],
    "bandwidth": ["20000 100000", "5000 10000", "max 10000", "max 100000"],
    "class": ["weight=17", "idle=1", "idle=1", "weight=4000", "weight=100"],
    "memory": ["1000000000", "50000000", "high=20000000 max=50000000", "high=20000000 max=max"],
    "read": ["1000000", "70000000000"],
    "write": ["1000000"],
    "freezer": ["FROZEN", "THAWED", "FROZEN"],
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("start", [None, 0])
def test_every_knob_reads_what_was_written_and_restores_what_was(v2: Cgroup2, name: str, start: int | None) -> None:
    """From the kernel's defaults, and again from a state that somebody had set; every file of the tree is compared."""
    v2.make("/rack/web", *ALL)
    group = group_of(v2)
    knob = knobs_of(group)[name]
    if start is not None:
        knob.write(VALUES[name][start])
    before, files = knob.read(), v2.snapshot()
    for value in VALUES[name]:
        knob.write(value)
        assert knob.same(value, knob.read()), (value, knob.read())
        if start is not None:
            v2_knobs.KINDS[knob.ref.kind].make(knob.ref.address).restore(before)
            assert v2.snapshot() == files
    v2_knobs.KINDS[knob.ref.kind].make(knob.ref.address).restore(before)
    assert v2.snapshot() == files
    assert knob.read() == before


def test_every_kind_finds_its_knob_again(v2: Cgroup2) -> None:
    """A knob made from the reference of another reads the same; this is what restore after a crash leans on."""
    v2.make("/rack/web", *ALL)
    group = group_of(v2)
    enabling = group.enabling(Controller)
    knobs = [*knobs_of(group).values(), *enabling]
    assert {knob.ref.kind for knob in knobs} == set(v2_knobs.KINDS)
    knobs_of(group)["read"].write("5000")
    for knob in knobs:
        twin = v2_knobs.KINDS[knob.ref.kind].make(knob.ref.address)
        assert twin.ref == knob.ref
        assert twin.read() == knob.read()


def test_what_is_not_enabled_reads_as_unset_and_says_how_to_enable_it(v2: Cgroup2) -> None:
    """The group is there, so it is not "vanished"; the refusal names the file and the command."""
    place = v2.make("/rack/web")
    group = group_of(v2)
    for name, knob in knobs_of(group).items():
        assert knob.read() == {"freezer": "THAWED", "cpus": "inherited", "mems": "inherited"}.get(name), name
    for name, value in (("cpus", "0"), ("bandwidth", "5000 10000"), ("class", "idle=1"), ("memory", "4096"), ("read", "5000")):
        with pytest.raises(KnobError, match=r"not enabled in this group.*echo \+\w+ > .*/rack/cgroup.subtree_control") as caught:
            knobs_of(group)[name].write(value)
        assert caught.value.errno == errno.EOPNOTSUPP
    remove(place)
    for name, knob in knobs_of(group).items():
        with pytest.raises(KnobError) as caught:
            knob.read()
        assert caught.value.errno in (errno.ENOENT, errno.ENODEV), name


def test_cpus_that_are_taken_but_not_in_force_are_refused_and_taken_back(v2: Cgroup2) -> None:
    """The kernel accepts CPUs that the group above does not have; the read-back would then lie."""
    place = v2.make("/rack/web", *ALL)
    group_of(v2, "/rack").cpus.write("0-1")
    cpus = group_of(v2).cpus
    cpus.write("1")
    with pytest.raises(
        KnobError, match=r"cpuset.cpus: cannot set '1-2': .*in force are only 1: the group above has no more"
    ) as caught:
        cpus.write("1-2")
    assert caught.value.errno == errno.EBUSY
    assert v2.text(place, "cpuset.cpus") == "1"


def test_cpus_that_were_not_in_force_before_come_back_as_they_were(v2: Cgroup2) -> None:
    """What somebody had asked for in vain is theirs to keep; that it shrinks under us is seen."""
    place = v2.make("/rack/web", *ALL)
    cpus, above = group_of(v2).cpus, group_of(v2, "/rack").cpus
    cpus.write("0-2")
    above.write("0-1")
    before = cpus.read()
    assert before == "0-2 in force: 0-1"
    assert not cpus.same("0-2", before)
    assert not cpus.same("0-1", before)
    assert cpus.same(before, before)
    above.write("0-3")
    cpus.write("3")
    cpus.restore(before)
    assert v2.text(place, "cpuset.cpus") == "0-2"
    assert cpus.same(before, cpus.read())


def test_an_unset_list_under_processes_comes_back_as_all_that_the_group_above_has(v2: Cgroup2) -> None:
    """The kernel refuses to empty it; for the processes the two are the same, and a narrower list is not."""
    place = v2.make("/rack/web", *ALL, pids="7")
    group_of(v2, "/rack").cpus.write("0-2")
    cpus = group_of(v2).cpus
    before = cpus.read()
    assert before == "inherited"
    cpus.write("1")
    assert not cpus.same(before, cpus.read())
    cpus.restore(before)
    assert v2.text(place, "cpuset.cpus") == "0-2"
    assert cpus.same(before, cpus.read())
    cpus.write("1")
    cpus.write("inherited")  # as a roll-back does
    assert cpus.same(before, cpus.read())
    assert not cpus.same("0-2", "inherited")
    v2.put(place, "cgroup.procs", "")
    v2.put(place, "cgroup.events", "populated 0\nfrozen 0")
    assert not cpus.same(before, cpus.read())
    cpus.restore(None)
    assert v2.text(place, "cpuset.cpus") == ""


def test_a_limit_of_the_group_above_that_comes_later_is_drift(v2: Cgroup2) -> None:
    """Nobody wrote the group, and yet its processes have lost a CPU."""
    v2.make("/rack/web", *ALL)
    cpus = group_of(v2).cpus
    cpus.write("0-1")
    group_of(v2, "/rack").cpus.write("0")
    assert not cpus.same("0-1", cpus.read())
    assert group_of(v2).cpus_in_force() == "0"


def test_the_cpus_in_force_of_an_unset_group_are_those_above_it(v2: Cgroup2) -> None:
    """An empty list is no list of no CPUs, with the controller or without."""
    v2.make("/rack/web", *ALL)
    assert group_of(v2).cpus_in_force() == "0-3"
    v2.make("/bare/deep")
    assert group_of(v2, "/bare/deep").cpus_in_force() == "0-3"


@given(st.sets(st.integers(0, 60), min_size=1), st.sets(st.integers(0, 60), min_size=1))
def test_lists_compare_as_sets_and_by_what_is_in_force(asked: set[int], effective: set[int]) -> None:
    """Any spelling of the same CPUs is the same; less in force than asked for never is."""
    knob = ListKnob(Path("/nonexistent/cpuset.cpus"))
    spelled = ",".join(str(cpu) for cpu in sorted(asked, reverse=True))
    found = format_cpu_list(asked) if asked == effective else f"{format_cpu_list(asked)} in force: {format_cpu_list(effective)}"
    assert knob.same(spelled, found) == (asked == effective)
    assert knob.same(found, format_cpu_list(asked)) or asked != effective
    assert knob.same(found, found)
    assert not knob.same(spelled, "inherited")
    assert knob.same("inherited", "inherited")
    assert not knob.same("inherited", found)


@given(st.one_of(st.none(), st.integers(1000, 10**6)), st.integers(1000, 10**6))
def test_bandwidth_compares_as_quota_and_period(quota: int | None, period: int) -> None:
    """The default is the same as none, and nothing else is."""
    knob = v2_knobs.CpuBandwidthKnob(Path("/nonexistent"))
    value = CpuBandwidth(quota, period)
    assert knob.same(str(value), None) == (value == CpuBandwidth(None))
    assert knob.same(str(value), str(value))


def test_weight_survives_the_idle_class(v2: Cgroup2) -> None:
    """The kernel resets it to 100 on leaving and refuses it within: the knob brings back 300, and the class if that fails."""
    place = v2.make("/rack/web", *ALL)
    knob = group_of(v2).cpu_class
    knob.write("weight=300")
    before = knob.read()
    knob.write("idle=1")
    assert (knob.read(), v2.text(place, "cpu.idle")) == ("idle=1", "1")
    with pytest.raises(KnobError, match=r"cpu.weight: cannot set '20000': .* \(the kernel takes weights from 1 to 10000\)"):
        knob.write("weight=20000")
    assert knob.read() == "idle=1"
    knob.restore(before)
    assert (knob.read(), v2.text(place, "cpu.weight")) == ("weight=300", "300")


def test_without_an_idle_class_the_least_weight_stands_for_it(v2: Cgroup2) -> None:
    """Kernels before 5.15 have no cpu.idle; where there is one, the least weight is not taken for it."""
    place = v2.make("/rack/web", *ALL)
    (place / "cpu.idle").unlink()
    knob = group_of(v2).cpu_class
    knob.write("idle=1")
    assert v2.text(place, "cpu.weight") == "1"
    assert knob.same("idle=1", knob.read())
    knob.restore(None)
    assert v2.text(place, "cpu.weight") == "100"
    v2.put(place, "cpu.idle", "0")
    assert not group_of(v2).cpu_class.same("idle=1", "weight=1")


def test_a_throttle_is_one_key_of_one_device(v2: Cgroup2) -> None:
    """Other keys of the line and other devices' lines stay; 8:1 is not 8:16; without our key there is no line left of ours."""
    place = v2.make("/rack/web", *ALL)
    v2.put(place, "io.max", "8:16 rbps=7000 wbps=max riops=max wiops=max\n8:0 rbps=max wbps=max riops=90 wiops=max")
    before = v2.text(place, "io.max")
    group = group_of(v2)
    knob = group.disk_throttle("8:0", Direction.READ)
    assert (knob.read(), group.disk_throttle("8:1", Direction.READ).read()) == (None, None)
    assert group.disk_throttle("8:16", Direction.READ).read() == "7000"
    knob.write("5000")
    assert "8:0 rbps=5000 wbps=max riops=90 wiops=max" in v2.text(place, "io.max")
    assert group.disk_throttle("8:0", Direction.WRITE).read() is None
    knob.restore(None)
    assert v2.text(place, "io.max") == before
    with pytest.raises(KnobError, match=r"cannot set '9:99 rbps=5000': No such device \(is 9:99 a whole disk"):
        group.disk_throttle("9:99", Direction.READ).write("5000")


def test_a_group_that_was_told_to_freeze_is_frozen(v2: Cgroup2) -> None:
    """Whatever cgroup.events still says: its processes run no more code of their own."""
    place = v2.make("/rack/web")
    knob = group_of(v2).freezer
    knob.write("FROZEN")
    assert v2.text(place, "cgroup.events").endswith("frozen 0")
    assert knob.same("FROZEN", knob.read())


def test_a_group_below_a_frozen_one_cannot_be_thawed(v2: Cgroup2) -> None:
    """The kernel takes the write and nothing happens: that is an error here, and its own state stays."""
    v2.make("/rack/web")
    above, below = group_of(v2, "/rack").freezer, group_of(v2).freezer
    above.write("FROZEN")
    below.write("FROZEN")
    with pytest.raises(KnobError, match=r"cannot set 'THAWED': .* \(.*/rack above it is frozen\)"):
        below.write("THAWED")
    assert below.read() == "FROZEN"
    above.write("THAWED")
    below.write("THAWED")
    assert below.read() == "THAWED"


@pytest.mark.parametrize(
    ("name", "value", "number", "message"),
    [
        ("bandwidth", "999 10000", errno.EINVAL, r"cpu.max: cannot set '999 10000': Invalid argument .*under 1000 us"),
        ("bandwidth", "2000 2000000", errno.EINVAL, "periods from 1000 us"),
        ("bandwidth", "much", errno.EINVAL, "neither QUOTA PERIOD"),
        ("cpus", "999", errno.ERANGE, "cpuset.cpus: cannot set '999': .*does not have"),
        ("read", "0", errno.EINVAL, "at least 1 byte/s"),
    ],
)
def test_a_refusal_names_file_value_and_cause_and_changes_nothing(
    v2: Cgroup2, name: str, value: str, number: int, message: str
) -> None:
    """The kernel's errno alone tells an operator nothing."""
    v2.make("/rack/web", *ALL)
    files = v2.snapshot()
    if value == "much":
        v2.faults[0] = number
    with pytest.raises(KnobError, match=message) as caught:
        knobs_of(group_of(v2))[name].write(value)
    assert caught.value.errno == number
    assert v2.snapshot() == files


STATES: dict[str, Callable[[ControlGroupV2], object]] = {
    "idle": lambda group: group.cpu_class.write("idle=1"),
    "limited": lambda group: group.memory_limit.write("high=40000000 max=80000000"),
    "frozen": lambda group: group.freezer.write("FROZEN"),
    "plain": lambda _: None,
}


@pytest.mark.parametrize("number", ERRNOS, ids=[errno.errorcode[number] for number in ERRNOS])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", VALUES)
def test_every_write_may_fail_and_leaves_all_as_it_was(v2: Cgroup2, name: str, state: str, number: int) -> None:
    """Each write of each knob fails once with each errno: the caller is told, and a first write is taken back after a second."""
    place = v2.make("/rack/web", *ALL)
    v2.use(place, 60_000_000)
    group = group_of(v2)
    STATES[state](group)
    knob = knobs_of(group)[name]
    files = v2.snapshot()
    for value in VALUES[name]:
        failed = 0
        while True:
            v2.log.clear()
            v2.faults = {failed: number}
            try:
                knob.write(value)
            except KnobError as error:
                assert error.errno == number  # noqa: PT017 (either outcome is right, as long as it is the right one)
                assert _states(v2.snapshot()) == _states(files), (value, failed, v2.log)
            else:
                assert failed not in range(len(v2.log)), f"{value}: write {failed} failed and nobody was told"
                break
            v2.use(place, 60_000_000)
            failed += 1
        v2.faults = {}
        knob.restore("THAWED" if name == "freezer" else None)
        _reset(v2, place, files)


def _states(files: dict[str, str]) -> dict[str, str]:
    """What can be set; memory that was reclaimed before a refusal stays reclaimed."""
    return {name: text for name, text in files.items() if not name.endswith(("memory.current", "memory.events"))}


def _reset(v2: Cgroup2, place: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (v2.tree / name).write_text(text)
    v2.use(place, 60_000_000)


def test_the_counters_tell_use(v2: Cgroup2) -> None:
    """CPU time needs no controller; what a controller counts is not known without it; a device without a line is unused."""
    place = v2.make("/rack/web", *ALL, pids="11\n7")
    v2.put(place, "cpu.stat", "usage_usec 1234\nuser_usec 1000\nsystem_usec 234")
    v2.use(place, 50_000)
    v2.put(place, "memory.stat", "anon 1\nfile 2\ninactive_anon 5\ninactive_file 20000\nactive_file 3")
    v2.put(place, "io.stat", "8:16 rbytes=9 wbytes=9 rios=1 wios=1 dbytes=0 dios=0\n8:0 rbytes=1000 wbytes=24 rios=1 wios=1")
    v2.make("/rack/web/inner", pids="12")
    group = group_of(v2)
    assert (group.cpu_usage_ns(), group.memory_bytes(), group.disk_bytes("8:0")) == (1_234_000, 30_000, 1024)
    assert group.disk_bytes("8:1") == 0
    assert group.pids() == (7, 11, 12)
    v2.make("/bare/deep")
    bare = group_of(v2, "/bare/deep")
    assert (bare.cpu_usage_ns(), bare.memory_bytes(), bare.disk_bytes("8:0"), bare.pids()) == (0, None, None, ())
    gone = group_of(v2, "/gone")
    assert gone.pids() == ()
    with pytest.raises(KnobError):
        gone.memory_bytes()


def test_a_threaded_group_below_hides_no_process(v2: Cgroup2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cgroup.procs cannot be read (EOPNOTSUPP); its processes are those of the group above it."""
    v2.make("/rack/web", pids="7")
    threaded = v2.make("/rack/web/threads")
    plain = os.read

    def read(fd: int, size: int) -> bytes:
        if Path(f"/proc/self/fd/{fd}").readlink().parent == threaded:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return plain(fd, size)

    monkeypatch.setattr("os.read", read)
    assert group_of(v2).pids() == (7,)


def test_what_is_safe_is_what_suits_a_machine_without_us(v2: Cgroup2) -> None:
    """No limit of ours, and nobody frozen; a controller is disabled again, for which there is no other safe value."""
    v2.make("/rack/web", *ALL)
    group = group_of(v2)
    values = {"cpus": "0", "bandwidth": "5000 10000", "class": "idle=1", "memory": "9000000", "read": "50", "freezer": "FROZEN"}
    files = v2.snapshot()
    for name, value in values.items():
        knobs_of(group)[name].write(value)
    for knob in knobs_of(group).values():
        safe = v2_knobs.KINDS[knob.ref.kind].safe
        assert safe is not None
        knob.restore(safe(knob))
    assert v2.snapshot() == files
    for knob in group.enabling(Controller):
        assert v2_knobs.KINDS[knob.ref.kind].safe is None
        assert v2_knobs.KINDS[knob.ref.kind].resource in {Resource.CORES, Resource.MEMORY, Resource.DISK}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(VALUES)), st.integers(0, 3)), max_size=8), st.sampled_from([(), ALL]))
def test_whatever_is_written_newest_first_brings_everything_back(
    v2: Cgroup2, moves: list[tuple[str, int]], enabled: tuple[str, ...]
) -> None:
    """Any knobs in any order, controllers enabled by us or before us: the tree is the same in every byte."""
    path = f"/rack{len(v2.log)}-{len(enabled)}/web"
    v2.make(path, *enabled)
    group = group_of(v2, path)
    files = v2.snapshot()
    journal = [(knob, knob.read()) for knob in (*group.enabling(Controller), *knobs_of(group).values())]
    for knob in group.enabling(Controller):
        knob.write(ENABLED)
    for name, number in moves:
        knobs_of(group)[name].write(VALUES[name][number % len(VALUES[name])])
    for _ in range(2):  # as restore does: in passes
        for knob, old in reversed(journal):
            if knob.read() != old:
                knob.restore(old)
    assert v2.snapshot() == files
    remove(v2.tree / path.split("/")[1])

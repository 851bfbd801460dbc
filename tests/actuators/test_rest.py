"""The rest of the machine: what is found, what is written for it, and how its knobs refuse, on fixture trees and own processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_systemd import FakeSystemd
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_tree import MachineTree

from actuators.cgroup.hierarchy import Hierarchies
from actuators.rest.affinity import REMEMBERED_NS, InterruptAffinityKnob, MaskKnob, TaskAffinityKnob, format_mask, parse_mask
from actuators.rest.groups import confinable_v1, confinable_v2, unit_of
from actuators.rest.keeper import PERIOD_NS, RestKeeper, ScanTask
from actuators.rest.kinds import NEW_INTERRUPTS, WORK_QUEUES, knob_kinds
from actuators.rest.scan import Found, RestScanKnob, Scope, Things
from actuators.systemd.bus import SystemdBus
from monitors.rest import read_process
from parties.knob import Knob, KnobError, KnobRef
from parties.restore import restore
from parties.settings import RestSettings

EVERYTHING = RestSettings(processes=True, kernel_threads=True, interrupts=True)


@pytest.fixture
def tree(tmp_path: Path) -> MachineTree:
    """A machine of four CPUs with one registered group."""
    return MachineTree(tmp_path / "root")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the test's own."""
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def start_ticks(pid: int) -> int:
    found = read_process(Path(f"/proc/{pid}"))
    assert found is not None
    return found.start_ticks


class Clock:
    """Stands still until it is told."""

    now_ns = 1

    def __call__(self) -> int:
        return self.now_ns


# Values


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_a_mask_is_read_back_as_the_cpus_that_were_written(cpus: frozenset[int]) -> None:
    """Any set of CPUs, over any number of words."""
    assert parse_mask(format_mask(cpus)) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("f", {0, 1, 2, 3}),
        ("3\n", {0, 1}),
        ("00000000,00000005", {0, 2}),
        ("1,00000000", {32}),
        ("ff000000,00000000,0", range(88, 96)),
    ],
)
def test_masks_of_kernels_are_read(text: str, cpus: set[int]) -> None:
    """With and without leading words, as sysfs and procfs write them."""
    assert parse_mask(text) == frozenset(cpus)


@pytest.mark.parametrize("text", ["", "x", "1ffffffff", "-1"])
def test_what_is_no_mask_is_an_error_that_names_the_file(text: str, tmp_path: Path) -> None:
    """Nothing is guessed from a torn file."""
    file = tmp_path / "cpumask"
    file.write_text(text)
    with pytest.raises(KnobError, match="is no mask") as caught:
        MaskKnob(WORK_QUEUES, file).read()
    assert caught.value.errno == errno.EIO


# Threads


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU leaves no choice")
def test_a_thread_is_moved_and_comes_back(sleeper: subprocess.Popen[bytes]) -> None:
    """Its affinity is what was written, and what it was after the restore."""
    before = os.sched_getaffinity(sleeper.pid)
    knob = TaskAffinityKnob(sleeper.pid, start_ticks(sleeper.pid))
    old = knob.read()
    one = min(before)
    knob.write(str(one))
    assert os.sched_getaffinity(sleeper.pid) == {one}
    assert knob.same(str(one), knob.read())
    knob.restore(old)
    assert os.sched_getaffinity(sleeper.pid) == before


def test_another_thread_of_the_same_number_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    """A number that was used again means vanished: neither read nor written."""
    before = os.sched_getaffinity(sleeper.pid)
    knob = TaskAffinityKnob(sleeper.pid, start_ticks(sleeper.pid) + 1)
    for attempt in (knob.read, lambda: knob.write("0")):
        with pytest.raises(KnobError, match="number is another one's") as caught:
            attempt()
        assert caught.value.errno == errno.ESRCH
    assert os.sched_getaffinity(sleeper.pid) == before


def test_a_number_that_is_used_again_is_noticed_once_its_cpus_differ(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as they are the same, the value is in force anyway."""
    clock = Clock()
    knob = TaskAffinityKnob(sleeper.pid, start_ticks(sleeper.pid), clock=clock)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _tid: {0})
    assert knob.read() == "0"
    knob._start_ticks += 1
    clock.now_ns += 3 * REMEMBERED_NS
    assert knob.read() == "0"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _tid: {0, 1})
    clock.now_ns += 3 * REMEMBERED_NS
    with pytest.raises(KnobError, match="number is another one's"):
        knob.read()


def test_a_thread_that_has_ended_is_vanished(sleeper: subprocess.Popen[bytes]) -> None:
    """ESRCH, which restore takes for gone."""
    knob = TaskAffinityKnob(sleeper.pid, start_ticks(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(KnobError, match=f"thread {sleeper.pid}") as caught:
        knob.read()
    assert caught.value.errno == errno.ESRCH


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EINVAL, "keeps it where it is"), (errno.EPERM, "run as root"), (errno.EIO, "cannot be put on CPUs 0")],
)
def test_a_refused_move_says_why(
    number: int, words: str, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's errno, and a cause where it is known."""

    def refuse(_tid: int, _cpus: object) -> None:
        raise OSError(number, os.strerror(number))

    knob = TaskAffinityKnob(sleeper.pid, start_ticks(sleeper.pid))
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(KnobError, match=words) as caught:
        knob.write("0")
    assert caught.value.errno == number


def test_a_look_is_remembered_but_never_beyond_a_write(tree: MachineTree) -> None:
    """A foreign value is seen after the period at the latest, an own one at once."""
    clock = Clock()
    knob = InterruptAffinityKnob(tree.interrupt("24", "0-3"), "24", clock)
    file = tree.root / "proc/irq/24/smp_affinity_list"
    assert knob.read() == "0-3"
    file.write_text("2\n")
    assert knob.read() == "0-3"
    clock.now_ns += 2 * REMEMBERED_NS
    assert knob.read() == "2"
    knob.write("0")
    assert knob.read() == "0"


# Interrupts


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO, errno.EPERM, errno.ENOSPC])
def test_an_interrupt_that_stays_says_why(number: int, tree: MachineTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each errno of the kernel with its cause."""
    knob = InterruptAffinityKnob(tree.interrupt("24", "0-3"), "24")

    def refuse(_fd: int, _data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(KnobError, match=r"24/smp_affinity_list: cannot set '0': .*\(") as caught:
        knob.write("0")
    assert caught.value.errno == number


def test_an_interrupt_that_was_freed_is_vanished(tree: MachineTree) -> None:
    """ENOENT."""
    knob = InterruptAffinityKnob(tree.interrupt("24", "0-3"), "99")
    with pytest.raises(KnobError) as caught:
        knob.read()
    assert caught.value.errno == errno.ENOENT


# Groups


def test_the_largest_groups_that_contain_no_registered_one_are_confined(tree: MachineTree) -> None:
    """A slice with a registered unit in it is taken apart; empty groups, ours and those below a registered one are left out."""
    for path in ("system.slice/web.service/below", "system.slice/cron.service", "user.slice/user-0.slice", "init.scope"):
        tree.group_v2(path)
    tree.group_v2("machine.slice", populated=False)
    tree.group_v2("parties-rest")
    found = list(confinable_v2(tree.v2, ("/system.slice/web.service",)))
    assert found == ["/init.scope", "/system.slice/cron.service", "/user.slice"]


@settings(max_examples=20)
@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8), st.data())
def test_every_process_is_either_registered_or_confined(
    tmp_path_factory: pytest.TempPathFactory, paths: list[str], data: st.DataObject
) -> None:
    """Whatever the tree: no chosen group touches a registered one, and every other leaf is below a chosen one."""
    tree = MachineTree(tmp_path_factory.mktemp("tree") / "root")
    for path in paths:
        tree.group_v2(path)
    everything = sorted({"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/") + 2)})
    registered = data.draw(st.lists(st.sampled_from(everything), unique=True))
    registered = [one for one in registered if not any(one.startswith(f"{other}/") for other in registered)]
    chosen = [path.strip("/") for path in confinable_v2(tree.v2, tuple(registered))]
    for one in chosen:
        assert not any(f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/") for other in registered)
    leaves = [path for path in everything if not any(other.startswith(f"{path}/") for other in everything)]
    for leaf in leaves:
        owned = any(f"{leaf}/".startswith(f"{one}/") for one in registered)
        assert owned != any(f"{leaf}/".startswith(f"{one}/") for one in chosen), leaf


def test_groups_of_version_1_are_given_from_below(tree: MachineTree) -> None:
    """A group cannot lose what one below it has; what lies above a registered group stays as it is."""
    for path in ("docker/one", "docker", "other/web", "other"):
        tree.group_v1(path)
    assert list(confinable_v1(tree.v1, ("/other/web",))) == ["/docker/one", "/docker"]


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/system.slice/cron.service", "cron.service"),
        ("/user.slice", "user.slice"),
        ("/a.slice/a-b.slice/x.scope", "x.scope"),
        ("/user.slice/user-0.slice/user@0.service/app.slice", None),
        ("/kubepods", None),
    ],
)
def test_what_a_unit_has_made_is_no_unit(path: str, unit: str | None) -> None:
    """Only slices lead to a unit of the system's manager."""
    assert unit_of(path) == unit


# The scan


def scan(tree: MachineTree, affinities: dict[int, set[int]], *, version: str = "2", registered: tuple[str, ...] = ()) -> Found:
    groups = tree.v1 if version == "1" else tree.v2
    scope = Scope("0", str(tree.root / "proc"), str(tree.root / "proc/irq"), str(groups), version, registered)
    text = RestScanKnob(Scope.of(scope.address()), lambda tid: affinities[tid]).read()
    assert text is not None
    return Found.parse(text)


def test_a_scan_tells_movable_kernel_threads_from_all_else(tree: MachineTree) -> None:
    """Processes, bound kernel threads, and threads that follow an interrupt are left out; one on reserved CPUs is kept."""
    tree.thread(12, "kswapd0")
    tree.thread(13, "ksoftirqd/1", fixed=True)
    tree.thread(14, "irq/24-nvme")
    tree.thread(15, "bash", kernel=False)
    tree.thread(16, "khugepaged")
    found = scan(tree, {12: {0, 1, 2, 3}, 16: {0}})
    assert (found.loose.threads, found.kept.threads) == (("12 112 kswapd0",), ("16 116 khugepaged",))


def test_a_scan_leaves_out_what_is_bound_more_narrowly(tree: MachineTree) -> None:
    """With CPUs 0-1 reserved, a thread on CPU 1 is not widened."""
    tree.thread(12, "rcu_tasks")
    text = RestScanKnob(Scope("0-1", str(tree.root / "proc")), lambda _tid: {1}).read()
    assert text is not None
    assert Found.parse(text) == Found()


def test_a_scan_finds_interrupts_that_somebody_handles(tree: MachineTree) -> None:
    """An unused number has no directory of a handler."""
    tree.interrupt("24", "0-3")
    tree.interrupt("25", "0")
    tree.interrupt("26", "0-3", handled=False)
    found = scan(tree, {})
    assert (found.loose.interrupts, found.kept.interrupts) == (("24",), ("25",))


def test_a_scan_on_a_machine_that_has_nothing_finds_nothing(tmp_path: Path) -> None:
    """No file has to be there."""
    scope = Scope("0", f"{tmp_path}/proc", f"{tmp_path}/irq", f"{tmp_path}/cgroup")
    assert RestScanKnob(scope).read() == Found().text()


names = st.text(st.characters(codec="utf-8"), max_size=15)


@given(st.lists(names), st.lists(names), st.lists(names))
def test_what_a_scan_found_survives_the_journey(threads: list[str], interrupts: list[str], groups: list[str]) -> None:
    """Whatever names a kernel gives."""
    found = Found(Things(tuple(threads), tuple(interrupts), tuple(groups)), Things((), tuple(groups), ()))
    assert Found.parse(found.text()) == found


# The keeper


def keeper(tree: MachineTree, asked: RestSettings = EVERYTHING, *, version: str = "2") -> RestKeeper:
    hierarchies = Hierarchies({"cpuset": tree.v1}, None) if version == "1" else Hierarchies({}, tree.v2)
    return RestKeeper(asked, (0,), hierarchies, ["/web"], root=tree.root)


def judged(of: RestKeeper, *found: Found) -> list[tuple[list[str], list[str]]]:
    """For each look the written knobs and what was said."""
    task = of.upkeep()[0]
    assert isinstance(task, ScanTask)
    findings = [task.judge(look.text(), None) for look in found]
    assert all(finding.apart for finding in findings)
    return [([str(write.knob.ref) for write in finding.writes], list(finding.warnings)) for finding in findings]


def test_each_thing_is_written_once_and_named_if_it_stays(tree: MachineTree) -> None:
    """What is still loose at the next look could not be moved: said once, not tried at every look."""
    look = Found(Things((), ("24", "25"), ()))
    after = Found(Things((), ("25",), ()), Things((), ("24",), ()))
    first, second, third = judged(keeper(tree), look, after, after)
    directory = tree.root / "proc/irq"
    assert first == ([f"irq.affinity:{directory}:24", f"irq.affinity:{directory}:25"], [])
    assert second[0] == []
    assert len(second[1]) == 1
    assert second[1][0].startswith("1 interrupts could not be moved")
    assert second[1][0].endswith(": 25")
    assert third == ([], [])


def test_what_came_back_is_written_again(tree: MachineTree) -> None:
    """A unit that was started anew is a new group, whose knob was forgotten when the old one vanished."""
    there = Found(kept=Things((), (), ("/x.slice",)))
    assert [len(writes) for writes, _ in judged(keeper(tree), there, Found(), there)] == [1, 0, 1]


def test_a_failed_look_is_told_and_nothing_is_written(tree: MachineTree) -> None:
    """The rest stays as it is."""
    finding = keeper(tree).upkeep()[0].judge(None, OSError(errno.EIO, "broken"))
    assert not finding.writes
    assert "broken" in finding.warnings[0]


@pytest.mark.parametrize(
    ("asked", "version", "kinds"),
    [
        (RestSettings(), "1", set()),
        (RestSettings(processes=True), "1", {"rest.group"}),
        (RestSettings(processes=True), "2", {"rest.group"}),
        (RestSettings(kernel_threads=True), "2", {WORK_QUEUES}),
        (RestSettings(interrupts=True), "2", {NEW_INTERRUPTS}),
    ],
)
def test_only_what_is_asked_for_is_written(asked: RestSettings, version: str, kinds: set[str], tree: MachineTree) -> None:
    """Each part by itself; nothing at all by default, and no task either."""
    of = keeper(tree, asked, version=version)
    assert {write.knob.ref.kind for write in of.writes()} == kinds
    assert bool(of.upkeep()) == bool(kinds)
    assert all(of.asks(write.knob.ref) and of.knows(write.knob.ref) for write in of.writes())
    assert all(task.period_ns == PERIOD_NS for task in of.upkeep())


def test_what_is_not_asked_for_any_more_is_not_kept(tree: MachineTree) -> None:
    """A start with other settings puts it back; other resources' knobs are none of its business."""
    ref = KnobRef("task.affinity", ("1", "2", "/proc"))
    assert keeper(tree).asks(ref)
    assert not keeper(tree, RestSettings(interrupts=True)).asks(ref)
    assert not keeper(tree).knows(KnobRef("cgroup2.list", ("/x",)))


def test_irqbalance_is_named_where_interrupts_are_to_stay(tree: MachineTree) -> None:
    """It would move them again; who does not ask for interrupts need not know."""
    (tree.root / "proc/77").mkdir()
    (tree.root / "proc/77/comm").write_text("irqbalance\n")
    assert "irqbalance (process 77) moves interrupts as well" in keeper(tree).warnings()[0]
    assert keeper(tree, RestSettings(processes=True)).warnings() == ()


def test_a_machine_without_cpuset_says_so(tree: MachineTree) -> None:
    """Processes cannot be confined; the other parts still work."""
    of = RestKeeper(EVERYTHING, (0,), Hierarchies({}, None), (), root=tree.root)
    assert "no cpuset hierarchy" in of.warnings()[0]
    assert {write.knob.ref.kind for write in of.writes()} == {WORK_QUEUES, NEW_INTERRUPTS}


def test_units_are_confined_through_systemd_and_come_back_without_a_trace(tmp_path: Path) -> None:
    """AllowedCPUs of a unit that is nobody's; its drop-in goes with it, and no group of our own is made under systemd."""
    systemd = FakeSystemd(tmp_path / "root")
    try:
        place = systemd.start("cron.service", "/system.slice/cron.service")
        (place / "cgroup.events").write_text("populated 1\n")
        before = systemd.snapshot()
        bus = SystemdBus(systemd.root)
        of = RestKeeper(RestSettings(processes=True), (0,), systemd.hierarchies, (), root=systemd.root, bus=bus)
        assert of.writes() == ()
        write = of.write_for("groups", "/system.slice/cron.service")
        kinds = knob_kinds(bus, systemd.root)
        assert write.knob.ref.kind == "rest.unit"
        knob: Knob = kinds["rest.unit"].make(write.knob.ref.address)
        old = knob.read()
        knob.write("0")
        assert (place / "cpuset.cpus").read_text().strip() == "0"
        drop_ins = write.knob.journalled_first()  # type: ignore[attr-defined]
        assert [one.ref.kind for one in drop_ins] == ["systemd.reload", "systemd.drop-in.rest", "systemd.beside"]
        knob.restore(old)
        for one in reversed(drop_ins):
            one.restore(None)
        assert {path: text for path, text in systemd.snapshot().items() if text.strip()} == {
            path: text for path, text in before.items() if text.strip()
        }
    finally:
        systemd.close()


def test_nothing_of_it_is_restored_from_an_empty_state(tmp_path: Path) -> None:
    """A machine on which none of it was ever asked for has nothing to undo."""
    assert restore(tmp_path / "journal.jsonl", knob_kinds(SystemdBus(tmp_path))).complete

"""The whole of cache allocation on the emulated resctrl: enforcer, journal and restore, with the kernel's own errors."""

from __future__ import annotations

import dataclasses
import errno
import functools
import operator
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fault_kit import fault_points

from actuators.cache.knobs import GroupKnob, MaskKnob, SchemataFile
from actuators.cache.resctrl import read_tree
from actuators.cache.resctrl_actuator import ResctrlActuator
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import GroupLayerV1
from actuators.registry import KINDS
from parties.enforcer import Enforcer, Outcome
from parties.foreign import DriftState
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobRef
from parties.model import BEST_EFFORT, IDLE, NS_PER_S, Core, Domain, Holder, MoveStatus, Node, Partition, PoolKey, Resource
from parties.placement import Placement, place
from parties.restore import Fate, restore
from parties.settings import CacheSettings
from parties.slow_writer import SlowResult
from tests.emulation.fuse_tree import Mounted
from tests.emulation.resctrl import ResctrlOptions, mounted_resctrl

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("fuse")]

FAULTS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)
XEON = ResctrlOptions(ways=20, shareable_bits=0xC0000, domains={0: [0], 1: [1]})
HOMES = {"a": 0, "b": 1}
FAIR = {0: {"a": 9, BEST_EFFORT: 9}, 1: {"b": 9, BEST_EFFORT: 9}}
MOVED = {0: {"a": 10, BEST_EFFORT: 8}, 1: {"b": 9, BEST_EFFORT: 9}}
Amounts = Mapping[int, Mapping[Holder, int]]


def partition_of(amounts: Amounts) -> Partition:
    return Partition({PoolKey(Resource.CACHE, number): held for number, held in amounts.items()})


class NothingSlow:
    """Stands for the slow writer: no write of these plans is slow."""

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        raise AssertionError(f"{ref} = {value!r} at {now_ns}")

    def poll(self, now_ns: int) -> list[SlowResult]:  # noqa: ARG002 (the interface's)
        return []


class Stage:
    """An emulated machine with control groups of its own (plain directories), and the daemon's parts around the actuator."""

    def __init__(self, tmp_path: Path, resctrl: Mounted, options: ResctrlOptions) -> None:
        self.resctrl = resctrl
        self.mount = resctrl.path
        self.state = tmp_path / "state"
        self.control_groups = tmp_path / "cgroup"
        for name in ("a", "b", "jobs"):
            (self.control_groups / name).mkdir(parents=True, exist_ok=True)
            (self.control_groups / name / "tasks").write_text("")
        self.ids = tuple(options.domains or {0: []})
        self.domains = tuple(Domain(number, (Core(place, (place,)),)) for place, number in enumerate(self.ids))
        self.before = self.snapshot()
        self.now_ns = NS_PER_S

    def begin(self) -> Stage:
        """The actuator on the tree as it is now, with an enforcer and a journal."""
        layer = GroupLayerV1(Hierarchies({"cpu": self.control_groups}))
        homes = {"a": self.ids[0], "b": self.ids[-1]}
        managed = {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/jobs",)}
        self.actuator = ResctrlActuator(
            read_tree(self.mount), CacheSettings(), self.domains, layer=layer, managed=managed, homes=homes
        )
        self.node = Node("n", self.domains, {pool.key: pool for pool in self.actuator.pools()})
        self.journal = Journal(self.state, started_unix_ns=1)
        self.enforcer = Enforcer(self.journal, NothingSlow())
        self.placement: Placement | None = None
        return self

    def go(self, amounts: Amounts) -> Outcome:
        """Put these amounts in force."""
        placement = place(self.node, partition_of(amounts), self.placement)
        self.now_ns += NS_PER_S
        outcome = self.enforcer.apply(self.actuator.writes(placement, self.placement), self.now_ns)
        if outcome.status is MoveStatus.DONE:
            self.placement = placement
        return outcome

    def held(self) -> dict[int, Mapping[Holder, int]]:
        """What each holder has, as the kernel says."""
        return {key.domain or 0: held for key, held in self.actuator.read_back().items()}

    def tend(self) -> list[str]:
        """What the upkeep's process does, and what an operator is told."""
        told: list[str] = []
        for task in self.actuator.upkeep():
            knob = KINDS[task.ref.kind].make(task.ref.address)
            knob.write(task.value)
            told += task.judge(knob.read(), None).warnings
        return told

    def snapshot(self) -> dict[str, str]:
        """The whole tree but for the lists of threads, which live, and the status of the last command."""
        files = [Path(place) / name for place, _, names in os.walk(self.mount) for name in names]
        left_out = {"tasks", "last_cmd_status"}
        return {str(file.relative_to(self.mount)): file.read_text() for file in files if file.name not in left_out}

    def restore(self) -> list[Fate]:
        """What ``parties restore`` does."""
        return [entry.fate for entry in restore(self.state / JOURNAL_NAME, KINDS).entries]


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """An emulated Xeon with two sockets, or the machine that the test asks for."""
    options = getattr(request, "param", XEON)
    with mounted_resctrl(tmp_path / "resctrl", options) as resctrl:
        yield Stage(tmp_path, resctrl, options).begin()


MACHINES = [
    XEON,
    dataclasses.replace(XEON, cdp=True),
    dataclasses.replace(XEON, domains={3: [0], 7: [1]}, memory_bandwidth=True),
    dataclasses.replace(XEON, min_cbm_bits=2, shareable_bits=0, monitoring=True),
]


@pytest.mark.parametrize("stage", MACHINES, indirect=True)
def test_start_move_and_restore(stage: Stage) -> None:
    """In force as read back, the rest of the machine in the reserved ways; restored, the tree is as it was, file by file."""
    first, last = stage.ids
    fair = {first: FAIR[0], last: FAIR[1]}
    assert stage.go(fair).status is MoveStatus.DONE
    assert stage.held() == fair
    root = read_tree(stage.mount).masks[first]
    assert (f"{root}", len(read_tree(stage.mount).own)) == ("c0000", 3)
    assert stage.go({first: MOVED[0], last: MOVED[1]}).status is MoveStatus.DONE
    assert stage.held() == {first: MOVED[0], last: MOVED[1]}
    assert not stage.enforcer.drift(stage.now_ns)
    assert set(stage.restore()) <= {Fate.RESTORED, Fate.UNCHANGED}
    assert stage.snapshot() == stage.before


def test_code_and_data_that_were_apart_are_apart_again(tmp_path: Path) -> None:
    """Alike while we manage them, whatever the root group had; restore brings back both, and another resource was never touched."""
    options = dataclasses.replace(XEON, cdp=True, memory_bandwidth=True)
    with mounted_resctrl(tmp_path / "resctrl", options) as resctrl:
        (resctrl.path / "schemata").write_text("L3CODE:0=c0000\nL3DATA:0=fff00\nMB:0=50\n")
        stage = Stage(tmp_path, resctrl, options).begin()
        assert stage.go(FAIR).status is MoveStatus.DONE
        assert {str(mask) for mask in read_tree(stage.mount).masks.values()} == {"c0000"}
        assert (stage.mount / "schemata").read_text().splitlines()[2] == stage.before["schemata"].splitlines()[2]
        stage.restore()
        assert stage.snapshot() == stage.before


def masks_in(stage: Stage, number: int) -> dict[str, int]:
    """Every group's ways in a domain; the root's are the rest of the machine's."""
    mount = stage.mount
    names = ["", *read_tree(mount).own]
    return {name: int((MaskKnob(SchemataFile(mount, name), number).read() or "0").partition("/")[0], 16) for name in names}


def test_no_way_is_shared_between_any_two_writes(stage: Stage) -> None:
    """As the kernel saw it, write by write: after the start no two groups ever had an exclusive way in common."""
    stage.go(FAIR)
    done = len(stage.resctrl.log())
    masks = {number: masks_in(stage, number) for number in stage.ids}
    for amounts in (MOVED, {0: {"a": 2, BEST_EFFORT: 16}, 1: {"b": 18}}, {0: {"a": 17, BEST_EFFORT: 1}, 1: {"b": 2, IDLE: 16}}):
        assert stage.go(amounts).status is MoveStatus.DONE
    for step in stage.resctrl.log()[done:]:
        line = step["text"].strip().removeprefix("L3:")
        number, mask = int(line.partition("=")[0]), int(line.partition("=")[2], 16)
        group = step["path"].strip("/").rpartition("/")[0]
        masks[number][group] = mask
        exclusive = {name: held & 0x3FFFF for name, held in masks[number].items()}
        assert sum(map(int.bit_count, exclusive.values())) == int.bit_count(functools.reduce(operator.or_, exclusive.values()))
    assert len(stage.resctrl.log()) > done + 6


def test_classes_of_service_run_out(stage: Stage, tmp_path: Path) -> None:
    """Taken between the look at the start and the first write: refused, rolled back, and the message names who holds them."""
    for number in range(13):
        (stage.mount / f"vm-{number}").mkdir()
    taken = stage.snapshot()
    outcome = stage.go(FAIR)
    assert outcome.status is MoveStatus.REFUSED
    for words in ("16 classes of service (CLOSIDs)", "vm-7 (0 threads)", "Out of CLOSIDs", "rmdir"):
        assert words in outcome.detail
    assert stage.snapshot() == taken
    assert not stage.begin().actuator.pools()[0].managed


def test_a_foreign_group_is_left_alone(tmp_path: Path) -> None:
    """Its ways where it is exclusive, its masks, its threads, also at restore."""
    with mounted_resctrl(tmp_path / "resctrl", dataclasses.replace(XEON, shareable_bits=0)) as resctrl:
        (resctrl.path / "schemata").write_text("L3:0=ffff0;1=ffff0\n")
        (resctrl.path / "vm").mkdir()
        (resctrl.path / "vm/schemata").write_text("L3:0=f;1=f\n")
        (resctrl.path / "vm/mode").write_text("exclusive\n")
        stage = Stage(tmp_path, resctrl, XEON).begin()
        assert [pool.total for pool in stage.actuator.pools()] == [15, 15]
        amounts = {number: {("a", "b")[number]: 10, BEST_EFFORT: 5} for number in stage.ids}
        with running() as process:
            (resctrl.path / "vm/tasks").write_text(f"{process.pid}\n")
            (stage.control_groups / "a/tasks").write_text(f"{process.pid}\n")
            assert stage.go(amounts).status is MoveStatus.DONE
            told = stage.tend()
            assert "in the resctrl group vm of another tool" in told[0]
            assert str(process.pid) in (resctrl.path / "vm/tasks").read_text().split()
            assert (resctrl.path / "vm/schemata").read_text() == stage.before["vm/schemata"]
            stage.restore()
            assert stage.snapshot() == stage.before


def test_a_mask_that_the_kernel_narrows_is_refused(stage: Stage) -> None:
    """Taken without an error, but not as written: the move is rolled back, and nothing is counted that is not there."""
    stage.go(FAIR)
    before = stage.snapshot()
    stage.resctrl.replace("L3:0=3\n", "/parties-a/schemata")
    outcome = stage.go(MOVED)
    assert outcome.status is MoveStatus.REFUSED
    assert "read back as '3'" in outcome.detail
    assert stage.snapshot() == before
    assert stage.held() == FAIR


def test_a_mask_changed_by_others_is_noticed(stage: Stage) -> None:
    """A drift with what was found, and the expected mask again after the wait that the rule gives."""
    stage.go(FAIR)
    stage.resctrl.order("set_mask", group="parties-a", schema="L3", domain=0, mask=0x3)
    with stage.actuator.one_look():
        events = stage.enforcer.drift(stage.now_ns + 10 * NS_PER_S)
    assert [(event.state, event.holder, event.found) for event in events] == [(DriftState.NOTICED, "a", "3")]
    with stage.actuator.one_look():
        events = stage.enforcer.drift(stage.now_ns + 20 * NS_PER_S)
    assert [(event.state, event.detail) for event in events] == [(DriftState.REASSERTED, "")]
    assert stage.held() == FAIR


def test_a_group_removed_by_others_comes_back(stage: Stage) -> None:
    """The group first, then its masks; restore still leaves the tree as it was."""
    stage.go(FAIR)
    (stage.mount / "parties-a").rmdir()
    for second in range(10, 40, 2):
        with stage.actuator.one_look():
            stage.enforcer.drift(stage.now_ns + second * NS_PER_S)
    assert stage.held() == FAIR
    stage.restore()
    assert stage.snapshot() == stage.before


def test_an_error_carries_the_kernel_s_words(stage: Stage) -> None:
    """What is wrong with a mask is in last_cmd_status; the message has it."""
    knob = MaskKnob(SchemataFile(stage.mount, ""), 0)
    with pytest.raises(OSError, match=r"cannot set 'L3:0=5': Invalid argument \(last_cmd_status: The mask 5 has non-consecutive"):
        knob.write("5")
    with pytest.raises(OSError, match="last_cmd_status: Mask out of range"):
        knob.write("1fffff")


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("where", [("mkdir", "/parties-b"), ("write", "/parties-b/schemata"), ("write", "/schemata")])
def test_any_write_of_a_start_may_fail(stage: Stage, number: int, where: tuple[str, str]) -> None:
    """Refused with the kernel's words, rolled back to the tree as it was; the next try succeeds, and restore works."""
    op, pattern = where
    stage.resctrl.fail(number, pattern, op=op)
    outcome = stage.go(FAIR)
    assert (outcome.status, outcome.uncertain) == (MoveStatus.REFUSED, ())
    assert os.strerror(number) in outcome.detail
    assert stage.snapshot() == stage.before
    stage.resctrl.clear()
    assert stage.go(FAIR).status is MoveStatus.DONE
    stage.restore()
    assert stage.snapshot() == stage.before


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("group", ["parties-best-effort", "parties-a"])
def test_any_write_of_a_move_may_fail(stage: Stage, number: int, group: str) -> None:
    """Taking and giving alike: every mask is as before the move."""
    stage.go(FAIR)
    before = stage.snapshot()
    stage.resctrl.fail(number, f"/{group}/schemata")
    outcome = stage.go(MOVED)
    assert (outcome.status, outcome.uncertain) == (MoveStatus.REFUSED, ())
    assert stage.snapshot() == before


@pytest.mark.slow
def test_every_write_fails_in_every_way(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All errno and SIGKILL, before and after each write of a start and of a move; between writes of the move no way is shared."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)  # hundreds of journals: what it adds is tested elsewhere
    fair = place(stage.node, partition_of(FAIR), None)
    start = fault_points(
        lambda: stage.actuator.writes(fair, None), KINDS, tmp_path / "of-start", snapshot=stage.snapshot, kills=True
    )
    stage.go(FAIR)
    moved = place(stage.node, partition_of(MOVED), fair)

    def nobody_shares() -> None:
        for number in stage.ids:
            exclusive = [mask & 0x3FFFF for mask in masks_in(stage, number).values()]
            assert sum(map(int.bit_count, exclusive)) == int.bit_count(functools.reduce(operator.or_, exclusive))

    move = fault_points(
        lambda: stage.actuator.writes(moved, fair),
        KINDS,
        tmp_path / "of-move",
        snapshot=stage.snapshot,
        invariant=nobody_shares,
    )
    assert (start, move) == (11 * 18, 2 * 18)
    with capsys.disabled():
        print(f"\n{start + move} fault points covered on resctrl")  # noqa: T201 - the figure is wanted


def test_a_roll_back_that_fails_is_retried(stage: Stage) -> None:
    """What was narrowed stays narrow, for nothing may be given twice; once it works, all is as before."""
    stage.go(FAIR)
    before = stage.snapshot()
    stage.resctrl.fail(errno.EIO, "/parties-a/schemata", count=-1)
    assert stage.go(MOVED).status is MoveStatus.REFUSED
    stage.resctrl.clear()
    for second in range(1, 10):
        stage.enforcer.poll(stage.now_ns + second * NS_PER_S)
    assert stage.snapshot() == before


@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("where", [("rmdir", "/parties-a"), ("write", "/schemata")])
def test_a_restore_that_fails_is_repeated(stage: Stage, number: int, where: tuple[str, str]) -> None:
    """What cannot be put back stays in the journal and is named; the next restore does it."""
    stage.go(FAIR)
    stage.resctrl.fail(number, where[1], op=where[0], count=-1)
    assert Fate.FAILED in stage.restore()
    stage.resctrl.clear()
    stage.restore()
    assert stage.snapshot() == stage.before
    assert not (stage.state / JOURNAL_NAME).exists()


def test_unmounted_in_the_middle(stage: Stage) -> None:
    """Nothing is left to restore: the file system takes its values with it."""
    stage.go(FAIR)
    stage.actuator.close()
    subprocess.run(["umount", "-l", str(stage.mount)], check=True)
    assert set(stage.restore()) <= {Fate.GONE, Fate.UNCHANGED}
    assert not (stage.state / JOURNAL_NAME).exists()


class running:  # noqa: N801 (a context manager)
    """A process of the test's own that starts a thread when it is sent a line."""

    CODE = (
        "import sys, threading, time\nfor line in sys.stdin: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )

    def __enter__(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen([sys.executable, "-c", self.CODE], stdin=subprocess.PIPE)
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def threads_of(process: subprocess.Popen[bytes], count: int) -> set[str]:
    """The numbers of its threads once there are so many."""
    for _ in range(12_000):
        found = {task.name for task in Path(f"/proc/{process.pid}/task").iterdir()}
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise TimeoutError


def test_later_threads_are_caught_and_come_back(stage: Stage) -> None:
    """All threads of a process, one started later, one process that joins later; removing the group returns them to the root."""
    stage.go(FAIR)
    with running() as process, running() as late:
        first = threads_of(process, 1)
        (stage.control_groups / "a/tasks").write_text("".join(f"{thread}\n" for thread in first))
        assert stage.tend() == []
        assert first <= set((stage.mount / "parties-a/tasks").read_text().split())
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        everyone = threads_of(process, 2) | threads_of(late, 1)
        (stage.control_groups / "a/tasks").write_text("".join(f"{thread}\n" for thread in everyone))
        assert stage.tend() == []
        assert everyone <= set((stage.mount / "parties-a/tasks").read_text().split())
        (stage.control_groups / "a/tasks").write_text("".join(f"{thread}\n" for thread in threads_of(process, 2)))
        stage.tend()
        assert str(late.pid) in (stage.mount / "tasks").read_text().split()
        stage.restore()
        assert everyone <= set((stage.mount / "tasks").read_text().split())
    assert stage.snapshot() == stage.before


def test_leftovers_of_an_earlier_run(stage: Stage) -> None:
    """A group of ours that no journal knows is removed at the start; one that the journal knows stays for the journal."""
    stage.go(FAIR)
    (stage.mount / "parties-old").mkdir()
    again = stage.begin()
    told = again.actuator.tidy(again.journal)
    assert [line.partition(":")[0] for line in told] == [str(stage.mount / "parties-old")]
    assert GroupKnob(stage.mount, "parties-a").read() is not None
    again.restore()
    assert again.snapshot() == again.before


def test_what_suits_a_machine_without_us(stage: Stage) -> None:
    """Every way for the root group, none of our groups."""
    stage.go(FAIR)
    safe = KINDS[MaskKnob.KIND].safe
    assert safe is not None
    assert safe(MaskKnob(SchemataFile(stage.mount, ""), 0)) == "fffff"
    assert safe(MaskKnob(SchemataFile(stage.mount, "parties-a"), 0)) is None

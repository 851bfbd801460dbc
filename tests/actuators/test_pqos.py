import dataclasses
import errno
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from fake_pqos import FULL, FakePqos
from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.cache import pqos as pqos_module
from actuators.cache.pqos import PqosActuator
from actuators.cache.pqos_command import Pqos
from actuators.cache.pqos_knobs import KINDS, LOOK, PqosCpuKnob, PqosLookKnob, PqosLookTask, PqosMaskKnob
from actuators.cache.resctrl import Mask
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, Knob, KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import (
    BEST_EFFORT,
    IDLE,
    MILLICORES_PER_CORE,
    NS_PER_S,
    RESERVED,
    Core,
    Domain,
    Holder,
    MoveStatus,
    Node,
    Partition,
    Pool,
    PoolKey,
    Resource,
)
from parties.placement import Placement, place
from parties.restore import Fate, restore
from parties.settings import CacheSettings
from parties.slow_writer import SlowResult

DOMAINS = (
    Domain(0, (Core(0, (0, 4)), Core(1, (1, 5)))),
    Domain(1, (Core(2, (2, 6)), Core(3, (3, 7)))),
)
MANAGED = {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/jobs",)}
HOMES = {"a": 0, "b": 1}
FAULTS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)
Amounts = Mapping[int, Mapping[Holder, int]]
START: tuple[Amounts, Amounts] = ({0: {"a": 1, BEST_EFFORT: 1}, 1: {"b": 2}}, {0: {"a": 5, BEST_EFFORT: 4}, 1: {"b": 9}})
MOVED: tuple[Amounts, Amounts] = ({0: {"a": 2}, 1: {"b": 1, BEST_EFFORT: 1}}, {0: {"a": 6, BEST_EFFORT: 3}, 1: {"b": 7}})


class AtOnce:
    """A slow writer that carries a write out when it is asked for the result, with this process's knobs."""

    def __init__(self, kinds: KnobKinds) -> None:
        self._kinds = kinds
        self._waiting: list[tuple[int, KnobRef, str | None]] = []
        self._ticket = 0
        self.after_each: Callable[[], None] = lambda: None

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:  # noqa: ARG002 (the interface's)
        self._ticket += 1
        self._waiting.append((self._ticket, ref, value))
        return self._ticket

    def poll(self, now_ns: int) -> list[SlowResult]:  # noqa: ARG002 (the interface's)
        waiting, self._waiting = self._waiting, []
        return [self._do(*each) for each in waiting]

    def _do(self, ticket: int, ref: KnobRef, value: str | None) -> SlowResult:
        knob = self._kinds[ref.kind].make(ref.address)
        try:
            if value is None:
                knob.restore(None)
            else:
                knob.write(value)
            found = knob.read()
        except KnobError as error:
            return SlowResult(ticket, error=OSError(error.errno, error.strerror))
        finally:
            self.after_each()
        return SlowResult(ticket, found=found)


def kinds_of(fake: FakePqos) -> KnobKinds:
    """The kinds, made with this pqos."""

    def make(kind: str, address: tuple[str, ...]) -> Knob:
        rest = tuple(map(int, address[3:]))
        if kind == PqosMaskKnob.KIND:
            return PqosMaskKnob(fake, *rest, live=True)
        return PqosCpuKnob(fake, *rest, live=True) if kind == PqosCpuKnob.KIND else PqosLookKnob(fake)

    def kind_of(name: str, kind: KnobKind) -> KnobKind:
        return dataclasses.replace(kind, make=lambda address: make(name, address))

    return {name: kind_of(name, kind) for name, kind in KINDS.items()}


class Stage:
    """The actuator on a fake pqos, with an enforcer and a journal."""

    def __init__(self, tmp_path: Path, fake: FakePqos, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fake = fake
        self.state = tmp_path / "state"
        monkeypatch.setattr(pqos_module, "Pqos", lambda *_: fake)
        self.actuator = PqosActuator(
            DOMAINS,
            MANAGED,
            settings=CacheSettings(),
            snapshot=fake.snapshot,
            homes=HOMES,
        )
        pools = {pool.key: pool for pool in self.actuator.pools()}
        for domain in DOMAINS:
            key = PoolKey(Resource.CORES, domain.id)
            pools[key] = Pool(key, total=2 * MILLICORES_PER_CORE, step=MILLICORES_PER_CORE, floor=MILLICORES_PER_CORE)
        self.node = Node("n", DOMAINS, pools)
        self.kinds = kinds_of(fake)
        self.slow = AtOnce(self.kinds)
        self.journal = Journal(self.state, started_unix_ns=1)
        self.enforcer = Enforcer(self.journal, self.slow, kinds=self.kinds)
        self.placement: Placement | None = None

    def go(self, amounts: tuple[Amounts, Amounts], now_ns: int = NS_PER_S) -> tuple[MoveStatus, str]:
        """Put a partition in force; what became of it."""
        placement = self.placed(amounts)
        outcome = self.enforcer.apply(self.actuator.writes(placement, self.placement), now_ns)
        for _ in range(100):
            if outcome.status is not MoveStatus.PENDING:
                break
            for _, ended in self.enforcer.poll(now_ns):
                outcome = ended
        if outcome.status is MoveStatus.DONE:
            self.placement = placement
        return outcome.status, outcome.detail

    def placed(self, amounts: tuple[Amounts, Amounts]) -> Placement:
        cores, ways = amounts
        given: dict[PoolKey, dict[Holder, int]] = {}
        for domain in DOMAINS:
            total = self.node.pools[PoolKey(Resource.CACHE, domain.id)].total
            held = dict(ways.get(domain.id, {}))
            given[PoolKey(Resource.CACHE, domain.id)] = {**held, IDLE: total - sum(held.values())}
            counts = {holder: count * MILLICORES_PER_CORE for holder, count in cores.get(domain.id, {}).items()}
            given[PoolKey(Resource.CORES, domain.id)] = {**counts, IDLE: 2 * MILLICORES_PER_CORE - sum(counts.values())}
        return place(self.node, Partition(given), self.placement)

    def owners(self) -> dict[int, Holder]:
        """Whose class each CPU is associated with."""
        names = {number: holder for holder, number in self.actuator._classes.items()}
        return {cpu: names.get(number, RESERVED) for cpu, number in self.fake.cpus.items()}


@pytest.fixture
def fake(tmp_path: Path) -> FakePqos:
    return FakePqos(tmp_path / "snapshot")


@pytest.fixture
def stage(tmp_path: Path, fake: FakePqos, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, fake, monkeypatch)


def test_the_pools_leave_shared_and_reserved_ways_out(stage: Stage) -> None:
    """Of eleven ways two are shared with devices: nine can be handed out in each domain."""
    assert [(pool.total, pool.managed) for pool in stage.actuator.pools()] == [(9, True), (9, True)]


def test_a_start_gives_masks_and_cpus(stage: Stage) -> None:
    """Every holder has its ways and the CPUs of its cores its class; class 0 has the reserved ways; what is read back agrees."""
    assert stage.go(START) == (MoveStatus.DONE, "")
    classes = stage.actuator._classes
    assert stage.fake.masks[0, 0] == stage.fake.masks[1, 0] == 0x600
    assert stage.fake.masks[0, classes["a"]].bit_count() == 5
    assert stage.fake.masks[1, classes["a"]] == 0x600
    assert stage.owners() == {0: "a", 4: "a", 1: BEST_EFFORT, 5: BEST_EFFORT, 2: "b", 3: "b", 6: "b", 7: "b"}
    assert stage.actuator.read_back() == {
        PoolKey(Resource.CACHE, 0): {"a": 5, BEST_EFFORT: 4},
        PoolKey(Resource.CACHE, 1): {"b": 9, BEST_EFFORT: 0},
    }


def test_cpus_follow_cores_by_way_of_nobody(stage: Stage) -> None:
    """A CPU that changes hands is nobody's in between, taken before anything is given."""
    stage.go(START)
    plan = stage.actuator.writes(stage.placed(MOVED), stage.placement)
    moves = [
        (write.value, write.effect, write.holder)
        for write in plan
        if write.knob.ref.address[-1] == "1" and "cpu" in write.knob.ref.kind
    ]
    assert moves == [("0", Effect.TAKE, BEST_EFFORT), (str(stage.actuator._classes["a"]), Effect.GIVE, "a")]
    assert stage.actuator.follows_cores
    assert all(write.slow for write in plan)


def test_what_does_not_change_is_not_written(stage: Stage) -> None:
    """The same partition again is no write."""
    stage.go(START)
    assert list(stage.actuator.writes(stage.placed(START), stage.placement)) == []


@pytest.mark.parametrize("number", FAULTS)
def test_a_failed_write_is_rolled_back(stage: Stage, number: int) -> None:
    """At every write of a move, with every errno: the move is refused and everything is as before it."""
    stage.go(START)
    before = dict(stage.fake.masks), dict(stage.fake.cpus)
    stage.fake.ran.clear()
    stage.go(MOVED, 2 * NS_PER_S)
    writes = len(stage.fake.ran)
    assert stage.go(START, 3 * NS_PER_S)[0] is MoveStatus.DONE
    before = dict(stage.fake.masks), dict(stage.fake.cpus)
    for which in range(writes):
        stage.fake.ran.clear()
        stage.slow.after_each = lambda which=which: _refuse_at(stage.fake, which, number)  # type: ignore[misc]
        _refuse_at(stage.fake, which, number)
        status, detail = stage.go(MOVED, (10 + 100 * which) * NS_PER_S)
        stage.slow.after_each = lambda: None
        assert (status, "refused" in detail) == (MoveStatus.REFUSED, True)
        assert (stage.fake.masks, stage.fake.cpus) == before


def _refuse_at(fake: FakePqos, which: int, number: int) -> None:
    if len(fake.ran) == which:
        fake.refuse = number


def test_restore_brings_everything_back(stage: Stage) -> None:
    """After moves, every mask and every CPU is as it was before the daemon, in another process's eyes."""
    stage.fake.masks[1, 0] = 0x3FF
    stage.fake.look()
    stage.go(START)
    stage.go(MOVED, 2 * NS_PER_S)
    report = restore(stage.state / JOURNAL_NAME, kinds_of(stage.fake))
    assert report.complete
    assert report.of(Fate.RESTORED)
    assert set(stage.fake.cpus.values()) == {0}
    assert {place: mask for place, mask in stage.fake.masks.items() if mask != FULL} == {(1, 0): 0x3FF}


def test_a_narrowed_mask_is_noticed(stage: Stage) -> None:
    """A mask that silently becomes narrower is read back as it is, and the move refused."""
    stage.go(START)
    stage.fake.narrow = 0x6FF & ~stage.fake.masks[0, stage.actuator._classes["a"]]
    status, detail = stage.go(MOVED, 2 * NS_PER_S)
    assert (status, "read back as" in detail) == (MoveStatus.REFUSED, True)


def test_foreign_changes_show_as_drift(stage: Stage) -> None:
    """What another program sets is seen after the next look, and not before."""
    stage.go(START)
    number = stage.actuator._classes["a"]
    stage.fake.masks[0, number] = 0x1
    assert stage.enforcer.drift(2 * NS_PER_S) == []
    PqosLookKnob(stage.fake).write(LOOK)
    assert [event.ref.address[-2:] for event in stage.enforcer.drift(3 * NS_PER_S)] == [("0", str(number))]


def test_reading_runs_nothing(stage: Stage) -> None:
    """The knobs of the tick read the snapshot, however old it is."""
    stage.go(START)
    stage.fake._looked_ns = -NS_PER_S
    stage.fake._run = None  # type: ignore[method-assign,assignment]
    with stage.actuator.one_look():
        assert stage.actuator.read_back()
    assert stage.enforcer.drift(2 * NS_PER_S) == []


def test_a_knob_found_again_looks_for_itself(fake: FakePqos) -> None:
    """In a restore the snapshot is not believed: a daemon that was killed may not have noted its last write."""
    address = PqosMaskKnob(fake, 0, 1).ref.address
    knob = kinds_of(fake)[PqosMaskKnob.KIND].make(address)
    fake.look()
    fake.masks[0, 1], fake._looked_ns = 0x3, -NS_PER_S
    assert (PqosMaskKnob(fake, 0, 1).read(), knob.read()) == ("7ff", "3")


def test_the_kinds_find_their_knobs(tmp_path: Path) -> None:
    """A reference of each kind leads to a knob with the same reference, which runs pqos to be read."""
    pqos = Pqos(tmp_path / "snapshot", "os", "/nonexistent/pqos")
    for knob in (PqosMaskKnob(pqos, 1, 2), PqosCpuKnob(pqos, 3), PqosLookKnob(pqos)):
        assert KINDS[knob.ref.kind].make(knob.ref.address).ref == knob.ref
        assert KINDS[knob.ref.kind].slow
    with pytest.raises(KnobError, match="cannot be started"):
        KINDS[PqosCpuKnob.KIND].make(PqosCpuKnob(pqos, 3).ref.address).read()


def test_the_region_may_begin_above_way_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lowest ways are shared with devices, holders' masks begin above them."""
    stage = Stage(tmp_path, FakePqos(tmp_path / "snapshot", shareable=0x3), monkeypatch)
    assert stage.go(START) == (MoveStatus.DONE, "")
    masks = [stage.fake.masks[0, number] for holder, number in stage.actuator._classes.items() if holder != "b"]
    assert stage.fake.masks[0, 0] == 0x3
    assert masks[0] | masks[1] == 0x7FC


def test_classes_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class with a changed mask and one with a CPU are not taken; both are named to the operator."""
    fake = FakePqos(tmp_path / "snapshot", classes=8)
    fake.masks[1, 1] = 0xF
    fake.cpus[6] = 3
    stage = Stage(tmp_path, fake, monkeypatch)
    assert set(stage.actuator._classes.values()) == {2, 4, 5}
    assert len(stage.actuator.problems) == 2
    stage.go(START)
    assert fake.masks[1, 1] == 0xF
    assert fake.masks[0, 3] == fake.masks[1, 3] == FULL


def test_too_few_classes_say_who_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakePqos) -> None:
    """Three are needed, one of the three is somebody's: unmanaged, with the class and its use."""
    fake.masks[0, 2] = 0x3
    pools = Stage(tmp_path, fake, monkeypatch).actuator.pools()
    assert [pool.managed for pool in pools] == [False, False]
    assert "2 (mask 3)" in pools[0].reason


def test_a_later_daemon_knows_its_classes(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart the classes in force are ours, each with the holder that had it, and nothing has to be written."""
    stage.go(START)
    stage.fake.ran.clear()
    later = Stage(tmp_path / "later", stage.fake, monkeypatch)
    assert later.actuator._classes == stage.actuator._classes
    assert later.actuator.problems == ()
    assert later.go(START) == (MoveStatus.DONE, "")
    assert stage.fake.ran == []


def test_divided_cores_are_not_managed(fake: FakePqos) -> None:
    """Where every service is on every CPU pqos cannot tell them apart; it is not even run."""
    actuator = PqosActuator(
        DOMAINS, MANAGED, settings=CacheSettings(), snapshot=fake.snapshot, command="/nonexistent", divides_cores=True
    )
    assert "fractions" in actuator.pools()[0].reason
    assert list(actuator.upkeep()) == []


def test_a_pqos_that_fails_is_the_reason(fake: FakePqos) -> None:
    """Its message is what the operator reads; nothing is written."""
    actuator = PqosActuator(DOMAINS, MANAGED, settings=CacheSettings(), snapshot=fake.snapshot, command="/nonexistent/pqos")
    assert "apt-get install intel-cmt-cat" in actuator.pools()[0].reason
    empty = Placement(Partition({}), {}, {})
    assert (list(actuator.writes(empty, None)), actuator.read_back()) == ([], {})


def test_an_l3_that_pqos_does_not_know(fake: FakePqos, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unmanaged by name, the other one is managed."""
    monkeypatch.setattr(pqos_module, "Pqos", lambda *_: fake)
    domains = (DOMAINS[0], Domain(8, DOMAINS[1].cores))
    pools = PqosActuator(domains, MANAGED, settings=CacheSettings(), snapshot=fake.snapshot).pools()
    assert [pool.managed for pool in pools] == [True, False]
    assert "no L3 with id 8, only 0 1" in pools[1].reason


@pytest.mark.parametrize(("model", "floor"), [("63", 2), ("85", 1)])
def test_haswell_needs_two_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, floor: int) -> None:
    """Pqos may not know the least width of a mask; Haswell takes none of one way."""
    fake = FakePqos(tmp_path / "snapshot", least="unavailable")
    monkeypatch.setattr(pqos_module, "Pqos", lambda *_: fake)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\n\nmodel : 1\n")
    actuator = PqosActuator(DOMAINS, MANAGED, settings=CacheSettings(), snapshot=fake.snapshot, root=tmp_path)
    assert actuator.pools()[0].floor == floor


def test_a_failing_look_is_told_once(fake: FakePqos) -> None:
    """One warning for each reason; one more when it comes back after it worked again."""
    task = PqosLookTask(fake)
    error = OSError(errno.EIO, "pqos -s: exit code 1")
    assert "exit code 1" in task.judge(None, error).warnings[0]
    assert task.judge(None, error).warnings == ()
    assert task.judge(LOOK, None).warnings == ()
    assert task.judge(None, error).warnings


def test_safe_values(fake: FakePqos) -> None:
    """Every way, and class 0."""
    safe_mask, safe_cpu = KINDS[PqosMaskKnob.KIND].safe, KINDS[PqosCpuKnob.KIND].safe
    assert safe_mask is not None
    assert safe_cpu is not None
    assert safe_mask(PqosMaskKnob(fake, 0, 1, live=True)) == "7ff"
    assert safe_cpu(PqosCpuKnob(fake, 3, live=True)) == "0"


def test_a_cpu_that_is_offline_has_vanished(fake: FakePqos) -> None:
    """Its knob is ENODEV; a class that has no mask is unreadable."""
    fake.look()
    with pytest.raises(KnobError) as caught:
        PqosCpuKnob(fake, 99).read()
    assert caught.value.errno == errno.ENODEV
    with pytest.raises(KnobError) as caught:
        PqosMaskKnob(fake, 0, 15).read()
    assert caught.value.errno == errno.EIO


def test_masks_compare_as_numbers() -> None:
    """Leading zeros and one mask for both make no difference."""
    knob = PqosMaskKnob(FakePqos(Path("snapshot")), 0, 1)
    assert knob.same("7", "007")
    assert knob.same("7/7", "7")
    assert not knob.same("7", None)


WAYS = st.integers(1, 4)
PARTITIONS = st.tuples(WAYS, WAYS, st.integers(1, 9), st.integers(0, 2), st.integers(0, 1))


@settings(max_examples=15)
@given(st.lists(PARTITIONS, min_size=2, max_size=5), st.sampled_from([0, 0, 3, 5, 8]))
def test_no_two_holders_share_a_way_or_a_cpu(moves: list[tuple[int, int, int, int, int]], fails_at: int) -> None:
    """After every single write of every plan, also of one that fails and goes back: exclusive ways belong to one class each."""
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as directory:
        stage = Stage(Path(directory), FakePqos(Path(directory) / "snapshot"), monkeypatch)
        stage.go(START)

        def check() -> None:
            for unit in (0, 1):
                held = [stage.fake.masks[unit, number] & ~0x600 for number in stage.actuator._classes.values()]
                assert sum(mask.bit_count() for mask in held) == (held[0] | held[1] | held[2]).bit_count()
            if fails_at and len(stage.fake.ran) == fails_at:
                stage.fake.refuse = errno.EBUSY

        stage.slow.after_each = check
        for index, (a_ways, jobs_ways, b_ways, a_cores, b_jobs) in enumerate(moves):
            stage.fake.ran.clear()
            cores = {0: {"a": max(a_cores, 1), BEST_EFFORT: 2 - max(a_cores, 1)}, 1: {"b": 2 - b_jobs, BEST_EFFORT: b_jobs}}
            stage.go((cores, {0: {"a": a_ways, BEST_EFFORT: jobs_ways}, 1: {"b": b_ways}}), (100 * index + 10) * NS_PER_S)
        assert stage.placement is not None
        expected = {cpu: holder for holder in MANAGED for cpu in stage.placement.cpus.get(holder, ())}
        assert {cpu: holder for cpu, holder in stage.owners().items() if holder != RESERVED} == expected
        assert Mask.parse(stage.actuator._masks[0, "a"].read()).ways & 0x600 in {0, 0x600}

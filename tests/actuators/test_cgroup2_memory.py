"""Memory limits of control groups v2: lowered in steps, refused or taken back where that hurts."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest
from fake_cgroup2 import PAGE_BYTES, Cgroup2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.cgroup.group import MemoryLimit
from actuators.cgroup.v2 import GroupLayerV2
from actuators.cgroup.v2_memory import MemoryKnob, ShrinkRule
from actuators.memory import MemoryActuator
from actuators.registry import KINDS
from parties.enforcer import Enforcer
from parties.journal import Journal
from parties.knob import Effect, KnobError, KnobRef, KnobWrite
from parties.model import BEST_EFFORT, Core, Domain, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import MemorySettings
from parties.slow_writer import SlowResult

MB = 1_000_000
GB = 1000 * MB
S = 1_000_000_000
KEY = PoolKey(Resource.MEMORY, 0)
DOMAIN = Domain(0, (Core(0, (0,)),))
limits = st.one_of(st.none(), st.integers(1, 40).map(lambda pages: pages * PAGE_BYTES))


def knob_of(v2: Cgroup2, in_use: int = 0, path: str = "/rack/web") -> MemoryKnob:
    """A group's limits, so much memory being in use."""
    place = v2.make(path, "memory")
    v2.use(place, in_use)
    return MemoryKnob(place)


def in_force(v2: Cgroup2) -> tuple[str, str]:
    """memory.high and memory.max."""
    return v2.text(v2.tree / "rack/web", "memory.high"), v2.text(v2.tree / "rack/web", "memory.max")


def refused(knob: MemoryKnob, value: str, message: str) -> None:
    """The write is refused as something that is in use."""
    with pytest.raises(KnobError, match=message) as caught:
        knob.write(value)
    assert caught.value.errno == errno.EBUSY


@given(limits, limits)
def test_a_limit_s_text_is_read_as_it_was_written(high: int | None, maximum: int | None) -> None:
    """Plain bytes where both are the same; what may be used is the lower of both."""
    limit = MemoryLimit(high, maximum)
    if limit != MemoryLimit():
        assert MemoryLimit.parse(str(limit)) == limit
        assert str(limit).isdigit() == (high == maximum)
    assert limit.least == min((n for n in (high, maximum) if n is not None), default=None)


def test_lowering_reclaims_first_and_limits_last(v2: Cgroup2) -> None:
    """Nothing is limited before the kernel has shown that it can reclaim; memory.max never meets use above it."""
    place = v2.tree / "rack/web"
    knob = knob_of(v2, 900 * MB)
    v2.log.clear()
    use_at: list[int] = []
    v2.after_write = lambda name, _: use_at.append(int(v2.text(place, "memory.current"))) if name == "memory.max" else None
    knob.write(str(600 * MB))
    names = [path.rpartition("/")[2] for path, _ in v2.log]
    assert [name for name, _ in itertools.groupby(names)] == ["memory.reclaim", "memory.high", "memory.max", "memory.high"]
    assert all(int(text) <= ShrinkRule().piece_bytes for path, text in v2.log if path.endswith("reclaim"))
    assert use_at[0] < 600 * MB
    assert knob.same(str(600 * MB), knob.read())
    assert len(set(in_force(v2))) == 1


def test_what_cannot_be_reclaimed_is_refused_and_nothing_was_lowered(v2: Cgroup2) -> None:
    """EAGAIN of memory.reclaim becomes a refusal with the figures; no limit was touched on the way."""
    knob = knob_of(v2, 900 * MB)
    v2.put(v2.tree / "rack/web", "memory.stat", f"anon {700 * MB}\nfile {200 * MB}\ninactive_file 5")
    v2.unreclaimable = 700 * MB
    refused(
        knob,
        str(600 * MB),
        "cannot reclaim that much: 700000000 bytes are in use, 700000000 of them anonymous",
    )
    assert not [path for path, _ in v2.log if not path.endswith("memory.reclaim")]
    assert knob.read() is None


def test_without_memory_reclaim_memory_high_has_to_show_it(v2: Cgroup2) -> None:
    """Kernels before 5.19: memory.high first; if use does not fall under it in time, it is put back."""
    knob = knob_of(v2, 900 * MB)
    place = v2.tree / "rack/web"
    (place / "memory.reclaim").unlink()
    v2.unreclaimable = 700 * MB
    refused(knob, str(600 * MB), "memory.high did not bring use under it")
    assert in_force(v2) == ("max", "max")
    assert v2.text(place, "memory.events") == "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0"
    v2.unreclaimable = 100 * MB
    knob.write(str(600 * MB))
    assert knob.same(str(600 * MB), knob.read())


def test_a_service_that_reads_again_what_is_reclaimed_ends_in_a_refusal(v2: Cgroup2) -> None:
    """Reclaim that never gets ahead is given up after its time, and nothing was lowered."""
    knob = knob_of(v2, 900 * MB)

    def grow(_name: str, _text: str) -> None:
        v2.use(v2.tree / "rack/web", 900 * MB)
        v2.now_ns += S // 2

    v2.after_write = grow
    refused(knob, str(600 * MB), "takes over 4 s")
    assert in_force(v2) == ("max", "max")


@pytest.mark.parametrize(
    ("event", "message"),
    [("oom", "1 OOM events since"), ("oom_kill", "1 OOM events since"), ("stall", "waited .* of the time for memory")],
)
def test_the_guard_takes_the_limit_back_at_once(v2: Cgroup2, event: str, message: str) -> None:
    """An OOM, or processes that wait for memory a tenth of the time more than before, within two seconds after the limit."""
    knob = knob_of(v2, 590 * MB)
    knob.write(str(800 * MB))
    place, asleep = v2.tree / "rack/web", itertools.count()

    def meanwhile() -> None:
        if next(asleep) == 4:
            if event == "stall":
                v2.stall(place, S // 4)
            else:
                v2.bump(place, event)

    v2.while_asleep = meanwhile
    before, begun_ns = in_force(v2), v2.now_ns
    refused(knob, str(600 * MB), message)
    assert in_force(v2) == before
    assert v2.now_ns - begun_ns < ShrinkRule().guard_ns // 2


def test_a_guard_that_sees_nothing_worse_lets_the_limit_be(v2: Cgroup2) -> None:
    """Pressure that was there before, page cache that is recycled, and a little waiting are no harm; the guard keeps its time."""
    knob = knob_of(v2, 590 * MB)
    place = v2.tree / "rack/web"
    v2.stall(place, 7 * S, avg10=30.0)
    waited = itertools.count(7 * S, 18_000_000)  # 36 % of the time

    def meanwhile() -> None:
        v2.stall(place, next(waited), avg10=30.0)
        v2.bump(place, "max", 500)

    v2.while_asleep = meanwhile
    knob.write(str(600 * MB))
    assert knob.same(str(600 * MB), knob.read())
    assert v2.now_ns >= ShrinkRule().guard_ns
    assert next(waited) > 7 * S + 30 * 18_000_000


def test_without_pressure_hits_of_the_limit_count_instead(v2: Cgroup2) -> None:
    """A kernel without PSI: some hits are let pass, thousands are not."""
    knob = knob_of(v2, 590 * MB)
    place = v2.tree / "rack/web"
    (place / "memory.pressure").unlink()
    v2.while_asleep = lambda: v2.bump(place, "max", 20)
    knob.write(str(600 * MB))
    v2.while_asleep = lambda: v2.bump(place, "high", 200)
    refused(knob, str(590 * MB), "the limit was hit .* times in")
    assert knob.same(str(600 * MB), knob.read())


def test_no_guard_where_nobody_can_feel_it(v2: Cgroup2) -> None:
    """A limit far above what is in use is set at once, so that a start does not take two seconds for each service."""
    knob = knob_of(v2, 100 * MB)
    knob.write(str(600 * MB))
    assert v2.now_ns < S // 100


def test_raising_is_two_writes_and_no_wait(v2: Cgroup2) -> None:
    """memory.max first, so that memory.high never is the one that lets use meet memory.max."""
    knob = knob_of(v2, 590 * MB)
    knob.write(str(600 * MB))
    v2.log.clear()
    now_ns = v2.now_ns
    knob.write(str(700 * MB))
    assert [path.rpartition("/")[2] for path, _ in v2.log] == ["memory.max", "memory.high"]
    assert v2.now_ns - now_ns < S // 100


def test_both_limits_come_back_as_somebody_had_set_them(v2: Cgroup2) -> None:
    """High and max of their own, also one of them alone; under what is in use by then that is refused, not killed."""
    knob = knob_of(v2, 100 * MB)
    place = v2.tree / "rack/web"
    for high, maximum in (("204800", "409600"), ("204800", "max"), ("max", "409600"), ("max", "max")):
        v2.use(place, 100_000)
        v2.put(place, "memory.high", high)
        v2.put(place, "memory.max", maximum)
        before = knob.read()
        knob.write(str(600 * MB))
        v2.use(place, 500 * MB)
        if before is not None:
            v2.unreclaimable = 400 * MB
            with pytest.raises(KnobError, match="cannot reclaim that much"):
                knob.restore(before)
            assert knob.same(str(600 * MB), knob.read())
            v2.unreclaimable = 0
        knob.restore(before)
        assert in_force(v2) == (high, maximum)
        assert v2.text(place, "memory.events").endswith("oom 0\noom_kill 0")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(limits, limits), min_size=2, max_size=5), st.integers(0, 60), st.integers(0, 60))
def test_no_change_of_limits_ever_kills(v2: Cgroup2, steps: list[tuple[int | None, int | None]], in_use: int, stuck: int) -> None:
    """Whatever is set over whatever was, and however little can be reclaimed: done, or refused and as before; no OOM."""
    knob = knob_of(v2, 0)
    place = v2.tree / "rack/web"
    v2.unreclaimable = 0
    knob.restore(None)
    v2.use(place, in_use * PAGE_BYTES)
    v2.unreclaimable = min(in_use, stuck) * PAGE_BYTES
    for high, maximum in steps:
        before, wanted = knob.read(), MemoryLimit(high, maximum)
        try:
            knob.restore(None if wanted == MemoryLimit() else str(wanted))
        except KnobError:
            assert knob.read() == before
        else:
            assert MemoryLimit.parse(knob.read()) == wanted
        assert v2.text(place, "memory.events").endswith("oom 0\noom_kill 0")


def test_the_actuator_speaks_bytes_and_takes_slowly(v2: Cgroup2) -> None:
    """As on v1: lowering goes to the slow writer, raising does not; both limits of a group count, and none is everything."""
    for path in ("/a", "/b", "/be"):
        v2.make(path, "memory")
    v2.put(v2.tree / "b", "memory.high", str(2 * GB // PAGE_BYTES * PAGE_BYTES))
    managed = {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/be",)}
    layer = GroupLayerV2(v2.hierarchies, v2.root)
    actuator = MemoryActuator(layer, managed, MemorySettings(9 * GB), (DOMAIN,))
    assert actuator.read_back() == {KEY: {"a": 9 * GB, "b": 2 * GB, BEST_EFFORT: 9 * GB}}
    amounts = {"a": 4 * GB, "b": 3 * GB, BEST_EFFORT: 2 * GB}
    plan = actuator.writes(Placement(Partition({KEY: amounts}), {}, {}), None)
    of_groups = [write for write in plan if not write.knob.ref.kind.startswith("cgroup2.subtree")]
    assert [(write.holder, write.effect, write.slow) for write in of_groups] == [
        ("a", Effect.TAKE, True),
        ("b", Effect.GIVE, False),
        (BEST_EFFORT, Effect.TAKE, True),
    ]
    for write in plan:
        write.knob.write(write.value)
    assert actuator.read_back() == {KEY: amounts}


class SlowAsked:
    """Takes slow writes and never ends them."""

    def __init__(self) -> None:
        self.asked: list[tuple[KnobRef, str | None]] = []

    def submit(self, ref: KnobRef, value: str | None, _now_ns: int) -> int:
        self.asked.append((ref, value))
        return len(self.asked)

    def poll(self, _now_ns: int) -> list[SlowResult]:
        return []


def test_writing_over_a_raised_limit_is_never_done_on_the_tick(v2: Cgroup2, tmp_path: Path) -> None:
    """Raising is; but what may shrink, with its guard of seconds, is the slow writer's, though no plan was slow yet."""
    knob = knob_of(v2, 590 * MB)
    v2.put(v2.tree / "rack/web", "memory.max", str(500 * MB // PAGE_BYTES * PAGE_BYTES))
    slow = SlowAsked()
    enforcer = Enforcer(Journal(tmp_path / "state", started_unix_ns=1), slow, kinds=KINDS)
    enforcer.apply([KnobWrite(knob, str(600 * MB), "web", Effect.GIVE)], 0)
    assert not slow.asked
    v2.put(v2.tree / "rack/web", "memory.max", str(800 * MB // PAGE_BYTES * PAGE_BYTES))
    for tick in range(1, 5):
        enforcer.drift(tick * S)
    assert slow.asked == [(knob.ref, str(600 * MB))]

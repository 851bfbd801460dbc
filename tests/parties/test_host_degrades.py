"""An unknown error in one part of the host platform degrades that part to hold, and the rest goes on."""

from __future__ import annotations

import selectors
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parties.enforcer import Outcome
from parties.host import HostPlatform, Monitors
from parties.interfaces import Finding
from parties.model import (
    BEST_EFFORT,
    IDLE,
    Core,
    Domain,
    LatencyView,
    Move,
    MoveStatus,
    Node,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    ServiceState,
    Usage,
)
from parties.upkeep import Upkeep

CORES, DISK = PoolKey(Resource.CORES, 0), PoolKey(Resource.DISK)
NODE = Node("two", (Domain(0, (Core(1, (1,)),)),), {CORES: Pool(CORES, 1000, 50, 100), DISK: Pool(DISK, 20, 1, 1)})
START = Partition({CORES: {"web": 500, BEST_EFFORT: 500, IDLE: 0}, DISK: {"web": 10, BEST_EFFORT: 10}})


class Broken(Exception):  # noqa: N818 - what it is does not matter
    """Nobody expected it."""


class Parts:
    """Monitors, actuators and an enforcer of plain values; ``broken`` names what fails."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.events: list[str] = []

    def fail_if(self, part: str) -> None:
        if part in self.broken:
            raise Broken(part)

    # The signal, the usage monitor and the classifier.
    def views(self, _now_ns: int) -> Mapping[str, LatencyView]:
        self.fail_if("signal")
        return {"web": LatencyView(ServiceState.OK, 5, 5, fresh=True)}

    def note_change(self, service: str, now_ns: int) -> None:
        """Nobody asks."""

    def sample(self, _now_ns: int) -> Mapping[str, Usage]:
        self.fail_if("usage")
        return {"web": Usage(cpu_millicores=7)}

    def populated(self) -> Mapping[str, bool]:
        return {"web": True, BEST_EFFORT: True}

    def observe(self, _now_ns: int, _populated: Mapping[str, bool]) -> Mapping[str, bool | None]:
        return {"web": True}

    # The actuators and the enforcer.
    def writes(self, *_: object) -> Sequence[object]:
        self.fail_if("actuator")
        return ()

    def apply(self, _writes: object, _now_ns: int) -> Outcome:
        return Outcome(MoveStatus.DONE)

    def poll(self, _now_ns: int) -> list[object]:
        return []

    def drift(self, _now_ns: int) -> list[object]:
        return []


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def platform(parts: Parts) -> HostPlatform:
    other = SimpleNamespace(writes=lambda *_: ())
    made = HostPlatform(
        NODE,
        [Service("web", QosTarget(10))],
        actuators=cast("Any", {Resource.CORES: parts, Resource.DISK: other}),
        enforcer=cast("Any", parts),
        monitors=Monitors(*cast("Any", (parts, parts, parts))),
        selector=selectors.DefaultSelector(),
        sources=selectors.DefaultSelector(),
        events=lambda level, text: parts.events.append(f"{level}: {text}"),
        upkeep=Upkeep((), cast("Any", parts)),
        clock=lambda: 0,
    )
    made.start(START, best_effort_idle_class=True, sharing={})
    return made


def test_a_broken_signal_makes_every_service_stale_and_is_told_once(parts: Parts, platform: HostPlatform) -> None:
    """Stale is what policies hold on; when the signal works again, so do they."""
    parts.broken = {"signal"}
    assert [platform.observe(tick).services["web"].latency.state for tick in (1, 2)] == [ServiceState.STALE] * 2
    assert parts.events == ["warning: latencies cannot be judged: Broken: signal"]
    parts.broken = set()
    assert platform.observe(3).services["web"].latency.state is ServiceState.OK
    assert platform.observe(3).services["web"].usage.cpu_millicores == 7


def test_a_broken_usage_monitor_costs_the_use_and_not_the_latencies(parts: Parts, platform: HostPlatform) -> None:
    """Nothing is known of use, and nobody is taken to be absent."""
    parts.broken = {"usage"}
    seen = platform.observe(1).services["web"]
    assert seen.usage == Usage()
    assert seen.latency.state is ServiceState.OK
    assert len(parts.events) == 1


def test_a_broken_actuator_costs_its_own_moves_and_not_its_neighbours(parts: Parts, platform: HostPlatform) -> None:
    """The move is refused and the pool as it was, while another pool's move goes through in the same interval."""
    parts.broken = {"actuator"}
    moves = [Move(1, key, BEST_EFFORT, "web", NODE.pools[key].step, Reason.UPSIZE_FROM_BEST_EFFORT) for key in (CORES, DISK)]
    platform.apply(moves)
    observation = platform.observe(2)
    assert {outcome.move.pool: outcome.status for outcome in observation.outcomes} == {
        CORES: MoveStatus.REFUSED,
        DISK: MoveStatus.DONE,
    }
    assert observation.partition.amount(CORES, "web") == 500
    assert observation.partition.amount(DISK, "web") == 11


def test_a_broken_reader_does_not_end_the_wait(parts: Parts, platform: HostPlatform) -> None:
    """What a reader raises is told, and the tick is held all the same."""
    times = iter([0, 0, 0, 5, 5, 5, 10, 10, 10, 10, 10])
    platform._clock = lambda: next(times, 10)

    def fail(_mask: int) -> None:
        raise Broken("reader")

    platform._selector = cast("Any", SimpleNamespace(select=lambda _timeout: [(SimpleNamespace(data=fail), 1)]))
    assert platform.wait_until(10) is True
    assert parts.events == ["warning: a message cannot be taken in: Broken: reader"]


class Apart:
    """An enforcer that refuses what it is told to."""

    def __init__(self, refused: int) -> None:
        self.refused = refused
        self.seen: list[object] = []

    def apply_apart(self, writes: Sequence[object], _now_ns: int) -> list[Outcome]:
        self.seen += writes
        bad = [Outcome(MoveStatus.REFUSED, f"knob {number}: busy") for number in range(self.refused)]
        return [*bad, *(Outcome(MoveStatus.DONE) for _ in writes[self.refused :])]


@pytest.mark.parametrize(
    ("refused", "told"),
    [(0, []), (1, ["warning: refused: knob 0: busy"]), (2, ["warning: refused: knob 0: busy; so are 1 more of 3"])],
)
def test_what_of_the_rest_is_refused_is_told_in_one_line_and_stops_nothing(parts: Parts, refused: int, told: list[str]) -> None:
    """The start goes on, with a partition and without one."""
    enforcer = Apart(refused)
    for partition in (None, START):
        parts.events.clear()
        made = HostPlatform(
            NODE,
            [Service("web", QosTarget(10))],
            actuators={},
            enforcer=cast("Any", enforcer),
            monitors=Monitors(*cast("Any", (parts, parts, parts))),
            selector=selectors.DefaultSelector(),
            sources=selectors.DefaultSelector(),
            events=lambda level, text: parts.events.append(f"{level}: {text}"),
            upkeep=Upkeep((), cast("Any", parts)),
            clock=lambda: 0,
        )
        made.start(partition, best_effort_idle_class=False, sharing={}, rest=cast("Any", ("a", "b", "c")))
        assert parts.events == told
    assert enforcer.seen == ["a", "b", "c"] * 2


def test_writes_that_an_upkeep_task_wants_apart_are_carried_out_so(parts: Parts, platform: HostPlatform) -> None:
    """A finding says whether its writes are one plan or many."""
    enforcer = Apart(1)
    finding = Finding(cast("Any", ("a", "b")), ("mind this",), apart=True)
    platform._enforcer = cast("Any", SimpleNamespace(apply_apart=enforcer.apply_apart, poll=parts.poll, drift=parts.drift))
    platform._upkeep = cast("Any", SimpleNamespace(tend=lambda _now_ns: [finding]))
    platform.observe(1)
    assert enforcer.seen == ["a", "b"]
    assert parts.events == ["warning: mind this", "warning: refused: knob 0: busy"]

"""Heracles: what becomes of its moves, and what holds whatever happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from heracles_kit import (
    BANDWIDTH,
    GB,
    GHZ,
    KEYS,
    POWER,
    make,
    view,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from parties.model import (
    BEST_EFFORT,
    Move,
    MoveOutcome,
    MoveStatus,
    Reason,
    Resource,
    ServiceState,
    Usage,
)

# What becomes of moves


def test_a_pending_pool_is_left_alone_and_the_rest_goes_on() -> None:
    """While a move of cores is under way no other is made; it is made up for when that is through."""
    scene = make("a")
    scene.run(0.5, 0.5)
    under_way = Move(1, KEYS[Resource.CORES], "strict", BEST_EFFORT, 1000, Reason.BEST_EFFORT_GROWN)
    scene.fates[Resource.CORES] = MoveStatus.PENDING
    for _ in range(40):
        scene.outcomes = (MoveOutcome(under_way, MoveStatus.PENDING),)
        decision = scene.step(-0.1)
        assert Resource.CORES not in {move.pool.resource for move in decision.moves}
    assert (scene.cores() > 0, scene.ways()) == (True, 0)
    assert decision.reason is Reason.HOLD_PENDING
    scene.fates.clear()
    scene.outcomes = ()
    scene.step(-0.1)
    assert scene.cores() == 0


def test_a_refused_suspension_is_tried_again() -> None:
    """The group is to be off, and has cores: it is told again until it has none."""
    scene = make("a")
    scene.fates[Resource.CORES] = MoveStatus.REFUSED
    scene.run(3, -0.1)
    assert (scene.cores(), scene.ways()) == (1, 0)
    scene.fates.clear()
    scene.step(-0.1)
    assert scene.cores() == 0


def test_a_way_that_was_refused_is_not_taken_back() -> None:
    """The trial never took place: nothing to roll back, and the way is asked for again."""
    scene = make("a")
    scene.bandwidth = 30 * GB
    scene.fates[Resource.CACHE] = MoveStatus.REFUSED
    scene.run(4, 0.5)
    assert scene.ways() == 2
    scene.fates.clear()
    scene.run(2, 0.5)
    assert scene.ways() == 3


def test_a_way_that_is_still_under_way_is_judged_when_it_has_come() -> None:
    """The turn at which its move pends passes; the next one takes it back, as traffic has not fallen."""
    scene = make("a")
    scene.bandwidth = 30 * GB
    scene.run(2, 0.5)
    assert scene.ways() == 3
    under_way = scene.decisions[0].moves[0]
    assert under_way.pool.resource is Resource.CACHE
    for _ in range(4):
        scene.outcomes = (MoveOutcome(under_way, MoveStatus.PENDING),)
        assert not scene.step(0.5).moves
    scene.run(2, 0.5)
    assert scene.ways() == 2


# Whatever happens


@dataclass(frozen=True)
class Seen:
    """What is drawn for an interval."""

    state: ServiceState
    slack: float
    load: float
    fresh: bool
    bandwidth: int | None
    power: int | None
    progress: float | None
    usage: Usage
    job_present: bool
    fates: Mapping[Resource, MoveStatus]


def seen() -> st.SearchStrategy[Seen]:
    return st.builds(
        Seen,
        state=st.sampled_from([*ServiceState, *[ServiceState.OK] * 8]),
        slack=st.sampled_from([-1.0, -0.01, 0.0, 0.04, 0.06, 0.2, 0.2, 0.5, 0.5]),
        load=st.sampled_from([0.0, 0.5, 0.5, 0.79, 0.82, 0.9, 1.2]),
        fresh=st.sampled_from([True, True, True, False]),
        bandwidth=st.none() | st.integers(0, 2 * BANDWIDTH),
        power=st.none() | st.integers(0, 2 * POWER),
        progress=st.none() | st.floats(0, 1),
        usage=st.builds(
            Usage,
            network_bits_per_s=st.none() | st.integers(0, 12 * GB),
            memory_bandwidth_bytes_per_s=st.none() | st.integers(0, BANDWIDTH),
            frequency_hz=st.none() | st.integers(GHZ, 3 * GHZ),
        ),
        job_present=st.sampled_from([True, True, False]),
        fates=st.dictionaries(st.sampled_from(list(KEYS)), st.sampled_from(list(MoveStatus)), max_size=2),
    )


@settings(max_examples=60)
@given(
    st.lists(st.tuples(seen(), st.integers(1, 40)), min_size=1, max_size=12),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([{}, {Resource.CORES: 4000, Resource.CACHE: 3}]),
    st.sampled_from([{}, {Resource.CORES: 9000}]),
)
def test_every_moment_conserves_and_the_service_keeps_its_floor(
    intervals: list[tuple[Seen, int]],
    others: int,
    best_effort: bool,  # noqa: FBT001 - drawn
    minimum: Mapping[Resource, int],
    maximum: Mapping[Resource, int],
) -> None:
    """After every single move: sums are the pools', the service within its limits, nobody negative, closed pools untouched."""
    scene = make(*map(str, range(others)), best_effort=best_effort, minimum=minimum, maximum=maximum)
    scene.partition.check(scene.node, [scene.service])
    for drawn, times in intervals:
        scene.bandwidth, scene.power, scene.progress, scene.usage = drawn.bandwidth, drawn.power, drawn.progress, drawn.usage
        scene.job_present, scene.fates = drawn.job_present, dict(drawn.fates)
        latency = dataclasses.replace(view(drawn.slack, drawn.state), fresh=drawn.fresh)
        for _ in range(times):
            before, closed = scene.partition, {o.move.pool for o in scene.outcomes if o.status is MoveStatus.PENDING}
            decision = scene.step(latency, drawn.load)
            assert not closed & {move.pool for move in decision.moves}
            after = before.after(decision.moves)
            after.check(scene.node, [scene.service])
            for pool in scene.node.managed_pools():
                if pool.key in after.amounts and any(move.pool == pool.key for move in decision.moves):
                    assert scene.service.floor(pool) <= after.amount(pool.key, "strict") <= scene.service.ceiling(pool)

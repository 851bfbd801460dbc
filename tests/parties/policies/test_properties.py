"""What holds for every sequence of observations, whatever the services do and whatever becomes of the moves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from parties.model import (
    Decision,
    Domain,
    LatencyView,
    Move,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.policies.parties import Parties
from parties.settings import PartiesSettings

TARGET_NS = 1_000_000
INTERVAL_NS = 500_000_000
BLOCK_NS = 3_000_000_000  # six intervals, so that a sequence sees blocks begin and end
SETTINGS = PartiesSettings(downsize_block_ns=BLOCK_NS, migrate_after_ns=2_000_000_000, memory_slack_bytes=2)
NETWORK_USE = 1_000_000_000


@dataclass(frozen=True)
class Seen:
    """What is drawn for one service in one interval."""

    state: ServiceState
    latency_percent: int
    caution_percent: int
    fresh: bool
    memory: int | None
    network: int | None
    in_memory: bool | None

    def observation(self) -> ServiceObservation:
        latency_ns = TARGET_NS * self.latency_percent // 100
        view = LatencyView(
            self.state,
            latency_ns=latency_ns,
            cautious_latency_ns=latency_ns * (100 + self.caution_percent) // 100,
            fresh=self.fresh,
        )
        return ServiceObservation(view, Usage(memory_bytes=self.memory, network_bits_per_s=self.network), self.in_memory)


@dataclass(frozen=True)
class Interval:
    """One interval: what is seen of each service, what becomes of the moves, whether a best-effort job runs."""

    seen: tuple[Seen, ...]
    fates: tuple[int, ...]  # -1 refused, 0 done, n pending for n intervals
    best_effort: bool


@dataclass(frozen=True)
class Play:
    """A node, its services, and what happens to them."""

    node: Node
    services: tuple[Service, ...]
    intervals: tuple[Interval, ...]
    best_effort: bool
    seed: int


@dataclass
class Run:
    """A play as it went: each observation with its decision."""

    ticks: list[tuple[Observation, Decision]] = field(default_factory=list)

    @property
    def decisions(self) -> list[Decision]:
        return [decision for _, decision in self.ticks]


def seen() -> st.SearchStrategy[Seen]:
    states = st.sampled_from([*ServiceState, *[ServiceState.OK] * 8])
    return st.builds(
        Seen,
        state=states,
        latency_percent=st.sampled_from([5, 40, 79, 81, 94, 96, 99, 101, 150, 900]),
        caution_percent=st.sampled_from([0, 0, 20]),
        fresh=st.sampled_from([True, True, True, False]),
        memory=st.none() | st.integers(0, 12),
        network=st.none() | st.integers(0, 8).map(lambda half: half * NETWORK_USE // 2),
        in_memory=st.sampled_from([None, True, False]),
    )


@st.composite
def plays(draw: st.DrawFn) -> Play:
    count = draw(st.integers(1, 4))
    domains = draw(st.integers(1, 2))
    homes = [draw(st.integers(0, domains - 1)) for _ in range(count)]
    services = tuple(
        Service(
            f"s{index}",
            QosTarget(TARGET_NS),
            home=home,
            stateless=draw(st.booleans()),
            minimum=draw(st.sampled_from([{}, {}, {Resource.CORES: 200}])),
            maximum=draw(st.sampled_from([{}, {}, {Resource.CORES: 300, Resource.MEMORY: 4}])),
        )
        for index, home in enumerate(homes)
    )
    made = [
        *(
            Pool(PoolKey(Resource.CORES, home), total=draw(st.integers(8, 20)) * 100, step=100, floor=200)
            for home in range(domains)
        ),
        *(Pool(PoolKey(Resource.CACHE, home), total=draw(st.integers(4, 12)), step=1, floor=1) for home in range(domains)),
        Pool(PoolKey(Resource.FREQUENCY, 0), levels=(10, 20, 30, 40)),
        Pool(PoolKey(Resource.FREQUENCY, 1), levels=(10, 20, 30, 40)),
        Pool(PoolKey(Resource.MEMORY), total=draw(st.integers(4, 12)), step=1, floor=1),
        Pool(PoolKey(Resource.DISK), total=40, step=5, floor=5),
        Pool(PoolKey(Resource.NETWORK), total=10 * NETWORK_USE, step=NETWORK_USE // 2, floor=NETWORK_USE // 2),
    ]
    unmanaged = draw(st.sets(st.sampled_from([pool.key for pool in made]), max_size=3))
    pools = [Pool(pool.key, managed=False, reason="drawn") if pool.key in unmanaged else pool for pool in made]
    node = Node("drawn", tuple(Domain(home, ()) for home in range(domains)), {pool.key: pool for pool in pools})
    interval = st.builds(
        Interval,
        seen=st.tuples(*[seen()] * count),
        fates=st.tuples(*[st.sampled_from([0, 0, 0, 0, -1, 1, 3])] * 6),
        best_effort=st.sampled_from([True, True, False]),
    )
    intervals = draw(st.lists(interval, min_size=1, max_size=40))
    return Play(node, services, tuple(intervals), draw(st.booleans()), draw(st.integers(0, 99)))


@dataclass
class Platform:
    """Carries moves out at once, refuses them, or lets them pend; the partition is checked at every moment."""

    node: Node
    services: Sequence[Service]
    partition: Partition
    outcomes: list[MoveOutcome] = field(default_factory=list)
    pending: list[tuple[int, Move]] = field(default_factory=list)  # intervals left

    def apply(self, move: Move, fate: int) -> None:
        if fate > 0:
            self.pending.append((fate, move))
        elif fate < 0:
            self.outcomes.append(MoveOutcome(move, MoveStatus.REFUSED))
        else:
            self._carry_out(move)

    def pass_interval(self) -> tuple[MoveOutcome, ...]:
        waiting, self.pending = self.pending, []
        for left, move in waiting:
            if left > 1:
                self.pending.append((left - 1, move))
                self.outcomes.append(MoveOutcome(move, MoveStatus.PENDING))
            elif move.amount % 2:  # some of them end badly
                self.outcomes.append(MoveOutcome(move, MoveStatus.REFUSED))
            else:
                self._carry_out(move)
        outcomes, self.outcomes = tuple(self.outcomes), []
        return outcomes

    def _carry_out(self, move: Move) -> None:
        self.partition = self.partition.after([move])
        self.partition.check(self.node, self.services)
        self.outcomes.append(MoveOutcome(move, MoveStatus.DONE))


def run(play: Play) -> Run:
    policy = Parties(
        play.node,
        play.services,
        best_effort=play.best_effort,
        settings=SETTINGS,
        rng=random.Random(play.seed),  # noqa: S311 - replayable
    )
    platform = Platform(play.node, play.services, policy.initial())
    platform.partition.check(play.node, play.services)
    done = Run()
    for tick, interval in enumerate(play.intervals, 1):
        names = (service.name for service in play.services)
        outcomes = platform.pass_interval()
        observation = Observation(
            tick * INTERVAL_NS,
            tick,
            {name: drawn.observation() for name, drawn in zip(names, interval.seen, strict=True)},
            platform.partition,
            outcomes,
            best_effort_present=interval.best_effort,
        )
        decision = policy.decide(observation)
        done.ticks.append((observation, decision))
        platform.partition.after(decision.moves).check(play.node, play.services)
        for index, move in enumerate(decision.moves):
            platform.apply(move, interval.fates[index % len(interval.fates)])
    return done


def traded(decision: Decision) -> list[Move]:
    """The moves of an interval without those of the network."""
    return [move for move in decision.moves if move.pool.resource is not Resource.NETWORK]


@settings(max_examples=80)
@given(plays())
def test_every_moment_conserves_and_nobody_falls_under_a_limit(play: Play) -> None:
    """Conservation and floors at every moment (checked while it runs); minimum and maximum for what the policy moves."""
    for observation, decision in run(play).ticks:
        after = observation.partition.after(decision.moves)
        for service in play.services:
            for move in decision.moves:
                pool = play.node.pools[move.pool]
                if move.giver == service.name:
                    assert after.amount(pool.key, service.name) >= service.floor(pool)
                if move.taker == service.name:
                    assert after.amount(pool.key, service.name) <= service.ceiling(pool)


@settings(max_examples=80)
@given(plays())
def test_one_move_of_one_step_of_one_resource(play: Play) -> None:
    """In each domain at most one move besides the network's, one step, within one pool that both share and that is not closed.

    Moves of one interval have neither a pool nor a service in common.
    """
    homes = {service.name: service.home for service in play.services}
    for observation, decision in run(play).ticks:
        moves = traded(decision)
        subjects = [homes[str(move.giver if move.reason is Reason.DOWNSIZE_LARGEST_SLACK else move.taker)] for move in moves]
        assert len(subjects) == len(set(subjects))
        assert len(moves) == len({move.pool for move in moves})
        touched = [holder for move in moves for holder in (move.giver, move.taker) if holder in homes]
        assert len(touched) == len(set(touched))
        network = [move for move in decision.moves if move not in traded(decision)]
        assert len({move.giver if move.giver in homes else move.taker for move in network}) == len(network)
        closed = {outcome.move.pool for outcome in observation.outcomes if outcome.status is MoveStatus.PENDING}
        for move in decision.moves:
            pool = play.node.pools[move.pool]
            assert pool.managed
            assert move.pool not in closed
            assert move.tick == observation.tick
            assert move.amount == (10 if pool.levels else pool.step)
            for holder in (move.giver, move.taker):
                assert holder not in homes or play.node.key(move.pool.resource, homes[str(holder)]) == move.pool


@settings(max_examples=80)
@given(plays())
def test_a_revert_blocks_and_upsizes_are_not_reverted(play: Play) -> None:
    """After a revert no downsize of that service for the block's time; every revert follows a downsize of that pool."""
    reverted_ns: dict[str, int] = {}
    downsized: dict[str, PoolKey] = {}
    for observation, decision in run(play).ticks:
        for move in traded(decision):
            if move.reason is Reason.DOWNSIZE_LARGEST_SLACK:
                giver = str(move.giver)
                assert observation.now_ns - reverted_ns.get(giver, -BLOCK_NS) >= BLOCK_NS
                downsized[giver] = move.pool
            elif move.reason is Reason.DOWNSIZE_REVERTED:
                taker = str(move.taker)
                assert downsized.pop(taker) == move.pool
                reverted_ns[taker] = observation.now_ns


@settings(max_examples=80)
@given(plays())
def test_only_what_may_be_judged_is_acted_on(play: Play) -> None:
    """The subject of an upsize violates, that of a downsize is relaxed, both by a fresh value of this interval."""
    for observation, decision in run(play).ticks:
        for move in traded(decision):
            if move.reason is Reason.DOWNSIZE_REVERTED:
                continue
            up = move.reason is not Reason.DOWNSIZE_LARGEST_SLACK
            view = observation.services[str(move.taker if up else move.giver)].latency
            assert view.fresh
            assert view.state not in {ServiceState.STALE, ServiceState.FEW_SAMPLES, ServiceState.ABSENT}
            if view.state in {ServiceState.OK, ServiceState.FAILING}:
                assert view.latency_ns is not None
                assert view.cautious_latency_ns is not None
                assert view.latency_ns > TARGET_NS * 0.95 if up else view.cautious_latency_ns < TARGET_NS * 0.80
            assert up or view.state in {ServiceState.OK, ServiceState.IDLE}
            if up and move.giver in observation.services:
                giver = observation.services[str(move.giver)].latency.state
                assert giver not in {ServiceState.STALLED, ServiceState.FAILING, ServiceState.ABSENT}


@settings(max_examples=40)
@given(plays())
def test_the_same_seed_and_observations_give_the_same_decisions(play: Play) -> None:
    """Two policies made alike decide alike, to the last value."""
    assert run(play).decisions == run(play).decisions

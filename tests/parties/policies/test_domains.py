"""Several domains: each is a game of its own, and what the whole node shares is moved by one of them at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping, MutableSequence, Sequence
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parties.model import (
    IDLE,
    Decision,
    LatencyView,
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

TARGET_NS = 10_000_000
CORES, CACHE, FREQUENCY, DISK = Resource.CORES, Resource.CACHE, Resource.FREQUENCY, Resource.DISK
T = TypeVar("T")


class First(random.Random):
    """Draws the first of what there is to draw from, however often it was asked before."""

    def choice(self, seq: Sequence[T] | MutableSequence[T]) -> T:  # type: ignore[override]
        return seq[0]


class Game:
    """A policy on domains of six cores, eight ways and four frequencies each, with a disk for all if it is asked for."""

    def __init__(self, homes: Mapping[str, int], *, disk: bool = False, best_effort: bool = False) -> None:
        pools = [Pool(PoolKey(CORES, home), 6000, 1000, 1000) for home in set(homes.values())]
        pools += [Pool(PoolKey(CACHE, home), 8, 1, 1) for home in set(homes.values())]
        pools += [Pool(PoolKey(FREQUENCY, home), levels=(10, 20, 30)) for home in set(homes.values())]
        pools += [Pool(PoolKey(DISK), 20, 1, 1)] if disk else []
        self.services = tuple(Service(name, QosTarget(TARGET_NS), home=home) for name, home in homes.items())
        self.node = Node("domains", (), {pool.key: pool for pool in pools})
        self.policy = Parties(self.node, self.services, best_effort=best_effort, settings=PartiesSettings(), rng=First())
        self.partition = self.policy.initial()
        self.best_effort = best_effort
        self.tick = 0

    def give(self, resource: Resource, home: int | None, **amounts: int) -> None:
        """Set who holds what of a pool; the rest is idle."""
        key = PoolKey(resource, home)
        held = amounts if resource is FREQUENCY else {**amounts, IDLE: self.node.pools[key].total - sum(amounts.values())}
        self.partition = Partition({**self.partition.amounts, key: held})

    def fill(self, home: int, name: str) -> None:
        """Give one service all that its domain has, and the others their floor."""
        others = [service.name for service in self.services if service.home == home and service.name != name]
        for resource in (CORES, CACHE):
            pool = self.node.pools[PoolKey(resource, home)]
            self.give(resource, home, **{name: pool.total - len(others) * pool.step}, **dict.fromkeys(others, pool.step))
        self.give(FREQUENCY, home, **{name: 30}, **dict.fromkeys(others, 10))

    def step(self, **slacks: float | None) -> Decision:
        """An interval in which these slacks are seen, and every move is carried out at once; None: nothing can be said of it."""
        self.tick += 1
        seen = {name: ServiceObservation(view(slack), Usage(), in_memory=False) for name, slack in slacks.items()}
        decision = self.policy.decide(
            Observation(self.tick * 500_000_000, self.tick, seen, self.partition, best_effort_present=self.best_effort)
        )
        self.partition = self.partition.after(decision.moves)
        self.partition.check(self.node, self.services)
        return decision


def view(slack: float | None) -> LatencyView:
    """What is seen of a service."""
    if slack is None:
        return LatencyView(ServiceState.STALE)
    latency_ns = round(TARGET_NS * (1 - slack))
    return LatencyView(ServiceState.OK, latency_ns=latency_ns, cautious_latency_ns=latency_ns, fresh=True)


def test_a_domain_with_nothing_to_give_holds_up_no_other() -> None:
    """The most urgent service of all can get nothing; the one that violates in the other domain is helped all the same."""
    game = Game({"a": 0, "b": 1, "c": 1})
    game.fill(0, "a")
    decision = game.step(a=-5.0, b=-0.1, c=0.5)
    assert (decision.reason, decision.subject) == (Reason.UPSIZE_FROM_LARGEST_SLACK, "b")
    assert [(move.pool.domain, move.giver, move.taker) for move in decision.moves] == [(1, "c", "b")]
    assert game.step(a=-5.0, b=0.1, c=0.1).reason is Reason.HOLD_NOTHING_TO_GIVE
    assert game.step(a=-5.0, b=None, c=None).reason is Reason.HOLD_NOTHING_TO_GIVE


def test_every_domain_moves_in_the_same_interval() -> None:
    """One upsizes while the other downsizes, each within its own pools; what is told first is of the greater need."""
    game = Game({"a": 0, "b": 0, "c": 1, "d": 1}, best_effort=True)
    decision = game.step(a=0.1, b=0.5, c=-0.1, d=0.1)
    assert (decision.reason, decision.subject) == (Reason.UPSIZE_FROM_BEST_EFFORT, "c")
    assert [(move.pool.domain, move.reason) for move in decision.moves] == [
        (1, Reason.UPSIZE_FROM_BEST_EFFORT),
        (0, Reason.DOWNSIZE_LARGEST_SLACK),
    ]


def test_a_revert_is_owed_in_each_domain() -> None:
    """Two downsizes that went wrong in the same interval are both undone in the next."""
    game = Game({"a": 0, "b": 1}, best_effort=True)
    assert {move.giver for move in game.step(a=0.5, b=0.5).moves} == {"a", "b"}
    undone = game.step(a=-0.1, b=-0.1).moves
    assert {(move.taker, move.reason) for move in undone} == {(name, Reason.DOWNSIZE_REVERTED) for name in "ab"}


def test_what_all_share_is_moved_by_the_greater_need_alone() -> None:
    """Of the disk one step moves in an interval: the more urgent service has it, the other one waits, in whichever domain it is."""
    for urgent, other in (("a", "b"), ("b", "a")):
        game = Game({"a": 0, "b": 1, "c": 1}, disk=True)
        game.fill(0, "a")
        game.fill(1, "b")
        game.give(DISK, None, a=5, b=5, c=5)
        decision = game.step(**{urgent: -0.5, other: -0.2, "c": 0.1})
        assert [(move.pool, move.taker) for move in decision.moves] == [(PoolKey(DISK), urgent)]
        assert decision.subject == urgent


def test_who_gave_what_all_share_is_left_alone() -> None:
    """A service that is the victim of one domain takes no part in a move of its own in the same interval."""
    game = Game({"a": 0, "b": 1}, disk=True)
    game.fill(0, "a")
    game.give(DISK, None, a=10, b=10)
    decision = game.step(a=-0.5, b=0.9)
    assert [(move.pool, move.giver, move.taker) for move in decision.moves] == [(PoolKey(DISK), "b", "a")]


def test_one_game_where_only_what_all_share_is_managed() -> None:
    """Homes do not matter then: one move of one resource in an interval, as on a machine of one domain."""
    services = tuple(Service(name, QosTarget(TARGET_NS), home=home) for name, home in (("a", 0), ("b", 1)))
    pools = (Pool(PoolKey(DISK), 20, 1, 1), Pool(PoolKey(Resource.MEMORY), 20, 1, 1))
    node = Node("shared", (), {pool.key: pool for pool in pools})
    policy = Parties(node, services, best_effort=True, settings=PartiesSettings(memory_slack_bytes=0), rng=First())
    usage = Usage(memory_bytes=0)
    seen = {name: ServiceObservation(view(0.9), usage, in_memory=False) for name in "ab"}
    assert len(policy.decide(Observation(1, 1, seen, policy.initial(), best_effort_present=True)).moves) == 1


SLACKS = st.sampled_from([None, -3.0, -0.2, 0.02, 0.1, 0.3, 0.6, 0.9])


HOMES = st.lists(st.sampled_from([0, 1, 5]), min_size=1, max_size=6).filter(lambda homes: max(map(homes.count, homes)) <= 4)


@settings(max_examples=60)
@given(homes=HOMES, intervals=st.lists(st.lists(SLACKS, min_size=6, max_size=6), max_size=30), best_effort=st.booleans())
def test_each_domain_is_a_game_of_its_own(homes: list[int], intervals: list[list[float | None]], *, best_effort: bool) -> None:
    """Interval by interval, what moves in a domain is what would move if it were the whole machine; nothing moves between two."""
    names = {f"s{index}": home for index, home in enumerate(homes)}
    whole = Game(names, best_effort=best_effort)
    apart = {
        home: Game({name: lives for name, lives in names.items() if lives == home}, best_effort=best_effort) for home in set(homes)
    }
    for interval in intervals:
        slacks = dict(zip(names, interval, strict=False))
        moves = whole.step(**slacks).moves
        for home, game in apart.items():
            alone = game.step(**{name: slacks[name] for name, lives in names.items() if lives == home})
            assert tuple(move for move in moves if move.pool.domain == home) == alone.moves
        for move in moves:
            assert {names[holder] for holder in (move.giver, move.taker) if holder in names} == {move.pool.domain}


def slack_of_queue(game: Game, name: str, load: float) -> float:
    """The slack of an M/M/1 queue whose capacity comes from cores and ways: ever less towards capacity."""
    home = next(service.home for service in game.services if service.name == name)
    cores, ways = (game.partition.amount(PoolKey(resource, home), name) for resource in (CORES, CACHE))
    capacity = cores / 1000 * (0.7 + 0.3 * min(1.0, ways / 8))
    return -9.0 if load >= capacity else 1 - 0.46 / (1 - load / capacity) / capacity


def test_it_converges_beside_a_domain_where_nothing_helps() -> None:
    """One service asks more than its domain has, for ever; in the other one the heavy service gets what it lacks from the light."""
    game = Game({"hopeless": 0, "heavy": 1, "light": 1})
    loads = {"hopeless": 50.0, "heavy": 3.0, "light": 0.2}

    def play(intervals: int) -> int:
        """How many of so many intervals the heavy service missed its target in."""
        missed = 0
        for _ in range(intervals):
            slacks = {name: slack_of_queue(game, name, load) for name, load in loads.items()}
            missed += slacks["heavy"] < 0
            game.step(**slacks)
        return missed

    assert play(1) == 1
    play(119)
    assert play(200) <= 20


@pytest.mark.parametrize("best_effort", [True, False])
def test_the_fair_start_divides_each_domain_by_itself(*, best_effort: bool) -> None:
    """Three services in one domain and one in another: a third and the whole, or with jobs a quarter and a half."""
    game = Game({"a": 0, "b": 0, "c": 0, "d": 1}, disk=True, best_effort=best_effort)
    held = game.policy.initial().amounts
    first, second, shared = held[PoolKey(CORES, 0)], held[PoolKey(CORES, 1)], held[PoolKey(DISK)]
    assert [first.get(name) for name in "abcd"] == ([2000, 2000, 1000, None] if best_effort else [2000, 2000, 2000, None])
    assert second.get("d") == (3000 if best_effort else 6000)
    assert [shared[name] for name in "abcd"] == ([4] * 4 if best_effort else [5] * 4)

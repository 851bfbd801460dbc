"""Upsizing (Algorithms 1, 2 and 4): who gets, what, and from whom."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from parties.model import (
    BEST_EFFORT,
    IDLE,
    LatencyView,
    MoveStatus,
    Node,
    Observation,
    Pool,
    PoolKey,
    Reason,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.policies.parties import Parties
from parties.policies.wheels import Direction
from parties.settings import PartiesSettings

StageMaker = Callable[..., Any]
ServiceMaker = Callable[..., Service]
ViewMaker = Callable[..., Any]

CORE, CACHE, FREQ, MEM, DISK = Resource.CORES, Resource.CACHE, Resource.FREQUENCY, Resource.MEMORY, Resource.DISK
UP, DOWN = Direction.UP, Direction.DOWN
STEPS = {CORE: 1000, CACHE: 1, FREQ: 100_000_000, MEM: 1_000_000_000, DISK: 5_000_000}
GB = 1_000_000_000


@pytest.mark.parametrize(("slack", "moved"), [(0.049, True), (0.05, False), (0.051, False)])
def test_a_slack_under_the_threshold_is_upsized(stage: StageMaker, slack: float, moved: bool) -> None:  # noqa: FBT001
    """Under 5 % and only then; no other slack calls for a move."""
    decision = stage("a", "b").step(a=slack, b=0.1)
    assert bool(decision.moves) is moved
    assert decision.subject == ("a" if moved else None)
    assert moved or decision.reason is Reason.HOLD_TARGETS_MET


def test_the_threshold_is_a_setting(stage: StageMaker) -> None:
    """Upsizing follows ``upsize_slack``."""
    assert stage("a", settings=PartiesSettings(upsize_slack=0.1)).step(a=0.09).subject == "a"


def test_the_smallest_slack_is_served(stage: StageMaker) -> None:
    """Of several in violation the worst one gets the step."""
    assert stage("a", "b", "c").step(a=-0.1, b=-0.5, c=0.01).subject == "b"


def test_upsizing_comes_before_downsizing(stage: StageMaker) -> None:
    """While one service violates nobody is downsized."""
    moves = stage("a", "b").step(a=0.04, b=0.9).moves
    assert [move.taker for move in moves] == ["a"]


@pytest.mark.parametrize("resource", [CORE, CACHE, FREQ, MEM, DISK])
def test_one_step_of_the_wheels_resource(stage: StageMaker, resource: Resource) -> None:
    """The move is one unit of the action's resource and nothing else."""
    scene = stage("a", "b")
    scene.force("a", UP, resource)
    (move,) = scene.step(a=-0.1, b=0.1).moves
    assert (move.pool.resource, move.taker, move.amount) == (resource, "a", STEPS[resource])
    assert move.tick == 1


def test_frequency_is_raised_without_taking_from_anyone(stage: StageMaker) -> None:
    """Raising a frequency has no giver, and others keep theirs."""
    scene = stage("a", "b")
    scene.force("a", UP, FREQ)
    (move,) = scene.step(a=-0.1, b=0.1).moves
    assert (move.giver, move.reason) == (None, Reason.UPSIZE_FREQUENCY)
    assert scene.amount(FREQ, "b") == 2_200_000_000
    assert scene.amount(FREQ, "a") == 2_300_000_000


def test_idle_gives_first_then_best_effort_then_the_largest_slack(stage: StageMaker) -> None:
    """The order of victims, each only once the one before it has nothing left."""
    scene = stage("a", "b", "c")
    scene.give(CORE, a=1000, b=4000, c=4000, best_effort=1000, idle=4000)
    reasons = []
    for _ in range(7):
        scene.force("a", UP, CORE)
        (move,) = scene.step(a=-0.1, b=0.1, c=0.2).moves
        reasons.append((move.giver, move.reason))
    assert reasons == [
        *[(IDLE, Reason.UPSIZE_FROM_IDLE)] * 4,
        (BEST_EFFORT, Reason.UPSIZE_FROM_BEST_EFFORT),
        *[("c", Reason.UPSIZE_FROM_LARGEST_SLACK)] * 2,
    ]


def test_a_best_effort_job_may_fall_to_nothing_and_a_service_may_not(stage: StageMaker) -> None:
    """The last step of the best-effort pool is taken; a service's last one is not, so another victim is found."""
    scene = stage("a", "b", "c")
    scene.give(CORE, a=11_000, b=1000, c=2000)
    scene.force("a", UP, CORE)
    assert scene.step(a=-0.1, b=0.9, c=0.1).moves[0].giver == "c"
    scene.give(CORE, a=12_000, b=1000, c=1000)
    scene.force("a", UP, CORE)
    assert all(move.pool.resource is not CORE for move in scene.step(a=-0.1, b=0.9, c=0.1).moves)


def test_minimum_and_maximum_are_respected(stage: StageMaker, service: ServiceMaker) -> None:
    """A victim is not taken under its minimum, and a service not given more than its maximum."""
    scene = stage(service("a", maximum={CORE: 6000}), service("b", minimum={CORE: 7000}), best_effort=False)
    scene.give(CORE, a=5000, b=7000, idle=2000)
    scene.force("a", UP, CORE)
    assert scene.step(a=-0.1, b=0.5).moves[0].giver == IDLE
    scene.force("a", UP, CORE)
    assert all(move.pool.resource is not CORE for move in scene.step(a=-0.1, b=0.5).moves)
    scene.give(CORE, a=5500, b=7000, idle=1500)
    scene.force("a", UP, CORE)
    assert all(move.pool.resource is not CORE for move in scene.step(a=-0.1, b=0.5).moves)


def test_an_action_that_lowered_the_latency_is_taken_again(stage: StageMaker) -> None:
    """As long as it helps the wheel stays."""
    scene = stage("a", "b")
    scene.force("a", UP, CORE)
    resources = [scene.step(a=slack, b=0.1).moves[0].pool.resource for slack in (-0.9, -0.8, -0.8, -0.3)]
    assert resources == [CORE] * 4


def test_an_action_that_did_not_turns_the_wheel(stage: StageMaker) -> None:
    """A latency above the one before the move leads to the next resource, round the compute wheel."""
    scene = stage("a", "b")
    scene.force("a", UP, CORE)
    scene.give(FREQ, a=1_200_000_000, b=2_200_000_000, best_effort=2_200_000_000)
    resources = [scene.step(a=slack, b=0.1).moves[0].pool.resource for slack in (-0.1, -0.2, -0.3, -0.4)]
    assert resources == [CORE, CACHE, FREQ, CORE]


def test_the_turns_end_leads_to_storage_only_if_memory_is_nearly_full(stage: StageMaker) -> None:
    """After three compute resources in a row: memory or disk where memory slack is under 1 GB, else another turn."""
    for use, expected in ((29_500_000_000, {MEM, DISK}), (20_000_000_000, {CORE})):
        scene = stage("a", "b", "c")
        scene.usage["a"] = Usage(memory_bytes=use)
        scene.force("a", UP, CORE)
        scene.give(FREQ, a=1_200_000_000, b=2_200_000_000, c=2_200_000_000)
        resources = [scene.step(a=slack, b=0.1, c=0.1).moves[0].pool.resource for slack in (-0.1, -0.2, -0.3, -0.4)]
        assert resources[:3] == [CORE, CACHE, FREQ]
        assert resources[3] in expected


def test_the_other_direction_starts_the_wheels_anew(stage: StageMaker) -> None:
    """A service that was downsized before begins at random, so over many seeds each of the five is seen."""
    seen = set()
    for seed in range(60):
        scene = stage("a", "b", seed=seed)
        scene.force("a", DOWN, CORE)
        seen.add(scene.step(a=-0.1, b=0.1).moves[0].pool.resource)
    assert seen == {CORE, CACHE, FREQ, MEM, DISK}


def test_upsizing_is_never_reverted(stage: StageMaker) -> None:
    """Whatever the latency does after it, no step is given back while the service violates."""
    scene = stage("a", "b", best_effort=False)
    for slack in (-0.1, -5.0, -0.2, -9.0, -0.1, -20.0):
        assert all(move.taker == "a" for move in scene.step(a=slack, b=0.1).moves)


def test_an_upsize_that_did_not_help_blocks_nothing(stage: StageMaker) -> None:
    """Over-allocation is reclaimed by the ordinary downsize, at once if the slack allows."""
    scene = stage("a", "b")
    scene.force("a", UP, CORE)
    scene.step(a=-0.1, b=0.1)
    scene.step(a=-0.2, b=0.1)
    assert scene.step(a=0.5, b=0.1).reason is Reason.DOWNSIZE_LARGEST_SLACK


def test_a_resource_at_its_end_or_not_managed_is_skipped(stage: StageMaker) -> None:
    """Nothing to be had of cores, and no cache or frequency managed here: disk, though memory is not nearly full."""
    scene = stage("a", "b", resources=[CORE, DISK])
    scene.give(CORE, a=13_000, b=1000)
    scene.force("a", UP, CORE)
    assert scene.step(a=-0.1, b=0.1).moves[0].pool.resource is DISK


def test_no_move_where_nothing_can_be_had(stage: StageMaker) -> None:
    """Every resource at its end, no victim: a hold that says so, and nobody else is served or downsized instead."""
    scene = stage("a", "b", resources=[CORE, FREQ])
    scene.give(CORE, a=13_000, b=1000)
    scene.give(FREQ, a=2_300_000_000, b=1_200_000_000)
    decision = scene.step(a=-0.5, b=0.04)
    assert (decision.moves, decision.reason, decision.subject) == ((), Reason.HOLD_NOTHING_TO_GIVE, "a")


def test_victims_are_of_the_same_pool(service: ServiceMaker) -> None:
    """A service at home in another domain is no victim for what is of this one; of a node-wide pool it is."""
    made = (
        Pool(PoolKey(CORE, 0), total=4000, step=1000, floor=1000),
        Pool(PoolKey(CORE, 1), total=4000, step=1000, floor=1000),
        Pool(PoolKey(DISK), total=10, step=1, floor=1),
    )
    node = Node("two", (), {pool.key: pool for pool in made})
    services = (service("a"), service("b", home=1))
    rng = random.Random(1)  # noqa: S311 - replayable
    policy = Parties(node, services, best_effort=False, settings=PartiesSettings(), rng=rng)
    seen = {
        name: ServiceObservation(LatencyView(ServiceState.OK, latency_ns=latency, cautious_latency_ns=latency, fresh=True))
        for name, latency in (("a", 11_000_000), ("b", 9_000_000))
    }
    (move,) = policy.decide(Observation(1, 1, seen, policy.initial())).moves
    assert (move.pool, move.giver) == (PoolKey(DISK), "b")


def test_no_ping_pong(stage: StageMaker) -> None:
    """A victim whose own action is upsizing the same resource turns its wheel; one with another action keeps it."""
    for action, expected in (((UP, CORE), (UP, CACHE)), ((UP, CACHE), (UP, CACHE)), ((DOWN, CORE), (DOWN, CORE))):
        scene = stage("a", "b", best_effort=False)
        scene.force("a", UP, CORE)
        scene.force("b", *action)
        assert scene.step(a=-0.1, b=0.1).moves[0].giver == "b"
        assert scene.action("b") == expected
        assert scene.action("a") == (UP, CORE)


def test_memory_comes_from_the_largest_memory_slack(stage: StageMaker) -> None:
    """Memory is taken from the service that leaves most of it unused, not from the one with the largest latency slack."""
    scene = stage("a", "b", "c", best_effort=False)
    scene.usage |= {"b": Usage(memory_bytes=10_000_000_000), "c": Usage(memory_bytes=35_000_000_000)}
    scene.force("a", UP, MEM)
    (move,) = scene.step(a=-0.1, b=0.06, c=0.15).moves
    assert (move.giver, move.reason) == ("b", Reason.UPSIZE_FROM_MEMORY_SLACK)


@pytest.mark.parametrize(
    ("in_memory", "unused_mb", "giver"),
    [
        ({"b": False, "c": False}, {"b": 500, "c": 500}, "c"),  # the largest latency slack
        ({"b": False, "c": True}, {"b": 500, "c": 500}, "b"),  # never an in-memory one
        ({"b": False, "c": None}, {"b": 500, "c": 500}, "b"),  # nor one that may be
        ({"b": False, "c": False}, {"b": 500, "c": 499}, "b"),  # never under what it uses
        ({"b": False, "c": False}, {"b": 500, "c": None}, "b"),  # nor where its use is unknown
        ({"b": True, "c": True}, {"b": 500, "c": 500}, None),  # memory is skipped then
        ({"b": True, "c": True}, {"b": 1001, "c": 500}, "b"),  # more than 1 GB unused: an in-memory one too
    ],
)
def test_without_memory_slack_a_victim_is_not_killed_for_its_memory(
    stage: StageMaker,
    service: ServiceMaker,
    in_memory: dict[str, bool | None],
    unused_mb: dict[str, int | None],
    giver: str | None,
) -> None:
    """The out-of-memory rule of the fallback, with a step of half a gigabyte."""
    pools = {
        MEM: Pool(PoolKey(MEM, 0), total=120 * GB, step=GB // 2, floor=GB // 2),
        DISK: Pool(PoolKey(DISK), total=10, step=1, floor=1),
    }
    services = [service(name, in_memory=None) for name in ("a", "b", "c")]
    scene = stage(*services, resources=[MEM, DISK], pools=pools, best_effort=False)
    scene.in_memory |= in_memory
    scene.give(MEM, a=42 * GB, b=39 * GB, c=39 * GB)
    for name, unused in unused_mb.items():
        scene.usage[name] = Usage(memory_bytes=None if unused is None else 39 * GB - unused * 1_000_000)
    scene.force("a", UP, MEM)
    (move,) = scene.step(a=-0.1, b=0.06, c=0.15).moves
    assert (move.giver if move.pool.resource is MEM else None) == giver


def test_memory_of_idle_and_best_effort_goes_first_all_the_same(stage: StageMaker) -> None:
    """The exception is about services only."""
    scene = stage("a", "b")
    scene.usage["b"] = Usage(memory_bytes=0)
    scene.force("a", UP, MEM)
    assert scene.step(a=-0.1, b=0.1).moves[0].giver == BEST_EFFORT


def test_a_refused_upsize_goes_on_to_the_next_action(stage: StageMaker) -> None:
    """What the kernel refuses cannot be done: the wheel turns though the latency fell."""
    scene = stage("a", "b")
    scene.force("a", UP, CORE)
    scene.step(a=-0.5, b=0.1, fate=MoveStatus.REFUSED)
    assert scene.step(a=-0.1, b=0.1).moves[0].pool.resource is CACHE


def test_a_stalled_service_comes_before_every_other(stage: StageMaker, view: ViewMaker) -> None:
    """Its slack is minus infinity; of several, the one that waits longest is served."""
    stalled = ServiceState.STALLED
    scene = stage("a", "b", "c")
    decision = scene.step(
        a=-9.0, b=view(state=stalled, oldest_outstanding_ns=1_000), c=view(state=stalled, oldest_outstanding_ns=2_000)
    )
    assert decision.subject == "c"
    assert decision.slack == {"a": -9.0, "b": -math.inf, "c": -math.inf}


@pytest.mark.parametrize(("after_stalled", "kept"), [(True, False), (False, True)])
def test_a_stall_that_goes_on_is_no_improvement(
    stage: StageMaker,
    view: ViewMaker,
    *,
    after_stalled: bool,
    kept: bool,
) -> None:
    """Stalled before and after: not kept; completing again, however slowly: kept."""
    scene = stage("a", "b")
    scene.force("a", UP, CORE)
    scene.step(a=view(state=ServiceState.STALLED), b=0.1)
    decision = scene.step(a=view(state=ServiceState.STALLED) if after_stalled else view(-50.0), b=0.1)
    assert decision.moves[0].pool.resource is (CORE if kept else CACHE)


def test_a_stall_after_an_upsize_is_not_kept(stage: StageMaker, view: ViewMaker) -> None:
    """From slow to stalled is worse."""
    scene = stage("a", "b")
    scene.force("a", UP, CORE)
    scene.step(a=-50.0, b=0.1)
    assert scene.step(a=view(state=ServiceState.STALLED), b=0.1).moves[0].pool.resource is CACHE

"""Downsizing and reverting (Algorithms 1, 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parties.model import BEST_EFFORT, IDLE, MoveStatus, Reason, Resource, Service, ServiceState, Usage
from parties.policies.wheels import Direction
from parties.settings import PartiesSettings

StageMaker = Callable[..., Any]
ServiceMaker = Callable[..., Service]
ViewMaker = Callable[..., Any]

CORE, CACHE, FREQ, MEM, DISK = Resource.CORES, Resource.CACHE, Resource.FREQUENCY, Resource.MEMORY, Resource.DISK
UP, DOWN = Direction.UP, Direction.DOWN
STEPS = {CORE: 1000, CACHE: 1, FREQ: 100_000_000, MEM: 1_000_000_000, DISK: 5_000_000}
FLOORS = {CORE: 1000, CACHE: 1, FREQ: 1_200_000_000, MEM: 1_000_000_000, DISK: 5_000_000}
S = 1_000_000_000


@pytest.mark.parametrize(("slack", "moved"), [(0.19, False), (0.20, False), (0.21, True)])
def test_a_slack_over_the_threshold_is_downsized(stage: StageMaker, slack: float, moved: bool) -> None:  # noqa: FBT001
    """Over 20 % and only then."""
    decision = stage("a", "b").step(a=slack, b=0.1)
    assert bool(decision.moves) is moved
    assert decision.reason is (Reason.DOWNSIZE_LARGEST_SLACK if moved else Reason.HOLD_TARGETS_MET)


def test_the_threshold_is_a_setting(stage: StageMaker) -> None:
    """Downsizing follows ``downsize_slack``."""
    assert not stage("a", settings=PartiesSettings(downsize_slack=0.5)).step(a=0.4).moves


def test_the_largest_slack_gives(stage: StageMaker) -> None:
    """Of several relaxed services the most relaxed one."""
    assert stage("a", "b", "c").step(a=0.3, b=0.6, c=0.5).subject == "b"


def test_downsizing_is_judged_by_the_cautious_latency(stage: StageMaker, view: ViewMaker) -> None:
    """What is taken from a service is decided by the upper confidence bound; violations are not."""
    uncertain = view(0.6, cautious_latency_ns=8_500_000)
    assert not stage("a").step(a=uncertain).moves
    assert stage("a", "b").step(a=uncertain, b=0.3).subject == "b"


@pytest.mark.parametrize("resource", [CORE, CACHE, FREQ, MEM, DISK])
@pytest.mark.parametrize("best_effort", [True, False])
def test_one_step_goes_to_best_effort_or_idle(
    stage: StageMaker,
    resource: Resource,
    best_effort: bool,  # noqa: FBT001 - a parameter
) -> None:
    """One unit, to the best-effort pool if there is a job and to idle if not; a lower frequency goes to nobody."""
    scene = stage("a", "b", best_effort=best_effort)
    scene.force("a", DOWN, resource)
    (move,) = scene.step(a=0.5, b=0.1).moves
    taker = None if resource is FREQ else BEST_EFFORT if best_effort else IDLE
    assert (move.pool.resource, move.giver, move.taker, move.amount) == (resource, "a", taker, STEPS[resource])


def test_best_effort_jobs_that_are_gone_get_nothing(stage: StageMaker) -> None:
    """Where the observation shows no best-effort job the unit stays idle."""
    scene = stage("a", "b")
    scene.best_effort = False
    scene.force("a", DOWN, CORE)
    assert scene.step(a=0.5, b=0.1).moves[0].taker == IDLE


def test_a_downsize_that_leaves_enough_slack_is_repeated(stage: StageMaker) -> None:
    """At 5 % slack or more the action is kept."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CACHE)
    resources = [scene.step(a=slack, b=0.1).moves[0].pool.resource for slack in (0.9, 0.5, 0.3)]
    assert resources == [CACHE] * 3
    assert not scene.step(a=0.05, b=0.1).moves
    assert scene.action("a") == (DOWN, CACHE)


@pytest.mark.parametrize("resource", [CORE, CACHE, FREQ, MEM, DISK])
def test_a_bad_downsize_is_reverted_at_the_next_interval(stage: StageMaker, resource: Resource) -> None:
    """Under 5 % slack the step comes back at once, and that is the interval's only move."""
    scene = stage("a", "b", "c")
    scene.give(FREQ, a=2_000_000_000, b=2_000_000_000, c=2_000_000_000, best_effort=1_200_000_000)
    before = scene.amount(resource, "a")
    scene.force("a", DOWN, resource)
    (down,) = scene.step(a=0.5, b=0.1, c=0.1).moves
    decision = scene.step(a=0.04, b=-0.9, c=0.9)
    (back,) = decision.moves
    assert (back.pool, back.giver, back.taker, back.amount) == (down.pool, down.taker, down.giver, down.amount)
    assert (decision.reason, decision.subject) == (Reason.DOWNSIZE_REVERTED, "a")
    assert scene.amount(resource, "a") == before


def test_only_the_downsized_services_own_slack_counts(stage: StageMaker) -> None:
    """Another service's violation is no reason to revert (the paper's letter; the authors' script reverts for any)."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1)
    decision = scene.step(a=0.1, b=-0.5)
    assert decision.subject == "b"
    assert all(move.reason is not Reason.DOWNSIZE_REVERTED for move in decision.moves)


def test_a_revert_turns_the_wheel(stage: StageMaker) -> None:
    """The next downsize tries another resource."""
    scene = stage("a", "b", settings=PartiesSettings(downsize_block_ns=0))
    scene.force("a", DOWN, CORE)
    resources = [scene.step(a=slack, b=0.1).moves[0].pool.resource for slack in (0.5, 0.0, 0.5, 0.0, 0.5)]
    assert resources == [CORE, CORE, CACHE, CACHE, FREQ]


def test_the_wheel_of_downsizing_reaches_storage_at_the_turns_end(stage: StageMaker) -> None:
    """Three compute resources in a row not kept lead to memory or disk, memory nearly full or not."""
    scene = stage("a", "b", settings=PartiesSettings(downsize_block_ns=0))
    scene.force("a", DOWN, CORE)
    resources = [scene.step(a=slack, b=0.1).moves[0].pool.resource for slack in (0.5, 0.0) * 4]
    assert resources[:6] == [CORE, CORE, CACHE, CACHE, FREQ, FREQ]
    assert resources[6] in {MEM, DISK}


def test_a_reverted_service_is_not_downsized_for_thirty_seconds(stage: StageMaker) -> None:
    """Blocked to the nanosecond by the observation's clock; another service may be downsized meanwhile."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1)
    scene.step(a=0.0, b=0.1)
    reverted_ns = scene.now_ns - 500_000_000
    assert scene.step(a=0.9, b=0.3).subject == "b"
    blocked = scene.step(a=0.9, b=0.1)
    assert (blocked.moves, blocked.reason, blocked.subject) == ((), Reason.HOLD_DOWNSIZE_BLOCKED, "a")
    scene.now_ns = reverted_ns + 30 * S - 1
    assert not scene.step(a=0.9, b=0.1).moves
    scene.now_ns = reverted_ns + 30 * S
    assert scene.step(a=0.9, b=0.1).subject == "a"


def test_the_block_is_a_setting(stage: StageMaker) -> None:
    """Downsizing is blocked for ``downsize_block_ns``."""
    scene = stage("a", settings=PartiesSettings(downsize_block_ns=1 * S))
    scene.force("a", DOWN, CORE)
    moves = [scene.step(a=slack).moves for slack in (0.5, 0.0, 0.9, 0.9)]
    assert [len(found) for found in moves] == [1, 1, 0, 1]


def test_a_blocked_service_is_still_upsized(stage: StageMaker) -> None:
    """The block is on downsizing only."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    for slack in (0.5, 0.0):
        scene.step(a=slack, b=0.1)
    (move,) = scene.step(a=-0.5, b=0.1).moves
    assert move.taker == "a"


def test_a_unit_that_best_effort_no_longer_has_comes_from_the_normal_victim(stage: StageMaker) -> None:
    """Where the recipient gave the unit on, idle and then the largest slack make the revert whole."""
    for idle, giver in ((1000, IDLE), (0, "c")):
        scene = stage("a", "b", "c")
        scene.force("a", DOWN, CORE)
        scene.step(a=0.9, b=0.1, c=0.1)
        scene.give(CORE, a=3000, b=3000, c=8000 - idle, idle=idle)
        (back,) = scene.step(a=0.0, b=0.1, c=0.15).moves
        assert (back.giver, back.taker, back.reason) == (giver, "a", Reason.DOWNSIZE_REVERTED)


def test_nothing_is_reverted_that_came_back_already(stage: StageMaker) -> None:
    """If the service has what it had (read back), the interval goes to an upsize instead of a revert too many."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1)
    scene.give(CORE, a=5000, b=5000, best_effort=4000)
    assert scene.step(a=0.0, b=0.1).reason is not Reason.DOWNSIZE_REVERTED


def test_a_refused_downsize_is_neither_reverted_nor_blocked(stage: StageMaker) -> None:
    """What did not happen is not undone: the wheel turns, a bad latency calls for an upsize, and a downsize may follow."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1, fate=MoveStatus.REFUSED)
    assert scene.step(a=0.5, b=0.1, fate=MoveStatus.REFUSED).moves[0].pool.resource is CACHE
    assert scene.step(a=0.0, b=0.1).reason is not Reason.DOWNSIZE_REVERTED
    assert scene.step(a=0.5, b=0.1).reason is Reason.DOWNSIZE_LARGEST_SLACK


@pytest.mark.parametrize("resource", [CORE, CACHE, FREQ, MEM, DISK])
def test_no_service_falls_under_its_floor(stage: StageMaker, resource: Resource) -> None:
    """At one unit of a resource, another resource is taken."""
    scene = stage("a", "b")
    floor = FLOORS[resource]
    scene.give(resource, a=floor, b=floor)
    scene.force("a", DOWN, resource)
    assert scene.step(a=0.5, b=0.1).moves[0].pool.resource is not resource


def test_a_minimum_is_a_floor_of_its_own(stage: StageMaker, service: ServiceMaker) -> None:
    """Nothing is taken under a service's minimum."""
    scene = stage(service("a", minimum={CORE: 5000}), "b")
    scene.force("a", DOWN, CORE)
    assert scene.step(a=0.5, b=0.1).moves[0].pool.resource is CACHE


def test_a_service_at_the_floor_of_everything_does_not_count(stage: StageMaker) -> None:
    """The next relaxed service gives instead; with none, the hold says why."""
    scene = stage("a", "b", resources=[CORE])
    scene.give(CORE, a=1000, b=5000)
    assert scene.step(a=0.9, b=0.5).subject == "b"
    decision = scene.step(a=0.9, b=0.1)
    assert (decision.moves, decision.reason, decision.subject) == ((), Reason.HOLD_NOTHING_TO_TAKE, "a")


@pytest.mark.parametrize(
    ("in_memory", "use", "taken"),
    [
        (True, 39_500_000_000, False),  # memory slack under 1 GB
        (True, 39_000_000_000, True),
        (True, None, False),  # unknown use
        (None, 39_500_000_000, False),  # not classified yet
        (False, 39_500_000_000, True),  # its data set is on disk
    ],
)
def test_memory_does_not_shrink_under_a_data_set(
    stage: StageMaker,
    service: ServiceMaker,
    *,
    in_memory: bool | None,
    use: int | None,
    taken: bool,
) -> None:
    """Downsizing memory is skipped for in-memory services with less than 1 GB of memory slack."""
    scene = stage(service("a", in_memory=None), "b")
    scene.in_memory["a"] = in_memory
    scene.usage["a"] = Usage(memory_bytes=use)
    scene.force("a", DOWN, MEM)
    assert scene.amount(MEM, "a") == 40_000_000_000
    assert (scene.step(a=0.5, b=0.1).moves[0].pool.resource is MEM) is taken


def test_the_configured_class_counts_while_none_is_found(stage: StageMaker, service: ServiceMaker) -> None:
    """A service configured as not in-memory is one until the observation says otherwise."""
    scene = stage(service("a", in_memory=False))
    scene.force("a", DOWN, MEM)
    assert scene.step(a=0.5).moves[0].pool.resource is MEM


@pytest.mark.parametrize("state", [ServiceState.STALLED, ServiceState.FAILING])
def test_a_stall_or_failure_after_a_downsize_is_bad(stage: StageMaker, view: ViewMaker, state: ServiceState) -> None:
    """A service that stops completing, or answers errors however fast, gets its step back."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1)
    assert scene.step(a=view(0.9, state), b=0.1).reason is Reason.DOWNSIZE_REVERTED

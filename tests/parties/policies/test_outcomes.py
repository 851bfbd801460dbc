"""Moves that are pending, refused, or decided anew from what was read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parties.model import BEST_EFFORT, MoveStatus, Reason, Resource, Usage
from parties.policies.wheels import Direction

StageMaker = Callable[..., Any]

CORE, CACHE, FREQ, MEM, DISK = Resource.CORES, Resource.CACHE, Resource.FREQUENCY, Resource.MEMORY, Resource.DISK
UP, DOWN = Direction.UP, Direction.DOWN
PENDING = MoveStatus.PENDING


def pend(scene: Any, direction: Direction, slack: float) -> None:  # noqa: ANN401 - the stage
    """Service a has a memory move that is not through."""
    scene.force("a", direction, MEM)
    (move,) = scene.step(a=slack, b=0.1, c=0.1, fate=PENDING).moves
    assert move.pool.resource is MEM


def test_a_service_with_a_pending_move_waits(stage: StageMaker) -> None:
    """Nothing more for it until the move ended; if it is the only one in need, the hold says so."""
    scene = stage("a", "b", "c")
    pend(scene, UP, -0.5)
    pending = scene.outcomes
    for _ in range(3):
        scene.outcomes = pending
        decision = scene.step(a=-0.5, b=0.9, c=0.1)
        assert (decision.moves, decision.reason, decision.subject) == ((), Reason.HOLD_PENDING, "a")


def test_a_relaxed_service_with_a_pending_move_gives_nothing_more(stage: StageMaker) -> None:
    """Neither while the move is under way nor in the interval in which it got through."""
    scene = stage("a", "b", "c")
    pend(scene, DOWN, 0.5)
    pending = scene.outcomes
    decision = scene.step(a=0.9, b=0.1, c=0.1)
    assert (decision.moves, decision.reason, decision.subject) == ((), Reason.HOLD_PENDING, "a")
    scene.outcomes = pending
    scene.finish(MoveStatus.DONE)
    assert not scene.step(a=0.9, b=0.1, c=0.1).moves
    assert scene.step(a=0.9, b=0.1, c=0.1).moves


def test_a_hold_names_what_will_pass_first(stage: StageMaker) -> None:
    """Of several relaxed services that give nothing, the reason is that of a pending move, then of a block, then of a floor."""
    scene = stage("a", "b", "c", resources=[CORE, MEM])
    scene.force("a", DOWN, CORE)
    for slack in (0.5, 0.0):
        scene.step(a=slack, b=0.1, c=0.1)
    scene.give(CORE, a=4000, b=1000, c=4000)
    scene.give(MEM, a=30_000_000_000, b=1_000_000_000, c=30_000_000_000)
    decision = scene.step(a=0.9, b=0.5, c=0.1)
    assert (decision.reason, decision.subject) == (Reason.HOLD_DOWNSIZE_BLOCKED, "a")
    scene.force("c", DOWN, MEM)
    scene.step(a=0.1, b=0.1, c=0.5, fate=PENDING)
    decision = scene.step(a=0.9, b=0.7, c=0.8)
    assert (decision.reason, decision.subject) == (Reason.HOLD_PENDING, "c")


def test_another_service_goes_on_meanwhile(stage: StageMaker) -> None:
    """The next worst is served, but from no pool with a pending move."""
    for seed in range(20):
        scene = stage("a", "b", "c", seed=seed)
        pend(scene, UP, -0.5)
        scene.force("b", UP, MEM)
        (move,) = scene.step(a=-0.9, b=-0.5, c=0.1).moves
        assert move.taker == "b"
        assert move.pool.resource is not MEM


def test_nothing_but_a_closed_pool_is_a_pending_hold(stage: StageMaker) -> None:
    """Where only the closed pool has something to give or to take, the hold is for the pending move."""
    for slack in (-0.5, 0.9):
        scene = stage("a", "b", "c", resources=[MEM])
        pend(scene, DOWN, 0.5)
        decision = scene.step(a=0.1, b=slack, c=0.1)
        assert (decision.moves, decision.reason, decision.subject) == ((), Reason.HOLD_PENDING, "b")


def test_the_services_of_a_pending_move_are_no_victims(stage: StageMaker) -> None:
    """Neither the giver nor the taker of a pending move gives of anything else."""
    scene = stage("a", "b", "c", best_effort=False)
    scene.usage |= {"b": Usage(memory_bytes=0), "c": Usage(memory_bytes=20_000_000_000)}
    pend(scene, UP, -0.5)
    assert scene.outcomes[0].move.giver == "b"
    scene.force("c", UP, CORE)
    decision = scene.step(a=0.5, b=0.5, c=-0.5)
    assert decision.subject == "c"
    assert all(move.giver not in {"a", "b"} for move in decision.moves)


def test_a_pending_action_is_judged_by_the_first_whole_interval_after_it(stage: StageMaker) -> None:
    """Neither a value from before the move was through nor one of the interval in which it got through counts."""
    scene = stage("a", "b", "c")
    pend(scene, DOWN, 0.5)
    pending = scene.outcomes
    assert not scene.step(a=0.0, b=0.1, c=0.1).moves
    scene.outcomes = pending
    scene.finish(MoveStatus.DONE)
    assert not scene.step(a=0.0, b=0.1, c=0.1).moves
    (back,) = scene.step(a=0.0, b=0.1, c=0.1).moves
    assert (back.reason, back.pool.resource) == (Reason.DOWNSIZE_REVERTED, MEM)


def test_a_pending_action_that_is_refused_in_the_end_turns_the_wheel(stage: StageMaker) -> None:
    """As one that is refused at once: cannot be done, nothing to revert."""
    scene = stage("a", "b", "c")
    pend(scene, DOWN, 0.5)
    scene.finish(MoveStatus.REFUSED)
    decision = scene.step(a=0.0, b=0.1, c=0.1)
    assert decision.reason is not Reason.DOWNSIZE_REVERTED
    assert scene.action("a") != (DOWN, MEM)


def test_a_revert_waits_for_its_pool(stage: StageMaker) -> None:
    """A downsize judged bad while its pool has another pending move is undone once that ended."""
    scene = stage("a", "b", "c")
    scene.force("a", DOWN, MEM)
    scene.step(a=0.5, b=0.1, c=0.1)
    scene.force("b", UP, MEM)
    other = scene.outcomes[0].move
    scene.outcomes = ()
    scene.keep_pending([type(other)(2, other.pool, BEST_EFFORT, "b", other.amount, Reason.UPSIZE_FROM_BEST_EFFORT)])
    decision = scene.step(a=0.0, b=0.1, c=0.1)
    assert (decision.moves, decision.reason) == ((), Reason.HOLD_PENDING)
    (back,) = scene.step(a=0.0, b=0.1, c=0.1).moves
    assert (back.reason, back.taker) == (Reason.DOWNSIZE_REVERTED, "a")


def test_a_revert_that_nobody_can_fill_gives_way_to_an_upsize(stage: StageMaker) -> None:
    """With no step to be had of that resource the interval is not lost."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1)
    scene.give(CORE, a=4000, b=1000, best_effort=0, idle=0, gone=9000)
    decision = scene.step(a=0.0, b=0.1)
    assert decision.subject == "a"
    assert decision.moves[0].pool.resource is not CORE


def test_amounts_are_those_read_back(stage: StageMaker) -> None:
    """A frequency that reads back lower than set is raised from where it is."""
    scene = stage("a", "b")
    scene.give(FREQ, a=1_730_000_000, b=2_200_000_000)
    scene.force("a", UP, FREQ)
    (move,) = scene.step(a=-0.5, b=0.1).moves
    assert move.amount == 70_000_000


@pytest.mark.parametrize("status", [MoveStatus.DONE, MoveStatus.PENDING, MoveStatus.REFUSED])
def test_an_outcome_of_somebody_elses_move_is_no_verdict(stage: StageMaker, status: MoveStatus) -> None:
    """Moves that the policy did not decide, as of a service that returned, neither end nor turn an action."""
    scene = stage("a", "b", "c")
    scene.force("a", UP, CORE)
    (move,) = scene.step(a=-0.5, b=0.1, c=0.1).moves
    other = type(move)(move.tick, scene.pool(CACHE).key, BEST_EFFORT, "b", 1, Reason.RETURNED_ADMITTED)
    scene.outcomes = (*scene.outcomes, type(scene.outcomes[0])(other, status))
    assert scene.step(a=-0.4, b=0.1, c=0.1).moves[0].pool.resource is CORE

"""Moves that are pending, refused, or decided anew from what was read back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from parties.model import BEST_EFFORT, Move, MoveOutcome, MoveStatus, Reason, Resource, Usage
from parties.policies.wheels import Direction
from tests.parties.policies.conftest import POOLS

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


# What best-effort jobs cannot give

GB = 1_000_000_000


def ask_for_memory(scene: Any, fate: MoveStatus = MoveStatus.DONE) -> Any:  # noqa: ANN401 - the stage, the decision
    """Service a looks for memory, and nobody has any idle."""
    scene.force("a", UP, MEM)
    return scene.step(a=-0.5, b=0.1, fate=fate)


def refused(stage: StageMaker, use: int | None) -> Any:  # noqa: ANN401 - the stage
    """Best effort has 10 GB, uses so much, and the tenth was refused."""
    scene = stage("a", "b", resources=[MEM])
    scene.give(MEM, a=55 * GB, b=55 * GB, best_effort=10 * GB)
    scene.usage[BEST_EFFORT] = Usage(memory_bytes=use)
    (move,) = ask_for_memory(scene, MoveStatus.REFUSED).moves
    assert (move.giver, move.pool.resource) == (BEST_EFFORT, MEM)
    return scene


def test_memory_in_use_is_not_asked_for_again(stage: StageMaker) -> None:
    """What best-effort jobs use and what was refused is left alone, in every interval from then on."""
    scene = refused(stage, 9 * GB + 1)
    for _ in range(5):
        assert not ask_for_memory(scene).moves


def test_memory_is_asked_for_again_once_less_is_used(stage: StageMaker) -> None:
    """As soon as the jobs use no more than what they were to be left with."""
    scene = refused(stage, 9 * GB + 1)
    assert not ask_for_memory(scene).moves
    scene.usage[BEST_EFFORT] = Usage(memory_bytes=9 * GB)
    (move,) = ask_for_memory(scene).moves
    assert (move.giver, move.taker) == (BEST_EFFORT, "a")


def test_what_best_effort_gained_since_may_be_taken(stage: StageMaker) -> None:
    """The refusal was of an amount, not of the pool: above that amount a step can be had."""
    scene = refused(stage, 9 * GB + 1)
    assert not ask_for_memory(scene).moves
    scene.give(MEM, a=55 * GB, b=54 * GB, best_effort=11 * GB)
    (move,) = ask_for_memory(scene).moves
    assert (move.giver, scene.amount(MEM, BEST_EFFORT)) == (BEST_EFFORT, 10 * GB)
    assert not ask_for_memory(scene).moves


def test_after_a_refusal_of_several_steps_one_may_be_tried(stage: StageMaker) -> None:
    """A service that returned asked for three: the least that the jobs are left with is a step above what was refused."""
    scene = stage("a", "b", resources=[MEM])
    scene.give(MEM, a=55 * GB, b=55 * GB, best_effort=10 * GB)
    scene.usage[BEST_EFFORT] = Usage(memory_bytes=8 * GB)
    returned = Move(1, scene.pool(MEM).key, BEST_EFFORT, "b", 3 * GB, Reason.RETURNED_ADMITTED)
    scene.outcomes = (MoveOutcome(returned, MoveStatus.REFUSED),)
    assert [len(ask_for_memory(scene).moves) for _ in range(3)] == [1, 1, 0]
    assert scene.amount(MEM, BEST_EFFORT) == 8 * GB


@pytest.mark.parametrize("use", [None, 9 * GB, 0])
def test_a_refusal_for_another_reason_is_no_bar(stage: StageMaker, use: int | None) -> None:
    """Where the jobs use less, or nobody knows what they use, the next attempt is made as ever."""
    scene = refused(stage, use)
    (move,) = ask_for_memory(scene).moves
    assert move.giver == BEST_EFFORT


def test_another_victim_is_found_instead(stage: StageMaker) -> None:
    """A service with memory to spare gives in its stead, and the network is none of it."""
    scene = refused(stage, 9 * GB + 1)
    scene.usage["b"] = Usage(memory_bytes=20 * GB)
    (move,) = ask_for_memory(scene).moves
    assert (move.giver, move.reason) == ("b", Reason.UPSIZE_FROM_MEMORY_SLACK)


def test_a_revert_does_not_ask_for_it_either(stage: StageMaker) -> None:
    """A downsize whose memory the jobs use by now is undone from elsewhere, or not at all."""
    scene = stage("a", "b", resources=[MEM])
    scene.give(MEM, a=55 * GB, b=55 * GB, best_effort=10 * GB)
    scene.force("a", DOWN, MEM)
    scene.usage[BEST_EFFORT] = Usage(memory_bytes=11 * GB)
    (down,) = scene.step(a=0.5, b=0.1).moves
    taken = Move(1, down.pool, BEST_EFFORT, "b", GB, Reason.RETURNED_ADMITTED)
    scene.outcomes = (*scene.outcomes, MoveOutcome(taken, MoveStatus.REFUSED))
    assert not scene.step(a=0.0, b=0.1).moves


def test_other_resources_are_asked_for_as_ever(stage: StageMaker) -> None:
    """Cores can be taken from whoever uses them."""
    scene = stage("a", "b", resources=[CORE])
    scene.usage[BEST_EFFORT] = Usage(cpu_millicores=14_000, memory_bytes=GB)
    for fate in (MoveStatus.REFUSED, MoveStatus.DONE):
        scene.force("a", UP, CORE)
        (move,) = scene.step(a=-0.5, b=0.1, fate=fate).moves
        assert move.giver == BEST_EFFORT


def test_what_best_effort_is_to_keep_is_not_taken(stage: StageMaker) -> None:
    """Of a pool with a floor for best effort, the steps above it go and no more, for a revert as well."""
    pools = dict(POOLS) | {MEM: dataclasses.replace(POOLS[MEM], best_effort_floor=9 * GB)}
    scene = stage("a", "b", resources=[MEM], pools=pools)
    scene.give(MEM, a=55 * GB, b=55 * GB, best_effort=10 * GB)
    assert [len(ask_for_memory(scene).moves) for _ in range(3)] == [1, 0, 0]
    assert scene.amount(MEM, BEST_EFFORT) == 9 * GB
    scene.give(MEM, a=57 * GB, b=55 * GB, best_effort=8 * GB)
    scene.force("a", DOWN, MEM)
    assert scene.step(a=0.5, b=0.1).moves
    assert not scene.step(a=0.0, b=0.1).moves

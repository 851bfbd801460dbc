"""What each state of the signal means to the policy (invariant 4 of the design)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parties.model import Reason, Resource, ServiceState, Usage
from parties.policies.judgement import judge, target_met
from parties.policies.wheels import Direction

StageMaker = Callable[..., Any]
ServiceMaker = Callable[..., Any]
ViewMaker = Callable[..., Any]

CORE, CACHE, MEM = Resource.CORES, Resource.CACHE, Resource.MEMORY
UP, DOWN = Direction.UP, Direction.DOWN
HELD: list[dict[str, object]] = [
    {"state": ServiceState.STALE},
    {"state": ServiceState.FEW_SAMPLES},
    {"state": ServiceState.ABSENT},
    {"state": ServiceState.OK, "fresh": False},
    {"state": ServiceState.IDLE, "fresh": False},
    {"state": ServiceState.STALLED, "fresh": False},
    {"state": ServiceState.FAILING, "fresh": False},
    {"state": ServiceState.OK, "latency_ns": None},
]


@pytest.mark.parametrize("held", HELD, ids=str)
def test_what_is_not_judged_is_held(stage: StageMaker, view: ViewMaker, held: dict[str, object]) -> None:
    """Neither the smallest nor the largest slack: no move, and a reason that says nothing could be judged."""
    for slack in (-5.0, 0.9):
        decision = stage("a").step(a=view(slack, **held))
        assert (decision.moves, decision.reason, dict(decision.slack)) == ((), Reason.HOLD_NOT_JUDGED, {})


def test_a_service_that_was_not_observed_is_held(stage: StageMaker) -> None:
    """An observation without the service is no fault and no value."""
    assert stage("a").step().reason is Reason.HOLD_NOT_JUDGED


@pytest.mark.parametrize("held", HELD, ids=str)
def test_a_held_service_is_no_victim_and_the_others_go_on(stage: StageMaker, view: ViewMaker, held: dict[str, object]) -> None:
    """The largest slack of the judged ones gives; a relaxed but held one does not."""
    scene = stage("a", "b", "c", resources=[CORE], best_effort=False)
    (move,) = scene.step(a=-0.5, b=view(0.9, **held), c=0.1).moves
    assert move.giver == "c"


@pytest.mark.parametrize("held", [held for held in HELD if held["state"] is not ServiceState.ABSENT], ids=str)
@pytest.mark.parametrize("direction", [UP, DOWN])
def test_judgement_waits_for_the_next_fresh_value(
    stage: StageMaker, view: ViewMaker, direction: Direction, held: dict[str, object]
) -> None:
    """While held the last action is neither kept nor turned nor reverted; the first fresh value decides."""
    before, after = (-0.1, -0.5) if direction is UP else (0.5, 0.0)
    scene = stage("a", "b")
    scene.force("a", direction, CORE)
    assert scene.step(a=before, b=0.1).moves
    for _ in range(3):
        assert not scene.step(a=view(after, **held), b=0.1).moves
        assert scene.action("a") == (direction, CORE)
    (move,) = scene.step(a=after, b=0.1).moves
    assert move.pool.resource is (CACHE if direction is UP else CORE)
    assert (move.reason is Reason.DOWNSIZE_REVERTED) is (direction is DOWN)


def test_the_same_value_is_never_acted_on_twice(stage: StageMaker, view: ViewMaker) -> None:
    """A value handed out again brings no second move, upwards or downwards."""
    for slack in (-0.5, 0.5):
        scene = stage("a")
        assert scene.step(a=slack).moves
        assert not scene.step(a=view(slack, fresh=False)).moves


def test_an_absent_services_last_action_is_forgotten(stage: StageMaker, view: ViewMaker) -> None:
    """What came of it went with the process: no revert when the service returns."""
    scene = stage("a", "b")
    scene.force("a", DOWN, CORE)
    scene.step(a=0.5, b=0.1)
    scene.step(a=view(state=ServiceState.ABSENT), b=0.1)
    assert scene.step(a=0.0, b=0.1).reason is not Reason.DOWNSIZE_REVERTED


def test_idle_has_all_slack_and_gives(stage: StageMaker, view: ViewMaker) -> None:
    """Nothing asked for: slack 1, before every service that has something to do."""
    decision = stage("a", "b").step(a=0.9, b=view(state=ServiceState.IDLE))
    assert decision.subject == "b"
    assert decision.slack["b"] == 1.0


def test_a_failing_service_is_never_taken_from(stage: StageMaker, view: ViewMaker) -> None:
    """Answers errors, and fast: not downsized, no victim by latency slack nor by memory slack."""
    failing = view(0.9, ServiceState.FAILING)
    assert stage("a").step(a=failing).reason is Reason.HOLD_NOT_JUDGED
    assert stage("a", "b").step(a=failing, b=0.3).subject == "b"
    for resource in (CORE, MEM):
        scene = stage("a", "b", "c", resources=[resource], best_effort=False)
        scene.usage |= {"b": Usage(memory_bytes=0), "c": Usage(memory_bytes=20_000_000_000)}
        assert scene.step(a=-0.5, b=failing, c=0.1).moves[0].giver == "c"


def test_a_failing_service_is_upsized_only_for_its_latency(stage: StageMaker, view: ViewMaker) -> None:
    """A violation is one whoever fails; without it there is nothing to give for."""
    assert stage("a", "b").step(a=view(-0.1, ServiceState.FAILING), b=0.1).subject == "a"
    assert not stage("a", "b").step(a=view(0.1, ServiceState.FAILING), b=0.1).moves
    assert not stage("a", "b").step(a=view(None, ServiceState.FAILING), b=0.1).moves


@pytest.mark.parametrize("resource", [CORE, MEM])
def test_a_stalled_service_is_no_victim(stage: StageMaker, view: ViewMaker, resource: Resource) -> None:
    """Two stalled services do not take from each other."""
    scene = stage("a", "b", resources=[resource], best_effort=False)
    scene.usage |= {"a": Usage(memory_bytes=0), "b": Usage(memory_bytes=0)}
    stalled = view(state=ServiceState.STALLED)
    assert scene.step(a=stalled, b=stalled).reason is Reason.HOLD_NOTHING_TO_GIVE


@pytest.mark.parametrize(("state", "gives"), [(ServiceState.FEW_SAMPLES, True), (ServiceState.ABSENT, False)])
def test_unused_memory_of_a_held_service_can_be_had(
    stage: StageMaker,
    view: ViewMaker,
    state: ServiceState,
    gives: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Memory slack needs no latency; but what an absent service holds is not taken while it may come back."""
    scene = stage("a", "b", resources=[MEM], best_effort=False)
    scene.usage["b"] = Usage(memory_bytes=0)
    assert bool(scene.step(a=-0.5, b=view(state=state)).moves) is gives


def test_a_service_whose_action_is_not_judged_is_no_victim(stage: StageMaker, view: ViewMaker) -> None:
    """Taking from it would spoil the judgement: memory is not taken from a held service with an action under way."""
    scene = stage("a", "b", resources=[MEM], best_effort=False)
    scene.usage |= {"a": Usage(memory_bytes=0), "b": Usage(memory_bytes=0)}
    scene.step(a=0.1, b=0.9)
    scene.give(MEM, a=60_000_000_000, b=60_000_000_000)
    assert not scene.step(a=-0.5, b=view(state=ServiceState.FEW_SAMPLES)).moves


@pytest.mark.parametrize(
    ("state", "slack", "met"),
    [
        (ServiceState.OK, 0.0, True),
        (ServiceState.OK, -0.001, False),
        (ServiceState.IDLE, None, True),
        (ServiceState.STALLED, None, False),
        (ServiceState.FAILING, 0.9, False),
        (ServiceState.FAILING, None, False),
        (ServiceState.ABSENT, None, True),
        (ServiceState.STALE, -1.0, None),
        (ServiceState.FEW_SAMPLES, -1.0, None),
    ],
)
def test_whether_a_target_is_met(
    view: ViewMaker,
    service: ServiceMaker,
    state: ServiceState,
    slack: float | None,
    met: bool | None,  # noqa: FBT001
) -> None:
    """The migration timer's reading of each state."""
    seen = view(slack, state)
    assert target_met(seen, judge(seen, service("a").target)) is met


def test_bounds_that_are_off_leave_the_latency(view: ViewMaker, service: ServiceMaker) -> None:
    """Without a cautious latency the plain one is judged."""
    verdict = judge(view(0.4, cautious_latency_ns=None), service("a").target)
    assert verdict is not None
    assert verdict.cautious_slack == verdict.slack == pytest.approx(0.4)

"""Migration, the last resort (section 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parties.model import QosTarget, Reason, Service, ServiceState
from parties.settings import PartiesSettings

StageMaker = Callable[..., Any]
ServiceMaker = Callable[..., Service]
ViewMaker = Callable[..., Any]

S = 1_000_000_000
MINUTE = 60 * S


def requests(scene: Any, seconds: float, **seen: object) -> list[tuple[float, Any]]:  # noqa: ANN401 - the stage
    """What is asked for while that is seen for so long, with the time of asking in seconds."""
    asked = []
    for _ in range(round(seconds * 2)):
        at = scene.now_ns / S
        decision = scene.step(**seen)
        if decision.migration is not None:
            asked.append((at, decision.migration))
    return asked


def test_asks_after_sixty_seconds_of_violation_and_again(stage: StageMaker) -> None:
    """At 60 s and at 120 s, not before, with the evidence."""
    scene = stage("a", "b")
    first, second = requests(scene, 130, a=-0.5, b=0.1)
    assert [first[0], second[0]] == [60.5, 120.5]
    assert (first[1].violated_for_ns, second[1].violated_for_ns) == (MINUTE, 2 * MINUTE)
    assert first[1].violating == ("a",)


def test_the_timer_is_a_setting(stage: StageMaker) -> None:
    """After ``migrate_after_ns``."""
    scene = stage("a", settings=PartiesSettings(migrate_after_ns=5 * S))
    assert len(requests(scene, 6, a=-0.5)) == 1


def test_the_decision_says_so_and_moves_go_on(stage: StageMaker) -> None:
    """The reason and the subject are the migration's; the interval's move is made all the same, with its own reason."""
    scene = stage("a", "b", settings=PartiesSettings(migrate_after_ns=S))
    requests(scene, 1, a=-0.5, b=0.1)
    decision = scene.step(a=-0.5, b=0.1)
    assert (decision.reason, decision.subject) == (Reason.MIGRATE_NO_ALLOCATION, decision.migration.service)
    assert [move.taker for move in decision.moves] == ["a"]


def test_meeting_every_target_resets_the_timer(stage: StageMaker) -> None:
    """One interval with all targets met, and the 60 s begin anew."""
    scene = stage("a", "b")
    requests(scene, 59, a=-0.5, b=0.1)
    requests(scene, 0.5, a=0.0, b=0.1)
    assert not requests(scene, 59, a=-0.5, b=0.1)


def test_violations_that_take_turns_are_one(stage: StageMaker) -> None:
    """No allocation met every target, whichever service missed its own."""
    scene = stage("a", "b")
    for _ in range(30):
        assert not requests(scene, 1, a=-0.5, b=0.1)
        assert not requests(scene, 1, a=0.1, b=-0.5)
    assert requests(scene, 0.5, a=-0.5, b=0.1)


def test_a_near_violation_is_none(stage: StageMaker) -> None:
    """A slack between 0 and 5 % is upsized, but its target is met."""
    assert not requests(stage("a", "b"), 120, a=0.02, b=0.1)


@pytest.mark.parametrize("state", [ServiceState.STALLED, ServiceState.FAILING])
def test_stalled_and_failing_count_as_missed(stage: StageMaker, view: ViewMaker, state: ServiceState) -> None:
    """Neither meets its target, whatever its latency was."""
    assert requests(stage("a", "b"), 61, a=view(0.9, state), b=0.1)


def test_what_cannot_be_judged_neither_starts_nor_resets(stage: StageMaker, view: ViewMaker) -> None:
    """Its last verdict stands; a request comes only with an interval that shows a violation."""
    stale = view(-0.5, ServiceState.STALE)
    assert not requests(stage("a", "b"), 120, a=stale, b=0.1)
    scene = stage("a", "b")
    requests(scene, 30, a=-0.5, b=0.1)
    assert not requests(scene, 60, a=stale, b=0.1)
    (asked,) = requests(scene, 0.5, a=-0.5, b=0.1)
    assert asked[1].violated_for_ns == 90 * S


def test_a_service_that_is_never_judged_does_not_keep_the_timer_running(stage: StageMaker, view: ViewMaker) -> None:
    """Others that meet their targets reset it though one cannot be judged."""
    scene = stage("a", "b")
    stale = view(state=ServiceState.STALE)
    requests(scene, 30, a=-0.5, b=stale)
    requests(scene, 0.5, a=0.1, b=stale)
    assert not requests(scene, 59, a=-0.5, b=stale)


def test_an_absent_service_has_no_target_to_miss(stage: StageMaker, view: ViewMaker) -> None:
    """A violation ends with its process."""
    scene = stage("a", "b")
    requests(scene, 59, a=-0.5, b=0.1)
    requests(scene, 0.5, a=view(state=ServiceState.ABSENT), b=0.1)
    assert not requests(scene, 59, a=-0.5, b=0.1)


@pytest.mark.parametrize(
    ("stateless", "expected"),
    [((), "b"), (("a",), "a"), (("a", "c"), "c")],
)
def test_stateless_first_then_the_most_relaxed_target(
    stage: StageMaker, service: ServiceMaker, stateless: tuple[str, ...], expected: str
) -> None:
    """A stateless service before every other, and of several the one with the largest target."""
    targets = {"a": 1_000_000, "b": 9_000_000, "c": 5_000_000}
    made = [service(name, target=QosTarget(ns), stateless=name in stateless) for name, ns in targets.items()]
    ((_, request),) = requests(stage(*made), 61, a=-99.0, b=0.1, c=0.1)
    assert request.service == expected


def test_an_absent_service_does_not_migrate(stage: StageMaker, service: ServiceMaker, view: ViewMaker) -> None:
    """What is not here cannot go elsewhere."""
    made = [service("a"), service("b", target=QosTarget(10**12), stateless=True)]
    ((_, request),) = requests(stage(*made), 61, a=-0.5, b=view(state=ServiceState.ABSENT))
    assert request.service == "a"

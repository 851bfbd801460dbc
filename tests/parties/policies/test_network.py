"""The network rule (section 4.3): every interval, every service, beside the wheels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parties.model import BEST_EFFORT, IDLE, MoveStatus, Reason, Resource, Service, ServiceState, Usage
from parties.settings import PartiesSettings

StageMaker = Callable[..., Any]
ServiceMaker = Callable[..., Service]
ViewMaker = Callable[..., Any]

NETWORK = Resource.NETWORK
MBIT = 1_000_000
STEP = 500 * MBIT


def using(**mbit: int | None) -> dict[str, Usage]:
    return {name: Usage(network_bits_per_s=None if use is None else use * MBIT) for name, use in mbit.items()}


def network_of(decision: Any) -> list[tuple[str | None, str | None, int, Reason]]:  # noqa: ANN401 - a decision
    moves = [move for move in decision.moves if move.pool.resource is NETWORK]
    return [(move.giver, move.taker, move.amount, move.reason) for move in moves]


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (4501, [(BEST_EFFORT, "a", STEP, Reason.NETWORK_HEADROOM_LOW)]),
        (4500, []),
        (4000, []),
        (3999, [("a", BEST_EFFORT, STEP, Reason.NETWORK_HEADROOM_HIGH)]),
    ],
)
def test_headroom_is_kept_between_the_thresholds(stage: StageMaker, use: int, expected: list[object]) -> None:
    """5 Gbps held: under 0.5 Gbps of headroom half a Gbps more, over 1 Gbps half a Gbps less, between them nothing."""
    scene = stage("a")
    scene.usage |= using(a=use)
    assert scene.amount(NETWORK, "a") == 5000 * MBIT
    assert network_of(scene.step(a=0.1)) == expected


def test_the_thresholds_are_settings(stage: StageMaker) -> None:
    """Headroom is judged by the two settings; the step is the pool's."""
    settings = PartiesSettings(network_headroom_low_bits_per_s=2000 * MBIT, network_headroom_high_bits_per_s=4000 * MBIT)
    scene = stage("a", settings=settings)
    scene.usage |= using(a=3500)
    assert network_of(scene.step(a=0.1)) == [(BEST_EFFORT, "a", STEP, Reason.NETWORK_HEADROOM_LOW)]


def test_every_service_is_adjusted_in_every_interval(stage: StageMaker) -> None:
    """One step for each service, beside the interval's one move of another resource."""
    scene = stage("a", "b", "c")
    scene.usage |= using(a=0, b=2400, c=0)
    decision = scene.step(a=-0.5, b=0.1, c=0.1)
    assert [(giver, taker) for giver, taker, _, _ in network_of(decision)] == [
        ("a", BEST_EFFORT),
        (BEST_EFFORT, "b"),
        ("c", BEST_EFFORT),
    ]
    assert len(decision.moves) == 4
    assert decision.subject == "a"


def test_it_goes_on_while_nothing_can_be_judged(stage: StageMaker, view: ViewMaker) -> None:
    """Use is measured, not latency: a stale service is adjusted; an absent one is not."""
    for state, expected in ((ServiceState.STALE, 1), (ServiceState.ABSENT, 0)):
        scene = stage("a")
        scene.usage |= using(a=0)
        decision = scene.step(a=view(state=state))
        assert len(network_of(decision)) == expected
        assert decision.reason is Reason.HOLD_NOT_JUDGED


def test_idle_gives_before_best_effort_and_a_service_never(stage: StageMaker) -> None:
    """One step of each is left: the third service gets none, though another one has plenty."""
    scene = stage("a", "b", "c", "d")
    scene.give(NETWORK, a=1000 * MBIT, b=1000 * MBIT, c=1000 * MBIT, d=6000 * MBIT, best_effort=STEP, idle=STEP)
    scene.usage |= using(a=900, b=900, c=900, d=5200)
    assert [(giver, taker) for giver, taker, _, _ in network_of(scene.step(a=0.1, b=0.1, c=0.1, d=0.1))] == [
        (IDLE, "a"),
        (BEST_EFFORT, "b"),
    ]


def test_no_move_leans_on_another_of_the_same_interval(stage: StageMaker) -> None:
    """What one service gives can be had an interval later."""
    scene = stage("a", "b", best_effort=False)
    scene.usage |= using(a=0, b=4800)
    assert [(giver, taker) for giver, taker, _, _ in network_of(scene.step(a=0.1, b=0.1))] == [("a", IDLE)]
    assert (IDLE, "b") in [(giver, taker) for giver, taker, _, _ in network_of(scene.step(a=0.1, b=0.1))]


def test_limits_hold(stage: StageMaker, service: ServiceMaker) -> None:
    """Not above the maximum, not under the minimum."""
    scene = stage(service("a", maximum={NETWORK: 2000 * MBIT}), service("b", minimum={NETWORK: 3000 * MBIT}))
    scene.give(NETWORK, a=2000 * MBIT, b=3000 * MBIT, best_effort=5000 * MBIT)
    scene.usage |= using(a=1999, b=0)
    assert network_of(scene.step(a=0.1, b=0.1)) == []


def test_unknown_use_or_an_unmanaged_network_moves_nothing(stage: StageMaker) -> None:
    """Without a measurement there is no headroom to judge."""
    scene = stage("a")
    scene.usage |= using(a=None)
    assert network_of(scene.step(a=0.1)) == []
    bare = stage("a", resources=[Resource.CORES])
    bare.usage |= using(a=0)
    assert network_of(bare.step(a=0.1)) == []


def test_a_pending_network_move_closes_the_pool(stage: StageMaker) -> None:
    """No second step while the first is not through."""
    scene = stage("a")
    scene.usage |= using(a=0)
    assert network_of(scene.step(a=0.1, fate=MoveStatus.PENDING))
    assert not network_of(scene.step(a=0.1))


def test_thresholds_closer_than_a_step_are_refused(stage: StageMaker) -> None:
    """A step would go to and fro for ever; the message names both settings."""
    with pytest.raises(ValueError, match=r"network_headroom_high_bits_per_s must exceed network_headroom_low_bits_per_s"):
        stage("a", settings=PartiesSettings(network_headroom_high_bits_per_s=999 * MBIT))

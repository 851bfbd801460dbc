"""PARTIES on a toy: each service is a queue whose capacity comes from cores and ways together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parties.model import BEST_EFFORT, Reason, Resource, ServiceState

StageMaker = Callable[..., Any]
ViewMaker = Callable[..., Any]

TARGET_NS = 10_000_000
SERVICE_NS = 1_000_000
RESOURCES = (Resource.CORES, Resource.CACHE, Resource.MEMORY, Resource.DISK)


def seen(scene: Any, view: ViewMaker, loads: dict[str, float]) -> dict[str, Any]:  # noqa: ANN401 - the stage
    """The tail latency of M/M/1: ever longer towards capacity, stalled beyond it."""
    views = {}
    for name, load in loads.items():
        cores = scene.amount(Resource.CORES, name) / 1000
        ways = scene.amount(Resource.CACHE, name)
        capacity = cores * (0.7 + 0.3 * min(1.0, ways / 8))
        if load >= capacity:
            views[name] = view(state=ServiceState.STALLED)
        else:
            views[name] = view(1 - 4.6 * SERVICE_NS / (1 - load / capacity) / capacity / TARGET_NS)
    return views


def play(scene: Any, view: ViewMaker, loads: dict[str, float], intervals: int) -> list[Any]:  # noqa: ANN401 - the stage
    return [scene.step(**seen(scene, view, loads)) for _ in range(intervals)]


def violated(decisions: list[Any]) -> int:
    return sum(any(slack < 0 for slack in decision.slack.values()) for decision in decisions)


@pytest.mark.parametrize("seed", range(8))
def test_converges_where_the_fair_start_fails_and_gives_back_when_the_load_falls(
    stage: StageMaker, view: ViewMaker, seed: int
) -> None:
    """A heavy service gets what it lacks within 60 s; when it turns light, best-effort jobs get more than they began with."""
    scene = stage("heavy", "light", resources=RESOURCES, seed=seed)
    fair = scene.amount(Resource.CORES, BEST_EFFORT)
    loads = {"heavy": 7.0, "light": 0.5}
    assert violated(play(scene, view, loads, 1)) == 1
    play(scene, view, loads, 119)
    assert violated(play(scene, view, loads, 200)) <= 20
    loads["heavy"] = 0.5
    play(scene, view, loads, 600)
    assert scene.amount(Resource.CORES, BEST_EFFORT) > fair
    later = play(scene, view, loads, 400)
    assert violated(later) <= 40
    assert all(decision.migration is None for decision in later)


def test_an_impossible_load_asks_for_a_migration(stage: StageMaker, view: ViewMaker) -> None:
    """More than the machine has: no allocation helps, and after 60 s that is said."""
    scene = stage("a", "b", resources=RESOURCES)
    decisions = play(scene, view, {"a": 12.0, "b": 6.0}, 125)
    assert sum(decision.migration is not None for decision in decisions) == 1
    assert decisions[120].reason is Reason.MIGRATE_NO_ALLOCATION


def test_the_same_seed_replays_the_same_run(stage: StageMaker, view: ViewMaker) -> None:
    """Run twice from one seed: the same decisions; from another seed: others."""
    loads = {"a": 6.0, "b": 2.0}
    one, two, other = (play(stage("a", "b", resources=RESOURCES, seed=seed), view, loads, 200) for seed in (5, 5, 6))
    assert one == two
    assert one != other

"""Every experiment for real, on grids small enough to wait for: points, rows, summary, figure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fake_experiment import Heard

from workloads.experiments import registry
from workloads.experiments.experiment import Experiment, Point
from workloads.experiments.runner import Call, run
from workloads.experiments.store import Store

MakeCall = Callable[..., Call]
Chooser = Callable[[Sequence[Point]], Sequence[Point]]


def _named(*names: str) -> Chooser:
    return lambda points: [point for point in points if point.name in names]


def _starting(*beginnings: str) -> Chooser:
    return lambda points: [point for point in points if point.name.startswith(beginnings)]


def _fewer_ways(points: Sequence[Point]) -> Sequence[Point]:
    return [dataclasses.replace(point, params={**point.params, "ways": [2, 11]}) for point in points]


def _first_ray_and_cell(points: Sequence[Point]) -> Sequence[Point]:
    """For each manager, which come one after another."""
    rays = [point for point in points if "weights" in point.params]
    return [*rays[:3], *(point for point in points if point.name.endswith(" moses=40 mongodb=?"))]


TINY: dict[str, Chooser] = {
    "calibration": _named("moses"),
    "load-latency": lambda points: [point for point in points if point.params.get("load", 30) == 30],
    "sensitivity": _fewer_ways,
    "memory-disk": list,
    "interference": list,
    "pairs": _named("parties xapian=40 moses=?", "parties mongodb=40 mongodb-2=?", "parties moses=80 mongodb=?"),
    "triples": _starting("parties memcached=30 xapian=30"),
    "six": _starting("parties memcached=10 xapian=10"),
    "emu": _first_ray_and_cell,
    "managers": lambda points: [point for point in points if "memcached=30 xapian=30" in point.name],
    "fluctuating": list,
    "convergence": _named("2 services #0", "3 services #0"),
    "signal": lambda points: [point for point in points if point.params["run"] == 0 and point.params["variant"] in {"raw", "all"}],
}


def test_every_experiment_is_tried_here() -> None:
    """None is forgotten."""
    assert tuple(TINY) == registry.NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.NAMES)
def test_an_experiment_works(tmp_path: Path, heard: Heard, call: MakeCall, name: str) -> None:
    """A few of its quick points are measured on the simulated node; everything that it writes is there and makes sense."""
    (whole,) = registry.experiments_named([name])
    chosen = TINY[name]
    tiny = dataclasses.replace(whole, points=lambda quick, seed: chosen(whole.points(quick, seed)))
    outcome = run([tiny], Store(tmp_path), heard, call(quick=True))
    assert not outcome.failures, [failure.__cause__ for failure in outcome.failures.values()]
    summary = json.loads((tmp_path / f"{name}.json").read_text())
    assert summary["points"] == len(heard.finished) > 0
    assert summary["headline"].endswith(".")
    assert all(line["reason"] or line["holds"] for line in summary["comparison"])
    assert all(len(row) == len(table["columns"]) for table in summary.get("tables", ()) for row in table["rows"])
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    again = [row for point in chosen(whole.points(True, 1))[:1] for row in whole.measure(point)]
    kept = Store(tmp_path)
    with kept.points(whole.stored_as) as points:
        (first,) = chosen(whole.points(True, 1))[:1]
        assert points.rows(first, summary["fingerprint"]) == json.loads(json.dumps(again))


@pytest.mark.parametrize("name", registry.NAMES)
def test_quick_grids_are_smaller_and_points_have_names_of_their_own(name: str) -> None:
    """No two points of a grid are the same; the quick grid is never larger, and the seed is every point's."""
    (experiment,) = registry.experiments_named([name])
    quick, full = experiment.points(True, 7), experiment.points(False, 7)
    for points in (quick, full):
        assert len({point.name for point in points}) == len(points) > 0
        assert {point.seed for point in points} == {7}
        assert all(json.loads(point.identity())[0] == point.name for point in points)
    assert sum(point.weight for point in quick) <= sum(point.weight for point in full)


def test_points_of_the_frontier_are_shared() -> None:
    """What several figures ask for is measured once: triples with NGINX for the managers, pairs and triples for the EMU."""
    found: dict[str, set[str]] = {}
    for name in ("pairs", "triples", "emu", "managers"):
        (experiment,) = registry.experiments_named([name])
        assert experiment.stored_as == "frontier"
        found[name] = {point.identity() for point in experiment.points(False, 1)}
    assert len(found["triples"] & found["managers"]) == 100
    assert len(found["pairs"] & found["emu"]) == 150
    assert found["triples"] & found["emu"]


def test_a_name_stands_for_a_file() -> None:
    """Every name of the registry gives the experiment of that name."""
    found: Sequence[Experiment] = registry.experiments_named([registry.ALL])
    assert tuple(experiment.name for experiment in found) == registry.NAMES

"""An experiment that costs nothing: what the runner, the store and the report are tried on."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from workloads.experiments.experiment import Experiment, Point, Row, Summary, derived_seed
from workloads.experiments.paper import compare

LOG = "FAKE_EXPERIMENT_LOG"  # a file that gets a line for each point that is measured
FAIL = "FAKE_EXPERIMENT_FAIL"  # the name of a point that cannot be measured
SLOW = "FAKE_EXPERIMENT_SLOW"  # seconds that each point takes


class Heard:
    """A view that keeps what it was told."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.said: list[str] = []
        self.finished: list[str] = []
        self.expected: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self.stop_after: int | None = None

    def begin(self, weight: float) -> None:
        self.weight = weight

    def experiment(self, experiment: Experiment, points: int, kept: int) -> None:
        self.expected[experiment.name] = points
        self.kept[experiment.name] = kept

    def done(self, point: Point) -> None:
        self.finished.append(point.name)
        if self.stop_after is not None and len(self.finished) >= self.stop_after:
            raise KeyboardInterrupt

    def say(self, text: str) -> None:
        self.said.append(text)


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    return [Point(f"x={x}", seed, {"x": x}) for x in range(3 if quick else 6)]


def measure(point: Point) -> Sequence[Row]:
    if os.environ.get(FAIL) == point.name:
        raise RuntimeError("no such luck")
    time.sleep(float(os.environ.get(SLOW, "0")))
    if log := os.environ.get(LOG):
        with Path(log).open("a") as file:
            file.write(f"{point.name} {os.getpid()}\n")
    x = point.params["x"]
    return [{"x": x, "y": x * x, "noise": derived_seed(point.seed, point.name) % 1000 / 7}, {"x": x, "y": -x, "noise": None}]


def summarise(rows: Sequence[Row]) -> Summary:
    total = sum(float(row["y"] or 0) for row in rows)
    lines = [
        compare("total", "the sum of <y>", paper=4, ours=total, unit="%", holds=total == 4),
        compare("count", "rows", paper="some", ours=len(rows), holds=bool(rows)),
    ]
    table = {"title": "All of it", "columns": ["x", "y"], "rows": [[row["x"], row["y"]] for row in rows]}
    return {"headline": f"{len(rows)} rows & a sum of {total:g}", "comparison": lines, "tables": [table], "total": total}


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    figure = Figure(figsize=(2, 2))
    axes = figure.subplots()
    axes.plot([float(row["x"] or 0) for row in rows], [float(row["y"] or 0) for row in rows])
    axes.set_title(summary["title"])
    figure.savefig(path)


def experiment(name: str = "fake", points_file: str = "") -> Experiment:
    """One of these; several may share their points."""
    return Experiment(name, "Figure 0", f"The {name} title", "All of it.", points, measure, summarise, draw, points_file)

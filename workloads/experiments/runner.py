"""Runs experiments: measures what is not finished yet, then writes table, summary and figure of each."""

from __future__ import annotations

import datetime as dt
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

from parties import __version__
from workloads.experiments.experiment import Experiment, Point, Row
from workloads.experiments.fingerprint import fingerprint
from workloads.experiments.paper import with_reasons
from workloads.experiments.pool import Measured, PointError, pool
from workloads.experiments.store import PICTURE, SUMMARY_FORMAT, Points, Store

SUMMARY_VERSION = 1
NODE = "e5-2699v4"  # the paper's server (Table 1), which all experiments run on


class View(Protocol):
    """Who is told how far it is."""

    def begin(self, weight: float) -> None:
        """So much is to be measured."""

    def experiment(self, experiment: Experiment, points: int, kept: int) -> None:
        """An experiment begins; ``kept`` of its points are finished already."""

    def done(self, point: Point) -> None:
        """A point was measured."""

    def say(self, text: str) -> None:
        """A line that stays."""


@dataclass(frozen=True, slots=True)
class Call:
    """How experiments are to be run."""

    quick: bool = False
    seed: int = 1
    jobs: int = 1
    today: Callable[[], dt.date] = dt.date.today


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the experiments: their summaries, and for those that failed the error."""

    summaries: Mapping[str, dict[str, Any]]
    failures: Mapping[str, PointError]


@dataclass(frozen=True, slots=True)
class _Task:
    experiment: Experiment
    points: Sequence[Point]
    fingerprint: str


def run(experiments: Sequence[Experiment], store: Store, view: View, call: Call) -> Outcome:
    """Run experiments one after another, each with all processes. One that fails leaves its finished points and the others alone.

    Raises StoreError, the kinds of it that can be known before anything is computed.
    """
    store.prepare(experiments)
    tasks = [_task(experiment, call) for experiment in experiments]
    view.begin(_weight(tasks, store))
    summaries, failures = {}, {}
    with pool(call.jobs) as processes:
        for task in tasks:
            with store.points(task.experiment.stored_as) as points:
                if points.broken:
                    view.say(
                        f"{task.experiment.name}: {points.broken} broken line(s) passed over; what they held is measured again"
                    )
                left = [point for point in task.points if points.rows(point, task.fingerprint) is None]
                view.experiment(task.experiment, len(task.points), len(task.points) - len(left))
                try:
                    for measured in processes.measure(task.experiment, left):
                        _keep(points, task, measured)
                        view.done(measured.point)
                except PointError as error:
                    failures[task.experiment.name] = error
                    continue
                summaries[task.experiment.name] = _finish(task, points, store, call)
                took_s = points.cost_s(task.points, task.fingerprint)
                view.say(f"{task.experiment.name}: done; its points took {took_s:.0f} s of CPU time")
    return Outcome(summaries, failures)


def _task(experiment: Experiment, call: Call) -> _Task:
    points = experiment.points(call.quick, call.seed)
    names = {point.name for point in points}
    if len(names) != len(points):
        raise ValueError(f"{experiment.name} has points of the same name")
    return _Task(experiment, points, fingerprint(experiment))


def _weight(tasks: Sequence[_Task], store: Store) -> float:
    """What is left to measure, points that experiments have in common once."""
    weights = {}
    for task in tasks:
        with store.points(task.experiment.stored_as) as points:
            for point in task.points:
                if points.rows(point, task.fingerprint) is None:
                    weights[task.experiment.stored_as, point.identity()] = point.weight
    return sum(weights.values())


def _keep(points: Points, task: _Task, measured: Measured) -> None:
    try:
        points.add(measured.point, task.fingerprint, measured.rows, measured.cost_s)
    except ValueError as error:
        raise PointError(measured.point) from error


def _finish(task: _Task, points: Points, store: Store, call: Call) -> dict[str, Any]:
    """Write table, summary and figure from the rows of finished points, in the order of the grid."""
    experiment = task.experiment
    rows: list[Row] = []
    for point in task.points:
        rows += points.rows(point, task.fingerprint) or ()
    made = experiment.summarise(rows)
    summary = {
        "format": SUMMARY_FORMAT,
        "version": SUMMARY_VERSION,
        "experiment": experiment.name,
        "figure": experiment.figure,
        "title": experiment.title,
        "quick": call.quick,
        "seed": call.seed,
        "node": NODE,
        "date": call.today().isoformat(),
        "versions": {"parties": __version__, "python": platform.python_version(), "numpy": metadata.version("numpy")},
        "fingerprint": task.fingerprint,
        "method": experiment.method,
        "points": len(task.points),
        **with_reasons(experiment.name, made),
    }
    store.write_table(experiment.name, rows)
    store.write_summary(experiment.name, summary)
    store.write(store.path(experiment.name, PICTURE), lambda path: experiment.draw(rows, summary, path))
    return summary

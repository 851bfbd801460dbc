"""Figure 6, right part: six services; Memcached and Xapian on the axes, three others fixed, NGINX's largest load as value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.frontier import PARTIES, POINTS_FILE, cell, measure
from workloads.experiments.plot import figure_of, load_map, save
from workloads.experiments.tables import cells, levels, mean, number, rounded
from workloads.experiments.trials import REPEATS, STEPS

ACROSS, UP, VALUE = "memcached", "xapian", "nginx"
FIXED = {"moses": 10, "sphinx": 10, "mongodb": 100}
QUICK_STEPS = (10, 20, 40)


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """A cell for each load of Memcached and Xapian."""
    steps, repeats = (QUICK_STEPS, 1) if quick else (STEPS, REPEATS)
    grid = itertools.product(steps, repeat=2)
    return [cell(seed, PARTIES, {ACROSS: across, UP: up, **FIXED}, VALUE, repeats) for across, up in grid]


def summarise(rows: Sequence[Row]) -> Summary:
    """How many combinations leave room for NGINX, and how much."""
    found = [number(row, "largest") for row in rows]
    served = sum(value > 0 for value in found)
    best = max((number(row, "aggregate") for row in rows if row["aggregate"] is not None), default=None)
    return {
        "headline": f"{served} of {len(found)} loads of Memcached and Xapian leave room for NGINX beside Moses 10 %, Sphinx 10 % "
        f"and MongoDB 100 %; the largest aggregate is {best or 0:g} %.",
        "comparison": [],  # the text gives no figure for these
        "combinations": len(found),
        "served": served,
        "mean_largest_percent": rounded(mean(value for value in found if value > 0)),
        "largest_aggregate_percent": best,
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """One heat map."""
    del summary
    figure, axes = figure_of(1, 1, width=4.4, height=3.9)
    title = "largest load of NGINX (%)\nbeside Moses 10 %, Sphinx 10 %, MongoDB 100 %"
    load_map(axes[0][0], cells(rows, ACROSS, UP), levels(rows, ACROSS), levels(rows, UP), title=title, names=(ACROSS, UP))
    save(figure, path)


EXPERIMENT = Experiment(
    name="six",
    figure="Figure 6",
    title="Six services under PARTIES",
    method=(
        "Of the 10^6 combinations the paper's plane: Moses 10 %, Sphinx 10 %, MongoDB 100 %; Memcached x Xapian in steps of "
        "10 % (quick: 10, 20, 40 %), NGINX's largest load searched by bisection and one look beyond; most of 3 runs (quick: "
        "of 1) decide. No best-effort job."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
    points_file=POINTS_FILE,
)

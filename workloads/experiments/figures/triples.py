"""Figure 6, left part: Memcached and Xapian on the axes, a third service's largest load as value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.frontier import PARTIES, POINTS_FILE, cell, measure
from workloads.experiments.plot import figure_of, load_map, save, title_of
from workloads.experiments.tables import cells, levels, mean, number, rounded
from workloads.experiments.trials import REPEATS, STEPS

ACROSS, UP = "memcached", "xapian"
THIRDS = ("nginx", "moses", "mongodb", "sphinx")
QUICK_STEPS = (10, 30, 50, 70, 90)


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """A cell for each third service and loads of the first two."""
    steps, repeats = (QUICK_STEPS, 1) if quick else (STEPS, REPEATS)
    return [
        cell(seed, PARTIES, {ACROSS: across, UP: up}, third, repeats)
        for third in THIRDS
        for across, up in itertools.product(steps, repeat=2)
    ]


def summarise(rows: Sequence[Row]) -> Summary:
    """How many combinations of the first two leave room for the third, and how much."""
    figures = {}
    for third in THIRDS:
        found = [number(row, "largest") for row in rows if row["last"] == third]
        figures[third] = {
            "combinations": len(found),
            "served": sum(value > 0 for value in found),
            "mean_largest_percent": rounded(mean(value for value in found if value > 0)),
            "largest_aggregate_percent": max(
                (number(row, "aggregate") for row in rows if row["last"] == third and row["aggregate"] is not None), default=None
            ),
        }
    columns = ["third service", "combinations", "served", "mean largest load (%)", "largest aggregate (%)"]
    table = {
        "title": "Room for a third service",
        "columns": columns,
        "rows": [[third, *found.values()] for third, found in figures.items()],
    }
    said = ", ".join(f"{title_of(third)} {found['served']} of {found['combinations']}" for third, found in figures.items())
    return {
        "headline": f"Loads of Memcached and Xapian beside which a third service has room: {said}.",
        "comparison": [],  # the text gives no figure for these
        "tables": [table],
        "thirds": figures,
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """A heat map for each third service."""
    del summary
    figure, axes = figure_of(1, len(THIRDS))
    for panel, third in zip(axes[0], THIRDS, strict=True):
        found = [row for row in rows if row["last"] == third]
        title = f"largest load of {title_of(third)} (%)"
        load_map(panel, cells(found, ACROSS, UP), levels(found, ACROSS), levels(found, UP), title=title, names=(ACROSS, UP))
    save(figure, path)


EXPERIMENT = Experiment(
    name="triples",
    figure="Figure 6",
    title="Three services under PARTIES",
    method=(
        "Memcached x Xapian in steps of 10 % (quick: 10, 30, .. 90 %), each with NGINX, Moses, MongoDB and Sphinx; the "
        "third's largest load is searched by bisection and one look beyond; most of 3 runs (quick: of 1) decide. No "
        "best-effort job."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
    points_file=POINTS_FILE,
)

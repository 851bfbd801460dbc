"""Figure 8: Memcached, Xapian and NGINX under four managers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.frontier import HERACLES, ORACLE, PARTIES, POINTS_FILE, UNMANAGED, cell, measure
from workloads.experiments.paper import compare
from workloads.experiments.plot import figure_of, load_map, save, title_of
from workloads.experiments.tables import aligned, by_manager, cells, levels, mean, number, percent_more, rounded
from workloads.experiments.trials import REPEATS, STEPS

ACROSS, UP, VALUE = "memcached", "xapian", "nginx"
MANAGERS = (UNMANAGED, HERACLES, PARTIES, ORACLE)
QUICK_STEPS = (10, 30, 50, 70, 90)
MORE_THAN_HERACLES = (10, 30)  # percent of NGINX's maximum load
UNDER_ORACLE = 10  # percent


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """A cell for each manager and loads of Memcached and Xapian."""
    steps, repeats = (QUICK_STEPS, 1) if quick else (STEPS, REPEATS)
    grid = tuple(itertools.product(steps, repeat=2))
    return [cell(seed, manager, {ACROSS: across, UP: up}, VALUE, repeats) for manager in MANAGERS for across, up in grid]


def summarise(rows: Sequence[Row]) -> Summary:
    """How much of NGINX each manager carries, and section 5.2's statements about that."""
    together = aligned(rows, (ACROSS, UP))
    carried = {
        manager: {
            "served": sum(number(row, "largest") > 0 for row in found),
            "mean_largest_percent": mean(number(row, "largest") for row in found),
            "emu_percent": max((number(row, "aggregate") for row in found if row["aggregate"] is not None), default=0.0),
        }
        for manager, found in by_manager(rows).items()
    }
    more = mean(
        number(row[PARTIES], "largest") - number(row[HERACLES], "largest")
        for row in together
        if max(number(row[PARTIES], "largest"), number(row[HERACLES], "largest")) > 0
    )
    less = percent_more(carried[PARTIES]["emu_percent"], carried[ORACLE]["emu_percent"])
    means = {manager: found["mean_largest_percent"] or 0.0 for manager, found in carried.items()}
    worst = min(means, key=lambda manager: means[manager])
    low, high = MORE_THAN_HERACLES
    comparison = [
        compare(
            "more-than-heracles",
            "NGINX's load under PARTIES over that under Heracles, mean of combinations that either serves",
            paper=f"{low} to {high}",
            ours=rounded(more),
            unit="% of its maximum",
            holds=more is not None and low <= more <= high,
        ),
        compare(
            "under-oracle",
            "largest aggregate load under PARTIES against Oracle's",
            paper=f"at most {UNDER_ORACLE} less",
            ours=rounded(less),
            unit="%",
            holds=less is not None and less >= -UNDER_ORACLE,
        ),
        compare("unmanaged-worst", "the manager that carries least", paper=UNMANAGED, ours=worst, holds=worst == UNMANAGED),
    ]
    columns = ["manager", "combinations served", "NGINX's load, mean (%)", "largest aggregate (%)"]
    lines = [
        [manager, found["served"], rounded(found["mean_largest_percent"]), found["emu_percent"]]
        for manager, found in carried.items()
    ]
    said = ", ".join(f"{title_of(manager)} {mean_largest:.0f} %" for manager, mean_largest in means.items())
    return {
        "headline": f"NGINX's largest load in the mean of {len(together)} loads of Memcached and Xapian: {said}.",
        "comparison": comparison,
        "tables": [{"title": "What each manager carries", "columns": columns, "rows": lines}],
        "managers": carried,
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """A heat map for each manager."""
    del summary
    figure, axes = figure_of(1, len(MANAGERS))
    for panel, (manager, found) in zip(axes[0], by_manager(rows).items(), strict=True):
        title = f"{title_of(manager)}: largest load of NGINX (%)"
        load_map(panel, cells(found, ACROSS, UP), levels(found, ACROSS), levels(found, UP), title=title, names=(ACROSS, UP))
    save(figure, path)


EXPERIMENT = Experiment(
    name="managers",
    figure="Figure 8",
    title="Three services under four managers",
    method=(
        "Memcached x Xapian in steps of 10 % (quick: 10, 30, .. 90 %); NGINX's largest load under Unmanaged, Heracles and "
        "PARTIES is searched by bisection and one look beyond, with the same arrivals for all; most of 3 runs (quick: of 1) "
        "decide. Oracle's is exact on the model. No best-effort job."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
    points_file=POINTS_FILE,
)

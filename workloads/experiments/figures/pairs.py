"""Figure 5: for each load of one service the largest load of another beside it under PARTIES, all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.frontier import PARTIES, POINTS_FILE, cell, measure
from workloads.experiments.paper import compare
from workloads.experiments.plot import SERVICE_COLOURS, figure_of, save, title_of
from workloads.experiments.tables import mean, number, rounded
from workloads.experiments.trials import REPEATS, SERVICES, STEPS, tenants_of

QUICK_STEPS = (20, 40, 60, 80, 100)
HIGH = 80  # percent; what "high load" and "near 100 %" are taken to be
MIDDLE = (40, 60)
MONGODB_SUM = 160


def pairs() -> tuple[tuple[str, str], ...]:
    """All pairs, a service with itself included."""
    return tuple(itertools.combinations_with_replacement(SERVICES, 2))


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """A cell for each pair and load of its first service."""
    found = []
    for pair in pairs():
        first, second = tenants_of(pair)
        steps, repeats = (QUICK_STEPS, 1) if quick else (STEPS, REPEATS)
        found += [cell(seed, PARTIES, {first: load}, second, repeats) for load in steps]
    return found


def summarise(rows: Sequence[Row]) -> Summary:
    """How much load each pair carries, and the three statements of section 5.1 about them."""
    sums = {
        mix: [number(row, "aggregate") for row in found if row["aggregate"] is not None] for mix, found in _by_mix(rows).items()
    }
    largest = {mix: max(found, default=0.0) for mix, found in sums.items()}
    # Two MongoDBs have a statement of their own.
    others = [row for row in rows if _first_load(row) in MIDDLE and _models(str(row["mix"])) != ("mongodb", "mongodb")]
    high = [number(row, "largest") >= HIGH for row in others]
    mongodb = [
        _least_sum(found) for mix, found in _by_mix(rows).items() if len(set(_models(mix)) & {"mongodb"}) and "mongodb-2" not in mix
    ]
    twice = largest.get("mongodb+mongodb-2")
    share = rounded(100 * sum(high) / len(high)) if high else None
    comparison = [
        compare(
            "high-beside-middle",
            f"one service at {HIGH} % or more beside another at 40-60 %, share of pairs and loads",
            paper="always",
            ours=share,
            unit="%",
            holds=bool(high) and all(high),
        ),
        compare(
            "mongodb-with-anything",
            f"MongoDB beside another: largest load of one while the other is at {HIGH} % or more, mean of pairs",
            paper="near 100",
            ours=rounded(mean(value for value in mongodb if value is not None)),
            unit="%",
            holds=bool(mongodb) and all(value is not None and value >= HIGH for value in mongodb),
        ),
        compare(
            "two-mongodbs",
            "two MongoDBs: largest sum of loads",
            paper=f"at most {MONGODB_SUM}",
            ours=twice,
            unit="%",
            holds=twice is not None and twice <= MONGODB_SUM,
        ),
    ]
    table = {
        "title": "Largest sum of loads of each pair (%)",
        "columns": ["pair", "sum"],
        "rows": [list(item) for item in largest.items()],
    }
    best = mean(largest.values())
    return {
        "headline": f"PARTIES carries {rounded(best, 0)} % of load at best in the mean of {len(largest)} pairs.",
        "comparison": comparison,
        "tables": [table],
        "largest_sum_percent": largest,
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """A panel for each pair: the first service's load across, the second's largest load up."""
    del summary
    figure, axes = figure_of(len(SERVICES), len(SERVICES), width=1.9, height=1.7)
    by_mix = _by_mix(rows)
    for (row, first), (column, second) in itertools.product(enumerate(SERVICES), repeat=2):
        panel = axes[row][column]
        found = by_mix.get("+".join(tenants_of((second, first))))
        if found is None or row < column:
            panel.axis("off")
            continue
        across = [_first_load(line) for line in found]
        up = [number(line, "largest") for line in found]
        panel.fill_between(across, up, color=SERVICE_COLOURS[first], alpha=0.35)
        panel.plot(across, up, color=SERVICE_COLOURS[first], marker="o", markersize=2.5, linewidth=1.2)
        panel.plot([0, 100], [100, 0], color="black", linewidth=0.5, linestyle=":")
        panel.set_xlim(0, 105)
        panel.set_ylim(0, 105)
        panel.tick_params(labelsize=6)
        if row == len(SERVICES) - 1:
            panel.set_xlabel(f"{title_of(second)} (%)", fontsize=8)
        if column == 0:
            panel.set_ylabel(f"{title_of(first)} (%)", fontsize=8)
    figure.suptitle("Largest load of one service beside each load of another under PARTIES; dotted: 100 % together", fontsize=10)
    save(figure, path)


def _by_mix(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["mix"]), []).append(row)
    return found


def _models(mix: str) -> tuple[str, ...]:
    return tuple(name.partition("-")[0] for name in mix.split("+"))


def _first_load(row: Row) -> float:
    return number(row, str(row["mix"]).split("+")[0])


def _least_sum(rows: Sequence[Row]) -> float | None:
    """The smaller of the two loads in the combination where that is largest."""
    return max((min(_first_load(row), number(row, "largest")) for row in rows), default=None)


EXPERIMENT = Experiment(
    name="pairs",
    figure="Figure 5",
    title="Two services under PARTIES",
    method=(
        "All 21 pairs, a service with itself included; for each load of the first (10..100 % in steps of 10 %; quick: 20, 40, .. "
        "100 %) the largest load of the second is searched by bisection and one look beyond. A combination is served if most of 3 "
        "runs (quick: of 1) serve it: every target met within 60 s, then every p99 of a measured minute. No best-effort job."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
    points_file=POINTS_FILE,
)

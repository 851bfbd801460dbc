"""Figure 10: how long PARTIES takes to find an allocation that meets every target, for two to six services."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

from workloads.experiments.experiment import Experiment, Point, Row, Summary, derived_seed
from workloads.experiments.frontier import PARTIES, Way, largest, ray_way
from workloads.experiments.paper import compare, near
from workloads.experiments.plot import MANAGER_COLOURS, figure_of, save
from workloads.experiments.tables import mean, number, optional, rounded
from workloads.experiments.trials import SMALLEST_WEIGHT, WARMUP_S, converge, mixes, oracle_finds

SIZES = (2, 3, 4, 5, 6)
COUNT, QUICK_COUNT = 100, 20  # of load mixes for each number of services
LENGTH_S = 90.0  # of a run; the paper gives up after 60 s
GROWTH, GROWTH_TOLERANCE = 2.8, 0.7
WORST_S = 60


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """So many random load mixes for each number of services."""
    return [
        Point(f"{size} services #{number}", seed, {"size": size}, weight=size)
        for size in SIZES
        for number in range(QUICK_COUNT if quick else COUNT)
    ]


def measure(point: Point) -> Sequence[Row]:
    """Draw a mix that some allocation serves, start PARTIES from its fair split, and see when every target is met."""
    size = point.params["size"]
    rng = random.Random(derived_seed(point.seed, point.name))  # noqa: S311 - wants a seed
    way: Way = ()
    reached = 0
    while not reached:  # some mixes have no allocation even at the smallest loads
        mix = rng.choice(mixes(size))
        way = ray_way({name: round(rng.uniform(SMALLEST_WEIGHT, 1.0), 2) for name in mix})
        reached = largest(partial(_served, way), len(way), hint=len(way) // 2)
    # As if drawn evenly from all feasible combinations: of those most are near the edge, the more so the more services there are.
    loads = way[min(reached - 1, int(reached * rng.random() ** (1 / size)))]
    found = converge(loads, PARTIES, derived_seed(point.seed, point.name, "run"), LENGTH_S)
    row: dict[str, Any] = {
        "services": size,
        "mix": "+".join(loads),
        "aggregate": sum(loads.values()),
        "oracle_aggregate": sum(way[reached - 1].values()),
        "converged_s": found.converged_s(),
        "meets_all": found.meets_all(WARMUP_S),
        "moves": found.moves,
        "reverts": found.reverts,
    }
    return [{**row, **loads}]


def _served(way: Way, index: int) -> bool:
    return oracle_finds(way[index])


def summarise(rows: Sequence[Row]) -> Summary:
    """The distribution of convergence times by number of services, and its growth."""
    sizes = {size: _distribution([row for row in rows if row["services"] == size]) for size in SIZES}
    first, last = sizes[SIZES[0]]["mean_s"], sizes[SIZES[-1]]["mean_s"]
    growth = rounded(last / first, 2) if first and last is not None else None
    worst = max((found["worst_s"] for found in sizes.values() if found["worst_s"] is not None), default=None)
    never = sum(found["never"] for found in sizes.values())
    comparison = [
        compare(
            "growth",
            "mean convergence time with six services over that with two",
            paper=GROWTH,
            ours=growth,
            unit="x",
            holds=near(growth, GROWTH, GROWTH_TOLERANCE),
        ),
        compare("worst", "longest convergence", paper=WORST_S, ours=worst, unit="s", holds=worst is not None and worst <= WORST_S),
        compare(
            "never",
            f"combinations that Oracle serves and PARTIES does not within {LENGTH_S:g} s",
            paper="none of those shown",
            ours=f"{never} of {len(rows)}",
            holds=not never,
        ),
    ]
    columns = ["services", "combinations", "mean (s)", "median (s)", "90 % (s)", "worst (s)", "met at the start", "never"]
    lines = [[size, *found.values()] for size, found in sizes.items()]
    said = ", ".join(f"{size}: {found['mean_s']} s" for size, found in sizes.items() if found["mean_s"] is not None)
    return {
        "headline": f"Mean convergence time by number of services: {said}.",
        "comparison": comparison,
        "tables": [{"title": "Convergence times", "columns": columns, "rows": lines}],
        "sizes": sizes,
        "growth": growth,
    }


def _distribution(rows: Sequence[Row]) -> dict[str, Any]:
    times = sorted(number(row, "converged_s") for row in rows if row["converged_s"] is not None)
    cuts = quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
    return {
        "combinations": len(rows),
        "mean_s": rounded(mean(times)),
        "median_s": rounded(cuts[4]) if cuts else None,
        "p90_s": rounded(cuts[8]) if cuts else None,
        "worst_s": times[-1] if times else None,
        "at_once": sum(time == 0 for time in times),
        "never": len(rows) - len(times),
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """Violins of convergence times by number of services, the means joined."""
    figure, axes = figure_of(1, 1, width=5.4, height=3.6)
    panel = axes[0][0]
    for size in SIZES:
        times = [time for row in rows if row["services"] == size and (time := optional(row, "converged_s")) is not None]
        if len(set(times)) > 1:
            parts: Any = panel.violinplot([times], positions=[size], widths=0.6, showextrema=False)
            for body in parts["bodies"]:
                body.set_facecolor(MANAGER_COLOURS[PARTIES])
                body.set_alpha(0.4)
        panel.plot([size] * len(times), times, ".", color="black", markersize=2, alpha=0.5)
    means = {int(size): found["mean_s"] for size, found in summary["sizes"].items() if found["mean_s"] is not None}
    panel.plot(list(means), list(means.values()), "o-", color=MANAGER_COLOURS[PARTIES], markersize=4, label="mean")
    panel.axhline(WORST_S, color="black", linewidth=0.7, linestyle="--", label="the paper's longest")
    panel.set_xticks(SIZES)
    panel.set_xlabel("services")
    panel.set_ylabel("convergence time (s)")
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize="small")
    save(figure, path)


EXPERIMENT = Experiment(
    name="convergence",
    figure="Figure 10",
    title="Convergence time, two to six services",
    method=(
        f"Sampled: for each number of services {COUNT} (quick: {QUICK_COUNT}) random load mixes that Oracle serves: random "
        "services and proportions, and a distance to the edge of what is feasible as if drawn evenly from the feasible "
        "combinations. Convergence is the time until every target is met for two seconds; one run each. No best-effort job."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

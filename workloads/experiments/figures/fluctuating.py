"""Figure 9: Memcached's load rises from 10 to 60 % and falls again, under Unmanaged, Heracles and PARTIES."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from parties.model import BEST_EFFORT, IDLE, Reason
from simulator.run import Simulation
from simulator.scenario import scenario_named
from workloads.experiments.experiment import Experiment, Point, Row, Summary, derived_seed
from workloads.experiments.frontier import HERACLES, PARTIES, UNMANAGED
from workloads.experiments.paper import compare, near
from workloads.experiments.plot import SERVICE_COLOURS, figure_of, save, title_of
from workloads.experiments.tables import by_manager, mean, number, optional, rounded
from workloads.experiments.timeline import Timeline

SCENARIO = "fluctuating"
MANAGERS = (UNMANAGED, HERACLES, PARTIES)
SERVICES = ("memcached", "moses", "xapian")
RISING = "memcached"
RUNS, QUICK_RUNS = 5, 1
RISE_S, TOP_S, FALL_S = 25.0, 60.0, 120.0  # the rise begins, 60 % is reached, the fall begins (configs/scenarios/fluctuating.toml)
SUSTAINED = 4  # intervals in violation, one after another, that count as failing
FAIL_LOAD, FAIL_TOLERANCE = 40, 10  # percent
SETTLED_S = 20
RECLAIM_S, RECLAIM_TOLERANCE_S = 135, 10
FLOOR, CEILING = 0.05, 50.0  # of latency over target as drawn; what is beyond is drawn at the edge


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """Each manager, some runs of each with the same arrivals for all."""
    return [
        Point(f"{manager} #{run}", seed, {"manager": manager, "run": run})
        for manager in MANAGERS
        for run in range(QUICK_RUNS if quick else RUNS)
    ]


def measure(point: Point) -> Sequence[Row]:
    """The run, interval by interval."""
    manager, run = point.params["manager"], point.params["run"]
    scenario = dataclasses.replace(scenario_named(SCENARIO), policy=manager, seed=derived_seed(point.seed, SCENARIO, run))
    simulation = Simulation(scenario)
    timeline = Timeline(simulation)
    simulation.run([timeline])
    return [{"manager": manager, "run": run, **row} for row in timeline.rows]


def summarise(rows: Sequence[Row]) -> Summary:
    """The times of the story, the median of the runs, beside the paper's."""
    stories = {manager: _story(found) for manager, found in by_manager(rows).items()}
    ours = stories[PARTIES]
    comparison = [
        compare(
            f"{manager}-fails",
            f"{title_of(manager)}: Memcached's load when some service begins to fail for good",
            paper=FAIL_LOAD,
            ours=stories[manager]["fails_at_load_percent"],
            unit="%",
            holds=near(stories[manager]["fails_at_load_percent"], FAIL_LOAD, FAIL_TOLERANCE),
        )
        for manager in (UNMANAGED, HERACLES)
    ]
    first = set(ours["violated_during_rise"])
    comparison += [
        compare(
            "settles",
            "PARTIES: every target is met again so long after the load has reached 60 %",
            paper=f"within {SETTLED_S}",
            ours=ours["settled_after_top_s"],
            unit="s",
            holds=ours["settled_after_top_s"] is not None and ours["settled_after_top_s"] <= SETTLED_S,
        ),
        compare(
            "who-violates",
            "PARTIES: who violates on the way up",
            paper="memcached, xapian",
            ours=", ".join(sorted(first)) or "nobody",
            holds=first == {"memcached", "xapian"},
        ),
        compare(
            "reclaims",
            "PARTIES: first takes something from Memcached after the load began to fall, at",
            paper=RECLAIM_S,
            ours=ours["first_reclaim_s"],
            unit="s",
            holds=near(ours["first_reclaim_s"], RECLAIM_S, RECLAIM_TOLERANCE_S),
        ),
    ]
    columns = ["manager", "intervals in violation (%)", *(f"{title_of(name)} (%)" for name in SERVICES), "best effort (% of alone)"]
    lines = [
        [manager, found["violated_percent"], *found["violated_percent_by_service"].values(), found["best_effort_percent"]]
        for manager, found in stories.items()
    ]
    said = ", ".join(f"{title_of(manager)} {found['violated_percent']} %" for manager, found in stories.items())
    return {
        "headline": f"Intervals with some service over its target: {said}.",
        "comparison": comparison,
        "tables": [{"title": "Under each manager", "columns": columns, "rows": lines}],
        "managers": stories,
    }


def _story(rows: Sequence[Row]) -> dict[str, Any]:
    runs = [[row for row in rows if row["run"] == run] for run in sorted({number(row, "run") for row in rows})]
    told = [_one(run) for run in runs]
    return {
        "runs": len(runs),
        "fails_at_s": _middle([one["fails_at_s"] for one in told]),
        "fails_at_load_percent": _middle([one["fails_at_load_percent"] for one in told]),
        "settled_after_top_s": _middle([one["settled_after_top_s"] for one in told]),
        "violated_during_rise": sorted({name for one in told for name in one["violated_during_rise"]}),
        "first_reclaim_s": _middle([one["first_reclaim_s"] for one in told]),
        "violated_percent": _share(rows, SERVICES),
        "violated_percent_by_service": {name: _share(rows, (name,)) for name in SERVICES},
        "best_effort_percent": rounded(mean(100 * (optional(row, "best_effort_progress") or 0.0) for row in rows)),
    }


def _one(rows: Sequence[Row]) -> dict[str, Any]:
    """The times of one run: when it begins to fail, how long it takes to settle, when it first reclaims."""
    late = [any(row[f"violated {name}"] for name in SERVICES) for row in rows]
    fails = next((row for index, row in enumerate(rows) if _all_late(late, index)), None)
    settled = next((row for index, row in enumerate(rows) if number(row, "time_s") >= TOP_S and _none_late(late, index)), None)
    reclaim = next((row for row in rows if number(row, "time_s") >= FALL_S and _reclaims(row)), None)
    rising = [row for row in rows if RISE_S <= number(row, "time_s") <= TOP_S + SETTLED_S]
    return {
        "fails_at_s": None if fails is None else number(fails, "time_s"),
        "fails_at_load_percent": None if fails is None else number(fails, f"load {RISING}"),
        "settled_after_top_s": None if settled is None else number(settled, "time_s") - TOP_S,
        "violated_during_rise": [name for name in SERVICES if any(row[f"violated {name}"] for row in rising)],
        "first_reclaim_s": None if reclaim is None else number(reclaim, "time_s"),
    }


def _all_late(late: Sequence[bool], index: int) -> bool:
    return len(late) >= index + SUSTAINED and all(late[index : index + SUSTAINED])


def _none_late(late: Sequence[bool], index: int) -> bool:
    return len(late) >= index + SUSTAINED and not any(late[index : index + SUSTAINED])


def _reclaims(row: Row) -> bool:
    return row["reason"] == Reason.DOWNSIZE_LARGEST_SLACK and row["subject"] == RISING


def _share(rows: Sequence[Row], services: Sequence[str]) -> float | None:
    return rounded(mean(100.0 * any(row[f"violated {name}"] for name in services) for row in rows))


def _middle(values: Sequence[float | None]) -> float | None:
    """The median; None where most runs have none."""
    known = [value for value in values if value is not None]
    return rounded(median(known)) if 2 * len(known) > len(values) else None


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """Load, latency over target, cores, ways and best-effort work over time, a column for each manager; the first run."""
    del summary
    labels = ("load (%)", "p99 / target", "cores", "LLC ways", "best effort\n(of alone)")
    figure, axes = figure_of(len(labels), len(MANAGERS), width=4.4, height=1.8)
    for column, manager in enumerate(MANAGERS):
        found = [row for row in rows if row["manager"] == manager and row["run"] == 0]
        times = [number(row, "time_s") for row in found]
        axes[0][column].set_title(title_of(manager))
        _loads(axes[0][column], times, found)
        _latencies(axes[1][column], times, found)
        _allocation(axes[2][column], times, found, "cores", (*SERVICES, BEST_EFFORT, IDLE))
        _allocation(axes[3][column], times, found, "ways", (*SERVICES, BEST_EFFORT, IDLE))
        axes[4][column].plot(times, [optional(row, "best_effort_progress") or 0.0 for row in found], color="dimgrey", linewidth=0.9)
        axes[4][column].set_ylim(0, 1)
        axes[-1][column].set_xlabel("time (s)")
        for panel in (line[column] for line in axes):
            panel.set_xlim(0, times[-1])
    for row, label in enumerate(labels):
        axes[row][0].set_ylabel(label)
        if row in (0, 2):
            axes[row][-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, fontsize="small", frameon=False)
    save(figure, path)


def _loads(axes: Axes, times: Sequence[float], rows: Sequence[Row]) -> None:
    for name in SERVICES:
        axes.plot(times, [number(row, f"load {name}") for row in rows], color=SERVICE_COLOURS[name], label=title_of(name))
    axes.set_ylim(0, 70)


def _latencies(axes: Axes, times: Sequence[float], rows: Sequence[Row]) -> None:
    for name in SERVICES:
        ratios = [optional(row, f"ratio {name}") for row in rows]
        shown = [None if ratio is None else min(CEILING, max(FLOOR, ratio)) for ratio in ratios]
        axes.plot(times, [float("nan") if ratio is None else ratio for ratio in shown], color=SERVICE_COLOURS[name], linewidth=0.9)
    axes.axhline(1.0, color="black", linewidth=0.7, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, CEILING)


def _allocation(axes: Axes, times: Sequence[float], rows: Sequence[Row], unit: str, holders: Sequence[str]) -> None:
    """What each holder has, stacked."""
    colours: Mapping[str, str] = {**SERVICE_COLOURS, BEST_EFFORT: "dimgrey", IDLE: "0.9"}
    layers = {name: [optional(row, f"{unit} {name}") for row in rows] for name in holders}
    if all(value is None for layer in layers.values() for value in layer):
        axes.text(0.5, 0.5, "not partitioned", transform=axes.transAxes, ha="center", va="center", fontsize="small")
        axes.set_yticks([])
        return
    drawn = {name: [value or 0.0 for value in layer] for name, layer in layers.items()}
    pooled = drawn[BEST_EFFORT]
    # Services that live in the best-effort holder have what it has; it is drawn once.
    inside = [name for name in SERVICES if drawn[name] == pooled and any(pooled)]
    for name in inside:
        del drawn[name]
    if inside:
        axes.text(
            0.98, 0.05, f"best effort: with {', '.join(map(title_of, inside))}", transform=axes.transAxes, ha="right", fontsize=7
        )
    labels = [title_of(name) for name in drawn]
    axes.stackplot(times, list(drawn.values()), labels=labels, colors=[colours[name] for name in drawn], step="post", alpha=0.8)


EXPERIMENT = Experiment(
    name="fluctuating",
    figure="Figure 9",
    title="Fluctuating load under three managers",
    method=(
        f"The scenario {SCENARIO!r} (Memcached 10 -> 60 -> 10 %, Moses 10 %, Xapian 20 %, a best-effort job) under Unmanaged, "
        f"Heracles and PARTIES with the same arrivals; times are medians of {RUNS} runs (quick: {QUICK_RUNS}), the figure "
        "shows the first. Failing is two seconds in violation without a pause, settled two seconds without a violation."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

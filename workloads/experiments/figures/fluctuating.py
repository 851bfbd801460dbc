"""Figure 9: Memcached's load rises from 10 to 60 % and falls again, under Unmanaged, Heracles and PARTIES.

Once more with a peak of 50 %: no allocation of the fitted services serves the paper's, so that nobody could settle on it.
"""

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

SCENARIOS = {60: "fluctuating", 50: "fluctuating-50"}  # by Memcached's load at the peak, in percent; the paper's first
PAPERS = 60
MANAGERS = (UNMANAGED, HERACLES, PARTIES)
SERVICES = ("memcached", "moses", "xapian")
RISING = "memcached"
RUNS, QUICK_RUNS = 5, 1
RISE_S, TOP_S, FALL_S = (
    25.0,
    60.0,
    120.0,
)  # the rise begins, the peak is reached, the fall begins (configs/scenarios/fluctuating.toml)
SUSTAINED = 4  # intervals in violation, one after another, that count as failing
FAIL_LOAD, FAIL_TOLERANCE = 40, 10  # percent
SETTLED_S = 20
STAYS_PERCENT = 5  # of intervals in violation that still count as having settled: a p99 is noise
RECLAIM_S, RECLAIM_TOLERANCE_S = 135, 10
FLOOR, CEILING = 0.05, 50.0  # of latency over target as drawn; what is beyond is drawn at the edge


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """Each peak under each manager, some runs of each with the same arrivals for all managers."""
    return [
        Point(f"{scenario} {manager} #{run}", seed, {"peak": peak, "scenario": scenario, "manager": manager, "run": run})
        for peak, scenario in SCENARIOS.items()
        for manager in MANAGERS
        for run in range(QUICK_RUNS if quick else RUNS)
    ]


def measure(point: Point) -> Sequence[Row]:
    """The run, interval by interval."""
    peak, manager, run = point.params["peak"], point.params["manager"], point.params["run"]
    name = point.params["scenario"]
    scenario = dataclasses.replace(scenario_named(name), policy=manager, seed=derived_seed(point.seed, name, run))
    simulation = Simulation(scenario)
    timeline = Timeline(simulation)
    simulation.run([timeline])
    return [{"peak": peak, "manager": manager, "run": run, **row} for row in timeline.rows]


def summarise(rows: Sequence[Row]) -> Summary:
    """The times of the story, the median of the runs, beside the paper's; for each peak."""
    peaks = {peak: _stories([row for row in rows if row["peak"] == peak]) for peak in SCENARIOS}
    columns = [
        "peak (%)",
        "manager",
        "intervals in violation (%)",
        *(f"{title_of(name)} (%)" for name in SERVICES),
        "before the rise (%)",
        "at the peak (%)",
        "fails at (s)",
        "first reclaims at (s)",
    ]
    lines = [
        [
            peak,
            manager,
            found["violated_percent"],
            *found["violated_percent_by_service"].values(),
            found["violated_percent_before_rise"],
            found["violated_percent_at_top"],
            found["fails_at_s"],
            found["first_reclaim_s"],
        ]
        for peak, stories in peaks.items()
        for manager, found in stories.items()
    ]
    said = "; ".join(
        f"with a peak of {peak} % "
        + ", ".join(f"{title_of(manager)} {found['violated_percent']} %" for manager, found in stories.items())
        for peak, stories in peaks.items()
    )
    return {
        "headline": f"Intervals with some service over its target: {said}.",
        "comparison": [line for peak, stories in peaks.items() for line in _comparison(peak, stories)],
        "tables": [{"title": "Under each manager", "columns": columns, "rows": lines}],
        "peaks": {str(peak): stories for peak, stories in peaks.items()},
    }


def _comparison(peak: int, stories: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The paper's story beside ours with this peak; the paper has one for its own peak alone."""
    suffix, to = ("", f"{peak} %") if peak == PAPERS else (f"-{peak}", f"{peak} % instead of {PAPERS} %")
    ours = stories[PARTIES]
    first = set(ours["violated_during_rise"])
    return [
        *(
            compare(
                f"{manager}-fails{suffix}",
                f"{title_of(manager)}, load rises to {to}: Memcached's load when some service begins to fail for good",
                paper=FAIL_LOAD,
                ours=stories[manager]["fails_at_load_percent"],
                unit="%",
                holds=near(stories[manager]["fails_at_load_percent"], FAIL_LOAD, FAIL_TOLERANCE),
            )
            for manager in (UNMANAGED, HERACLES)
        ),
        compare(
            f"settles{suffix}",
            f"PARTIES, load rises to {to}: every target is met again so long after the peak is reached, while it lasts",
            paper=f"within {SETTLED_S}",
            ours="never" if ours["settled_after_top_s"] is None else ours["settled_after_top_s"],
            unit="s",
            holds=ours["settled_after_top_s"] is not None and ours["settled_after_top_s"] <= SETTLED_S,
        ),
        compare(
            f"stays{suffix}",
            f"PARTIES, load rises to {to}: intervals in violation from {SETTLED_S} s after the peak is reached until the fall",
            paper="settled",
            ours=ours["violated_percent_settled"],
            unit="%",
            holds=ours["violated_percent_settled"] is not None and ours["violated_percent_settled"] <= STAYS_PERCENT,
        ),
        compare(
            f"who-violates{suffix}",
            f"PARTIES, load rises to {to}: who violates on the way up",
            paper="memcached, xapian",
            ours=", ".join(sorted(first)) or "nobody",
            holds=first == {"memcached", "xapian"},
        ),
        compare(
            f"reclaims{suffix}",
            f"PARTIES, load rises to {to}: first takes something from Memcached after the load began to fall, at",
            paper=RECLAIM_S,
            ours=ours["first_reclaim_s"],
            unit="s",
            holds=near(ours["first_reclaim_s"], RECLAIM_S, RECLAIM_TOLERANCE_S),
        ),
    ]


def _stories(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    return {manager: _story(found) for manager, found in by_manager(rows).items()}


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
        "violated_percent_before_rise": _share(_between(rows, 0.0, RISE_S), SERVICES),
        "violated_percent_at_top": _share(_between(rows, TOP_S, FALL_S), SERVICES),
        "violated_percent_settled": _share(_between(rows, TOP_S + SETTLED_S, FALL_S), SERVICES),
    }


def _one(rows: Sequence[Row]) -> dict[str, Any]:
    """The times of one run: when it begins to fail as the load rises, how long it takes to settle, when it first reclaims.

    What fails before the rise has to do with the start, and not with the load.
    """
    late = [any(row[f"violated {name}"] for name in SERVICES) for row in rows]
    fails = next((row for index, row in enumerate(rows) if number(row, "time_s") >= RISE_S and _all_late(late, index)), None)
    settled = next(
        (row for index, row in enumerate(rows) if TOP_S <= number(row, "time_s") < FALL_S and _none_late(late, index)), None
    )
    reclaim = next((row for row in rows if number(row, "time_s") >= FALL_S and _reclaims(row)), None)
    rising = _between(rows, RISE_S, TOP_S + SETTLED_S)
    return {
        "fails_at_s": None if fails is None else number(fails, "time_s"),
        "fails_at_load_percent": None if fails is None else number(fails, f"load {RISING}"),
        "settled_after_top_s": None if settled is None else number(settled, "time_s") - TOP_S,
        "violated_during_rise": [name for name in SERVICES if any(row[f"violated {name}"] for row in rising)],
        "first_reclaim_s": None if reclaim is None else number(reclaim, "time_s"),
    }


def _between(rows: Sequence[Row], start_s: float, end_s: float) -> list[Row]:
    return [row for row in rows if start_s <= number(row, "time_s") <= end_s]


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
    """Load, latency over target, cores and ways over time, a column for each manager, for each peak; the first run."""
    del summary
    labels = ("load (%)", "p99 / target", "cores", "LLC ways")
    figure, axes = figure_of(len(labels) * len(SCENARIOS), len(MANAGERS), width=4.4, height=1.8)
    for block, peak in enumerate(SCENARIOS):
        panels = axes[block * len(labels) : (block + 1) * len(labels)]
        for column, manager in enumerate(MANAGERS):
            found = [row for row in rows if (row["peak"], row["manager"], row["run"]) == (peak, manager, 0)]
            _draw_run([line[column] for line in panels], found)
            panels[0][column].set_title(f"{title_of(manager)}, to {peak} %")
        for row, label in enumerate(labels):
            panels[row][0].set_ylabel(label)
            if row in (0, 2):
                panels[row][-1].legend(
                    loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, fontsize="small", frameon=False
                )
    for panel in axes[-1]:
        panel.set_xlabel("time (s)")
    save(figure, path)


def _draw_run(panels: Sequence[Axes], rows: Sequence[Row]) -> None:
    """One run, from top to bottom."""
    times = [number(row, "time_s") for row in rows]
    loads, latencies, cores, ways = panels
    _loads(loads, times, rows)
    _latencies(latencies, times, rows)
    _allocation(cores, times, rows, "cores", (*SERVICES, BEST_EFFORT, IDLE))
    _allocation(ways, times, rows, "ways", (*SERVICES, BEST_EFFORT, IDLE))
    for panel in panels:
        panel.set_xlim(0, times[-1])


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
        f"The scenarios {' and '.join(map(repr, SCENARIOS.values()))} (Memcached 10 -> 60 or 50 -> 10 %, Moses 10 %, Xapian 20 %, "
        f"no best-effort job) under Unmanaged, Heracles and PARTIES with the same arrivals for all; times are medians of {RUNS} "
        f"runs (quick: {QUICK_RUNS}), the figure shows the first. Failing is two seconds in violation without a pause, from the "
        "beginning of the rise on; settled is two seconds without a violation, begun while the peak lasts."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

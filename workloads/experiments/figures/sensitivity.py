"""Figure 2: what each service needs of cores, ways and frequency, at low and high load and beside a memory-bandwidth antagonist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.calibration import paper
from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.model import levels_hz, tail_over_target
from workloads.experiments.paper import compare
from workloads.experiments.plot import figure_of, heat_map, save, title_of
from workloads.experiments.tables import cells, levels, number, optional
from workloads.experiments.trials import SERVICES, node

MHZ = 1_000_000
GHZ = 1000  # in MHz
LOW, HIGH = round(100 * paper.LOW_LOAD), round(100 * paper.HIGH_LOAD)
CONDITIONS = {"a: low load": (LOW, False), "b: high load": (HIGH, False), "c: low load and antagonist": (LOW, True)}
QUICK_WAYS = (1, 2, 4, 7, 11, 15, 20)
HIGH_LOAD, ANTAGONIST, LOW_LOAD = "b: high load", "c: low load and antagonist", "a: low load"


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """The whole grid of each service under each condition; the quick one has fewer ways."""
    ways = list(QUICK_WAYS) if quick else list(range(1, node().cache_ways + 1))
    return [
        Point(
            f"{name}, {condition}",
            seed,
            {"service": name, "condition": condition, "load": load, "antagonist": antagonist, "ways": ways},
        )
        for condition, (load, antagonist) in CONDITIONS.items()
        for name in SERVICES
    ]


def measure(point: Point) -> Sequence[Row]:
    """For every number of cores and ways: p99 over target at turbo, and the lowest frequency at which the target is met."""
    params, rows = point.params, []
    for cores in range(1, node().cores + 1):
        for ways in params["ways"]:
            lowest_mhz, at_turbo = None, None
            # From the top down: once a frequency is too low, so are those under it.
            for frequency_hz in reversed(levels_hz()):
                ratio = tail_over_target(
                    params["service"],
                    params["load"],
                    cores=cores,
                    ways=ways,
                    frequency_hz=frequency_hz,
                    antagonist=params["antagonist"],
                )
                if frequency_hz == levels_hz()[-1] and ratio is not None:
                    at_turbo = round(ratio, 4)
                if ratio is None or ratio > 1:
                    break
                lowest_mhz = frequency_hz // MHZ
            rows.append(
                {
                    "condition": params["condition"],
                    "service": params["service"],
                    "load_percent": params["load"],
                    "cores": cores,
                    "ways": ways,
                    "ratio_at_turbo": at_turbo,
                    "lowest_mhz": lowest_mhz,
                }
            )
    return rows


def summarise(rows: Sequence[Row]) -> Summary:
    """What is enough for each service, and section 5's statements about that."""
    needs = {condition: {name: _least_cores(_of(rows, name, condition)) for name in SERVICES} for condition in CONDITIONS}
    moses = {_named(found): _enough(_of(rows, "moses", HIGH_LOAD), found) for found in paper.MOSES_FEASIBLE}
    mongodb = [row for row in _of(rows, "mongodb", HIGH_LOAD) if row["cores"] == 1]
    frugal = any(row["lowest_mhz"] == levels_hz()[0] // MHZ for row in mongodb)
    pressed = [name for name in SERVICES if _demand(rows, name, ANTAGONIST) > _demand(rows, name, LOW_LOAD)]
    comparison = [
        compare(f"moses-{index}", f"Moses at {HIGH} % meets its target with {what}", paper="yes", ours=_yes(holds), holds=holds)
        for index, (what, holds) in enumerate(moses.items(), start=1)
    ]
    comparison += [
        compare(
            "mongodb-one-core",
            f"MongoDB at {HIGH} % meets its target on one core at the lowest frequency",
            paper="yes",
            ours=_yes(frugal),
            holds=frugal,
        ),
        compare(
            "antagonist",
            f"services at {LOW} % that need more cores, ways or frequency beside a memory-bandwidth antagonist",
            paper="all but MongoDB",
            ours=", ".join(pressed) or "none",
            holds={*SERVICES} - {"mongodb"} <= {*pressed},
        ),
    ]
    lines = [[condition, *found.values()] for condition, found in needs.items()]
    table = {"title": "Least cores with all ways at turbo", "columns": ["condition", *map(title_of, SERVICES)], "rows": lines}
    held = sum(moses.values())
    return {
        "headline": f"{held} of {len(moses)} of Moses' allocations that the paper names are enough here; "
        f"least cores at {HIGH} %: {', '.join(f'{title_of(name)} {cores}' for name, cores in needs[HIGH_LOAD].items())}.",
        "comparison": comparison,
        "tables": [table],
        "least_cores": needs,
    }


def _of(rows: Sequence[Row], service: str, condition: str) -> list[Row]:
    return [row for row in rows if row["service"] == service and row["condition"] == condition]


def _least_cores(rows: Sequence[Row]) -> int | None:
    """With all ways at turbo."""
    ways = max(number(row, "ways") for row in rows)
    enough = [int(number(row, "cores")) for row in rows if row["ways"] == ways and row["lowest_mhz"] is not None]
    return min(enough, default=None)


def _enough(rows: Sequence[Row], wanted: paper.Allocation) -> bool:
    """Whether an allocation meets the target; with the largest of the measured ways that it has."""
    given = max(number(row, "ways") for row in rows if number(row, "ways") <= wanted.ways)
    lowest = next(optional(row, "lowest_mhz") for row in rows if row["cores"] == wanted.cores and row["ways"] == given)
    return lowest is not None and lowest <= (wanted.frequency_hz or levels_hz()[-1]) // MHZ


def _demand(rows: Sequence[Row], service: str, condition: str) -> float:
    """How much of the grid is not enough, frequencies included: more means that more is needed."""
    top = len(levels_hz())
    steps = {frequency_hz // MHZ: index for index, frequency_hz in enumerate(levels_hz())}
    found = [optional(row, "lowest_mhz") for row in _of(rows, service, condition)]
    return sum(top if lowest is None else steps[int(lowest)] for lowest in found)


def _named(found: paper.Allocation) -> str:
    frequency = "turbo" if found.frequency_hz is None else f"{found.frequency_hz / MHZ / GHZ:g} GHz"
    return f"{found.cores} cores, {found.ways} ways, {frequency}"


def _yes(holds: bool) -> str:  # noqa: FBT001 - a word for it
    return "yes" if holds else "no"


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """A heat map for each service and condition: the lowest frequency that is enough, by cores and ways."""
    del summary
    figure, axes = figure_of(len(CONDITIONS), len(SERVICES), width=2.6, height=2.4)
    ghz = [{**row, "ghz": None if row["lowest_mhz"] is None else number(row, "lowest_mhz") / GHZ} for row in rows]
    low, high = levels_hz()[0] / MHZ / GHZ, levels_hz()[-1] / MHZ / GHZ
    for line, condition in zip(axes, CONDITIONS, strict=True):
        for panel, name in zip(line, SERVICES, strict=True):
            found = _of(ghz, name, condition)
            limits = (low, min(high, levels_hz()[-2] / MHZ / GHZ + 0.4))
            heat_map(
                panel,
                cells(found, "cores", "ways", "ghz"),
                levels(found, "cores"),
                levels(found, "ways"),
                limits=limits,
                colours="viridis_r",
                form="",
            )
            panel.tick_params(labelsize=5)
            if condition == LOW_LOAD:
                panel.set_title(title_of(name), fontsize=9)
            if condition == ANTAGONIST:
                panel.set_xlabel("cores", fontsize=8)
        line[0].set_ylabel(f"{condition}\nways", fontsize=8)
    figure.suptitle("Lowest frequency that meets the target: yellow 1.2 GHz, dark turbo, grey none", fontsize=10)
    save(figure, path)


EXPERIMENT = Experiment(
    name="sensitivity",
    figure="Figure 2",
    title="What each service needs of cores, ways and frequency",
    method=(
        "On the model's steady state, each service alone: every number of cores x ways (quick: seven numbers of ways) x every "
        f"frequency, at {LOW} % load (a), {HIGH} % (b) and {LOW} % beside 8 threads that stream 34 GB/s on other cores (c). "
        "No search, no samples."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

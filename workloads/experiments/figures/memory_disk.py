"""Figure 3: MongoDB's memory against its disk bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.calibration import paper
from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.model import tail_over_target
from workloads.experiments.paper import compare
from workloads.experiments.plot import figure_of, heat_map, save
from workloads.experiments.tables import cells, levels, number, optional
from workloads.experiments.trials import node

SERVICE = "mongodb"
GB = 1_000_000_000
MB = 1_000_000
HIGH = round(100 * paper.MONGODB_LOAD)
LEAST_GB = paper.MONGODB_LEAST_MEMORY_BYTES // GB
LOADS = (10, 30, 50, 70, HIGH)
QUICK_LOADS = (30, HIGH)
MEMORY_STEP_GB, QUICK_MEMORY_STEP_GB = 5, 10
DISK_STEPS = 20


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """The whole grid at each load."""
    step = QUICK_MEMORY_STEP_GB if quick else MEMORY_STEP_GB
    loads = QUICK_LOADS if quick else LOADS
    return [Point(f"{load} % in steps of {step} GB", seed, {"load": load, "step_gb": step}) for load in loads]


def measure(point: Point) -> Sequence[Row]:
    """p99 over target for every amount of memory and disk bandwidth."""
    load, step_gb = point.params["load"], point.params["step_gb"]
    whole = node()
    return [
        {
            "load_percent": load,
            "memory_gb": memory_gb,
            "disk_mb_per_s": round(whole.disk_bytes_per_s * part / DISK_STEPS / MB, 3),
            "ratio": None if ratio is None else round(ratio, 4),
            "met": ratio is not None and ratio <= 1,
        }
        for memory_gb in range(step_gb, whole.memory_bytes // GB + 1, step_gb)
        for part in range(1, DISK_STEPS + 1)
        for ratio in [
            tail_over_target(
                SERVICE, load, memory_bytes=memory_gb * GB, disk_bytes_per_s=whole.disk_bytes_per_s * part // DISK_STEPS
            )
        ]
    ]


def summarise(rows: Sequence[Row]) -> Summary:
    """The least disk bandwidth for each amount of memory, and the two statements of section 5."""
    least = {load: _least_disk(rows, load) for load in levels(rows, "load_percent")}
    high = least[HIGH]
    below = [memory for memory, disk in high.items() if memory < LEAST_GB and disk is not None]
    enough = min((memory for memory, disk in high.items() if disk is not None), default=None)
    known = [disk for disk in high.values() if disk is not None]
    falling = bool(known) and known == sorted(known, reverse=True) and known[0] > known[-1]
    comparison = [
        compare(
            "least-memory",
            f"at {HIGH} % load the least memory with which some disk bandwidth is enough",
            paper=LEAST_GB,
            ours=enough,
            unit="GB",
            holds=not below and high.get(LEAST_GB) is not None,
        ),
        compare(
            "fungible",
            f"at {HIGH} % load more memory needs less disk bandwidth",
            paper="yes",
            ours="yes" if falling else "no",
            holds=falling,
        ),
    ]
    columns = ["memory (GB)", *(f"{load:g} % load" for load in least)]
    lines: list[list[Any]] = [[memory, *(found[memory] for found in least.values())] for memory in high]
    return {
        "headline": f"At {HIGH} % load MongoDB meets its target from {enough} GB of memory on; with {max(high):g} GB it needs "
        f"{high[max(high)]} MB/s of disk bandwidth.",
        "comparison": comparison,
        "tables": [{"title": "Least disk bandwidth (MB/s) that meets the target", "columns": columns, "rows": lines}],
        "least_memory_gb": enough,
    }


def _least_disk(rows: Sequence[Row], load: float) -> dict[float, float | None]:
    found: dict[float, float | None] = {}
    for row in rows:
        if row["load_percent"] == load:
            memory, disk = number(row, "memory_gb"), number(row, "disk_mb_per_s")
            before = found.setdefault(memory, None)
            if row["met"] and (before is None or disk < before):
                found[memory] = disk
    return found


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """A heat map of p99 over target for each load; grey is over twice the target or saturated."""
    del summary
    loads = levels(rows, "load_percent")
    figure, axes = figure_of(1, len(loads), width=3.6, height=3.2)
    for panel, load in zip(axes[0], loads, strict=True):
        found = [{**row, "shown": _shown(row)} for row in rows if row["load_percent"] == load]
        across, up = levels(found, "memory_gb"), levels(found, "disk_mb_per_s")
        heat_map(panel, cells(found, "memory_gb", "disk_mb_per_s", "shown"), across, up, limits=(0, 2), colours="RdYlGn_r", form="")
        panel.set_xticks(range(0, len(across), 3), [f"{value:g}" for value in across[::3]])
        panel.set_title(f"{load:g} % load", fontsize=9)
        panel.set_xlabel("memory (GB)", fontsize=8)
    axes[0][0].set_ylabel("disk bandwidth (MB/s)", fontsize=8)
    figure.suptitle("MongoDB's p99 over its target: green under, yellow on, red over, grey twice and more", fontsize=9)
    save(figure, path)


def _shown(row: Row) -> float | None:
    ratio = optional(row, "ratio")
    return ratio if ratio is not None and ratio <= 2 else None  # noqa: PLR2004 - the scale's end


EXPERIMENT = Experiment(
    name="memory-disk",
    figure="Figure 3",
    title="MongoDB: memory against disk bandwidth",
    method=(
        f"On the model's steady state, MongoDB alone: memory in steps of {MEMORY_STEP_GB} GB (quick: {QUICK_MEMORY_STEP_GB}) "
        f"x disk bandwidth in twentieths, at {', '.join(map(str, LOADS))} % load (quick: "
        f"{' and '.join(map(str, QUICK_LOADS))} %). No search, no samples."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

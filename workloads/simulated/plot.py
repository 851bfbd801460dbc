"""Runs on the simulated node as a picture: load, latency over target and allocation over time, in the manner of Figure 9."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parties.model import BEST_EFFORT, IDLE, RESERVED, Holder, PoolKey, Resource
from workloads.simulated.timeline import Run

FLOOR, CEILING = 0.01, 100.0  # of latency over target; what is beyond is drawn at the edge
SPECIAL_COLOURS = {BEST_EFFORT: "0.55", IDLE: "0.88", RESERVED: "0.75"}
SCALES = {
    Resource.CORES: (1000, "cores"),
    Resource.CACHE: (1, "cache\n(ways)"),
    Resource.FREQUENCY: (10**9, "frequency\n(GHz)"),
    Resource.MEMORY: (10**9, "memory\n(GB)"),
    Resource.DISK: (10**6, "disk\n(MB/s)"),
    Resource.NETWORK: (10**9, "network\n(Gbit/s)"),
}
ALWAYS = frozenset({Resource.CORES, Resource.CACHE})  # the others only where something moved
ROW_INCHES, COLUMN_INCHES, SINGLE_INCHES = 1.7, 4.6, 9.0


class Row(NamedTuple):
    """One row of the picture."""

    label: str
    draw: Callable[[Axes, Run], None]
    legend: bool


def draw(runs: Sequence[Run], path: Path) -> None:
    """Draw one column for each run into a file, whole or not at all. Raises OSError, and ValueError for a format that is none."""
    rows = _rows(runs)
    width = SINGLE_INCHES if len(runs) == 1 else COLUMN_INCHES * len(runs)
    figure = Figure(
        figsize=(width, 0.6 + ROW_INCHES * len(rows)), layout="constrained"
    )  # drawn by Agg: there need not be a display
    axes = figure.subplots(len(rows), len(runs), sharex=True, sharey="row", squeeze=False)
    for column, run in enumerate(runs):
        axes[0][column].set_title(_title(run))
        axes[-1][column].set_xlabel("time (s)")
        axes[-1][column].set_xlim(0, run.result.scenario.duration_s)
        for row, (_, draw_row, _) in enumerate(rows):
            draw_row(axes[row][column], run)
    for row, (label, _, legend) in enumerate(rows):
        axes[row][0].set_ylabel(label)
        if legend:
            # Beside the last column: within it there is always something to hide.
            axes[row][-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, fontsize="small", frameon=False)
    temporary = path.with_name(f".new-{path.name}")
    try:
        figure.savefig(temporary, dpi=110, format=path.suffix.lstrip(".") or None)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _rows(runs: Sequence[Run]) -> list[Row]:
    rows = [Row("load\n(of maximum)", _load, legend=False), Row("p99 / target", _latency, legend=True)]
    for key in runs[0].result.node.pools:
        if any(_worth_showing(key, run) for run in runs):
            shared = key.resource.shared_pool
            rows.append(Row(_label(key), _pool_row(key), legend=key.resource is Resource.CORES or not shared))
    if any(run.result.scenario.job is not None for run in runs):
        rows.append(Row("best effort\n(of alone)", _best_effort, legend=False))
    return rows


def _title(run: Run) -> str:
    return "\n".join([run.result.policy, *(f"{name} in {holder}" for name, holder in run.result.sharing.items())])


def _label(key: PoolKey) -> str:
    return SCALES[key.resource][1]


def _worth_showing(key: PoolKey, run: Run) -> bool:
    held = [partition.amounts[key] for partition in run.timeline.partitions if key in partition.amounts]
    return bool(held) and (key.resource in ALWAYS or any(amounts != held[0] for amounts in held))


def _colours(run: Run) -> dict[Holder, str]:
    cycle = mpl.color_sequences["tab10"]
    services = {name: mpl.colors.to_hex(cycle[number % len(cycle)]) for number, name in enumerate(run.result.services)}
    return services | SPECIAL_COLOURS


def _load(axes: Axes, run: Run) -> None:
    colours = _colours(run)
    for name in run.result.services:
        axes.plot(run.timeline.times_s, run.loads(name), color=colours[name], label=name, linewidth=1.2)
    axes.set_ylim(bottom=0)


def _latency(axes: Axes, run: Run) -> None:
    colours = _colours(run)
    for name in run.result.services:
        ratios = [float("nan") if ratio is None else min(CEILING, max(FLOOR, ratio)) for ratio in run.ratios(name)]
        axes.plot(run.timeline.times_s, ratios, color=colours[name], label=name, linewidth=1.0)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="target")
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, CEILING * 1.3)  # so that a line at the ceiling is seen


def _pool_row(key: PoolKey) -> Callable[[Axes, Run], None]:
    def pool(axes: Axes, run: Run) -> None:
        if not any(key in partition.amounts for partition in run.timeline.partitions):
            axes.text(0.02, 0.95, "not partitioned", transform=axes.transAxes, fontsize="x-small", va="top")
        elif key.resource.shared_pool:
            _stack(axes, run, key)
        else:
            _levels(axes, run, key)

    return pool


def _stack(axes: Axes, run: Run, key: PoolKey) -> None:
    scale, _ = SCALES[key.resource]
    colours, series = _colours(run), _series(run, key)
    axes.stackplot(
        run.timeline.times_s,
        [[amount / scale for amount in amounts] for amounts in series.values()],
        labels=[_holder(run, holder) for holder in series],
        colors=[colours[holder] for holder in series],
        step="pre",
        alpha=0.85,
    )
    axes.set_ylim(0, run.result.node.pools[key].total / scale)


def _levels(axes: Axes, run: Run, key: PoolKey) -> None:
    scale, _ = SCALES[key.resource]
    colours = _colours(run)
    for holder, amounts in _series(run, key).items():
        values = [amount / scale for amount in amounts]
        label = _holder(run, holder)
        axes.plot(run.timeline.times_s, values, color=colours[holder], label=label, linewidth=1.0, drawstyle="steps-pre")


def _series(run: Run, key: PoolKey) -> dict[Holder, list[int]]:
    """Who held how much of a pool until the end of each interval; holders that never had any are left out."""
    found = {}
    for holder in (*run.result.services, BEST_EFFORT, RESERVED, IDLE):
        amounts = [partition.amount(key, holder) for partition in run.timeline.partitions]
        if any(amounts):
            found[holder] = amounts
    return found


def _holder(run: Run, holder: Holder) -> str:
    return " + ".join([holder, *(name for name, place in run.result.sharing.items() if place == holder)])


def _best_effort(axes: Axes, run: Run) -> None:
    progress = run.result.best_effort
    axes.plot(run.timeline.times_s[: len(progress)], progress, color=SPECIAL_COLOURS[BEST_EFFORT], linewidth=1.0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y", linewidth=0.3)

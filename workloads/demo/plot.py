"""``results/demo.png``: latency over target and allocation over time for each manager, in the manner of the paper's Figure 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from parties.model import BEST_EFFORT, IDLE
from workloads.demo.plan import PROGRAMS, STRESS
from workloads.demo.results import cpu_use, service_intervals
from workloads.demo.trial import Trial

COLOURS = {PROGRAMS[0].name: "tab:blue", PROGRAMS[1].name: "tab:orange", BEST_EFFORT: "tab:green", IDLE: "lightgrey"}
FLOOR, CEILING = 0.01, 300.0  # of latency over target; what is beyond is drawn at the edge
ROWS = ("load\n(requests/s)", "p99 / target", "allocation\n(share of CPU)", "best effort\n(operations/s)")


def draw(trials: Sequence[Trial], targets_ns: Mapping[str, int], path: Path) -> None:
    """Draw one column for each manager. Raises OSError."""
    figure = Figure(figsize=(4.6 * len(trials), 9.5), layout="constrained")  # drawn by Agg: there need not be a display
    axes = figure.subplots(len(ROWS), len(trials), sharex=True, sharey="row", squeeze=False)
    for column, trial in enumerate(trials):
        axes[0][column].set_title(trial.manager)
        _load(axes[0][column], trial)
        _latency(axes[1][column], trial, targets_ns)
        _allocation(axes[2][column], trial)
        _best_effort(axes[3][column], trial)
        axes[-1][column].set_xlabel("time (s)")
    for row, label in enumerate(ROWS):
        axes[row][0].set_ylabel(label)
    for row in (0, 1, 2):
        # Beside the last column: within it there is always something to hide.
        axes[row][-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, fontsize="small", frameon=False)
    figure.savefig(path, dpi=110)


def _seconds(trial: Trial, at_ns: int) -> float:
    return (at_ns - trial.origin_ns) / 1e9


def _load(axes: Axes, trial: Trial) -> None:
    for program in PROGRAMS:
        found = service_intervals(trial, program.name)
        axes.plot(
            [_seconds(trial, window.end_ns) for window in found],
            [window.load_rps for window in found],
            color=COLOURS[program.name],
            label=program.name,
            linewidth=1.2,
        )


def _latency(axes: Axes, trial: Trial, targets_ns: Mapping[str, int]) -> None:
    for program in PROGRAMS:
        times, ratios = [], []
        for window in service_intervals(trial, program.name):
            # An interval without answers is as late as the oldest request in it.
            latency_ns = max(window.latency_ns() or 0, window.oldest_outstanding_ns)
            times.append(_seconds(trial, window.end_ns))
            ratios.append(min(CEILING, max(FLOOR, latency_ns / targets_ns[program.name])))
        axes.plot(times, ratios, color=COLOURS[program.name], label=program.name, linewidth=1.0)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="target")
    axes.set_yscale("log")
    axes.set_ylim(FLOOR, CEILING)


def _allocation(axes: Axes, trial: Trial) -> None:
    """Allocations where the manager makes any; where it makes none, what was used."""
    order = (*(program.name for program in PROGRAMS), BEST_EFFORT, IDLE)
    axes.set_ylim(0, 1)
    if trial.allocation:
        times = [_seconds(trial, at_ns) for at_ns, _ in trial.allocation]
        layers = [[held.get(name, 0) / 1000 for _, held in trial.allocation] for name in order]
        axes.stackplot(times, layers, labels=order, colors=[COLOURS[name] for name in order], step="post", alpha=0.8)
    else:
        series = [cpu_use(trial.cpu, name) for name in (*(program.name for program in PROGRAMS), STRESS.name)]
        times = [_seconds(trial, at_ns) for at_ns, _ in series[0]]
        layers = [[used for _, used in found] for found in series]
        labels = [f"{name}, used" for name in order[:3]]
        axes.stackplot(times, layers, labels=labels, colors=[COLOURS[name] for name in order[:3]], alpha=0.4)
        axes.text(0.02, 0.95, "no allocation: CPU used", transform=axes.transAxes, fontsize="x-small", va="top")
    axes.set_xlim(0, trial.length_ns / 1e9)


def _best_effort(axes: Axes, trial: Trial) -> None:
    found = cpu_use(trial.cpu, STRESS.name)
    axes.plot(
        [_seconds(trial, at_ns) for at_ns, _ in found],
        [used * trial.operations_per_cpu_s for _, used in found],
        color=COLOURS[BEST_EFFORT],
        linewidth=1.0,
    )
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y", linewidth=0.3)

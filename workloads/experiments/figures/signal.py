"""What each part of the signal changes against the raw percentile of an interval, for services of few and of many requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parties.histogram import samples_needed
from parties.model import Decision, Observation, Reason, Resource
from parties.record import Timing
from parties.settings import SignalSettings
from simulator.run import simulate
from workloads.experiments.experiment import Experiment, Point, Row, Summary, derived_seed
from workloads.experiments.plot import figure_of, save
from workloads.experiments.tables import mean, number, optional, rounded
from workloads.experiments.trials import WARMUP_S, scenario

OFF = SignalSettings(window=False, bounds=False, vote=False, stalled=False)
PARTS = ("window", "bounds", "vote", "stalled")
VARIANTS = ("raw", *PARTS, "all")
MIXES = {"low rate": {"sphinx": 30, "mongodb": 30}, "high rate": {"memcached": 30, "nginx": 30}}
RUNS, QUICK_RUNS = 20, 3
LENGTH_S = 180.0
FIGURES = {
    "violated_percent": "intervals in violation (%)",
    "reverts": "false downsizes (reverts)",
    "on_few_samples": "decisions on too few samples",
    "converged_s": "time to converge (s)",
}


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """Runs of each mix under each variant, with the same arrivals for all variants."""
    return [
        Point(f"{mix}, {variant} #{run}", seed, {"mix": mix, "variant": variant, "run": run})
        for mix in MIXES
        for variant in VARIANTS
        for run in range(QUICK_RUNS if quick else RUNS)
    ]


def measure(point: Point) -> Sequence[Row]:
    """A run under PARTIES with a best-effort job, and what it decided on what."""
    mix, variant, run = point.params["mix"], point.params["variant"], point.params["run"]
    settings = SignalSettings() if variant == "all" else SignalSettings(raw=True)
    if variant in PARTS:
        settings = dataclasses.replace(OFF, **{variant: True})
    seed = derived_seed(point.seed, mix, run)
    judged = Decisions()
    result = simulate(
        scenario(MIXES[mix], seed=seed, duration_s=LENGTH_S, best_effort=True), signal=settings, listeners=[judged], latencies=False
    )
    return [
        {
            "mix": mix,
            "variant": variant,
            "run": run,
            "violated_percent": round(100 * result.violating_share(WARMUP_S), 3),
            "reverts": result.reverts,
            "downsizes": judged.downsizes,
            "decisions": judged.decisions,
            "on_few_samples": judged.on_few_samples,
            "converged_s": result.converged_s(),
            "meets_all": result.meets_all(WARMUP_S),
            "best_effort": round(result.best_effort_throughput(WARMUP_S), 4),
        }
    ]


class Decisions:
    """Listens to a run: decisions for a service, and on how many samples of it they were made."""

    def __init__(self) -> None:
        self.decisions = self.downsizes = self.on_few_samples = 0
        self._needed = samples_needed(99.0)

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Count a decision that moves something but network bandwidth, which does not hang on latencies."""
        del timing
        if decision.subject is None or all(move.pool.resource is Resource.NETWORK for move in decision.moves):
            return
        self.decisions += 1
        self.downsizes += decision.reason is Reason.DOWNSIZE_LARGEST_SLACK
        self.on_few_samples += observation.services[decision.subject].latency.samples < self._needed


def summarise(rows: Sequence[Row]) -> Summary:
    """Each figure by mix and variant, in the mean of the runs."""
    figures = {
        mix: {variant: _means([row for row in rows if row["mix"] == mix and row["variant"] == variant]) for variant in VARIANTS}
        for mix in MIXES
    }
    low = figures["low rate"]
    return {
        "headline": (
            f"At a low rate the signal's parts together change intervals in violation from {low['raw']['violated_percent']} % "
            f"(raw) to {low['all']['violated_percent']} %, false downsizes from {low['raw']['reverts']} to "
            f"{low['all']['reverts']} a run and decisions on too few samples from {low['raw']['on_few_samples']} to "
            f"{low['all']['on_few_samples']}; at a high rate violations from "
            f"{figures['high rate']['raw']['violated_percent']} % to {figures['high rate']['all']['violated_percent']} %."
        ),
        "comparison": [],  # the paper's controller has no such parts
        "tables": [_listing(mix, found) for mix, found in figures.items()],
        "mixes": figures,
    }


def _means(rows: Sequence[Row]) -> dict[str, Any]:
    columns = ("violated_percent", "reverts", "downsizes", "decisions", "on_few_samples", "best_effort")
    found = {column: rounded(mean(number(row, column) for row in rows), 2) for column in columns}
    times = [time for row in rows if (time := optional(row, "converged_s")) is not None]
    return {**found, "converged_s": rounded(mean(times)), "converged_runs": len(times), "runs": len(rows)}


def _listing(mix: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    columns = list(next(iter(found.values())))
    names = ", ".join(f"{name} {load} %" for name, load in MIXES[mix].items())
    return {
        "title": f"{mix.capitalize()} ({names}): means of runs by part of the signal",
        "columns": ["signal", *(FIGURES.get(column, column.replace("_", " ")) for column in columns)],
        "rows": [[variant, *values.values()] for variant, values in found.items()],
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """Bars for each figure and mix: raw, each part alone, all of them."""
    del rows
    figure, axes = figure_of(len(MIXES), len(FIGURES), width=3.0, height=2.4)
    for line, mix in zip(axes, MIXES, strict=True):
        for panel, (column, label) in zip(line, FIGURES.items(), strict=True):
            values = [summary["mixes"][mix][variant][column] or 0.0 for variant in VARIANTS]
            colours = ["tab:gray", *["tab:blue"] * len(PARTS), "tab:green"]
            panel.bar(range(len(VARIANTS)), values, color=colours)
            panel.set_xticks(range(len(VARIANTS)), VARIANTS, rotation=40, fontsize=7)
            panel.set_title(label, fontsize=8)
        line[0].set_ylabel(mix)
    save(figure, path)


EXPERIMENT = Experiment(
    name="signal",
    figure="docs/signal.md",
    title="What each part of the signal changes",
    method=(
        "PARTIES with the raw percentile, with each part of the signal alone and with all, for Sphinx and MongoDB (4 and 72 "
        f"requests/s) and for Memcached and NGINX, 30 % each, with a best-effort job; means of {RUNS} runs (quick: "
        f"{QUICK_RUNS}) of {LENGTH_S:g} s, the same arrivals for all. Violations are judged alike for all, whatever the "
        "signal said; they and the rest are counted after 30 s."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

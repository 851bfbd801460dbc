"""The demo on the simulated node: where a user may not divide the machine itself, the same story on a model of the paper's server.

A rising and falling load beside steady ones, as in Figure 9, and a best-effort job besides; the same arrivals under each manager.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from parties.model import NS_PER_S
from simulator.measure import ServiceMeasure
from simulator.run import Simulation
from simulator.scenario import DEFAULT_NODE, Scenario, scenario_named
from workloads.demo.results import worse_off
from workloads.demo.table import violations_table
from workloads.simulated.play import played
from workloads.simulated.plot import draw
from workloads.simulated.timeline import Run

VERSION = 1
SCENARIO = "fluctuating-best-effort"
MANAGERS = ("unmanaged", "equal", "heracles", "parties")
SETTLE_S = 20.0  # as in the demo on the machine, a controller has so long to settle; the load rises later
LEFT_OUT = "left out: real services, their load, and the kernel; policies, signal, placement and loop are the ones of the daemon"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    managers: tuple[str, ...]
    seed: int
    results: Path


def explanation(reasons: Sequence[str]) -> tuple[str, ...]:
    """Why it is not the machine itself, and what is left out; ``reasons`` are what is lacking, none where it was asked for."""
    node = f"on the simulated node, a model of the paper's server ({DEFAULT_NODE})"
    why = "since this machine cannot be divided:" if reasons else "as asked for"
    return tuple(f"demo: {line}" for line in (f"{node}, {why}", *(f"  {reason}" for reason in reasons), LEFT_OUT))


def run(options: Options, say: Callable[[str], object]) -> dict[str, Any]:
    """Play the scenario under each manager and write the results; the summary. Raises OSError."""
    options.results.mkdir(parents=True, exist_ok=True)
    scenario = dataclasses.replace(scenario_named(SCENARIO), seed=options.seed)
    runs = []
    for manager in options.managers:
        one = played(Simulation(scenario, policy=manager))
        runs.append(one)
        say(_outcome(one))
    summary = _summary(scenario, runs)
    path = options.results / "demo.json"
    temporary = path.with_name(f".new-{path.name}")
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    temporary.replace(path)
    draw(runs, options.results / "demo.png")
    return summary


def final_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end: a row for each manager and service. It fits 80 columns."""
    table = violations_table(summary, ("violated", "later", "p99/target", "worst", "moves", "best effort"))
    for manager, found in summary["managers"].items():
        for index, (name, service) in enumerate(found["services"].items()):
            table.add_row(
                "" if index else manager,
                name,
                f"{service['violations']}/{service['intervals']}",
                f"{service['violations_after_settling']}/{service['intervals_after_settling']}",
                _ratio(service["median_p99_over_target"]),
                _ratio(service["worst_p99_over_target"]),
                "" if index else str(found["moves"]),
                "" if index else _percent(found["best_effort_throughput"], 0),
            )
    return table


def sentences(summary: Mapping[str, Any]) -> str:
    """What came out, computed from the figures."""
    shares = {name: worse_off(manager) for name, manager in summary["managers"].items()}
    parts = [f"{_percent(share)} ({service}) under {name}" for name, (service, share) in shares.items()]
    first = f"Intervals after settling in which the worse-off service missed its target: {', '.join(parts)}."
    if "parties" not in shares:
        return first
    work = {name: manager["best_effort_throughput"] for name, manager in summary["managers"].items()}
    others = ", ".join(f"{_percent(done, 0)} under {name}" for name, done in work.items() if name != "parties")
    second = f"Under parties best effort did {_percent(work['parties'], 0)} of what it does alone" + (
        f"; {others}." if others else "."
    )
    beaten = [name for name, (_, share) in shares.items() if name != "parties" and share < shares["parties"][1]]
    if beaten:
        second += f" {' and '.join(beaten)} violated less than parties."
    return f"{first} {second} On the simulated node, so it says nothing about this machine."


def _outcome(run: Run) -> str:
    parts = [
        f"{name} violated in {sum(measure.violated)} of {len(measure.violated)} intervals"
        for name, measure in run.result.services.items()
    ]
    return f"{run.result.policy}: {', '.join(parts)}; best effort {_percent(run.result.best_effort_throughput(), 0)} of alone"


def _summary(scenario: Scenario, runs: Sequence[Run]) -> dict[str, Any]:
    """The whole of ``demo.json``."""
    return {
        "version": VERSION,
        "platform": "simulated",
        "node": scenario.node.name,
        "scenario": SCENARIO,
        "seed": scenario.seed,
        "interval_ms": runs[0].result.interval_ns // 1_000_000,
        "length_s": scenario.duration_s,
        "settle_s": SETTLE_S,
        "services": {
            name: {
                "target_us": tenant.model.target_ns // 1000,
                "percentile": tenant.model.percentile,
                "max_load_rps": tenant.model.max_load_rps,
            }
            for name, tenant in scenario.tenants.items()
        },
        "load": {name: [list(point) for point in tenant.load.points] for name, tenant in scenario.tenants.items()},
        "managers": {run.result.policy: _manager(run) for run in runs},
    }


def _manager(run: Run) -> dict[str, Any]:
    result = run.result
    settled = round(SETTLE_S * NS_PER_S) // result.interval_ns
    return {
        "services": {name: _service(measure, run.ratios(name), settled) for name, measure in result.services.items()},
        "moves": result.moves,
        "reverts": result.reverts,
        "migrations": result.migrations,
        "converged_s": result.converged_s(),
        "best_effort_throughput": round(result.best_effort_throughput(), 4),
    }


def _service(measure: ServiceMeasure, ratios: Sequence[float | None], settled: int) -> dict[str, Any]:
    known = [ratio for ratio in ratios if ratio is not None]
    return {
        "intervals": len(measure.violated),
        "violations": sum(measure.violated),
        "intervals_after_settling": len(measure.violated[settled:]),
        "violations_after_settling": sum(itertools.islice(measure.violated, settled, None)),
        "median_p99_over_target": _rounded(statistics.median(known)) if known else None,
        "worst_p99_over_target": _rounded(max(known)) if known else None,
        "intervals_without_answer": sum(math.isinf(ratio) for ratio in known),
    }


def _rounded(ratio: float) -> float | None:
    """JSON has no infinity: an interval without an answer has no ratio."""
    return None if math.isinf(ratio) else round(ratio, 4)


def _ratio(value: float | None) -> Text:
    if value is None:
        return Text("none", style="red")
    return Text(f"{value:.2f}" if value < 100 else f"{value:.0f}", style="red" if value > 1 else "green")  # noqa: PLR2004 - digits


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"

"""Figure 1: tail latency against load, each service alone on the whole managed machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from parties.model import NS_PER_S
from simulator.calibration import paper
from simulator.calibration.measure import LOAD_TOLERANCE, Bench
from simulator.run import simulate
from workloads.experiments.experiment import Experiment, Point, Row, Summary, derived_seed
from workloads.experiments.model import tail_over_target
from workloads.experiments.paper import compare
from workloads.experiments.plot import SERVICE_COLOURS, figure_of, save, title_of
from workloads.experiments.tables import number, optional, rounded
from workloads.experiments.trials import SERVICES, WARMUP_S, model_of, scenario

LOADS = tuple(range(5, 121, 5))
QUICK_LOADS = (10, 30, 50, 70, 80, 90, 100, 110)
ALONE = "unmanaged"  # with one service that is the whole machine, turbo included


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """A run for each service and load, and the knee of each service."""
    loads = QUICK_LOADS if quick else LOADS
    curve = [Point(f"{name} at {load} %", seed, {"service": name, "load": load}) for name in SERVICES for load in loads]
    return [*curve, *(Point(f"knee of {name}", seed, {"service": name}, weight=0.1) for name in SERVICES)]


def measure(point: Point) -> Sequence[Row]:
    """The tail as clients see it in a run and as the model has it; or the largest load under the target on the model."""
    service, load = point.params["service"], point.params.get("load")
    model = model_of(service)
    target_ms = model.target_ns / 1e6
    if load is None:
        bench = Bench.of(service)
        return [{"service": service, "knee_rps": round(bench.largest_rps(bench.whole), 3), "target_ms": target_ms}]
    result = simulate(scenario({service: load}, seed=derived_seed(point.seed, point.name), policy=ALONE))
    first = round(WARMUP_S * NS_PER_S) // result.interval_ns
    seen = [latency for latency in result.services[service].latency_ns[first:] if latency is not None]
    ratio = tail_over_target(service, load)
    return [
        {
            "service": service,
            "load_percent": load,
            "load_rps": round(model.max_load_rps * load / 100, 3),
            "p99_ms": round(median(seen) / 1e6, 4) if seen else None,
            "model_p99_ms": None if ratio is None else round(ratio * target_ms, 4),
            "violating_percent": round(100 * result.violating_share(WARMUP_S), 2),
            "target_ms": target_ms,
        }
    ]


def summarise(rows: Sequence[Row]) -> Summary:
    """The largest load under each target beside Table 2."""
    knees = {str(row["service"]): number(row, "knee_rps") for row in rows if "knee_rps" in row}
    comparison = [
        compare(
            f"max-load-{name}",
            f"{title_of(name)}: largest load under its target",
            paper=paper.MAX_LOADS_RPS[name],
            ours=rounded(knee),
            unit="rps",
            holds=abs(knee - paper.MAX_LOADS_RPS[name]) <= LOAD_TOLERANCE * paper.MAX_LOADS_RPS[name],
        )
        for name, knee in knees.items()
    ]
    furthest = max(abs(100 * (knee / paper.MAX_LOADS_RPS[name] - 1)) for name, knee in knees.items())
    return {
        "headline": f"The largest loads under the targets are within {furthest:.1f} % of Table 2.",
        "comparison": comparison,
        "largest_load_rps": knees,
    }


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """A panel for each service: p99 against load, the target, and where the curve crosses it."""
    figure, axes = figure_of(2, 3, height=2.6)
    for panel, name in zip((panel for line in axes for panel in line), SERVICES, strict=True):
        found = [row for row in rows if row["service"] == name and "load_percent" in row]
        loads = [number(row, "load_percent") for row in found]
        colour = SERVICE_COLOURS[name]
        panel.plot(loads, [_drawn(row, "model_p99_ms") for row in found], color=colour, linewidth=1.0, label="model")
        panel.plot(loads, [_drawn(row, "p99_ms") for row in found], "o", color=colour, markersize=3, label="measured, median")
        target_ms = number(found[0], "target_ms")
        panel.axhline(target_ms, color="black", linewidth=0.7, linestyle="--")
        knee = 100 * summary["largest_load_rps"][name] / model_of(name).max_load_rps
        panel.axvline(knee, color="black", linewidth=0.7, linestyle=":")
        panel.set_ylim(0, 3 * target_ms)
        panel.set_xlim(0, max(loads) + 5)
        panel.set_title(title_of(name), fontsize=9)
        panel.set_xlabel("load (% of maximum)", fontsize=8)
        panel.set_ylabel("p99 (ms)", fontsize=8)
        panel.tick_params(labelsize=7)
    axes[0][0].legend(frameon=False, fontsize="x-small", loc="upper left")
    save(figure, path)


def _drawn(row: Row, column: str) -> float:
    value = optional(row, column)
    return float("nan") if value is None else value


EXPERIMENT = Experiment(
    name="load-latency",
    figure="Figure 1",
    title="Tail latency against load, each service alone",
    method=(
        "Each service alone with all 14 cores: a run of 30 + 60 s for each load of 5, 10, .. 120 % (quick: eight loads), the "
        "median of its intervals' p99, beside the model's steady state; the largest load under the target by bisection on the "
        "model."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

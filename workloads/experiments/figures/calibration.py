"""The model against every published figure that it was fitted to or measured by (sections 4 and 5), cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.calibration import measure as calibration
from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.paper import compare
from workloads.experiments.plot import SERVICE_COLOURS, figure_of, save
from workloads.experiments.tables import number, rounded
from workloads.experiments.trials import SERVICES

KINDS = {
    "max-load": "largest loads (Table 2)",
    "use": "use at the largest load (Table 2)",
    "cell": "cells of Table 4",
    "tuple": "Moses' allocations (section 5)",
    "fact": "other facts (section 5)",
}


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """One for each service; quick leaves nothing out."""
    del quick
    return [Point(name, seed, {"service": name}) for name in SERVICES]


def measure(point: Point) -> Sequence[Row]:
    """Every figure about a service."""
    service = point.params["service"]
    return [
        {
            "service": service,
            "kind": row.kind,
            "name": row.name,
            "paper": row.paper,
            "ours": round(row.ours, 6),
            "unit": row.unit,
            "within": bool(row.within),
        }
        for row in calibration.rows([service])
    ]


def summarise(rows: Sequence[Row]) -> Summary:
    """How many of each kind agree, and the goals."""
    counts = {kind: _count(rows, kind) for kind in KINDS}
    goals = {kind: total for kind, (_, total) in counts.items()} | {"cell": calibration.CELLS_NEEDED}
    comparison = [
        compare(kind, f"{KINDS[kind]} that agree", paper=f"{total}, goal {goals[kind]}", ours=agree, holds=agree >= goals[kind])
        for kind, (agree, total) in counts.items()
        if total
    ]
    lines = [[row["kind"], row["name"], row["paper"], row["ours"], row["unit"], "yes" if row["within"] else "no"] for row in rows]
    said = ", ".join(f"{agree} of {total} {KINDS[kind]}" for kind, (agree, total) in counts.items() if total)
    columns = ["kind", "figure", "paper", "model", "unit", "agrees"]
    return {
        "headline": f"The model agrees with the paper in {said}.",
        "comparison": comparison,
        "tables": [{"title": "Model against paper", "columns": columns, "rows": lines, "print": True}],
        "counts": {kind: {"agree": agree, "of": total} for kind, (agree, total) in counts.items()},
    }


def _count(rows: Sequence[Row], kind: str) -> tuple[int, int]:
    found = [bool(row["within"]) for row in rows if row["kind"] == kind]
    return sum(found), len(found)


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """Left: amounts over the paper's. Right: the difference of every cell of Table 4."""
    del summary
    figure, axes = figure_of(1, 2, width=5.2, height=4.4)
    left, right = axes[0]
    amounts = [row for row in rows if row["kind"] in {"max-load", "use"} and number(row, "paper")]
    for place, row in enumerate(amounts):
        ratio = number(row, "ours") / number(row, "paper")
        left.plot([ratio], [place], "o", color=SERVICE_COLOURS[str(row["service"])], markersize=4)
    left.axvline(1.0, color="black", linewidth=0.7)
    left.axvspan(1 - calibration.LOAD_TOLERANCE, 1 + calibration.LOAD_TOLERANCE, color="0.9")
    names = [f"{row['name']}, largest load" if row["kind"] == "max-load" else str(row["name"]) for row in amounts]
    left.set_yticks(range(len(amounts)), names, fontsize=5.5)
    left.set_xlabel("model over paper")
    found = [row for row in rows if row["kind"] == "cell"]
    differences = [rounded(number(row, "ours") - number(row, "paper")) or 0.0 for row in found]
    right.bar(range(len(found)), differences, color=[SERVICE_COLOURS[str(row["service"])] for row in found])
    right.axhspan(-calibration.CELL_TOLERANCE, calibration.CELL_TOLERANCE, color="0.9", zorder=0)
    right.set_ylabel("Table 4: model less paper (points)")
    right.set_xticks(range(len(found)), [str(row["name"]) for row in found], rotation=90, fontsize=4)
    save(figure, path)


EXPERIMENT = Experiment(
    name="calibration",
    figure="Tables 2, 4",
    title="The model against the paper's characterisation",
    method=(
        "On the model's steady state, without noise: every figure of sections 4 and 5 that the model was fitted to or is judged by "
        "(docs/calibration.md says which). No figure of section 6 is fitted."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

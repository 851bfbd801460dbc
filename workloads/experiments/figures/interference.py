"""Table 4: how much of its load each service keeps beside nine kinds of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.calibration import paper
from simulator.calibration.measure import CELL_TOLERANCE, CELLS_NEEDED, Bench
from workloads.experiments.experiment import Experiment, Point, Row, Summary
from workloads.experiments.paper import compare
from workloads.experiments.plot import figure_of, heat_map, save, title_of
from workloads.experiments.tables import number
from workloads.experiments.trials import SERVICES


def points(quick: bool, seed: int) -> Sequence[Point]:  # noqa: FBT001 - an Experiment's signature
    """A column of the table each; quick leaves nothing out."""
    del quick
    return [Point(name, seed, {"service": name}) for name in SERVICES]


def measure(point: Point) -> Sequence[Row]:
    """The nine cells of a service."""
    service = point.params["service"]
    bench = Bench.of(service)
    full_rps = bench.interference_load_rps()
    return [
        {
            "service": service,
            "interference": interference,
            "full_load_rps": full_rps,
            "paper_percent": paper.cell(interference, service),
            "ours_percent": bench.cell(interference, full_rps),
        }
        for interference in paper.INTERFERENCE
    ]


def summarise(rows: Sequence[Row]) -> Summary:
    """How many cells are near the paper's, and those that are not."""
    far = [row for row in rows if abs(_difference(row)) > CELL_TOLERANCE]
    near = len(rows) - len(far)
    comparison = [
        compare(
            "cells",
            f"cells within {CELL_TOLERANCE} points of the paper's",
            paper=len(rows),
            ours=near,
            holds=near >= CELLS_NEEDED,
        ),
        *(
            compare(
                f"{row['service']}-{row['interference']}",
                f"{title_of(str(row['service']))}, {row['interference']}",
                paper=number(row, "paper_percent"),
                ours=number(row, "ours_percent"),
                unit="%",
                holds=False,
            )
            for row in far
        ),
    ]
    table = {"title": "Every cell: ours (paper)", "columns": ["", *map(title_of, SERVICES)], "rows": _lines(rows)}
    return {
        "headline": f"{near} of {len(rows)} cells of Table 4 are within {CELL_TOLERANCE} points (goal: {CELLS_NEEDED}).",
        "comparison": comparison,
        "tables": [table],
        "cells_near": near,
    }


def _difference(row: Row) -> float:
    return number(row, "ours_percent") - number(row, "paper_percent")


def _lines(rows: Sequence[Row]) -> list[list[str]]:
    lines: dict[str, list[str]] = {}
    for row in rows:
        name = str(row["interference"])
        lines.setdefault(name, [name]).append(f"{number(row, 'ours_percent'):g} ({number(row, 'paper_percent'):g})")
    return list(lines.values())


def draw(rows: Sequence[Row], summary: Summary, path: Path) -> None:
    """Two heat maps in the table's order: the paper's and ours."""
    del summary
    figure, axes = figure_of(1, 2, width=4.6, height=3.8)
    kinds = list(reversed(paper.INTERFERENCE))
    for panel, column, title in zip(axes[0], ("paper_percent", "ours_percent"), ("paper", "model"), strict=True):
        cells: dict[tuple[int, int], float | None] = {
            (SERVICES.index(str(row["service"])), kinds.index(str(row["interference"]))): number(row, column) for row in rows
        }
        heat_map(panel, cells, range(len(SERVICES)), range(len(kinds)), limits=(0, 100), colours="RdYlGn")
        panel.set_xticks(range(len(SERVICES)), [title_of(name) for name in SERVICES], rotation=35, fontsize=7)
        panel.set_yticks(range(len(kinds)), kinds, fontsize=7)
        panel.set_title(f"{title}: load that still meets the target (%)", fontsize=9)
    axes[0][1].set_yticks([])
    save(figure, path)


EXPERIMENT = Experiment(
    name="interference",
    figure="Table 4",
    title="Load beside nine kinds of neighbours",
    method=(
        "On the model's steady state: each service with 8 threads on 8 cores beside the neighbours of Table 4; the largest "
        "multiple of 10 % of the load it carries there alone at which it meets its target. The whole table; these cells were "
        "fitted (docs/calibration.md)."
    ),
    points=points,
    measure=measure,
    summarise=summarise,
    draw=draw,
)

"""What a run on the simulated node looks like in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parties.live import amount_text, latency_text, trend
from parties.model import BEST_EFFORT, MILLICORES_PER_CORE, Resource
from simulator.run import CONVERGED_NS, Result
from workloads.simulated.timeline import Run, condensed

TREND_LENGTH = 24
WIDE_TREND_LENGTH = 60
WIDE = 130
HIGHEST_BAR = 100.0  # of latency over target; every bar over a few targets is the same
PAPER_PERCENTILE = 99.0
MHZ = 1_000_000
US = 1_000

_FINAL = {
    "cores": (Resource.CORES, MILLICORES_PER_CORE),
    "ways": (Resource.CACHE, 1),
    "frequency_mhz": (Resource.FREQUENCY, MHZ),
    "memory_bytes": (Resource.MEMORY, 1),
    "disk_bytes_per_s": (Resource.DISK, 1),
    "network_bits_per_s": (Resource.NETWORK, 1),
}
"""Fields of a final allocation in the JSON result, with their base units."""


def view(run: Run, *, width: int, ascii_only: bool = False) -> RenderableType:
    """The view of a run that is over."""
    found: Mapping[str, Any] = run.result.as_json()
    return Group(
        Text.assemble((found["policy"], "bold"), f" on {found['node']}, seed {found['seed']}: {_length(run.result)}"),
        _services(run, found["services"], width=width, ascii_only=ascii_only),
        Text(),
        _allocation(run.result, found["services"]),
        Text(),
        Text(_sentence(found, best_effort=run.result.scenario.job is not None)),
    )


def _length(result: Result) -> str:
    return f"{result.scenario.duration_s:g} s in {result.intervals} intervals of {result.interval_ns / 1e6:g} ms"


def _services(run: Run, services: Mapping[str, Any], *, width: int, ascii_only: bool) -> Table:
    table = _table("service", "load", "target", "p99/target", "over time", "violated", "after convergence")
    length = WIDE_TREND_LENGTH if width >= WIDE else TREND_LENGTH
    for name, service in services.items():
        median, target = service["median_p99_over_target"], run.result.services[name].target
        late = median is None or median > 1
        table.add_row(
            name,
            f"{100 * service['load']:.3g} %",
            latency_text(target.latency_ns) + ("" if target.percentile == PAPER_PERCENTILE else f" (p{target.percentile:g})"),
            Text("-" if median is None else f"{median:.2f}", "red" if late else "green"),
            _course(condensed(run.ratios(name), length), ascii_only=ascii_only),
            _count(service["violations"], service["intervals"]),
            _later(service["violations_after_convergence"]),
        )
    return table


def _course(ratios: Sequence[float | None], *, ascii_only: bool) -> Text:
    return trend((None if ratio is None else min(HIGHEST_BAR, ratio) for ratio in ratios), ascii_only=ascii_only)


def _count(violations: int, intervals: int) -> Text:
    return Text(f"{violations}/{intervals}", "red" if violations else "green")


def _later(violations: int | None) -> Text:
    return Text("-") if violations is None else Text(str(violations), "red" if violations else "green")


def _allocation(result: Result, services: Mapping[str, Any]) -> Table:
    table = _table("holds at the end", *(resource.value for resource, _ in _FINAL.values()))
    for name, service in services.items():
        holder = result.sharing.get(name)
        shown = name if holder is None else f"{name} (in {holder})"
        table.add_row(shown, *(_amount(service["final"][field], *unit) for field, unit in _FINAL.items()))
    if result.scenario.job is not None and BEST_EFFORT not in result.sharing.values():
        final = result.final(BEST_EFFORT)
        table.add_row(BEST_EFFORT, *(_amount(final[field], *unit) for field, unit in _FINAL.items()))
    return table


def _amount(value: int | None, resource: Resource, base: int) -> str:
    return "-" if value is None else amount_text(resource, value * base)


def _sentence(found: Mapping[str, Any], *, best_effort: bool) -> str:
    seconds = f"{CONVERGED_NS / 1e9:g} s"
    converged = found["converged_s"]
    parts = [
        f"{found['moves']} moves, {found['reverts']} of them reverts; {found['migrations']} migrations asked for",
        f"never met every target for {seconds}" if converged is None else f"converged at {converged:g} s",
    ]
    if best_effort:
        parts.append(f"best effort did {100 * found['best_effort_throughput']:.0f} % of what it does alone")
    return "; ".join(parts)


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column == "over time" else "right", no_wrap=True)
    return table

"""The head of the table at the end of a demo, on whichever platform it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table


def violations_table(summary: Mapping[str, Any], columns: Sequence[str]) -> Table:
    """The table at the end, without its rows: manager, service, and these columns of figures."""
    table = Table(
        title=f"Violated intervals of {summary['interval_ms']} ms: all, and after the first {summary['settle_s']:.0f} s",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in ("manager", "service"):
        table.add_column(column, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table

"""A summary on a terminal: its headline, the paper's figures beside ours, and the tables that are meant to be read there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(console: Console, summary: Mapping[str, Any], directory: Path) -> None:
    """Print a summary; ``directory`` is where its files are."""
    name = summary["experiment"]
    console.print(Text(f"\n{name}: ", style="bold").append(Text(summary["headline"], style="not bold")), soft_wrap=True)
    for table in summary.get("tables", ()):
        if table.get("print"):
            console.print(_listing(table))
    if summary["comparison"]:
        console.print(_comparison(summary["comparison"]))
    console.print(Text(f"{directory / name}.csv, .json, .png", style="dim"), soft_wrap=True)


def as_text(value: object) -> str:
    """A value of a table as it is shown."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _comparison(lines: list[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=True)
    table.add_column("", ratio=4)
    table.add_column("paper", justify="right", ratio=2)
    table.add_column("ours", justify="right", ratio=2)
    table.add_column("", no_wrap=True)
    table.add_column("why it differs", ratio=5)
    for line in lines:
        mark = Text("holds", style="green") if line["holds"] else Text("differs", style="red")
        unit = f" {line['unit']}" if line["unit"] else ""
        paper, ours = (Text(as_text(line[who]) + unit) for who in ("paper", "ours"))
        table.add_row(Text(line["what"]), paper, ours, mark, Text(line["reason"]))
    return table


def _listing(listing: Mapping[str, Any]) -> Table:
    table = Table(title=listing["title"], title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for number, column in enumerate(listing["columns"]):
        numeric = any(isinstance(row[number], int | float) for row in listing["rows"])
        table.add_column(Text(str(column)), justify="right" if numeric else "left")
    for row in listing["rows"]:
        table.add_row(*(Text(as_text(value)) for value in row))
    return table

"""``parties doctor``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click

from parties.commands.errors import EXIT_FAILED, EXIT_OK
from parties.doctor.model import Report, Verdict, report_to_json
from parties.doctor.report import examine
from parties.doctor.subject import Subject

_STYLES = {Verdict.MANAGED: "green", Verdict.DEGRADED: "yellow", Verdict.NOT_MANAGED: "red"}
_WIDE = 400
"""Columns of the table in a file or a pipe, where nothing is to be broken."""


@click.command()
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="Examine the machine for this configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(file: Path | None, *, as_json: bool) -> int:
    """Say what this machine has for each resource, what it lacks, and what to change.

    Writes nothing to the machine, and takes about two seconds. Run as root, it sees more. With a configuration only what that asks
    for counts. Exit code 0: all of it is managed; 1: something is degraded or not managed; 2: a mistake in the call or the file.

    \b
    Examples:
      parties doctor
      parties doctor -c /etc/parties/parties.toml
      parties doctor --json | jq -r '.resources[].change[]'
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    report = examine(subject_for(file))
    if as_json:
        click.echo(json.dumps(report_to_json(report)))
    else:
        show(report)
    return EXIT_OK if report.verdict is Verdict.MANAGED else EXIT_FAILED


def subject_for(file: Path | None) -> Subject:
    """This machine, for a configuration if one is given. Raises ConfigError."""
    if file is None:
        return Subject()
    from parties.config import load  # noqa: PLC0415 - slow to import, and seldom needed here

    return Subject(given=load(file).settings)


def show(report: Report) -> None:
    """Print the report for a person: a table, then what is missing, what to change, and who is in the way."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and not needed for JSON
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table("resource", "verdict", "mechanism", box=None, header_style="bold")
    table.add_column("what there is", overflow="fold")
    for one in report.resources:
        verdict = one.verdict.value if one.asked else "not asked for"
        style = _STYLES[one.verdict] if one.asked else "dim"
        table.add_row(one.resource.value, f"[{style}]{verdict}[/]", escape(one.offer.mechanism), escape(one.offer.range))
    console = Console(highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)
    for title, lines in _lists(report):
        if lines:
            console.print(f"\n[bold]{title}[/]")
            for line in lines:
                console.print(f"  - {line}", markup=False, soft_wrap=True)
    console.print(f"\n{_summary(report)}", markup=False, soft_wrap=True)


def _summary(report: Report) -> str:
    """What the exit code says, in words: the verdicts with their resources, the gravest first."""
    asked = [one for one in report.resources if one.asked]
    by_verdict = {verdict.value: [one.resource.value for one in asked if one.verdict is verdict] for verdict in reversed(Verdict)}
    return "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items() if names) or "nothing is asked for"


def _lists(report: Report) -> Iterator[tuple[str, list[str]]]:
    """The lists below the table, each with its title."""
    asked = [(one.resource.value, lack) for one in report.resources if one.asked for lack in one.lacks]
    found = [*asked, *((section.name.replace("_", " "), lack) for section in report.sections for lack in section.lacks)]
    yield "missing", [f"{name}: {lack.text}" for name, lack in found]
    changes = dict.fromkeys(f"{name}: {lack.change}" for name, lack in found if lack.change)
    yield "to change", [*changes, *(f"the rest: {change}" for change in report.rest.change)]
    yield "in the way", [f"{tool.name} ({tool.seen}): {tool.why}; {tool.change}" for tool in report.in_the_way]
    for section in report.sections:
        yield section.name.replace("_", " "), [f"{name.replace('_', ' ')}: {fact}" for name, fact in section.facts.items() if fact]
    yield "the rest", list(report.rest.lines)
    yield "not seen", list(report.unseen)

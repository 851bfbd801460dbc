"""``parties verify``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from actuators.registry import KINDS
from parties.commands.directories import Directories, directory_options
from parties.commands.errors import EXIT_FAILED, EXIT_OK
from parties.in_force import IN_FORCE_NAME, InForce, InForceError, read_in_force
from parties.journal import JOURNAL_NAME, JournalContents, boot_id, damaged_lines, read_journal
from parties.lock import LOCK_NAME
from parties.verify import DIFFERENCES, Verdict, Verification, Verified, Verifier, running_daemon

_LOOKS, _BETWEEN_LOOKS_S = 3, 0.3
"""A daemon at work writes a knob first and says so afterwards, so what differs is looked at again."""

_WIDE = 400
"""Columns of the table in a file or a pipe, where nothing is to be broken."""

_WORDS = {
    Verdict.IN_FORCE: "in force",
    Verdict.DIFFERS: "DIFFERS",
    Verdict.VANISHED: "vanished",
    Verdict.UNREADABLE: "UNREADABLE",
    Verdict.YIELDED: "YIELDED to somebody else",
    Verdict.UNDONE: "as before",
    Verdict.LEFT_OVER: "NOT PUT BACK",
    Verdict.HELD: "held",
    Verdict.SAFE: "safe",
    Verdict.UNKNOWN_KIND: "of an UNKNOWN kind",
}


@click.command()
@directory_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(directories: Directories, *, as_json: bool) -> int:
    """Compare what every kernel value should be with what it is.

    Beside a running daemon: what it wants, what was there before it, and what is there now. Without one: what was journalled and
    has not been put back. Reads only. Exit code 0: all as wanted; 1: there are differences; 2: a mistake in the call.

    \b
    Examples:
      parties verify
      parties verify --json | jq '.knobs[] | select(.verdict == "differs")'
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    verification = look(directories)
    if as_json:
        click.echo(json.dumps({**_as_json(verification), "journal": str(directories.state / JOURNAL_NAME)}))
    else:
        _print(verification, directories)
    return EXIT_OK if verification.as_wanted else EXIT_FAILED


def look(directories: Directories) -> Verification:
    """Read every knob; what differs beside a daemon at work more than once. Raises JournalError."""
    verification = _look_once(directories)
    for _ in range(_LOOKS - 1):
        if verification.as_wanted or verification.running is None:
            break
        time.sleep(_BETWEEN_LOOKS_S)
        verification = _look_once(directories)
    return verification


def _look_once(directories: Directories) -> Verification:
    this_boot = boot_id()
    running = running_daemon(directories.runtime / LOCK_NAME)
    in_force: InForce | None = None
    journal = _journal(directories)
    if running is not None:
        try:
            in_force = read_in_force(directories.runtime / IN_FORCE_NAME, boot_id=this_boot)
        except InForceError as error:
            return Verification(running, silence=str(error))
        if in_force.pid != running:
            return Verification(running, silence=f"process {running} has not said yet what it wants; ask again in a moment")
    return Verification(running, Verifier(KINDS, in_force, journal, this_boot).verify(), tuple(journal.corrupt))


def _journal(directories: Directories) -> JournalContents:
    try:
        return read_journal(directories.state / JOURNAL_NAME)
    except FileNotFoundError:
        return JournalContents()


def _print(verification: Verification, directories: Directories) -> None:
    for text in (*verification.damaged, verification.silence):
        click.echo(text, err=True, nl=bool(text))
    if verification.knobs:
        _print_knobs(verification.knobs)
    click.echo(_summary(verification, directories))


def _print_knobs(knobs: Sequence[Verified]) -> None:
    """A table; where the terminal is too narrow for it two lines for each knob, so that no path is broken."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and not needed for JSON
    from rich.measure import Measurement  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDE
    table = Table("verdict", "holder", "wanted", "actual", "before", "knob", box=None, header_style="bold")
    for knob in knobs:
        table.add_row(_verdict(knob), knob.holder, *_values(knob).values(), str(knob.ref), style=_style(knob))
    if Measurement.get(console, console.options.update(max_width=_WIDE), table).maximum <= console.width:
        console.print(table)
        return
    for knob in knobs:
        values = ", ".join(f"{name} {value}" for name, value in _values(knob).items() if value)
        console.print(f"{_verdict(knob)}: {knob.ref}", style=_style(knob), soft_wrap=True)
        console.print(f"  {knob.holder}: {values}" if knob.holder else f"  {values}", soft_wrap=True)


def _verdict(knob: Verified) -> str:
    return _WORDS[knob.verdict] + (f" ({knob.detail})" if knob.detail else "")


def _style(knob: Verified) -> str:
    return "red" if knob.verdict in DIFFERENCES else ""


def _values(knob: Verified) -> dict[str, str]:
    """What is told of a knob's value, empty where there is nothing to tell."""
    wanted = knob.wanted if knob.wanted is not None else ""
    return {"wanted": wanted, "actual": _text(knob.actual), "before": _text(knob.before) if knob.journalled else ""}


def _text(value: str | None) -> str:
    return "unset" if value is None else value


def _summary(verification: Verification, directories: Directories) -> str:
    running, journal = verification.running, directories.state / JOURNAL_NAME
    who = f"daemon {running}" if running is not None else f"no daemon in {directories.runtime}"
    counts = [f"{len(verification.of(verdict))} {words}" for verdict, words in _WORDS.items() if verification.of(verdict)]
    if verification.damaged:
        counts.append(damaged_lines(verification.damaged))
    hint = ""
    if running is None and not verification.as_wanted:
        hint = f"; run: parties restore{directories.options()}"
    there = "" if journal.exists() else "there is no "
    none = "what it wants is not known" if verification.silence else f"nothing is changed ({there}{journal})"
    return f"{who}: {', '.join(counts) or none}{hint}"


def _as_json(verification: Verification) -> dict[str, object]:
    return {
        "version": 1,
        "running_pid": verification.running,
        "as_wanted": verification.as_wanted,
        "counts": {verdict.value: len(verification.of(verdict)) for verdict in Verdict},
        "knobs": [_knob_as_json(knob) for knob in verification.knobs],
        "damaged": list(verification.damaged),
        "silence": verification.silence,
    }


def _knob_as_json(knob: Verified) -> dict[str, object]:
    return {
        "kind": knob.ref.kind,
        "address": list(knob.ref.address),
        "verdict": knob.verdict.value,
        "holder": knob.holder,
        "wanted": knob.wanted,
        "journalled": knob.journalled,
        "before": knob.before,
        "actual": knob.actual,
        "detail": knob.detail,
    }

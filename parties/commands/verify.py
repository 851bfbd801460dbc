"""``parties verify``."""

from __future__ import annotations

import json
import time

import click

from actuators.registry import KINDS
from parties.commands.directories import Directories, directory_options
from parties.commands.errors import EXIT_FAILED, EXIT_OK
from parties.in_force import IN_FORCE_NAME, InForce, InForceError, read_in_force
from parties.journal import JOURNAL_NAME, JournalContents, boot_id, read_journal
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
        click.echo(json.dumps(_as_json(verification)))
    else:
        _print(verification)
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


def _print(verification: Verification) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import, and not needed for JSON
    from rich.table import Table  # noqa: PLC0415

    for text in (*verification.damaged, verification.silence):
        click.echo(text, err=True, nl=bool(text))
    if verification.knobs:
        table = Table("verdict", "holder", "wanted", "actual", "before", box=None, header_style="bold")
        table.add_column("knob", overflow="fold")
        for knob in verification.knobs:
            style = "red" if knob.verdict in DIFFERENCES else ""
            detail = f" ({knob.detail})" if knob.detail else ""
            before = _text(knob.before) if knob.journalled else ""
            wanted = knob.wanted if knob.wanted is not None else ""
            table.add_row(
                f"{_WORDS[knob.verdict]}{detail}", knob.holder, wanted, _text(knob.actual), before, str(knob.ref), style=style
            )
        console = Console(markup=False, highlight=False, emoji=False)
        if not console.is_terminal:
            console.width = _WIDE
        console.print(table)
    click.echo(_summary(verification))


def _text(value: str | None) -> str:
    return "unset" if value is None else value


def _summary(verification: Verification) -> str:
    who = f"daemon {verification.running}" if verification.running is not None else "no daemon"
    counts = [f"{len(verification.of(verdict))} {words}" for verdict, words in _WORDS.items() if verification.of(verdict)]
    if verification.damaged:
        counts.append(f"{len(verification.damaged)} lines of the journal damaged")
    hint = ""
    if verification.running is None and not verification.as_wanted:
        hint = "; run: parties restore"
    none = "what it wants is not known" if verification.silence else "nothing is changed"
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

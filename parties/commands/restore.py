"""``parties restore``, and the restore that ``parties run`` does for a control process that died."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from actuators.registry import KINDS
from parties import restore as undo
from parties.commands.control_process import STOP_LIMIT_NS
from parties.commands.directories import Directories, directory_options, topology_now
from parties.commands.errors import EXIT_FAILED, EXIT_OK, MistakeError
from parties.journal import JOURNAL_NAME, damaged_lines
from parties.lock import LockHeldError, RuntimeLock
from parties.restore import Fate, Restored, RestoreReport
from parties.resume import RESUME_NAME, forget

_WORDS = {
    Fate.RESTORED: "put back",
    Fate.UNCHANGED: "as before already",
    Fate.GONE: "gone",
    Fate.YIELDED: "left to somebody else",
    Fate.VOID: "of an earlier boot",
    Fate.HELD: "held as it is",
    Fate.SAFE: "set to what is safe without a daemon",
    Fate.FAILED: "NOT put back",
}
_KILLED = frozenset({"killed", "dumped"})
"""What systemd tells of a main process that ended by a signal: it left nothing on purpose, an earlier one did."""

_TOLD = frozenset({Fate.RESTORED, Fate.YIELDED, Fate.SAFE, Fate.FAILED})


@click.command()
@directory_options
@click.option("--at-exit", is_flag=True, help="Do what the exit policy of the run says, as a service manager does after its end.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def restore(directories: Directories, *, at_exit: bool, dry_run: bool, as_json: bool) -> int:
    """Put back every value that a run has left changed, newest first.

    Needed only after a crash or SIGKILL, and for values that the exit policy has held: a run that is stopped in order does the
    rest itself. May be called again at any time; what could not be put back stays in the journal for the next call. Exit code 1:
    something could not be put back; 2: a mistake in the call, or a daemon is running.

    With --at-exit nothing is done while the daemon is being restarted on purpose, unless systemd says that it was killed.

    \b
    Examples:
      parties restore --dry-run
      parties restore -c /etc/parties/parties.toml
      parties restore --at-exit            what ExecStopPost= calls
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    mark = directories.runtime / RESUME_NAME
    left = at_exit and mark.exists() and os.environ.get("EXIT_CODE") not in _KILLED
    try:
        report = (
            RestoreReport(directories.state / JOURNAL_NAME, dry_run=dry_run)
            if left
            else restore_all(directories.state, directories.runtime, dry_run=dry_run, at_exit=at_exit)
        )
    except LockHeldError as error:
        raise MistakeError(
            f"{error.path}: held by {error.owner}; a daemon puts everything back by itself when it is stopped; to see what it set, "
            f"run: parties verify{directories.options()}"
        ) from error
    if as_json:
        click.echo(json.dumps({**_as_json(report), "left_for_restart": left}))
    elif left:
        click.echo(f"{mark}: the daemon is being restarted; everything is left as it is")
    else:
        _print(report)
    return EXIT_OK if report.complete else EXIT_FAILED


def restore_all(state_directory: Path, runtime_directory: Path, *, dry_run: bool = False, at_exit: bool = False) -> RestoreReport:
    """Restore under the runtime directory's lock. Raises LockError, JournalError.

    At exit a control process whose front was killed may still be putting everything back by itself: it is waited for.
    """
    with RuntimeLock(runtime_directory, patience_ns=STOP_LIMIT_NS if at_exit else 0):
        journal = state_directory / JOURNAL_NAME
        if not dry_run:
            forget(runtime_directory)  # what is put back is nobody's to go on with
        return undo.restore(journal, KINDS, dry_run=dry_run, at_exit=at_exit, topology=topology_now())


def summary(report: RestoreReport) -> str:
    """A report in one line: how many values had which fate."""
    if not report.entries and not report.corrupt:
        return "there was nothing to put back"
    counts = [f"{len(report.of(fate))} {_words(fate, report)}" for fate in _WORDS if report.of(fate)]
    if report.corrupt:
        counts.append(damaged_lines(report.corrupt))
    if report.dry_run:
        counts.insert(0, "dry run, nothing was written")
    return "; ".join(counts)


def _print(report: RestoreReport) -> None:
    for entry in report.entries:
        if entry.fate in _TOLD:
            click.echo(_line(entry, report), err=entry.fate is Fate.FAILED)
    for line in report.corrupt:
        click.echo(f"damaged: {line}", err=True)
    if report.set_aside is not None:
        click.echo(f"the damaged journal was moved to {report.set_aside}", err=True)
    if report.other_topology:
        click.echo("CPUs, caches or memory nodes have come or gone since the journal was begun", err=True)
    click.echo(f"{report.journal}: {summary(report)}")


def _words(fate: Fate, report: RestoreReport) -> str:
    return "would be put back" if report.dry_run and fate is Fate.RESTORED else _WORDS[fate]


def _line(entry: Restored, report: RestoreReport) -> str:
    old = "unset" if entry.old is None else entry.old
    return f"{_words(entry.fate, report)}: {entry.ref} = {old}" + (f": {entry.detail}" if entry.detail else "")


def _as_json(report: RestoreReport) -> dict[str, object]:
    entries = [
        {
            "kind": entry.ref.kind,
            "address": list(entry.ref.address),
            "old": entry.old,
            "fate": entry.fate.value,
            "detail": entry.detail,
        }
        for entry in report.entries
    ]
    return {
        "version": 1,
        "journal": str(report.journal),
        "dry_run": report.dry_run,
        "complete": report.complete,
        "other_topology": report.other_topology,
        "entries": entries,
        "corrupt": list(report.corrupt),
        "set_aside": None if report.set_aside is None else str(report.set_aside),
    }

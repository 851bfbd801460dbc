"""Errors of the command line: known ones are one message and an exit code, unknown ones are written down.

An operator's mistake ends in one message that says what, where, and what to do; never in a traceback.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from pathlib import Path

import click

EXIT_OK, EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 0, 1, 2, 130

STATE_DIRECTORY = Path("/var/lib/parties")

_KNOWN = {
    "actuators.cgroup.hierarchy.SetupError": EXIT_MISTAKE,
    "monitors.histogram_socket.SocketError": EXIT_MISTAKE,
    "monitors.topology.TopologyError": EXIT_MISTAKE,
    "parties.config.ConfigError": EXIT_MISTAKE,
    "parties.journal.JournalError": EXIT_FAILED,
    "parties.knob.KnobError": EXIT_FAILED,
    "parties.lock.LockError": EXIT_MISTAKE,
    "parties.record.RecordError": EXIT_MISTAKE,
    "parties.units.UnitError": EXIT_MISTAKE,
}
"""Exceptions whose text is the message, by name, so that none of their modules has to be imported to tell."""


class MistakeError(click.ClickException):
    """An operator's mistake; the text is the message."""

    exit_code = EXIT_MISTAKE


class RunFailedError(click.ClickException):
    """Something failed at run time; the text is the message."""

    exit_code = EXIT_FAILED


def explain(error: Exception, *, debug: bool = False, directory: Path = STATE_DIRECTORY) -> int:
    """Say what happened in one message on standard error, and give the exit code."""
    code, text = _known(error)
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    elif not text:
        text = f"unexpected error: {_named(error)}; details: {write_details(_details(error), directory)}"
    click.echo(f"parties: {text or _named(error)}", err=True)
    return code


def write_details(details: str, directory: Path) -> str:
    """Write what may help to find a defect to a new file, in ``directory`` if possible; its name, or why there is none."""
    for place in (directory, Path(tempfile.gettempdir())):
        with contextlib.suppress(OSError):
            fd, name = tempfile.mkstemp(prefix="parties-error-", suffix=".log", dir=place, text=True)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(details)
            return name
    return "could not be written; call again with --debug"


def _known(error: Exception) -> tuple[int, str]:
    for kind in type(error).__mro__:
        code = _KNOWN.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return code, str(error)
    if isinstance(error, OSError) and error.filename is not None:
        hint = "; run parties as root, for example with sudo" if isinstance(error, PermissionError) else ""
        return EXIT_MISTAKE if hint else EXIT_FAILED, f"{error.filename}: {error.strerror}{hint}"
    return EXIT_FAILED, ""


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _details(error: Exception) -> str:
    return "".join(traceback.format_exception(error))

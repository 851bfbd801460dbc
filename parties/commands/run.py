"""``parties run``: checks the configuration, starts the control process, shows what it says, and cleans up after it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import click
from rich.console import Console

from monitors.machine import MachineMonitor
from parties.commands.check import load_for
from parties.commands.control_process import Ending, Launch, follow
from parties.commands.errors import EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_OK, MistakeError, RunFailedError, write_details
from parties.commands.options import DURATION_TYPE
from parties.commands.restore import restore_all, summary
from parties.journal import JournalError
from parties.live import LiveView, PlainView
from parties.lock import LockError
from parties.settings import ControlSettings

CONFIGURATION = "/etc/parties/parties.toml"
_ERROR_PREFIX = "parties: "


@click.command()
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), default=CONFIGURATION, show_default=True, help="The configuration."
)
@click.option("--no-live", is_flag=True, help="Plain lines instead of the live table, as where there is no terminal.")
@click.option("--duration", type=DURATION_TYPE, help='Stop after so long, as in "60s".  [default: run until stopped]')
@click.option("--record", type=click.Path(path_type=Path), help="Write the record to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print every message of the controller as one line of JSON.")
@click.pass_context
def run(  # noqa: PLR0913 - one for each option
    ctx: click.Context, file: Path, *, duration: int | None, record: Path | None, no_live: bool, as_json: bool
) -> int:
    """Run the controller until it is stopped (Ctrl-C, SIGTERM), then put every changed value back.

    Shows a live table on a terminal and plain lines elsewhere. Exit code 0: stopped in order (SIGTERM or --duration); 130: by
    Ctrl-C, in order as well; 1: the run failed, and what it had changed was put back if at all possible; 2: it could not begin.

    \b
    Examples:
      parties run
      parties run -c parties.toml --duration 60s --record run.jsonl
      parties run -c parties.toml --json | jq 'select(.type == "tick") | .reason'
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    settings = load_for(file).settings
    if record is not None:
        settings = dataclasses.replace(settings, record=str(record.absolute()))
    view = JsonView() if as_json else _view(plain=no_live)
    launch = Launch(show_errors=bool(ctx.find_root().params.get("debug")))
    machine = MachineMonitor()

    def show(message: Mapping[str, Any]) -> None:
        view.update({**message, "machine": machine.sample()} if message.get("type") == "tick" else message)

    with view:
        ending = follow(settings, show, duration_ns=duration, launch=launch)
    code = concluded(ending, settings, file)
    click.echo(ending.errors, err=True, nl=False)
    if ending.report is not None and not as_json:
        click.echo(_report_text(ending.report))
    return code


class JsonView:
    """Every message as one line of JSON."""

    def update(self, message: Mapping[str, Any]) -> None:
        """Print it at once."""
        click.echo(json.dumps(message, separators=(",", ":")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


View = LiveView | PlainView | JsonView


def concluded(
    ending: Ending, settings: ControlSettings, file: Path, *, put_back: Callable[[ControlSettings], str] | None = None
) -> int:
    """The exit code of a run; restores after a control process that died. Raises MistakeError or RunFailedError."""
    if ending.exit_code == EXIT_OK:
        return EXIT_INTERRUPTED if ending.interrupted else EXIT_OK
    by_hand = f"parties restore -c {shlex.quote(str(file))}"
    if ending.exit_code is None:
        raise RunFailedError(
            f"the control process ({ending.pid}) has not put everything back in time; when it has ended, or once you have ended it "
            f"(kill -9 {ending.pid}), run: {by_hand}"
        )
    last = _last_line(ending.errors)
    if ending.exit_code == EXIT_MISTAKE:
        raise MistakeError(last or "the control process could not begin, and did not say why; call again with --debug")
    try:
        done = (put_back or _put_back)(settings)
    except (LockError, JournalError) as error:
        done = f"what it had changed could not be put back: {error}; then run: {by_hand}"
    raise RunFailedError(f"{_death(ending, last, Path(settings.state_directory))}; {done}")


def _put_back(settings: ControlSettings) -> str:
    report = restore_all(Path(settings.state_directory), Path(settings.runtime_directory), at_exit=True)
    return summary(report) if report.complete else f"{summary(report)}; see: parties restore --dry-run"


def _death(ending: Ending, last: str, state_directory: Path) -> str:
    code = ending.exit_code or 0
    if code < 0:
        return f"the control process was killed by {signal.Signals(-code).name}"
    if "Traceback" in ending.errors:
        return f"the control process failed: {last} (details: {write_details(ending.errors, state_directory)})"
    return last or f"the control process failed with exit code {code}"


def _last_line(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1].removeprefix(_ERROR_PREFIX) if lines else ""


def _view(*, plain: bool) -> View:
    console = Console()
    if plain or not console.is_terminal:
        return PlainView(click.echo)
    return LiveView(console)


def _report_text(report: Mapping[str, Any]) -> str:
    moves = ", ".join(f"{count} of {resource}" for resource, count in report.get("moves", {}).items() if count) or "none"
    parts = [
        f"{report.get('ticks', 0)} ticks, {report.get('missed_ticks', 0)} missed",
        f"moves: {moves}; reverts: {report.get('reverts', 0)}; refused: {report.get('refused', 0)}",
        f"controller: {100 * report.get('cpu_fraction_of_core', 0):.2f} % of a core, {report.get('rss_mb', 0)} MB",
        "everything was put back",
    ]
    return "stopped: " + "; ".join(parts)

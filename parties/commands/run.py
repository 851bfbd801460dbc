"""``parties run``: checks the configuration, starts the control process, shows what it says, and cleans up after it."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click
from rich.console import Console

from monitors.machine import MachineMonitor
from parties.commands.check import load_for
from parties.commands.control_process import Ending, Launch, follow
from parties.commands.directories import CONFIGURATION
from parties.commands.errors import EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_OK, MistakeError, RunFailedError, write_details
from parties.commands.options import DURATION_TYPE
from parties.commands.restore import restore_all, summary
from parties.commands.service_manager import own_unit, restart_is_queued
from parties.config import ConfigError
from parties.journal import JournalError
from parties.live import LiveView, PlainView
from parties.lock import LockError
from parties.notify import Notifier, StatusLine
from parties.resume import forget
from parties.settings import ControlSettings

_ERROR_PREFIX = "parties: "


@click.command()
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), default=CONFIGURATION, show_default=True, help="The configuration."
)
@click.option("--no-live", is_flag=True, help="Plain lines instead of the live table, as where there is no terminal.")
@click.option("--duration", type=DURATION_TYPE, help='Stop after so long, as in "60s".  [default: run until stopped]')
@click.option("--record", type=click.Path(path_type=Path), help="Write the record to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print every message of the controller as one line of JSON.")
@click.option("--shadow", is_flag=True, help="Write nothing to the machine; count what would have been done.")
@click.option(
    "--runtime-directory",
    type=click.Path(path_type=Path),
    help="Sockets and lock go there, as for a shadow beside a run.  [default: the configuration's]",
)
@click.pass_context
def run(ctx: click.Context, /, file: Path, **options: Any) -> int:  # noqa: ANN401 - click's values, see _Options
    """Run the controller until it is stopped (Ctrl-C, SIGTERM), then put every changed value back.

    Shows a live table on a terminal and plain lines elsewhere. SIGHUP reads the configuration again: everything stays in force and
    goes on with the new one. SIGUSR1 ends the run and leaves everything in force for the next one, which goes on from there.

    Exit code 0: stopped in order (SIGTERM, SIGUSR1, --duration); 130: by Ctrl-C, in order as well; 1: the run failed, and what it
    had changed was put back if at all possible; 2: it could not begin.

    \b
    Examples:
      parties run
      parties run -c parties.toml --duration 60s --record run.jsonl
      parties run -c parties.toml --json | jq 'select(.type == "tick") | .reason'
      parties run -c parties.toml --shadow --runtime-directory /run/parties-shadow
    """  # noqa: D301 - click reads \b as "leave these lines as they are"
    chosen = _Options(file, **options)
    settings = chosen.first_settings()
    notifier = Notifier()
    status = StatusLine(notifier)
    view = JsonView() if chosen.as_json else _view(plain=chosen.no_live)
    launch = Launch(
        show_errors=bool(ctx.find_root().params.get("debug")),
        shadow=chosen.shadow,
        restarting=lambda: restart_is_queued(own_unit()),
    )
    machine = MachineMonitor()

    def show(message: Mapping[str, Any]) -> None:
        status.update(message)
        view.update({**message, "machine": machine.sample()} if message.get("type") == "tick" else message)

    with view:
        reloads = Reloads(chosen, settings, show, notifier, status)
        ending = follow(settings, show, duration_ns=chosen.duration, launch=launch, reload=reloads)
    code = concluded(ending, reloads.settings, file)
    click.echo(ending.errors, err=True, nl=False)
    if ending.report is not None and not chosen.as_json:
        click.echo(_report_text({**ending.report, "left_in_force": ending.left and not ending.orphaned}))
    return code


@dataclass(frozen=True, slots=True)
class _Options:
    """What the command line says."""

    file: Path
    no_live: bool
    duration: int | None
    record: Path | None
    as_json: bool
    shadow: bool
    runtime_directory: Path | None

    def first_settings(self) -> ControlSettings:
        """The settings to begin with. Raises ConfigError; then nobody goes on with what an earlier daemon left either."""
        try:
            return self.settings()
        except ConfigError:
            for directory in os.environ.get("RUNTIME_DIRECTORY", "").split(":"):  # the service manager's word for it
                if directory:
                    forget(Path(directory))
            raise

    def settings(self, number: int = 1) -> ControlSettings:
        """The configuration, and what the command line changes of it; the ``number``-th in this run. Raises ConfigError."""
        settings = load_for(self.file).settings
        record = str(self.record.absolute()) if self.record is not None else settings.record
        if record and number > 1:  # a record is of one configuration
            record = str(Path(record).with_suffix(f".{number}{Path(record).suffix}"))
        runtime = str(self.runtime_directory.absolute()) if self.runtime_directory is not None else settings.runtime_directory
        return dataclasses.replace(settings, record=record, runtime_directory=runtime)


class Reloads:
    """Reads the configuration again. ``settings`` are the latest that were good."""

    def __init__(
        self,
        options: _Options,
        settings: ControlSettings,
        show: Callable[[Mapping[str, Any]], object],
        notifier: Notifier,
        status: StatusLine,
    ) -> None:
        self.settings = settings
        self._options = options
        self._show = show
        self._notifier = notifier
        self._status = status
        self._number = 1

    def __call__(self) -> ControlSettings | None:
        """The new settings, or None after saying why the earlier ones stay in force."""
        try:
            settings = self._options.settings(self._number + 1)
        except ConfigError as error:
            self._refuse(str(error))
            return None
        for name in ("state_directory", "runtime_directory"):
            before, now = getattr(self.settings, name), getattr(settings, name)
            if before != now:
                self._refuse(f"{name} cannot change from {before} to {now} while it runs; stop it and start it anew")
                return None
        self._number += 1
        self.settings = settings
        self._status.note = ""
        self._notifier.reloading(time.monotonic_ns())
        self._tell("info", f"reloading {self._options.file}")
        return settings

    def _refuse(self, cause: str) -> None:
        self._status.note = "the last reload was refused"
        self._tell("error", f"reload refused, the earlier configuration stays in force: {cause}")

    def _tell(self, level: str, text: str) -> None:
        self._show({"type": "event", "level": level, "text": text})


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
    by_hand = f"parties restore -c {shlex.quote(str(file))}"
    if ending.orphaned:
        try:
            (put_back or _put_back)(settings)
        except (LockError, JournalError) as error:
            raise RunFailedError(f"what was left in force could not be put back: {error}; then run: {by_hand}") from error
    if ending.exit_code == EXIT_OK:
        return EXIT_INTERRUPTED if ending.interrupted else EXIT_OK
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
    if ending.hung:
        return "the control process hung, and the service manager's watchdog had it killed"
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
    if "would_have" in report:
        return _shadow_text(report, report["would_have"])
    became = "everything was left in force for the next run" if report.get("left_in_force") else "everything was put back"
    if report.get("while_starting"):
        return f"stopped while starting; {became}"
    moves = _counts(report.get("moves", {}), "{count} of {name}")
    parts = [
        f"{report.get('ticks', 0)} ticks, {report.get('missed_ticks', 0)} missed",
        f"moves: {moves}; reverts: {report.get('reverts', 0)}; refused: {report.get('refused', 0)}",
        f"controller: {100 * report.get('cpu_fraction_of_core', 0):.2f} % of a core, {report.get('rss_mb', 0)} MB",
        became,
    ]
    return "stopped: " + "; ".join(parts)


def _shadow_text(report: Mapping[str, Any], would_have: Mapping[str, Any]) -> str:
    """A shadow's end, a line for each of what would have been done."""
    lines = [f"stopped: shadow run of {report.get('ticks', 0)} ticks; nothing was written; it would have"]
    rows = {
        **{f"moved, by {by}": f"moves_by_{by}" for by in ("resource", "reason", "giver", "taker")},
        "written, by kind of knob": "knob_writes",
        "of these, writes that may fail or take long": "unknown_writes",
        "been refused": "refused_plans",
    }
    lines += [f"  {words}: {_counts(would_have[key], '{count} x {name}')}" for words, key in rows.items()]
    return "\n".join(lines)


def _counts(counts: Mapping[str, int], pattern: str) -> str:
    return ", ".join(pattern.format(name=name, count=count) for name, count in counts.items() if count) or "none"

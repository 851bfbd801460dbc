"""What the demo shows: a live table on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from workloads.demo.plan import PROGRAMS, Calibration
from workloads.demo.table import violations_table
from workloads.demo.trial import Progress, millicores

LINE_EVERY_S = 10.0
LATE = 1.0


class View:
    """Use as a context manager. ``total_s`` is how long the demo is expected to take."""

    def __init__(self, console: Console, *, total_s: float) -> None:
        self._console = console
        self._total_s = total_s
        self._began = time.monotonic()
        self._said = 0.0
        self.calibrations: Mapping[str, Calibration] = {}
        self.managers: Sequence[str] = ()
        # No thread of its own: it is drawn when there is something new, and processes are started from a single thread.
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(text, highlight=False, markup=False)

    def step(self, text: str) -> None:
        """Something that is under way: a line that is drawn over, where there is a terminal."""
        if self._live:
            self._live.update(Group(self._bar(), Text(text)), refresh=True)
        else:
            self.say(text)

    def watch(self, progress: Progress) -> None:
        """The state of a trial."""
        if self._live:
            self._live.update(Group(self._bar(), self._heading(progress), self._table(progress)), refresh=True)
        elif progress.elapsed_s - self._said >= LINE_EVERY_S or progress.elapsed_s < self._said:
            self._said = progress.elapsed_s
            self.say(self._line(progress))

    def _bar(self) -> ProgressBar:
        return ProgressBar(total=self._total_s, completed=min(self._total_s, time.monotonic() - self._began), width=72)

    def _heading(self, progress: Progress) -> Text:
        names = [f"[{name}]" if name == progress.manager else name for name in self.managers]
        return Text(f"{' '.join(names)}   {progress.elapsed_s:.0f} of {progress.length_s:.0f} s", style="bold")

    def _table(self, progress: Progress) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("", "load", "p99 / target", "CPU given"):
            table.add_column(column, justify="left" if not column else "right")
        held = millicores(progress.tick) if progress.tick else {}
        for name, load, ratio in self._services(progress):
            style = "red" if ratio is not None and ratio > LATE else "green"
            shown = Text("-" if ratio is None else f"{ratio:.2f}", style=style)
            table.add_row(name, f"{load:.0f}/s", shown, _given(held, name))
        for name in ("best-effort", "idle"):
            table.add_row(name, "", "", _given(held, name))
        return table

    def _line(self, progress: Progress) -> str:
        held = millicores(progress.tick) if progress.tick else {}
        parts = [
            f"{name} {load:.0f}/s p99/target {'-' if ratio is None else f'{ratio:.2f}'} CPU {_given(held, name)}"
            for name, load, ratio in self._services(progress)
        ]
        parts.append(f"best-effort CPU {_given(held, 'best-effort')}")
        return f"{progress.manager} {progress.elapsed_s:.0f}/{progress.length_s:.0f} s: {'; '.join(parts)}"

    def _services(self, progress: Progress) -> list[tuple[str, float, float | None]]:
        """Name, load, and latency over target as the daemon saw the last interval, or as the last window has it."""
        rows = []
        for program in PROGRAMS:
            target_ns = self.calibrations[program.name].target_ns
            window = progress.latest.get(program.name)
            latency_ns = progress.tick["services"][program.name]["latency_ns"] if progress.tick else None
            if latency_ns is None and window is not None:
                latency_ns = window.latency_ns()
            rows.append((program.name, window.load_rps if window else 0.0, None if latency_ns is None else latency_ns / target_ns))
        return rows


def _given(held: Mapping[str, int], name: str) -> str:
    return f"{held[name] / 10:.0f} %" if name in held else "-"


def final_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end: a row for each manager and service. It fits 80 columns."""
    table = violations_table(summary, ("violated", "later", "p99 ms", "target", "unsent", "BE ops", "valid"))
    for manager, found in summary["managers"].items():
        for index, (name, service) in enumerate(found["services"].items()):
            target_us = summary["services"][name]["target_us"]
            late = service["p99_us"] is None or service["p99_us"] > target_us
            table.add_row(
                "" if index else manager,
                name,
                f"{service['violations']}/{service['intervals']}",
                f"{service['violations_after_settling']}/{service['intervals_after_settling']}",
                Text("-" if service["p99_us"] is None else f"{service['p99_us'] / 1000:.1f}", style="red" if late else "green"),
                f"{target_us / 1000:.1f}",
                str(service["not_sent"]),
                "" if index else f"{found['best_effort_ops_per_s']:.0f}/s",
                "yes" if service["valid"] else Text("no", style="red"),
            )
    return table

"""How far the experiments are and how long they will take: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from workloads.experiments.experiment import Experiment, Point

LINE_EVERY_S = 15.0
UNKNOWN_UNTIL = 0.01  # of the work: before that the remaining time would be a guess


class ProgressView:
    """Use as a context manager."""

    def __init__(self, console: Console, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock_s = clock_s
        self._began_s = self._said_s = clock_s()
        self._total = self._done = 0.0
        self._name = ""
        self._left = self._points = 0
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(30),
            TextColumn("{task.percentage:3.0f} %  {task.fields[remaining]}", markup=False),
        )
        self._progress = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("", total=None, remaining="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, weight: float) -> None:
        """So much is to be measured."""
        self._total = weight
        self._began_s = self._said_s = self._clock_s()

    def experiment(self, experiment: Experiment, points: int, kept: int) -> None:
        """An experiment begins."""
        self._name, self._points, self._left = experiment.name, points, points - kept
        known = f", {kept} of them finished before" if kept else ""
        self.say(f"{experiment.name}: {experiment.title} ({experiment.figure}); {points} points{known}")
        self._show()

    def done(self, point: Point) -> None:
        """A point was measured."""
        self._done += point.weight
        self._left -= 1
        self._show()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def remaining(self) -> str:
        """How long what is left will take at the pace so far."""
        share = self._done / self._total if self._total else 1.0
        if share < UNKNOWN_UNTIL:
            return "remaining time not known yet"
        return f"{_duration((self._clock_s() - self._began_s) * (1 - share) / share)} left"

    def _show(self) -> None:
        done = self._points - self._left
        text = f"{self._name}: point {done} of {self._points}"
        if self._progress is not None:
            total = self._total or 1.0
            self._progress.update(self._task, description=text, total=total, completed=self._done, remaining=self.remaining())
        elif self._left and self._clock_s() - self._said_s >= LINE_EVERY_S:
            self._said_s = self._clock_s()
            self.say(f"{text}, {self.remaining()}")


def _duration(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"

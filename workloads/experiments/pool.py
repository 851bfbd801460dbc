"""Measures points in processes of their own, or in this one.

Processes are spawned, not forked: this process has threads by then (the executor's own, the progress display's), and a child forked
while another thread holds a lock never gets it. They ignore Ctrl-C, which a terminal sends to all of them; they end when this
process says so or is no more, in the middle of a point if need be.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from typing import NamedTuple

from workloads.experiments.experiment import Experiment, Point, Row

AHEAD = 2  # points handed out for each process: one to work on, one to go on with


class Measured(NamedTuple):
    """A point, its rows, and the CPU time that they took."""

    point: Point
    rows: Sequence[Row]
    cost_s: float


class PointError(Exception):
    """A point could not be measured; ``__cause__`` tells why."""

    def __init__(self, point: Point) -> None:
        super().__init__(f"point {point.name!r} failed")


class Pool:
    """So many processes; with one, points are measured in this process. Made by ``pool``."""

    def __init__(self, executor: ProcessPoolExecutor | None, jobs: int) -> None:
        self._executor = executor
        self._jobs = jobs

    def measure(self, experiment: Experiment, points: Sequence[Point]) -> Iterator[Measured]:
        """Measure points and give each when it is done, in whatever order. Raises PointError."""
        if self._executor is None:
            for point in points:
                try:
                    measured = _measure(experiment.measure, point)
                except Exception as error:
                    raise PointError(point) from error
                yield measured
            return
        yield from self._spread(self._executor, experiment, points)

    def _spread(self, executor: ProcessPoolExecutor, experiment: Experiment, points: Sequence[Point]) -> Iterator[Measured]:
        left = iter(points)
        running: dict[Future[Measured], Point] = {}
        try:
            while True:
                # No more than can be worked on soon, so that little is in the way when something stops us.
                while len(running) < AHEAD * self._jobs and (point := next(left, None)) is not None:
                    running[executor.submit(_measure, experiment.measure, point)] = point
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    point = running.pop(future)
                    try:
                        measured = future.result()
                    except Exception as error:
                        raise PointError(point) from error
                    yield measured
        finally:
            for future in running:
                future.cancel()


@contextmanager
def pool(jobs: int) -> Iterator[Pool]:
    """Processes for a while. Left by an error or Ctrl-C, it ends them at once."""
    if jobs == 1:
        yield Pool(None, 1)
        return
    context = multiprocessing.get_context("spawn")
    heard, end = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare, initargs=(heard,))
    try:
        yield Pool(executor, jobs)
        executor.shutdown()
    finally:
        end.close()  # wakes every process that still runs
        executor.shutdown(cancel_futures=True)
        heard.close()


def _measure(measure: object, point: Point) -> Measured:
    assert callable(measure)  # noqa: S101 - an Experiment's
    began_s = time.process_time()
    rows = measure(point)
    return Measured(point, rows, time.process_time() - began_s)


def _prepare(heard: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(heard,), daemon=True).start()


def _end_with_parent(heard: Connection) -> None:
    """End this process, whatever it does, once the other end of the pipe is closed: by the parent, or with it."""
    wait_for_any([heard])
    os._exit(1)

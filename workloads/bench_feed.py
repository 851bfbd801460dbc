"""What the controller's bench tells the controller: windows of latency as a busy service reports them, after a seeded script.

Messages are made before the run, all but their numbers, so that the feeder takes little of the CPU that it shares with what it
measures.
"""

from __future__ import annotations

import enum
import json
import math
import random
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from parties.histogram import Histogram

WINDOWS_PER_INTERVAL = 5  # of 100 ms at the usual interval of 500 ms
SAMPLES_PER_WINDOW = 1000  # on average; how many there are differs from window to window
PHASE_INTERVALS = 6  # between two changes of the script
VARIANTS = 16  # of the histograms of each level, so that no two windows in a row are alike
_SIGMA = 0.17  # of the logarithm of latency: about 150 occupied buckets for a thousand samples
_Z99 = 2.326  # the normal distribution's 99th percentile
_VIOLATING_PHASES = 0.5


class Level(enum.Enum):
    """How a service fares; the value is its p99 as a part of its target."""

    RELAXED = 0.5  # something is taken from it
    CONTENT = 0.87  # a slack that calls for nothing
    VIOLATING = 1.3  # it is given something


def histogram(p99_ns: int, rng: random.Random, samples: int = SAMPLES_PER_WINDOW) -> Histogram:
    """Log-normal latencies with about this p99."""
    centre = math.log(p99_ns) - _Z99 * _SIGMA
    made = Histogram()
    for _ in range(samples):
        made.add(int(rng.lognormvariate(centre, _SIGMA)))
    return made


class Script:
    """Who fares how in which interval: in half of the phases one service violates, in all of them two are relaxed."""

    def __init__(self, services: int, seed: int) -> None:
        self._services = services
        self._rng = random.Random(seed)  # noqa: S311 - a run has to repeat, not to be secret
        self._phases: list[tuple[Level, ...]] = []

    def levels(self, interval: int) -> tuple[Level, ...]:
        """The level of each service in an interval."""
        phase = interval // PHASE_INTERVALS
        while len(self._phases) <= phase:
            self._phases.append(self._next())
        return self._phases[phase]

    def _next(self) -> tuple[Level, ...]:
        levels = [Level.CONTENT] * self._services
        for index in self._rng.sample(range(self._services), min(2, self._services)):
            levels[index] = Level.RELAXED
        if self._rng.random() < _VIOLATING_PHASES:
            levels[self._rng.randrange(self._services)] = Level.VIOLATING
        return tuple(levels)


class Feed:
    """One client for each service, as ``parties.client`` would send, but with windows made beforehand. A context manager."""

    def __init__(self, path: Path, services: Sequence[str], *, target_ns: int, window_ns: int, seed: int) -> None:
        self._path = path
        self._services = services
        self._window_ns = window_ns
        self._script = Script(len(services), seed)
        rng = random.Random(seed)  # noqa: S311 - as above
        self._texts = {level: [_text(histogram(int(level.value * target_ns), rng)) for _ in range(VARIANTS)] for level in Level}
        self._links: list[socket.socket] = []
        self._sequence = 0
        self.lost = 0

    def __enter__(self) -> Self:
        for _ in self._services:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._links.append(link)
            link.connect(str(self._path))
            link.setblocking(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for link in self._links:
            link.close()

    def next_window(self) -> None:
        """Sleep until the window ends, on a multiple of its length as clients' windows do, and send it for every service."""
        now_ns = time.monotonic_ns()
        end_ns = (now_ns // self._window_ns + 1) * self._window_ns
        time.sleep((end_ns - now_ns) / 1e9)
        levels = self._script.levels(self._sequence // WINDOWS_PER_INTERVAL)
        for index, (service, level) in enumerate(zip(self._services, levels, strict=True)):
            texts = self._texts[level]
            text = texts[(self._sequence + index) % len(texts)]
            self._send(self._links[index], message(service, self._sequence, end_ns - self._window_ns, end_ns, text))
        self._sequence += 1

    def _send(self, link: socket.socket, data: bytes) -> None:
        try:
            link.send(data)
        except BlockingIOError:
            self.lost += 1


def _samples(rng: random.Random) -> int:
    """Requests in a window of Poisson arrivals, near enough."""
    return round(rng.gauss(SAMPLES_PER_WINDOW, math.sqrt(SAMPLES_PER_WINDOW)))


def _text(values: Histogram) -> str:
    return f'"scheduled":{values.count},"sent":{values.count},"completed":{values.count},"failed":0,"unsent":0,"histogram":' + (
        json.dumps(values.encode(), separators=(",", ":"))
    )


def message(service: str, sequence: int, start_ns: int, end_ns: int, text: str) -> bytes:
    """A message of the histogram socket; ``text`` has the fields that depend on the histogram."""
    return (
        f'{{"version":1,"service":"{service}","client":"bench","sequence":{sequence},"window_start_ns":{start_ns},'
        f'"window_end_ns":{end_ns},"outstanding":0,"oldest_outstanding_ns":0,{text}}}'
    ).encode()

"""What a service has not got to: requests in the order of their arrival, as a fluid."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from parties.model import NS_PER_S

_LEAST_PART: Final = 1e-12
NOT_QUEUED: Final = (0.0, _LEAST_PART, 0.0, 0.0)  # the ``figures`` of a window of which nobody waited, but for how many there were


class Flow(NamedTuple):
    """What came of one window.

    Of the ``completed`` requests the fraction ``waited`` stood in the backlog, the first of them for ``first_s``, the last for
    ``last_s``, and between them evenly. ``oldest_s`` is the age of the oldest that is left.
    """

    sent: int
    unsent: int
    completed: int
    waited: float
    first_s: float
    last_s: float
    outstanding: int
    oldest_s: float

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """How many were completed, the fraction of them that waited (never 0), the shortest wait, the longest less it, in ns."""
        first_ns, last_ns = self.first_s * NS_PER_S, self.last_s * NS_PER_S
        return self.completed, max(self.waited, _LEAST_PART), min(first_ns, last_ns), abs(first_ns - last_ns)


class Backlog:
    """The queue of one tenant. ``longest_wait_s`` is the wait at which clients cease to send."""

    def __init__(self, longest_wait_s: float) -> None:
        self._longest_wait_s = longest_wait_s
        self._chunks: deque[tuple[float, float, int]] = deque()  # arrived from, to (s), how many
        self._part = 0.0  # of a request that is done already
        self.count = 0

    def put(self, arrivals_s: Iterable[float]) -> None:
        """Add requests by their arrival, ascending and later than what is there."""
        for arrival_s in arrivals_s:
            self._chunks.append((arrival_s, arrival_s, 1))
            self.count += 1

    def take(self) -> list[float]:
        """Take out everything: when each arrived, ascending."""
        arrivals_s = [
            start_s + (end_s - start_s) * (number + 0.5) / count
            for start_s, end_s, count in self._chunks
            for number in range(count)
        ]
        self._chunks.clear()
        self.count, self._part = 0, 0.0
        return arrivals_s

    def advance(self, arrived: int, capacity_rps: float, start_s: float, end_s: float) -> Flow:
        """One window, in which requests arrive evenly and are answered as fast as possible."""
        length_s = end_s - start_s
        chunks, before = self._chunks, self.count
        served = capacity_rps * length_s if capacity_rps < math.inf else float(before + arrived)
        first_s = start_s - chunks[0][0] if before else 0.0
        room = self._room(served, capacity_rps, first_s)
        sent = arrived if arrived <= room else max(0, int(room))
        if sent:
            chunks.append((start_s, end_s, sent))
        waiting = before + sent
        budget = served + self._part
        completed = waiting if budget >= waiting else int(budget)
        self._drop(completed)
        self.count = left = waiting - completed
        if left:
            self._part = budget - completed
            oldest_s = end_s - chunks[0][0]
            return Flow(sent, arrived - sent, completed, 1.0, first_s, oldest_s, left, oldest_s)
        self._part = 0.0
        waited = min(1.0, before * served / ((served - sent) * completed)) if completed and served > sent else 1.0
        return Flow(sent, arrived - sent, completed, waited, first_s, 0.0, 0, 0.0)

    def _room(self, served: float, capacity_rps: float, age_s: float) -> float:
        """How many more can come in a window before the wait is too long; ``age_s`` is that of the oldest."""
        if capacity_rps <= 0:
            return 0.0 if age_s > self._longest_wait_s else math.inf
        return capacity_rps * self._longest_wait_s + served - self.count

    def _drop(self, number: int) -> None:
        """Take the first so many out."""
        chunks = self._chunks
        while number:
            start_s, end_s, count = chunks[0]
            if count > number:
                chunks[0] = (start_s + (end_s - start_s) * number / count, end_s, count - number)
                return
            chunks.popleft()
            number -= count

"""What a service has not got to: requests in the order of their arrival, as a fluid."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

_LEAST_PART: Final = 1e-12


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
        """How many were completed, the fraction of them that waited, never nothing, and the first and the last wait in s."""
        return self.completed, max(self.waited, _LEAST_PART), self.first_s, self.last_s


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
        served = capacity_rps * length_s if math.isfinite(capacity_rps) else float(self.count + arrived)
        first_s = self._age_s(start_s)
        before = self.count
        sent = min(arrived, self._room(served, capacity_rps, start_s))
        if sent:
            self._chunks.append((start_s, end_s, sent))
            self.count += sent
        budget = served + self._part
        completed = min(self.count, int(budget))
        self._drop(completed)
        if self.count:
            self._part = budget - completed
            waited = 1.0
        else:
            self._part = 0.0
            waited = min(1.0, before * served / ((served - sent) * completed)) if completed and served > sent else 1.0
        oldest_s = self._age_s(end_s)
        return Flow(sent, arrived - sent, completed, waited, first_s, oldest_s, self.count, oldest_s)

    def _age_s(self, now_s: float) -> float:
        return max(0.0, now_s - self._chunks[0][0]) if self._chunks else 0.0

    def _room(self, served: float, capacity_rps: float, now_s: float) -> int:
        """How many more can come in a window before the wait is too long."""
        if capacity_rps <= 0:
            return 0 if self._age_s(now_s) > self._longest_wait_s else self.count + (1 << 62)
        room = capacity_rps * self._longest_wait_s + served - self.count
        return max(0, int(min(room, 1e18)))

    def _drop(self, number: int) -> None:
        """Take the first so many out."""
        self.count -= number
        while number:
            start_s, end_s, count = self._chunks[0]
            if count > number:
                self._chunks[0] = (start_s + (end_s - start_s) * number / count, end_s, count - number)
                return
            self._chunks.popleft()
            number -= count

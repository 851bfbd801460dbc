"""Controllers with a period of their own: when one is due, and what the tail was since its last turn."""

from __future__ import annotations

import math
import statistics

ROUNDS = 40  # halvings in the search for a period's tail


class Period:
    """When a controller is due: at once, and then every so often."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._due_ns: int | None = None

    def due(self, now_ns: int) -> bool:
        """Whether it is time for a turn."""
        return self._due_ns is None or now_ns >= self._due_ns

    def done(self, now_ns: int) -> None:
        """The controller had its turn. From turn to turn the schedule keeps its phase, unless a turn was missed."""
        following_ns = (now_ns if self._due_ns is None else self._due_ns) + self._period_ns
        self._due_ns = following_ns if following_ns > now_ns else now_ns + self._period_ns

    def now(self, now_ns: int) -> bool:
        """Whether it is due; if so, this was its turn."""
        if not self.due(now_ns):
            return False
        self.done(now_ns)
        return True


class PeriodTail:
    """A service's tail over all intervals since a controller's last turn.

    Each interval gives its own percentile. What is beyond a latency in all of them together is estimated as if each had an
    exponential tail, and the period's percentile is where that is as much as the percentile leaves. A mean or median of percentiles
    would hide few bad intervals among many good ones, which the requests of all of them together do not.
    """

    def __init__(self, percentile: float) -> None:
        self._left = 1.0 - percentile / 100.0
        self._seen: list[float] = []  # latency over target

    def see(self, slack: float | None) -> None:
        """An interval; None where it tells nothing."""
        if slack is not None:
            self._seen.append(1.0 - slack)

    def take_slack(self) -> float | None:
        """The slack of the whole period; None if nothing was seen. Starts anew."""
        seen, self._seen = self._seen, []
        if not seen:
            return None
        if seen.count(math.inf) >= self._left * len(seen):
            return -math.inf
        low, high = min(seen), max(latency for latency in seen if latency < math.inf)
        while self._beyond(high, seen) > self._left:
            low, high = high, 2 * high + 1
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._beyond(middle, seen) > self._left else (low, middle)
        return 1.0 - high

    def _beyond(self, latency: float, seen: list[float]) -> float:
        """The share of all requests that took longer."""
        return statistics.fmean(self._left ** (latency / tail) if tail > 0 else 0.0 for tail in seen)

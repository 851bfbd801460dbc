"""What the load generator saw, interval by interval, and what counts as a violation.

The generator reports windows of 100 ms, as the daemon's signal wants them. They are merged into intervals here, histograms and not
percentiles, and judged by the figures of the generator alone: the daemon has no part in its own grading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from parties.histogram import Histogram, HistogramError

PERCENTILE = 99.0
NS_PER_S = 1_000_000_000


class ReportError(ValueError):
    """A line of the load generator that cannot be what it says it is."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time as the load generator reports it; times are of CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    scheduled: int
    sent: int
    completed: int
    failed: int
    unsent: int
    outstanding: int  # at its end
    oldest_outstanding_ns: int
    histogram: Histogram = field(default_factory=Histogram)

    def latency_ns(self, percentile: float = PERCENTILE) -> int | None:
        """The percentile of the answers that came in the window; None if none came."""
        return self.histogram.percentile(percentile)

    def stalled(self) -> bool:
        """Whether requests waited, or were given up, and none was answered."""
        return self.completed == 0 and (self.outstanding > 0 or self.unsent > 0)

    def violated(self, target_ns: int, percentile: float = PERCENTILE) -> bool:
        """Whether the percentile is over the target, a request went unsent, or the oldest one out is older than the target."""
        latency_ns = self.latency_ns(percentile)
        late = latency_ns is not None and latency_ns > target_ns
        return late or self.unsent > 0 or self.oldest_outstanding_ns > target_ns

    @property
    def load_rps(self) -> float:
        """Requests that were due, per second."""
        return self.scheduled * NS_PER_S / (self.end_ns - self.start_ns)


_COUNTS = ("scheduled", "sent", "completed", "failed", "unsent", "outstanding", "oldest_outstanding_ns")


def parse_window(record: Mapping[str, object]) -> Window:
    """The window of a report line of kind ``interval``. Raises ReportError."""
    try:
        start_ns, end_ns = (_whole(record, name) for name in ("window_start_ns", "window_end_ns"))
        counts = {name: _whole(record, name) for name in _COUNTS}
        histogram = Histogram.decode(record["response_histogram"])
    except (KeyError, HistogramError) as error:
        raise ReportError(f"interval line: {error}") from error
    if end_ns <= start_ns:
        raise ReportError(f"interval line: a window from {start_ns} to {end_ns}")
    return Window(start_ns, end_ns, **counts, histogram=histogram)


def parse_line(line: str) -> dict[str, object]:
    """One JSON line of the load generator. Raises ReportError."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ReportError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(record, dict) or record.get("version") != 1:
        raise ReportError(f"not a version 1 report line: {line[:80]!r}")
    return record


def merge(windows: Sequence[Window]) -> Window:
    """One window out of several that follow each other; what is outstanding is so at the end of the last."""
    last = windows[-1]
    histogram = Histogram()
    for window in windows:
        histogram.merge(window.histogram)
    return Window(
        windows[0].start_ns,
        last.end_ns,
        sum(window.scheduled for window in windows),
        sum(window.sent for window in windows),
        sum(window.completed for window in windows),
        sum(window.failed for window in windows),
        sum(window.unsent for window in windows),
        last.outstanding,
        last.oldest_outstanding_ns,
        histogram,
    )


def intervals(windows: Iterable[Window], *, origin_ns: int, length_ns: int, count: int) -> tuple[Window, ...]:
    """The windows merged into ``count`` intervals of equal length from the origin on.

    A window belongs to the interval that its middle lies in; an interval that no window lies in is left out, so that the number
    returned tells of a generator that fell silent.
    """
    groups: list[list[Window]] = [[] for _ in range(count)]
    for window in windows:
        position = ((window.start_ns + window.end_ns) // 2 - origin_ns) // length_ns
        if 0 <= position < count:
            groups[position].append(window)
    return tuple(merge(sorted(group, key=lambda window: window.start_ns)) for group in groups if group)


def _whole(record: Mapping[str, object], name: str) -> int:
    value = record[name]
    if type(value) is not int or value < 0:
        raise ReportError(f"interval line: {name} is {value!r}, expected a whole number")
    return value

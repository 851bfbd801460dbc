"""What a run was like for its services: measured at the clients, in the same way whatever manages the node.

The judgement of an interval does not hang on the signal's settings, which are a part of what is compared. An interval is *in
violation* where the percentile of its own requests is over the target: where more of them were over the target than the percentile
leaves room for. With fewer requests than support the percentile (100 for p99) earlier intervals are added, 10 s at most. Where even
that is too few, an interval is in violation only if the lower confidence bound is over the target, or if nothing completes and the
oldest request has waited for longer than the target and the interval. Requests that failed, were never sent, or are known to have
waited too long already count as over the target.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from monitors.histogram_message import Window
from parties.histogram import Histogram, bucket, rank_bounds, rank_of, samples_needed, tail_buckets, upper
from parties.model import NS_PER_S, QosTarget

LONGEST_STRETCH_NS = 10 * NS_PER_S  # the signal's longest window (``parties.settings.SignalSettings``)
CONFIDENCE = 0.95  # the same, of the lower bound


class ServiceMeasure:
    """One service's intervals of ``interval_ns`` each, as lists with one entry for each.

    ``samples`` counts the requests of an interval and ``over`` those over the target among them; ``violated`` is the judgement.
    ``latency_ns`` has the percentile of the stretch that was judged, if ``latencies`` are wanted (they cost more than all else
    here); None where nothing was answered.
    """

    def __init__(self, target: QosTarget, interval_ns: int, *, latencies: bool = True) -> None:
        self.target = target
        self.samples: list[int] = []
        self.over: list[int] = []
        self.violated: list[bool] = []
        self.latency_ns: list[int | None] = []
        self._interval_ns = interval_ns
        self._latencies = latencies
        self._needed = samples_needed(target.percentile)
        self._longest = max(1, LONGEST_STRETCH_NS // interval_ns)
        # A latency is known as the upper end of its bucket, as everywhere.
        index = bucket(target.latency_ns)
        self._limit = index if upper(index) > target.latency_ns else index + 1
        self._histograms: list[list[Histogram]] = []  # of the latest intervals, as many as may be put together

    def take(self, windows: Sequence[Window]) -> None:
        """Take in the windows of one interval, in the order of their ends."""
        samples = over = completed = 0
        limit = self._limit
        for window in windows:
            if lost := window.failed + window.unsent:
                samples += lost
                over += lost
            if window.completed:
                completed += window.completed
                buckets, counts = window.histogram.columns()
                if buckets[-1] >= limit:
                    over += sum(counts[bisect_left(buckets, limit) :])
        samples += completed
        oldest_ns = windows[-1].oldest_outstanding_ns if windows else 0
        if oldest_ns > self.target.latency_ns:
            samples, over = samples + 1, over + 1
        self.samples.append(samples)
        self.over.append(over)
        stuck = not completed and oldest_ns > self.target.latency_ns and oldest_ns >= self._interval_ns
        first, count, late = self._stretch()
        self.violated.append(stuck or self._over_target(count, late))
        if self._latencies:
            self._note_latency(windows, completed, len(self.samples) - first)

    def met_over(self, first: int, last: int | None = None, *, spared: int = 0) -> bool:
        """Whether the percentile of all requests of these intervals together is within the target.

        ``spared`` intervals are left out of it, those with the most late requests.
        """
        kept = sorted(zip(self.over[first:last], self.samples[first:last], strict=True), reverse=True)[spared:]
        late, count = (sum(numbers) for numbers in zip(*kept, strict=True)) if kept else (0, 0)
        return late <= count - rank_of(self.target.percentile, count) if count else True

    def _stretch(self) -> tuple[int, int, int]:
        """The first interval to judge the last one by, and what requests there were since and how many of them over the target."""
        first = len(self.samples) - 1
        count, late = self.samples[first], self.over[first]
        earliest = max(0, first + 1 - self._longest)
        while count < self._needed and first > earliest:
            first -= 1
            count += self.samples[first]
            late += self.over[first]
        return first, count, late

    def _over_target(self, count: int, late: int) -> bool:
        if not late:
            return False
        if count >= self._needed:
            return late > count - rank_of(self.target.percentile, count)
        low, _ = rank_bounds(self.target.percentile, count, CONFIDENCE)
        return low is not None and low < count and late > count - low

    def _note_latency(self, windows: Sequence[Window], completed: int, intervals: int) -> None:
        """Note the percentile of so many intervals, the last of which has these windows and answers."""
        histograms = [window.histogram for window in windows if window.completed]
        self._histograms.append(histograms)
        del self._histograms[: -self._longest]
        if intervals > 1:
            histograms = [histogram for some in self._histograms[-intervals:] for histogram in some]
            completed = sum(histogram.count for histogram in histograms)
        if not completed:
            self.latency_ns.append(None)
            return
        depth = completed - rank_of(self.target.percentile, completed) + 1
        self.latency_ns.append(upper(tail_buckets(histograms, (depth,))[0]))

"""What one service's clients reported, in bins of time, and what a stretch of bins says of a percentile.

A bin is one sub-interval of CLOCK_MONOTONIC. Windows of all clients are summed in the bin that their end lies in, so that the order
in which they arrive makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from monitors.histogram_message import Window
from parties.histogram import Histogram, median_percentile, ranks, samples_needed, tail_buckets, upper
from parties.model import QosTarget

LIKELY = 0.5
"""Two-sided confidence at which too few samples are acted on if they tell of a violation: one in four is a false alarm at most."""


@dataclass(slots=True)
class Bin:
    """The sums of the windows that ended in one sub-interval; their histograms are kept as they came."""

    histograms: list[Histogram] = field(default_factory=list)
    completed: int = 0  # good answers
    scheduled: int = 0
    failed: int = 0
    unsent: int = 0

    @classmethod
    def of(cls, window: Window) -> Bin:
        """The bin of a first window, which is the only one where a service has one client."""
        completed = window.completed
        return cls([window.histogram] if completed else [], completed, window.scheduled, window.failed, window.unsent)

    def add(self, window: Window) -> None:
        """Add one window's samples and counts."""
        self.completed += window.completed
        if window.completed:
            self.histograms.append(window.histogram)
        self.scheduled += window.scheduled
        self.failed += window.failed
        self.unsent += window.unsent


class Stretch:
    """Bins of neighbouring sub-intervals, oldest first, with their sums. Sub-intervals in which nothing ended need not be there.

    ``length`` is how many sub-intervals they are, by default as many as there are bins. ``grown``: beyond the interval, for want of
    samples.
    """

    __slots__ = ("bins", "completed", "failed", "grown", "histograms", "length", "scheduled", "unsent")

    def __init__(self, bins: Sequence[Bin], length: int | None = None, *, grown: bool = False) -> None:
        self.bins = bins
        self.length = len(bins) if length is None else length
        self.grown = grown
        histograms: list[Histogram] = []
        completed = scheduled = failed = unsent = 0
        for item in bins:
            histograms += item.histograms
            completed += item.completed
            scheduled += item.scheduled
            failed += item.failed
            unsent += item.unsent
        self.histograms = histograms
        self.completed = completed
        self.scheduled = scheduled
        self.failed = failed
        self.unsent = unsent


class Estimate(NamedTuple):
    """A percentile in ns (None of nothing), and between which order statistics the true one lies (None is an open side)."""

    latency_ns: int | None
    low_ns: int | None
    high_ns: int | None


class Sample:
    """The latencies of a stretch of bins, with those that are still to come.

    A request that will never be sent is a sample larger than any other. Of those outstanding only the oldest's age is known, for
    each client: where it is over the percentile already it is one more sample, with its age as the least it can become; the rest
    may still turn out fast and are not counted.
    """

    __slots__ = ("_ages_ns", "_answered", "_histograms", "_target", "_unsent", "count")

    def __init__(self, stretch: Stretch, target: QosTarget, ages_ns: Sequence[int] = (), *, unsent: bool = True) -> None:
        self._target = target
        self._ages_ns = ages_ns
        self._histograms = stretch.histograms
        self._answered = stretch.completed  # and known to take longer
        self._unsent = stretch.unsent if unsent else 0
        self.count = self._answered + self._unsent
        if ages_ns and self.count:
            self._add_late(ages_ns)

    def _add_late(self, ages_ns: Sequence[int]) -> None:
        """Count the ages that are over the percentile of the answered requests."""
        depth = self._answered + 1 - ranks(self._target.percentile, self.count, None).rank
        if depth < 1:
            return
        answered_ns = upper(tail_buckets(self._histograms, (depth,))[0])
        late = Histogram()
        for age_ns in ages_ns:
            if age_ns > answered_ns:
                late.add(age_ns)
        if late.count:
            self._histograms = [*self._histograms, late]
            self._answered += late.count
            self.count += late.count

    @property
    def largest_ns(self) -> int:
        """The largest latency or age that is known."""
        found = [histogram.buckets()[-1] for histogram in self._histograms if histogram.count]
        return max(upper(max(found)) if found else 0, *self._ages_ns, 0)

    @property
    def supported(self) -> bool:
        """Whether there are enough samples for the percentile to have one beyond it."""
        return self.count >= samples_needed(self._target.percentile)

    def estimate(self, confidence: float | None = None) -> Estimate:
        """The target's percentile, and its bounds if a confidence is given.

        Where the percentile or its lower bound belongs to a request that was never sent there is no number. What stands for it is
        over the target and over everything seen, and rises with the share of such requests, so that better and worse can still be
        told apart. An upper bound that was never sent is no bound.
        """
        if not self.count:
            return Estimate(None, None, None)
        rank, low, high = ranks(self._target.percentile, self.count, confidence)
        top = self._answered + 1
        if low is None or (rank if high is None else high) >= top:
            high_ns = None if high is None or high >= top else self._at(high)
            return Estimate(self._at(rank), None if low is None else self._at(low), high_ns)
        # Nearly always; all at once, as looking from the top down for each would begin anew.
        over, at, under = tail_buckets(self._histograms, (1 if high is None else top - high, top - rank, top - low))
        return Estimate(upper(at), upper(under), None if high is None else upper(over))

    def latency_ns(self) -> int | None:
        """The target's percentile; None of nothing."""
        return self.estimate().latency_ns

    def violates(self) -> bool:
        """Whether more samples are over the target than come of a met one in one of four such windows: for too few samples."""
        low = ranks(self._target.percentile, self.count, LIKELY).low
        return low is not None and self._at(low) > self._target.latency_ns

    def _at(self, rank: int) -> int:
        """The latency at a rank in ns, or what stands for it."""
        depth = self._answered + 1 - rank
        if depth < 1:
            return beyond(self._target, self.largest_ns, self._unsent / self.count)
        return upper(tail_buckets(self._histograms, (depth,))[0])


def beyond(target: QosTarget, known_ns: int, share: float) -> int:
    """What stands for a latency without a number: the worst that is known, at least the target, more with the share affected."""
    return int(max(known_ns, target.latency_ns) * (1 + share))


def vote(stretch: Stretch, target: QosTarget, most: int, *, unsent: bool = True) -> int | None:
    """The median over sub-intervals of their percentiles in ns; None if not even three parts of the bins have enough samples each.

    A threshold is passed by a majority of the parts exactly when the median passes it, so one number answers the vote at every
    threshold. Neighbours are put together (5 parts, then 3) until each part supports the percentile. There are at most ``most``.
    Of the stretch all bins have to be there, empty ones too.
    """
    needed = samples_needed(target.percentile)
    unsent = unsent and stretch.unsent > 0
    bins = stretch.bins
    counts = [item.completed + item.unsent if unsent else item.completed for item in bins]
    parts = min(most, len(bins))
    for odd in range(parts - 1 + parts % 2, 2, -2):
        if odd == len(bins) == len(stretch.histograms) and not unsent and min(counts) >= needed:
            return median_percentile(stretch.histograms, target.percentile)  # the usual case: of each bin by itself
        edges = [part * len(bins) // odd for part in range(odd + 1)]
        slices = [slice(first, last) for first, last in pairwise(edges)]
        if min(sum(counts[part]) for part in slices) >= needed:
            samples = [Sample(Stretch(bins[part]), target, unsent=unsent) for part in slices]
            return sorted(sample.latency_ns() or 0 for sample in samples)[odd // 2]
    return None

"""Histograms of latency in fixed log-linear buckets, and what their order statistics support.

The buckets are those of ``docs/histogram-socket.md``: nanoseconds, 128 to each power of two, relative width at most 1/128. Fixed
buckets make merging a sum, so that percentiles are taken once, of everything, and never averaged. Applications import this module
with the client, so it depends on the standard library alone.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import ceil
from statistics import NormalDist
from typing import NamedTuple

MAX_VALUE = (1 << 62) - 1
LAST_BUCKET = 7167

_ROUNDING = 1e-9  # 99.9 / 100 * 1000 must be the 999th of a thousand, not the 1000th
_EXACT_VARIANCE = 100.0  # see ``rank_bounds``


class HistogramError(ValueError):
    """An encoded histogram that breaks the format."""


def bucket(value: int) -> int:
    """The bucket of a value in ns, 0 to ``MAX_VALUE``."""
    shift = value.bit_length() - 8
    return value if shift <= 0 else (shift << 7) + (value >> shift)


def lower(index: int) -> int:
    """The smallest value of a bucket, in ns."""
    shift = max(0, (index >> 7) - 1)
    return (index - (shift << 7)) << shift


def upper(index: int) -> int:
    """The largest value of a bucket, in ns: what a value in it is reported as."""
    shift = (index >> 7) - 1
    return ((index - (shift << 7) + 1) << shift) - 1 if shift > 0 else index


class Histogram:
    """How many values fell into which bucket; sparse. ``count`` is their sum. Change it through its methods only.

    What was decoded stays in two compact arrays, a sixth of a dictionary's memory, until somebody adds to it.
    """

    __slots__ = ("_buckets", "_counts", "_values", "count")

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts: dict[int, int] | None = dict(counts) if counts else {}
        self._buckets: Sequence[int] | None = None  # ascending, once someone asked
        self._values: Sequence[int] = ()  # their counts
        self.count = sum(self._counts.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Histogram({self.counts!r})"

    @property
    def counts(self) -> dict[int, int]:
        """The count of each bucket that is not empty; to be read only."""
        if self._counts is None:
            self._counts = dict(zip(*self.columns(), strict=True))
        return self._counts

    def add(self, value: int, count: int = 1) -> None:
        """Count a value in ns; what is out of range counts in the first or the last bucket."""
        counts, index = self.counts, bucket(min(max(value, 0), MAX_VALUE))
        counts[index] = counts.get(index, 0) + count
        self.count += count
        self._buckets = None

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts to this one's."""
        counts = self.counts
        for index, count in other.counts.items():
            counts[index] = counts.get(index, 0) + count
        self.count += other.count
        self._buckets = None

    def buckets(self) -> Sequence[int]:
        """The buckets that are not empty, ascending."""
        if self._buckets is None:
            counts = self.counts
            self._buckets = sorted(counts)
            self._values = [counts[index] for index in self._buckets]
        return self._buckets

    def columns(self) -> tuple[Sequence[int], Sequence[int]]:
        """The buckets that are not empty, ascending, and their counts."""
        buckets = self._buckets
        return (self.buckets() if buckets is None else buckets), self._values

    def largest(self, keep: int) -> int:
        """The bucket of the ``keep``-th largest value, or the lowest one if there are fewer; not to be asked of nothing."""
        buckets, counts = self.columns()
        position = len(buckets)
        while keep > 0 and position:
            position -= 1
            keep -= counts[position]
        return buckets[position]

    def percentile(self, percentile: float) -> int | None:
        """The nearest-rank percentile (99.0 for p99) in ns, as its bucket's upper end; None of nothing."""
        if not self.count:
            return None
        return upper(self.largest(self.count - rank_of(percentile, self.count) + 1))

    @classmethod
    def of_buckets(cls, buckets: Sequence[int], counts: Sequence[int]) -> Histogram:
        """The histogram of these buckets, ascending and none twice, with their counts, each at least 1.

        For whoever makes many small ones: nothing is checked, and both sequences are kept as they are, so leave them alone.
        """
        histogram = cls.__new__(cls)
        histogram._counts, histogram._buckets, histogram._values = None, buckets, counts  # noqa: SLF001 - its own
        histogram.count = sum(counts)
        return histogram

    def encode(self) -> list[int]:
        """The flat form of a message: ``[bucket, count, bucket, count, ...]``, buckets ascending."""
        return list(chain.from_iterable(zip(*self.columns(), strict=True)))

    @classmethod
    def decode(cls, flat: object) -> Histogram:
        """The histogram of a flat form as JSON gives it. Raises HistogramError saying which entry breaks the format.

        True and False pass for 1 and 0, as everywhere in Python; who parses JSON keeps them out.
        """
        if not isinstance(flat, list):
            raise HistogramError("must be an array [bucket, count, bucket, count, ...]")
        indexes, counts = flat[::2], flat[1::2]
        try:
            buckets, values = array("I", indexes), array("Q", counts)  # refuse what is not an integer, negative or far too large
        except (TypeError, OverflowError):
            raise HistogramError(_first_fault(flat)) from None
        # Sorted and none twice: ascending, checked without a loop in Python.
        ascending = indexes == sorted(indexes) and len(set(indexes)) == len(indexes)
        if not ascending or len(indexes) != len(counts) or not all(counts) or indexes[-1:] > [LAST_BUCKET]:
            raise HistogramError(_first_fault(flat))
        count = sum(counts)
        if count > MAX_VALUE:
            raise HistogramError(f"its counts add up to more than {MAX_VALUE}")
        histogram = cls.__new__(cls)
        histogram._counts, histogram._buckets, histogram._values = None, buckets, values  # noqa: SLF001 - its own
        histogram.count = count
        return histogram


def _first_fault(flat: Sequence[object]) -> str:
    """Name the first wrong entry of a flat form that is known to have one."""
    before = -1
    for position, value in enumerate(flat):
        if type(value) is not int:
            return f"entry {position} is not an integer"
        if position % 2:
            if not 0 < value <= MAX_VALUE:
                return f"entry {position} is the count {value}; it must be from 1 to {MAX_VALUE}"
        elif not before < value <= LAST_BUCKET:
            return f"entry {position} is bucket {value}; buckets must ascend, from 0 to {LAST_BUCKET}"
        else:
            before = value
    return "the last bucket has no count"


def tail_buckets(histograms: Iterable[Histogram], depths: Sequence[int]) -> list[int]:
    """The buckets of the largest values of several histograms together, by depth: 1 is the largest of all.

    ``depths`` ascend, from 1 to the number of values. No more is looked at than lies above the last of them, which is a hundredth
    of the work where a tail percentile is wanted.
    """
    columns: list[tuple[Sequence[int], Sequence[int]]] = []
    heads = []  # of each histogram: its largest entry that was not taken yet; the largest of all is the last
    for histogram in histograms:
        buckets = histogram._buckets  # noqa: SLF001 - a call less
        if buckets is None:
            buckets = histogram.buckets()
        if buckets:
            last = len(buckets) - 1
            heads.append((buckets[last], len(columns), last))
            columns.append((buckets, histogram._values))  # noqa: SLF001 - as above
    heads.sort()
    found, taken, largest = [], 0, 0
    for depth in depths:
        while taken < depth:
            largest, number, position = heads.pop()
            buckets, counts = columns[number]
            taken += counts[position]
            if position:
                position -= 1
                insort(heads, (buckets[position], number, position))
        found.append(largest)
    return found


def median_percentile(histograms: Iterable[Histogram], percentile: float) -> int:
    """The median of the histograms' percentiles in ns; there are some, and none is empty.

    As from ``Histogram.percentile``, in a third of the time, for the vote asks this of every service in every interval.
    """
    part = percentile / 100
    found = []
    for histogram in histograms:
        buckets = histogram._buckets  # noqa: SLF001 - as in ``tail_buckets``
        if buckets is None:
            buckets = histogram.buckets()
        counts, count = histogram._values, histogram.count  # noqa: SLF001 - as above
        above = count - (ceil(part * count - _ROUNDING) or 1)  # count less rank: see ``rank_of``
        position = len(buckets)
        while above >= 0:
            position -= 1
            above -= counts[position]
        found.append(buckets[position])
    found.sort()
    return upper(found[len(found) // 2])


def rank_of(percentile: float, count: int) -> int:
    """The nearest rank of a percentile among ``count`` samples, 1 to ``count``."""
    rank = max(1, ceil(percentile / 100 * count - _ROUNDING))
    return rank if rank < count else count  # noqa: FURB136 - a call less: this is done for every sub-interval


class Ranks(NamedTuple):
    """The rank of a percentile and of its bounds, as ``rank_of`` and ``rank_bounds`` give them."""

    rank: int
    low: int | None
    high: int | None


@lru_cache(maxsize=2048)
def ranks(percentile: float, count: int, confidence: float | None) -> Ranks:
    """Which ranks to look at; without a confidence there are no bounds. Kept, as a service's counts come again and again."""
    low, high = (None, None) if confidence is None else rank_bounds(percentile, count, confidence)
    return Ranks(rank_of(percentile, count), low, high)


@lru_cache(maxsize=64)
def samples_needed(percentile: float) -> int:
    """The fewest samples that support a percentile: as many as let one be expected above it (100 for p99)."""
    above = 1 - percentile / 100
    return math.ceil(1 / above - 1e-6) if above > _ROUNDING else MAX_VALUE


def rank_bounds(percentile: float, count: int, confidence: float) -> tuple[int | None, int | None]:
    """The ranks between whose samples the true percentile lies, at this two-sided confidence, whatever the distribution.

    The number of samples at or under the true percentile is binomial(count, p). The lower rank is the largest l with
    P(below < l) <= (1 - confidence) / 2, the upper one the smallest u with P(below >= u) <= the same; None is an open side, for
    which the sample is too small (p99 at 95 %: no upper bound under 368 samples).

    Exact while the binomial's variance is at most 100. Above that the normal quantile with the Cornish-Fisher term for the skew
    gives the same rank in all but a few cases, and is one off in those (tested): a tenth of a standard deviation.
    """
    p = percentile / 100
    tail = (1 - confidence) / 2
    variance = count * p * (1 - p)
    if variance <= _EXACT_VARIANCE:
        return _exact_bounds(p, count, tail)
    z = _normal_quantile(1 - tail)
    skew = (1 - 2 * p) * (z * z - 1) / 6
    spread = z * math.sqrt(variance)
    # P(below <= k) >= tail first at k = l, and >= 1 - tail first at k = u - 1; the half is the continuity correction.
    low = math.ceil(count * p - spread + skew - 0.5)
    high = math.ceil(count * p + spread + skew - 0.5) + 1
    return (low if low >= 1 else None), (high if high <= count else None)


def _exact_bounds(p: float, count: int, tail: float) -> tuple[int | None, int | None]:
    """The same by summing the binomial from its shorter side, so that the sum has few terms."""
    if p > 0.5:  # noqa: PLR2004 - the shorter side
        above = _steps(1 - p, tail).at(count)
        # With E = count - below: l = count - max{e: P(E >= e) > tail}, u = count + 1 - min{e: P(E <= e) > tail}.
        high, low = count + 1 - above[0], count - above[1]
    else:
        low, last = _steps(p, tail).at(count)
        high = last + 1
    return (low if low >= 1 else None), (high if high <= count else None)


class _Steps:
    """The two quantiles of a binomial for any count, remembered.

    Both rise with the count and stay the same over many counts, so that what is known of two counts holds for all between them.
    """

    __slots__ = ("_counts", "_found", "_q", "_tail")

    def __init__(self, q: float, tail: float) -> None:
        self._q = q
        self._tail = tail
        self._counts: list[int] = []  # ascending
        self._found: list[tuple[int, int]] = []

    def at(self, count: int) -> tuple[int, int]:
        """The quantiles for so many trials."""
        counts, found = self._counts, self._found
        after = bisect_left(counts, count)
        if after < len(counts) and (counts[after] == count or (after and found[after - 1] == found[after])):
            return found[after]
        quantiles = _binomial_quantiles(self._q, count, self._tail)
        # Of each step only the ends are kept.
        if found[max(0, after - 2) : after] == [quantiles] * 2:
            counts[after - 1] = count
        elif found[after : after + 2] == [quantiles] * 2:
            counts[after] = count
        else:
            counts.insert(after, count)
            found.insert(after, quantiles)
        return quantiles


@lru_cache(maxsize=64)
def _steps(q: float, tail: float) -> _Steps:
    return _Steps(q, tail)


def _binomial_quantiles(q: float, count: int, tail: float) -> tuple[int, int]:
    """The smallest k with P(X <= k) > tail and the smallest with P(X <= k) >= 1 - tail, for X of binomial(count, q)."""
    if count == 0 or q <= 0:
        return 0, 0
    term = math.exp(count * math.log1p(-q))  # over 1e-121 where the variance is at most 100: no underflow
    ratio = q / (1 - q)
    total, k, first = term, 0, None
    while True:
        if first is None and total > tail:
            first = k
        if total >= 1 - tail or k == count:
            return (k if first is None else first), k
        term *= (count - k) / (k + 1) * ratio
        total += term
        k += 1


@lru_cache(maxsize=64)
def _normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)

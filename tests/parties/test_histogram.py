"""Buckets, merging, percentiles and the bounds that order statistics give."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parties.histogram
from parties.histogram import (
    LAST_BUCKET,
    MAX_VALUE,
    Histogram,
    HistogramError,
    bucket,
    lower,
    median_percentile,
    rank_bounds,
    rank_of,
    ranks,
    samples_needed,
    tail_buckets,
    upper,
)

values = st.integers(0, MAX_VALUE) | st.integers(0, 100_000_000)


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (0, 0),
        (255, 255),
        (256, 256),
        (257, 256),
        (511, 383),
        (512, 384),
        (1000, 506),
        (1_000_000, 1780),
        (10_000_000, 2200),
        (MAX_VALUE, LAST_BUCKET),
    ],
)
def test_buckets_are_those_of_the_document(value: int, index: int) -> None:
    """Any other language's client must come to the same bucket."""
    assert bucket(value) == index


@given(values)
def test_a_value_lies_in_its_bucket_within_one_percent(value: int) -> None:
    """What is reported is never less than the value, and at most 1/128 more."""
    index = bucket(value)
    assert lower(index) <= value <= upper(index)
    assert upper(index) - value <= value / 128


def test_buckets_leave_no_gap() -> None:
    """Each bucket begins where the one before ends, over the whole range."""
    assert lower(0) == 0
    assert all(lower(index) == upper(index - 1) + 1 for index in range(1, LAST_BUCKET + 1))
    assert upper(LAST_BUCKET) == MAX_VALUE


def test_values_out_of_range_count_at_the_ends() -> None:
    """A clock that went wrong must not lose a request or raise."""
    histogram = Histogram()
    histogram.add(-5)
    histogram.add(1 << 70, count=2)
    assert histogram.counts == {0: 1, LAST_BUCKET: 2}


@given(st.lists(values, min_size=1, max_size=300), st.floats(1, 99.99))
def test_a_percentile_is_within_one_percent_of_the_exact_one(sample: list[int], percentile: float) -> None:
    """The nearest rank of the raw sample, at most a bucket's width higher."""
    histogram = Histogram()
    for value in sample:
        histogram.add(value)
    exact = sorted(sample)[rank_of(percentile, len(sample)) - 1]
    found = histogram.percentile(percentile)
    assert found is not None
    assert exact <= found <= exact * (1 + 1 / 128)


def test_nothing_has_no_percentile() -> None:
    """None, and not zero, which would read as very fast."""
    assert Histogram().percentile(99) is None


@given(st.lists(st.lists(values, max_size=40), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_merging_is_counting_everything_in_one(parts: list[list[int]], rng: random.Random) -> None:
    """In whatever order: percentiles are taken of the merged samples, never averaged."""
    whole, pieces = Histogram(), []
    for part in parts:
        piece = Histogram()
        for value in part:
            piece.add(value)
            whole.add(value)
        pieces.append(piece)
    rng.shuffle(pieces)
    total = Histogram()
    for piece in pieces:
        total.merge(Histogram.decode(piece.encode()) if rng.random() < 0.5 else piece)
    assert total == whole
    assert total.count == sum(map(len, parts))
    assert total.percentile(90) == whole.percentile(90)


def test_merging_leaves_the_merged_one_alone() -> None:
    """A later change of the sum must not reach a histogram that went into it."""
    first, total = Histogram({5: 1}), Histogram()
    total.merge(first)
    total.add(7)
    assert list(total.buckets()) == [5, 7]
    total.merge(Histogram({3: 2}))
    assert first.counts == {5: 1}
    assert list(first.buckets()) == [5]
    assert list(total.buckets()) == [3, 5, 7]


@given(st.dictionaries(st.integers(0, LAST_BUCKET), st.integers(1, 1 << 40), max_size=50))
def test_encoding_round_trips(counts: dict[int, int]) -> None:
    """What one side encodes the other decodes to the same."""
    histogram = Histogram(counts)
    flat = histogram.encode()
    assert flat[::2] == sorted(counts)
    assert Histogram.decode(flat) == histogram
    assert Histogram.decode(flat).count == histogram.count


@given(st.dictionaries(st.integers(0, LAST_BUCKET), st.integers(1, 1 << 40), max_size=50))
def test_made_of_buckets_it_is_the_same_histogram(counts: dict[int, int]) -> None:
    """The quick way to make one gives what the usual one gives, and it can be added to without touching what it was made of."""
    buckets = sorted(counts)
    values = [counts[index] for index in buckets]
    made = Histogram.of_buckets(buckets, values)
    assert made == Histogram(counts)
    assert made.count == sum(values)
    assert made.encode() == Histogram(counts).encode()
    made.add(7, 3)
    assert made.counts == {**counts, 7: counts.get(7, 0) + 3}
    assert buckets == sorted(counts)


@pytest.mark.parametrize(
    ("flat", "what"),
    [
        ({}, "must be an array"),
        ([1], "no count"),
        ([1, 2, 3], "no count"),
        ([1, 0], "entry 1 is the count 0"),
        ([1, -2], "entry 1 is the count -2"),
        ([1, 1.0], "entry 1 is not an integer"),
        ([None, 1], "entry 0 is not an integer"),
        ([5, 1, 5, 1], "entry 2 is bucket 5"),
        ([5, 1, 4, 1], "entry 2 is bucket 4"),
        ([-1, 1], "entry 0 is bucket -1"),
        ([LAST_BUCKET + 1, 1], f"entry 0 is bucket {LAST_BUCKET + 1}"),
        ([1, MAX_VALUE, 2, 1], "add up"),
        ([1, 1 << 63], "add up"),
        ([1, 1 << 80], "entry 1 is the count"),
        ([1 << 80, 1], "entry 0 is bucket"),
        ([65_536, 1], "entry 0 is bucket 65536"),
    ],
)
def test_a_broken_form_is_refused_by_its_first_fault(flat: object, what: str) -> None:
    """The sender is told which entry is wrong."""
    with pytest.raises(HistogramError, match=what):
        Histogram.decode(flat)


@given(st.lists(st.lists(st.integers(0, 5000), max_size=60), min_size=1, max_size=4), st.data())
def test_a_tail_is_that_of_all_values_together(parts: list[list[int]], data: st.DataObject) -> None:
    """The largest of several histograms by depth, however many are asked for at once, as they came or as they are kept."""
    histograms = []
    for part in parts:
        histogram = Histogram()
        for value in part:
            histogram.add(value)
        histograms.append(Histogram.decode(histogram.encode()) if data.draw(st.booleans()) else histogram)
    descending = sorted((bucket(value) for part in parts for value in part), reverse=True)
    depths = sorted(data.draw(st.sets(st.integers(1, max(1, len(descending))), max_size=4))) if descending else []
    assert tail_buckets(histograms, depths) == [descending[depth - 1] for depth in depths]


@given(st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=60), min_size=1, max_size=7), st.floats(1, 100))
def test_the_median_of_percentiles_is_that_of_each_by_itself(parts: list[list[int]], percentile: float) -> None:
    """The quick way for the vote finds what asking every histogram finds."""
    histograms = []
    for part in parts:
        histogram = Histogram()
        for value in part:
            histogram.add(value)
        histograms.append(histogram)
    each = sorted(histogram.percentile(percentile) or 0 for histogram in histograms)
    assert median_percentile(histograms, percentile) == each[len(each) // 2]


@given(st.lists(st.integers(0, 3000), max_size=60), st.sampled_from([0.5, 0.1, 0.01, 0.001]), st.sampled_from([0.025, 0.1]))
def test_remembered_quantiles_are_the_computed_ones(counts: list[int], q: float, tail: float) -> None:
    """In whatever order counts come, and between remembered ones too; and what is remembered does not grow with the counts."""
    steps = parties.histogram._Steps(q, tail)
    for count in [*counts, *range(0, 3000, 97), *range(700, 600, -1), *range(600, 700)]:
        assert steps.at(count) == parties.histogram._binomial_quantiles(q, count, tail)
    assert steps._counts == sorted(set(steps._counts))
    assert len(steps._counts) <= 2 * len(set(steps._found))


@pytest.mark.parametrize("confidence", [None, 0.95])
@pytest.mark.parametrize("count", [0, 1, 50, 5000, 50_000])
def test_ranks_are_the_percentiles_and_its_bounds(count: int, confidence: float | None) -> None:
    """Both answers in one, and no bounds where none are asked for."""
    bounds = (None, None) if confidence is None else rank_bounds(99, count, confidence)
    assert ranks(99, count, confidence) == (rank_of(99, count), *bounds)


@pytest.mark.parametrize(
    ("percentile", "count", "rank"), [(99, 100, 99), (99, 101, 100), (99.9, 1000, 999), (50, 1, 1), (99, 1, 1), (100, 7, 7)]
)
def test_the_nearest_rank_is_not_moved_by_rounding(percentile: float, count: int, rank: int) -> None:
    """99.9 percent of a thousand is the 999th, whatever binary fractions say."""
    assert rank_of(percentile, count) == rank


@pytest.mark.parametrize(("percentile", "needed"), [(50, 2), (90, 10), (95, 20), (99, 100), (99.9, 1000)])
def test_a_percentile_needs_one_sample_beyond_it(percentile: float, needed: int) -> None:
    """As many samples as let one be expected above the percentile."""
    assert samples_needed(percentile) == needed


def _below(count: int, p: float, k: int) -> float:
    """P(X <= k) of the binomial, by its definition."""
    return math.fsum(math.comb(count, i) * p**i * (1 - p) ** (count - i) for i in range(k + 1))


@pytest.mark.parametrize("percentile", [25, 50, 90, 99])
@pytest.mark.parametrize("count", [1, 2, 5, 37, 100, 367, 368, 700])
def test_bounds_are_the_tightest_ranks_of_the_binomial(percentile: float, count: int) -> None:
    """By the definition: no tighter rank holds the confidence, and an open side has none at all."""
    p, tail = percentile / 100, 0.025
    low, high = rank_bounds(percentile, count, 0.95)
    if low is None:
        assert _below(count, p, 0) > tail
    else:
        assert _below(count, p, low - 1) <= tail < _below(count, p, low)
    if high is None:
        assert 1 - _below(count, p, count - 1) > tail
    else:
        assert 1 - _below(count, p, high - 1) <= tail < 1 - _below(count, p, high - 2)


def test_p99_has_an_upper_bound_from_368_samples() -> None:
    """The figure that the document gives."""
    assert rank_bounds(99, 367, 0.95)[1] is None
    assert rank_bounds(99, 368, 0.95)[1] == 368
    assert rank_bounds(99, 0, 0.95) == (None, None)


@pytest.mark.parametrize("percentile", [5, 50, 95, 99, 99.9])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_normal_approximation_is_nearly_always_the_exact_rank(percentile: float, confidence: float) -> None:
    """Above the crossover at a variance of 100 it is one rank off in few cases, and never more."""
    p = percentile / 100
    off = []
    for variance in range(101, 240, 7):
        count = round(variance / (p * (1 - p)))
        exact = parties.histogram._exact_bounds(p, count, (1 - confidence) / 2)
        for one, other in zip(exact, rank_bounds(percentile, count, confidence), strict=True):
            assert one is not None
            assert other is not None
            off.append(abs(one - other))
    assert max(off) <= 1
    assert sum(off) <= 0.1 * len(off)


@pytest.mark.parametrize(("count", "trials"), [(400, 1000), (20_000, 150)])
def test_bounds_cover_the_true_percentile_as_often_as_they_say(count: int, trials: int) -> None:
    """Of seeded samples of a known distribution, on both sides of the crossover: 95 % less noise, and not by being endless."""
    rng = random.Random(7)  # noqa: S311 - samples, no secrets
    low, high = rank_bounds(99, count, 0.95)
    assert low is not None
    assert high is not None
    # The true p99 of a uniform sample is 0.99; it lies between the two order statistics if low <= samples under it < high.
    covered = sum(low <= sum(rng.random() < 0.99 for _ in range(count)) < high for _ in range(trials))
    assert covered / trials >= 0.93
    assert high - low <= 4.5 * math.sqrt(count * 0.99 * 0.01) + 1

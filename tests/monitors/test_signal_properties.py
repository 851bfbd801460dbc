"""What holds of the signal for any input: order, accuracy, the vote, monotone stand-ins."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from monitors.histogram_message import Window
from monitors.signal import Signal
from monitors.signal_window import Bin, Sample, Stretch, beyond, vote
from parties.histogram import Histogram, bucket, rank_of, samples_needed, upper
from parties.model import QosTarget
from parties.settings import SignalSettings

MS = 1_000_000
START_NS = 1_000_000 * MS
TARGET = QosTarget(10 * MS, 90.0)

latencies = st.integers(0, 100 * MS)


@st.composite
def windows(draw: st.DrawFn) -> list[Window]:
    """Windows of three clients over two seconds, aligned or not."""
    made = []
    for client in "abc":
        end_ns = START_NS
        for sequence in range(draw(st.integers(0, 8))):
            start_ns, end_ns = end_ns, end_ns + draw(st.integers(1, 500 * MS))
            histogram = Histogram()
            for latency in draw(st.lists(latencies, max_size=20)):
                histogram.add(latency)
            failed, unsent, outstanding = draw(st.tuples(*[st.integers(0, 5)] * 3))
            sent = histogram.count + failed
            age_ns = draw(latencies) * 20 if outstanding else 0
            made.append(
                Window(
                    "s",
                    client,
                    sequence,
                    start_ns,
                    end_ns,
                    sent + unsent,
                    sent,
                    histogram.count,
                    failed,
                    unsent,
                    outstanding,
                    age_ns,
                    histogram,
                )
            )
    return made


@given(windows(), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=200)
def test_the_order_of_arrival_makes_no_difference(made: list[Window], rng: random.Random, raw: bool) -> None:  # noqa: FBT001 - drawn
    """Merging is a sum, and a client's latest window decides how it stands."""
    shuffled = list(made)
    rng.shuffle(shuffled)
    views = []
    for order in (made, shuffled):
        signal = Signal({"s": TARGET}, SignalSettings(raw=raw), 500 * MS)
        for window in order:
            signal.feed(window)
        now_ns = max((window.window_end_ns for window in made), default=START_NS) + MS
        views.append(signal.views(now_ns))
    assert views[0] == views[1]


@given(windows())
def test_no_sample_is_passed_over_and_counts_add_up(made: list[Window]) -> None:
    """Ticked through in order of time, the intervals together hold every completed request (one may be seen in two)."""
    signal = Signal({"s": TARGET}, SignalSettings(), 500 * MS)
    queue = sorted(made, key=lambda window: window.window_end_ns)
    seen, now_ns = 0, START_NS
    while queue:
        now_ns += 500 * MS
        while queue and queue[0].window_end_ns <= now_ns:
            signal.feed(queue.pop(0))
        view = signal.views(now_ns)["s"]
        seen += view.completed if view.fresh else 0
    assert seen >= sum(window.completed for window in made)


@given(st.lists(st.lists(latencies, max_size=30), min_size=1, max_size=6), st.floats(50, 99.9))
def test_the_percentile_is_that_of_all_samples_within_one_percent(parts: list[list[int]], percentile: float) -> None:
    """Over any number of bins, with the bounds' ranks looked at too."""
    target = QosTarget(10 * MS, percentile)
    everything = sorted(latency for part in parts for latency in part)
    found, low_ns, high_ns = Sample(Stretch([_bin(part) for part in parts]), target).estimate(0.95)
    if not everything:
        assert found is None
        return
    exact = everything[rank_of(percentile, len(everything)) - 1]
    assert found is not None
    assert exact <= found <= exact * (1 + 1 / 128)
    assert low_ns is None or low_ns <= found
    assert high_ns is None or high_ns >= found


@given(
    st.lists(st.lists(latencies, min_size=10, max_size=25), min_size=5, max_size=5),
    latencies,
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_the_median_is_the_majority_vote_at_every_threshold(parts: list[list[int]], threshold_ns: int, unsent: list[int]) -> None:
    """So that one number carries the vote, whatever slack a policy compares it with."""
    bins = [_bin(part, count) for part, count in zip(parts, unsent, strict=True)]
    voted_ns = vote(Stretch(bins), TARGET, 5)
    votes = [(Sample(Stretch([item]), TARGET).latency_ns() or 0) > threshold_ns for item in bins]
    assert voted_ns is not None
    assert (voted_ns > threshold_ns) == (sum(votes) > len(votes) / 2)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 9))
def test_a_vote_has_only_supported_parts(sizes: list[int], most: int) -> None:
    """None exactly where not even three parts of the bins are supported."""
    bins = [_bin([MS] * size) for size in sizes]
    needed = samples_needed(TARGET.percentile)
    thirds = [sizes[len(sizes) * part // 3 : len(sizes) * (part + 1) // 3] for part in range(3)]
    three = min(most, len(sizes)) >= 3 and all(sum(part) >= needed for part in thirds)
    voted_ns = vote(Stretch(bins), TARGET, most)
    if three:
        assert voted_ns == upper(bucket(MS))
    if voted_ns is None:
        assert not three


@given(st.lists(latencies, min_size=1, max_size=50), st.integers(0, 40), st.lists(st.integers(0, 10**10), max_size=3))
def test_more_that_is_unanswered_is_never_better(answered: list[int], unsent: int, ages_ns: list[int]) -> None:
    """One more unsent request, or an older outstanding one, never lowers the latency."""
    before = Sample(Stretch([_bin(answered, unsent)]), TARGET, ages_ns).latency_ns()
    more = Sample(Stretch([_bin(answered, unsent + 1)]), TARGET, ages_ns).latency_ns()
    older = Sample(Stretch([_bin(answered, unsent)]), TARGET, [age + 10 * MS for age in ages_ns]).latency_ns()
    assert before is not None
    assert more is not None
    assert older is not None
    assert before <= more
    assert before <= older


@given(st.integers(0, 10**10), st.integers(0, 10**10), st.floats(0, 1), st.floats(0, 1))
def test_what_stands_for_no_number_is_monotone_and_a_violation(first: int, second: int, share: float, other: float) -> None:
    """At least the target, at least what is known, and rising with both."""
    low, high = sorted((first, second))
    few, many = sorted((share, other))
    assert TARGET.latency_ns <= beyond(TARGET, low, few) <= beyond(TARGET, high, many)
    assert beyond(TARGET, high, many) >= high


def test_bounds_cover_the_true_percentile_of_a_seeded_service() -> None:
    """Through the whole signal: exponential latencies, 500 in each interval, the true p99 about 95 % of the time."""
    rng = random.Random(3)  # noqa: S311 - samples, no secrets
    signal = Signal({"s": QosTarget(100 * MS)}, SignalSettings(), 500 * MS)
    true_ns = 4.605 * 2 * MS
    covered = 0
    trials = 250
    for trial in range(trials):
        for part in range(5):
            histogram = Histogram()
            for _ in range(100):
                histogram.add(int(rng.expovariate(1 / (2 * MS))))
            end_ns = START_NS + (trial * 5 + part + 1) * 100 * MS
            signal.feed(Window("s", "a", trial * 5 + part, end_ns - 100 * MS, end_ns, 100, 100, 100, histogram=histogram))
        view = signal.views(START_NS + (trial + 1) * 500 * MS)["s"]
        assert view.low_ns is not None
        assert view.high_ns is not None
        # A bucket's upper end is reported: one width of room at the lower side.
        covered += view.low_ns / (1 + 1 / 128) <= true_ns <= view.high_ns
    assert 0.92 <= covered / trials <= 1.0


def _bin(part: list[int], unsent: int = 0) -> Bin:
    histogram = Histogram()
    for latency in part:
        histogram.add(latency)
    return Bin([histogram], completed=len(part), unsent=unsent)

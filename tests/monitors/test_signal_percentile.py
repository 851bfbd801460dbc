"""The signal: the growing window, what a change does to it, bounds, and the vote; each with its switch."""

from signal_kit import BIN_NS, INTERVAL_NS, MS, START_NS, TARGET_NS, Bench, shown, spread

from parties.model import ServiceState
from parties.settings import SignalSettings


def test_the_window_grows_until_the_percentile_is_supported() -> None:
    """Ten requests in each bin: two intervals make the hundred that p99 needs, and no more than needed is taken."""
    bench = Bench()
    bench.interval(0, [9 * MS] * 10)
    assert bench.view(0).state is ServiceState.FEW_SAMPLES
    assert bench.view(0).samples == 50
    bench.interval(1, [2 * MS] * 10)
    view = bench.view(1)
    assert view.state is ServiceState.OK
    assert (view.samples, view.window_ns) == (100, 2 * INTERVAL_NS)
    assert view.latency_ns == shown(9 * MS)
    bench.interval(2, [2 * MS] * 10)
    assert bench.view(2).latency_ns == shown(2 * MS)
    assert (bench.view(2).samples, bench.view(2).completed) == (100, 50)


def test_the_window_grows_by_single_bins() -> None:
    """Newest first: what supports the percentile is not diluted by more of the past."""
    bench = Bench()
    bench.interval(0, [9 * MS] * 18)
    bench.view(0)
    bench.interval(1, [2 * MS] * 18)
    view = bench.view(1)
    assert view.window_ns == 6 * BIN_NS
    assert view.samples == 108


def test_the_window_has_a_limit() -> None:
    """Samples of ten seconds ago are no longer news: too few, and no value."""
    bench = Bench(SignalSettings(longest_window_ns=1000 * MS))
    for number in range(6):
        bench.interval(number, [2 * MS] * 9)
    view = bench.view(5)
    assert view.state is ServiceState.FEW_SAMPLES
    assert view.latency_ns is None
    assert view.cautious_latency_ns is None
    assert view.samples == 90
    assert view.window_ns == 1000 * MS


def test_without_the_growing_window_the_interval_counts_whatever_its_samples() -> None:
    """The switch."""
    bench = Bench(SignalSettings(window=False))
    bench.interval(0, [9 * MS] * 10)
    assert bench.view(0).latency_ns == shown(9 * MS)
    bench.interval(1, [2 * MS] * 10)
    view = bench.view(1)
    assert view.state is ServiceState.OK
    assert (view.samples, view.latency_ns) == (50, shown(2 * MS))


def test_few_samples_can_tell_of_a_violation() -> None:
    """More slow requests than a met target has by chance are acted on, not waited for: one of 28, two of 29. Not without bounds."""
    bench = Bench()
    bench.feed(4, [30 * MS] * 5)
    view = bench.view(0)
    assert view.state is ServiceState.OK
    assert view.low_ns is not None
    assert view.low_ns > TARGET_NS
    assert view.high_ns is None
    for quick, slow, state in ((27, 1, ServiceState.OK), (28, 1, ServiceState.FEW_SAMPLES), (27, 2, ServiceState.OK)):
        bench = Bench()
        bench.feed(4, [2 * MS] * quick + [30 * MS] * slow)
        assert bench.view(0).state is state
    bench = Bench()
    bench.feed(4, [2 * MS] * 28)
    assert bench.view(0).state is ServiceState.FEW_SAMPLES
    bench = Bench(SignalSettings(bounds=False))
    bench.feed(4, [30 * MS] * 5)
    assert bench.view(0).state is ServiceState.FEW_SAMPLES


def test_a_change_cuts_the_window_off_from_what_was_before() -> None:
    """A move is judged by what came after it, also where that means waiting for samples."""
    bench = Bench()
    bench.interval(0, [9 * MS] * 10)
    bench.interval(1, [9 * MS] * 10)
    assert bench.view(1).latency_ns == shown(9 * MS)
    bench.signal.note_change("s", START_NS + 2 * INTERVAL_NS + 4 * MS)
    bench.interval(2, [2 * MS] * 10)
    assert bench.view(2).state is ServiceState.FEW_SAMPLES
    assert bench.view(2).samples == 50
    bench.interval(3, [2 * MS] * 10)
    view = bench.view(3)
    assert (view.latency_ns, view.samples) == (shown(2 * MS), 100)


def test_a_change_within_the_interval_leaves_its_later_bins() -> None:
    """A slow move that ends in mid-interval: the counts are of the whole interval, the percentile of what came after."""
    bench = Bench()
    bench.interval(0, spread(100, 8 * MS, 9 * MS))
    bench.view(0)
    for number in range(5, 7):
        bench.feed(number, spread(100, 8 * MS, 9 * MS))
    bench.signal.note_change("s", START_NS + 7 * BIN_NS + 3 * MS)
    for number in range(7, 10):
        bench.feed(number, spread(100, MS, 2 * MS))
    view = bench.view(1)
    assert (view.samples, view.completed) == (300, 500)
    assert view.latency_ns is not None
    assert view.latency_ns <= shown(2 * MS)


def test_a_change_after_everything_leaves_nothing_to_judge() -> None:
    """Not even one bin yet: too few samples, and no error."""
    bench = Bench()
    bench.interval(0, spread(100, MS, 2 * MS))
    bench.signal.note_change("s", START_NS + 20 * BIN_NS)
    view = bench.view(0)
    assert (view.state, view.samples, view.completed) == (ServiceState.FEW_SAMPLES, 0, 500)


def test_a_change_means_nothing_without_the_growing_window() -> None:
    """``raw`` is the interval's percentile, whatever happened in it; an unknown service is no error."""
    bench = Bench(SignalSettings(raw=True))
    bench.signal.note_change("nobody", 0)
    bench.interval(0, [2 * MS] * 10)
    bench.signal.note_change("s", START_NS + 20 * BIN_NS)
    assert bench.view(0).samples == 50


def test_bounds_are_cautious_where_the_sample_is_small() -> None:
    """Between 100 and 367 samples p99 has no upper bound: the largest seen stands in for it."""
    bench = Bench(SignalSettings(vote=False))
    bench.interval(0, spread(40, 1 * MS, 9 * MS))
    view = bench.view(0)
    assert view.samples == 200
    assert view.high_ns is None
    assert view.latency_ns is not None
    assert view.low_ns is not None
    assert view.low_ns < view.latency_ns
    assert view.cautious_latency_ns == shown(9 * MS)


def test_without_bounds_the_cautious_value_is_the_value() -> None:
    """The switch."""
    bench = Bench(SignalSettings(bounds=False, vote=False))
    bench.interval(0, spread(100, 1 * MS, 9 * MS))
    view = bench.view(0)
    assert view.low_ns is None
    assert view.high_ns is None
    assert view.cautious_latency_ns == view.latency_ns


def test_the_vote_ignores_a_burst_in_a_minority_of_sub_intervals() -> None:
    """Two slow sub-intervals of five are outvoted, three are not; without the vote one burst decides."""
    for slow, expected in ((2, 2 * MS), (3, 40 * MS)):
        for vote, latency_ns in ((True, expected), (False, 40 * MS)):
            bench = Bench(SignalSettings(vote=vote))
            for number in range(5):
                bench.feed(number, [40 * MS if number < slow else 2 * MS] * 100)
            assert bench.view(0).latency_ns == shown(latency_ns)


def test_the_vote_puts_neighbours_together_until_each_part_is_supported() -> None:
    """70 in each sub-interval: too few for five votes, enough for three of 70 to 140, or else one."""
    bench = Bench()
    for number in range(5):
        bench.feed(number, [40 * MS if number < 1 else 2 * MS] * 70)
    # Three parts: bin 0, bins 1-2, bins 3-4; the first has too few samples, so that there is one part.
    assert bench.view(0).latency_ns == shown(40 * MS)
    for counts in ((120, 60, 60, 60, 60), (100, 50, 50, 50, 50)):
        bench = Bench()
        for number, count in enumerate(counts):
            bench.feed(number, [40 * MS if number < 1 else 2 * MS] * count)
        assert bench.view(0).latency_ns == shown(2 * MS)


def test_the_vote_is_one_for_each_sub_interval_and_not_for_each_client() -> None:
    """Three of five sub-intervals are slow for one of two clients: a majority of those, a minority of the windows."""
    bench = Bench()
    for number in range(5):
        bench.feed(number, [2 * MS] * 200, client="a")
        bench.feed(number, [40 * MS if number < 3 else 2 * MS] * 200, client="b")
    assert bench.view(0).latency_ns == shown(40 * MS)


def test_the_cautious_value_is_never_under_the_value() -> None:
    """Also where the vote and the bounds look at different things."""
    bench = Bench()
    for number in range(5):
        bench.feed(number, [2 * MS] * 98 + [40 * MS] * 2 if number < 3 else [2 * MS] * 2000)
    view = bench.view(0)
    assert view.latency_ns == shown(40 * MS)
    assert view.high_ns == shown(2 * MS)
    assert view.cautious_latency_ns == view.latency_ns

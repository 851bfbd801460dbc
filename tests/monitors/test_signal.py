"""The signal: what may be believed of a service, each state and each switch."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.histogram import Histogram, bucket, upper
from parties.model import LatencyView, QosTarget, ServiceState
from parties.settings import SignalSettings

MS = 1_000_000
INTERVAL_NS = 500 * MS
BIN_NS = 100 * MS
START_NS = 1_000_000 * MS
TARGET_NS = 10 * MS


def shown(latency_ns: int) -> int:
    """How a latency is reported."""
    return upper(bucket(latency_ns))


class Bench:
    """One service's signal on a clock of its own: bins are numbered from 0, a view is asked for a little after an interval."""

    def __init__(self, settings: SignalSettings | None = None, target_ns: int = TARGET_NS, percentile: float = 99.0) -> None:
        self.signal = Signal({"s": QosTarget(target_ns, percentile)}, settings or SignalSettings(), INTERVAL_NS)
        self.sequence = 0

    def feed(self, number: int, latencies: Sequence[int] = (), client: str = "a", **counts: int) -> None:
        """One window of 100 ms that ends with bin ``number``."""
        window = window_of(number, latencies, client, **counts)
        self.signal.feed(replace(window, sequence=self.sequence))
        self.sequence += 1

    def interval(self, number: int, latencies: Sequence[int] = (), **counts: int) -> None:
        """Five windows with the same samples; outstanding and its age as at the end of each."""
        for offset in range(5):
            self.feed(5 * number + offset, latencies, "a", **counts)

    def view(self, number: int, extra_ns: int = 2 * MS) -> LatencyView:
        """The view just after interval ``number``."""
        return self.signal.views(START_NS + (number + 1) * INTERVAL_NS + extra_ns)["s"]


def window_of(number: int, latencies: Sequence[int] = (), client: str = "a", **counts: int) -> Window:
    """A window of 100 ms with these samples."""
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency)
    done = len(latencies)
    end_ns = START_NS + (number + 1) * BIN_NS
    sent = done + counts.get("failed", 0)
    fields = {"scheduled": sent + counts.get("unsent", 0), "sent": sent, **counts}
    return Window("s", client, number, end_ns - BIN_NS, end_ns, completed=done, histogram=histogram, **fields)


def spread(count: int, low_ns: int, high_ns: int) -> list[int]:
    """Samples at equal distances."""
    return [low_ns + (high_ns - low_ns) * index // max(1, count - 1) for index in range(count)]


PARTS_OFF = SignalSettings(window=False, bounds=False, vote=False, stalled=False)


def test_a_supported_percentile_is_ok_with_its_counts() -> None:
    """The usual case: percentile of the merged interval, bounds around it, counts and load of the last interval."""
    bench = Bench(SignalSettings(vote=False))
    bench.interval(0, spread(100, 1 * MS, 2 * MS))
    view = bench.view(0)
    everything = sorted(spread(100, 1 * MS, 2 * MS) * 5)
    assert view.state is ServiceState.OK
    assert view.latency_ns == shown(everything[494])
    assert view.low_ns is not None
    assert view.high_ns is not None
    assert view.low_ns <= view.latency_ns <= view.high_ns == view.cautious_latency_ns
    assert (view.samples, view.completed, view.scheduled) == (500, 500, 500)
    assert view.window_ns == INTERVAL_NS
    assert view.load_rps == pytest.approx(1000)
    assert view.age_ns == 2 * MS
    assert view.fresh


def test_no_message_is_stale_and_not_idle() -> None:
    """Before the first message, and again after a second of silence; a policy holds then."""
    bench = Bench()
    assert bench.view(0).state is ServiceState.STALE
    assert not bench.view(0).fresh
    bench.interval(0, spread(100, MS, 2 * MS))
    assert bench.view(0).state is ServiceState.OK
    assert bench.view(1).state is ServiceState.OK
    view = bench.view(2)
    assert view.state is ServiceState.STALE
    assert view.latency_ns is None
    assert view.age_ns == 1002 * MS


def test_stale_waits_for_two_intervals_at_least() -> None:
    """A long interval must not find every message old."""
    settings = SignalSettings(stale_after_ns=100 * MS)
    bench = Bench(settings)
    bench.interval(0, spread(100, MS, 2 * MS))
    assert bench.view(1, extra_ns=0).state is ServiceState.OK
    assert bench.view(2, extra_ns=0).state is ServiceState.STALE


def test_an_old_timestamp_is_stale_though_it_just_arrived() -> None:
    """A feed that sends history says nothing of now."""
    bench = Bench()
    bench.interval(0, spread(100, MS, 2 * MS))
    view = bench.view(9)
    assert view.state is ServiceState.STALE
    assert view.latency_ns is None


def test_a_value_is_fresh_once() -> None:
    """Nobody acts on one value twice; a new message makes it fresh again."""
    bench = Bench()
    bench.interval(0, spread(100, MS, 2 * MS))
    assert bench.view(0).fresh
    again = bench.view(0, extra_ns=50 * MS)
    assert not again.fresh
    assert again.state is ServiceState.OK
    bench.feed(5, spread(100, MS, 2 * MS))
    assert bench.view(1).fresh


def test_zero_windows_are_idle() -> None:
    """Messages come and nothing was asked for; one request on its way is not idle."""
    bench = Bench()
    bench.interval(0)
    assert bench.view(0).state is ServiceState.IDLE
    assert bench.view(0).latency_ns is None
    bench.interval(1, outstanding=1, oldest_outstanding_ns=MS)
    assert bench.view(1).state is ServiceState.FEW_SAMPLES


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


def test_few_samples_can_prove_a_violation() -> None:
    """The lower bound of a handful is over the target already: acted on, not waited for. One slow request proves nothing."""
    bench = Bench()
    bench.feed(4, [30 * MS] * 5)
    view = bench.view(0)
    assert view.state is ServiceState.OK
    assert view.low_ns is not None
    assert view.low_ns > TARGET_NS
    assert view.high_ns is None
    for few in ([30 * MS], [30 * MS, 2 * MS], [2 * MS] * 4 + [30 * MS]):
        bench = Bench()
        bench.feed(4, few)
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
    bench = Bench()
    for number, count in enumerate((120, 60, 60, 60, 60)):
        bench.feed(number, [40 * MS if number < 1 else 2 * MS] * count)
    assert bench.view(0).latency_ns == shown(2 * MS)


def test_the_cautious_value_is_never_under_the_value() -> None:
    """Also where the vote and the bounds look at different things."""
    bench = Bench()
    for number in range(5):
        bench.feed(number, [2 * MS] * 98 + [40 * MS] * 2 if number < 3 else [2 * MS] * 2000)
    view = bench.view(0)
    assert view.latency_ns == shown(40 * MS)
    assert view.high_ns == shown(2 * MS)
    assert view.cautious_latency_ns == view.latency_ns


def test_requests_that_nobody_answers_are_stalled() -> None:
    """Outstanding, none completing, the oldest over target and a whole interval old; worse as it gets older."""
    latencies = []
    for age_ns in (600 * MS, 1100 * MS):
        bench = Bench()
        bench.interval(0, outstanding=20, oldest_outstanding_ns=age_ns, scheduled=4, sent=4)
        view = bench.view(0)
        assert view.state is ServiceState.STALLED
        assert view.latency_ns == age_ns
        assert view.cautious_latency_ns == age_ns
        assert (view.outstanding, view.oldest_outstanding_ns) == (20, age_ns)
        latencies.append(view.latency_ns)
    assert latencies == sorted(latencies)


def test_requests_that_cannot_be_sent_are_stalled() -> None:
    """No connection at all: nothing is outstanding, everything due goes unsent."""
    bench = Bench()
    bench.interval(0, unsent=10)
    view = bench.view(0)
    assert view.state is ServiceState.STALLED
    assert view.latency_ns is not None
    assert view.latency_ns > TARGET_NS
    assert view.unsent == 50


@pytest.mark.parametrize(
    ("target_ns", "counts"),
    [
        (2500 * MS, {"outstanding": 2, "oldest_outstanding_ns": 1000 * MS}),  # slow and rare, within its target
        (10 * MS, {"outstanding": 2, "oldest_outstanding_ns": 300 * MS}),  # over target, not yet a whole interval
    ],
)
def test_slow_and_rare_is_not_stalled(target_ns: int, counts: dict[str, int]) -> None:
    """1.4 requests/s that take a second each often complete none in an interval."""
    bench = Bench(target_ns=target_ns)
    bench.interval(0, (), **counts)
    assert bench.view(0).state is ServiceState.FEW_SAMPLES


def test_one_completion_ends_a_stall() -> None:
    """Something comes through: slow, and no longer stalled."""
    bench = Bench()
    bench.interval(0, [900 * MS], outstanding=20, oldest_outstanding_ns=900 * MS)
    view = bench.view(0)
    assert view.state is ServiceState.OK
    assert view.latency_ns is not None
    assert view.latency_ns >= 900 * MS


def test_a_hanging_service_whose_clients_give_up_is_stalled() -> None:
    """Time-outs are failures, but nothing completes and old requests wait: the worse of the two."""
    bench = Bench()
    bench.interval(0, failed=3, outstanding=20, oldest_outstanding_ns=900 * MS)
    assert bench.view(0).state is ServiceState.STALLED


def test_failing_fast_is_not_healthy() -> None:
    """A tenth of the answers are errors: failing, though what is answered is fast."""
    bench = Bench()
    bench.interval(0, [MS] * 100, failed=12)
    view = bench.view(0)
    assert view.state is ServiceState.FAILING
    assert view.latency_ns == shown(MS)
    assert view.failed == 60
    bench = Bench()
    bench.interval(0, [MS] * 100, failed=11)
    assert bench.view(0).state is ServiceState.OK


def test_only_errors_are_failing() -> None:
    """Quick errors and nothing else: no latency, and not healthy, idle or stalled."""
    bench = Bench()
    bench.interval(0, failed=20, outstanding=1, oldest_outstanding_ns=MS)
    view = bench.view(0)
    assert view.state is ServiceState.FAILING
    assert view.latency_ns is None


def test_one_error_among_few_answers_is_seen_in_a_longer_window() -> None:
    """One of two answers in this interval, one of twenty in the window that grew: one error alone fails nobody."""
    bench = Bench()
    bench.interval(0, [MS] * 4)
    bench.view(0)
    bench.feed(9, [MS], failed=1)
    assert bench.view(1).state is ServiceState.FEW_SAMPLES
    bench = Bench(SignalSettings(window=False))
    bench.interval(0, [MS] * 4)
    bench.view(0)
    bench.feed(9, [MS], failed=1)
    assert bench.view(1).state is ServiceState.FAILING


def test_stalled_and_failing_can_be_switched_off() -> None:
    """The same input reads as slow or too little; what is unanswered is then left out of the percentile too."""
    settings = SignalSettings(stalled=False)
    bench = Bench(settings)
    bench.interval(0, outstanding=20, oldest_outstanding_ns=900 * MS)
    assert bench.view(0).state is ServiceState.FEW_SAMPLES
    bench.interval(1, [MS] * 100, failed=90, unsent=50, outstanding=1, oldest_outstanding_ns=900 * MS)
    view = bench.view(1)
    assert view.state is ServiceState.OK
    assert (view.latency_ns, view.samples, view.unsent) == (shown(MS), 500, 250)


def test_unsent_requests_are_slower_than_any_answer() -> None:
    """Two in a hundred unsent: the p99 is one of them, over the target, and worse with more of them."""
    latencies = []
    for unsent in (2, 10, 50):
        bench = Bench()
        bench.interval(0, [MS] * (100 - unsent), unsent=unsent)
        view = bench.view(0)
        assert view.state is ServiceState.OK
        assert view.latency_ns is not None
        assert view.latency_ns > TARGET_NS
        assert view.high_ns is None
        assert view.samples == 500
        assert view.cautious_latency_ns is not None
        assert view.cautious_latency_ns >= view.latency_ns
        latencies.append(view.latency_ns)
    assert latencies == sorted(set(latencies))
    bench = Bench(SignalSettings(vote=False))
    bench.feed(4, [MS] * 200, unsent=1)
    assert bench.view(0).latency_ns == shown(MS)


def test_the_oldest_outstanding_is_a_sample_once_it_is_slow() -> None:
    """Its age is the least that it can become: counted where it is over the percentile, not while it may still be fast."""
    settings = SignalSettings(vote=False)
    for age_ns, samples, latency_ns in ((MS, 100, 2 * MS), (300 * MS, 101, 3 * MS)):
        bench = Bench(settings)
        bench.feed(4, [2 * MS] * 99 + [3 * MS], outstanding=5, oldest_outstanding_ns=age_ns)
        view = bench.view(0)
        assert (view.samples, view.latency_ns) == (samples, shown(latency_ns))
    bench = Bench(settings)
    bench.feed(4, [2 * MS] * 99, outstanding=1, oldest_outstanding_ns=200 * MS, client="a")
    bench.feed(4, [2 * MS] * 1, outstanding=1, oldest_outstanding_ns=300 * MS, client="b")
    view = bench.view(0)
    assert (view.samples, view.latency_ns) == (102, shown(200 * MS))
    assert view.cautious_latency_ns == shown(300 * MS)


def test_raw_is_the_papers_letter() -> None:
    """The interval's percentile whatever its samples; nothing grows, votes, bounds or stalls. All parts off is the same."""
    for settings in (SignalSettings(raw=True), PARTS_OFF):
        bench = Bench(settings)
        bench.interval(0, [9 * MS] * 100)
        bench.view(0)
        bench.feed(9, [MS, 5 * MS], failed=9, unsent=4, outstanding=2, oldest_outstanding_ns=800 * MS)
        view = bench.view(1)
        assert view.state is ServiceState.OK
        assert view.latency_ns == view.cautious_latency_ns == shown(5 * MS)
        assert (view.samples, view.window_ns, view.low_ns, view.high_ns) == (2, INTERVAL_NS, None, None)
        assert (view.failed, view.unsent, view.outstanding) == (9, 4, 2)
        bench.interval(2, outstanding=2, oldest_outstanding_ns=800 * MS)
        assert bench.view(2).latency_ns is None


def test_clients_are_merged_and_not_averaged() -> None:
    """A slow client with few requests does not weigh as much as a fast one with many."""
    bench = Bench(SignalSettings(vote=False))
    for number in range(5):
        bench.feed(number, [MS] * 990, client="fast")
        bench.feed(number, [50 * MS] * 9, client="slow")
    view = bench.view(0)
    assert view.latency_ns == shown(MS)
    assert view.samples == 4995
    assert view.load_rps == pytest.approx(9990)


def test_a_client_that_stops_sending_no_longer_counts() -> None:
    """Its last outstanding requests would else read as a stall for ever; it is counted as gone."""
    bench = Bench()
    for number in range(5):
        bench.feed(number, spread(100, MS, 2 * MS), client="alive")
        bench.feed(number, outstanding=7, oldest_outstanding_ns=50 * MS, client="dead")
    assert bench.view(0).outstanding == 7
    for interval in (1, 2):
        for number in range(5):
            bench.feed(5 * interval + number, spread(100, MS, 2 * MS), client="alive")
        view = bench.view(interval)
        assert view.state is ServiceState.OK
        assert view.outstanding == (7 if interval == 1 else 0)
    assert bench.signal.counters()["clients_gone"] == 1
    assert bench.signal.counters()["clients"] == 1


def test_a_restarted_client_replaces_itself() -> None:
    """Its sequence begins at zero again; what the old process had outstanding is gone with it."""
    bench = Bench()
    bench.interval(0, spread(100, MS, 2 * MS), outstanding=9, oldest_outstanding_ns=80 * MS)
    assert bench.view(0).outstanding == 9
    bench.sequence = 0
    bench.interval(1, spread(100, MS, 2 * MS), outstanding=1, oldest_outstanding_ns=MS)
    view = bench.view(1)
    assert (view.state, view.outstanding, view.completed) == (ServiceState.OK, 1, 500)


def test_a_late_window_is_part_of_the_next_interval() -> None:
    """Two clients' windows of one bin arrive before and after the tick: no sample is passed over."""
    bench = Bench(PARTS_OFF)
    for number in range(5):
        bench.feed(number, [MS] * 10, client="a")
    for number in range(4):
        bench.feed(number, [MS] * 10, client="b")
    assert bench.view(0).completed == 90
    bench.feed(4, [90 * MS] * 10, client="b")
    bench.interval(1, [MS] * 10)
    view = bench.view(1)
    assert view.latency_ns == shown(90 * MS)
    assert view.window_ns == 6 * BIN_NS
    assert bench.view(1).window_ns == INTERVAL_NS


def test_a_missed_tick_is_made_up_for_by_one_interval_at_most() -> None:
    """What nobody has looked at yet is judged too; what is older is history."""
    bench = Bench()
    for number in range(4):
        bench.interval(number, [(number + 1) * MS] * 100)
    view = bench.view(3)
    assert (view.completed, view.window_ns) == (1000, 2 * INTERVAL_NS)
    assert view.load_rps == pytest.approx(1000)


def test_the_interval_ends_at_the_newest_window() -> None:
    """The bin that ends at the tick itself has not arrived yet; five complete ones are judged all the same."""
    bench = Bench()
    for number in range(9):
        bench.feed(number, spread(100, MS, 2 * MS))
        if number == 3:
            bench.view(0)
    view = bench.view(1)
    assert (view.completed, view.window_ns) == (500, INTERVAL_NS)
    assert view.age_ns == BIN_NS + 2 * MS


def test_a_window_wider_than_a_bin_counts_at_its_end() -> None:
    """A client may send every 500 ms; the vote falls back to one part."""
    bench = Bench()
    window = window_of(4, spread(500, MS, 2 * MS))
    bench.signal.feed(replace(window, window_start_ns=START_NS))
    view = bench.view(0)
    assert (view.state, view.completed) == (ServiceState.OK, 500)
    assert view.load_rps == pytest.approx(1000)


def test_history_and_strangers_are_counted_and_left_out() -> None:
    """A window from before the longest window, and one of a service that nobody registered."""
    bench = Bench()
    bench.feed(200, [MS] * 100)
    bench.feed(50, [90 * MS] * 100)
    bench.signal.feed(replace(window_of(200), service="nobody"))
    counters = bench.signal.counters()
    assert (counters["windows"], counters["too_old"], counters["unknown_service"]) == (2, 1, 1)
    assert bench.view(40).latency_ns == shown(MS)


def test_bins_do_not_pile_up() -> None:
    """Only what the longest window needs is kept, however long it runs."""
    bench = Bench()
    for number in range(100):
        bench.interval(number, [MS])
        bench.view(number)
    assert len(bench.signal._services["s"]._bins) <= 100 + 2 * 5 + 5


def test_services_come_and_go() -> None:
    """Registered at run time, and forgotten again."""
    bench = Bench()
    bench.signal.add("other", QosTarget(MS))
    assert set(bench.signal.views(START_NS)) == {"s", "other"}
    bench.signal.remove("s")
    bench.signal.remove("s")
    assert set(bench.signal.views(START_NS)) == {"other"}


def test_another_percentile_needs_another_number_of_samples() -> None:
    """p95 is supported by 20, p99.9 by 1000."""
    for percentile, count, state in (
        (95.0, 4, ServiceState.OK),
        (95.0, 3, ServiceState.FEW_SAMPLES),
        (99.9, 200, ServiceState.OK),
        (99.9, 199, ServiceState.FEW_SAMPLES),
    ):
        bench = Bench(percentile=percentile)
        bench.interval(0, [MS] * count)
        assert bench.view(0).state is state

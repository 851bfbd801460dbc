"""The signal: stalled and failing services, and requests without an answer."""

import pytest
from signal_kit import INTERVAL_NS, MS, START_NS, TARGET_NS, Bench, shown

from parties.model import ServiceState
from parties.settings import SignalSettings


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


def test_answers_from_before_a_change_do_not_excuse_errors_after_it() -> None:
    """The error rate, too, is judged by what came after a move."""
    bench = Bench()
    bench.interval(0, [MS] * 4)
    bench.view(0)
    bench.signal.note_change("s", START_NS + INTERVAL_NS)
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


def test_unsent_requests_count_towards_what_supports_the_percentile() -> None:
    """Eleven in each bin, six of them unsent: nine bins have a percentile's hundred less one, and ten are enough."""
    bench = Bench()
    for number in range(3):
        bench.interval(number, [MS] * 5, unsent=6)
        view = bench.view(number)
    assert (view.samples, view.window_ns) == (110, 1000 * MS)


def test_a_silence_is_counted_from_the_last_request_that_was_due() -> None:
    """Also where none of them was ever answered."""
    bench = Bench()
    bench.feed(4, failed=1)
    bench.view(0)
    bench.interval(1)
    assert bench.view(1).state is ServiceState.FEW_SAMPLES

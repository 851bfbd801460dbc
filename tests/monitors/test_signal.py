"""The signal: the usual case, what is stale, fresh and idle, and the paper's letter."""

import pytest
from signal_kit import INTERVAL_NS, MS, PARTS_OFF, START_NS, Bench, shown, spread

from parties.model import QosTarget, ServiceState
from parties.settings import SignalSettings


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


def test_a_silence_between_rare_requests_is_not_idle() -> None:
    """Two requests a second leave silent intervals: nothing is known of them. Seven mean gaps of silence are idle."""
    bench = Bench()
    for number in range(20):
        bench.feed(5 * number, [MS])
        assert bench.view(number).state is ServiceState.FEW_SAMPLES
    for number in range(20, 26):
        bench.interval(number)
        assert bench.view(number).state is ServiceState.FEW_SAMPLES
    for number in range(26, 34):
        bench.interval(number)
    assert bench.view(33).state is ServiceState.IDLE


def test_a_service_of_many_requests_is_idle_at_once() -> None:
    """After thousands a second, one silent interval is no chance; without the growing window, none ever is."""
    bench = Bench()
    bench.interval(0, [MS] * 500)
    assert bench.view(0).state is ServiceState.OK
    bench.interval(1)
    assert bench.view(1).state is ServiceState.IDLE
    bench = Bench(SignalSettings(window=False))
    bench.feed(0, [MS])
    bench.view(0)
    bench.interval(1)
    assert bench.view(1).state is ServiceState.IDLE


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

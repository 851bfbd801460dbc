"""The signal: many clients, late windows, missed ticks, and windows that are left out."""

from dataclasses import replace

import pytest
from signal_kit import BIN_NS, INTERVAL_NS, MS, PARTS_OFF, START_NS, Bench, shown, spread, window_of

from parties.model import ServiceState
from parties.settings import SignalSettings


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

"""The fluid queue: what is answered in a window, how long it stood, and what is left."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backlog import Backlog


def test_what_is_over_capacity_is_left() -> None:
    """300 arrive and 200 can be answered: the last of those arrived two thirds into the window."""
    flow = Backlog(10.0).advance(300, 2_000.0, 1.0, 1.1)
    assert (flow.sent, flow.unsent, flow.completed, flow.outstanding) == (300, 0, 200, 100)
    assert (flow.waited, flow.first_s) == (1.0, 0.0)
    assert flow.last_s == flow.oldest_s == pytest.approx(0.1 / 3)


def test_a_backlog_that_ends_in_a_window_makes_only_a_part_of_it_wait() -> None:
    """100 wait, 100 come and 300 can be answered: gone after half the window, in which 150 of the 200 are answered."""
    backlog = Backlog(10.0)
    backlog.advance(100, 0.0, 0.0, 0.1)
    flow = backlog.advance(100, 3_000.0, 0.1, 0.2)
    assert (flow.completed, flow.outstanding, flow.oldest_s) == (200, 0, 0.0)
    assert flow.waited == pytest.approx(0.75)
    assert flow.first_s == pytest.approx(0.1)
    assert flow.last_s == 0.0


def test_fractions_of_a_request_are_carried_over() -> None:
    """At 10.75 requests a window, 40 windows answer 430."""
    backlog = Backlog(1_000.0)
    backlog.advance(1_000, 0.0, 0.0, 0.1)
    completed = sum(backlog.advance(0, 107.5, 0.1 * window, 0.1 * (window + 1)).completed for window in range(1, 41))
    assert completed == pytest.approx(430, abs=1)


def test_an_idle_server_saves_nothing_up() -> None:
    """What could have been answered while nothing was there does not help later."""
    backlog = Backlog(10.0)
    backlog.advance(0, 1_009.0, 0.0, 0.1)
    assert backlog.advance(200, 1_009.0, 0.1, 0.2).completed == 100


def test_the_oldest_ages_through_changes_of_capacity() -> None:
    """First come, first served: the age of the head is the time since it came, whatever was answered meanwhile."""
    backlog = Backlog(100.0)
    backlog.advance(100, 0.0, 0.0, 1.0)
    assert backlog.advance(0, 0.0, 1.0, 2.0).oldest_s == pytest.approx(2.0)
    half = backlog.advance(100, 50.0, 2.0, 3.0)
    assert [half.first_s, half.oldest_s] == pytest.approx([2.0, 2.5])
    assert backlog.advance(0, 100.0, 3.0, 4.0).oldest_s == pytest.approx(1.5)


def test_what_is_taken_out_is_what_was_there() -> None:
    """Each request has its arrival, in order, and is put into another queue as it was."""
    backlog = Backlog(10.0)
    backlog.advance(4, 0.0, 0.0, 1.0)
    arrivals_s = backlog.take()
    assert arrivals_s == pytest.approx([0.125, 0.375, 0.625, 0.875])
    assert backlog.count == 0
    backlog.put(arrivals_s)
    assert backlog.advance(0, 0.0, 1.0, 2.0).oldest_s == pytest.approx(1.875)
    assert backlog.take() == arrivals_s


def test_unlimited_capacity_answers_everything() -> None:
    """Without any station nothing is left."""
    flow = Backlog(10.0).advance(300, math.inf, 0.0, 0.1)
    assert (flow.completed, flow.outstanding) == (300, 0)


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 8_000)), max_size=40), st.floats(0.05, 2.0))
def test_requests_are_conserved_and_wait_no_longer_than_clients_do(steps: list[tuple[int, float]], longest_wait_s: float) -> None:
    """What was sent is answered or there; ages are within the time that passed; nothing is answered beyond capacity."""
    backlog, sent, completed, could = Backlog(longest_wait_s), 0, 0, 1.0
    for window, (arrived, capacity_rps) in enumerate(steps):
        flow = backlog.advance(arrived, capacity_rps, 0.1 * window, 0.1 * (window + 1))
        sent, completed, could = sent + flow.sent, completed + flow.completed, could + capacity_rps * 0.1
        assert flow.sent + flow.unsent == arrived
        assert sent == completed + flow.outstanding
        assert completed <= could
        assert 0 <= flow.oldest_s <= 0.1 * (window + 1) + 1e-9
        assert (flow.outstanding > 0) or flow.oldest_s == 0
        assert 0 <= flow.waited <= 1
        if capacity_rps > 0 and flow.sent:
            assert flow.outstanding <= capacity_rps * longest_wait_s + 1

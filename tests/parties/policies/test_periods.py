"""When a controller is due, and what it takes for the tail of its period."""

from __future__ import annotations

import math
import random

import pytest

from parties.policies.periods import Period, PeriodTail


def tail(*slacks: float | None, percentile: float = 99.0) -> float | None:
    """The slack of a period of these intervals."""
    period = PeriodTail(percentile)
    for slack in slacks:
        period.see(slack)
    return period.take_slack()


def test_a_period_begins_at_once_and_keeps_its_phase() -> None:
    """A turn that comes late does not make the next ones later; one that was missed is not made up for."""
    period = Period(10)
    assert [now for now in (3, 4, 12, 14, 22, 23, 24, 33, 60, 61, 69, 70) if period.now(now)] == [3, 14, 23, 33, 60, 70]


def test_intervals_alike_have_the_tail_of_each() -> None:
    """Nothing is added and nothing lost."""
    assert tail(0.3) == pytest.approx(0.3)
    assert tail(*[0.3] * 30) == pytest.approx(0.3)


def test_nothing_seen_is_nothing_known() -> None:
    """None does not count; what was taken is not seen again."""
    assert tail() is None
    assert tail(None, None) is None
    assert tail(None, 0.2) == pytest.approx(0.2)
    period = PeriodTail(99.0)
    period.see(0.1)
    period.take_slack()
    assert period.take_slack() is None


def test_one_interval_far_beyond_the_target_is_a_violation_and_one_near_it_is_not() -> None:
    """Of thirty: at four times the target a third of its requests are beyond, over 1 % of all; at one and a half, not."""
    good = [0.2] * 29
    far, near = tail(*good, -3.0), tail(*good, -0.5)
    assert far is not None
    assert near is not None
    assert far < 0.0 < near < 0.2


def test_a_stalled_interval_is_the_tail_where_it_has_that_share() -> None:
    """One of thirty is more than 1 %; of the median one in three is not enough, but makes the tail longer."""
    assert tail(*[0.2] * 29, -math.inf) == -math.inf
    some = tail(0.2, 0.2, -math.inf, percentile=50.0)
    assert some is not None
    assert -math.inf < some < 0.2


def test_idle_intervals_have_no_tail() -> None:
    """Nothing asked for, nothing beyond: the tail is that of the others, a little shorter."""
    assert tail(1.0, 1.0) == pytest.approx(1.0)
    mixed = tail(1.0, 0.2)
    assert mixed is not None
    assert 0.2 < mixed < 0.4


def test_the_estimate_is_the_percentile_of_all_requests() -> None:
    """Intervals with exponential response times of different means: the percentile of all of them together, within 3 %."""
    rng = random.Random(1)  # noqa: S311 - replayable
    means = [0.1, 0.15, 0.2, 0.25]
    together = sorted(rng.expovariate(1 / mean) for mean in means for _ in range(50_000))
    estimated = tail(*(1.0 - mean * math.log(100) for mean in means))
    assert estimated is not None
    assert 1.0 - estimated == pytest.approx(together[int(0.99 * len(together))], rel=0.03)

"""How a run is measured at its clients: what is a violation, and over which requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitors.histogram_message import Window
from parties.histogram import Histogram, bucket, lower, upper
from parties.model import QosTarget
from simulator.measure import ServiceMeasure

MS = 1_000_000
TARGET = QosTarget(10 * MS)
FAST, SLOW = 5 * MS, 20 * MS


def window(
    latencies_ns: Sequence[int] = (), *, failed: int = 0, unsent: int = 0, outstanding: int = 0, oldest_ns: int = 0
) -> Window:
    """One window with these answers."""
    histogram = Histogram()
    for latency_ns in latencies_ns:
        histogram.add(latency_ns)
    return Window(
        "web",
        "client",
        1,
        0,
        500 * MS,
        completed=len(latencies_ns),
        failed=failed,
        unsent=unsent,
        outstanding=outstanding,
        oldest_outstanding_ns=oldest_ns,
        histogram=histogram,
    )


def measured(*intervals: Sequence[Window], latencies: bool = True) -> ServiceMeasure:
    """What is said after these intervals."""
    measure = ServiceMeasure(TARGET, 500 * MS, latencies=latencies)
    for windows in intervals:
        measure.take(windows)
    return measure


@pytest.mark.parametrize(("late", "violated"), [(0, False), (10, False), (11, True), (1000, True)])
def test_more_late_requests_than_the_percentile_leaves_room_for_are_a_violation(late: int, violated: bool) -> None:  # noqa: FBT001 - a case
    """Of a thousand requests ten may be over the target of p99, and eleven may not; in one window or in five."""
    requests = [SLOW] * late + [FAST] * (1000 - late)
    assert measured([window(requests)]).violated == [violated]
    assert measured([window(requests[part::5]) for part in range(5)]).violated == [violated]


@given(st.lists(st.integers(1, 20 * MS), min_size=100, max_size=400))
def test_a_violation_is_a_percentile_over_the_target(latencies_ns: list[int]) -> None:
    """Counting late requests says the same as taking the percentile and comparing it, and the series has that percentile."""
    measure = measured([window(latencies_ns)])
    percentile_ns = window(latencies_ns).histogram.percentile(99.0)
    assert percentile_ns is not None
    assert measure.latency_ns == [percentile_ns]
    assert measure.violated == [percentile_ns > TARGET.latency_ns]


def test_what_failed_was_never_sent_or_waits_too_long_is_late() -> None:
    """Two such requests among a hundred are one more than p99 allows, whichever way they did not come back in time."""
    good = [FAST] * 98
    assert measured([window([*good, SLOW, FAST])]).violated == [False]
    assert measured([window([*good, SLOW], failed=1)]).violated == [True]
    assert measured([window([*good, SLOW], unsent=1)]).violated == [True]
    assert measured([window([*good, SLOW], outstanding=1, oldest_ns=SLOW)]).violated == [True]
    assert measured([window([*good, SLOW], outstanding=1, oldest_ns=FAST)]).violated == [False]


def test_few_requests_are_judged_with_those_before_them_for_ten_seconds_at_most() -> None:
    """Ten requests an interval: two late ones are a violation as long as they are among the latest hundred, and no longer."""
    late, good = [window([SLOW] * 2 + [FAST] * 8)], [window([FAST] * 10)]
    measure = measured(*[good] * 9, late, *[good] * 20)
    assert measure.violated == [False] * 9 + [True] * 10 + [False] * 11


def test_too_few_requests_are_a_violation_only_where_they_prove_it() -> None:
    """Five answers, one late: nothing is said, though their largest is over the target; three late ones cannot be chance."""
    assert measured([window([SLOW] + [FAST] * 4)]).violated == [False]
    assert measured([window([SLOW] * 3 + [FAST] * 2)]).violated == [True]


def test_nothing_completing_is_a_violation_once_the_oldest_request_is_late_and_old() -> None:
    """A request that waits longer than target and interval, and no answer; the first interval may still be chance."""
    waiting = [window(outstanding=1, oldest_ns=400 * MS)]
    stuck = [window(outstanding=1, oldest_ns=900 * MS)]
    assert measured(waiting, stuck).violated == [False, True]
    assert measured([window()], []).violated == [False, False]
    assert measured([window()]).latency_ns == [None]


def test_the_whole_of_a_stretch_is_judged_by_all_its_requests() -> None:
    """One bad interval of ten does no harm where its late requests are under one in a hundred of all, and does by itself."""
    good, bad = [window([FAST] * 1000)], [window([SLOW] * 90 + [FAST] * 910)]
    measure = measured(*[good] * 9, bad)
    assert measure.violated[-1]
    assert measure.met_over(0)
    assert not measure.met_over(5)
    assert measure.met_over(0, 9)
    assert measured([window()]).met_over(0)


def test_latencies_are_left_out_where_nobody_wants_them() -> None:
    """The judgement is the same without the series."""
    windows = [window([SLOW] * 90 + [FAST] * 910)]
    assert measured(windows, latencies=False).latency_ns == []
    assert measured(windows, latencies=False).violated == measured(windows).violated


def test_a_latency_is_the_upper_end_of_its_bucket_also_at_the_target() -> None:
    """In the target's own bucket a request is late unless the bucket ends with the target: one reading here and in the signal."""
    within = lower(bucket(TARGET.latency_ns))
    assert within < TARGET.latency_ns < upper(bucket(TARGET.latency_ns))
    assert measured([window([within] * 1000)]).violated == [True]
    ends = ServiceMeasure(QosTarget(upper(bucket(TARGET.latency_ns))), 500 * MS)
    ends.take([window([within] * 1000)])
    assert ends.violated == [False]


def test_answers_show_that_a_service_is_slow_and_not_stuck() -> None:
    """One answer in time beside an old request: too few to say anything."""
    assert measured([window([FAST] * 3, outstanding=1, oldest_ns=900 * MS)]).violated == [False]


def test_a_stretch_is_ten_seconds_long_at_most() -> None:
    """One request an interval: the two late ones are twenty intervals away when they are forgotten, and not before."""
    late, good = [window([SLOW])], [window([FAST])]
    measure = measured(late, late, *[good] * 25)
    assert measure.violated == [False] * 2 + [True] * 18 + [False] * 7  # two by themselves prove nothing
    assert measure.latency_ns[19] == measure.latency_ns[20] == window([SLOW]).histogram.percentile(99.0)
    assert measure.latency_ns[21] == window([FAST]).histogram.percentile(99.0)

"""The demo's load, and what is taken for a target."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.demo.calibration import judge, target_of
from workloads.demo.plan import FULL, MEMCACHED, MS, NGINX, PERIOD_NS, QUICK, Calibration, Plan, Timeline
from workloads.knee import KneeError, Point
from workloads.load import profile_text

CALIBRATIONS = {MEMCACHED.name: Calibration(10 * MS, 5000), NGINX.name: Calibration(15 * MS, 2000)}


@pytest.mark.parametrize("timeline", [FULL, QUICK])
def test_one_service_ramps_and_the_other_holds(timeline: Timeline) -> None:
    """One service goes from its low to its high share of its maximum load and back; the other keeps its own."""
    plan = Plan(timeline=timeline)
    profiles = plan.profiles(CALIBRATIONS)
    rates = [rate for _, rate in profiles[MEMCACHED.name]]
    assert rates[0] == rates[1] == rates[-1] == pytest.approx(plan.ramp_low * 5000)
    assert max(rates) == pytest.approx(plan.ramp_high * 5000)
    assert [rate for _, rate in profiles[NGINX.name]] == pytest.approx([plan.hold * 2000] * 2)
    assert profiles[MEMCACHED.name][-1][0] == profiles[NGINX.name][-1][0] == plan.timeline.length_s


def test_controller_may_settle_before_the_ramp() -> None:
    """The full run's load does not change in its first 20 s, and four managers with a scan stay within six minutes."""
    ramp = Plan().profiles(CALIBRATIONS)[MEMCACHED.name]
    assert ramp[0][1] == ramp[1][1]
    assert ramp[1][0] >= 20
    assert 4 * FULL.length_s < 300


def test_profile_is_written_as_the_generator_reads_it() -> None:
    """Times in whole milliseconds with their unit, rates in whole requests per second."""
    assert profile_text([(0.0, 100.4), (12.5, 2000.0)]) == "0ms 100\n12500ms 2000\n"


@given(st.integers(0, 10**9))
def test_target_is_one_and_a_half_to_two_periods(knee_ns: int) -> None:
    """Whatever the scan says, the target is one that bandwidth control can hold, not beyond the knee, and a round figure."""
    target_ns = target_of(knee_ns)
    assert 1.5 * PERIOD_NS <= target_ns <= 2 * PERIOD_NS
    assert target_ns % (MS // 2) == 0
    if 1.5 * PERIOD_NS <= knee_ns <= 2 * PERIOD_NS:
        assert 0 <= target_ns - knee_ns < MS // 2


def test_target_and_maximum_load_of_a_curve() -> None:
    """The knee at 2 ms gives the least target there is, 15 ms, and the maximum load is where the curve meets it."""
    points = [Point(100 * n, 2 * MS) for n in range(1, 8)]
    points += [Point(800, 12 * MS), Point(900, 62 * MS), Point(1000, 200 * MS, saturated=True)]
    found = judge(points)
    assert found.calibration == Calibration(15 * MS, 806)


def test_machine_too_busy_to_calibrate() -> None:
    """A curve that is over every target from its first point on is refused."""
    with pytest.raises(KneeError, match="too busy"):
        judge([Point(100 * n, (24 + n) * MS) for n in range(1, 6)] + [Point(700, 70 * MS)])

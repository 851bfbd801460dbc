"""The knee of load-latency curves."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.knee import KneeError, Point, envelope, find_knee, max_load

MS = 1_000_000
CLIP_NS = 50 * MS


def queue_curve(capacity_rps: float, service_ms: float, shares: list[float]) -> list[Point]:
    """The p99 of an M/M/1 queue, ln(100) times its mean, at shares of its capacity; at and beyond it, saturated."""
    points = []
    for share in shares:
        p99_ms = math.log(100) * service_ms / (1 - share) if share < 1 else math.inf
        points.append(Point(share * capacity_rps, round(min(p99_ms, 10_000) * MS), saturated=share >= 1))
    return points


SHARES = [0.35, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.06]


def test_knee_of_a_queue_lies_where_the_curve_turns() -> None:
    """The knee of an ideal queue is between 80 and 95 % of its capacity, however fast the service is."""
    for service_ms in (0.1, 0.3):
        knee = find_knee(queue_curve(1000, service_ms, SHARES), clip_ns=CLIP_NS)
        assert 800 <= knee.load_rps <= 980
        assert knee.p99_ns < CLIP_NS / 2


def test_hockey_stick_has_its_knee_at_the_last_flat_point() -> None:
    """A curve that is flat and then jumps has its knee right before the jump."""
    points = [Point(100 * n, 2 * MS) for n in range(1, 8)] + [Point(800, 40 * MS), Point(900, 400 * MS, saturated=True)]
    assert find_knee(points, clip_ns=CLIP_NS).load_rps == 700


def test_spike_at_a_low_load_does_not_end_the_curve() -> None:
    """A hiccup of the machine in the flat part neither is the knee nor caps the maximum load."""
    calm = queue_curve(1000, 0.3, SHARES)
    disturbed = [*calm]
    disturbed[3] = Point(calm[3].load_rps, 148 * MS, saturated=True)
    assert find_knee(disturbed, clip_ns=CLIP_NS).load_rps == find_knee(calm, clip_ns=CLIP_NS).load_rps
    assert max_load(disturbed, 10 * MS) == pytest.approx(max_load(calm, 10 * MS))


@given(st.integers(0, 2**32), st.floats(0.0, 0.4))
def test_noise_moves_the_knee_little(seed: int, spread: float) -> None:
    """Noise of up to 40 % on every point leaves the knee within the upper part of the curve and the target within the clip."""
    rng = random.Random(seed)  # noqa: S311 - wants a seed
    noisy = [
        Point(point.load_rps, round(point.p99_ns * (1 + rng.uniform(0, spread))), point.saturated)
        for point in queue_curve(1000, 0.3, SHARES)
    ]
    knee = find_knee(noisy, clip_ns=CLIP_NS)
    assert 700 <= knee.load_rps <= 980
    assert knee.p99_ns <= CLIP_NS


@given(st.lists(st.integers(1, 1_000), min_size=1))
def test_envelope_is_the_largest_monotone_curve_below(values: list[int]) -> None:
    """The envelope never falls, is nowhere above the values, and raising any point of it would break one of the two."""
    found = envelope(values)
    assert list(found) == sorted(found)
    assert all(low <= value for low, value in zip(found, values, strict=True))
    assert all(low == min(values[index:]) for index, low in enumerate(found))


@given(st.lists(st.integers(1, 60 * MS), min_size=4, max_size=20), st.integers(1 * MS, 50 * MS))
def test_max_load_is_within_the_scan(latencies: list[int], target_ns: int) -> None:
    """Whatever the curve, the maximum load is at most the highest load tried, and 0 only if the lowest is over the target."""
    points = [Point(100 * (n + 1), latency) for n, latency in enumerate(latencies)]
    highest = max_load(points, target_ns)
    assert 0 <= highest <= points[-1].load_rps
    assert (highest == 0) == (envelope(latencies)[0] > target_ns)


def test_max_load_runs_straight_between_points() -> None:
    """A target half-way between two points' latencies gives the load half-way between them."""
    points = [Point(100, 2 * MS), Point(200, 4 * MS), Point(300, 8 * MS)]
    assert max_load(points, 6 * MS) == pytest.approx(250)


def test_max_load_stops_at_the_last_step_before_saturation() -> None:
    """The latency of a saturated step means nothing, so nothing is interpolated towards it."""
    points = [Point(100, 2 * MS), Point(200, 4 * MS), Point(300, 5 * MS, saturated=True)]
    assert max_load(points, 20 * MS) == 200


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([Point(100, MS), Point(200, 60 * MS)], "usable steps"),
        ([Point(100 * n, 2 * MS) for n in range(1, 8)], "scan further"),
        ([Point(100 * n, 30 * MS) for n in range(1, 8)], "scan further"),
        ([Point(100 * n, 60 * MS, saturated=True) for n in range(1, 8)], "usable steps"),
    ],
)
def test_curve_without_a_knee_is_refused(points: list[Point], words: str) -> None:
    """Too few steps, a flat curve, and one that is overloaded from the start are named, not guessed at."""
    with pytest.raises(KneeError, match=words):
        find_knee(points, clip_ns=CLIP_NS)

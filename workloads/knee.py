"""Finds a service's QoS target and maximum load from its load-latency curve (paper, section 3.1).

The target is the p99 at the knee of the curve, the maximum load what the service takes within that target. Both come from a scan
of a few seconds, so noise is met where it arises: the curve is made monotone first (latency cannot fall as load rises), and the
knee is the point farthest below the chord of the clipped curve (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011), which
hiccups in the flat part do not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_POINTS = 4


class KneeError(Exception):
    """A curve without a knee: too few points, or load that never became too much."""


@dataclass(frozen=True, slots=True)
class Point:
    """One step of a scan: the load asked for and the tail that came of it."""

    load_rps: float
    p99_ns: int
    saturated: bool = False  # requests went unsent, or the queue grew from the step's first half to its second


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the curve turns."""

    load_rps: float
    p99_ns: int


def isotonic(values: Sequence[float]) -> tuple[float, ...]:
    """The non-decreasing sequence nearest to the values in least squares (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []  # mean, members
    for value in values:
        mean, count = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, members = blocks.pop()
            mean = (mean * count + before * members) / (count + members)
            count += members
        blocks.append((mean, count))
    return tuple(mean for mean, count in blocks for _ in range(count))


def find_knee(points: Sequence[Point], *, clip_ns: int) -> Knee:
    """The knee of a scan. Latencies above ``clip_ns``, and all of a saturated step, count as that much.

    Raises KneeError if there are fewer than four points, or if no point reaches half of the clip: then the scan ended before the
    service was loaded enough for a knee to show.
    """
    ordered = sorted(points, key=lambda point: point.load_rps)
    end = next((index for index, point in enumerate(ordered) if _overloaded(point, clip_ns)), len(ordered) - 1)
    ordered = ordered[: end + 1]
    if len(ordered) < LEAST_POINTS:
        raise KneeError(f"{len(ordered)} usable steps; a knee needs {LEAST_POINTS}: start at a lower load")
    curve = isotonic([clip_ns if _overloaded(point, clip_ns) else point.p99_ns for point in ordered])
    if curve[-1] < clip_ns / 2:
        raise KneeError(f"p99 rises only to {curve[-1] / 1e6:.1f} ms at {ordered[-1].load_rps:.0f} requests/s: scan further")
    first, last = ordered[0].load_rps, ordered[-1].load_rps
    height = curve[-1] - curve[0]

    def below_chord(index: int) -> float:
        return (ordered[index].load_rps - first) / (last - first) - (curve[index] - curve[0]) / height

    index = max(range(len(ordered)), key=below_chord)
    return Knee(ordered[index].load_rps, round(curve[index]))


def max_load(points: Sequence[Point], target_ns: int) -> float:
    """The highest load within the target, by the monotone curve, straight between its points. 0 if even the lowest is over it."""
    ordered = sorted(points, key=lambda point: point.load_rps)
    end = next((index for index, point in enumerate(ordered) if point.saturated), len(ordered))
    curve = isotonic([point.p99_ns for point in ordered[:end]])
    best = 0.0
    for index, latency_ns in enumerate(curve):
        load = ordered[index].load_rps
        if latency_ns > target_ns:
            if index:
                share = (target_ns - curve[index - 1]) / (latency_ns - curve[index - 1])
                best = ordered[index - 1].load_rps + share * (load - ordered[index - 1].load_rps)
            break
        best = load
    return best


def _overloaded(point: Point, clip_ns: int) -> bool:
    return point.saturated or point.p99_ns >= clip_ns

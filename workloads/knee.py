"""Finds a service's QoS target and maximum load from its load-latency curve (paper, section 3.1).

The target is the p99 at the knee of the curve, the maximum load what the service takes within that target. Both come from a scan
of a few seconds, so noise is met where it arises: the curve is made monotone first (a hiccup at a low load does not outweigh a good
figure at a higher one), and the knee is the point farthest below the chord of the clipped curve (Satopaa et al., "Finding a
'Kneedle' in a Haystack", 2011), which noise in the flat part does not move.
"""

from __future__ import annotations

import math
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


def envelope(values: Sequence[float]) -> tuple[float, ...]:
    """The largest non-decreasing sequence that is nowhere above the values.

    Interference of others only ever adds latency, and a backlog only spoils the steps after it: what a higher load achieved, a
    lower one could have.
    """
    lowest = list(values)
    for index in range(len(lowest) - 2, -1, -1):
        lowest[index] = min(lowest[index], lowest[index + 1])
    return tuple(lowest)


def find_knee(points: Sequence[Point], *, clip_ns: int) -> Knee:
    """The knee of a scan. Latencies above ``clip_ns``, and all of a saturated step, count as that much.

    Raises KneeError if there are fewer than four points, if the curve is flat, or if no point reaches half of the clip: then the
    scan ended before the service was loaded enough for a knee to show.
    """
    ordered = sorted(points, key=lambda point: point.load_rps)
    curve = envelope([clip_ns if point.saturated else min(clip_ns, point.p99_ns) for point in ordered])
    end = next((index for index, latency_ns in enumerate(curve) if latency_ns >= clip_ns), len(curve) - 1)
    ordered, curve = ordered[: end + 1], curve[: end + 1]
    if len(ordered) < LEAST_POINTS:
        raise KneeError(f"{len(ordered)} usable steps; a knee needs {LEAST_POINTS}: start at a lower load")
    if curve[-1] < clip_ns / 2 or curve[-1] == curve[0]:
        highest = f"{curve[-1] / 1e6:.1f} ms at {ordered[-1].load_rps:.0f} requests/s"
        raise KneeError(f"p99 goes from {curve[0] / 1e6:.1f} only to {highest}: scan further")
    first, last = ordered[0].load_rps, ordered[-1].load_rps
    height = curve[-1] - curve[0]

    def below_chord(index: int) -> float:
        return (ordered[index].load_rps - first) / (last - first) - (curve[index] - curve[0]) / height

    index = max(range(len(ordered)), key=below_chord)
    return Knee(ordered[index].load_rps, round(curve[index]))


def max_load(points: Sequence[Point], target_ns: int) -> float:
    """The highest load within the target, by the monotone curve, straight between its points. 0 if even the lowest is over it."""
    ordered = sorted(points, key=lambda point: point.load_rps)
    curve = envelope([math.inf if point.saturated else point.p99_ns for point in ordered])
    best = 0.0
    for index, latency_ns in enumerate(curve):
        load = ordered[index].load_rps
        if latency_ns <= target_ns:
            best = load
            continue
        if index and not math.isinf(latency_ns):  # the latency of a saturated step has no meaning
            before_ns = curve[index - 1]
            best += (load - best) * (target_ns - before_ns) / (latency_ns - before_ns)
        break
    return best

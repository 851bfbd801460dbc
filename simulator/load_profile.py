"""Loads over time: constant, or a profile of points in time with straight lines between them.

A *load* is a fraction of a service's maximum load (Table 2).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LARGEST_LOAD = 1.5
"""The largest load that is accepted. The maximum load is where the tail leaves its target on the whole machine, and the machine is
saturated soon after. Half as much again, no allocation serves any longer: what comes out tells how long clients wait, and nothing
about managers."""


class LoadError(ValueError):
    """A load or a profile file that is no good. The message says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """A load over time: points of (s, fraction of maximum load), straight lines between them, level before and after.

    Two points at the same time are a jump, to the later of the two. Raises LoadError for points that are none.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise LoadError("a load profile has no points; give at least one time and fraction")
        before_s = 0.0
        for time_s, fraction in self.points:
            if not (math.isfinite(time_s) and time_s >= before_s):
                raise LoadError(f"a load profile's times must ascend from 0, and {time_s:g} s comes after {before_s:g} s")
            before_s = time_s
            checked_load(fraction)

    @classmethod
    def steady(cls, fraction: float) -> LoadProfile:
        """The same load all the time."""
        return cls(((0.0, fraction),))

    @property
    def constant(self) -> bool:
        """Whether it never changes."""
        return len({fraction for _, fraction in self.points}) == 1

    def at(self, time_s: float) -> float:
        """The load at a moment."""
        after = bisect_right(self.points, time_s, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        from_s, fraction = self.points[after - 1]
        if after == len(self.points):
            return fraction
        to_s, following = self.points[after]
        return fraction + (following - fraction) * (time_s - from_s) / (to_s - from_s)

    def mean(self, start_s: float, end_s: float) -> float:
        """The mean load of a stretch of time, exactly."""
        if self.constant or end_s <= start_s:
            return self.at(start_s)
        inner = [point for point in self.points if start_s < point[0] < end_s]
        # A jump's two points have no area between them, and ``at`` gives its later one.
        corners = [(start_s, self.at(start_s)), *inner, (end_s, self._before(end_s))]
        area = sum((corners[i + 1][0] - corners[i][0]) * (corners[i + 1][1] + corners[i][1]) / 2 for i in range(len(corners) - 1))
        return area / (end_s - start_s)

    def _before(self, time_s: float) -> float:
        """The load just before a moment, which at a jump is the earlier of the two."""
        return next((fraction for at_s, fraction in self.points if at_s == time_s), self.at(time_s))


def checked_load(fraction: float) -> float:
    """The fraction, if it is a load. Raises LoadError."""
    if not 0.0 <= fraction <= LARGEST_LOAD:
        raise LoadError(
            f"load {fraction:g} is not between 0 and {LARGEST_LOAD:g}; it is a fraction of the service's maximum load, 0.4 for 40 %"
        )
    return fraction


def load_from(text: str, *, folder: Path = Path()) -> LoadProfile:
    """A load as it is written after ``--service NAME=``: a fraction, or a file with a profile. Raises LoadError."""
    try:
        fraction = float(text)
    except ValueError:
        return read_profile(folder / text)
    return LoadProfile.steady(checked_load(fraction))


def read_profile(path: Path) -> LoadProfile:
    """The profile of a file: a time in seconds and a fraction on each line, blanks or a comma between them; # begins a comment.

    Raises LoadError that names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
        raise LoadError(
            f"load profile {path} cannot be read: {reason}; say a fraction such as 0.4, or name a file of times and fractions"
        ) from None
    return profile_of(lines, str(path))


def profile_of(lines: Iterable[str], file: str = "") -> LoadProfile:
    """The profile of such lines; messages name the file, if there is one. Raises LoadError."""
    points = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if words:
            points.append(_point(words, f"{file}:{number}" if file else f"point {number}"))
    try:
        return LoadProfile(tuple(points))
    except LoadError as error:
        raise LoadError(f"{file}: {error}" if file else str(error)) from None


def _point(words: Sequence[str], where: str) -> tuple[float, float]:
    try:
        time_s, fraction = (float(word) for word in words)
    except ValueError:
        raise LoadError(
            f"{where}: {' '.join(words)!r} is not a time in seconds and a fraction of the maximum load, such as '25 0.1'"
        ) from None
    try:
        return time_s, checked_load(fraction)
    except LoadError as error:
        raise LoadError(f"{where}: {error}") from None

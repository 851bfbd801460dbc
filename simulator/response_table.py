"""Quantiles of wait + service from tables, in units of the mean service time.

The wait is 0 or exponential, the service gamma. With F the distribution of the service and P, w those of the wait, the sum's is
F - P g, where g' = f - g / w: one pass over a grid for all w at once. Between the tables' nodes everything is interpolated
linearly: over the coefficient of variation of the service, the logarithm of the wait's probability, and the wait's mean.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.conditions import Response

Floats = npt.NDArray[np.float64]

GRID_PER_DECADE: Final = 20  # quantiles to each factor of ten of what is above them
GRID_SIZE: Final = 7 * GRID_PER_DECADE + 1  # from the minimum to 1 - 1e-7

# Coefficients of variation; more than the last counts as the last.
_CV: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)
_SMALL: Final = (1e-4, 2e-4, 5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7e-3, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.065, 0.08)
_PROBABILITIES: Final = (0.0, *_SMALL, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_LEAST_WAIT: Final = 0.02
_WAIT_STEP: Final = 1.35
_WAITS: Final = (0.0, *(_LEAST_WAIT * _WAIT_STEP**step for step in range(33)))  # to 300 service times; linear from there
_PER_WAIT: Final = len(_PROBABILITIES)  # rows
_ONES: Final = 0  # the row of a constant service without wait, and so of what is fixed
CORNERS: Final = 1 + 2**3
_TINY: Final = 1e-300


class Tables:
    """The tables that were asked for so far, as rows of quantiles. A pure cache: what it answers does not depend on its past."""

    def __init__(self) -> None:
        self.rows: Floats = _constant_table()  # row ``_ONES`` is 1 everywhere
        self._first: dict[int, int] = {0: 0}  # node of _CV -> its first row

    def corners(self, response: Response) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """``CORNERS`` rows, and the weights in s that make the response time of them."""
        fixed_s, wait_probability, wait_s, service_s, service_scv, _ = response
        probability, along = _probability_cell(wait_probability)
        if service_s <= 0:  # no unit of the tables: what the longest wait adds to a constant service, as much as is wanted of it
            part = wait_s / _WAITS[-1]
            row = (len(_WAITS) - 1) * _PER_WAIT + probability
            return (_ONES, row, row + 1, *[_ONES] * 6), (fixed_s - part, part * (1 - along), part * along, *[0.0] * 6)
        cv = math.sqrt(service_scv)
        node = min(bisect_right(_CV, cv), len(_CV) - 1) - 1
        upper = min((cv - _CV[node]) / (_CV[node + 1] - _CV[node]), 1.0)
        wait, up = _wait_cell(wait_s / service_s)
        at = wait * _PER_WAIT + probability
        # A neighbour without weight need not be there.
        one = at + (self._row(node) if upper < 1 else self._row(node + 1))
        other = at + self._row(node + 1) if upper > 0 else one
        below, above, rest = (1 - upper) * service_s, upper * service_s, 1 - along
        below_up, above_up = below * up, above * up
        below -= below_up
        above -= above_up
        rows = (one, one + 1, one + _PER_WAIT, one + _PER_WAIT + 1, other, other + 1, other + _PER_WAIT, other + _PER_WAIT + 1)
        weights_below = (below * rest, below * along, below_up * rest, below_up * along)
        weights_above = (above * rest, above * along, above_up * rest, above_up * along)
        return (_ONES, *rows), (fixed_s, *weights_below, *weights_above)

    def _row(self, node: int) -> int:
        first = self._first.get(node)
        if first is None:
            first = self._first[node] = len(self.rows)
            self.rows = np.concatenate((self.rows, _table(_CV[node])))
        return first


class Blend:
    """The quantiles of so many responses, each of which can be replaced. Few calls of numpy, as each costs more than its work."""

    def __init__(self, number: int) -> None:
        self._corners = np.zeros((number, CORNERS), dtype=np.intp)
        self._weights = np.zeros((number, 1, CORNERS))
        self._rows = np.empty((number, CORNERS, GRID_SIZE))

    def put(self, number: int, response: Response) -> None:
        """Replace one."""
        self._corners[number], self._weights[number, 0] = TABLES.corners(response)

    def times_s(self) -> Floats:
        """The response times in s, a row for each response."""
        TABLES.rows.take(self._corners, axis=0, out=self._rows, mode="clip")  # the other modes copy once more
        times: Floats = np.matmul(self._weights, self._rows)[:, 0]
        return times


def _wait_cell(wait: float) -> tuple[int, float]:
    """The node at or below a wait in service times, and the part of the way to the next."""
    if wait <= _LEAST_WAIT:
        return 0, wait / _LEAST_WAIT
    node = min(bisect_right(_WAITS, wait), len(_WAITS) - 1) - 1
    return node, (wait - _WAITS[node]) / (_WAITS[node + 1] - _WAITS[node])


def _probability_cell(probability: float) -> tuple[int, float]:
    """The node at or below a probability, and the part of the way to the next in its logarithm."""
    least = _PROBABILITIES[1]
    if probability <= least:
        return 0, max(0.0, probability) / least
    node = min(bisect_right(_PROBABILITIES, probability), len(_PROBABILITIES) - 1) - 1
    low, high = _PROBABILITIES[node], _PROBABILITIES[node + 1]
    return node, math.log(probability / low) / math.log(high / low)


def _table(cv: float) -> Floats:
    """The quantiles of a service of mean 1 with every wait and every probability, one row for each."""
    times = grid_of_times()
    above = gamma_tail(1 / (cv * cv), times)  # of the service alone
    added = _added(times, above)
    probabilities = np.array(_PROBABILITIES)[:, None]
    positions = np.arange(GRID_SIZE)
    rows = []
    for wait in range(len(_WAITS)):
        tails = above + probabilities * added[:, wait]
        grid = -GRID_PER_DECADE * np.log10(np.maximum(tails, _TINY))
        rows += [np.interp(positions, row, times) for row in grid]
    return np.array(rows)


def _constant_table() -> Floats:
    """The same for a service time that is always 1: no grid resolves its step, and none is needed."""
    decades = np.arange(GRID_SIZE) / GRID_PER_DECADE
    logarithm = np.log(np.maximum(_PROBABILITIES, _TINY))[:, None] + math.log(10) * decades
    table: Floats = 1 + np.array(_WAITS)[:, None, None] * np.maximum(0.0, logarithm)
    return table.reshape(-1, GRID_SIZE)


@lru_cache(maxsize=1)
def grid_of_times() -> Floats:
    """A grid of time in service times: fine where the service ends, and up to the last quantile of the longest wait."""
    small = 10.0 ** np.arange(-4.0, -2.0, 0.1)
    middle = np.arange(1, 300) / 100
    large = 3.0 * 1.05 ** np.arange(160)
    return np.concatenate(([0.0], small, middle, large))


def _added(times: Floats, above: Floats) -> Floats:
    """P(S <= t < S + W) for each time and each wait (columns), W exponential with the wait's mean."""
    waits = np.maximum(_WAITS, _TINY)
    added = np.zeros((len(times), len(waits)))
    for number, ((start, end), (before, after)) in enumerate(zip(pairwise(times), pairwise(above), strict=True), 1):
        kept = np.exp(-(end - start) / waits)
        # The service ends anywhere in the cell with the same density.
        added[number] = added[number - 1] * kept + (before - after) * waits / (end - start) * (1 - kept)
    return added


def gamma_tail(shape: float, times: Floats) -> Floats:
    """The probability that a gamma variable of mean 1 is over each of these times; relative error under 1e-12.

    The incomplete gamma function by its series below shape + 1 and its continued fraction above.
    """
    scaled = times * shape
    tail = np.ones(len(times))
    low = (scaled > 0) & (scaled < shape + 1)
    high = scaled >= shape + 1
    factor = np.exp(shape * np.log(np.maximum(scaled, _TINY)) - scaled - math.lgamma(shape))
    tail[low] = 1 - factor[low] * _series(shape, scaled[low])
    tail[high] = factor[high] * _continued_fraction(shape, scaled[high])
    return tail


def _series(shape: float, values: Floats) -> Floats:
    term = np.full(len(values), 1 / shape)
    total = term.copy()
    number = shape
    while len(values) and np.max(term / total) > 1e-16:  # noqa: PLR2004 - a double's precision
        number += 1
        term = term * values / number
        total += term
    return total


def _continued_fraction(shape: float, values: Floats) -> Floats:
    """Lentz's method; every partial denominator is positive here."""
    denominator = values + 1 - shape
    ahead: Floats = np.full(len(values), 1 / _TINY)
    inverse = 1 / denominator
    result = inverse.copy()
    change: Floats = np.array([2.0])
    number = 0
    while np.max(np.abs(change - 1)) > 1e-15:  # noqa: PLR2004 - as above
        number += 1
        numerator = -number * (number - shape)
        denominator = denominator + 2
        inverse = 1 / (numerator * inverse + denominator)
        ahead = denominator + numerator / ahead
        change = ahead * inverse
        result = result * change
    return result


TABLES: Final = Tables()

"""What arrives at a tenant, drawn ahead: random numbers that depend on seed, tenant and load alone.

Nothing here knows what a manager does, so two managers see the same arrivals. A busy tenant's requests are not drawn one by one:
the signal asks for a few order statistics of them, and those of uniform numbers can be drawn jointly and exactly as sums of gamma
spacings. Whoever knows the distribution of response times then has the latencies at those ranks. A tenant with few requests has
each of them listed, with its own demand.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from parties.histogram import samples_needed
from simulator.response_table import GRID_PER_DECADE

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
T = TypeVar("T", bound=np.generic)

BLOCK_TICKS: Final = 64  # drawn at once: 32 s of 500 ms intervals
SUB_INTERVALS: Final = 5  # windows of a busy tenant's client in an interval
LISTED_REQUESTS: Final = 32.0
"""With at most so many requests expected in an interval each one is simulated. With more, a sample of the steady state is as good,
and far cheaper."""

SPLIT_REQUESTS: Final = 0.6
"""From this part of the samples that support the percentile, in a sub-interval, the client reports each sub-interval; below, the
vote over sub-intervals (docs/signal.md) has too few samples and a window per interval says as much."""

DEMANDS: Final = 4  # stations that a listed request has a demand for

_NEAR: Final = (0.5, 1.1, 2.0, 3.5)  # standard deviations of the percentile's rank, to both sides of it
_BELOW: Final = (2.0, 8.0, 50.0)  # parts of the samples that are over the percentile, counted from the largest
_ABOVE: Final = 0.5
KEYS: Final = 2 + 2 * len(_NEAR) + 1 + len(_BELOW)
_ROUNDING: Final = 1e-9  # as in ``parties.histogram.rank_of``


class Profile(Protocol):
    """A load over time (``simulator.load_profile``)."""

    @property
    def constant(self) -> bool:
        """Whether it never changes."""

    def mean(self, start_s: float, end_s: float) -> float:
        """The mean load between two times, as a fraction of the largest."""


class Streams:
    """Independent random generators by name, from one seed.

    The same name gives the same stream from its beginning, whatever else was asked for before.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def generator(self, *name: str | int) -> np.random.Generator:
        """The generator of a name, which may have several parts."""
        digest = hashlib.blake2b(repr(name).encode(), digest_size=16).digest()  # the same in every process, unlike ``hash``
        words = tuple(int.from_bytes(digest[at : at + 4], "little") for at in range(0, len(digest), 4))
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=words))


@dataclass(frozen=True, slots=True)
class SampledBlock:
    """A block of intervals (first axis) of windows (second axis), with the samples of key ranks (third axis).

    ``positions`` are where the samples of those ranks are on the grid of ``simulator.queueing.quantiles``, ascending; ``cumulated``
    is how many of a window's samples each key rank stands for together with the lower ones.
    """

    rates_rps: Floats
    counts: Integers
    positions: Floats
    cumulated: Integers


@dataclass(frozen=True, slots=True)
class ListedBlock:
    """A block of intervals with every request: when it arrives, in s from the block's start, ascending, and its demands.

    Requests ``first[n]`` to ``first[n + 1]`` are those of interval n. A demand is a uniform number for each station.
    """

    rates_rps: Floats
    first: Integers
    arrivals_s: Floats
    demands: Floats


class Trace:
    """One tenant's arrivals, in blocks of ``BLOCK_TICKS`` intervals. Holds no state: a block is a function of its number."""

    def __init__(  # noqa: PLR0913 - everything that arrivals depend on, by name
        self,
        tenant: str,
        profile: Profile,
        *,
        max_load_rps: float,
        percentile: float,
        streams: Streams,
        interval_s: float,
    ) -> None:
        self._tenant = tenant
        self._profile = profile
        self._max_load_rps = max_load_rps
        self._percentile = percentile
        self._streams = streams
        self._interval_s = interval_s
        self._split_rps = SPLIT_REQUESTS * samples_needed(percentile) * SUB_INTERVALS / interval_s

    def block(self, number: int) -> SampledBlock | ListedBlock:
        """The block of that number, from 0."""
        rates = self._rates(number)
        busiest = float(rates.max())
        if busiest * self._interval_s <= LISTED_REQUESTS:
            return self._listed(number, rates.mean(axis=1))
        if busiest < self._split_rps:
            rates = rates.mean(axis=1, keepdims=True)
        rng = self._streams.generator(self._tenant, "arrivals", number)
        counts = rng.poisson(rates * (self._interval_s / rates.shape[1]))
        positions, cumulated = order_statistics(rng, counts, self._percentile)
        return SampledBlock(rates, counts, positions, cumulated)

    def _rates(self, number: int) -> Floats:
        """The expected requests per second in each sub-interval."""
        shape = (BLOCK_TICKS, SUB_INTERVALS)
        first_s = number * BLOCK_TICKS * self._interval_s
        if self._profile.constant:
            return np.full(shape, self._profile.mean(first_s, first_s + self._interval_s) * self._max_load_rps)
        step_s = self._interval_s / SUB_INTERVALS
        loads = [
            self._profile.mean(first_s + at * step_s, first_s + (at + 1) * step_s) for at in range(BLOCK_TICKS * SUB_INTERVALS)
        ]
        return np.array(loads).reshape(shape) * self._max_load_rps

    def _listed(self, number: int, rates: Floats) -> ListedBlock:
        rng = self._streams.generator(self._tenant, "arrivals", number)
        counts = rng.poisson(rates * self._interval_s)
        first = np.concatenate(([0], np.cumsum(counts)))
        ticks = np.repeat(np.arange(BLOCK_TICKS), counts)
        arrivals_s = np.sort(ticks + rng.random(len(ticks))) * self._interval_s
        demands = self._streams.generator(self._tenant, "demands", number).random((len(ticks), DEMANDS))
        return ListedBlock(rates, first, arrivals_s, demands)


def order_statistics(rng: np.random.Generator, counts: Integers, percentile: float) -> tuple[Floats, Integers]:
    """Positions and cumulated counts (``SampledBlock``) of the key ranks of windows with so many samples each.

    Of n uniform numbers, one less the k-th largest is the sum of k of n + 1 exponential spacings over the sum of all; the spacings
    between two ranks together are one gamma variable. So the ranks that are wanted are drawn jointly without the others.
    """
    from_top = key_ranks(counts, percentile)
    gaps = np.empty((KEYS + 1, *counts.shape))
    gaps[0] = from_top[0]
    np.subtract(from_top[1:], from_top[:-1], out=gaps[1:-1])
    gaps[-1] = counts + 1 - from_top[-1]
    sums = np.cumsum(rng.standard_gamma(gaps), axis=0)
    positions = np.log10(sums[-2::-1] / sums[-1])
    positions *= -GRID_PER_DECADE
    # A key stands for the samples half-way to its neighbours, so that windows that are put together have no bias.
    below = counts - from_top
    cumulated = below[::-1] + 1
    cumulated[:-1] += below[-2::-1] + 1
    cumulated[:-1] >>= 1
    return _keys_last(positions), _keys_last(cumulated)


def key_ranks(counts: Integers, percentile: float) -> Integers:
    """The ranks to draw, counted from the largest sample, ascending along a new first axis.

    Of few samples all, the smallest of them several times; of none 1. Of many the nearest rank of the percentile, and around it as
    densely as the percentile is uncertain, as the bounds and the percentile of several windows together lie there; and a few
    towards both ends.
    """
    totals = counts.astype(np.float64)
    p = percentile / 100
    over = (1 - p) * totals
    target = totals + 1 - np.maximum(np.ceil(p * totals - _ROUNDING), 1)
    deviation = np.sqrt(p * over)
    keys = np.empty((KEYS, *counts.shape))
    keys[0] = 1
    np.floor(over * _ABOVE, out=keys[1])
    middle = 2 + len(_NEAR)
    keys[middle] = target
    for step, part in enumerate(_NEAR, 1):
        near = np.rint(deviation * part)
        np.subtract(target, near, out=keys[middle - step])
        np.add(target, near, out=keys[middle + step])
    for key, part in enumerate(_BELOW, middle + len(_NEAR) + 1):
        np.ceil(over * part, out=keys[key])
    # None twice, from the largest downwards: where they are dense every rank is there.
    steps = np.arange(KEYS).reshape(-1, *[1] * counts.ndim)
    keys -= steps
    np.maximum.accumulate(np.maximum(keys, 1, out=keys), axis=0, out=keys)
    keys += steps
    limited: Integers = np.maximum(np.minimum(keys, totals), 1).astype(np.int64)
    return limited


def _keys_last(array: npt.NDArray[T]) -> npt.NDArray[T]:
    return np.ascontiguousarray(np.moveaxis(array, 0, -1))

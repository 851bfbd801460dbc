"""The histograms of all busy tenants' windows, made for all of them at once and for several ticks ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from parties.histogram import Histogram
from parties.model import NS_PER_S
from simulator.arrivals import BLOCK_TICKS, Floats, Integers, SampledBlock, order_statistics
from simulator.backlog import NOT_QUEUED, Flow
from simulator.conditions import Response
from simulator.response_table import GRID_PER_DECADE, GRID_SIZE, Blend

_MOST_AHEAD: Final = 16  # ticks
_LEAST_NS: Final = 128.0  # no service answers in less; from here on a bucket is a float's exponent and its first seven bits
_BUCKET_SHIFT: Final = 52 - 7
_BUCKET_OFFSET: Final = (1023 + 6) << 7
_MOST_STRETCH: Final = 4.0


def bucket_numbers(latencies_ns: Floats) -> Integers:
    """The buckets of ``parties.histogram`` for latencies of at least 128 ns; what is under that counts as that."""
    bits = np.maximum(latencies_ns, _LEAST_NS).view(np.int64)
    bits >>= _BUCKET_SHIFT
    bits -= _BUCKET_OFFSET
    return bits


def per_key(cumulated: Integers) -> Integers:
    """How many samples each key stands for, from how many there are up to it."""
    counts = cumulated.copy()
    counts[..., 1:] -= cumulated[..., :-1]
    return counts


def histogram_entries(latencies_ns: Floats, counts: Integers) -> tuple[list[int], list[int], list[int]]:
    """Buckets and counts of windows one after another, and where each window begins and the last one ends in them.

    The last axis of ``latencies_ns`` are a window's keys, ascending, and ``counts`` says how many samples each stands for. A bucket
    is there once, and none is empty.
    """
    keys = latencies_ns.shape[-1]
    buckets = bucket_numbers(latencies_ns).ravel()
    first = np.empty(len(buckets), dtype=bool)  # whether a key is the first of its bucket
    np.not_equal(buckets[1:], buckets[:-1], out=first[1:])
    first[::keys] = True
    found = first.nonzero()[0]
    summed = np.add.reduceat(counts.ravel(), found)
    if not summed.all():  # windows without samples, and keys that stand for none
        found, summed = found[summed > 0], summed[summed > 0]
    edges = found.searchsorted(np.arange(0, len(buckets) + 1, keys))
    return buckets.take(found).tolist(), summed.tolist(), edges.tolist()


class Crowd:
    """The busy tenants of a block, by number. Their response times in steady state are those of the last ``change``."""

    def __init__(self, blocks: Sequence[SampledBlock], percentiles: Sequence[float], rng: np.random.Generator) -> None:
        shapes = [block.counts.shape[1] for block in blocks]
        self._rng = rng
        self._first: list[int] = [0, *accumulate(shapes)]  # each tenant's first window of a tick
        self._windows = self._first[-1]
        self._percentiles = percentiles
        self._blend = Blend(len(blocks))
        self._blended = False
        self._times_ns = self._steps_ns = np.zeros((len(blocks), GRID_SIZE))
        self._first_tick = self._last_tick = 0  # what was made ahead: up to, not with the last
        self._stride = 1
        self._buckets: list[int] = []
        self._counts: list[int] = []
        self._edges: list[int] = []
        if blocks:
            self._positions = np.concatenate([block.positions for block in blocks], axis=1)
            self._totals = np.concatenate([block.counts for block in blocks], axis=1)
            self._cumulated = np.concatenate([block.cumulated for block in blocks], axis=1)
            self._per_key = per_key(self._cumulated)
            cells = np.minimum(self._positions.astype(np.intp), GRID_SIZE - 2)  # beyond the grid its last cell goes on
            self._parts = self._positions - cells
            self._slots = np.repeat(np.arange(len(blocks)), shapes)  # whose each window of a tick is
            self._cells = cells + (self._slots * GRID_SIZE)[:, None]

    def change(self, slot: int, response: Response) -> None:
        """Give a tenant other response times."""
        self._blend.put(slot, response)
        self._blended = False
        self._last_tick = 0
        self._stride = 1

    def steady(self, tick: int) -> list[list[Histogram]]:
        """Each tenant's windows of a tick of the block, if all that arrives is answered."""
        if not self._first_tick <= tick < self._last_tick:
            self._look_ahead(tick)
        row = (tick - self._first_tick) * self._windows
        return self._histograms(self._buckets, self._counts, self._edges[row : row + self._windows + 1])

    def queued(self, tick: int, flows: Mapping[int, Sequence[Flow]]) -> list[list[Histogram]]:
        """The same, where the tenants of ``flows``, by number, have a backlog and these came of it.

        The samples are those of the arrivals, as many as were answered. The longest wait in the backlog is added to the longest
        time in steady state, and so on downwards: exact where one of the two hardly varies within a window, and a little too long
        where both do.
        """
        totals = self._totals[tick]
        # All windows of the tick alike, as picking some costs more: those of the others are answered and do not wait.
        figures = np.zeros((self._windows, len(NOT_QUEUED)))
        figures[:] = NOT_QUEUED
        figures[:, 0] = totals
        for slot, some in flows.items():
            figures[self._first[slot] : self._first[slot + 1]] = [flow.figures for flow in some]
        completed, waited, least_ns, more_ns = figures.T[..., None]
        stretch = completed / np.maximum(totals, 1)[:, None]
        cumulated = (self._cumulated[tick] * stretch).astype(np.int64)
        cumulated[:, -1:] = completed
        latencies_ns = self._latencies_ns(self._cells[tick], self._parts[tick])
        positions = self._positions[tick]
        extremes = np.flatnonzero((stretch > _MOST_STRETCH) | (stretch * _MOST_STRETCH < 1)).tolist()
        if extremes:
            positions = positions.copy()
            for window in extremes:
                self._redraw(window, positions[window], cumulated[window], latencies_ns[window])
        # Those that stood longest are at the highest positions.
        along = 1 - np.power(10.0, positions * (-1 / GRID_PER_DECADE)) / waited
        latencies_ns += (along > 0) * (least_ns + more_ns * along)
        return self._histograms(*histogram_entries(latencies_ns, per_key(cumulated)))

    def _redraw(self, window: int, positions: Floats, cumulated: Integers, latencies_ns: Floats) -> None:
        """Fill in a window anew in which far more or fewer are answered than arrive, for which samples have another shape."""
        count = cumulated[-1:]
        if count[0]:
            slot = self._slots[window]
            positions[:], cumulated[:] = order_statistics(self._rng, count, self._percentiles[slot])
            cells = np.minimum(positions.astype(np.intp), GRID_SIZE - 2)
            latencies_ns[:] = self._latencies_ns(cells + slot * GRID_SIZE, positions - cells)

    def _look_ahead(self, tick: int) -> None:
        """Make what is wanted and what may be wanted next: more each time that nothing has changed."""
        last = min(tick + self._stride, BLOCK_TICKS)
        self._stride = min(2 * self._stride, _MOST_AHEAD)
        latencies_ns = self._latencies_ns(self._cells[tick:last], self._parts[tick:last])
        self._buckets, self._counts, self._edges = histogram_entries(latencies_ns, self._per_key[tick:last])
        self._first_tick, self._last_tick = tick, last

    def _latencies_ns(self, cells: npt.NDArray[np.intp], parts: Floats) -> Floats:
        """Times in steady state: parts of the way from these cells of ``_times_ns`` to the next."""
        if not self._blended:
            self._times_ns = self._blend.times_s() * NS_PER_S
            self._steps_ns = np.empty_like(self._times_ns)
            np.subtract(self._times_ns[:, 1:], self._times_ns[:, :-1], out=self._steps_ns[:, :-1])
            self._blended = True
        latencies_ns: Floats = self._steps_ns.take(cells)
        latencies_ns *= parts
        latencies_ns += self._times_ns.take(cells)
        return latencies_ns

    def _histograms(self, buckets: list[int], counts: list[int], edges: list[int]) -> list[list[Histogram]]:
        """The windows of a tick, tenant by tenant."""
        flat = [Histogram.of_buckets(buckets[start:end], counts[start:end]) for start, end in pairwise(edges)]
        return [flat[start:end] for start, end in pairwise(self._first)]

"""The histograms of all busy tenants' windows, made for all of them at once and for several ticks ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from parties.histogram import Histogram
from parties.model import NS_PER_S
from simulator.arrivals import BLOCK_TICKS, Floats, Integers, SampledBlock, order_statistics
from simulator.backlog import Flow
from simulator.response_table import GRID_PER_DECADE, GRID_SIZE

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


def histogram_entries(latencies_ns: Floats, cumulated: Integers, before: int) -> tuple[list[int], list[int], list[int]]:
    """Buckets and counts of windows one after another, and where each window begins and the last one ends in them.

    The last axis of ``latencies_ns`` are a window's keys, ascending. ``cumulated`` counts samples up to each key through all
    windows, from ``before`` on. A bucket is there once, and none is empty.
    """
    buckets = bucket_numbers(latencies_ns).reshape(-1, latencies_ns.shape[-1])
    cumulated = cumulated.reshape(buckets.shape)
    wanted = np.empty(buckets.shape, dtype=bool)
    np.not_equal(buckets[:, :-1], buckets[:, 1:], out=wanted[:, :-1])
    wanted[:, -1] = True
    chosen = cumulated[wanted]
    counts = chosen.copy()
    counts[1:] -= chosen[:-1]
    counts[:1] -= before
    if not counts.all():  # windows without samples, and keys that stand for none
        wanted[wanted] = counts > 0
        counts = counts[counts > 0]
    edges = wanted.sum(axis=1).cumsum()
    return buckets[wanted].tolist(), counts.tolist(), [0, *edges.tolist()]


class Crowd:
    """The busy tenants of a block, by number. Their response times in steady state are those of the last ``change``."""

    def __init__(self, blocks: Sequence[SampledBlock], percentiles: Sequence[float], rng: np.random.Generator) -> None:
        shapes = [block.counts.shape[1] for block in blocks]
        self._rng = rng
        self._first: list[int] = [0, *accumulate(shapes)]  # each tenant's first window of a tick
        self._windows = self._first[-1]
        self._percentiles = percentiles
        self._times_ns = np.zeros((len(blocks), GRID_SIZE))
        self._steps_ns = np.zeros((len(blocks), GRID_SIZE))
        self._first_tick = self._last_tick = 0  # what was made ahead: up to, not with the last
        self._stride = 1
        self._buckets: list[int] = []
        self._counts: list[int] = []
        self._edges: list[int] = []
        if blocks:
            self._positions = np.concatenate([block.positions for block in blocks], axis=1)
            self._totals = np.concatenate([block.counts for block in blocks], axis=1)
            self._cumulated = np.concatenate([block.cumulated for block in blocks], axis=1)
            cells = np.minimum(self._positions.astype(np.intp), GRID_SIZE - 2)  # beyond the grid its last cell goes on
            self._parts = self._positions - cells
            self._cells = cells + (np.repeat(np.arange(len(blocks)), shapes) * GRID_SIZE)[:, None]
            through = self._totals.cumsum().reshape(self._totals.shape)
            self._through = self._cumulated + (through - self._totals)[..., None]  # counted through the whole block
            self._before: list[int] = [0, *through[:, -1].tolist()]

    def change(self, slots: Sequence[int], times_ns: Floats) -> None:
        """Give tenants other response times: rows of ``simulator.queueing.quantiles`` in ns."""
        self._times_ns[slots] = times_ns
        self._steps_ns[slots, :-1] = times_ns[:, 1:] - times_ns[:, :-1]
        self._last_tick = 0
        self._stride = 1

    def steady(self, tick: int, slot: int) -> list[Histogram]:
        """A tenant's windows of a tick of the block, if all that arrives is answered."""
        if not self._first_tick <= tick < self._last_tick:
            self._look_ahead(tick)
        row = (tick - self._first_tick) * self._windows
        return _histograms(self._buckets, self._counts, self._edges[row + self._first[slot] : row + self._first[slot + 1] + 1])

    def queued(self, tick: int, flows: Mapping[int, Sequence[Flow]]) -> dict[int, list[Histogram]]:
        """Windows of the tenants that have a backlog, by number, from what came of them.

        The samples are those of the arrivals, as many as were answered. The longest wait in the backlog is added to the longest
        time in steady state, and so on downwards: exact where one of the two hardly varies within a window, and a little too long
        where both do.
        """
        windows = [window for slot in flows for window in range(self._first[slot], self._first[slot + 1])]
        flat = [flow for some in flows.values() for flow in some]
        positions, cumulated = self._positions[tick, windows], self._cumulated[tick, windows]
        completed = np.array([flow.completed for flow in flat])
        stretch = completed / np.maximum(self._totals[tick, windows], 1)
        cumulated = (cumulated * stretch[:, None]).astype(np.int64)
        cumulated[:, -1] = completed
        for row in np.flatnonzero((stretch > _MOST_STRETCH) | (stretch * _MOST_STRETCH < 1)).tolist():
            slot = bisect_right(self._first, windows[row]) - 1
            positions[row], cumulated[row] = order_statistics(self._rng, completed[row : row + 1], self._percentiles[slot])
        slots = np.repeat(list(flows), [len(some) for some in flows.values()])
        latencies_ns = self._at(slots, positions) + _wait_s(flat, positions) * NS_PER_S
        cumulated += (completed.cumsum() - completed)[:, None]
        buckets, counts, edges = histogram_entries(latencies_ns, cumulated, 0)
        made = {}
        at = 0
        for slot, some in flows.items():
            made[slot] = _histograms(buckets, counts, edges[at : at + len(some) + 1])
            at += len(some)
        return made

    def _at(self, slots: npt.NDArray[np.intp], positions: Floats) -> Floats:
        """Times in steady state in ns, a row for each slot, at positions on the grid."""
        cells = np.minimum(positions.astype(np.intp), GRID_SIZE - 2)
        parts = positions - cells
        cells += (slots * GRID_SIZE)[:, None]
        times: Floats = self._times_ns.take(cells) + parts * self._steps_ns.take(cells)
        return times

    def _look_ahead(self, tick: int) -> None:
        """Make what is wanted and what may be wanted next: more each time that nothing has changed."""
        last = min(tick + self._stride, BLOCK_TICKS)
        self._stride = min(2 * self._stride, _MOST_AHEAD)
        cells = self._cells[tick:last]
        latencies_ns = self._steps_ns.take(cells)
        latencies_ns *= self._parts[tick:last]
        latencies_ns += self._times_ns.take(cells)
        self._buckets, self._counts, self._edges = histogram_entries(latencies_ns, self._through[tick:last], self._before[tick])
        self._first_tick, self._last_tick = tick, last


def _histograms(buckets: list[int], counts: list[int], edges: list[int]) -> list[Histogram]:
    return [Histogram.of_buckets(buckets[start:end], counts[start:end]) for start, end in pairwise(edges)]


def _wait_s(flows: Sequence[Flow], positions: Floats) -> Floats:
    """How long the requests at these positions stood in the backlog, if those that stood longest are at the highest."""
    waited, first_s, last_s = np.array([flow.waits for flow in flows]).T[..., None]
    along: Floats = (waited - np.power(10.0, -positions / GRID_PER_DECADE)) / waited
    waits: Floats = (along > 0) * (np.minimum(first_s, last_s) + np.abs(first_s - last_s) * along)
    return waits

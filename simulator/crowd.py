"""The histograms of all busy tenants' windows, made for all of them at once and for several ticks ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from parties.histogram import Histogram
from simulator.arrivals import BLOCK_TICKS, KEYS, Floats, Integers, SampledBlock
from simulator.response_table import GRID_SIZE

_LARGEST_NS: Final = float((1 << 53) - 1)  # 104 days: up to there a float has every integer
_SUB_BUCKET_BITS: Final = 7  # of ``parties.histogram``: 128 buckets to each power of two
_MOST_AHEAD: Final = 16  # ticks


def bucket_numbers(latencies_ns: Floats) -> Integers:
    """The buckets of ``parties.histogram`` for latencies of at least 0 ns; over 104 days that of 104 days."""
    values = np.minimum(latencies_ns, _LARGEST_NS).astype(np.int64)
    shifts = np.maximum(np.frexp(values)[1].astype(np.int64) - (_SUB_BUCKET_BITS + 1), 0)
    return (shifts << _SUB_BUCKET_BITS) + (values >> shifts)


def histogram_entries(latencies_ns: Floats, cumulated: Integers, before: int) -> tuple[list[int], list[int], list[int]]:
    """Buckets and counts of windows one after another, and where each window begins and the last one ends in them.

    The last axis of ``latencies_ns`` are a window's keys, ascending. ``cumulated`` counts samples up to each key through all
    windows, from ``before`` on. A bucket is there once, and none is empty.
    """
    buckets = bucket_numbers(latencies_ns).reshape(-1, latencies_ns.shape[-1])
    cumulated = cumulated.reshape(buckets.shape)
    wanted = np.empty(buckets.shape, dtype=bool)
    np.not_equal(buckets[:, :-1], buckets[:, 1:], out=wanted[:, :-1])
    np.not_equal(np.diff(cumulated[:, -1], prepend=before), 0, out=wanted[:, -1])  # an empty window has no last one
    chosen = cumulated[wanted]
    counts = np.diff(chosen, prepend=before)
    edges = np.cumsum(wanted.sum(axis=1))
    return buckets[wanted].tolist(), counts.tolist(), [0, *edges.tolist()]


class Crowd:
    """The busy tenants of a block, by number. Their response times are those of the last ``change``, without any backlog."""

    def __init__(self, blocks: Sequence[SampledBlock]) -> None:
        shapes = [block.counts.shape[1] for block in blocks]
        self.first = np.cumsum([0, *shapes]).tolist()  # each tenant's first window of a tick
        self._windows = self.first[-1]
        self._times_ns = np.zeros((len(blocks), GRID_SIZE))
        self._steps_ns = np.zeros((len(blocks), GRID_SIZE))
        self._first_tick = self._last_tick = 0  # what was made ahead: up to, not with the last
        self._stride = 1
        self._buckets: list[int] = []
        self._counts: list[int] = []
        self._edges: list[int] = []
        positions = _joined([block.positions for block in blocks], (BLOCK_TICKS, 0, KEYS))
        cells = np.minimum(positions.astype(np.intp), GRID_SIZE - 2)  # beyond the grid its last cell goes on
        self._parts = positions - cells
        slots = np.repeat(np.arange(len(blocks)), shapes)
        self._cells = cells + (slots * GRID_SIZE)[:, None]
        totals = _joined([block.counts for block in blocks], (BLOCK_TICKS, 0))
        before = np.cumsum(totals).reshape(totals.shape) - totals
        cumulated = _joined([block.cumulated for block in blocks], (BLOCK_TICKS, 0, KEYS)).astype(np.int64)
        self._cumulated = cumulated + before[..., None].astype(np.int64)
        self._before: list[int] = np.concatenate(([0], np.cumsum(totals.sum(axis=1)))).astype(int).tolist()

    def change(self, times_ns: Mapping[int, Floats]) -> None:
        """Give tenants other response times: the quantiles of ``simulator.queueing`` in ns."""
        for slot, row in times_ns.items():
            self._times_ns[slot] = row
            self._steps_ns[slot, :-1] = row[1:] - row[:-1]
        self._last_tick = 0
        self._stride = 1

    def histograms(self, tick: int, slot: int) -> list[Histogram]:
        """A tenant's windows of a tick of the block."""
        if not self._first_tick <= tick < self._last_tick:
            self._look_ahead(tick)
        row = (tick - self._first_tick) * self._windows
        edges, buckets, counts = self._edges, self._buckets, self._counts
        made = []
        for window in range(row + self.first[slot], row + self.first[slot + 1]):
            start, end = edges[window], edges[window + 1]
            made.append(Histogram.of_buckets(buckets[start:end], counts[start:end]))
        return made

    def latencies_ns(self, slot: int, positions: Floats) -> Floats:
        """A tenant's response times at positions on the grid of quantiles."""
        cells = np.minimum(positions.astype(np.intp), GRID_SIZE - 2)
        latencies: Floats = self._times_ns[slot].take(cells) + (positions - cells) * self._steps_ns[slot].take(cells)
        return latencies

    def _look_ahead(self, tick: int) -> None:
        """Make what is wanted and what may be wanted next: more each time that nothing has changed."""
        last = min(tick + self._stride, BLOCK_TICKS)
        self._stride = min(2 * self._stride, _MOST_AHEAD)
        cells = self._cells[tick:last]
        latencies_ns = self._times_ns.take(cells) + self._parts[tick:last] * self._steps_ns.take(cells)
        self._buckets, self._counts, self._edges = histogram_entries(latencies_ns, self._cumulated[tick:last], self._before[tick])
        self._first_tick, self._last_tick = tick, last


def _joined(arrays: Sequence[npt.NDArray[np.generic]], shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    return np.concatenate(arrays, axis=1) if arrays else np.zeros(shape)

"""The signal in its plainest form, as ``docs/signal.md`` tells it: every window kept, every latency by itself, nothing clever.

For comparison with ``monitors.signal``, which is written for speed. One service.
"""

from __future__ import annotations

import math
from typing import Any

from monitors.histogram_message import Window
from monitors.signal import SILENT_GAPS
from monitors.signal_window import LIKELY
from parties.histogram import bucket, rank_bounds, rank_of, samples_needed, upper
from parties.model import NS_PER_S, LatencyView, QosTarget, ServiceState
from parties.settings import SignalSettings


class PlainSignal:
    """What to say of one service."""

    def __init__(self, target: QosTarget, settings: SignalSettings, interval_ns: int) -> None:
        self.target, self.settings, self.interval_ns = target, settings, interval_ns
        self.bin_ns = interval_ns // settings.sub_intervals
        self.stale_ns = max(settings.stale_after_ns, 2 * interval_ns)
        self.kept: list[tuple[int, Window]] = []  # with the number of the bin
        self.clients: dict[str, Window] = {}
        self.newest_ns = -1
        self.touched: int | None = None
        self.changed = 0

    def number(self, end_ns: int) -> int:
        """The bin of an end."""
        return (end_ns - 1) // self.bin_ns

    def feed(self, window: Window) -> None:
        """Take a window in."""
        number = self.number(window.window_end_ns)
        self.newest_ns = max(self.newest_ns, window.window_end_ns)
        if number < self.number(self.newest_ns - self.settings.longest_window_ns):
            return
        self.kept.append((number, window))
        self.touched = number if self.touched is None else min(number, self.touched)
        before = self.clients.get(window.client)
        if before is None or (window.window_end_ns, window.sequence) >= (before.window_end_ns, before.sequence):
            self.clients[window.client] = window

    def note_change(self, now_ns: int) -> None:
        """A move was done."""
        self.changed = (now_ns + self.bin_ns // 2) // self.bin_ns

    def view(self, now_ns: int) -> LatencyView:
        """What can be said now."""
        touched, self.touched = self.touched, None
        self.clients = {name: last for name, last in self.clients.items() if last.window_end_ns > now_ns - self.stale_ns}
        age_ns = now_ns if self.newest_ns < 0 else max(0, now_ns - self.newest_ns)
        if self.newest_ns < 0 or age_ns >= self.stale_ns:
            return LatencyView(ServiceState.STALE, age_ns=age_ns, fresh=touched is not None)
        last, parts = self.number(self.newest_ns), self.settings.sub_intervals
        first = last - parts + 1
        if touched is not None and touched < first:
            first = max(touched, first - parts)
        windows = self.between(first, last)
        ages_ns = [client.oldest_outstanding_ns for client in self.clients.values() if client.outstanding]
        view: dict[str, Any] = {
            "state": ServiceState.FEW_SAMPLES,
            "age_ns": age_ns,
            "fresh": touched is not None,
            **{name: sum(getattr(window, name) for window in windows) for name in ("scheduled", "completed", "failed", "unsent")},
            "outstanding": sum(client.outstanding for client in self.clients.values()),
            "oldest_outstanding_ns": max(ages_ns, default=0),
            "load_rps": sum(window.scheduled for window in windows) * NS_PER_S / ((last - first + 1) * self.bin_ns),
        }
        return LatencyView(
            **view | self.judged(view, first, last, ages_ns, self.number(now_ns - self.settings.longest_window_ns) + 1)
        )

    def between(self, first: int, last: int) -> list[Window]:
        """The windows of these bins."""
        return [window for number, window in self.kept if first <= number <= last]

    def judged(self, view: dict[str, Any], first: int, last: int, ages_ns: list[int], limit: int) -> dict[str, Any]:
        """State, latency and bounds."""
        target, settings = self.target, self.settings
        if not any(view[name] for name in ("scheduled", "completed", "failed", "unsent", "outstanding")):
            idle = not settings.window or self.silent(first, last, limit)
            return {"state": ServiceState.IDLE if idle else ServiceState.FEW_SAMPLES}
        oldest_ns = view["oldest_outstanding_ns"]
        old = oldest_ns > target.latency_ns and oldest_ns >= self.interval_ns
        stuck = old if view["outstanding"] else view["unsent"] > 0 and not view["failed"]
        if settings.stalled and not view["completed"] and stuck:
            worst_ns = int(max(oldest_ns, target.latency_ns) * (1 + view["unsent"] / (view["unsent"] + view["outstanding"])))
            found = dict.fromkeys(("latency_ns", "cautious_latency_ns", "low_ns"), worst_ns)
            return {"state": ServiceState.STALLED, "window_ns": (last - first + 1) * self.bin_ns, **found}
        failing = settings.stalled and view["failed"] and self.failing(view, first, limit)
        return self.percentile(first, last, ages_ns, limit) | ({"state": ServiceState.FAILING} if failing else {})

    def silent(self, first: int, last: int, limit: int) -> bool:
        """Whether nothing was asked for seven mean gaps."""
        due = [number for number, window in self.kept if limit <= number < first and window.scheduled]
        if not due:
            return True
        asked = sum(window.scheduled for window in self.between(limit, max(due)))
        return asked * (last - max(due)) >= SILENT_GAPS * (max(due) - limit + 1)

    def failing(self, view: dict[str, Any], first: int, limit: int) -> bool:
        """Whether the error rate is reached, over as many answers as it takes for one error alone not to reach it."""
        rate = self.settings.failing_error_rate
        failed, answered = view["failed"], view["completed"] + view["failed"]
        while self.settings.window and answered < math.ceil(2 / rate) and first > max(limit, self.changed):
            first -= 1
            failed += sum(window.failed for window in self.between(first, first))
            answered += sum(window.completed + window.failed for window in self.between(first, first))
        return bool(failed >= rate * answered)

    def percentile(self, first: int, last: int, ages_ns: list[int], limit: int) -> dict[str, Any]:
        """The percentile, its bounds and the vote."""
        target, settings = self.target, self.settings
        ages_ns = ages_ns if settings.stalled else []
        needed, grown = samples_needed(target.percentile), False
        if settings.window:
            first = max(first, self.changed)
            while len(self.samples(first, last)) < needed and first > max(limit, self.changed):
                first, grown = first - 1, True
        samples = self.samples(first, last, ages_ns)
        count = len(samples)
        low, high = rank_bounds(target.percentile, count, settings.confidence) if settings.bounds and samples else (None, None)
        found: dict[str, Any] = {
            "state": ServiceState.FEW_SAMPLES,
            "samples": count,
            "window_ns": max(0, last - first + 1) * self.bin_ns,
            "low_ns": None if low is None else self.at(samples, low, ages_ns),
            "high_ns": None if high is None else samples[high - 1],
        }
        likely = rank_bounds(target.percentile, count, LIKELY)[0] if settings.bounds and samples else None
        violates = likely is not None and self.at(samples, likely, ages_ns) > target.latency_ns
        if not samples or (settings.window and count < needed and not violates):
            return found
        latency_ns = self.at(samples, rank_of(target.percentile, count), ages_ns)
        voted_ns = self.voted(first, last) if settings.vote and not grown else None
        latency_ns = cautious_ns = latency_ns if voted_ns is None else voted_ns
        if settings.bounds:
            largest_ns = max([*(sample for sample in samples if sample is not None), *ages_ns], default=0)
            cautious_ns = max(latency_ns, largest_ns if found["high_ns"] is None else found["high_ns"])
        return found | {"state": ServiceState.OK, "latency_ns": latency_ns, "cautious_latency_ns": cautious_ns}

    def samples(self, first: int, last: int, ages_ns: list[int] | None = None) -> list[int | None]:
        """Latencies ascending, late ages among them, and None for each that was never sent."""
        windows = self.between(first, last)
        known = sorted(upper(index) for window in windows for index, count in window.histogram.counts.items() for _ in range(count))
        unsent = [None] * (sum(window.unsent for window in windows) if self.settings.stalled else 0)
        samples: list[int | None] = [*known, *unsent]
        if samples and ages_ns:
            answered_ns = samples[rank_of(self.target.percentile, len(samples)) - 1]
            late = [age_ns for age_ns in ages_ns if answered_ns is not None and age_ns > answered_ns]
            samples = [*sorted([*known, *map(_shown, late)]), *unsent]
        return samples

    def at(self, samples: list[int | None], rank: int, ages_ns: list[int]) -> int:
        """The latency at a rank, or what stands for it."""
        sample = samples[rank - 1]
        if sample is not None:
            return sample
        known = [each for each in samples if each is not None]
        worst_ns = max([self.target.latency_ns, *known, *ages_ns])
        return int(worst_ns * (1 + samples.count(None) / len(samples)))

    def voted(self, first: int, last: int) -> int | None:
        """The median of the parts' percentiles, if there are at least three with enough samples."""
        bins = last - first + 1
        most = min(self.settings.sub_intervals, bins)
        for parts in range(most - 1 + most % 2, 2, -2):
            edges = [first + part * bins // parts for part in range(parts + 1)]
            found = [self.samples(edges[part], edges[part + 1] - 1) for part in range(parts)]
            if min(map(len, found)) >= samples_needed(self.target.percentile):
                return sorted(self.at(each, rank_of(self.target.percentile, len(each)), []) for each in found)[parts // 2]
        return None


def _shown(value_ns: int) -> int:
    return upper(bucket(value_ns))

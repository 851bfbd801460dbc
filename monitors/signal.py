"""The signal: from the windows that clients report to what a policy may believe of a service in an interval.

``docs/signal.md`` tells what each part does and why. Every part can be switched off (``SignalSettings``); with all of them off, or
``raw``, what remains is the paper's letter: the percentile of the last interval, whatever its samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as with_changes
from typing import NamedTuple

from monitors.histogram_message import Window
from monitors.signal_window import Bin, Client, Sample, beyond, vote
from parties.histogram import samples_needed
from parties.model import NS_PER_S, LatencyView, QosTarget, ServiceState
from parties.settings import SignalSettings

_NOTHING = Bin()


class Signal:
    """Takes windows in and gives one view of each service in every interval. Reads no clock.

    ``interval_ns`` is the control interval; a bin is a ``sub_intervals``-th of it. A window of an unknown service is counted and
    left out.
    """

    def __init__(self, targets: Mapping[str, QosTarget], settings: SignalSettings, interval_ns: int) -> None:
        if settings.raw:
            settings = with_changes(settings, window=False, bounds=False, vote=False, stalled=False)
        self._settings = settings
        self._interval_ns = interval_ns
        self._counters = Counter(windows=0, unknown_service=0, too_old=0, clients_gone=0)
        self._services: dict[str, _ServiceSignal] = {}
        for name, target in targets.items():
            self.add(name, target)

    def add(self, service: str, target: QosTarget) -> None:
        """Begin to judge a service; one of that name begins anew."""
        self._services[service] = _ServiceSignal(target, self._settings, self._interval_ns, self._counters)

    def remove(self, service: str) -> None:
        """Forget a service; an unknown one is no error."""
        self._services.pop(service, None)

    def feed(self, window: Window) -> None:
        """Take in one window, in whatever order they come."""
        service = self._services.get(window.service)
        if service is None:
            self._counters["unknown_service"] += 1
        else:
            self._counters["windows"] += 1
            service.feed(window)

    def note_change(self, service: str, now_ns: int) -> None:
        """A move that concerns the service was done now: what ended before is no longer part of a judgement by percentile."""
        if service in self._services:
            self._services[service].note_change(now_ns)

    def views(self, now_ns: int) -> dict[str, LatencyView]:
        """What can be said of each service; to be called once in each interval, as it consumes what is fresh."""
        return {name: service.view(now_ns) for name, service in self._services.items()}

    def counters(self) -> Mapping[str, int]:
        """What was taken in and left out since the start, and how many clients report now."""
        return {**self._counters, "clients": sum(service.clients for service in self._services.values())}


@dataclass(slots=True)
class _Interval:
    """The last interval of a service: its bins by number, its sums, and how its clients stand at its end."""

    first: int
    last: int
    bins: list[Bin]
    scheduled: int
    completed: int
    failed: int
    unsent: int
    outstanding: int
    ages_ns: list[int]

    @property
    def oldest_ns(self) -> int:
        return max(self.ages_ns, default=0)


class _Judgement(NamedTuple):
    """The first fields of a view; the same names and order."""

    state: ServiceState
    latency_ns: int | None = None
    cautious_latency_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    samples: int = 0
    window_ns: int = 0


class _ServiceSignal:
    """The signal of one service."""

    def __init__(self, target: QosTarget, settings: SignalSettings, interval_ns: int, counters: Counter[str]) -> None:
        self._target = target
        self._settings = settings
        self._interval_ns = interval_ns
        self._counters = counters
        self._bin_ns = max(1, interval_ns // settings.sub_intervals)
        self._stale_after_ns = max(settings.stale_after_ns, 2 * interval_ns)
        self._answers_needed = math.ceil(2 / settings.failing_error_rate) if settings.failing_error_rate > 0 else 1
        self._needed = samples_needed(target.percentile)
        self._bins: dict[int, Bin] = {}
        self._clients: dict[str, Client] = {}
        self._newest_end_ns: int | None = None
        self._touched: int | None = None  # the earliest bin that changed since the last view
        self._changed = 0  # the first bin that counts as after the last change of the service's resources

    @property
    def clients(self) -> int:
        """How many clients report."""
        return len(self._clients)

    def feed(self, window: Window) -> None:
        """Add a window to its bin, and note how its client stands."""
        number = self._number(window.window_end_ns)
        if self._newest_end_ns is not None and number < self._number(self._newest_end_ns - self._settings.longest_window_ns):
            self._counters["too_old"] += 1
            return
        found = self._bins.get(number)
        if found is None:
            found = self._bins[number] = Bin()
        found.add(window)
        self._newest_end_ns = max(self._newest_end_ns or 0, window.window_end_ns)
        self._touched = number if self._touched is None else min(self._touched, number)
        before = self._clients.get(window.client)
        if before is None or (window.window_end_ns, window.sequence) >= (before.window_end_ns, before.sequence):
            self._clients[window.client] = Client(
                window.window_end_ns, window.sequence, window.outstanding, window.oldest_outstanding_ns
            )

    def note_change(self, now_ns: int) -> None:
        """Judge by what comes after: from the bin in which the change fell if most of that bin is still to come, else the next."""
        self._changed = (now_ns + self._bin_ns // 2) // self._bin_ns

    def view(self, now_ns: int) -> LatencyView:
        """What can be said now."""
        self._forget(now_ns)
        fresh = self._touched is not None
        if self._newest_end_ns is None:
            return LatencyView(ServiceState.STALE, age_ns=now_ns, fresh=fresh)
        age_ns = max(0, now_ns - self._newest_end_ns)
        if age_ns >= self._stale_after_ns:
            self._touched = None
            return LatencyView(ServiceState.STALE, age_ns=age_ns, fresh=fresh)
        interval = self._interval(self._number(self._newest_end_ns))
        self._touched = None
        return LatencyView(
            *self._judged(interval, now_ns),
            age_ns=age_ns,
            fresh=fresh,
            scheduled=interval.scheduled,
            completed=interval.completed,
            failed=interval.failed,
            unsent=interval.unsent,
            outstanding=interval.outstanding,
            oldest_outstanding_ns=interval.oldest_ns,
            load_rps=interval.scheduled * NS_PER_S / (len(interval.bins) * self._bin_ns),
        )

    def _number(self, end_ns: int) -> int:
        """The bin in which a window that ends then counts; an end on the edge belongs to the earlier one."""
        return (end_ns - 1) // self._bin_ns

    def _forget(self, now_ns: int) -> None:
        """Drop what is too old to matter: bins behind the longest window, clients that stopped sending."""
        oldest = self._number(now_ns - self._settings.longest_window_ns - 2 * self._interval_ns)
        while self._bins and (number := next(iter(self._bins))) < oldest:  # in the order of arrival: nearly ascending
            del self._bins[number]
        before_ns = now_ns - self._stale_after_ns
        gone = [name for name, client in self._clients.items() if client.window_end_ns <= before_ns]
        for name in gone:
            del self._clients[name]
            self._counters["clients_gone"] += 1

    def _interval(self, last: int) -> _Interval:
        """The interval up to the newest bin.

        It ends at the newest bin and not at the clock, as the newest windows are always still on their way. It reaches back over
        what came late since the last view, by one interval more at most, so that no sample is passed over.
        """
        usual = last - self._settings.sub_intervals + 1
        late = usual if self._touched is None else self._touched
        first = max(min(usual, late), last - 2 * self._settings.sub_intervals + 1)
        bins = self._stretch(first, last)
        scheduled = completed = failed = unsent = 0
        for item in bins:
            scheduled += item.scheduled
            completed += item.completed
            failed += item.failed
            unsent += item.unsent
        return _Interval(
            first=first,
            last=last,
            bins=bins,
            scheduled=scheduled,
            completed=completed,
            failed=failed,
            unsent=unsent,
            outstanding=sum(client.outstanding for client in self._clients.values()),
            ages_ns=[client.oldest_outstanding_ns for client in self._clients.values() if client.outstanding],
        )

    def _stretch(self, first: int, last: int) -> list[Bin]:
        return [self._bins.get(number, _NOTHING) for number in range(first, last + 1)]

    def _judged(self, interval: _Interval, now_ns: int) -> _Judgement:
        """State, latency and bounds."""
        if not (interval.scheduled or interval.completed or interval.failed or interval.unsent or interval.outstanding):
            return _Judgement(ServiceState.IDLE)
        if self._stalled(interval):
            waiting = interval.unsent + interval.outstanding
            worst_ns = beyond(self._target, interval.oldest_ns, interval.unsent / waiting)
            return _Judgement(ServiceState.STALLED, worst_ns, worst_ns, worst_ns, window_ns=self._length(interval.bins))
        limit = self._number(now_ns - self._settings.longest_window_ns) + 1
        judgement = self._percentile(interval, limit)
        return judgement._replace(state=ServiceState.FAILING) if self._failing(interval, limit) else judgement

    def _length(self, bins: list[Bin]) -> int:
        return len(bins) * self._bin_ns

    def _stalled(self, interval: _Interval) -> bool:
        """Asked for, and nothing completes: over the target and a whole interval old, so that slow and rare is not stalled."""
        if not self._settings.stalled or interval.completed:
            return False
        if interval.outstanding:
            return interval.oldest_ns > self._target.latency_ns and interval.oldest_ns >= self._interval_ns
        return interval.unsent > 0 and not interval.failed

    def _failing(self, interval: _Interval, limit: int) -> bool:
        """Whether too many answers are errors, over as much of the window as it takes for one error alone not to be too many."""
        if not self._settings.stalled or not interval.failed:
            return False
        failed, answered, number = interval.failed, interval.completed + interval.failed, interval.first
        while self._settings.window and answered < self._answers_needed and number > max(limit, self._changed):
            number -= 1
            more = self._bins.get(number, _NOTHING)
            failed += more.failed
            answered += more.completed + more.failed
        return failed >= self._settings.failing_error_rate * answered

    def _percentile(self, interval: _Interval, limit: int) -> _Judgement:
        """The percentile, its bounds and the vote."""
        bins, grown = self._grown(interval, limit)
        settings = self._settings
        sample = Sample(
            bins,
            self._target,
            interval.ages_ns if settings.stalled else (),
            unsent=settings.stalled,
            confidence=settings.confidence if settings.bounds else None,
        )
        low_ns, high_ns = sample.bounds_ns()
        window_ns = self._length(bins)
        latency_ns = sample.latency_ns()
        if latency_ns is None or (settings.window and not sample.supported and not sample.violates()):
            return _Judgement(ServiceState.FEW_SAMPLES, None, None, low_ns, high_ns, sample.count, window_ns)
        if settings.vote and not grown:
            voted_ns = vote(bins, self._target, settings.sub_intervals, unsent=settings.stalled)
            latency_ns = latency_ns if voted_ns is None else voted_ns
        cautious_ns = latency_ns
        if settings.bounds:
            cautious_ns = max(latency_ns, sample.largest_ns if high_ns is None else high_ns)
        return _Judgement(ServiceState.OK, latency_ns, cautious_ns, low_ns, high_ns, sample.count, window_ns)

    def _grown(self, interval: _Interval, limit: int) -> tuple[list[Bin], bool]:
        """The bins to judge by: the interval's, and earlier ones until the percentile is supported, but none before a change."""
        if not self._settings.window:
            return interval.bins, False
        first = max(interval.first, min(self._changed, interval.last + 1))
        bins = self._stretch(first, interval.last)
        count = sum(item.completed + (item.unsent if self._settings.stalled else 0) for item in bins)
        earliest = max(limit, self._changed)
        number = first
        while count < self._needed and number > earliest:
            number -= 1
            more = self._bins.get(number, _NOTHING)
            count += more.completed + (more.unsent if self._settings.stalled else 0)
        return (bins, False) if number == first else (self._stretch(number, interval.last), True)

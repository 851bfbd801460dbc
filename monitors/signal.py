"""The signal: from the windows that clients report to what a policy may believe of a service in an interval.

``docs/signal.md`` tells what each part does and why. Every part can be switched off (``SignalSettings``); with all of them off, or
``raw``, what remains is the paper's letter: the percentile of the last interval, whatever its samples.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_changes
from typing import NamedTuple

from monitors.histogram_message import Window
from monitors.signal_window import Bin, Sample, Stretch, beyond, vote
from parties.histogram import samples_needed
from parties.model import NS_PER_S, LatencyView, QosTarget, ServiceState
from parties.settings import SignalSettings

SILENT_GAPS = 7
"""A silence of as many mean gaps between requests has a reason: by chance, one in a thousand is so long."""

_NOTHING = Bin()
_UNTOUCHED = 1 << 62  # later than any bin
_NEVER = -1  # before any window's end

# Reading a member of an enumeration costs as much as a call.
_IDLE, _STALLED, _FAILING = ServiceState.IDLE, ServiceState.STALLED, ServiceState.FAILING
_FEW_SAMPLES, _OK = ServiceState.FEW_SAMPLES, ServiceState.OK


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
        self._counters = Counter(unknown_service=0, too_old=0, clients_gone=0)
        self._windows = 0
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
            self._windows += 1
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
        return {"windows": self._windows, **self._counters, "clients": sum(service.clients for service in self._services.values())}


class _Interval(Stretch):
    """The last interval of a service: its bins, their sums, and how the clients that report stand at its end.

    ``first`` and ``last`` are numbers of sub-intervals, ``at`` is the place of its first bin among all that there are.
    """

    __slots__ = ("ages_ns", "at", "first", "last", "oldest_ns", "outstanding")

    def __init__(self, first: int, last: int, at: int, bins: Sequence[Bin], clients: Iterable[Window]) -> None:
        super().__init__(bins, last - first + 1)
        self.first = first
        self.last = last
        self.at = at
        self.outstanding = self.oldest_ns = 0
        self.ages_ns: list[int] = []
        for client in clients:
            if client.outstanding:
                self.outstanding += client.outstanding
                self.ages_ns.append(client.oldest_outstanding_ns)
        if self.ages_ns:
            self.oldest_ns = max(self.ages_ns)


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
        self._interval_ns = interval_ns
        self._counters = counters
        self._sub_intervals = settings.sub_intervals
        self._grows = settings.window
        self._votes = settings.vote
        self._counts_unanswered = settings.stalled
        self._confidence = settings.confidence if settings.bounds else None
        self._failing_rate = settings.failing_error_rate
        self._longest_ns = settings.longest_window_ns
        self._kept_ns = settings.longest_window_ns + 2 * interval_ns
        self._bin_ns = max(1, interval_ns // settings.sub_intervals)
        self._stale_after_ns = max(settings.stale_after_ns, 2 * interval_ns)
        self._answers_needed = math.ceil(2 / settings.failing_error_rate) if settings.failing_error_rate > 0 else 1
        self._needed = samples_needed(target.percentile)
        self._numbers: list[int] = []  # of the sub-intervals in which a window ended, ascending
        self._bins: list[Bin] = []  # theirs
        self._clients: dict[str, Window] = {}  # the latest of each
        self._newest_end_ns = _NEVER
        self._touched = _UNTOUCHED  # the earliest bin that changed since the last view
        self._changed = 0  # the first bin that counts as after the last change of the service's resources

    @property
    def clients(self) -> int:
        """How many clients report."""
        return len(self._clients)

    def feed(self, window: Window) -> None:
        """Add a window to its bin, and note how its client stands."""
        end_ns = window.window_end_ns
        number = (end_ns - 1) // self._bin_ns  # as in ``_number``; this runs for every message
        if end_ns >= self._newest_end_ns:
            self._newest_end_ns = end_ns
        elif number < self._number(self._newest_end_ns - self._longest_ns):
            self._counters["too_old"] += 1
            return
        numbers = self._numbers
        if not numbers or number > numbers[-1]:  # the usual case
            numbers.append(number)
            self._bins.append(Bin.of(window))
        else:
            self._add(number, window)
        if number < self._touched:  # noqa: PLR1730 - a call of min costs as much as the rest of this method
            self._touched = number
        before = self._clients.get(window.client)
        if before is None or (end_ns, window.sequence) >= (before.window_end_ns, before.sequence):
            self._clients[window.client] = window

    def _add(self, number: int, window: Window) -> None:
        """Add a window to a bin that need not be the newest."""
        at = bisect_left(self._numbers, number)
        if self._numbers[at] == number:
            self._bins[at].add(window)
        else:
            self._numbers.insert(at, number)
            self._bins.insert(at, Bin.of(window))

    def note_change(self, now_ns: int) -> None:
        """Judge by what comes after: from the bin in which the change fell if most of that bin is still to come, else the next."""
        self._changed = (now_ns + self._bin_ns // 2) // self._bin_ns

    def view(self, now_ns: int) -> LatencyView:
        """What can be said now."""
        self._forget(now_ns)
        touched, self._touched = self._touched, _UNTOUCHED
        fresh = touched != _UNTOUCHED
        if self._newest_end_ns == _NEVER:
            return LatencyView(ServiceState.STALE, age_ns=now_ns, fresh=fresh)
        age_ns = max(0, now_ns - self._newest_end_ns)
        if age_ns >= self._stale_after_ns:
            return LatencyView(ServiceState.STALE, age_ns=age_ns, fresh=fresh)
        interval = self._interval(touched)
        state, latency_ns, cautious_latency_ns, low_ns, high_ns, samples, window_ns = self._judged(interval, now_ns)
        return LatencyView(  # in the order of its fields, as names cost a third more
            state,
            latency_ns,
            cautious_latency_ns,
            low_ns,
            high_ns,
            samples,
            window_ns,
            age_ns,
            fresh,
            interval.scheduled,
            interval.completed,
            interval.failed,
            interval.unsent,
            interval.outstanding,
            interval.oldest_ns,
            interval.scheduled * NS_PER_S / (interval.length * self._bin_ns),
        )

    def _number(self, end_ns: int) -> int:
        """The bin in which a window that ends then counts; an end on the edge belongs to the earlier one."""
        return (end_ns - 1) // self._bin_ns

    def _earliest(self, now_ns: int) -> int:
        """The first bin of the longest window."""
        return self._number(now_ns - self._longest_ns) + 1

    def _forget(self, now_ns: int) -> None:
        """Drop what is too old to matter: bins behind the longest window, clients that stopped sending."""
        numbers = self._numbers
        oldest = (now_ns - self._kept_ns - 1) // self._bin_ns  # as in ``_number``
        if numbers and numbers[0] < oldest:
            forgotten = bisect_left(numbers, oldest)
            del numbers[:forgotten], self._bins[:forgotten]
        before_ns = now_ns - self._stale_after_ns
        gone = [name for name, client in self._clients.items() if client.window_end_ns <= before_ns]
        for name in gone:
            del self._clients[name]
            self._counters["clients_gone"] += 1

    def _interval(self, touched: int) -> _Interval:
        """The interval up to the newest bin.

        It ends at the newest bin and not at the clock, as the newest windows are always still on their way. It reaches back over
        what came late since the last view, by one interval more at most, so that no sample is passed over.
        """
        last = (self._newest_end_ns - 1) // self._bin_ns  # as in ``_number``
        first = last - self._sub_intervals + 1
        if touched < first:
            first = max(touched, first - self._sub_intervals)
        at = bisect_left(self._numbers, first)
        return _Interval(first, last, at, self._bins[at:], self._clients.values())

    def _judged(self, interval: _Interval, now_ns: int) -> _Judgement:
        """State, latency and bounds."""
        if not interval.completed:
            if not (interval.scheduled or interval.failed or interval.unsent or interval.outstanding):
                return _Judgement(_IDLE if self._idle(interval, now_ns) else _FEW_SAMPLES)
            if self._stalled(interval):
                waiting = interval.unsent + interval.outstanding
                worst_ns = beyond(self._target, interval.oldest_ns, interval.unsent / waiting)
                return _Judgement(_STALLED, worst_ns, worst_ns, worst_ns, window_ns=interval.length * self._bin_ns)
        judgement = self._percentile(interval, now_ns)
        return judgement._replace(state=_FAILING) if interval.failed and self._failing(interval, now_ns) else judgement

    def _idle(self, interval: _Interval, now_ns: int) -> bool:
        """Whether a silence is long for what was asked before it: between rare requests there are silent intervals."""
        if not self._grows:
            return True
        earliest = self._earliest(now_ns)
        start, at = bisect_left(self._numbers, earliest), interval.at
        while at > start and not self._bins[at - 1].scheduled:
            at -= 1
        if at <= start:
            return True
        asked = sum(item.scheduled for item in self._bins[start:at])
        number = self._numbers[at - 1]
        return asked * (interval.last - number) >= SILENT_GAPS * (number - earliest + 1)

    def _stalled(self, interval: _Interval) -> bool:
        """Asked for, and nothing completes: over the target and a whole interval old, so that slow and rare is not stalled."""
        if not self._counts_unanswered:
            return False
        if interval.outstanding:
            return interval.oldest_ns > self._target.latency_ns and interval.oldest_ns >= self._interval_ns
        return interval.unsent > 0 and not interval.failed

    def _failing(self, interval: _Interval, now_ns: int) -> bool:
        """Whether too many answers are errors, over as much of the window as it takes for one error alone not to be too many."""
        if not self._counts_unanswered:
            return False
        failed, answered, at = interval.failed, interval.completed + interval.failed, interval.at
        if self._grows and answered < self._answers_needed:
            start = bisect_left(self._numbers, max(self._earliest(now_ns), self._changed))
            while answered < self._answers_needed and at > start:
                at -= 1
                more = self._bins[at]
                failed += more.failed
                answered += more.completed + more.failed
        return failed >= self._failing_rate * answered

    def _percentile(self, interval: _Interval, now_ns: int) -> _Judgement:
        """The percentile, its bounds and the vote."""
        stretch = self._grown(interval, now_ns)
        unsent = self._counts_unanswered
        sample = Sample(stretch, self._target, interval.ages_ns if unsent else (), unsent=unsent)
        latency_ns, low_ns, high_ns = sample.estimate(self._confidence)
        window_ns = stretch.length * self._bin_ns
        bounds = self._confidence is not None
        if latency_ns is None or (self._grows and sample.count < self._needed and not (bounds and sample.violates())):
            return _Judgement(_FEW_SAMPLES, None, None, low_ns, high_ns, sample.count, window_ns)
        if self._votes and not stretch.grown and sample.count >= 3 * self._needed:  # with fewer there are not even three parts
            voted_ns = vote(self._whole(stretch, interval.last), self._target, self._sub_intervals, unsent=unsent)
            latency_ns = latency_ns if voted_ns is None else voted_ns
        cautious_ns = latency_ns
        if bounds:
            cautious_ns = max(latency_ns, sample.largest_ns if high_ns is None else high_ns)
        return _Judgement(_OK, latency_ns, cautious_ns, low_ns, high_ns, sample.count, window_ns)

    def _grown(self, interval: _Interval, now_ns: int) -> Stretch:
        """What to judge by: the interval, and earlier bins until the percentile is supported, but none before a change."""
        if not self._grows:
            return interval
        first, at = interval.first, interval.at
        stretch: Stretch = interval
        if self._changed > first:
            first = self._changed  # none is left where the change came after everything
            at = bisect_left(self._numbers, first)
            stretch = Stretch(self._bins[at:], max(0, interval.last - first + 1))
        unsent = self._counts_unanswered
        count = stretch.completed + (stretch.unsent if unsent else 0)
        if count >= self._needed:
            return stretch
        earliest = max(self._earliest(now_ns), self._changed)
        if first <= earliest:
            return stretch
        start = bisect_left(self._numbers, earliest)
        while count < self._needed and at > start:
            at -= 1
            more = self._bins[at]
            count += more.completed + (more.unsent if unsent else 0)
        first = self._numbers[at] if count >= self._needed else earliest
        return Stretch(self._bins[at:], interval.last - first + 1, grown=True)

    def _whole(self, stretch: Stretch, last: int) -> Stretch:
        """A stretch up to the bin ``last`` with those of its bins in which nothing ended."""
        if len(stretch.bins) == stretch.length:
            return stretch
        found = dict(zip(self._numbers, self._bins, strict=True))
        return Stretch([found.get(number, _NOTHING) for number in range(last - stretch.length + 1, last + 1)])

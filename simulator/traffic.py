"""The clients of a simulated node: what they ask, and the windows that they report, as real ones do over the histogram socket.

A busy tenant's requests are a fluid with a sample of the steady state: what is over capacity queues up and drains
(``simulator.backlog``), and a response time is the wait for that plus one drawn from the steady state of the moment
(``simulator.queueing``). A tenant with few requests has them simulated one by one (``simulator.requests``). Which it is follows
from the load alone (``simulator.arrivals``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from monitors.histogram_message import Window
from parties.histogram import Histogram, bucket
from parties.model import NS_PER_S
from simulator.arrivals import (
    BLOCK_TICKS,
    DEMANDS,
    ListedBlock,
    Profile,
    SampledBlock,
    Streams,
    Trace,
)
from simulator.backlog import Backlog, Flow
from simulator.conditions import Conditions, Response
from simulator.crowd import Crowd
from simulator.profile import ServiceModel
from simulator.queueing import respond
from simulator.requests import Arrivals, RequestQueue

CLIENT: Final = "simulated"
_by_end = attrgetter("window_end_ns")


class Traffic:
    """One tenant between intervals. ``interval_ns`` is the control interval."""

    def __init__(self, name: str, model: ServiceModel, profile: Profile, streams: Streams, interval_ns: int) -> None:
        self.name = name
        self.slot = -1  # its number among the busy tenants of the block, if it is one
        self.response = Response(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # under the conditions and at the rate of the last ``meet``
        self.rates_rps: list[float] = []  # of the block, expected in each interval
        self.percentile = model.percentile
        self._interval_ns = interval_ns
        self._longest_wait_s = model.longest_wait_ns / NS_PER_S
        self._trace = Trace(
            name,
            profile,
            max_load_rps=model.max_load_rps,
            percentile=model.percentile,
            streams=streams,
            interval_s=interval_ns / NS_PER_S,
        )
        self._rng = streams.generator(name, "backlog")  # what is drawn when it is needed, and so hangs on the manager
        self._backlog = Backlog(self._longest_wait_s)
        self._requests = RequestQueue(self._longest_wait_s)
        self._listed: Arrivals | None = None
        self._counts: list[list[int]] = []  # of the block's windows, by tick, while it is busy
        self._sequence = 0
        self._conditions: Conditions | None = None
        self._rate_rps = -1.0

    def enter(self, number: int) -> SampledBlock | None:
        """Go to a block of the trace; its samples where the tenant is busy. What is outstanding changes engines with the tenant."""
        block = self._trace.block(number)
        self.rates_rps = block.rates_rps.reshape(BLOCK_TICKS, -1).mean(axis=1).tolist()
        start_s = number * BLOCK_TICKS * self._interval_ns / NS_PER_S
        if isinstance(block, ListedBlock):
            arrivals_s = self._backlog.take()
            self._requests.hold(zip(arrivals_s, self._rng.random((len(arrivals_s), DEMANDS)), strict=True))
            self._listed = Arrivals(block, start_s)
            return None
        self._rate_rps = -1.0  # while it was not busy nobody asked for its response time
        self._backlog.put(sorted(min(arrival_s, start_s) for arrival_s in self._requests.arrivals_s))
        self._requests = RequestQueue(self._longest_wait_s)
        self._listed = None
        self._counts = block.counts.tolist()
        return block

    def meet(self, conditions: Conditions, rate_rps: float) -> bool:
        """Note what requests meet from now on, and at which rate; whether that changes their response time."""
        if conditions is self._conditions and rate_rps == self._rate_rps:
            return False
        changed = rate_rps != self._rate_rps or conditions != self._conditions
        self._conditions, self._rate_rps = conditions, rate_rps
        if changed and self.busy:
            self.response = respond(conditions, rate_rps)
        return changed

    @property
    def busy(self) -> bool:
        """Whether it is one of the busy tenants of the block."""
        return self._listed is None

    @property
    def overloaded(self) -> bool:
        """Whether more waits, or is to come, than can be answered in the interval."""
        capacity_rps = self.response.capacity_rps
        return self._backlog.count > 0 or self._rate_rps > capacity_rps or capacity_rps <= 0

    def flows(self, tick: int, number: int) -> list[Flow]:
        """Let a busy tenant's requests through the backlog in tick ``tick``, which is that of this ``number`` in the block."""
        counts = self._counts[number]
        length_s = self._interval_ns / NS_PER_S / len(counts)
        start_s = tick * self._interval_ns / NS_PER_S
        capacity_rps = self.response.capacity_rps
        return [
            self._backlog.advance(count, capacity_rps, start_s + at * length_s, start_s + (at + 1) * length_s)
            for at, count in enumerate(counts)
        ]

    def steady(self, tick: int, number: int, histograms: list[Histogram]) -> list[Window]:
        """What a busy tenant's client reports if everything that arrives is answered."""
        counts = self._counts[number]
        length_ns = self._interval_ns // len(counts)
        end_ns = tick * self._interval_ns
        sequence = self._sequence
        windows = []
        for count, histogram in zip(counts, histograms, strict=True):
            start_ns, end_ns = end_ns, end_ns + length_ns
            windows.append(Window(self.name, CLIENT, sequence, start_ns, end_ns, count, count, count, 0, 0, 0, 0, histogram))
            sequence += 1
        self._sequence = sequence
        return windows

    def queued(self, tick: int, flows: list[Flow], histograms: list[Histogram]) -> list[Window]:
        """What it reports of what went through the backlog."""
        length_ns = self._interval_ns // len(flows)
        end_ns = tick * self._interval_ns
        windows = []
        for flow, histogram in zip(flows, histograms, strict=True):
            start_ns, end_ns = end_ns, end_ns + length_ns
            times = (self._sequence, start_ns, end_ns)
            sent = (flow.sent + flow.unsent, flow.sent, flow.completed, 0, flow.unsent)
            left = (flow.outstanding, round(flow.oldest_s * NS_PER_S))
            windows.append(Window(self.name, CLIENT, *times, *sent, *left, histogram))
            self._sequence += 1
        return windows

    def listed(self, tick: int, number: int) -> list[Window]:
        """What the client of a tenant with few requests reports."""
        return [] if self._listed is None else [self._one_by_one(self._listed, tick, number)]

    def _one_by_one(self, arrivals: Arrivals, tick: int, number: int) -> Window:
        start_ns = tick * self._interval_ns
        end_ns = start_ns + self._interval_ns
        answered = self._requests.advance(self._met(), arrivals, number, start_ns / NS_PER_S, end_ns / NS_PER_S)
        histogram = _histogram(answered.latencies_s)
        times = (self._sequence, start_ns, end_ns)
        sent = (answered.sent + answered.unsent, answered.sent, histogram.count, 0, answered.unsent)
        left = (answered.outstanding, round(answered.oldest_s * NS_PER_S))
        self._sequence += 1
        return Window(self.name, CLIENT, *times, *sent, *left, histogram)

    def _met(self) -> Conditions:
        if self._conditions is None:
            raise RuntimeError(f"{self.name}: windows were asked for before it was said what requests meet")
        return self._conditions


class TrafficSet:
    """All tenants of a node: what each is, and its load over time. ``interval_ns`` is the control interval.

    The same ``streams`` give the same arrivals whatever conditions are met.
    """

    def __init__(self, tenants: Mapping[str, tuple[ServiceModel, Profile]], streams: Streams, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._traffic = [Traffic(name, model, profile, streams, interval_ns) for name, (model, profile) in tenants.items()]
        self._tick = 0
        self._block = -1
        self._busy: list[Traffic] = []
        self._rng = streams.generator("answers")
        self._crowd = Crowd((), (), self._rng)

    def offered_rps(self) -> dict[str, float]:
        """The expected request rate of each tenant in the interval that comes next."""
        number = self._enter()
        return {traffic.name: traffic.rates_rps[number] for traffic in self._traffic}

    def advance(self, conditions: Mapping[str, Conditions], start_ns: int, end_ns: int) -> list[Window]:
        """The windows of all clients from one moment to the other, in the order of their ends.

        Time begins at 0 and goes on where it ended, by whole intervals. Raises ValueError otherwise.
        """
        now_ns = self._tick * self._interval_ns
        if start_ns != now_ns or end_ns % self._interval_ns or end_ns <= start_ns:
            raise ValueError(
                f"clients go on at {now_ns} ns by intervals of {self._interval_ns} ns, and not from {start_ns} to {end_ns} ns"
            )
        windows: list[Window] = []
        for tick in range(self._tick, end_ns // self._interval_ns):
            windows += self._interval(tick, conditions)
        return windows

    def _enter(self) -> int:
        """See that all are in the block of the next tick; its number in the block."""
        block, number = divmod(self._tick, BLOCK_TICKS)
        if block != self._block:
            self._block = block
            sampled = [(traffic, found) for traffic in self._traffic if (found := traffic.enter(block)) is not None]
            self._busy = [traffic for traffic, _ in sampled]
            for slot, traffic in enumerate(self._busy):
                traffic.slot = slot
            self._crowd = Crowd([found for _, found in sampled], [traffic.percentile for traffic in self._busy], self._rng)
            for traffic in self._busy:
                self._crowd.change(traffic.slot, traffic.response)
        return number

    def _interval(self, tick: int, conditions: Mapping[str, Conditions]) -> list[Window]:
        number = self._enter()
        self._tick = tick + 1
        for traffic in self._traffic:
            if traffic.meet(conditions[traffic.name], traffic.rates_rps[number]) and traffic.busy:
                self._crowd.change(traffic.slot, traffic.response)
        flows = {traffic.slot: traffic.flows(tick, number) for traffic in self._busy if traffic.overloaded}
        histograms = self._crowd.queued(number, flows) if flows else self._crowd.steady(number) if self._busy else []
        windows: list[Window] = []
        for traffic in self._traffic:
            if not traffic.busy:
                windows += traffic.listed(tick, number)
            elif traffic.slot in flows:
                windows += traffic.queued(tick, flows[traffic.slot], histograms[traffic.slot])
            else:
                windows += traffic.steady(tick, number, histograms[traffic.slot])
        windows.sort(key=_by_end)
        return windows


def _histogram(latencies_s: list[float]) -> Histogram:
    buckets = sorted([bucket(int(latency_s * NS_PER_S)) for latency_s in latencies_s])
    counts = Counter(buckets)  # keeps their order
    return Histogram.of_buckets(list(counts), list(counts.values()))

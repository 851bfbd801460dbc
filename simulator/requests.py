"""Requests one by one: stations in tandem, first come first served, for tenants with few requests in an interval.

Each station is an exact multi-server queue: a request begins when the first server is free (Kiefer and Wolfowitz), for its own
demand times the station's mean service time. Fractions of a server are rounded, to one at least. New conditions act on requests
that begin service later; those in service end as they began. With fewer servers a station begins none until fewer are in service.
While a service is killed or has no server, time stands still for its requests, but for their age. Conditions without stations serve
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace, nlargest
from typing import Final, NamedTuple

import numpy as np

from simulator.arrivals import Floats, ListedBlock
from simulator.conditions import Conditions, Station
from simulator.response_table import gamma_tail, grid_of_times

_SCV_DIGITS: Final = 3  # of the service times' distribution, so that few have to be made


Waiting = tuple[float, float, tuple[float, ...]]
"""A request before a station: when it gets there, when it arrived at the first one, and its demands at all of them, in units of the
mean. A plain tuple, as there are many."""


class Answered(NamedTuple):
    """What came of a stretch of time; ``oldest_s`` is the age of the oldest outstanding request at its end."""

    latencies_s: list[float]
    sent: int
    unsent: int
    outstanding: int
    oldest_s: float


class Arrivals:
    """The requests of a block of intervals: what ``simulator.arrivals`` listed, with times from the start of the run."""

    def __init__(self, block: ListedBlock, start_s: float) -> None:
        self._first: list[int] = block.first.tolist()
        self._arrivals_s: list[float] = (block.arrivals_s + start_s).tolist()
        self._uniform = block.demands
        self._scvs: tuple[float, ...] = ()
        self._requests: list[Waiting] = []

    def count(self, number: int) -> int:
        """How many arrive in an interval."""
        return self._first[number + 1] - self._first[number]

    def uniform(self, number: int) -> list[tuple[float, Floats]]:
        """When those of an interval arrive, and a uniform number for each station."""
        part = slice(self._first[number], self._first[number + 1])
        return list(zip(self._arrivals_s[part], self._uniform[part], strict=True))

    def requests(self, number: int, scvs: tuple[float, ...]) -> list[Waiting]:
        """Those of an interval as stations see them whose service times vary so much."""
        if scvs != self._scvs:
            self._requests = _requests(self._arrivals_s, self._uniform, scvs)
            self._scvs = scvs
        return self._requests[self._first[number] : self._first[number + 1]]


class RequestQueue:
    """The requests of one tenant, from interval to interval. ``longest_wait_s`` is the wait at which clients cease to send."""

    def __init__(self, longest_wait_s: float) -> None:
        self._longest_wait_s = longest_wait_s
        self._free: list[list[float]] = []  # when each server of each station is free, as heaps
        self._waiting: list[list[Waiting]] = [[]]  # before each station, in the order in which they get there
        self._leaving: list[tuple[float, float]] = []  # end and arrival of those that passed the last station
        self._held: list[tuple[float, Floats]] = []  # arrival and uniform numbers of those that came while there was no station

    @property
    def arrivals_s(self) -> list[float]:
        """When the outstanding requests arrived."""
        arrivals = [arrival_s for queue in self._waiting for _, arrival_s, _ in queue]
        arrivals += [arrival_s for _, arrival_s in self._leaving]
        arrivals += [arrival_s for arrival_s, _ in self._held]
        return arrivals

    def hold(self, requests: Iterable[tuple[float, Floats]]) -> None:
        """Add requests that are there already: when each arrived, and a uniform number for each station."""
        self._held += requests

    def advance(self, conditions: Conditions, arrivals: Arrivals, number: int, start_s: float, end_s: float) -> Answered:
        """One interval, the one of that number in the block of arrivals."""
        count = arrivals.count(number)
        sent = 0 if self._given_up(start_s) else count
        stations = conditions.stations
        latencies_s: list[float] = []
        if conditions.killed or min((station.capacity_rps for station in stations), default=0.0) <= 0:
            if sent:
                self.hold(arrivals.uniform(number))
            self._pause(start_s, end_s)
        else:
            scvs = tuple([station.service_scv for station in stations])
            if self._held:
                held_s, rows = zip(*self._held, strict=True)
                self._waiting[0] += _requests(held_s, np.array(rows), scvs)
                self._held.clear()
            if sent:
                self._waiting[0] += arrivals.requests(number, scvs)
            self._fit(stations, start_s)
            for at, station in enumerate(stations):
                self._serve(at, station, conditions.fixed_s, end_s)
            latencies_s = self._leave(end_s)
        outstanding = self.arrivals_s
        oldest_s = end_s - min(outstanding) if outstanding else 0.0
        return Answered(latencies_s, sent, count - sent, len(outstanding), oldest_s)

    def _given_up(self, now_s: float) -> bool:
        """Whether clients have waited so long that they do not send."""
        if self._held and now_s - self._held[0][0] > self._longest_wait_s:
            return True
        return any(queue and now_s - queue[0][1] > self._longest_wait_s for queue in self._waiting)

    def _fit(self, stations: Sequence[Station], now_s: float) -> None:
        """Give every station the servers that it has now."""
        while len(self._free) < len(stations):
            self._free.append([])
        while len(self._waiting) < len(stations):
            self._waiting.append([])
        for free, station in zip(self._free, stations, strict=False):
            servers = max(1, round(station.servers))
            if servers > len(free):
                free.extend([now_s] * (servers - len(free)))
                heapify(free)
            elif servers < len(free):
                free[:] = nlargest(servers, free)  # those that end first are not replaced
                heapify(free)

    def _serve(self, number: int, station: Station, fixed_s: float, end_s: float) -> None:
        """Let requests begin at a station until the end of the stretch, and hand them on."""
        queue, free, service_s = self._waiting[number], self._free[number], station.service_s
        last = number + 1 == len(self._waiting)
        through: list[Waiting] = []
        began = 0
        for ready_s, arrival_s, demands in queue:
            start_s = free[0]
            if start_s < ready_s:  # noqa: PLR1730 - a call of ``max`` costs a third of the whole
                start_s = ready_s
            if start_s >= end_s:
                break
            began += 1
            finish_s = start_s + demands[number] * service_s
            heapreplace(free, finish_s)
            if last:
                self._leaving.append((finish_s + fixed_s, arrival_s))
            else:
                through.append((finish_s, arrival_s, demands))
        del queue[:began]
        if through:
            following = self._waiting[number + 1]
            following += through
            following.sort()

    def _leave(self, end_s: float) -> list[float]:
        """The latencies of those whose answers arrive until the end of the stretch."""
        leaving = self._leaving
        self._leaving = [request for request in leaving if request[0] > end_s]
        return [finish_s - arrival_s for finish_s, arrival_s in leaving if finish_s <= end_s]

    def _pause(self, start_s: float, end_s: float) -> None:
        """What would have ended or begun later than the start of the stretch does so as much later as the stretch is long."""
        pause_s = end_s - start_s
        self._free = [[max(free_s, start_s) + pause_s for free_s in free] for free in self._free]
        self._leaving = [(max(finish_s, start_s) + pause_s, arrival_s) for finish_s, arrival_s in self._leaving]
        for queue in self._waiting[1:]:
            queue[:] = [(max(ready_s, start_s) + pause_s, arrival_s, demands) for ready_s, arrival_s, demands in queue]


def _requests(arrivals_s: Sequence[float], uniform: Floats, scvs: tuple[float, ...]) -> list[Waiting]:
    columns = [demand_of(scv, uniform[:, number]).tolist() for number, scv in enumerate(scvs)]
    return list(zip(arrivals_s, arrivals_s, zip(*columns, strict=True), strict=True))


def demand_of(service_scv: float, uniform: Floats) -> Floats:
    """Gamma variables of mean 1, as many as there are uniform numbers."""
    scv = round(service_scv, _SCV_DIGITS)
    if scv <= 0:
        return np.ones(len(uniform))
    if scv == 1:
        demands: Floats = -np.log1p(-uniform)
        return demands
    return np.interp(uniform, *_distribution(scv))


@lru_cache(maxsize=256)
def _distribution(scv: float) -> tuple[Floats, Floats]:
    """The distribution function of a gamma variable of mean 1, and where it has these values."""
    times = grid_of_times()
    below = 1 - gamma_tail(1 / scv, times)
    mean = float(np.sum(np.diff(below) * (times[1:] + times[:-1]) / 2))
    return below, times / mean

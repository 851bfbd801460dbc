"""Requests one by one: against the law of queues, against SimPy, and through every change of conditions."""

import math
from collections.abc import Generator, Sequence

import numpy as np
import pytest
import simpy

from simulator.arrivals import BLOCK_TICKS, DEMANDS, ListedBlock, Streams, Trace
from simulator.conditions import Conditions, Station
from simulator.load_profile import LoadProfile
from simulator.requests import Answered, Arrivals, RequestQueue, demand_of

INTERVAL_S = 0.5
DOWN = Conditions((), 0.0, killed=True)


def cores(servers: float, service_s: float, scv: float = 1.0, fixed_s: float = 0.0) -> Conditions:
    return Conditions((Station(servers, service_s, scv),), fixed_s)


def block_of(arrivals_s: Sequence[float]) -> ListedBlock:
    """A block with these requests, all with the median demand."""
    ticks = np.floor(np.array(arrivals_s) / INTERVAL_S)
    first = np.searchsorted(ticks, np.arange(BLOCK_TICKS + 1))
    return ListedBlock(np.zeros((BLOCK_TICKS, 1)), first, np.array(arrivals_s), np.full((len(arrivals_s), DEMANDS), 0.5))


class Run:
    """A queue and its arrivals, interval after interval."""

    def __init__(self, block: ListedBlock, longest_wait_s: float = 5.0) -> None:
        self.queue = RequestQueue(longest_wait_s)
        self.arrivals = Arrivals(block, 0.0)
        self.tick = 0

    def advance(self, conditions: Conditions, intervals: int = 1) -> list[Answered]:
        found = []
        for _ in range(intervals):
            start_s, end_s = self.tick * INTERVAL_S, (self.tick + 1) * INTERVAL_S
            found.append(self.queue.advance(conditions, self.arrivals, self.tick, start_s, end_s))
            self.tick += 1
        return found


def latencies(found: Sequence[Answered]) -> list[float]:
    return [latency_s for answered in found for latency_s in answered.latencies_s]


def long_run(rate_rps: float, conditions: Conditions, blocks: int, seed: int = 1) -> list[float]:
    """All latencies of a tenant at a constant load, from block to block."""
    trace = Trace(
        "web", LoadProfile.steady(1.0), max_load_rps=rate_rps, percentile=99.0, streams=Streams(seed), interval_s=INTERVAL_S
    )
    queue, found = RequestQueue(math.inf), []
    for number in range(blocks):
        block = trace.block(number)
        assert isinstance(block, ListedBlock)
        start_s = number * BLOCK_TICKS * INTERVAL_S
        arrivals = Arrivals(block, start_s)
        for tick in range(BLOCK_TICKS):
            now_s = start_s + tick * INTERVAL_S
            found += queue.advance(conditions, arrivals, tick, now_s, now_s + INTERVAL_S).latencies_s
    return found


def test_a_request_is_answered_in_the_interval_in_which_it_ends() -> None:
    """Constant service of 0.4 s: the request of 0.3 s ends at 0.7 s, and counts as outstanding, 0.2 s old, before."""
    run = Run(block_of([0.3]))
    first, second, third = run.advance(cores(1, 0.4, 0.0), 3)
    assert (first.sent, first.latencies_s, first.outstanding) == (1, [], 1)
    assert first.oldest_s == pytest.approx(0.2)
    assert second.latencies_s == [pytest.approx(0.4)]
    assert (second.outstanding, second.oldest_s) == (0, 0.0)
    assert third == Answered([], 0, 0, 0, 0.0)


def test_requests_wait_for_their_turn_and_fixed_time_is_added() -> None:
    """One server, three requests at once: 0.1, 0.2 and 0.3 s of service and waiting, and the fixed time for each."""
    found = Run(block_of([0.0, 0.0, 0.0])).advance(cores(1, 0.1, 0.0, fixed_s=0.05))
    assert latencies(found) == pytest.approx([0.15, 0.25, 0.35])


def test_stations_are_passed_one_after_another() -> None:
    """Two servers of 0.1 s before one of 0.2 s: the second request waits at the second station only."""
    conditions = Conditions((Station(2, 0.1, 0.0), Station(1, 0.2, 0.0)), 0.0)
    assert latencies(Run(block_of([0.0, 0.0])).advance(conditions, 2)) == pytest.approx([0.3, 0.5])


def test_servers_are_rounded_and_never_none() -> None:
    """0.3 servers are one and 2.4 are two."""
    assert latencies(Run(block_of([0.0, 0.0])).advance(cores(0.3, 0.1, 0.0))) == pytest.approx([0.1, 0.2])
    assert latencies(Run(block_of([0.0, 0.0, 0.0])).advance(cores(2.4, 0.1, 0.0))) == pytest.approx([0.1, 0.1, 0.2])


def test_new_conditions_act_on_requests_that_begin_later() -> None:
    """The request in service ends as it began; the one behind it is served at the new speed."""
    run = Run(block_of([0.0, 0.1]))
    run.advance(cores(1, 0.8, 0.0))
    assert latencies(run.advance(cores(1, 0.1, 0.0))) == pytest.approx([0.8, 0.8])


def test_a_further_server_takes_waiting_requests_at_once() -> None:
    """Two wait behind one of 2 s; with three servers both begin when the servers come, at 0.5 s."""
    run = Run(block_of([0.0, 0.0, 0.0]))
    run.advance(cores(1, 2.0, 0.0))
    assert latencies(run.advance(cores(3, 0.2, 0.0))) == pytest.approx([0.7, 0.7])


def test_fewer_servers_begin_nothing_until_fewer_are_in_service() -> None:
    """Three in service till 0.6, 0.8 and 1.0 s and one server left: the fourth begins when the last of them is done."""
    run = Run(block_of([0.0, 0.2, 0.4, 0.45]))
    run.advance(cores(3, 0.6, 0.0))
    found = run.advance(cores(1, 0.1, 0.0), 2)
    assert latencies(found) == pytest.approx([0.6, 0.6, 0.6, 0.65])


@pytest.mark.parametrize("down", [DOWN, cores(0, 0.4, 0.0), Conditions((), 0.0)])
def test_while_it_is_down_nothing_is_answered_and_age_rises(down: Conditions) -> None:
    """Two seconds without a server in mid-service: nothing completes, the age grows; then what was left of it is done."""
    run = Run(block_of([0.3, 0.45, 1.1]))
    run.advance(cores(1, 0.4, 0.0))
    paused = run.advance(down, 4)
    assert latencies(paused) == []
    assert [answered.outstanding for answered in paused] == [2, 3, 3, 3]
    assert [answered.oldest_s for answered in paused] == pytest.approx([0.7, 1.2, 1.7, 2.2])
    assert latencies(run.advance(cores(1, 0.4, 0.0), 4)) == pytest.approx([2.4, 2.65, 2.4])


def test_down_from_the_start_it_answers_when_it_comes() -> None:
    """Requests that came before any station was known have their demands then."""
    run = Run(block_of([0.1, 0.2]))
    assert [answered.outstanding for answered in run.advance(DOWN, 2)] == [2, 2]
    assert latencies(run.advance(cores(1, 0.1, 0.0))) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("conditions", [DOWN, cores(1, 3.0, 0.0)])
def test_clients_cease_to_send_after_the_longest_wait(conditions: Conditions) -> None:
    """Once somebody has waited longer than that, what would be sent is not; and later it is again."""
    run = Run(block_of([0.0, 0.1, 1.2, 1.6, 2.2, 7.6]), longest_wait_s=1.0)
    found = run.advance(conditions, 5)
    assert [answered.unsent for answered in found] == [0, 0, 0, 1, 1]
    assert [answered.sent for answered in found] == [2, 0, 1, 0, 0]
    later = run.advance(cores(4, 0.1, 0.0), 11)
    assert [answered.sent for answered in later][-1] == 1
    assert later[-1].outstanding == 0


def test_requests_are_neither_lost_nor_made() -> None:
    """What was sent is what was answered and what is outstanding, through every kind of change."""
    rng = np.random.default_rng(1)
    run = Run(block_of(np.sort(rng.random(900) * BLOCK_TICKS * INTERVAL_S).tolist()))
    sent = answered = 0
    for _ in range(BLOCK_TICKS):
        servers = int(rng.integers(0, 5))
        stations = (Station(servers, 0.1, 0.5), Station(1, float(rng.choice([0.01, 0.05])), 2.0))
        (found,) = run.advance(Conditions(stations, 0.02, killed=bool(rng.random() < 0.1)))
        sent += found.sent
        answered += len(found.latencies_s)
        assert min(found.latencies_s, default=1.0) >= 0.02
        assert sent == answered + found.outstanding
    assert answered > 500


@pytest.mark.parametrize("scv", [0.1, 0.5, 1.0, 3.0, 20.0])
def test_demands_have_their_moments(scv: float) -> None:
    """Mean 1 and the squared coefficient of variation asked for; 0 is always 1."""
    demands = demand_of(scv, np.random.default_rng(1).random(400_000))
    assert demands.mean() == pytest.approx(1, rel=0.03)
    assert demands.var() == pytest.approx(scv, rel=0.07)
    assert set(demand_of(0.0, np.random.default_rng(1).random(9)).tolist()) == {1.0}


def test_m_m_1_comes_out() -> None:
    """At 60 % the response time is exponential with mean s / 0.4, over 64 blocks."""
    found = np.array(long_run(40.0, cores(1, 0.015), 64))
    for percentile in (50, 90, 99):
        exact_s = -0.015 / 0.4 * math.log(1 - percentile / 100)
        assert np.percentile(found, percentile) == pytest.approx(exact_s, rel=0.06)


def simpy_tandem(rate_rps: float, stations: Sequence[Station], count: int) -> list[float]:
    """Response times of stations in tandem, event by event."""
    rng = np.random.default_rng(2)
    environment = simpy.Environment()
    resources = [simpy.Resource(environment, int(station.servers)) for station in stations]
    found: list[float] = []

    def request(demands: list[float]) -> Generator[simpy.Event, None, None]:
        arrived = environment.now
        for resource, demand_s in zip(resources, demands, strict=True):
            with resource.request() as turn:
                yield turn
                yield environment.timeout(demand_s)
        found.append(environment.now - arrived)

    def source() -> Generator[simpy.Event, None, None]:
        for _ in range(count):
            yield environment.timeout(rng.exponential(1 / rate_rps))
            demands = [rng.gamma(1 / station.service_scv, station.service_s * station.service_scv) for station in stations]
            environment.process(request(demands))

    environment.process(source())
    environment.run()
    return found


def test_a_tandem_is_that_of_simpy() -> None:
    """Three servers before one, with different variability: p50, p90 and p99 are those of SimPy within sampling error."""
    stations = (Station(3, 0.05, 0.4), Station(1, 0.012, 2.0))
    ours = long_run(40.0, Conditions(stations, 0.0), 16)
    theirs = simpy_tandem(40.0, stations, len(ours))
    for percentile, error in ((50, 0.05), (90, 0.07), (99, 0.15)):
        assert np.percentile(ours, percentile) == pytest.approx(np.percentile(theirs, percentile), rel=error)

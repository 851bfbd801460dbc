"""What simulated clients report: conservation, starvation and drain, and that a few order statistics say what all samples would."""

import heapq
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monitors.histogram_message import Window, encode_window, parse_window
from monitors.signal import Signal
from parties.histogram import Histogram, bucket, rank_of, tail_buckets, upper
from parties.model import NS_PER_S, LatencyView, QosTarget, ServiceState
from parties.settings import MS, SignalSettings
from simulator.arrivals import BLOCK_TICKS, LISTED_REQUESTS, SampledBlock, Streams, Trace
from simulator.backlog import Flow
from simulator.conditions import Conditions, Station
from simulator.crowd import Crowd, bucket_numbers, histogram_entries
from simulator.load_profile import LoadProfile
from simulator.profile import ServiceModel
from simulator.queueing import percentile_s, quantiles, respond
from simulator.traffic import TrafficSet

INTERVAL_NS = 500 * MS
DOWN = Conditions((), 0.0, killed=True)


def model(rate_rps: float, *, percentile: float = 99.0, longest_wait_ns: int = 5_000 * MS) -> ServiceModel:
    return ServiceModel("web", 10 * MS, rate_rps, percentile=percentile, longest_wait_ns=longest_wait_ns)


def cores(servers: float, service_s: float, scv: float = 1.0, fixed_s: float = 0.0) -> Conditions:
    return Conditions((Station(servers, service_s, scv),), fixed_s)


class Clients:
    """Tenants at constant loads or profiles, interval after interval."""

    def __init__(self, tenants: Mapping[str, tuple[ServiceModel, LoadProfile]], seed: int = 1) -> None:
        self.traffic = TrafficSet(tenants, Streams(seed), INTERVAL_NS)
        self.now_ns = 0

    def advance(self, conditions: Mapping[str, Conditions], intervals: int = 1) -> list[Window]:
        windows = []
        for _ in range(intervals):
            windows += self.traffic.advance(conditions, self.now_ns, self.now_ns + INTERVAL_NS)
            self.now_ns += INTERVAL_NS
        return windows


class One(Clients):
    """A single tenant."""

    def __init__(
        self, rate_rps: float, *, seed: int = 1, profile: LoadProfile | None = None, longest_wait_ns: int = 5_000 * MS
    ) -> None:
        super().__init__({"web": (model(rate_rps, longest_wait_ns=longest_wait_ns), profile or LoadProfile.steady(1.0))}, seed)

    def windows(self, conditions: Conditions, intervals: int = 1) -> list[Window]:
        return self.advance({"web": conditions}, intervals)


def percentile_ns(windows: Sequence[Window], percentile: float) -> int:
    histograms = [window.histogram for window in windows]
    count = sum(histogram.count for histogram in histograms)
    return upper(tail_buckets(histograms, (count - rank_of(percentile, count) + 1,))[0])


def conserved(windows: Sequence[Window]) -> bool:
    """Whether every request is answered, unsent or outstanding, window by window."""
    outstanding = 0
    for window in windows:
        outstanding += window.sent - window.completed
        fair = window.scheduled == window.sent + window.unsent and window.completed == window.histogram.count
        if not fair or window.outstanding != outstanding or bool(outstanding) < bool(window.oldest_outstanding_ns):
            return False
    return True


@given(st.lists(st.integers(128, (1 << 62) - 1), min_size=1), st.integers(7, 61))
def test_buckets_are_those_of_histograms(values: list[int], power: int) -> None:
    """The bits of a float give the bucket of ``parties.histogram``, to the edges of every power of two."""
    exact = [
        *(int(float(value) * (1 - 2**-53)) for value in values),
        2**power,
        2**power + 2 ** (power - 7),
        2 ** (power + 1) - 2 ** (power - 8),
    ]
    exact = [value for value in exact if value >= 128]
    assert bucket_numbers(np.array(exact, dtype=np.float64)).tolist() == [bucket(int(float(value))) for value in exact]


def test_less_than_128_ns_counts_as_that() -> None:
    """No service is that fast."""
    assert bucket_numbers(np.array([0.0, 5.0, 127.9, 128.0, 129.0])).tolist() == [128, 128, 128, 128, 129]


@pytest.mark.parametrize("rate_rps", [0.0, 30.0, 300.0, 20_000.0])
def test_windows_are_those_of_a_client(rate_rps: float) -> None:
    """Windows tile time on multiples of 100 or 500 ms, their numbers follow each other, and each survives as a message."""
    windows = One(rate_rps).windows(cores(8, 1e-5, fixed_s=1e-3), 6)
    length_ns = 100 * MS if rate_rps > 1_000 else 500 * MS
    assert [window.window_start_ns for window in windows] == list(range(0, 6 * INTERVAL_NS, length_ns))
    assert [window.window_end_ns - window.window_start_ns for window in windows] == [length_ns] * len(windows)
    assert [window.sequence for window in windows] == list(range(len(windows)))
    assert all(parse_window(encode_window(window)) == window for window in windows)
    assert conserved(windows)
    assert (sum(window.completed for window in windows) > 0) == (rate_rps > 0)


def test_windows_come_in_the_order_of_their_ends() -> None:
    """All tenants' windows of several intervals at once, and no tenant disturbs another."""
    steady = LoadProfile.steady(1.0)
    rates = {"few": 30.0, "some": 300.0, "many": 20_000.0, "more": 40_000.0}
    conditions = {name: cores(8, 1e-5, fixed_s=1e-3) for name in rates}
    together = TrafficSet({name: (model(rate_rps), steady) for name, rate_rps in rates.items()}, Streams(1), INTERVAL_NS)
    windows = together.advance(conditions, 0, 4 * INTERVAL_NS)
    assert [window.window_end_ns for window in windows] == sorted(window.window_end_ns for window in windows)
    for name, rate_rps in rates.items():
        alone = TrafficSet({name: (model(rate_rps), steady)}, Streams(1), INTERVAL_NS).advance(conditions, 0, 4 * INTERVAL_NS)
        assert [window for window in windows if window.service == name] == alone


def scheduled(windows: Sequence[Window]) -> list[tuple[int, int]]:
    return [(window.window_end_ns, window.scheduled) for window in windows]


@pytest.mark.parametrize("rate_rps", [30.0, 300.0, 20_000.0])
def test_arrivals_do_not_depend_on_the_manager(rate_rps: float) -> None:
    """What is asked for is the same for a quick service and for one that changes, starves and dies; another seed asks otherwise."""
    quick, changing, other = One(rate_rps), One(rate_rps), One(rate_rps, seed=2)
    good = cores(8, 1e-5)
    asked = scheduled(quick.windows(good, 140))
    found = []
    for interval in range(140):
        conditions = DOWN if interval % 7 == 3 else cores(1 + interval % 3, (1 + interval % 5) / rate_rps)
        found += changing.windows(conditions)
    assert scheduled(found) == asked
    assert scheduled(other.windows(good, 140)) != asked


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Two runs through overload, drain and quiet are equal window by window, and all are messages that are accepted."""
    runs = []
    for _ in range(2):
        clients = One(20_000.0)
        windows = clients.windows(cores(2, 2e-4), 5) + clients.windows(cores(1, 3e-4), 5) + clients.windows(cores(8, 2e-4), 90)
        runs.append([encode_window(window) for window in windows])
        assert [parse_window(message) for message in runs[-1]] == windows
    assert runs[0] == runs[1]


def test_how_far_ahead_is_made_makes_no_difference() -> None:
    """Conditions that change and come back, at odd times, give each window what it has where they never changed."""
    quick, slow = cores(8, 1e-4), cores(8, 1.5e-4)
    always = [One(20_000.0).windows(conditions, 80) for conditions in (quick, slow)]
    turning = One(20_000.0)
    for interval in range(80):
        which = interval % 11 in (3, 4, 9)
        windows = turning.windows(slow if which else quick)
        expected = always[which][5 * interval : 5 * interval + 5]
        assert windows == expected


def crowd_of(rate_rps: float, conditions: Conditions) -> Crowd:
    """A crowd of one busy tenant, in its first block."""
    trace = Trace("web", LoadProfile.steady(1.0), max_load_rps=rate_rps, percentile=99.0, streams=Streams(1), interval_s=0.5)
    block = trace.block(0)
    assert isinstance(block, SampledBlock)
    crowd = Crowd([block], [99.0], np.random.default_rng(2))
    crowd.change(0, respond(conditions, rate_rps))
    return crowd


@pytest.mark.parametrize(("first_s", "last_s"), [(0.2, 0.1), (0.1, 0.2)])
def test_waits_in_the_backlog_are_spread_over_those_that_waited(first_s: float, last_s: float) -> None:
    """Two fifths of a window wait for 100 to 200 ms, evenly, whether the backlog shrinks or grows, and the others do not."""
    crowd = crowd_of(200_000.0, cores(8, 1e-6, 0.0, fixed_s=1e-3))
    flows = [Flow(20_000, 0, 20_000, 0.4, first_s, last_s, 0, 0.0)] * 5
    for histogram in crowd.queued(3, {0: flows})[0]:
        assert histogram.count == 20_000
        assert histogram.percentile(99.0) == pytest.approx((0.001 + 0.1 + 0.0975) * NS_PER_S, rel=0.01)
        assert histogram.percentile(99.99) == pytest.approx(0.201 * NS_PER_S, rel=0.01)
        assert histogram.percentile(30.0) == pytest.approx(0.001 * NS_PER_S, rel=0.01)


def test_far_more_answers_than_arrivals_have_a_tail_of_their_own() -> None:
    """With 200 times as many answers as arrivals the largest sample stands for few of them, and p99 is the steady state's."""
    conditions = cores(1, 1e-5, fixed_s=1e-4)
    crowd = crowd_of(1_000.0, conditions)
    flows = [Flow(100, 0, 20_000, 1e-9, 0.0, 0.0, 0, 0.0)] * 5
    exact_ns = percentile_s(respond(conditions, 1_000.0), 99.0) * NS_PER_S
    for histogram in crowd.queued(0, {0: flows})[0]:
        assert histogram.count == 20_000
        assert list(histogram.counts.values())[-1] < 100
        assert histogram.percentile(99.0) == pytest.approx(exact_ns, rel=0.04)
    assert [histogram.count for histogram in crowd.queued(1, {0: [flows[0]._replace(completed=0)] * 5})[0]] == [0] * 5


def test_an_empty_window_has_no_bucket() -> None:
    """Wherever it stands among others; nor has a key that stands for no sample."""
    latencies_ns = np.array([[1e3, 2e3, 3e3]] * 4)
    per_key = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 0, 2]])
    buckets, counts, edges = histogram_entries(latencies_ns, per_key)
    assert edges == [0, 0, 3, 3, 5]
    assert counts == [1, 1, 1, 1, 2]
    assert buckets == [bucket(value) for value in (1_000, 2_000, 3_000, 1_000, 3_000)]


def test_time_goes_on_where_it_ended() -> None:
    """Another start, an end between intervals, and no time at all are refused."""
    clients = One(20_000.0)
    clients.windows(cores(8, 1e-5))
    for start_ns, end_ns in ((0, 500), (1_000, 1_500), (500, 700), (500, 500)):
        with pytest.raises(ValueError, match="clients go on at 500000000 ns by intervals of 500000000 ns"):
            clients.traffic.advance({"web": cores(8, 1e-5)}, start_ns * MS, end_ns * MS)


def test_offered_load_is_that_of_the_next_interval() -> None:
    """A ramp is told before it comes, also across a block's end."""
    end_s = BLOCK_TICKS * 0.5
    clients = One(20_000.0, profile=LoadProfile(((0.0, 0.0), (2 * end_s, 1.0))))
    told, came = [], []
    for _ in range(BLOCK_TICKS + 2):
        told.append(clients.traffic.offered_rps()["web"])
        came.append(sum(window.scheduled for window in clients.windows(cores(8, 1e-5))) / 0.5)
    assert told[-1] == pytest.approx((end_s + 0.75) / (2 * end_s) * 20_000.0)
    assert np.array(came) == pytest.approx(np.array(told), abs=5 * np.sqrt(20_000.0 * 2))


def view_of(windows: Sequence[Window], settings: SignalSettings, percentile: float) -> LatencyView:
    signal = Signal({"web": QosTarget(10 * MS, percentile)}, settings, INTERVAL_NS)
    for window in windows:
        signal.feed(window)
    return signal.views(max(window.window_end_ns for window in windows) + 10 * MS)["web"]


def with_every_sample(windows: Sequence[Window], conditions: Conditions, rate_rps: float, rng: np.random.Generator) -> list[Window]:
    """The same windows with a histogram of as many samples of the same response time, each drawn."""
    times_ns = quantiles((respond(conditions, rate_rps),))[0] * NS_PER_S
    made = []
    for window in windows:
        positions = -20 * np.log10(rng.random(window.completed))
        cells = np.minimum(positions.astype(int), len(times_ns) - 2)
        samples = times_ns[cells] + (positions - cells) * (times_ns[cells + 1] - times_ns[cells])
        buckets, counts = np.unique(bucket_numbers(samples), return_counts=True)
        made.append(replace(window, histogram=Histogram(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))))
    return made


HEAVY = cores(1, 8e-6, 4.0)
LIGHT = cores(16, 1e-4, 0.1)


@pytest.mark.parametrize(
    ("rate_rps", "percentile", "conditions"),
    [
        (70.0, 95.0, cores(4, 0.01, 0.5)),
        (240.0, 99.0, cores(4, 0.01, 4.0)),
        (1_500.0, 99.0, LIGHT),
        (9_000.0, 99.0, cores(2, 1e-4, 2.0)),
        (100_000.0, 99.0, HEAVY),
        (100_000.0, 99.0, LIGHT),
        (20_000.0, 90.0, HEAVY),
        (60_000.0, 99.9, HEAVY),
    ],
)
def test_the_signal_says_what_it_says_of_all_samples(rate_rps: float, percentile: float, conditions: Conditions) -> None:
    """Latency, low and high have the distribution that they have where every sample is reported, in 250 separate looks.

    Mean and spread of each, and the share of intervals in which a target at the percentile would be called violated.
    """
    clients = Clients({"web": (model(rate_rps, percentile=percentile), LoadProfile.steady(1.0))})
    rng = np.random.default_rng(11)
    fields = ("latency_ns", "low_ns", "high_ns")
    ours: dict[str, list[float]] = {name: [] for name in fields}
    theirs: dict[str, list[float]] = {name: [] for name in fields}
    span = 1 if rate_rps > 1_000 else 6
    true_ns = percentile_s(respond(conditions, rate_rps), percentile) * NS_PER_S
    for _ in range(250):
        windows = clients.advance({"web": conditions}, span)
        for found, some in ((ours, windows), (theirs, with_every_sample(windows, conditions, rate_rps, rng))):
            view = view_of(some, SignalSettings(), percentile)
            for name in fields:
                if getattr(view, name) is not None:
                    found[name].append(getattr(view, name) / true_ns)
    for name in fields:
        here, there = np.array(ours[name]), np.array(theirs[name])
        assert len(here) == pytest.approx(len(there), abs=3)
        if len(there) < 200:
            continue  # an open side
        spread = there.std()
        assert here.mean() == pytest.approx(there.mean(), abs=max(0.3 * spread, 0.003)), name
        assert here.std() == pytest.approx(spread, rel=0.25, abs=0.002), name
        assert stats.ks_2samp(here, there).statistic < 0.2, name


def test_the_steady_state_is_reported() -> None:
    """Over many intervals the percentile of all windows together is that of the queue."""
    conditions = cores(8, 4e-4, 0.5, fixed_s=1e-4)
    windows = One(15_000.0).windows(conditions, 128)
    exact_ns = percentile_s(respond(conditions, 15_000.0), 99.0) * NS_PER_S
    assert percentile_ns(windows, 99.0) == pytest.approx(exact_ns, rel=0.01)


@pytest.mark.parametrize("scv", [0.3, 1.0, 2.5])
def test_both_engines_agree_where_they_meet(scv: float) -> None:
    """Just under and just over the threshold, with the same utilisation: the same p80 and p99 within sampling error."""
    rate_rps = LISTED_REQUESTS / 0.5
    found = []
    for factor in (0.999, 1.001):
        windows = One(rate_rps * factor).windows(cores(3, 1.8 / rate_rps, scv), 1_600)
        found.append([percentile_ns(windows, percentile) for percentile in (80.0, 99.0)])
    for one, other, error in zip(*found, (0.05, 0.1), strict=True):
        assert one == pytest.approx(other, rel=error)


@pytest.mark.parametrize("rate_rps", [50.0, 300.0, 20_000.0])
def test_a_starved_service_is_stalled(rate_rps: float) -> None:
    """Without a core, or killed, nothing completes: outstanding requests and their age rise with time, and the signal says so."""
    clients = One(rate_rps)
    before = clients.windows(cores(8, 1e-4), 2)
    for conditions in (cores(0, 1e-4), DOWN):
        windows = clients.windows(conditions, 3)
        assert all(window.completed == 0 for window in windows)
        before += windows
    last = before[-1]
    assert last.outstanding == sum(window.scheduled for window in before if window.window_end_ns > 2 * INTERVAL_NS)
    assert last.oldest_outstanding_ns == pytest.approx(6 * INTERVAL_NS, rel=0.05)
    view = view_of(before, SignalSettings(), 99.0)
    assert view.state is ServiceState.STALLED
    assert conserved(before)
    assert conserved([*before, *clients.windows(cores(8, 1e-4), 4)])


def test_clients_cease_to_send_after_the_longest_wait() -> None:
    """A backlog as long as the longest wait takes no more: without capacity nothing, with too little as much as is answered."""
    clients = One(20_000.0, longest_wait_ns=1_000 * MS)
    dead = clients.windows(DOWN, 4)
    assert all(window.unsent == 0 for window in dead if window.window_end_ns <= 1_000 * MS)
    assert all(window.sent == 0 for window in dead if window.window_end_ns > 1_200 * MS)
    half = clients.windows(cores(1, 1e-4), 40)[-50:]
    assert sum(window.completed for window in half) == pytest.approx(10_000 * 5, rel=0.01)
    assert sum(window.sent for window in half) == pytest.approx(10_000 * 5, rel=0.02)
    assert percentile_ns(half, 50.0) == pytest.approx(NS_PER_S, rel=0.08)


def test_overload_queues_up_and_drains_in_its_time() -> None:
    """At 150 % of capacity for 2 s, then at 50 %: latency rises by a third of the time, and after 2 s more the backlog is gone."""
    clients = One(30_000.0)
    over = clients.windows(cores(2, 1e-4, 0.2), 4)
    assert sum(window.completed for window in over) == pytest.approx(20_000 * 2, rel=0.001)
    assert over[-1].outstanding == pytest.approx(20_000, rel=0.03)
    assert over[-1].oldest_outstanding_ns == pytest.approx(2 * NS_PER_S / 3, rel=0.03)
    drain = clients.windows(cores(6, 1e-4, 0.2), 4)
    emptied = next(window.window_end_ns for window in drain if not window.outstanding)
    assert emptied - 2 * NS_PER_S == pytest.approx(20_000 / 30_000 * NS_PER_S, abs=150 * MS)
    assert sum(window.completed for window in drain) == sum(window.scheduled for window in drain) + over[-1].outstanding
    quiet_ns = percentile_s(respond(cores(6, 1e-4, 0.2), 30_000.0), 99.0) * NS_PER_S
    assert percentile_ns(drain[-5:], 99.0) == pytest.approx(quiet_ns, rel=0.1)


def starved_events(rate_rps: float, servers: int, service_s: float, starved_s: float, end_s: float) -> list[tuple[float, float]]:
    """(end, latency) of an M/M/k whose servers are all absent from 1 s on for so long, event by event with SimPy."""
    rng = np.random.default_rng(5)
    environment = simpy.Environment()
    resource = simpy.PriorityResource(environment, servers)
    found: list[tuple[float, float]] = []

    def request() -> Generator[simpy.Event, None, None]:
        arrived = environment.now
        with resource.request(priority=1) as turn:
            yield turn
            yield environment.timeout(rng.exponential(service_s))
        found.append((environment.now, environment.now - arrived))

    def absent() -> Generator[simpy.Event, None, None]:
        yield environment.timeout(1.0)
        with resource.request(priority=0) as turn:
            yield turn
            yield environment.timeout(1.0 + starved_s - environment.now)

    def source() -> Generator[simpy.Event, None, None]:
        while True:
            yield environment.timeout(rng.exponential(1 / rate_rps))
            environment.process(request())

    environment.process(source())
    for _ in range(servers):
        environment.process(absent())
    environment.run(end_s)
    return found


def test_starvation_and_drain_are_those_of_events() -> None:
    """A second without any server, then back: the backlog's end and p50 and p99 of each half second are SimPy's but for chance."""
    rate_rps, servers, service_s = 3_000.0, 4, 0.8e-3
    events = starved_events(rate_rps, servers, service_s, 1.0, 5.0)
    clients = One(rate_rps)
    good = cores(servers, service_s)
    windows = clients.windows(good, 2) + clients.windows(cores(0, service_s), 2) + clients.windows(good, 6)
    assert conserved(windows)
    drained_ns = next(window.window_end_ns for window in windows if window.window_end_ns > 2 * NS_PER_S and not window.outstanding)
    slow = max(end_s for end_s, latency_s in events if latency_s > 0.03)
    assert drained_ns / NS_PER_S == pytest.approx(slow, abs=0.15)
    for start in (2.0, 2.5, 3.0):
        theirs = [latency_s for end_s, latency_s in events if start < end_s <= start + 0.5]
        ours = [window for window in windows if start * NS_PER_S < window.window_end_ns <= (start + 0.5) * NS_PER_S]
        assert sum(window.completed for window in ours) == pytest.approx(len(theirs), rel=0.05)
        for percentile in (50.0, 99.0):
            expected_s = float(np.percentile(theirs, percentile))
            assert percentile_ns(ours, percentile) / NS_PER_S == pytest.approx(expected_s, abs=0.05)


def test_what_is_outstanding_changes_engines_with_the_load() -> None:
    """A load that falls under the threshold and rises over it at the ends of blocks takes its backlog along, to the request."""
    block_s = BLOCK_TICKS * 0.5
    profile = LoadProfile(((0.0, 1.0), (block_s, 1.0), (block_s, 0.05), (2 * block_s, 0.05), (2 * block_s, 1.0)))
    clients = One(200.0, profile=profile, longest_wait_ns=100_000 * MS)
    windows = clients.windows(cores(1, 1 / 180), BLOCK_TICKS)
    assert windows[-1].outstanding == pytest.approx(20 * block_s, rel=0.2)
    oldest_ns = windows[-1].oldest_outstanding_ns
    windows += clients.windows(DOWN)
    assert windows[-1].oldest_outstanding_ns == pytest.approx(oldest_ns + INTERVAL_NS, rel=0.01)
    windows += clients.windows(DOWN, BLOCK_TICKS - 1)
    waiting = windows[-1].outstanding
    windows += clients.windows(DOWN)
    assert windows[-1].outstanding == waiting + windows[-1].scheduled - windows[-1].unsent
    windows += clients.windows(cores(4, 1 / 180), BLOCK_TICKS - 1)
    assert windows[-1].outstanding == 0
    assert conserved(windows)


def lindley(rate_rps: float, servers: int, demands: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Latencies of a queue, request by request."""
    free, now_s, found = [0.0] * servers, 0.0, []
    for gap, demand_s in zip(gaps, demands, strict=True):
        now_s += gap / rate_rps
        start_s = max(now_s, free[0])
        heapq.heapreplace(free, start_s + demand_s)
        found.append(start_s + demand_s - now_s)
    return found


def test_a_busy_tenant_is_its_queue() -> None:
    """p99 of what is reported is that of 300,000 requests simulated one after another."""
    rng = np.random.default_rng(4)
    demands, gaps = rng.gamma(2.0, 5e-4 / 2, 300_000), rng.standard_exponential(300_000)
    exact_s = np.percentile(lindley(12_000.0, 8, demands.tolist(), gaps.tolist()), 99)
    windows = One(12_000.0).windows(cores(8, 5e-4, 0.5), 64)
    assert percentile_ns(windows, 99.0) / NS_PER_S == pytest.approx(exact_s, rel=0.04)

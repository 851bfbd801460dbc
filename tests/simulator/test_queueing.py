"""Response times in steady state against closed forms, exact integrals, and events simulated one by one."""

import math
from collections.abc import Generator
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from simulator.conditions import Conditions, Response, Station
from simulator.queueing import GRID, WAIT_HORIZON_S, percentile_s, quantiles, respond, wait_probability
from simulator.response_table import Blend

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
SERVICE_S = 1e-4  # so short that the horizon cuts nothing off


def one(
    servers: float, *, scv: float = 1.0, arrivals: float = 1.0, service_s: float = SERVICE_S, fixed_s: float = 0.0
) -> Conditions:
    return Conditions((Station(servers, service_s, scv, arrivals),), fixed_s)


def at(utilisation: float, servers: float = 1.0, *, scv: float = 1.0, arrivals: float = 1.0) -> Response:
    return respond(one(servers, scv=scv, arrivals=arrivals), utilisation * servers / SERVICE_S)


@pytest.mark.parametrize("utilisation", [0.05, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99])
def test_m_m_1_is_exponential(utilisation: float) -> None:
    """M/M/1's response time is exponential with mean s / (1 - rho), at every percentile within 1 %."""
    response = at(utilisation)
    for percentile in PERCENTILES:
        exact_s = -SERVICE_S / (1 - utilisation) * math.log(1 - percentile / 100)
        assert percentile_s(response, percentile) == pytest.approx(exact_s, rel=0.01)


def m_m_k_tail(servers: int, utilisation: float, time: float) -> float:
    """P(T > t) of M/M/k, in service times: Erlang C by its sum, and the two cases of the convolution."""
    offered = servers * utilisation
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - utilisation)
    waits = last / (sum(terms) + last)
    rate = servers * (1 - utilisation)
    alone = (1 - waits) * math.exp(-time)
    if abs(rate - 1) < 1e-9:
        return float(alone + waits * (1 + time) * math.exp(-time))
    return float(alone + waits * (rate * math.exp(-time) - math.exp(-rate * time)) / (rate - 1))


@pytest.mark.parametrize("servers", [2, 4, 8, 14, 64])
@pytest.mark.parametrize("utilisation", [0.1, 0.5, 0.7, 0.9, 0.99])
def test_m_m_k_has_its_response_time(servers: int, utilisation: float) -> None:
    """M/M/k's response time is that of the closed form at every percentile, within 1 %."""
    response = at(utilisation, servers)
    for percentile in PERCENTILES:
        exact = optimize.brentq(lambda time, p=percentile: m_m_k_tail(servers, utilisation, time) - (1 - p / 100), 0, 1e4)
        assert percentile_s(response, percentile) == pytest.approx(exact * SERVICE_S, rel=0.01)


def m_d_1_wait(utilisation: float, time: float) -> float:
    """P(W <= t) of M/D/1 in service times (Erlang 1909); its terms alternate, so it takes many digits."""
    with localcontext() as context:
        context.prec = 150
        rate, total, factorial = Decimal(repr(utilisation)), Decimal(0), Decimal(1)
        for number in range(int(time) + 1):
            factorial *= max(number, 1)
            exponent = rate * (Decimal(number) - Decimal(repr(time)))
            total += (exponent**number if number else Decimal(1)) / factorial * (-exponent).exp()
        return float((1 - rate) * total)


@pytest.mark.parametrize(("utilisation", "error"), [(0.3, 0.02), (0.5, 0.013), (0.7, 0.006), (0.9, 0.002), (0.95, 0.002)])
def test_the_tail_of_m_d_1_is_close(utilisation: float, error: float) -> None:
    """M/D/1 from p95 on is within 2 % at 30 % utilisation and far closer where it matters; docs/simulator-queueing.md has these."""
    response = at(utilisation, scv=0.0)
    for percentile in (95.0, 99.0, 99.9):
        exact = 1 + optimize.brentq(lambda time, p=percentile: m_d_1_wait(utilisation, time) - p / 100, 0, 120, xtol=1e-6)
        assert percentile_s(response, percentile) == pytest.approx(exact * SERVICE_S, rel=error)


@pytest.mark.parametrize("scv", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.95])
def test_m_g_1_has_the_mean_of_pollaczek_and_khinchine(scv: float, utilisation: float) -> None:
    """The mean wait of M/G/1 is exact, whatever the probability and the decay it is divided into."""
    response = at(utilisation, scv=scv)
    exact_s = utilisation * SERVICE_S * (1 + scv) / 2 / (1 - utilisation)
    assert response.wait_probability * response.wait_s == pytest.approx(exact_s, rel=1e-6)


def test_fractions_of_a_server_lie_between_whole_ones() -> None:
    """Erlang C of 2.5 servers is within 1 % of its continuation by Erlang B's integral; under one it is rougher."""
    for servers, utilisation, error in ((0.5, 0.4, 0.06), (1.5, 0.7, 0.01), (2.5, 0.5, 0.01), (9.3, 0.9, 0.001)):
        offered = servers * utilisation

        def integrand(time: float, servers: float = servers, offered: float = offered) -> float:
            return float(math.exp(-offered * time) * (1 + time) ** servers)

        blocked = 1 / (offered * integrate.quad(integrand, 0, np.inf)[0])
        exact = blocked / (1 - utilisation * (1 - blocked))
        assert wait_probability(servers, utilisation) == pytest.approx(exact, rel=error)


@given(st.floats(0.1, 64), st.floats(0.01, 0.99))
def test_more_servers_at_the_same_utilisation_wait_less(servers: float, utilisation: float) -> None:
    """Erlang C is a probability, falls with servers and rises with utilisation, for any fraction of a server."""
    here = wait_probability(servers, utilisation)
    assert 0 < here < 1
    assert wait_probability(servers + 0.25, utilisation) < here < wait_probability(servers, utilisation + 0.005)


def exact_sum_tail(response: Response, time: float) -> float:
    """P(wait + service > t) by numerical integration over the service time."""
    shape = 1 / response.service_scv
    service = stats.gamma(shape, scale=response.service_s / shape)

    def integrand(spent: float) -> float:
        return float(service.pdf(spent) * math.exp(-(time - spent) / response.wait_s))

    waits = integrate.quad(integrand, 0, time, limit=400, points=[min(time, response.service_s)])[0]
    return float(service.sf(time) + response.wait_probability * waits)


@pytest.mark.parametrize("scv", [0.02, 0.25, 1.4, 4.0])
@pytest.mark.parametrize("wait", [0.03, 0.4, 40.0])
@pytest.mark.parametrize("probability", [0.003, 0.03, 0.95])
def test_tables_have_the_sum_of_wait_and_service(scv: float, wait: float, probability: float) -> None:
    """p95, p99 and p99.9 of the interpolated tables are exact to 2 %."""
    response = Response(0.0, probability, wait, 1.0, scv, 1.0)
    for percentile in (95.0, 99.0, 99.9):
        above = 1 - percentile / 100
        time = percentile_s(response, percentile)
        assert exact_sum_tail(response, time * 1.02) < above < exact_sum_tail(response, time * 0.98)


def test_the_grid_is_what_it_says() -> None:
    """A row of quantiles ascends, and each entry is the percentile that ``GRID`` names."""
    response = respond(one(3, scv=0.5, fixed_s=0.25), 20_000.0)
    (row,) = quantiles((response,))
    assert np.all(np.diff(row) >= 0)
    assert row[0] >= 0.25
    for number in (1, 20, 40, 60, 100):
        assert percentile_s(response, GRID[number] * 100) == pytest.approx(row[number], rel=1e-6)


def test_many_responses_at_once_are_the_same_as_one_by_one() -> None:
    """The vector form gives each tenant its own row, also beside tenants without service time."""
    responses = [at(0.5), at(0.9, 8, scv=0.2), respond(Conditions((), 0.1), 5.0), respond(one(0.0), 5.0), at(0.8, scv=6.0)]
    together = quantiles(responses)
    for number, response in enumerate(responses):
        assert np.allclose(together[number], quantiles((response,))[0], rtol=1e-12)


@pytest.mark.parametrize("probability", [0.25, 1.0])
def test_a_wait_without_service_is_exponential(probability: float) -> None:
    """Who is not served at all has no service time to be a unit of the tables, and the wait alone is exact."""
    response = Response(0.1, probability, 2.0, 0.0, 0.0, 0.0)
    for percentile in (90.0, 99.0, 99.9):
        exact_s = 0.1 + 2.0 * math.log(probability / (1 - percentile / 100))
        assert percentile_s(response, percentile) == pytest.approx(exact_s, rel=1e-9)


def test_one_of_several_is_replaced_alone() -> None:
    """A new response changes its own row and no bit of the others."""
    blend = Blend(3)
    for number, utilisation in enumerate((0.3, 0.5, 0.7)):
        blend.put(number, at(utilisation))
    before = blend.times_s()
    blend.put(1, at(0.9))
    after = blend.times_s()
    assert np.array_equal(after[[0, 2]], before[[0, 2]])
    assert np.array_equal(after[1], quantiles((at(0.9),))[0])


def test_nothing_to_wait_for() -> None:
    """No request and no station: the response time is fixed plus service, fixed alone."""
    quiet = respond(one(2, scv=0.0, fixed_s=0.5), 0.0)
    assert (quiet.wait_probability, quiet.wait_s) == (0.0, 0.0)
    assert percentile_s(quiet, 99.9) == pytest.approx(0.5 + SERVICE_S)
    empty = respond(Conditions((), 0.5), 10.0)
    assert empty.capacity_rps == math.inf
    assert percentile_s(empty, 99.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "conditions",
    [one(0.0), Conditions((), 0.0, killed=True), one(4)._replace(killed=True), Conditions((Station(2, 0.1), Station(0, 8.0)), 0.0)],
)
@pytest.mark.parametrize("rate_rps", [0.0, 10.0])
def test_who_has_nothing_or_is_dead_answers_nothing(conditions: Conditions, rate_rps: float) -> None:
    """Without a server at some station, or killed, capacity is 0 and the wait is finite but longer than any target."""
    response = respond(conditions, rate_rps)
    assert response.capacity_rps == 0.0
    assert WAIT_HORIZON_S < percentile_s(response, 99.0) < 100 * WAIT_HORIZON_S


def test_at_and_above_capacity_the_wait_is_that_of_the_horizon() -> None:
    """The wait rises up to the diffusion's and stays there: sqrt(2 T / pi * s * (ca2 + cs2) / k)."""
    conditions = one(4, scv=0.5, arrivals=2.0, service_s=0.01)
    waits = [respond(conditions, rate_rps).wait_s for rate_rps in (200.0, 380.0, 390.0, 399.99, 400.0, 500.0, 4000.0)]
    assert all(before <= after * (1 + 1e-9) for before, after in pairwise(waits))
    assert waits[-3:] == [pytest.approx(math.sqrt(2 * WAIT_HORIZON_S / math.pi * 0.01 * 2.5 / 4), rel=1e-6)] * 3
    assert waits[2] < waits[3]


def test_stations_in_tandem_are_added() -> None:
    """Capacity is the narrowest's; the mean of the response is the sum of the stations' own; a rare long wait keeps its tail."""
    first, second = Station(8, 0.004, 0.5), Station(1, 0.0004, 2.0, 1.5)
    both = respond(Conditions((first, second), 0.001), 1_500.0)
    alone = [respond(Conditions((station,), 0.0), 1_500.0) for station in (first, second)]
    assert both.capacity_rps == 2_000.0
    assert both.service_s == pytest.approx(0.0044)
    assert both.service_scv == pytest.approx((0.5 * 0.004**2 + 2.0 * 0.0004**2) / 0.0044**2)
    assert both.wait_probability * both.wait_s == pytest.approx(sum(one.wait_probability * one.wait_s for one in alone))


def test_waits_in_tandem_have_both_moments() -> None:
    """Two M/M/1 at 50 %, each with a wait of 2 s on average for every other request: both moments of the sum are right."""
    twice = respond(Conditions((Station(1, SERVICE_S), Station(1, SERVICE_S)), 0.0), 0.5 / SERVICE_S)
    assert twice.wait_s == pytest.approx((4 + 4 + 2 * 1 * 1) / (2 * 2) * SERVICE_S)
    assert twice.wait_probability == pytest.approx(2 / 2.5)


def test_a_rare_long_wait_is_not_averaged_away() -> None:
    """A disk at which few wait long beside cores at which many wait shortly: p99 is the disk's."""
    cores, disk = Station(1, 0.0008), Station(1, 0.05, 1.0)
    rate_rps = 5.0
    both = percentile_s(respond(Conditions((cores, disk), 0.0), rate_rps), 99.0)
    assert both == pytest.approx(percentile_s(respond(Conditions((disk,), 0.0), rate_rps), 99.0), rel=0.03)


def test_what_is_over_the_bottleneck_does_not_reach_the_others() -> None:
    """An overloaded disk does not make the cores wait more than they do at its capacity."""
    cores, disk = Station(4, 0.001), Station(1, 0.01)
    overloaded = respond(Conditions((cores, disk), 0.0), 3_900.0)
    full = respond(Conditions((cores, disk), 0.0), 100.0)
    assert overloaded == full


def events(servers: int, rate: float, scv: float, count: int, seed: int) -> list[float]:
    """Response times of an M/G/k simulated event by event with SimPy, in service times."""
    rng = np.random.default_rng(seed)
    environment = simpy.Environment()
    resource = simpy.Resource(environment, servers)
    found: list[float] = []
    service = np.ones(count) if scv == 0 else rng.standard_gamma(1 / scv, count) * scv

    def request(length: float) -> Generator[simpy.Event, None, None]:
        arrived = environment.now
        with resource.request() as turn:
            yield turn
            yield environment.timeout(length)
        found.append(environment.now - arrived)

    def source() -> Generator[simpy.Event, None, None]:
        for gap, length in zip(rng.standard_exponential(count) / rate, service, strict=True):
            yield environment.timeout(float(gap))
            environment.process(request(float(length)))

    environment.process(source())
    environment.run()
    return found[count // 20 :]


@pytest.mark.parametrize(
    ("servers", "utilisation", "scv", "error"), [(4, 0.7, 0.2, 0.05), (8, 0.8, 1.0, 0.05), (2, 0.6, 3.0, 0.12), (6, 0.5, 0.0, 0.05)]
)
def test_events_of_m_g_k_agree(servers: int, utilisation: float, scv: float, error: float) -> None:
    """p95 and p99 of M/G/k are those of simulated events, within sampling error and what docs/simulator-queueing.md says."""
    found = events(servers, servers * utilisation, scv, 20_000, seed=7)
    response = at(utilisation, servers, scv=scv)
    for percentile in (95.0, 99.0):
        assert percentile_s(response, percentile) / SERVICE_S == pytest.approx(np.percentile(found, percentile), rel=error)


@given(
    st.floats(0.5, 40),
    st.floats(1e-6, 2.0),
    st.floats(0, 20),
    st.floats(0, 9),
    st.floats(0, 3),
)
@settings(max_examples=60)
def test_every_response_is_finite_and_rises_with_the_rate(
    servers: float, service_s: float, scv: float, arrivals: float, load: float
) -> None:
    """Whatever the station and the load, quantiles are finite, ascend, and do not fall when the rate rises."""
    conditions = one(servers, scv=scv, arrivals=arrivals, service_s=service_s)
    rate_rps = load * servers / service_s
    (row,) = quantiles((respond(conditions, rate_rps),))
    (more,) = quantiles((respond(conditions, rate_rps * 1.1),))
    assert np.all(np.isfinite(row))
    assert np.all(np.diff(row) >= -1e-9 * row[-1])
    assert more[60] >= row[60] * (1 - 2e-3)

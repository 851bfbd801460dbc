"""How long requests take: the steady state of the stations that they pass, as one distribution of response times.

``docs/simulator-queueing.md`` has the formulas, where they are exact, and how far they are off elsewhere. What is over capacity is
not here: a backlog has a history, and ``simulator.traffic`` carries it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.conditions import Conditions, Response, Station
from simulator.response_table import GRID_PER_DECADE, GRID_SIZE, Blend

WAIT_HORIZON_S: Final = 10.0
"""How long random deviations may have added up. Near saturation a station takes far longer than a run to reach its steady state (at
99.9 % and 1 ms of service over half an hour), so its wait is held to what a queue that began empty has after so long: the longest
window over which the signal looks back (``parties.settings.SignalSettings``)."""

NEARLY_FULL: Final = 1.0 - 1e-6  # the utilisation at which a station counts as busy all the time
_LIGHT: Final = 0.55  # times - ln(utilisation): how much the decay rate can exceed that of heavy traffic, and a little more
_CONSTANT: Final = 1e-9  # a squared coefficient of variation that is none
_LAST_STEP: Final = 1e-3  # of the decay rate; Newton's error after such a step is some of its square: measured, under 1e-6
_DECAY_ROUNDS: Final = 40

GRID: Final[npt.NDArray[np.float64]] = 1.0 - 10.0 ** (-np.arange(GRID_SIZE) / GRID_PER_DECADE)
"""The probabilities of ``quantiles``: equally spaced in the logarithm of what is above, twenty to each factor of ten."""


def respond(conditions: Conditions, rate_rps: float) -> Response:
    """The response time in steady state at a request rate.

    The wait has the mean and the decay rate of the queue, so that ``wait_probability`` is not always the share of requests that
    wait. At and above capacity it is what a station has that is just full, for ``WAIT_HORIZON_S``: finite, but who asks whether an
    allocation serves has to compare ``rate_rps`` with ``capacity_rps`` as well. A service that was killed or has no server answers
    nothing: capacity 0, and a wait of the horizon. Without stations the response time is ``fixed_s``.
    """
    stations = conditions.stations
    capacities = [station.capacity_rps for station in stations]
    capacity_rps = 0.0 if conditions.killed else min(capacities) if capacities else math.inf
    if capacity_rps <= 0:
        return Response(conditions.fixed_s, 1.0, WAIT_HORIZON_S, 0.0, 0.0, 0.0)
    served_rps = min(max(rate_rps, 0.0), capacity_rps)  # what is over the narrowest does not reach the others
    service_s = variance = mean_s = square = 0.0
    for station in stations:
        service_s += station.service_s
        variance += station.service_scv * station.service_s * station.service_s
        probability, wait_s = _wait(station, served_rps)
        # Moments of the sum of independent waits.
        here_s = probability * wait_s
        square += 2 * here_s * (wait_s + mean_s)
        mean_s += here_s
    scv = variance / (service_s * service_s) if service_s > 0 else 0.0
    if mean_s <= 0:
        return Response(conditions.fixed_s, 0.0, 0.0, service_s, scv, capacity_rps)
    wait_s = square / (2 * mean_s)
    return Response(conditions.fixed_s, min(1.0, mean_s / wait_s), wait_s, service_s, scv, capacity_rps)


def percentile_s(response: Response, percentile: float) -> float:
    """The percentile (99.0 for p99) of a response time; over p99.99999 its tail goes on as an exponential's."""
    tail = 1.0 - percentile / 100
    if tail <= 0:
        return math.inf
    position = max(0.0, -GRID_PER_DECADE * math.log10(tail))
    cell = min(int(position), GRID_SIZE - 2)
    row = quantiles((response,))[0]
    return float(row[cell] + (position - cell) * (row[cell + 1] - row[cell]))


def quantiles(responses: Sequence[Response]) -> npt.NDArray[np.float64]:
    """The response times in s at the probabilities of ``GRID``, a row for each response."""
    blend = Blend(len(responses))
    for number, response in enumerate(responses):
        blend.put(number, response)
    return blend.times_s()


def wait_probability(servers: float, utilisation: float) -> float:
    """Erlang C: the share of requests that wait where arrivals are Poisson and service is exponential.

    Fractions of a server: Erlang B between 0 and 1 server is interpolated in its logarithm, and its recursion goes on from there.
    """
    if utilisation <= 0:
        return 0.0
    if utilisation >= 1:
        return 1.0
    offered = servers * utilisation
    whole = int(servers)
    part = servers - whole
    inverse_b: float = (1 + 1 / offered) ** part
    for count in range(1, whole + 1):
        inverse_b = 1 + (part + count) / offered * inverse_b
    return 1 / (utilisation + inverse_b * (1 - utilisation))


@lru_cache(maxsize=4096)  # a move changes the conditions of all, but of most only the first station
def _wait(station: Station, rate_rps: float) -> tuple[float, float]:
    """The probability and the mean in s of an exponential wait with the station's mean wait and decay rate."""
    servers, service_s, service_scv, arrival_scv = station
    utilisation = min(rate_rps * service_s / servers, NEARLY_FULL)
    if utilisation <= 0 or arrival_scv + service_scv <= _CONSTANT:
        return 0.0, 0.0
    mean_s = wait_probability(servers, utilisation) * service_s / (servers * (1 - utilisation))
    mean_s *= _variability(station, utilisation)
    wait_s = service_s / (servers * _decay(utilisation, arrival_scv, service_scv))
    longest_s = math.sqrt(2 * WAIT_HORIZON_S / math.pi * service_s * (arrival_scv + service_scv) / servers)
    return min(1.0, mean_s / wait_s), min(wait_s, longest_s)


def _variability(station: Station, utilisation: float) -> float:
    """The mean wait over that of M/M/k: Allen-Cunneen, and for service less variable than exponential Cosmetatos' correction."""
    servers, _, service_scv, arrival_scv = station
    allen_cunneen = (arrival_scv + service_scv) / 2
    if service_scv >= 1 or servers <= 1:
        return allen_cunneen
    light = (1 - utilisation) * (servers - 1) * (math.sqrt(4 + 5 * servers) - 2) / (16 * servers * utilisation)
    constant = min((1 + light) / 2, servers / (servers + 1))  # M/D/k over M/M/k; the second is its value without load
    return allen_cunneen * (service_scv + (1 - service_scv) * constant) / ((1 + service_scv) / 2)


def _decay(utilisation: float, arrival_scv: float, service_scv: float) -> float:
    """The rate at which the wait's tail falls, in units of servers / service time.

    The positive root of E[e^(x S)] E[e^(-x A)] = 1 with gamma times between arrivals and gamma service; 1 - utilisation for M/M.
    """
    if arrival_scv == 1 and service_scv == 1:
        return 1 - utilisation
    decay = 2 * (1 - utilisation) / (arrival_scv + service_scv)  # in heavy traffic; over the root if service varies more
    if service_scv < arrival_scv:
        decay *= 1 - _LIGHT * math.log(utilisation)
    for _ in range(_DECAY_ROUNDS):  # Newton on a concave function from the right of its root: it comes down to it
        # The function whose fixed point the decay is, and its slope.
        if arrival_scv > _CONSTANT:
            growth = decay * arrival_scv / utilisation
            logarithm, slope = math.log1p(growth) / arrival_scv, 1 / (utilisation * (1 + growth))
        else:
            logarithm, slope = decay / utilisation, 1 / utilisation
        if service_scv > _CONSTANT:
            less = math.expm1(-service_scv * logarithm)
            logarithm, slope = -less / service_scv, (1 + less) * slope
        step = (logarithm - decay) / (slope - 1)
        decay -= step
        if step <= _LAST_STEP * decay:
            break
    return decay

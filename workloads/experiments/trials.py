"""Runs on the simulated node, as the experiments need them: who shares it at which loads under whom, and whether that works.

Loads are in percent of a service's maximum load (Table 2), in steps of 10 % as in the paper.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from functools import cache

from parties.model import NS_PER_S, Decision, Observation
from parties.record import Timing
from simulator.library import job_model, node_profile
from simulator.load_profile import LoadProfile
from simulator.machine import Machine
from simulator.oracle import OracleSearch
from simulator.profile import JobModel, NodeProfile, ServiceModel
from simulator.run import CONVERGED_NS, Result, Simulation, simulate
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE, ORACLE, Scenario, Tenant, tenant_model

SERVICES = ("memcached", "xapian", "nginx", "moses", "mongodb", "sphinx")
STEPS = tuple(range(10, 101, 10))
WARMUP_S, MEASURED_S, FOUND_WITHIN_S = 30.0, 60.0, 60.0  # section 5.1
LEEWAY_S = 2.0  # of a run beyond that, so that an allocation found in the last moment is measured to the end
REPEATS = 3
SMALLEST_WEIGHT = 0.1  # in random proportions of loads: one service's load is at most ten times another's
ROOM = 1.5  # so many times the late requests that a minute allows are too many, however many requests there will be
SPARED = 0.1
"""The part of the measured intervals that is left out of the verdict on a service, those with the most late requests.

The paper's rule asks for an allocation that meets every target, not for a minute without a trial. A downsize that goes wrong costs
its service one to four intervals until it is reverted and the queue is gone, and may come every 30 s.
"""
ROOM_REQUESTS = 20  # late ones by which no percentile is lost, however few requests there are

Loads = Mapping[str, float]
"""Percent of maximum load by tenant."""


@cache
def model_of(tenant: str) -> ServiceModel:
    """What a tenant is."""
    return tenant_model(tenant)


def tenants_of(services: Sequence[str]) -> tuple[str, ...]:
    """Names for the services of a mix, in which one may be named twice: its second is "memcached-2"."""
    seen: dict[str, int] = {}
    names = []
    for service in services:
        seen[service] = seen.get(service, 0) + 1
        names.append(service if seen[service] == 1 else f"{service}-{seen[service]}")
    return tuple(names)


def mixes(size: int) -> tuple[tuple[str, ...], ...]:
    """Every mix of so many different services."""
    return tuple(itertools.combinations(SERVICES, size))


@cache
def node() -> NodeProfile:
    """The paper's server."""
    return node_profile(DEFAULT_NODE)


@cache
def job() -> JobModel:
    """The paper's best-effort job."""
    return job_model(DEFAULT_JOB)


def scenario(
    loads: Loads, *, seed: int, duration_s: float = WARMUP_S + MEASURED_S, best_effort: bool = False, policy: str = "parties"
) -> Scenario:
    """Tenants at constant loads on the paper's server."""
    tenants = {name: Tenant(model_of(name), LoadProfile.steady(load / 100)) for name, load in loads.items()}
    return Scenario(node(), tenants, job() if best_effort else None, duration_s, seed, policy)


def works(loads: Loads, manager: str, seeds: Sequence[int], spared: float = SPARED) -> bool:
    """Whether a manager serves these loads: most of its runs do (``serves``).

    Oracle needs no run: it asks the model whether any allocation serves them.
    """
    if manager == ORACLE:
        return oracle_finds(loads)
    met = missed = 0
    for seed in seeds:
        run = scenario(loads, seed=seed, duration_s=FOUND_WITHIN_S + MEASURED_S + LEEWAY_S, policy=manager)
        if serves(run, spared):
            met += 1
        else:
            missed += 1
        if 2 * max(met, missed) > len(seeds):
            break
    return met > missed


def serves(run: Scenario, spared: float = SPARED) -> bool:
    """Whether a run meets every target by the rule of ``Judge``."""
    simulation = Simulation(run, latencies=False)
    judge = Judge(simulation, spared)
    simulation.run([judge])
    return judge.served


def converge(loads: Loads, manager: str, seed: int, length_s: float) -> Result:
    """A whole run of so long, to see when it converges."""
    return simulate(scenario(loads, seed=seed, duration_s=length_s, policy=manager), latencies=False)


def oracle_finds(loads: Loads) -> bool:
    """Whether any division of the node serves these loads."""
    models = {name: model_of(name) for name in loads}
    machine = Machine(node(), models, None)
    return OracleSearch(machine).feasible({name: load / 100 * models[name].max_load_rps for name, load in loads.items()})


class Judge:
    """Judges a run by section 5.1's rule, and ends it once its verdict is known.

    A combination fails if no allocation meets every target within 60 s. One does if every target is met for two seconds on end, as
    in ``Result.converged_s``. The minute that is measured begins then, but not before 30 s have gone; over all requests of that
    minute, but for those of the worst intervals (``spared`` is their part), each service's percentile must be within its target.
    A service that has more late requests early in it than the whole minute leaves room for, and half as many again, has failed
    already.
    """

    def __init__(self, simulation: Simulation, spared: float = SPARED) -> None:
        self.served = False
        self.measured_from: int | None = None  # index of the first measured interval
        self._simulation = simulation
        self._measures = simulation.measures.services
        self._warmup, self._measured, self._latest = (
            self._intervals(seconds) for seconds in (WARMUP_S, MEASURED_S, FOUND_WITHIN_S)
        )
        self._needed = self._intervals(CONVERGED_NS / NS_PER_S)
        self._spared = round(spared * self._measured)
        self._met = 0
        self._allowed = {}
        for name, tenant in simulation.scenario.tenants.items():
            requests = tenant.load.at(0.0) * tenant.model.max_load_rps * MEASURED_S
            beyond = 1 - self._measures[name].target.percentile / 100
            self._allowed[name] = ROOM * beyond * requests + ROOM_REQUESTS

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Judge an interval; called after the run's own measures."""
        del observation, decision, timing
        seen = len(next(iter(self._measures.values())).violated)
        if self.measured_from is None:
            self._search(seen)
            return
        if seen - self.measured_from >= self._measured:
            last = self.measured_from + self._measured
            self.served = all(
                measure.met_over(self.measured_from, last, spared=self._spared) for measure in self._measures.values()
            )
            self._simulation.platform.stop()
        elif any(self._late(measure.over[self.measured_from :]) > self._allowed[name] for name, measure in self._measures.items()):
            self._simulation.platform.stop()

    def _late(self, over: Sequence[int]) -> int:
        """Late requests of these intervals, the spared ones left out."""
        late = sum(over)
        return late - sum(heapq.nlargest(self._spared, over)) if late and self._spared else late

    def _search(self, seen: int) -> None:
        violated = any(measure.violated[-1] for measure in self._measures.values())
        self._met = 0 if violated else self._met + 1
        began = seen - self._met
        if self._met >= self._needed:
            self.measured_from = max(began, self._warmup)
        elif began > self._latest:
            self._simulation.platform.stop()

    def _intervals(self, seconds: float) -> int:
        return round(seconds * NS_PER_S) // self._simulation.interval_ns

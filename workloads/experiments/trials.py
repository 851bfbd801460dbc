"""Runs on the simulated node, as the experiments need them: who shares it at which loads under whom, and whether that works.

Loads are in percent of a service's maximum load (Table 2), in steps of 10 % as in the paper.
"""

from __future__ import annotations

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
from simulator.run import Result, Simulation, simulate
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE, ORACLE, Scenario, Tenant, tenant_model

SERVICES = ("memcached", "xapian", "nginx", "moses", "mongodb", "sphinx")
STEPS = tuple(range(10, 101, 10))
WARMUP_S, MEASURED_S = 30.0, 60.0  # section 5.1
REPEATS = 3
SMALLEST_WEIGHT = 0.1  # in random proportions of loads: one service's load is at most ten times another's
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


def works(loads: Loads, manager: str, seeds: Sequence[int]) -> bool:
    """Whether a manager serves these loads: most of the runs meet every target over the measured 60 s (section 5.1).

    Oracle needs no run: it asks the model whether any allocation serves them.
    """
    if manager == ORACLE:
        return oracle_finds(loads)
    met = missed = 0
    for seed in seeds:
        if meets(scenario(loads, seed=seed, policy=manager)):
            met += 1
        else:
            missed += 1
        if 2 * max(met, missed) > len(seeds):
            break
    return met > missed


def meets(run: Scenario) -> bool:
    """Whether a run meets every target over what is measured of it; one that cannot any more is ended early."""
    simulation = Simulation(run, latencies=False)
    hopeless = Hopeless(simulation)
    result = simulation.run([hopeless])
    return not hopeless.found and result.meets_all(WARMUP_S)


def converge(loads: Loads, manager: str, seed: int, length_s: float) -> Result:
    """A whole run of so long, to see when it converges."""
    return simulate(scenario(loads, seed=seed, duration_s=length_s, policy=manager), latencies=False)


def oracle_finds(loads: Loads) -> bool:
    """Whether any division of the node serves these loads."""
    models = {name: model_of(name) for name in loads}
    machine = Machine(node(), models, None)
    return OracleSearch(machine).feasible({name: load / 100 * models[name].max_load_rps for name, load in loads.items()})


class Hopeless:
    """Ends a run once a service has had so many late requests that its percentile of all measured ones must be over the target.

    The number of requests to come is known from the load but for its randomness, for which there is room.
    """

    ROOM = 1.5

    def __init__(self, simulation: Simulation) -> None:
        self.found = False
        self._simulation = simulation
        self._first = round(WARMUP_S * NS_PER_S) // simulation.interval_ns
        self._late = dict.fromkeys(simulation.measures.services, 0)
        self._allowed = {}
        for name, tenant in simulation.scenario.tenants.items():
            requests = tenant.load.at(0.0) * tenant.model.max_load_rps * (simulation.scenario.duration_s - WARMUP_S)
            beyond = 1 - simulation.measures.services[name].target.percentile / 100
            self._allowed[name] = self.ROOM * beyond * requests + ROOM_REQUESTS

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Count the late requests of an interval; called after the run's own measures."""
        del decision, timing
        if observation.tick <= self._first:
            return
        for name, measure in self._simulation.measures.services.items():
            self._late[name] += measure.over[-1]
            if self._late[name] > self._allowed[name]:
                self.found = True
                self._simulation.platform.stop()

"""Oracle's search: whether any division of the node meets every target, exact on the model (section 5.1), and a good one if so.

``docs/policies.md`` says how (``simulator.oracle_fit`` does it); ``tests/simulator/test_oracle.py`` compares it with plain
enumeration. For experiments ``OracleSearch.feasible`` is all; ``OracleSearch.solve`` is for the policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from parties.model import BEST_EFFORT, IDLE, MILLICORES_PER_CORE, Holder, Partition, Resource
from simulator.conditions import Share
from simulator.machine import Machine
from simulator.oracle_fit import Allocation, Fit, Job, Rates
from simulator.queueing import percentile_s, respond

SLACK_STEPS = 32
"""The smallest slack is raised in steps of 1/32 of the target: finer than the tail of a minute can be measured."""

MARGIN = 0.05
"""The slack that best effort leaves to each service, if it can be had: under it PARTIES counts a service as near violation."""

_RATES = (Resource.MEMORY, Resource.DISK, Resource.NETWORK)


class OracleSearch:
    """Searches the divisions of a machine; a ``parties.policies.oracle.Solver``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._node = machine.profile.node()
        self._pools = {pool.key.resource: pool for pool in self._node.managed_pools()}

    def feasible(self, loads_rps: Mapping[str, float]) -> bool:
        """Whether any division meets every target at these loads; best-effort jobs get nothing then."""
        return Fit(self._machine, loads_rps, 0.0, Job()).found() is not None

    def solve(self, loads_rps: Mapping[str, float]) -> Partition | None:
        """A division that meets every target; None if there is none.

        Without best-effort jobs the one with the largest smallest slack (in steps of 1/32), and what is left over goes to those who
        use most of what they have. With them, the one that leaves the job the most cores, then the highest frequency, while every
        service keeps 5 % of slack if it can; the job gets the rest of everything.
        """
        least = self._fit(loads_rps, 0.0, Job())
        if least is None:
            return None
        found = self._with_most_slack(loads_rps, least) if self._machine.job is None else self._with_job(loads_rps, least)
        return self._partition(found)

    def _with_most_slack(self, loads_rps: Mapping[str, float], least: Allocation) -> Allocation:
        steps, allocation = _highest(0, SLACK_STEPS - 1, least, lambda step: self._fit(loads_rps, step / SLACK_STEPS, Job()))
        return self._deal_out(self._deal_cores_out(allocation, loads_rps, steps / SLACK_STEPS), loads_rps)

    def _with_job(self, loads_rps: Mapping[str, float], least: Allocation) -> Allocation:
        levels = self._pools[Resource.FREQUENCY].levels
        kept = self._fit(loads_rps, MARGIN, Job(0, levels[0]))
        slack = 0.0 if kept is None else MARGIN
        spare = self._machine.profile.cores - len(self._machine.tenants)
        cores, allocation = _highest(0, spare, kept or least, lambda count: self._fit(loads_rps, slack, Job(count, levels[0])))
        if not cores:
            return self._deal_cores_out(dataclasses.replace(allocation, job=Job(0, levels[0])), loads_rps, slack)

        def at_level(index: int) -> Allocation | None:  # nobody is slowed for the job's sake
            return Fit(self._machine, loads_rps, slack, Job(cores, levels[index]), all_at_top=True).found()

        return self._deal_cores_out(_highest(0, len(levels) - 1, allocation, at_level)[1], loads_rps, slack)

    def _fit(self, loads_rps: Mapping[str, float], slack: float, job: Job) -> Allocation | None:
        return Fit(self._machine, loads_rps, slack, job).found()

    def _meets(self, allocation: Allocation, loads_rps: Mapping[str, float], slack: float) -> bool:
        """Whether the model itself says so."""
        shares = [
            Share((name,), False, cores, ways, level_hz, *rates)
            for name, cores, ways, level_hz, rates in zip(
                self._machine.tenants, allocation.cores, allocation.ways, allocation.level_hz, allocation.rates, strict=True
            )
        ]
        if allocation.job.cores:
            ways = self._machine.profile.cache_ways - sum(allocation.ways)
            shares.append(Share((), True, allocation.job.cores, ways, allocation.job.level_hz, 0, 0, 0))
        outlook = self._machine.outlook(shares, loads_rps)
        for name, model in self._machine.tenants.items():
            response = respond(outlook.services[name], loads_rps.get(name, 0.0))
            limit_s = model.target_ns * 1e-9 * (1.0 - slack)
            if response.capacity_rps <= loads_rps.get(name, 0.0) or percentile_s(response, model.percentile) > limit_s:
                return False
        return True

    def _deal_cores_out(self, allocation: Allocation, loads_rps: Mapping[str, float], slack: float) -> Allocation:
        """The cores that neither a service needs nor the job has, to the busiest; not if that costs turbo too much."""
        profile = self._machine.profile
        busy = [self._machine.busy_cores(name, loads_rps.get(name, 0.0)) for name in self._machine.tenants]
        cores = _dealt(list(allocation.cores), profile.cores - allocation.job.cores, 1, busy)
        dealt = dataclasses.replace(allocation, cores=tuple(cores))
        return dealt if self._meets(dealt, loads_rps, slack) else allocation

    def _deal_out(self, allocation: Allocation, loads_rps: Mapping[str, float]) -> Allocation:
        """Memory, disk and network that nobody needs, step by step to whoever uses most of what it has."""
        asked = [(loads_rps.get(name, 0.0), model) for name, model in self._machine.tenants.items()]
        columns = [list(column) for column in zip(*allocation.rates, strict=True)]
        demands = (
            [float(model.resident_bytes) for _, model in asked],
            [model.disk_bytes * load_rps for load_rps, model in asked],
            [model.network_bits * load_rps for load_rps, model in asked],
        )
        for resource, column, demand in zip(_RATES, columns, demands, strict=True):
            _dealt(column, self._pools[resource].total, self._pools[resource].step, demand)
        rates = tuple(Rates(*row) for row in zip(*columns, strict=True))
        return dataclasses.replace(allocation, rates=rates)

    def _partition(self, allocation: Allocation) -> Partition:
        names = list(self._machine.tenants)
        held: dict[Resource, dict[Holder, int]] = {
            Resource.CORES: dict(zip(names, (count * MILLICORES_PER_CORE for count in allocation.cores), strict=True)),
            Resource.CACHE: dict(zip(names, allocation.ways, strict=True)),
            Resource.FREQUENCY: dict(zip(names, allocation.level_hz, strict=True)),
        }
        for index, resource in enumerate(_RATES):
            held[resource] = {name: rates[index] for name, rates in zip(names, allocation.rates, strict=True)}
        job = self._machine.job is not None
        if job:
            held[Resource.CORES][BEST_EFFORT] = allocation.job.cores * MILLICORES_PER_CORE
            held[Resource.FREQUENCY][BEST_EFFORT] = allocation.job.level_hz
        for resource, amounts in held.items():
            if resource.shared_pool:
                rest = self._pools[resource].total - sum(amounts.values())
                amounts[BEST_EFFORT if job and resource is not Resource.CORES else IDLE] = rest
        return Partition({self._pools[resource].key: amounts for resource, amounts in held.items()})


def _highest(low: int, high: int, at_low: Allocation, fit: Callable[[int], Allocation | None]) -> tuple[int, Allocation]:
    """The highest number that fits, and its allocation; what fits a number fits every lower one, and ``low`` is known to fit."""
    best = at_low
    while low < high:
        middle = (low + high + 1) // 2
        found = fit(middle)
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    return low, best


def _dealt(amounts: list[int], total: int, step: int, demands: Sequence[float]) -> list[int]:
    """The amounts, in place, with the rest of the pool: each step to the largest demand over amount, then the smallest amount."""
    for _ in range((total - sum(amounts)) // step):
        hungriest = max(range(len(amounts)), key=lambda index: (demands[index] / amounts[index], -amounts[index]))
        amounts[hungriest] += step
    return amounts

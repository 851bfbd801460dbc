"""The scenario ``cycling``: the wheels go round for ever on a mix that can be served."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import groupby

import pytest

from parties.model import Decision, Observation, Partition, Resource
from parties.record import Timing
from simulator.machine import Machine
from simulator.oracle import OracleSearch
from simulator.run import simulate
from simulator.scenario import ORACLE, scenario_named

CYCLING = scenario_named("cycling")
SETTLED_INTERVALS = 120  # a minute: how long the paper measures, and how long it waits before it migrates a service


class Allocations:
    """Keeps the allocation of each interval, the network's own rule aside."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[str, int], ...]] = []

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        del decision, timing
        self.seen.append(_held(observation.partition))


def _held(partition: Partition) -> tuple[tuple[str, int], ...]:
    return tuple(
        (f"{key} {holder}", amount)
        for key, held in partition.amounts.items()
        if key.resource is not Resource.NETWORK
        for holder, amount in held.items()
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_wheels_go_round_and_never_meet_every_target_for_a_minute(seed: int) -> None:
    """In a quarter of an hour: no minute without violation, violations to the end, and allocations that were left come again."""
    allocations = Allocations()
    result = simulate(dataclasses.replace(CYCLING, seed=seed), listeners=(allocations,), latencies=False)
    violated = result.violated()
    longest = max(len(list(stretch)) for bad, stretch in groupby(violated) if not bad)
    assert longest < SETTLED_INTERVALS
    assert any(violated[-SETTLED_INTERVALS:])
    stays = Counter(allocation for allocation, _ in groupby(allocations.seen))
    assert sum(count - 1 for count in stays.values()) >= 20
    assert not result.meets_all()


def test_an_allocation_that_serves_the_mix_exists_and_stays_good() -> None:
    """Oracle finds one, also for 5 % more load; with it every target is met over the whole time."""
    machine = Machine(CYCLING.node, CYCLING.models)
    loads = {name: tenant.load.at(0) * tenant.model.max_load_rps for name, tenant in CYCLING.tenants.items()}
    assert OracleSearch(machine).feasible({name: 1.05 * load for name, load in loads.items()})
    assert simulate(dataclasses.replace(CYCLING, duration_s=300.0), policy=ORACLE, latencies=False).meets_all(0.0)

"""What a run was like from interval to interval: a listener that keeps it as rows."""

from __future__ import annotations

from typing import Any

from parties.model import BEST_EFFORT, IDLE, MILLICORES_PER_CORE, NS_PER_S, Decision, Holder, Observation, Resource
from parties.record import Timing
from simulator.run import Simulation

MHZ = 1_000_000
POOLED = ((Resource.CORES, "cores", MILLICORES_PER_CORE), (Resource.CACHE, "ways", 1))
HELD = (*POOLED, (Resource.FREQUENCY, "mhz", MHZ))


class Timeline:
    """Listens to a simulation, after its own measures."""

    def __init__(self, simulation: Simulation) -> None:
        self.rows: list[dict[str, Any]] = []
        self._simulation = simulation
        self._keys = {pool.key.resource: pool.key for pool in simulation.node.managed_pools()}

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Keep an interval: loads, latencies over targets, violations, what everybody held, and what was decided."""
        del timing
        time_s = observation.tick * self._simulation.interval_ns / NS_PER_S
        row: dict[str, Any] = {"time_s": time_s, "reason": str(decision.reason), "subject": decision.subject}
        for name, measure in self._simulation.measures.services.items():
            tenant = self._simulation.scenario.tenants[name]
            latency_ns = measure.latency_ns[-1]
            row[f"load {name}"] = round(100 * tenant.load.at(time_s), 2)
            row[f"ratio {name}"] = None if latency_ns is None else round(latency_ns / measure.target.latency_ns, 4)
            row[f"violated {name}"] = measure.violated[-1]
            holder = self._simulation.policy.sharing.get(name, name)
            for resource, unit, per in HELD:
                row[f"{unit} {name}"] = self._held(observation, resource, holder, per)
        for holder in (BEST_EFFORT, IDLE):
            for resource, unit, per in POOLED:
                row[f"{unit} {holder}"] = self._held(observation, resource, holder, per)
        progress = observation.best_effort.progress
        row["best_effort_progress"] = None if progress is None else round(progress, 4)
        self.rows.append(row)

    def _held(self, observation: Observation, resource: Resource, holder: Holder, per: int) -> int | None:
        held = observation.partition.amounts.get(self._keys[resource])
        return None if held is None or holder not in held else held[holder] // per

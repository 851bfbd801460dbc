"""A run: the real loop, policy, signal and record on a simulated node, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.interfaces import Policy
from parties.loop import Listener, Loop
from parties.membership import Membership
from parties.model import (
    MILLICORES_PER_CORE,
    NS_PER_S,
    Decision,
    Holder,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Reason,
    Resource,
    Service,
)
from parties.policies.oracle import Foresight
from parties.policies.registry import policy_named
from parties.record import RecordError, RecordWriter, Timing
from parties.settings import BestEffortSettings, ControlSettings, NodeSettings, PartiesSettings, ServiceSettings, SignalSettings
from simulator.arrivals import Streams
from simulator.faults import NO_FAULTS, Faults
from simulator.machine import Machine
from simulator.measure import ServiceMeasure
from simulator.oracle import OracleSearch
from simulator.platform import SimulatedPlatform
from simulator.scenario import Scenario
from simulator.traffic import TrafficSet

CONVERGED_NS = 2 * NS_PER_S
"""A run has converged where every target was met for so long: four intervals of 500 ms, so that one lucky sample is not enough, and
a bad downsize, which can come as soon as there is slack to give, does not hide that an allocation had been found."""

MHZ = 1_000_000
US = 1_000


class Measures:
    """Listens to a run: each service's intervals, the moves, and best-effort work."""

    def __init__(self, platform: SimulatedPlatform, services: Sequence[Service], interval_ns: int, *, latencies: bool) -> None:
        self.services = {service.name: ServiceMeasure(service.target, interval_ns, latencies=latencies) for service in services}
        self.moves = 0
        self.reverts = 0
        self.refused = 0
        self.migrations = 0
        self.best_effort: list[float] = []  # progress in each interval, where there is a job
        self.partition = Partition({})  # as last observed
        self._platform = platform

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Take in one interval."""
        del timing
        windows: dict[str, list[Window]] = {name: [] for name in self.services}
        for window in self._platform.windows:
            windows[window.service].append(window)
        for name, measure in self.services.items():
            measure.take(windows[name])
        if decision.moves:
            self.moves += len(decision.moves)
            self.reverts += sum(move.reason is Reason.DOWNSIZE_REVERTED for move in decision.moves)
        if observation.outcomes:
            self.refused += sum(outcome.status is MoveStatus.REFUSED for outcome in observation.outcomes)
        self.migrations += decision.migration is not None
        if observation.best_effort_present:
            self.best_effort.append(observation.best_effort.progress or 0.0)
        self.partition = observation.partition


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run. Lists have one entry for each interval."""

    scenario: Scenario
    policy: str
    node: Node
    interval_ns: int
    services: Mapping[str, ServiceMeasure]
    moves: int  # decided ones of every resource, network included
    reverts: int
    migrations: int
    refused: int
    restarts: Mapping[str, int]
    best_effort: Sequence[float]
    partition: Partition
    sharing: Mapping[str, Holder] = field(default_factory=dict)

    @property
    def intervals(self) -> int:
        """How many intervals were judged."""
        return len(next(iter(self.services.values())).violated)

    def violated(self) -> list[bool]:
        """Whether any service was in violation, for each interval."""
        return [any(at_once) for at_once in zip(*(measure.violated for measure in self.services.values()), strict=True)]

    def converged_s(self, since_s: float = 0.0) -> float | None:
        """Seconds from the start, or from a change of load, until every target is met for ``CONVERGED_NS``; None if never.

        0 where nothing had to be found: the first interval is the first of such a stretch.
        """
        since = self._interval_at(since_s)
        needed = -(-CONVERGED_NS // self.interval_ns)
        met = 0
        for number, violated in enumerate(self.violated()[since:]):
            met = 0 if violated else met + 1
            if met == needed:
                return (number + 1 - needed) * self.interval_ns / NS_PER_S
        return None

    def meets_all(self, warmup_s: float = 30.0) -> bool:
        """Whether the mix is feasible, as the paper measures: each service's percentile of all that came after the warm-up."""
        first = self._interval_at(warmup_s)
        return all(measure.met_over(first) for measure in self.services.values())

    def violating_share(self, warmup_s: float = 30.0) -> float:
        """The share of intervals after the warm-up in which some service was in violation."""
        judged = self.violated()[self._interval_at(warmup_s) :]
        return fmean(judged) if judged else 0.0

    def best_effort_throughput(self, warmup_s: float = 0.0) -> float:
        """Mean progress of the best-effort job, over what it does alone on the node; 0 without one."""
        progress = self.best_effort[self._interval_at(warmup_s) :]
        return fmean(progress) if progress else 0.0

    def as_json(self) -> dict[str, object]:
        """The result of ``parties simulate --json``; ``docs/simulate.md`` has each field."""
        converged_s = self.converged_s()
        return {
            "policy": self.policy,
            "node": self.scenario.node.name,
            "seed": self.scenario.seed,
            "duration_s": _plain(self.scenario.duration_s),
            "converged_s": converged_s,
            "moves": self.moves,
            "reverts": self.reverts,
            "migrations": self.migrations,
            "services": {name: self._service(name, measure, converged_s) for name, measure in self.services.items()},
            "best_effort_throughput": round(self.best_effort_throughput(), 4),
        }

    def final(self, service: str) -> dict[str, int | None]:
        """What a service held in the last interval, with whom it shares its holder; None for what is not partitioned."""
        holder = self.sharing.get(service, service)
        amounts = {}
        for pool in self.node.managed_pools():
            held = self.partition.amounts.get(pool.key)
            amounts[pool.key.resource] = None if held is None else held.get(holder)
        cores, hz = amounts.get(Resource.CORES), amounts.get(Resource.FREQUENCY)
        return {
            "cores": None if cores is None else cores // MILLICORES_PER_CORE,
            "ways": amounts.get(Resource.CACHE),
            "frequency_mhz": None if hz is None else hz // MHZ,
            "memory_bytes": amounts.get(Resource.MEMORY),
            "disk_bytes_per_s": amounts.get(Resource.DISK),
            "network_bits_per_s": amounts.get(Resource.NETWORK),
        }

    def _service(self, name: str, measure: ServiceMeasure, converged_s: float | None) -> dict[str, object]:
        violations_after = None if converged_s is None else sum(measure.violated[self._interval_at(converged_s) :])
        load = self.scenario.tenants[name].load
        known = [latency for latency in measure.latency_ns if latency is not None]
        return {
            "load": round(load.mean(0.0, self.scenario.duration_s), 6),
            "target_us": _plain(measure.target.latency_ns / US),
            "intervals": len(measure.violated),
            "violations": sum(measure.violated),
            "violations_after_convergence": violations_after,
            "median_p99_over_target": round(median(known) / measure.target.latency_ns, 4) if known else None,
            "final": self.final(name),
        }

    def _interval_at(self, time_s: float) -> int:
        return round(time_s * NS_PER_S) // self.interval_ns


def simulate(  # noqa: PLR0913 - what a run may be asked for, each by name
    scenario: Scenario,
    *,
    policy: str | None = None,
    listeners: Sequence[Listener] = (),
    record: Path | None = None,
    signal: SignalSettings | None = None,
    parties: PartiesSettings | None = None,
    faults: Faults = NO_FAULTS,
    latencies: bool = True,
) -> Result:
    """Run a scenario from its start to its end.

    ``policy``, ``signal`` and ``parties`` stand for the scenario's own. ``latencies`` false leaves out the series of latencies,
    which costs more than the rest of measuring. Raises ValueError where the node is too small for the services, and RecordError.
    """
    simulation = Simulation(scenario, policy=policy, signal=signal, parties=parties, faults=faults, latencies=latencies)
    return simulation.run(listeners, record=record)


class Simulation:
    """A run that is ready to begin; its platform is open to listeners that look behind the observations."""

    def __init__(  # noqa: PLR0913 - as above
        self,
        scenario: Scenario,
        *,
        policy: str | None = None,
        signal: SignalSettings | None = None,
        parties: PartiesSettings | None = None,
        faults: Faults = NO_FAULTS,
        latencies: bool = True,
    ) -> None:
        self.scenario = scenario
        self.node = scenario.node.node()
        self.services = tuple(tenant.model.service(name) for name, tenant in scenario.tenants.items())
        self.settings = self._settings(policy or scenario.policy, parties or scenario.parties, signal or scenario.signal)
        machine = Machine(scenario.node, scenario.models, scenario.job)
        self.policy = self._make_policy(machine)
        self._duration_ns = round(scenario.duration_s * NS_PER_S)
        self.platform = SimulatedPlatform(
            self.node,
            self.services,
            machine=machine,
            clients=TrafficSet(
                {name: (tenant.model, tenant.load) for name, tenant in scenario.tenants.items()},
                Streams(scenario.seed),
                self.interval_ns,
            ),
            signal=Signal({service.name: service.target for service in self.services}, self.settings.signal, self.interval_ns),
            loads={name: (tenant.load, tenant.model.max_load_rps) for name, tenant in scenario.tenants.items()},
            job_present=scenario.job is not None,
            duration_ns=self._duration_ns,
            faults=faults,
        )
        self.measures = Measures(self.platform, self.services, self.interval_ns, latencies=latencies)

    @property
    def interval_ns(self) -> int:
        """The control interval."""
        return self.settings.interval_ns

    def run(self, listeners: Sequence[Listener] = (), *, record: Path | None = None) -> Result:
        """Run it. Raises RecordError."""
        platform, policy = self.platform, self.policy
        writer = RecordWriter(record) if record is not None else None
        loop = Loop(
            platform,
            policy,
            interval_ns=self.interval_ns,
            membership=Membership(self.node, self.services, grace_ns=self.settings.absent_grace_ns),
            listeners=(self.measures, *listeners) if writer is None else (writer, self.measures, *listeners),
            cpu_ns=_no_cpu_ns,
        )
        try:
            if writer is not None:  # virtual time has no date, and a run that is repeated has the same header
                writer.header(
                    platform="simulated", started_unix_ns=0, node=self.node, settings=self.settings, services=self.services
                )
            platform.start(policy.initial(), best_effort_idle_class=policy.best_effort_idle_class, sharing=policy.sharing)
            loop.run()
            result = self._result()
            if writer is not None:
                writer.report(result.as_json())
                if writer.failure is not None:
                    raise RecordError(writer.failure)
        finally:
            platform.close()
            if writer is not None:
                writer.close()
        return result

    def _result(self) -> Result:
        measures = self.measures
        return Result(
            scenario=self.scenario,
            policy=self.policy.name,
            node=self.node,
            interval_ns=self.interval_ns,
            services=measures.services,
            moves=measures.moves,
            reverts=measures.reverts,
            migrations=measures.migrations,
            refused=measures.refused,
            restarts=self.platform.restarts,
            best_effort=measures.best_effort,
            partition=measures.partition,
            sharing=self.policy.sharing,
        )

    def _settings(self, policy: str, parties: PartiesSettings, signal: SignalSettings) -> ControlSettings:
        """What the record's header says, with which the run can be replayed."""
        scenario = self.scenario
        return ControlSettings(
            services=tuple(_service_settings(service) for service in self.services),
            best_effort=(BestEffortSettings(scenario.job.name, ()),) if scenario.job is not None else (),
            node=NodeSettings(name=scenario.node.name),
            policy=policy,
            seed=scenario.seed,
            parties=parties,
            signal=signal,
        )

    def _make_policy(self, machine: Machine) -> Policy:
        settings = self.settings
        factory = policy_named(settings.policy, foresight=Foresight(OracleSearch(machine), self._loads_rps))
        return factory(
            self.node,
            self.services,
            best_effort=self.scenario.job is not None,
            settings=settings.parties,
            rng=random.Random(settings.seed),  # noqa: S311 - decisions have to repeat, not to be secret
        )

    def _loads_rps(self, now_ns: int) -> dict[str, float]:
        """What each tenant is asked for at a moment: what Oracle knows."""
        return {
            name: tenant.load.at(now_ns / NS_PER_S) * tenant.model.max_load_rps for name, tenant in self.scenario.tenants.items()
        }


def _service_settings(service: Service) -> ServiceSettings:
    return ServiceSettings(
        service.name,
        service.target.latency_ns,
        percentile=service.target.percentile,
        stateless=service.stateless,
        in_memory=service.in_memory,
        peak_load_rps=service.peak_load_rps,
    )


def _no_cpu_ns() -> int:
    """What a tick costs here says nothing of a host, and would make two records of one run differ."""
    return 0


def _plain(number: float) -> float:
    """An integer where it is one."""
    return int(number) if number == int(number) else number

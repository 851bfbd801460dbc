"""A stage for Heracles: one node, one strict service and others, and moves that are done or befall what a test says."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parties.model import (
    BEST_EFFORT,
    IDLE,
    NS_PER_S,
    Core,
    Decision,
    Domain,
    LatencyView,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.policies.heracles import Heracles
from parties.settings import PartiesSettings

INTERVAL_NS = NS_PER_S // 2
GB = 1_000_000_000
GHZ = 1_000_000_000
TURBO_HZ = 2_300_000_000
PEAK_RPS = 1000.0
BANDWIDTH = 50 * GB
LIMIT = BANDWIDTH * 9 // 10
POWER = 100_000
KEYS = {
    Resource.CORES: PoolKey(Resource.CORES, 0),
    Resource.CACHE: PoolKey(Resource.CACHE, 0),
    Resource.FREQUENCY: PoolKey(Resource.FREQUENCY, 0),
    Resource.NETWORK: PoolKey(Resource.NETWORK),
}
POOLS = (
    Pool(KEYS[Resource.CORES], total=14_000, step=1000, floor=1000),
    Pool(KEYS[Resource.CACHE], total=20, step=1, floor=1),
    Pool(KEYS[Resource.FREQUENCY], levels=tuple(range(1_200_000_000, TURBO_HZ + 1, 100_000_000))),
    Pool(PoolKey(Resource.MEMORY, 0), total=120 * GB, step=GB, floor=GB),
    Pool(PoolKey(Resource.DISK), total=100_000_000, step=5_000_000, floor=5_000_000),
    Pool(KEYS[Resource.NETWORK], total=10 * GB, step=GB // 2, floor=GB // 2),
)
CORES = tuple(Core(core, (core,)) for core in range(14))
NODE = Node("stage", (Domain(0, CORES),), {pool.key: pool for pool in POOLS}, BANDWIDTH, POWER)
TARGET_NS = 10_000_000
GROWTH = {Reason.BEST_EFFORT_GROWN, Reason.BEST_EFFORT_GROWTH_UNDONE}


def view(slack: float, state: ServiceState = ServiceState.OK) -> LatencyView:
    """A fresh view with that slack of the strict service's target."""
    latency_ns = round(TARGET_NS * (1 - slack))
    return LatencyView(state, latency_ns, latency_ns, fresh=True)


@dataclass
class Stage:
    """Runs Heracles interval by interval. What is seen of the machine are fields that a test sets; ``fates`` befall moves."""

    node: Node
    services: tuple[Service, ...]
    policy: Heracles
    partition: Partition
    usage: Usage = field(default_factory=Usage)  # of the latency-critical service
    progress: float | None = None
    bandwidth: int | None = None
    power: int | None = None
    job_present: bool = True
    now_ns: int = 0
    tick: int = 0
    outcomes: tuple[MoveOutcome, ...] = ()
    fates: dict[Resource, MoveStatus] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def service(self) -> Service:
        return min(self.services, key=lambda service: service.target.latency_ns)

    def held(self, resource: Resource, holder: str = BEST_EFFORT) -> int:
        return self.partition.amount(KEYS[resource], holder)

    def cores(self, holder: str = BEST_EFFORT) -> int:
        return self.held(Resource.CORES, holder) // 1000

    def ways(self, holder: str = BEST_EFFORT) -> int:
        return self.held(Resource.CACHE, holder)

    def give(self, resource: Resource, amount: int) -> None:
        """Set what the group holds; the service has the rest."""
        total = self.node.pools[KEYS[resource]].total
        held = {self.service.name: total - amount, BEST_EFFORT: amount, IDLE: 0}
        self.partition = Partition({**self.partition.amounts, KEYS[resource]: held})

    def step(self, slack: LatencyView | float, load: float = 0.5) -> Decision:
        """One interval with that slack of the service (or that view), at that part of its peak load."""
        self.now_ns += INTERVAL_NS
        self.tick += 1
        latency = slack if isinstance(slack, LatencyView) else view(slack)
        latency = dataclasses.replace(latency, load_rps=load * PEAK_RPS)
        seen = {service.name: ServiceObservation(view(-5.0)) for service in self.services}
        seen[self.service.name] = ServiceObservation(latency, self.usage)
        observation = Observation(
            self.now_ns,
            self.tick,
            seen,
            self.partition,
            self.outcomes,
            Usage(progress=self.progress),
            self.job_present,
            self.bandwidth,
            self.power,
        )
        decision = self.policy.decide(observation)
        self.outcomes = tuple(MoveOutcome(move, self.fates.get(move.pool.resource, MoveStatus.DONE)) for move in decision.moves)
        for outcome in self.outcomes:
            if outcome.status is MoveStatus.DONE:
                self.partition = self.partition.after([outcome.move])
                self.partition.check(self.node, [self.service])
        self.decisions.append(decision)
        return decision

    def run(self, seconds: float, slack: LatencyView | float, load: float = 0.5) -> list[Decision]:
        return [self.step(slack, load) for _ in range(round(seconds * 2))]

    def moved(self, decisions: Sequence[Decision]) -> list[tuple[Resource, Reason]]:
        return [(move.pool.resource, move.reason) for decision in decisions for move in decision.moves]


def make(*others: str, best_effort: bool = True, **strict: Any) -> Stage:  # noqa: ANN401 - fields of a service
    """A stage with a strict service, and others by their names."""
    services = (
        *(Service(name, QosTarget(2 * TARGET_NS)) for name in others),
        Service("strict", QosTarget(TARGET_NS), **({"peak_load_rps": PEAK_RPS} | strict)),
    )
    policy = Heracles(NODE, services, best_effort=best_effort, settings=PartiesSettings(), rng=random.Random(1))  # noqa: S311 - replayable
    return Stage(NODE, services, policy, policy.initial(), job_present=best_effort)


def grown_to(cores: int) -> Stage:
    """A scene in which the group has just been given its last core."""
    scene = make("a")
    while scene.cores() < cores:
        scene.step(0.5)
    return scene

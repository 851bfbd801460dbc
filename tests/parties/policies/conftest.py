"""A stage for policies: a node, its services, and a platform in memory that carries out each move at once or as told."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from parties.model import (
    BEST_EFFORT,
    IDLE,
    Core,
    Decision,
    Domain,
    LatencyView,
    Move,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.policies.parties import Parties
from parties.policies.wheels import Action, Direction
from parties.settings import PartiesSettings

GB = 1_000_000_000
TARGET_NS = 10_000_000
INTERVAL_NS = 500_000_000
LEVELS = tuple(range(1_200_000_000, 2_400_000_000, 100_000_000))  # 1.2 to 2.2 GHz, and 2.3 for turbo, as in the authors' script

POOLS = {
    Resource.CORES: Pool(PoolKey(Resource.CORES, 0), total=14_000, step=1000, floor=1000),
    Resource.CACHE: Pool(PoolKey(Resource.CACHE, 0), total=20, step=1, floor=1),
    Resource.FREQUENCY: Pool(PoolKey(Resource.FREQUENCY, 0), levels=LEVELS),
    Resource.MEMORY: Pool(PoolKey(Resource.MEMORY, 0), total=120 * GB, step=GB, floor=GB),
    Resource.DISK: Pool(PoolKey(Resource.DISK), total=100_000_000, step=5_000_000, floor=5_000_000),
    Resource.NETWORK: Pool(PoolKey(Resource.NETWORK), total=10 * GB, step=GB // 2, floor=GB // 2),
}


def make_service(name: str, **changes: object) -> Service:
    return Service(name, **({"target": QosTarget(TARGET_NS), "in_memory": False} | changes))  # type: ignore[arg-type]


def make_view(slack: float | None = None, state: ServiceState = ServiceState.OK, **changes: object) -> LatencyView:
    """A fresh view with that slack of the standard target."""
    latency_ns = None if slack is None else round(TARGET_NS * (1 - slack))
    fields: dict[str, object] = {"latency_ns": latency_ns, "cautious_latency_ns": latency_ns, "fresh": True}
    return LatencyView(state, **(fields | changes))  # type: ignore[arg-type]


@dataclass
class Stage:
    """Runs a policy interval by interval. ``fates`` says what becomes of the next moves; DONE where it is silent."""

    node: Node
    services: tuple[Service, ...]
    policy: Parties
    partition: Partition
    best_effort: bool
    now_ns: int = INTERVAL_NS
    tick: int = 1
    outcomes: tuple[MoveOutcome, ...] = ()
    usage: dict[str, Usage] = field(default_factory=dict)
    in_memory: dict[str, bool | None] = field(default_factory=dict)
    last: Decision | None = None

    def pool(self, resource: Resource) -> Pool:
        return next(pool for key, pool in self.node.pools.items() if key.resource is resource)

    def amount(self, resource: Resource, holder: str) -> int:
        return self.partition.amount(self.pool(resource).key, holder)

    def give(self, resource: Resource, **amounts: int) -> None:
        """Set who holds what of a pool; ``best_effort`` and ``idle`` by those names, and idle gets what is left."""
        names = {"best_effort": BEST_EFFORT}
        held = {names.get(name, name): amount for name, amount in amounts.items()}
        pool = self.pool(resource)
        if resource.shared_pool:
            held.setdefault(IDLE, pool.total - sum(held.values()))
        self.partition = Partition(dict(self.partition.amounts) | {pool.key: held})

    def force(self, name: str, direction: Direction, resource: Resource, *tried: Resource) -> None:
        """Put a service's wheel into a state."""
        self.policy._tenants[name].action = Action(direction, resource, frozenset({resource, *tried}))

    def action(self, name: str) -> tuple[Direction, Resource] | None:
        action = self.policy._tenants[name].action
        return None if action is None else (action.direction, action.resource)

    def step(self, fate: MoveStatus = MoveStatus.DONE, **seen: LatencyView | float) -> Decision:
        """One interval: what is seen of each service (a number is its slack), and what becomes of the moves decided."""
        services = {
            name: ServiceObservation(
                view if isinstance(view, LatencyView) else make_view(float(view)),
                self.usage.get(name, Usage()),
                self.in_memory.get(name),
            )
            for name, view in seen.items()
        }
        observation = Observation(
            self.now_ns,
            self.tick,
            services,
            self.partition,
            self.outcomes,
            best_effort=self.usage.get(BEST_EFFORT, Usage()),
            best_effort_present=self.best_effort,
        )
        decision = self.policy.decide(observation)
        self.outcomes = tuple(MoveOutcome(move, fate) for move in decision.moves)
        if fate is MoveStatus.DONE:
            self.partition = self.partition.after(decision.moves)
            self.partition.check(self.node, self.services)
        self.now_ns += INTERVAL_NS
        self.tick += 1
        self.last = decision
        return decision

    def finish(self, status: MoveStatus) -> None:
        """A pending move ends."""
        moves = [outcome.move for outcome in self.outcomes]
        if status is MoveStatus.DONE:
            self.partition = self.partition.after(moves)
        self.outcomes = tuple(MoveOutcome(move, status) for move in moves)

    def keep_pending(self, moves: Sequence[Move]) -> None:
        self.outcomes = (*self.outcomes, *(MoveOutcome(move, MoveStatus.PENDING) for move in moves))


def make_node(resources: Sequence[Resource] = tuple(POOLS), pools: Mapping[Resource, Pool] = POOLS) -> Node:
    """A node that manages these resources; the others are there and unmanaged."""
    chosen = {}
    for resource, pool in pools.items():
        chosen[pool.key] = pool if resource in resources else Pool(pool.key, managed=False, reason="not wanted")
    return Node("stage", (Domain(0, tuple(Core(core, (core,)) for core in range(14))),), chosen)


@pytest.fixture
def stage() -> Callable[..., Stage]:
    """Makes a stage: service names or services, and what else differs from the paper's platform."""

    def make(
        *services: str | Service,
        resources: Sequence[Resource] = tuple(POOLS),
        pools: Mapping[Resource, Pool] = POOLS,
        best_effort: bool = True,
        settings: PartiesSettings = PartiesSettings(),  # noqa: B008 - frozen
        seed: int = 1,
    ) -> Stage:
        node = make_node(resources, pools)
        made = tuple(make_service(service) if isinstance(service, str) else service for service in services)
        policy = Parties(node, made, best_effort=best_effort, settings=settings, rng=random.Random(seed))  # noqa: S311 - replayable
        return Stage(node, made, policy, policy.initial(), best_effort)

    return make


@pytest.fixture
def view() -> Callable[..., LatencyView]:
    """Makes a latency view; see ``make_view``."""
    return make_view


@pytest.fixture
def service() -> Callable[..., Service]:
    """Makes a service; see ``make_service``."""
    return make_service


@pytest.fixture
def node() -> Callable[..., Node]:
    """Makes a node; see ``make_node``."""
    return make_node

"""A service and the best-effort group beside it: how Heracles divides a node between the two, and moves from one to the other."""

from __future__ import annotations

import dataclasses

from parties.model import (
    BEST_EFFORT,
    IDLE,
    Holder,
    Move,
    MoveStatus,
    Node,
    Observation,
    Pool,
    Reason,
    Resource,
    Service,
    Usage,
)

START_CORES = 1
START_CACHE = 0.10
"""What the group has when it is switched on: one core, a tenth of the cache (Heracles, section 4.3)."""

_NO_USAGE = Usage()


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """The node as divided between the service and the group."""

    node: Node
    service: Service

    def home(self, resource: Resource) -> Pool | None:
        """The managed pool that service and group divide."""
        return self.node.pool(resource, self.service.home)

    def pools(self, *resources: Resource) -> list[Pool]:
        """The managed pools of these resources, those of other domains too."""
        return [pool for pool in self.node.managed_pools() if pool.key.resource in resources]

    def divided(self, pool: Pool) -> bool:
        """Whether the service has a part of it; what it has no part of is the group's."""
        return self.node.key(pool.key.resource, self.service.home) == pool.key

    def start(self, pool: Pool) -> int:
        """What the group has of a pool of cores or cache when it is switched on, and keeps while it is."""
        if not self.divided(pool):
            return pool.total
        if pool.key.resource is Resource.CORES:
            return START_CORES * pool.step
        return max(1, round(START_CACHE * pool.total / pool.step)) * pool.step


class Desk:
    """One interval: what is observed, and the moves made so far. Amounts are those after these moves."""

    def __init__(self, group: Group, observation: Observation) -> None:
        pending = [outcome.move for outcome in observation.outcomes if outcome.status is MoveStatus.PENDING]
        self.group = group
        self.observation = observation
        self.closed = frozenset(move.pool for move in pending)
        self.moves: list[Move] = []
        self.partition = observation.partition

    @property
    def usage(self) -> Usage:
        """What the service used."""
        seen = self.observation.services.get(self.group.service.name)
        return _NO_USAGE if seen is None else seen.usage

    def held(self, pool: Pool, holder: Holder = BEST_EFFORT) -> int:
        """What a holder has after the moves so far."""
        return self.partition.amount(pool.key, holder)

    def to_group(self, pool: Pool, amount: int, reason: Reason) -> int:
        """Give the group that much, or what there is: of idle first, then of the service down to its floor."""
        service = self.group.service
        spare = max(0, self.held(pool, service.name) - service.floor(pool)) if self.group.divided(pool) else 0
        from_idle = self._move(pool, IDLE, BEST_EFFORT, min(amount, self.held(pool, IDLE)), reason)
        return from_idle + self._move(pool, service.name, BEST_EFFORT, min(amount - from_idle, spare), reason)

    def from_group(self, pool: Pool, amount: int, reason: Reason) -> int:
        """Take that much of the group, or what it has: for the service up to its ceiling, and idle."""
        amount = min(amount, self.held(pool))
        to_service = self._move(pool, BEST_EFFORT, self.group.service.name, min(amount, self._room(pool)), reason)
        return to_service + self._move(pool, BEST_EFFORT, IDLE, amount - to_service, reason)

    def set_level(self, pool: Pool, level: int, reason: Reason) -> None:
        """Let the group's cores run at another frequency."""
        change = level - self.held(pool)
        giver, taker = (None, BEST_EFFORT) if change > 0 else (BEST_EFFORT, None)
        self._move(pool, giver, taker, abs(change), reason)

    def suspend(self, reason: Reason) -> None:
        """Leave the group no core and no cache."""
        for pool in self.group.pools(Resource.CORES, Resource.CACHE):
            self.from_group(pool, self.held(pool), reason)

    def resume(self) -> None:
        """See that the group has what it starts with, as it has not after it was off."""
        for pool in self.group.pools(Resource.CORES, Resource.CACHE):
            lacking = self.group.start(pool) - self.held(pool)
            if lacking > 0:
                self.to_group(pool, lacking, Reason.BEST_EFFORT_RESUMED)

    def cut_to(self, cores: int) -> None:
        """Leave the group so many cores at most."""
        pool = self.group.home(Resource.CORES)
        if pool is not None:
            self.from_group(pool, self.held(pool) - cores * pool.step, Reason.BEST_EFFORT_CUT_BY_SLACK)

    def sweep_idle(self) -> None:
        """What nobody holds is the service's: a service that was away has left it."""
        moved = {move.pool for move in self.moves}
        for pool in self.group.pools(Resource.CORES, Resource.CACHE, Resource.NETWORK):
            if pool.key not in moved:
                idle = min(self.held(pool, IDLE), self._room(pool))
                self._move(pool, IDLE, self.group.service.name, idle, Reason.IDLE_TO_SERVICE)

    def _room(self, pool: Pool) -> int:
        service = self.group.service
        ceiling = service.ceiling(pool) // pool.step * pool.step if self.group.divided(pool) else 0
        return max(0, ceiling - self.held(pool, service.name))

    def _move(self, pool: Pool, giver: Holder | None, taker: Holder | None, amount: int, reason: Reason) -> int:
        if pool.step:
            amount = amount // pool.step * pool.step
        if amount <= 0 or pool.key in self.closed:
            return 0
        move = Move(self.observation.tick, pool.key, giver, taker, amount, reason)
        self.partition = self.partition.after([move])
        self.moves.append(move)
        return amount

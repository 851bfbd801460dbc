"""One interval as PARTIES trades in it: who may give what to whom (section 4.3, Algorithm 4).

Amounts are those of the observed partition, which is as read back. A pool with a pending move is closed until that move ended, and
so is every service that is party to a pending move or whose last action is not judged yet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from parties.model import (
    BEST_EFFORT,
    IDLE,
    Holder,
    Move,
    Node,
    Observation,
    Pool,
    PoolKey,
    Reason,
    Resource,
    Service,
    ServiceState,
    Usage,
)
from parties.policies.judgement import Verdict
from parties.policies.wheels import TRADED
from parties.settings import PartiesSettings

_NO_USAGE = Usage()
_NOTHING: Mapping[Holder, int] = MappingProxyType({})
_ABSENT = ServiceState.ABSENT
_NEVER_VICTIMS = (ServiceState.STALLED, ServiceState.FAILING, _ABSENT)
_FIRST_VICTIMS = ((IDLE, Reason.UPSIZE_FROM_IDLE), (BEST_EFFORT, Reason.UPSIZE_FROM_BEST_EFFORT))

Pools = Mapping[str, Mapping[Resource, Pool]]
"""The managed pools that each service draws from."""


def pools_of(node: Node, services: Iterable[Service]) -> Pools:
    """Looked up once, as a node does not change."""
    found: dict[str, dict[Resource, Pool]] = {}
    for service in services:
        pools = ((resource, node.pool(resource, service.home)) for resource in Resource)
        found[service.name] = {resource: pool for resource, pool in pools if pool is not None}
    return found


class Offers(Container[Resource]):
    """The moves that a service could make, by resource; each is looked for when it is asked for, as most never are."""

    __slots__ = ("_find", "_found")

    def __init__(self, find: Callable[[Resource], Move | None]) -> None:
        self._find = find
        self._found: dict[Resource, Move | None] = {}

    def __contains__(self, resource: object) -> bool:
        """Whether there is one."""
        return isinstance(resource, Resource) and self.get(resource) is not None

    def get(self, resource: Resource) -> Move | None:
        """The move of that resource, or None if there is none."""
        if resource not in self._found:
            self._found[resource] = self._find(resource)
        return self._found[resource]


@dataclass(slots=True)
class Exchange:
    """What can be moved in one interval.

    ``closed`` are the pools with a pending move, ``engaged`` the services that may take part in no move now (the policy keeps it up
    to date as it judges), and ``recipient`` is who gets what is taken from a service: the best-effort pool, or idle. ``withheld``
    is what the best-effort pool cannot be brought under, as it uses it: less was refused. What another domain moves in this
    interval is closed as well, and ``traded`` is who gave it and who took it.
    """

    pools: Pools
    services: Sequence[Service]
    settings: PartiesSettings
    observation: Observation
    verdicts: Mapping[str, Verdict]
    closed: frozenset[PoolKey]
    engaged: AbstractSet[str]
    recipient: Holder
    withheld: Mapping[PoolKey, int] = field(default_factory=dict)
    traded: AbstractSet[Holder] = frozenset()

    def amount(self, pool: Pool, holder: Holder) -> int:
        """What a holder has."""
        return self._held(pool).get(holder, 0)

    def spare(self, pool: Pool, holder: Holder) -> int:
        """What idle or the best-effort pool may be asked for; negative where it has less than it should keep."""
        held = self.amount(pool, holder)
        return min(pool.spare(holder, held), held - self.withheld.get(pool.key, 0)) if holder == BEST_EFFORT else held

    def _held(self, pool: Pool) -> Mapping[Holder, int]:
        return self.observation.partition.amounts.get(pool.key, _NOTHING)

    def usage(self, service: Service) -> Usage:
        """What a service used in the interval."""
        seen = self.observation.services.get(service.name)
        return _NO_USAGE if seen is None else seen.usage

    def state(self, service: Service) -> ServiceState:
        """What can be said of a service; absent if it was not observed at all."""
        seen = self.observation.services.get(service.name)
        return _ABSENT if seen is None else seen.latency.state

    def in_memory(self, service: Service) -> bool:
        """Whether a service's data set lives in memory, so that memory must not shrink under it; true while not yet known."""
        seen = self.observation.services.get(service.name)
        known = service.in_memory if seen is None or seen.in_memory is None else seen.in_memory
        return known is not False

    def open_pool(self, resource: Resource, service: Service) -> Pool | None:
        """The pool that a service draws from, or None where it is not managed or has a pending move."""
        pool = self.pools[service.name].get(resource)
        return None if pool is None or pool.key in self.closed else pool

    def waits(self, service: Service) -> bool:
        """Whether a pending move closes a pool that the service could trade in."""
        pools = self.pools[service.name]
        return any(resource in pools and pools[resource].key in self.closed for resource in TRADED)

    def memory_slack(self, service: Service) -> int | None:
        """The bytes that a service holds and does not use, or None if unknown."""
        pool = self.pools[service.name].get(Resource.MEMORY)
        use = self.usage(service).memory_bytes
        return None if pool is None or use is None else self.amount(pool, service.name) - use

    def memory_nearly_full(self, service: Service) -> bool:
        """Whether a growing data set may be what a service lacks memory for."""
        slack = self.memory_slack(service)
        return slack is not None and slack < self.settings.memory_slack_bytes

    def upsizes(self, service: Service) -> Offers:
        """What the service could be given now, by resource: one step each."""
        return Offers(partial(self._upsize, service))

    def downsizes(self, service: Service) -> Offers:
        """What could be taken from the service now, by resource: one step each."""
        return Offers(partial(self._downsize, service))

    def restoring(self, service: Service, downsize: Move) -> Move | None:
        """The move that undoes a downsize: from whom it went to or, where that one gave it on, from the normal victim.

        None where the service may hold no more, or where nobody has a step to give.
        """
        pool = self.pools[service.name][downsize.pool.resource]
        reason = Reason.DOWNSIZE_REVERTED
        if self._next_amount(service, pool) is None:
            return None
        if not pool.key.resource.shared_pool or self.spare(pool, downsize.taker or IDLE) >= downsize.amount:
            return downsize.reversed(self.observation.tick, reason)
        found = self._victim(service, pool)
        return None if found is None else self.move(pool, found[0], service.name, reason)

    def move(self, pool: Pool, giver: Holder, taker: Holder, reason: Reason) -> Move:
        """One step of a shared pool."""
        return Move(self.observation.tick, pool.key, giver, taker, pool.step, reason)

    def _next_amount(self, service: Service, pool: Pool) -> int | None:
        above = pool.above(self.amount(pool, service.name))
        return above if above is not None and above <= service.ceiling(pool) else None

    def _upsize(self, service: Service, resource: Resource) -> Move | None:
        pool = self.open_pool(resource, service)
        above = self._next_amount(service, pool) if pool is not None else None
        if pool is None or above is None:
            return None
        if not resource.shared_pool:
            raised = above - self.amount(pool, service.name)
            return Move(self.observation.tick, pool.key, None, service.name, raised, Reason.UPSIZE_FREQUENCY)
        found = self._victim(service, pool)
        return None if found is None else self.move(pool, found[0], service.name, found[1])

    def _downsize(self, service: Service, resource: Resource) -> Move | None:
        pool = self.open_pool(resource, service)
        below = pool.below(self.amount(pool, service.name), service.floor(pool)) if pool is not None else None
        if pool is None or below is None or (resource is Resource.MEMORY and self._needs_memory(service, pool)):
            return None
        taker = self.recipient if resource.shared_pool else None
        lowered = self.amount(pool, service.name) - below
        return Move(self.observation.tick, pool.key, service.name, taker, lowered, Reason.DOWNSIZE_LARGEST_SLACK)

    def _needs_memory(self, service: Service, pool: Pool) -> bool:
        if not self.in_memory(service):
            return False
        slack = self.memory_slack(service)
        return slack is None or slack < max(self.settings.memory_slack_bytes, pool.step)

    def _victim(self, service: Service, pool: Pool) -> tuple[Holder, Reason] | None:
        held = self._held(pool)
        for holder, reason in _FIRST_VICTIMS:
            if self.spare(pool, holder) >= pool.step:
                return holder, reason
        others = [other for other in self.services if other.name in held and self._may_give(other, service, pool)]
        if pool.key.resource is not Resource.MEMORY:
            return self._most_relaxed(others)
        # What a victim uses is never taken: it could be killed for want of it.
        spare = [(slack, other) for other in others if (slack := self.memory_slack(other)) is not None and slack >= pool.step]
        ample = [(slack, other) for slack, other in spare if slack > self.settings.memory_slack_bytes]
        if ample:
            return max(ample, key=lambda pair: pair[0])[1].name, Reason.UPSIZE_FROM_MEMORY_SLACK
        return self._most_relaxed(other for _, other in spare if not self.in_memory(other))

    def _may_give(self, other: Service, service: Service, pool: Pool) -> bool:
        if other.name == service.name or other.name in self.engaged or self.state(other) in _NEVER_VICTIMS:
            return False
        # A service of another domain holds nothing of this pool, so nothing can be taken from it.
        return pool.below(self.amount(pool, other.name), other.floor(pool)) is not None

    def _most_relaxed(self, others: Iterable[Service]) -> tuple[Holder, Reason] | None:
        judged = [(self.verdicts[other.name].cautious_slack, other) for other in others if other.name in self.verdicts]
        if not judged:
            return None
        return max(judged, key=lambda pair: pair[0])[1].name, Reason.UPSIZE_FROM_LARGEST_SLACK

"""The fair start: every managed resource split equally, every core at nominal frequency (section 4.3, Algorithm 1).

A pool is dealt out step by step, each step to the participant that has least (the first in order where several have), starting from
the floors. Without limits that is the equal split whose remainder goes to the first services in order, as the authors' script deals
it; with them, what a service may not take goes to the others in equal parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from parties.model import BEST_EFFORT, IDLE, Holder, Node, Partition, Pool, Service


def fair_start(node: Node, services: Sequence[Service], *, best_effort: bool) -> Partition:
    """The partition of a fresh start.

    Of each shared pool, the services of its domain and, if there are best-effort jobs, their pool are participants; idle gets what
    nobody may take. What the best-effort pool is to keep is its floor. Raises ValueError, naming pool, need and have, where a pool
    cannot give everybody the floor, or where a service's limits admit no amount.
    """
    amounts = {}
    for pool in node.managed_pools():
        members = [service for service in services if node.key(pool.key.resource, service.home) == pool.key]
        if pool.levels:
            amounts[pool.key] = _nominal(pool, members, best_effort=best_effort)
        else:
            amounts[pool.key] = _deal(pool, members, best_effort=best_effort)
    return Partition(amounts)


def _deal(pool: Pool, members: Sequence[Service], *, best_effort: bool) -> dict[Holder, int]:
    floors = {service.name: -(-service.floor(pool) // pool.step) * pool.step for service in members}
    kept = pool.best_effort_floor if best_effort else 0
    need = sum(floors.values()) + kept
    if need > pool.total:
        who = f"{len(members)} services{' and best effort' if kept else ''}"
        raise ValueError(
            f"{pool.key}: {who} need {need} {pool.key.resource.unit} at least and the pool has {pool.total}; "
            "lower their minimum, make the pool larger, or place a service elsewhere"
        )
    ceilings = {service.name: _ceiling(pool, service, floors[service.name]) for service in members}
    held: dict[Holder, int] = dict(floors)
    if best_effort:
        held[BEST_EFFORT], ceilings[BEST_EFFORT] = kept, pool.total
    left = pool.total - need
    # A heap: a pool may have thousands of steps, and the tie-break by order comes with the tuple.
    hungry = [(held[holder], order, holder) for order, holder in enumerate(held) if held[holder] < ceilings[holder]]
    heapq.heapify(hungry)
    while left and hungry:
        amount, order, holder = heapq.heappop(hungry)
        held[holder] = amount + pool.step
        left -= pool.step
        if held[holder] < ceilings[holder]:
            heapq.heappush(hungry, (held[holder], order, holder))
    return held | {IDLE: left}


def _ceiling(pool: Pool, service: Service, floor: int) -> int:
    ceiling = service.ceiling(pool) // pool.step * pool.step
    if floor > ceiling:
        raise ValueError(
            f"{pool.key}: {service.name} may hold between {service.floor(pool)} and {service.ceiling(pool)} "
            f"{pool.key.resource.unit}, which has no multiple of the step {pool.step}; change its minimum or maximum"
        )
    return ceiling


def _nominal(pool: Pool, members: Sequence[Service], *, best_effort: bool) -> dict[Holder, int]:
    held = {service.name: _nearest_level(pool, service, pool.nominal_level) for service in members}
    return held | {BEST_EFFORT: pool.nominal_level} if best_effort else held


def _nearest_level(pool: Pool, service: Service, nominal: int) -> int:
    allowed = [level for level in pool.levels if service.floor(pool) <= level <= service.ceiling(pool)]
    if not allowed:
        raise ValueError(
            f"{pool.key}: {service.name} may run between {service.floor(pool)} and {service.ceiling(pool)} Hz, and the pool has "
            f"no such level ({', '.join(map(str, pool.levels))}); change its minimum or maximum"
        )
    return max((level for level in allowed if level <= nominal), default=allowed[0])

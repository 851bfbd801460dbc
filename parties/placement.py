"""Place: counts become concrete things (core numbers, way masks), with the least churn for holders that are not concerned.

The authors' script packs way masks from the left, so that one moved way rewrites the mask of every service to the right of it, and
each of them starts over with cold ways. Here a layout is searched for that changes the fewest masks and, among those, the fewest
ways: idle ways may lie anywhere, and a holder may jump over its neighbours rather than shift them all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parties.model import (
    BEST_EFFORT,
    IDLE,
    MILLICORES_PER_CORE,
    RESERVED,
    Core,
    Holder,
    InvariantError,
    Node,
    Partition,
    Pool,
    PoolKey,
    Resource,
)

_LAST = (BEST_EFFORT, IDLE, RESERVED)


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition made concrete.

    ``cpus`` are Linux CPU numbers: whole physical cores, both hardware threads, disjoint between holders; where cores are divided
    (``Node.divides_cores``) every holder has all managed CPUs of its domain. ``way_masks`` are contiguous LLC masks by domain and
    holder, disjoint. Every other resource needs no place: its amounts are in ``partition``.
    """

    partition: Partition
    cpus: Mapping[Holder, tuple[int, ...]]
    way_masks: Mapping[tuple[int, Holder], int]


def place(node: Node, partition: Partition, previous: Placement | None) -> Placement:
    """Make a partition concrete, changing as little of ``previous`` as can be.

    Every holder named in a core pool has an entry in ``cpus``, an empty one if it holds none. Idle ways have no mask, and neither
    has a holder of none. The same arguments give the same placement. Raises InvariantError for a partition that does not fit the
    node.
    """
    pools = node.managed_pools()
    cores = [pool for pool in pools if pool.key.resource is Resource.CORES]
    caches = [pool for pool in pools if pool.key.resource is Resource.CACHE]
    cores_stay = previous is not None and _untouched(cores, partition, previous)
    ways_stay = previous is not None and _untouched(caches, partition, previous)
    return Placement(
        partition,
        previous.cpus if previous and cores_stay else _all_cores(node, cores, partition, previous),
        previous.way_masks if previous and ways_stay else _all_ways(node, caches, partition, previous),
    )


def _untouched(pools: Sequence[Pool], partition: Partition, previous: Placement) -> bool:
    """Whether nothing of these pools changed hands since ``previous``, so that all stays where it is; a move concerns one pool.

    Told by the very mappings, which ``Partition.after`` hands on: equal amounts may be another node's, left by an earlier daemon.
    """
    now, before = partition.amounts, previous.partition.amounts
    return bool(pools) and all(pool.key in now and now[pool.key] is before.get(pool.key) for pool in pools)


def _held(partition: Partition, key: PoolKey) -> dict[Holder, int]:
    held = partition.amounts.get(key, {})
    return {holder: held[holder] for holder in _ordered(held)}


def _all_cores(
    node: Node, pools: Iterable[Pool], partition: Partition, previous: Placement | None
) -> Mapping[Holder, tuple[int, ...]]:
    cpus: dict[Holder, set[int]] = {}
    taken = previous.cpus if previous is not None else {}
    for pool in pools:
        for holder, share in _place_cores(node, pool.key, _held(partition, pool.key), taken).items():
            cpus.setdefault(holder, set()).update(share)
    return {holder: tuple(sorted(share)) for holder, share in cpus.items()}


def _all_ways(
    node: Node, pools: Iterable[Pool], partition: Partition, previous: Placement | None
) -> Mapping[tuple[int, Holder], int]:
    way_masks: dict[tuple[int, Holder], int] = {}
    for pool in pools:
        counts = {holder: ways for holder, ways in _held(partition, pool.key).items() if holder != IDLE}
        for domain in _domain_ids(node, pool.key):
            old = {holder: mask for (where, holder), mask in previous.way_masks.items() if where == domain} if previous else {}
            way_masks.update({(domain, holder): mask for holder, mask in place_ways(pool.total, counts, old).items()})
    return way_masks


def _ordered(held: Mapping[Holder, int]) -> list[Holder]:
    """Services by name, then who comes last: the order must not depend on how the mapping was made."""
    return sorted(held, key=lambda holder: (_LAST.index(holder) + 1 if holder in _LAST else 0, holder))


def _domain_ids(node: Node, key: PoolKey) -> tuple[int, ...]:
    return (key.domain,) if key.domain is not None else tuple(domain.id for domain in node.domains)


# Cores


def _place_cores(
    node: Node, key: PoolKey, held: Mapping[Holder, int], taken: Mapping[Holder, tuple[int, ...]]
) -> dict[Holder, set[int]]:
    cores = [core for domain in _domain_ids(node, key) for core in node.domain(domain).cores]
    if node.divides_cores:
        everything = {cpu for core in cores for cpu in core.cpus}
        return {holder: set(everything) for holder in held}
    counts = {holder: _whole(key, holder, amount) for holder, amount in held.items()}
    if sum(counts.values()) > len(cores):
        raise InvariantError(f"{key}: {counts} of {len(cores)} cores")
    return {holder: {cpu for core in share for cpu in core.cpus} for holder, share in _hand_out(cores, counts, taken).items()}


def _whole(key: PoolKey, holder: Holder, amount: int) -> int:
    count, over = divmod(amount, MILLICORES_PER_CORE)
    if over:
        raise InvariantError(f"{key}: {holder} holds {amount} millicores, and cores are handed out whole")
    return count


def _hand_out(cores: list[Core], counts: Mapping[Holder, int], taken: Mapping[Holder, tuple[int, ...]]) -> dict[Holder, list[Core]]:
    """Each holder keeps what it has up to its new count; what that leaves over goes to those who lack."""
    owner = {cpu: holder for holder, cpus in taken.items() for cpu in cpus}
    shares: dict[Holder, list[Core]] = {holder: [] for holder in counts}
    free: list[Core] = []
    for core in cores:
        owners = {owner.get(cpu) for cpu in core.cpus}
        keeper = owners.pop() if len(owners) == 1 else None
        if keeper is not None and len(shares.get(keeper, ())) < counts.get(keeper, 0):
            shares[keeper].append(core)
        else:
            free.append(core)
    for holder, count in counts.items():
        lacking = count - len(shares[holder])
        shares[holder] += free[:lacking]
        del free[:lacking]
    return shares


# Ways


def place_ways(total: int, counts: Mapping[Holder, int], old: Mapping[Holder, int]) -> dict[Holder, int]:
    """Contiguous, disjoint masks of ``counts`` ways out of ``total`` that differ from ``old`` for as few holders as possible.

    Among those the layout is taken that keeps the most ways with whom they were. The search (A*) goes from way 0 upwards, leaving a
    way idle or putting a holder there; it is exact, and quick because few masks have to change.
    """
    sizes = {holder: ways for holder, ways in counts.items() if ways}
    if sum(sizes.values()) > total:
        raise InvariantError(f"{dict(sizes)} of {total} ways")
    if all(old.get(holder, 0).bit_count() == ways for holder, ways in sizes.items()):
        return {holder: old[holder] for holder in sizes}
    return _WaySearch(total, sizes, old).layout()


class _WaySearch:
    """Finds the layout. A node is (next way, which holders are placed); its cost (masks changed, ways not kept)."""

    def __init__(self, total: int, sizes: Mapping[Holder, int], old: Mapping[Holder, int]) -> None:
        self._total = total
        self._holders = list(sizes)
        self._sizes = list(sizes.values())
        self._old = [old.get(holder, 0) for holder in self._holders]
        # The way at which a holder has to be put to keep its mask; -1 if its size changes and it cannot.
        self._kept_at = [
            _lowest(mask) if mask.bit_count() == size else -1 for mask, size in zip(self._old, self._sizes, strict=True)
        ]

    def layout(self) -> dict[Holder, int]:
        """The masks of the best layout."""
        everyone = (1 << len(self._holders)) - 1
        start = (0, 0)
        came_from: dict[tuple[int, int], tuple[tuple[int, int], int | None]] = {}
        best = {start: (0, 0)}
        heap = [(self._unavoidable(*start), 0, start)]
        while heap:
            _, _, node = heapq.heappop(heap)
            if node[1] == everyone:
                return self._masks(node, came_from)
            for following, holder, change in self._steps(node):
                cost = (best[node][0] + change[0], best[node][1] + change[1])
                if following not in best or cost < best[following]:
                    best[following] = cost
                    came_from[following] = (node, holder)
                    ahead = self._unavoidable(*following)
                    # Of equally promising nodes the one that has most placed: there are many best layouts, and it is near one.
                    heapq.heappush(heap, ((cost[0] + ahead[0], cost[1] + ahead[1]), -following[1].bit_count(), following))
        raise InvariantError(f"no layout of {self._sizes} in {self._total} ways")

    def _steps(self, node: tuple[int, int]) -> Iterator[tuple[tuple[int, int], int | None, tuple[int, int]]]:
        way, placed = node
        to_place = sum(size for holder, size in enumerate(self._sizes) if not placed >> holder & 1)
        for holder, size in enumerate(self._sizes):
            if not placed >> holder & 1:
                mask = _mask(way, size)
                lost = size - (mask & self._old[holder]).bit_count()
                yield (way + size, placed | 1 << holder), holder, (int(way != self._kept_at[holder]), lost)
        if way + 1 + to_place <= self._total:
            yield (way + 1, placed), None, (0, 0)

    def _unavoidable(self, way: int, placed: int) -> tuple[int, int]:
        """The least that those not yet placed will cost: some cannot keep their masks, or not all of their ways, any more."""
        changed = lost = 0
        for holder, size in enumerate(self._sizes):
            if not placed >> holder & 1:
                changed += self._kept_at[holder] < way
                lost += size - min(size, (self._old[holder] >> way).bit_count())
        return changed, lost

    def _masks(
        self, node: tuple[int, int], came_from: Mapping[tuple[int, int], tuple[tuple[int, int], int | None]]
    ) -> dict[Holder, int]:
        masks = {}
        while node in came_from:
            earlier, holder = came_from[node]
            if holder is not None:
                masks[self._holders[holder]] = _mask(earlier[0], self._sizes[holder])
            node = earlier
        return {holder: masks[holder] for holder in self._holders}


def _mask(way: int, size: int) -> int:
    return (1 << size) - 1 << way


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1

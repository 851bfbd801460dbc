"""Placement: whole cores and way masks, with the least churn."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parties.model import (
    BEST_EFFORT,
    IDLE,
    Core,
    Domain,
    Holder,
    InvariantError,
    Move,
    Node,
    Partition,
    Pool,
    PoolKey,
    Reason,
    Resource,
)
from parties.placement import Placement, place, place_ways

SERVICES = ("a", "b", "c", "d")
HOLDERS = (*SERVICES, BEST_EFFORT, IDLE)


def make_node(cores: int = 14, ways: int = 20, domains: int = 2, step: int = 1000) -> Node:
    """A node with hyper-threads numbered as Linux does: the siblings behind all cores."""
    total = cores * domains
    parts = tuple(Domain(d, tuple(Core(i, (i, i + total)) for i in range(d * cores, (d + 1) * cores))) for d in range(domains))
    pools = {}
    for d in range(domains):
        for pool in (
            Pool(PoolKey(Resource.CORES, d), cores * 1000, step, step),
            Pool(PoolKey(Resource.CACHE, d), ways, 1, 1),
        ):
            pools[pool.key] = pool
    return Node("test", parts, pools)


def split(rng: random.Random, total: int, holders: tuple[Holder, ...] = HOLDERS) -> dict[Holder, int]:
    """``total`` among the holders, each service at least 1."""
    services = [holder for holder in holders if holder not in {BEST_EFFORT, IDLE}]
    amounts = {holder: int(holder in services) for holder in holders}
    for _ in range(total - len(services)):
        amounts[rng.choice(holders)] += 1
    return amounts


def random_partition(node: Node, rng: random.Random) -> Partition:
    return Partition({
        pool.key: {holder: count * pool.step for holder, count in split(rng, pool.total // pool.step).items()}
        for pool in node.managed_pools()
    })  # fmt: skip


def random_move(node: Node, partition: Partition, rng: random.Random) -> Move:
    pool = rng.choice(node.managed_pools())
    held = partition.amounts[pool.key]
    least = {holder: pool.step if holder in SERVICES else 0 for holder in HOLDERS}
    giver = rng.choice([holder for holder in HOLDERS if held[holder] > least[holder]])
    taker = rng.choice([holder for holder in HOLDERS if holder != giver])
    return Move(0, pool.key, giver, taker, pool.step, Reason.UPSIZE_FROM_IDLE)


def check(node: Node, placement: Placement) -> None:
    """Whole cores and contiguous masks, disjoint, of the right number."""
    owners: dict[int, Holder] = {}
    for holder, cpus in placement.cpus.items():
        assert list(cpus) == sorted(set(cpus))
        for cpu in cpus:
            assert owners.setdefault(cpu, holder) == holder, f"CPU {cpu} is of two holders"
    for domain in node.domains:
        for core in domain.cores:
            assert len({owners.get(cpu) for cpu in core.cpus}) == 1, f"core {core.id} is torn apart"
        for holder, amount in placement.partition.amounts[PoolKey(Resource.CORES, domain.id)].items():
            mine = [core for core in domain.cores if owners.get(core.cpus[0]) == holder]
            assert len(mine) * 1000 == amount
        check_masks(node, domain.id, placement)


def check_masks(node: Node, domain: int, placement: Placement) -> None:
    pool = node.pools[PoolKey(Resource.CACHE, domain)]
    used = 0
    for holder, ways in placement.partition.amounts[pool.key].items():
        mask = placement.way_masks.get((domain, holder), 0)
        assert mask.bit_count() == (0 if holder == IDLE else ways)
        low = mask & -mask
        assert mask == 0 or (mask // low) & (mask // low + 1) == 0, f"{mask:b} is not contiguous"
        assert mask & used == 0, "two holders share a way"
        used |= mask
    assert used < 1 << pool.total


@settings(max_examples=60)
@given(st.integers(), st.integers(1, 2))
def test_random_moves_keep_the_invariants(seed: int, domains: int) -> None:
    """Over random moves: disjoint, whole, contiguous, counted; who is not part of a move keeps every core."""
    rng = random.Random(seed)  # noqa: S311 - moves of a test
    node = make_node(cores=8, ways=12, domains=domains)
    partition = random_partition(node, rng)
    placement = place(node, partition, None)
    check(node, placement)
    for _ in range(15):
        move = random_move(node, partition, rng)
        partition = partition.after([move])
        before, placement = placement, place(node, partition, placement)
        check(node, placement)
        anew = Partition({key: dict(held) for key, held in partition.amounts.items()})
        assert placement == place(node, anew, before), "what stays where it is depends on equal values alone"
        for holder in set(HOLDERS) - {move.giver, move.taker}:
            assert placement.cpus[holder] == before.cpus[holder]
        if move.pool.resource is Resource.CORES:
            assert placement.way_masks == before.way_masks
            assert set(placement.cpus[str(move.giver)]) < set(before.cpus[str(move.giver)])
            assert set(placement.cpus[str(move.taker)]) > set(before.cpus[str(move.taker)])
            assert node.divides_cores is False
        else:
            assert placement.cpus == before.cpus


@settings(max_examples=40)
@given(st.integers())
def test_any_change_keeps_what_can_be_kept(seed: int) -> None:
    """From one partition to any other: each holder keeps as many of its cores as it still may have."""
    rng = random.Random(seed)  # noqa: S311 - partitions of a test
    node = make_node(cores=10, ways=11, domains=1)
    before = place(node, random_partition(node, rng), None)
    after = place(node, random_partition(node, rng), before)
    check(node, after)
    for holder in HOLDERS:
        old, new = set(before.cpus[holder]), set(after.cpus[holder])
        assert len(old & new) == min(len(old), len(new))


@settings(max_examples=40)
@given(st.integers())
def test_order_of_mappings_does_not_matter(seed: int) -> None:
    """The same values, inserted in another order, give the same placement."""
    rng = random.Random(seed)  # noqa: S311 - partitions of a test
    node = make_node(domains=1)
    first, second = random_partition(node, rng), random_partition(node, rng)

    def shuffled(partition: Partition) -> Partition:
        amounts = {key: list(held.items()) for key, held in partition.amounts.items()}
        for held in amounts.values():
            rng.shuffle(held)
        return Partition({key: dict(held) for key, held in amounts.items()})

    one, other = place(node, first, None), place(node, shuffled(first), None)
    assert one == other
    assert place(node, second, one) == place(node, shuffled(second), other)


def layouts(total: int, counts: Mapping[Holder, int]) -> Iterator[dict[Holder, int]]:
    """Every way to put contiguous, disjoint masks of these sizes into ``total`` ways."""
    sizes = {holder: ways for holder, ways in counts.items() if ways}
    for places in itertools.product(*(range(total - ways + 1) for ways in sizes.values())):
        masks = {holder: (1 << ways) - 1 << at for (holder, ways), at in zip(sizes.items(), places, strict=True)}
        if disjoint(masks):
            yield masks


def disjoint(masks: Mapping[Holder, int]) -> bool:
    used = 0
    for mask in masks.values():
        if used & mask:
            return False
        used |= mask
    return True


def churn(new: Mapping[Holder, int], old: Mapping[Holder, int]) -> tuple[int, int]:
    """(masks changed, ways not kept), of those that hold something now."""
    return (
        sum(mask != old.get(holder, 0) for holder, mask in new.items()),
        sum((mask & ~old.get(holder, 0)).bit_count() for holder, mask in new.items()),
    )


def test_fewest_masks_change() -> None:
    """On small caches no layout at all changes fewer masks, nor keeps more ways among those that change as few."""
    rng = random.Random(1)  # noqa: S311 - moves of a test
    for total in (5, 7, 8):
        for _ in range(25):
            holders = SERVICES[: rng.randint(2, 4)]
            old = place_ways(total, without_idle(split(rng, total, (*holders, IDLE))), {})
            counts = without_idle(split(rng, total, (*holders, IDLE)))
            found = place_ways(total, counts, old)
            assert churn(found, old) == min(churn(layout, old) for layout in layouts(total, counts))


def without_idle(amounts: dict[Holder, int]) -> dict[Holder, int]:
    return {holder: ways for holder, ways in amounts.items() if holder != IDLE}


def test_one_way_between_non_neighbours() -> None:
    """Packing from the left would rewrite all five masks; three suffice, and the others keep theirs."""
    old = {"a": 0b1111, "b": 0b11 << 4, "c": 0b111 << 6, "d": 0b1 << 9, "e": 0b11 << 10}
    new = place_ways(12, {"a": 3, "b": 2, "c": 3, "d": 1, "e": 3}, old)
    assert churn(new, old)[0] == 3
    assert sum(mask.bit_count() for mask in new.values()) == 12


def test_idle_ways_are_used_where_they_lie() -> None:
    """A service that grows beside idle ways changes its own mask only."""
    old = {"a": 0b11, "b": 0b11 << 4}
    assert place_ways(8, {"a": 3, "b": 2}, old) == {"a": 0b111, "b": 0b11 << 4}


def test_best_effort_may_hold_nothing() -> None:
    """It then has an empty set of CPUs and no mask."""
    node = make_node(cores=2, ways=4, domains=1)
    amounts = {
        PoolKey(Resource.CORES, 0): {"a": 2000, BEST_EFFORT: 0},
        PoolKey(Resource.CACHE, 0): {"a": 4, BEST_EFFORT: 0},
    }
    placement = place(node, Partition(amounts), None)
    assert placement.cpus == {"a": (0, 1, 2, 3), BEST_EFFORT: ()}
    assert placement.way_masks == {(0, "a"): 0b1111}


def test_divided_cores_are_everybodys() -> None:
    """Where cores are shared in fractions each holder runs on all managed CPUs of its domain."""
    node = make_node(cores=2, ways=4, domains=2, step=50)
    amounts = {
        PoolKey(Resource.CORES, 0): {"a": 1500, BEST_EFFORT: 500},
        PoolKey(Resource.CORES, 1): {"b": 2000, BEST_EFFORT: 0},
    }
    placement = place(node, Partition(amounts), None)
    assert placement.cpus == {"a": (0, 1, 4, 5), "b": (2, 3, 6, 7), BEST_EFFORT: tuple(range(8))}


def test_pool_of_the_whole_node() -> None:
    """Cores of a pool without a domain come from all domains."""
    key = PoolKey(Resource.CORES)
    domains = (Domain(0, (Core(0, (0,)),)), Domain(7, (Core(1, (1,)),)))
    node = Node("test", domains, {key: Pool(key, 2000, 1000, 1000)})
    assert place(node, Partition({key: {"a": 1000, "b": 1000}}), None).cpus == {"a": (0,), "b": (1,)}


@pytest.mark.parametrize(
    ("cores", "ways"), [({"a": 3000}, {"a": 1}), ({"a": 1500}, {"a": 1}), ({"a": 1000}, {"a": 5}), ({"a": 1000}, {"a": 3, "b": 2})]
)
def test_what_does_not_fit_is_refused(cores: dict[Holder, int], ways: dict[Holder, int]) -> None:
    """Too many cores or ways, or half a core where they are whole, is a defect and says so."""
    node = make_node(cores=2, ways=4, domains=1)
    amounts = {PoolKey(Resource.CORES, 0): cores, PoolKey(Resource.CACHE, 0): ways}
    with pytest.raises(InvariantError):
        place(node, Partition(amounts), None)

"""The fair start: an equal split, exact down to the remainder, within everybody's limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.model import BEST_EFFORT, IDLE, RESERVED, Core, Domain, Node, Pool, PoolKey, QosTarget, Resource, Service
from parties.policies.fair import fair_start

NodeMaker = Callable[..., Node]
ServiceMaker = Callable[..., Service]


def shared(
    total: int, step: int = 1, floor: int | None = None, domain: int | None = 0, resource: Resource = Resource.CACHE
) -> Pool:
    return Pool(PoolKey(resource, domain), total=total, step=step, floor=step if floor is None else floor)


def node_of(*pools: Pool) -> Node:
    return Node("n", (Domain(0, (Core(0, (0,)),)),), {pool.key: pool for pool in pools})


def split(pool: Pool, services: Sequence[Service], *, best_effort: bool = False) -> dict[str, int]:
    return dict(fair_start(node_of(pool), services, best_effort=best_effort).amounts[pool.key])


def test_splits_the_papers_platform_equally(node: NodeMaker, service: ServiceMaker) -> None:
    """Three services and best-effort jobs on Table 1's machine: equal shares, remainders to the first services in order."""
    partition = fair_start(node(), [service("a"), service("b"), service("c")], best_effort=True)
    held = {key.resource: dict(amounts) for key, amounts in partition.amounts.items()}
    assert held[Resource.CORES] == {"a": 4000, "b": 4000, "c": 3000, BEST_EFFORT: 3000, IDLE: 0}
    assert held[Resource.CACHE] == {"a": 5, "b": 5, "c": 5, BEST_EFFORT: 5, IDLE: 0}
    assert set(held[Resource.MEMORY].values()) == {30_000_000_000, 0}
    assert held[Resource.DISK] == {"a": 25_000_000, "b": 25_000_000, "c": 25_000_000, BEST_EFFORT: 25_000_000, IDLE: 0}
    assert held[Resource.NETWORK] == {
        "a": 2_500_000_000,
        "b": 2_500_000_000,
        "c": 2_500_000_000,
        BEST_EFFORT: 2_500_000_000,
        IDLE: 0,
    }


def test_the_remainder_goes_to_the_first_services(service: ServiceMaker) -> None:
    """Two steps over: the first two services in order get one each, and best-effort jobs come last."""
    abc = [service("b"), service("c"), service("a")]
    assert split(shared(14), abc) == {"b": 5, "c": 5, "a": 4, IDLE: 0}
    assert split(shared(15), abc, best_effort=True) == {"b": 4, "c": 4, "a": 4, BEST_EFFORT: 3, IDLE: 0}


def test_every_core_starts_at_nominal_frequency(node: NodeMaker, service: ServiceMaker) -> None:
    """The level below turbo for services and best-effort jobs; the top one where it is not turbo, or the only one."""
    frequency = PoolKey(Resource.FREQUENCY, 0)
    partition = fair_start(node(), [service("a")], best_effort=True)
    assert partition.amounts[frequency] == {"a": 2_200_000_000, BEST_EFFORT: 2_200_000_000}
    without_turbo = node_of(Pool(frequency, levels=(1_000_000_000, 2_000_000_000), turbo=False))
    assert fair_start(without_turbo, [service("a")], best_effort=False).amounts[frequency] == {"a": 2_000_000_000}
    single = node_of(Pool(frequency, levels=(2_000_000_000,)))
    assert fair_start(single, [service("a")], best_effort=False).amounts[frequency] == {"a": 2_000_000_000}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"maximum": {Resource.FREQUENCY: 1_500_000_000}}, 1_500_000_000),
        ({"minimum": {Resource.FREQUENCY: 2_250_000_000}}, 2_300_000_000),
        ({"maximum": {Resource.FREQUENCY: 1_550_000_000}}, 1_500_000_000),
    ],
)
def test_frequency_keeps_to_the_limits(node: NodeMaker, service: ServiceMaker, limits: dict[str, object], expected: int) -> None:
    """A service that may not run at nominal frequency gets the nearest level it may."""
    partition = fair_start(node(), [service("a", **limits)], best_effort=False)
    assert partition.amount(PoolKey(Resource.FREQUENCY, 0), "a") == expected


def test_limits_are_kept_and_the_rest_is_split_equally(service: ServiceMaker) -> None:
    """A minimum above the equal share is met, a maximum below it is not passed, the others share the difference."""
    capped = service("a", maximum={Resource.CACHE: 2})
    raised = service("b", minimum={Resource.CACHE: 9})
    pinned = service("c", minimum={Resource.CACHE: 3}, maximum={Resource.CACHE: 3})
    assert split(shared(20), [capped, raised, pinned, service("d")], best_effort=True) == {
        "a": 2,
        "b": 9,
        "c": 3,
        "d": 3,
        BEST_EFFORT: 3,
        IDLE: 0,
    }


def test_the_floor_comes_before_the_equal_share(service: ServiceMaker) -> None:
    """Where the floor is above the equal share, best-effort jobs get what is left."""
    assert split(shared(7, floor=3), [service("a"), service("b")], best_effort=True) == {"a": 3, "b": 3, BEST_EFFORT: 1, IDLE: 0}


def test_what_best_effort_is_to_keep_comes_before_the_equal_share(service: ServiceMaker) -> None:
    """With it the jobs begin, whatever is left; where there are no jobs, nobody keeps it."""
    pool = dataclasses.replace(shared(7), best_effort_floor=4)
    assert split(pool, [service("a"), service("b")], best_effort=True) == {"a": 2, "b": 1, BEST_EFFORT: 4, IDLE: 0}
    assert split(pool, [service("a"), service("b")]) == {"a": 4, "b": 3, IDLE: 0}
    with pytest.raises(ValueError, match=r"4 services and best effort need 8 ways at least and the pool has 7; lower"):
        split(pool, [service(name) for name in "abcd"], best_effort=True)


def test_what_nobody_may_take_is_idle(service: ServiceMaker) -> None:
    """With every service at its maximum and no best-effort job, the rest stays idle; with one, it is theirs."""
    capped = service("a", maximum={Resource.CACHE: 4})
    assert split(shared(20), [capped]) == {"a": 4, IDLE: 16}
    assert split(shared(20), [capped], best_effort=True) == {"a": 4, BEST_EFFORT: 16, IDLE: 0}


def test_each_domain_is_split_among_its_own(service: ServiceMaker) -> None:
    """A pool of one domain goes to the services at home there, a node-wide pool to all."""
    node = node_of(shared(8, domain=0), shared(6, domain=1), shared(9, domain=None, resource=Resource.NETWORK))
    services = [service("a", home=0), service("b", home=1), service("c", home=0)]
    amounts = fair_start(node, services, best_effort=False).amounts
    assert amounts[PoolKey(Resource.CACHE, 0)] == {"a": 4, "c": 4, IDLE: 0}
    assert amounts[PoolKey(Resource.CACHE, 1)] == {"b": 6, IDLE: 0}
    assert amounts[PoolKey(Resource.NETWORK)] == {"a": 3, "b": 3, "c": 3, IDLE: 0}


def test_an_unmanaged_pool_and_the_reserve_are_in_no_partition(node: NodeMaker, service: ServiceMaker) -> None:
    """Only managed pools are dealt out, and nothing of them to the system's reserve."""
    amounts = fair_start(node([Resource.CORES]), [service("a")], best_effort=True).amounts
    assert set(amounts) == {PoolKey(Resource.CORES, 0)}
    assert RESERVED not in amounts[PoolKey(Resource.CORES, 0)]


def test_too_small_a_pool_is_named_with_need_and_have(service: ServiceMaker) -> None:
    """More services than the pool has floors for ends in a message that names pool, need and have."""
    with pytest.raises(ValueError, match=r"cache@0: 3 services need 6 ways at least and the pool has 5; lower"):
        split(shared(5, floor=2), [service("a"), service("b"), service("c")])


@pytest.mark.parametrize("resource", [Resource.CORES, Resource.FREQUENCY])
def test_limits_between_two_steps_are_named(node: NodeMaker, service: ServiceMaker, resource: Resource) -> None:
    """A service pinned to what cannot be given is an error that names it, not an amount it did not ask for."""
    pinned = service("a", minimum={resource: 1_500_000_001}, maximum={resource: 1_500_000_002})
    if resource is Resource.CORES:
        pinned = service("a", minimum={resource: 1500}, maximum={resource: 1600})
    with pytest.raises(ValueError, match=rf"{resource}@0: a may .* change its minimum or maximum"):
        fair_start(node(), [pinned], best_effort=False)


@given(
    steps=st.integers(4, 60),
    limits=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 20)), min_size=1, max_size=5),
    best_effort=st.booleans(),
)
def test_any_split_is_conserving_within_limits_and_max_min_fair(
    steps: int,
    limits: list[tuple[int, int]],
    best_effort: bool,  # noqa: FBT001 - drawn
) -> None:
    """The sum is the total, limits hold, and nobody who could take more has over a step less than one who is above its floor."""
    step = 50
    services = [
        Service(f"s{i}", QosTarget(1), minimum={Resource.CACHE: low * step}, maximum={Resource.CACHE: (low + more) * step})
        for i, (low, more) in enumerate(limits)
    ]
    pool = shared(steps * step, step=step)
    if sum(low for low, _ in limits) > steps:
        with pytest.raises(ValueError, match="services need"):
            split(pool, services, best_effort=best_effort)
        return
    held = split(pool, services, best_effort=best_effort)
    assert sum(held.values()) == pool.total
    lowest = {service.name: service.floor(pool) for service in services} | {BEST_EFFORT: 0}
    highest = {service.name: service.ceiling(pool) for service in services} | {BEST_EFFORT: pool.total}
    parties = [holder for holder in held if holder != IDLE]
    assert all(lowest[holder] <= held[holder] <= highest[holder] for holder in parties)
    hungry = [held[holder] for holder in parties if held[holder] < highest[holder]]
    rich = [held[holder] for holder in parties if held[holder] > lowest[holder]]
    assert not hungry or not rich or max(rich) - min(hungry) <= step
    assert held[IDLE] == 0 or not hungry

"""Which domain each service lives in: spread over the machine, where there is room, and once chosen for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import machine
from resctrl_trees import TreeOptions, add_group, make_tree

from actuators.cgroup.hierarchy import SetupError
from monitors.topology import Topology
from parties.homes import choose_homes, need, told_homes, too_narrow
from parties.makers import homes_of, pools_of_homes
from parties.model import Core, Domain, Pool, PoolKey, Resource
from parties.settings import (
    Amounts,
    CacheMechanism,
    CacheSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    NodeSettings,
    ServiceSettings,
)

EVEN, UNEVEN, ODD_IDS = {0: 4, 1: 4}, {0: 2, 1: 6}, {3: 4, 7: 4}


def domains_of(cores: Mapping[int, int]) -> tuple[Domain, ...]:
    """Domains by id with that many cores, of one thread each."""
    return tuple(
        Domain(number, tuple(Core(number * 100 + core, (number * 100 + core,)) for core in range(count)))
        for number, count in cores.items()
    )


def pools_of(cores: Mapping[int, int], ways: Mapping[int, int] | None = None) -> list[Pool]:
    """The pools of cores, and of ways where there are some."""
    of_cores = [Pool(PoolKey(Resource.CORES, number), count * 1000, 1000, 1000) for number, count in cores.items()]
    return of_cores + [Pool(PoolKey(Resource.CACHE, number), count, 1, 1) for number, count in (ways or {}).items()]


def service(name: str, home: int | None = None, cores: int = 0, ways: int = 0) -> ServiceSettings:
    """A service that needs so many cores and ways at the least."""
    return ServiceSettings(name, 10, (f"/{name}",), home=home, minimum=Amounts(cores_millicores=cores * 1000, cache_ways=ways))


def plain(names: str) -> list[ServiceSettings]:
    """Services of one letter each."""
    return [service(name) for name in names]


def chosen(services: Sequence[ServiceSettings], cores: Mapping[int, int], **earlier: int) -> list[int]:
    """The homes in the services' order."""
    return list(choose_homes(services, domains_of(cores), pools_of(cores), earlier).values())


@pytest.mark.parametrize(
    ("services", "cores", "expected"),
    [
        (plain("abcd"), {0: 4}, [0, 0, 0, 0]),
        (plain("a"), EVEN, [0]),
        (plain("abc"), EVEN, [0, 1, 0]),
        (plain("abc"), ODD_IDS, [3, 7, 3]),
        (plain("abcdefg"), UNEVEN, [1, 1, 0, 1, 1, 1, 0]),
        (plain("a"), {0: 20, 1: 22}, [1]),
        (plain("abc"), {0: 1, 1: 1, 2: 1}, [0, 1, 2]),
        ([service("a", 0), service("b", 0), *plain("cd")], EVEN, [0, 0, 1, 1]),
        ([*plain("ab"), service("c", 0)], EVEN, [1, 0, 0]),
        ([service("a", cores=3), service("b", cores=1), service("c", cores=2)], EVEN, [0, 1, 1]),
        ([service("a", cores=4), *plain("bcd")], EVEN, [0, 1, 1, 1]),
        ([service("a", 0, cores=4), service("b", 1), service("c", 1), service("d", 1)], EVEN, [0, 1, 1, 1]),
        ([service("a", cores=5), service("b")], EVEN, [0, 1]),
        (plain("abcdefghij"), EVEN, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
    ],
    ids=[
        "one-domain",
        "one-service",
        "in-turn",
        "ids-not-from-0",
        "by-cores",
        "not-beside-the-reserved",
        "one-core-each",
        "named-homes-count",
        "named-homes-count-first",
        "minimum-does-not-fit",
        "one-fills-a-domain",
        "a-named-one-fills-a-domain",
        "fits-nowhere",
        "more-than-cores",
    ],
)
def test_the_rule(services: list[ServiceSettings], cores: dict[int, int], expected: list[int]) -> None:
    """Named homes stand; the others go, in order, where the fewest services share a core, among the domains with room."""
    assert chosen(services, cores) == expected


@pytest.mark.parametrize(
    ("services", "earlier", "expected"),
    [
        (plain("abc"), {"a": 0, "b": 0, "c": 0}, [0, 0, 0]),
        (plain("abc"), {"b": 0, "c": 0}, [1, 0, 0]),
        (plain("cab"), {"a": 0, "b": 1}, [0, 0, 1]),
        (plain("b"), {"a": 0, "b": 1}, [1]),
        (plain("ab"), {"a": 9, "b": 0}, [1, 0]),
        ([service("a", 1), service("b")], {"a": 0, "b": 0}, [1, 0]),
        ([service("a", cores=3), service("b", cores=2)], {"a": 0, "b": 0}, [0, 1]),
        ([service("a"), service("b", 0, cores=4)], {"a": 0}, [1, 0]),
    ],
    ids=["stay", "new-one", "new-one-first", "one-left", "domain-gone", "named-now", "no-room-now", "named-one-takes-the-room"],
)
def test_who_has_a_home_keeps_it(services: list[ServiceSettings], earlier: dict[str, int], expected: list[int]) -> None:
    """However uneven, unless it is named now, its domain is not managed any more, or there is no room left."""
    assert chosen(services, EVEN, **earlier) == expected


def test_ways_are_room_as_well() -> None:
    """A service that needs more ways than are left goes elsewhere; where none is known they do not matter."""
    services = [service("a", ways=10), service("b"), service("c", ways=9), service("d")]
    domains = domains_of(EVEN)
    assert choose_homes(services, domains, pools_of(EVEN, {0: 18, 1: 18}), {}) == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert choose_homes(services, domains, pools_of(EVEN, {1: 18}), {}) == {"a": 0, "b": 1, "c": 0, "d": 1}


def test_a_named_home_without_managed_cores_is_a_mistake() -> None:
    """It says which there are, also where there is only one."""
    with pytest.raises(
        SetupError, match=r"^a: domain 2 has no managed core; set home to one that has: 0 \(CPU 0-3\), 1 \(CPU 100-103\)$"
    ):
        chosen([service("a", 2)], EVEN)
    with pytest.raises(SetupError, match=r"domain 2 has no managed core"):
        chosen([service("a", 2)], {0: 4})


def test_pools_that_are_too_narrow_are_named() -> None:
    """With who needs what and what to do; a domain with room, and whoever lives elsewhere, is not mentioned."""
    services = [service("a", 0, cores=3), service("b", 0, cores=2, ways=5), service("c", 1)]
    homes = {"a": 0, "b": 0, "c": 1}
    assert too_narrow(services, homes, pools_of(EVEN, {0: 6, 1: 6})) == [
        (
            Resource.CORES,
            (
                "domain 0 has 4000 millicores, and the services that live there need 5000 at least (a 3000, b 2000); "
                "lower a minimum, or set home of one of them to another domain"
            ),
        )
    ]
    assert [resource for resource, _ in too_narrow(services, homes, pools_of(EVEN, {0: 5}))] == [Resource.CORES, Resource.CACHE]


def test_homes_in_words() -> None:
    """Nothing where there is no choice; else every inhabited domain with its CPUs, and how many are not."""
    homes = {"a": 0, "b": 7, "c": 0}
    assert told_homes(homes, domains_of({0: 4})) == ""
    three = domains_of({0: 4, 7: 2, 9: 1})
    assert told_homes(homes, three[:2]) == "services live in domain 0 (CPU 0-3): a, c; 7 (CPU 700-701): b"
    assert told_homes(homes, three).endswith("b; 1 more domain has no service")
    assert told_homes({"a": 9}, three).endswith("a; 2 more domains have no service")


SHAPES = st.dictionaries(st.integers(0, 20), st.integers(1, 8), min_size=1, max_size=5)
NAMES = st.lists(st.sampled_from("abcdefghijklmnop"), unique=True, min_size=1, max_size=16)


@st.composite
def hosts(draw: st.DrawFn) -> tuple[dict[int, int], list[ServiceSettings], dict[str, int]]:
    """Domains, services with and without homes and minimums, and homes of before, some of domains that are gone."""
    cores = draw(SHAPES)
    services = [
        service(
            name,
            draw(st.none() | st.none() | st.sampled_from(sorted(cores))),
            draw(st.sampled_from([0, 0, 1, 2, 9])),
            draw(st.integers(0, 3)),
        )
        for name in draw(NAMES)
    ]
    earlier = draw(st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.integers(0, 20)))
    return cores, services, earlier


@given(hosts(), st.integers(3, 20))
def test_everybody_has_one_managed_home(host: tuple[dict[int, int], list[ServiceSettings], dict[str, int]], ways: int) -> None:
    """Whatever there is and was: each service one domain that is there, its own where it names one; and asked again, the same."""
    cores, services, earlier = host
    pools = pools_of(cores, dict.fromkeys(cores, ways))
    homes = choose_homes(services, domains_of(cores), pools, earlier)
    assert list(homes) == [one.name for one in services]
    assert set(homes.values()) <= set(cores)
    assert all(one.home in (None, homes[one.name]) for one in services)
    assert choose_homes(services, domains_of(cores), pools, earlier) == homes
    if not too_narrow(services, homes, pools):
        assert choose_homes(services, domains_of(cores), pools, homes) == homes  # a reload


@given(hosts())
def test_a_service_is_without_room_only_where_nobody_has_any(
    host: tuple[dict[int, int], list[ServiceSettings], dict[str, int]],
) -> None:
    """The last one that came, if its domain is too narrow for it, would have found every other too narrow as well."""
    cores, services, _ = host
    pools = pools_of(cores)
    homes = choose_homes(services, domains_of(cores), pools, {})
    free = [one for one in services if one.home is None]
    if free and any(f"domain {homes[free[-1].name]} has" in text for _, text in too_narrow(services, homes, pools)):
        for pool in pools:
            needs = sum(need(one, pool) for one in services if homes[one.name] == pool.key.domain and one is not free[-1])
            assert needs + need(free[-1], pool) > pool.total


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 24))
def test_equal_domains_differ_by_one_service_at_most(count: int, each: int, services: int) -> None:
    """Where domains and services are alike nobody is crowded for want of an even hand."""
    homes = chosen([service(f"s{index}") for index in range(services)], dict.fromkeys(range(count), each))
    lodgers = Counter(dict.fromkeys(range(count), 0))
    lodgers.update(homes)
    assert max(lodgers.values()) - min(lodgers.values()) <= 1


@given(SHAPES, st.data())
def test_nobody_moves_when_others_come_and_go(cores: dict[int, int], data: st.DataObject) -> None:
    """Through any sequence of reloads with other services, in any order, whoever stays lives where it lived."""
    homes: dict[str, int] = {}
    for _ in range(4):
        services = plain("".join(data.draw(st.permutations(data.draw(NAMES)))))[: sum(cores.values())]
        now = choose_homes(services, domains_of(cores), pools_of(cores), homes)
        assert {name: home for name, home in now.items() if name in homes} == {
            name: home for name, home in homes.items() if name in now
        }
        homes = now


# Of machines


def on(name: str, directory: Path, count: int, node: NodeSettings | None = None) -> tuple[list[int], tuple[Domain, ...]]:
    """The homes of so many services on a recorded machine, and its domains."""
    root = machine(name, directory)
    settings = ControlSettings(tuple(plain("abcdefghijklmnopqrst"[:count])), node=node or NodeSettings(cores=CoreSettings()))
    cores = settings.node.cores or CoreSettings()
    domains = Topology.read(root).managed_domains(cores.reserved_cpus, cores.managed_cpus)
    return list(homes_of(settings, domains, root=root).values()), domains


RESERVED = NodeSettings(cores=CoreSettings(reserved_cpus=(0, 1, 44, 45)))


@pytest.mark.parametrize(
    ("name", "node", "count", "expected"),
    [
        ("xeon-v1", None, 3, [0, 22, 0]),
        ("xeon-v1", RESERVED, 3, [22, 0, 22]),
        ("xeon-v2", NodeSettings(cores=CoreSettings(), cache=CacheSettings()), 4, [0, 1, 0, 1]),
        ("epyc", None, 18, [*range(16), 0, 1]),
        ("laptop", None, 3, [0, 0, 0]),
        ("virtual-machine", None, 2, [0, 0]),
    ],
)
def test_machines(name: str, node: NodeSettings | None, count: int, expected: list[int], tmp_path: Path) -> None:
    """Both sockets, and every L3, are in use; where there is one domain, all live there. Linux 4.4 gives caches no ids."""
    homes, domains = on(name, tmp_path, count, node)
    assert homes == expected
    assert len(domains) == {"xeon-v1": 2, "xeon-v2": 2, "epyc": 16}.get(name, 1)


def test_the_room_of_a_machine(tmp_path: Path) -> None:
    """Whole cores, and the ways that resctrl hands out: those of a tree that is mounted, less what others hold for themselves."""
    mount = make_tree(tmp_path / "resctrl", TreeOptions(ways=11, shareable=0x600))
    add_group(mount, "theirs", TreeOptions(ways=11), mask=0x3, mode="exclusive")
    cores, cache = CoreSettings(), CacheSettings(mount=str(mount))
    domains = domains_of({0: 4, 1: 3, 2: 1})
    settings = ControlSettings((), node=NodeSettings(cores=cores, cache=cache))
    assert [(str(pool.key), pool.total, pool.floor) for pool in pools_of_homes(settings, domains)] == [
        ("cores@0", 4000, 1000),
        ("cores@1", 3000, 1000),
        ("cores@2", 1000, 1000),
        ("cache@0", 7, 1),
        ("cache@1", 7, 1),
    ]
    for other in (
        NodeSettings(cores=replace(cores, division=CoreDivision.FRACTIONS)),
        NodeSettings(cache=CacheSettings(mount=str(tmp_path / "none"))),
        NodeSettings(cache=replace(cache, mechanism=CacheMechanism.PQOS)),
        NodeSettings(cache=replace(cache, reserved_ways=11)),
    ):
        assert not pools_of_homes(ControlSettings((), node=other), domains)

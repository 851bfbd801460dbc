"""Cores: the choice of division, the order of writes, and amounts that come back as written."""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.cgroup.group import Controller, CpuBandwidth
from actuators.cgroup.hierarchy import GroupMissingError, Hierarchies
from actuators.cgroup.v1 import GroupLayerV1
from actuators.cores import WholeCoresActuator, cores_actuator, divides
from actuators.cpu_bandwidth import CpuBandwidthActuator
from parties.knob import Effect, KnobWrite
from parties.model import BEST_EFFORT, IDLE, Core, Domain, Holder, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CoreDivision, CoreSettings
from parties.units import parse_cpu_list

KEY = PoolKey(Resource.CORES, 0)
MakeGroup = Callable[[str], None]
SMT = tuple(Core(number, (number, number + 8)) for number in range(8))
ONE = (Domain(0, (Core(1, (1,)),)),)
TWO = (Domain(0, SMT[:4]), Domain(3, SMT[4:]))
MEMS = {0: (0,), 3: (1,)}


def whole(cpus: Mapping[Holder, Sequence[int]]) -> Placement:
    """A placement of CPUs; the actuator does not look at the amounts."""
    return Placement(Partition({}), {holder: tuple(held) for holder, held in cpus.items()}, {})


def divided(**millicores: int) -> Placement:
    """Amounts of a divided core; ``best_effort`` by keyword."""
    amounts = {BEST_EFFORT if name == "best_effort" else name: amount for name, amount in millicores.items()}
    return Placement(Partition({KEY: amounts}), dict.fromkeys(amounts, (1,)), {})


def in_order(writes: Sequence[KnobWrite]) -> list[KnobWrite]:
    """As a plan is carried out."""
    return sorted(writes, key=lambda write: write.effect)


def carry_out(writes: Sequence[KnobWrite]) -> None:
    """Write a plan."""
    for write in in_order(writes):
        write.knob.write(write.value)


@pytest.mark.parametrize(
    ("division", "services", "jobs", "expected"),
    [
        (CoreDivision.AUTO, 7, 1, False),
        (CoreDivision.AUTO, 8, 1, True),
        (CoreDivision.AUTO, 8, 0, False),
        (CoreDivision.WHOLE, 20, 1, False),
        (CoreDivision.FRACTIONS, 1, 0, True),
    ],
)
def test_cores_are_divided_when_there_is_not_one_for_each_holder(
    division: CoreDivision, services: int, jobs: int, *, expected: bool
) -> None:
    """The best-effort pool counts as one holder, unless the division is set by hand."""
    managed = {f"s{number}": (f"/s{number}",) for number in range(services)} | {BEST_EFFORT: ("/be",) * jobs}
    homes = {f"s{number}": 0 for number in range(services)}
    assert divides(CoreSettings(division=division), managed, (Domain(0, SMT),), homes) is expected


def test_cores_are_divided_when_a_home_is_too_small() -> None:
    """Eight cores for five services are enough only if no socket of four is home to all of them."""
    managed = {f"s{number}": (f"/s{number}",) for number in range(5)}
    assert divides(CoreSettings(), managed, TWO, dict.fromkeys(managed, 3))
    assert not divides(CoreSettings(), managed, TWO, {"s0": 3})


def test_the_fitting_actuator_is_made(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Whole cores where there are enough of them, else bandwidth."""
    make_group("/a")
    assert isinstance(cores_actuator(layer, {"a": ("/a",)}, CoreSettings(), TWO, mems=MEMS), WholeCoresActuator)
    make_group("/be")
    managed = {"a": ("/a",), BEST_EFFORT: ("/be",)}
    assert isinstance(cores_actuator(layer, managed, CoreSettings(), ONE, mems=MEMS), CpuBandwidthActuator)
    with pytest.raises(GroupMissingError, match=r"b: .*/cpuset/b"):
        cores_actuator(layer, {"b": ("/b",)}, CoreSettings(), TWO, mems=MEMS)


def test_without_a_controller_cores_are_not_managed_and_say_why() -> None:
    """The pool is there with the reason, and nothing is written; the daemon runs on with the other resources."""
    bare = GroupLayerV1(Hierarchies({}, None))
    for actuator in (
        WholeCoresActuator(bare, {"a": ("/a",)}, TWO, MEMS),
        CpuBandwidthActuator(bare, {"a": ("/a",)}, CoreSettings(), ONE, MEMS),
    ):
        assert all(not pool.managed and "no control-group v1 hierarchy for cpu" in pool.reason for pool in actuator.pools())
        assert not actuator.writes(whole({"a": (1,)}), None)
        assert actuator.read_back() == {}


def test_whole_cores_come_in_a_pool_for_each_domain(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Physical cores, whatever their threads; ids of domains need not be consecutive."""
    make_group("/a")
    pools = WholeCoresActuator(layer, {"a": ("/a",)}, TWO, MEMS).pools()
    assert [(pool.key.domain, pool.total, pool.step, pool.floor) for pool in pools] == [
        (0, 4000, 1000, 1000),
        (3, 4000, 1000, 1000),
    ]


def test_a_set_that_loses_and_gains_is_narrowed_before_it_is_widened(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Two writes: what is kept, which takes, then all of it, which gives."""
    for path in ("/a", "/b"):
        make_group(path)
    actuator = WholeCoresActuator(layer, {"a": ("/a",), "b": ("/b",)}, TWO, MEMS)
    before, after = whole({"a": (0, 8, 1, 9), "b": (2, 10)}), whole({"a": (1, 9, 2, 10), "b": (0, 8)})
    assert [(write.holder, write.value, write.effect) for write in in_order(actuator.writes(after, before))] == [
        ("a", "1,9", Effect.TAKE),
        ("b", "0,8", Effect.NEUTRAL),
        ("a", "1-2,9-10", Effect.GIVE),
    ]
    assert not actuator.writes(before, before)


def test_a_start_sets_nodes_and_cpus_from_what_the_kernel_has(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Before the first plan the sets in force are foreign: they are narrowed first, too."""
    for path in ("/a", "/b"):
        make_group(path)
        (layer.group(path).directory(Controller.CPUSET) / "cpuset.cpus").write_text("0-15\n")
    actuator = WholeCoresActuator(layer, {"a": ("/a",), "b": ("/b",)}, TWO, MEMS)
    plan = actuator.writes(whole({"a": (0, 8), "b": (4, 12)}), None)
    assert [
        (write.holder, write.knob.ref.address[0].rpartition(".")[2], write.value, write.effect) for write in in_order(plan)
    ] == [
        ("a", "mems", "0", Effect.TAKE),
        ("b", "mems", "1", Effect.TAKE),
        ("a", "cpus", "0,8", Effect.TAKE),
        ("b", "cpus", "4,12", Effect.TAKE),
    ]
    carry_out(plan)
    assert actuator.read_back() == {KEY: {"a": 1000}, PoolKey(Resource.CORES, 3): {"b": 1000}}


def test_best_effort_may_use_the_memory_of_every_domain(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """A service is kept to the nodes of its home; the pool may be given cores anywhere later, and nodes are set at a start only."""
    for path in ("/a", "/be"):
        make_group(path)
    actuator = WholeCoresActuator(layer, {"a": ("/a",), BEST_EFFORT: ("/be",)}, TWO, MEMS)
    for jobs in ((1, 9), ()):
        plan = actuator.writes(whole({"a": (4, 12), BEST_EFFORT: jobs}), None)
        nodes = {write.holder: write.value for write in plan if write.knob.ref.address[0].endswith("cpuset.mems")}
        assert nodes == {"a": "1", BEST_EFFORT: "0-1"}


HOLDERS = ("a", "b", BEST_EFFORT)
DEALS = st.lists(st.sampled_from((*HOLDERS, IDLE)), min_size=8, max_size=8).filter(lambda deal: {"a", "b"} <= set(deal))


def test_a_start_has_every_cpu_set_watched(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Where a daemon goes on from what is in force nothing changes, yet each CPU set is in the plan, and so under management."""
    for name in ("/a", "/be"):
        make_group(name)
    actuator = WholeCoresActuator(layer, {"a": ("/a",), BEST_EFFORT: ("/be",)}, TWO, mems=MEMS)
    carry_out(actuator.writes(whole({"a": (1, 9), BEST_EFFORT: (2, 10)}), None))
    for best_effort in ((2, 10), ()):
        plan = actuator.writes(whole({"a": (1, 9), BEST_EFFORT: best_effort}), None)
        sets = {write.holder: write.value for write in plan if write.knob.ref.address[0].endswith("cpuset.cpus")}
        assert sets == {"a": "1,9", BEST_EFFORT: "2,10"}


def dealt(deal: Sequence[Holder]) -> Placement:
    """Who has which of eight cores."""
    return whole(
        {
            holder: tuple(cpu for core, owner in zip(SMT, deal, strict=True) if owner == holder for cpu in core.cpus)
            for holder in HOLDERS
        }
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(DEALS, min_size=2, max_size=4))
def test_no_core_is_shared_between_any_two_writes(layer: GroupLayerV1, make_group: MakeGroup, deals: list[list[Holder]]) -> None:
    """From any deal of cores to any other: running holders' sets stay disjoint after each write, and read back as dealt.

    Holders that all change places in a circle are left out: no order of writes can do that.
    """
    for name in HOLDERS:
        if layer.group(name).missing([Controller.CPUSET]):
            make_group(name)
    actuator = WholeCoresActuator(layer, {name: (f"/{name}",) for name in HOLDERS}, (Domain(0, SMT),), MEMS)
    states = [dealt(deal) for deal in deals]
    carry_out(actuator.writes(states[0], None))
    for before, after in pairwise(states):
        if goes_in_a_circle(before, after):
            carry_out(actuator.writes(after, None))
            continue
        for write in in_order(actuator.writes(after, before)):
            write.knob.write(write.value)
            sets = running_sets(layer)
            assert sum(map(len, sets)) == len(frozenset().union(*sets)), (write.holder, write.value)
        assert actuator.read_back()[KEY] == {
            name: len(after.cpus[name]) * 500 for name in HOLDERS if after.cpus[name] or name == BEST_EFFORT
        }


def running_sets(layer: GroupLayerV1) -> list[frozenset[int]]:
    """The CPU set of every holder that is not frozen."""
    return [
        frozenset(parse_cpu_list(layer.group(name).cpus.read() or ""))
        for name in HOLDERS
        if layer.group(name).freezer.read() == "THAWED"
    ]


def goes_in_a_circle(before: Placement, after: Placement) -> bool:
    """Whether two running holders with nothing kept each wait for the other."""
    jumping = {h for h in HOLDERS if before.cpus[h] and after.cpus[h] and not set(before.cpus[h]) & set(after.cpus[h])}
    waits = {h: {o for o in jumping - {h} if set(after.cpus[h]) & set(before.cpus[o])} for h in jumping}
    while free := {h for h in waits if not waits[h]}:
        waits = {h: waits[h] - free for h in waits if h not in free}
    return bool(waits)


def test_a_foreign_cpu_set_is_seen_as_it_is(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """One thread of a core is half a core, and a set across domains counts in both."""
    make_group("/a")
    (layer.group("/a").directory(Controller.CPUSET) / "cpuset.cpus").write_text("0,8,1,4,12\n")
    found = WholeCoresActuator(layer, {"a": ("/a",)}, TWO, MEMS).read_back()
    assert found == {KEY: {"a": 1500}, PoolKey(Resource.CORES, 3): {"a": 1000}}


@pytest.mark.parametrize(
    ("cores", "groups", "reason"),
    [
        (
            CoreSettings(floor_millicores=50),
            1,
            r"floor of 50 millicores in a period of 10000 us: a quota of 500 us, .* raise the floor",
        ),
        (CoreSettings(), 2, r"floor of 100 millicores .*shared by 2 groups of one service: a quota of 500 us"),
        (CoreSettings(step_millicores=30), 1, r"floor of 100 millicores and step of 30: .*multiple of the step"),
        (CoreSettings(step_millicores=1, floor_millicores=100, period_ns=10_100_000), 1, r"not a whole number of microseconds"),
        (CoreSettings(period_ns=100_000), 1, r"period of 100 us: the kernel takes 1000 us to 1000000 us"),
    ],
)
def test_what_the_kernel_would_refuse_is_not_offered(
    layer: GroupLayerV1, make_group: MakeGroup, cores: CoreSettings, groups: int, reason: str
) -> None:
    """The pool carries the reason and what to do, instead of EINVAL in the middle of a run."""
    paths = tuple(f"/a{number}" for number in range(groups))
    for path in paths:
        make_group(path)
    (pool,) = CpuBandwidthActuator(layer, {"a": paths}, cores, ONE, MEMS).pools()
    assert not pool.managed
    assert re.search(reason, pool.reason), pool.reason


def test_dividing_several_domains_is_not_offered(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """A quota does not say on which socket."""
    make_group("/a")
    (pool,) = CpuBandwidthActuator(layer, {"a": ("/a",)}, CoreSettings(), TWO, MEMS).pools()
    assert "one domain, not in 2" in pool.reason


AMOUNTS = st.integers(0, 20).map(lambda steps: steps * 50)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(2, 18).map(lambda steps: steps * 50), st.tuples(AMOUNTS, AMOUNTS), st.integers(1, 3))
def test_divided_amounts_read_back_as_written(
    layer: GroupLayerV1, make_group: MakeGroup, service: int, pool: tuple[int, int], jobs: int
) -> None:
    """Services and best-effort pools of several groups, at zero and at every step; no quota is one that the kernel refuses."""
    paths = tuple(f"/be{number}" for number in range(jobs))
    for path in ("/a", *paths):
        if layer.group(path).missing([Controller.CPU]):
            make_group(path)
    actuator = CpuBandwidthActuator(layer, {"a": ("/a",), BEST_EFFORT: paths}, CoreSettings(), ONE, MEMS)
    before = None
    for amount in pool:
        after = divided(a=service, best_effort=amount)
        carry_out(actuator.writes(after, before))
        assert actuator.read_back() == {KEY: {"a": service, BEST_EFFORT: amount}}
        bandwidths = [CpuBandwidth.parse(layer.group(path).cpu_bandwidth.read() or "") for path in paths]
        assert all(each.quota_us is None or each.quota_us >= 1000 for each in bandwidths)
        assert all(each.period_us <= 1_000_000 for each in bandwidths)
        if amount:
            assert sum(Fraction(each.quota_us or 0, each.period_us) for each in bandwidths) == Fraction(amount, 1000)
        before = after


def test_divided_plans_take_before_they_give(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """The pool that shrinks first, then the service that grows; a frozen pool gets its quota before it is thawed."""
    for path in ("/a", "/be"):
        make_group(path)
    actuator = CpuBandwidthActuator(layer, {"a": ("/a",), BEST_EFFORT: ("/be",)}, CoreSettings(), ONE, MEMS)
    states = [divided(a=500, best_effort=500), divided(a=550, best_effort=450), divided(a=1000, best_effort=0)]
    told = [
        [(write.holder, write.value, write.effect.name) for write in in_order(actuator.writes(after, before))]
        for before, after in ((states[0], states[1]), (states[1], states[2]), (states[2], states[1]))
    ]
    assert told == [
        [(BEST_EFFORT, "4500 10000", "TAKE"), ("a", "5500 10000", "GIVE")],
        [(BEST_EFFORT, "FROZEN", "TAKE"), ("a", "10000 10000", "GIVE")],
        [("a", "5500 10000", "TAKE"), (BEST_EFFORT, "4500 10000", "NEUTRAL"), (BEST_EFFORT, "THAWED", "GIVE")],
    ]


def test_a_start_confines_everybody_to_the_managed_cpus(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Divided cores are still kept apart from the reserved ones."""
    for path in ("/a", "/be"):
        make_group(path)
    managed = {"a": ("/a",), BEST_EFFORT: ("/be",)}
    actuator = CpuBandwidthActuator(layer, managed, CoreSettings(), ONE, MEMS, best_effort_idle_class=True)
    carry_out(actuator.writes(divided(a=500, best_effort=500), None))
    assert [layer.group(path).cpus.read() for path in ("/a", "/be")] == ["1", "1"]
    assert [layer.group(path).mems.read() for path in ("/a", "/be")] == ["0", "0"]
    assert [layer.group(path).cpu_class.read() for path in ("/a", "/be")] == ["shares=1024", "idle=1"]


def test_no_quota_reads_as_all_there_is(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """A group that was made anew, or whose limit somebody took off, holds everything: it must not look like nothing."""
    make_group("/a")
    actuator = CpuBandwidthActuator(layer, {"a": ("/a",)}, CoreSettings(), ONE, MEMS)
    assert actuator.read_back() == {KEY: {"a": 1000}}


@pytest.mark.parametrize(
    ("job", "service", "protected"),
    [("/rack/be", "/rack/a", True), ("/be", "/x/y/a", True), ("/rack/batch/be", "/rack/a", False), ("/b/be", "/a/a", False)],
)
def test_an_idle_class_that_protects_nobody_is_told(
    layer: GroupLayerV1, make_group: MakeGroup, job: str, service: str, *, protected: bool
) -> None:
    """The class ranks siblings only; a job two levels apart competes through its parent."""
    for path in (job, service):
        make_group(path)
    managed = {"a": (service,), BEST_EFFORT: (job,)}
    actuator = CpuBandwidthActuator(layer, managed, CoreSettings(), ONE, MEMS, best_effort_idle_class=True)
    assert (actuator.warnings() == ()) is protected
    assert all(job in warning and service in warning for warning in actuator.warnings())

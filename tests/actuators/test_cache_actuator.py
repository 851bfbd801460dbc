"""The resctrl actuator on fixture trees: pools, plans and what is read back."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from resctrl_trees import EPYC, HASWELL, ODD_IDS, XEON, XEON_CDP, TreeOptions, add_files, add_group, make_tree

from actuators.cache.knobs import GroupKnob
from actuators.cache.resctrl import read_tree
from actuators.cache.resctrl_actuator import ResctrlActuator, thread_directory
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import GroupLayerV1
from parties.interfaces import HasProblems, NeedsUpkeep, Tidies
from parties.knob import Effect, KnobError, KnobWrite
from parties.model import BEST_EFFORT, IDLE, RESERVED, Core, Domain, Holder, Node, Partition, PoolKey, Resource
from parties.placement import place
from parties.settings import CacheSettings

MANAGED = {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/jobs",)}
Make = Callable[..., ResctrlActuator]


def domains_of(ids: tuple[int, ...]) -> tuple[Domain, ...]:
    return tuple(Domain(number, (Core(2 * place, (2 * place,)),)) for place, number in enumerate(ids))


@pytest.fixture
def make(tmp_path: Path, layer: GroupLayerV1) -> Make:
    """Makes the actuator of a tree, by default with "a" at home in the first domain and "b" in the last."""

    def made(options: TreeOptions, *, ids: tuple[int, ...] = (), reserved_ways: int = 0) -> ResctrlActuator:
        mount = tmp_path / "resctrl"
        if not mount.exists():
            make_tree(mount, options)
        ids = ids or options.domains
        settings = CacheSettings(reserved_ways=reserved_ways)
        homes = {"a": ids[0], "b": ids[-1]}
        return ResctrlActuator(read_tree(mount), settings, domains_of(ids), layer=layer, managed=MANAGED, homes=homes)

    return made


def key(domain: int) -> PoolKey:
    return PoolKey(Resource.CACHE, domain)


def start(actuator: ResctrlActuator, held: dict[int, dict[Holder, int]]) -> list[KnobWrite]:
    """The plan of a fresh start, in the order in which it is carried out."""
    pools = {pool.key: pool for pool in actuator.pools()}
    ids = tuple(pool.domain for pool in pools if pool.domain is not None)
    partition = Partition({key(number): amounts for number, amounts in held.items()})
    placement = place(Node("n", domains_of(ids), pools), partition, None)
    return sorted(actuator.writes(placement, None), key=lambda write: write.effect)


def shown(plan: list[KnobWrite]) -> list[tuple[str, str, str]]:
    """What is written where: group and domain, value, effect."""
    return [(":".join(write.knob.ref.address[1:]), write.value, write.effect.name) for write in plan]


@pytest.mark.parametrize(
    ("options", "pools"),
    [
        (XEON, [(0, 18, 1), (1, 18, 1)]),
        (XEON_CDP, [(0, 18, 1), (1, 18, 1)]),
        (ODD_IDS, [(3, 19, 1), (7, 19, 1)]),
        (HASWELL, [(0, 18, 2)]),
        (EPYC, [(number, 15, 1) for number in range(16)]),
    ],
)
def test_a_pool_for_each_domain(make: Make, options: TreeOptions, pools: list[tuple[int, int, int]]) -> None:
    """As many ways as are neither shared nor reserved, by the ids that the hardware has; the floor is the narrowest mask."""
    assert [(pool.key.domain, pool.total, pool.floor) for pool in make(options).pools()] == pools


@pytest.mark.parametrize(
    ("options", "arguments", "reason"),
    [
        (ODD_IDS, {"ids": (0,)}, "has no L3 with id 0, only 3 7"),
        (HASWELL, {"reserved_ways": 1}, "takes no mask under 2"),
        (XEON, {"reserved_ways": 20}, "reserve fewer"),
        (replace(XEON, closids=3), {}, "3 groups are needed, and of the 3 classes of service (CLOSIDs) 2 are left"),
    ],
)
def test_what_cannot_be_managed_says_why(make: Make, options: TreeOptions, arguments: dict[str, int], reason: str) -> None:
    """An unmanaged pool with the reason, no writes, no upkeep."""
    actuator = make(options, **arguments)
    assert all(not pool.managed and reason in pool.reason for pool in actuator.pools())
    assert (list(actuator.upkeep()), actuator.read_back()) == ([], {})


def test_one_domain_that_does_not_exist_leaves_the_others(make: Make) -> None:
    """Its pool alone is unmanaged."""
    assert [pool.managed for pool in make(ODD_IDS, ids=(3, 9)).pools()] == [True, False]


def test_the_groups_of_others_are_named_when_classes_run_out(tmp_path: Path, make: Make) -> None:
    """Who holds the rest is what an operator has to know."""
    options = replace(XEON, closids=4)
    make_tree(tmp_path / "resctrl", options)
    add_files(tmp_path / "resctrl/qemu-7", options, tasks=())
    assert "others hold qemu-7 (0 threads)" in make(options).pools()[0].reason


def test_ways_of_an_exclusive_group_are_left_alone(tmp_path: Path, make: Make) -> None:
    """They are nobody's to hand out; a group that merely shares is told about."""
    make_tree(tmp_path / "resctrl", XEON)
    add_group(tmp_path / "resctrl", "vm", mask=0xF, mode="exclusive")
    add_group(tmp_path / "resctrl", "other", mask=0xF0)
    actuator = make(XEON)
    assert [pool.total for pool in actuator.pools()] == [14, 14]
    assert [problem.split(":")[0].rsplit("/", 1)[1] for problem in actuator.problems] == ["other"]
    assert isinstance(actuator, HasProblems)


def test_the_plan_of_a_start(make: Make) -> None:
    """Groups first; then each mask in each domain, where nothing is held the reserved ways; the rest of the machine goes there."""
    plan = start(make(XEON), {0: {"a": 4, BEST_EFFORT: 10, IDLE: 4}, 1: {"b": 18}})
    masks = {name: value for name, value, _ in shown(plan)[3:]}
    assert shown(plan)[:3] == [(f"parties-{holder}", "present", "TAKE") for holder in MANAGED]
    assert masks == {
        "parties-a:0": "f",
        "parties-b:0": "c0000",
        "parties-best-effort:0": "3ff0",
        ":0": "c0000",
        "parties-a:1": "c0000",
        "parties-b:1": "3ffff",
        "parties-best-effort:1": "c0000",
        ":1": "c0000",
    }
    assert {write.effect for write in plan} == {Effect.TAKE}  # all groups come with every way


def test_what_holds_already_is_known_as_wanted(tmp_path: Path, make: Make) -> None:
    """At a resumed start nothing changes, and yet every mask is named, so that a foreign writer is noticed."""
    make_tree(tmp_path / "resctrl", HASWELL)
    for name, mask in {"parties-a": 0xF, "parties-b": 0xF0, "parties-best-effort": 0xF00}.items():
        add_group(tmp_path / "resctrl", name, HASWELL, mask=mask)
    add_files(tmp_path / "resctrl", HASWELL, mask=0xC0000)
    plan = start(make(HASWELL), {0: {"a": 4, "b": 4, BEST_EFFORT: 4, IDLE: 6}})
    assert all(write.knob.same(write.value, write.knob.read()) for write in plan)
    assert len(plan) == 7


def test_a_start_from_masks_of_an_earlier_run(tmp_path: Path, make: Make) -> None:
    """What is in force decides who takes and who gives: a group that has one way is widened after the others were narrowed."""
    make_tree(tmp_path / "resctrl", HASWELL)
    for name, mask in {"parties-a": 0x3, "parties-b": 0x3FFFC, "parties-best-effort": 0xC0000}.items():
        add_group(tmp_path / "resctrl", name, HASWELL, mask=mask)
    plan = shown(start(make(HASWELL), {0: {"a": 9, "b": 9}}))
    assert [step for step in plan if step[1] != "present" and step[0] != ":0"] == [
        ("parties-best-effort:0", "c0000", "TAKE"),
        ("parties-b:0", "3fe00", "TAKE"),
        ("parties-a:0", "1ff", "GIVE"),
    ]


def test_a_move_touches_what_changes(make: Make) -> None:
    """One way from one holder to its neighbour: a narrower mask, then a wider one; the other domain is left alone."""
    actuator = make(XEON)
    pools = {pool.key: pool for pool in actuator.pools()}
    node = Node("n", domains_of((0, 1)), pools)
    held = {"a": 4, BEST_EFFORT: 14}
    before = place(node, Partition({key(0): held, key(1): {"b": 18}}), None)
    after = place(node, Partition({key(0): {"a": 5, BEST_EFFORT: 13}, key(1): {"b": 18}}), before)
    plan = actuator.writes(after, before)
    assert shown(list(plan)) == [("parties-best-effort:0", "3ffe0", "TAKE"), ("parties-a:0", "1f", "GIVE")]


def test_best_effort_without_a_mask_of_its_own(make: Make) -> None:
    """Where a mask has at least two ways, a pool of one lives in the reserved ways; its way lies idle."""
    actuator = make(HASWELL)
    node = Node("n", domains_of((0,)), {pool.key: pool for pool in actuator.pools()})
    before = place(node, Partition({key(0): {"a": 8, "b": 8, BEST_EFFORT: 2}}), None)
    after = place(node, Partition({key(0): {"a": 8, "b": 9, BEST_EFFORT: 1}}), before)
    masks = {name: value for name, value, _ in shown(list(actuator.writes(after, before)))}
    assert masks["parties-best-effort:0"] == "c0000"


def test_a_cache_that_is_not_partitioned(make: Make) -> None:
    """A policy that leaves the pool out: no groups, no masks, nothing narrowed."""
    assert start(make(XEON), {}) == []


def test_read_back(tmp_path: Path, make: Make) -> None:
    """The ways of each holder at home; in the reserved ways it holds none; a group that is gone is left out."""
    make_tree(tmp_path / "resctrl", XEON)
    add_group(tmp_path / "resctrl", "parties-a", mask=0xF0)
    add_group(tmp_path / "resctrl", "parties-best-effort", mask=0xC0000)
    assert make(XEON).read_back() == {key(0): {"a": 4, BEST_EFFORT: 0}, key(1): {BEST_EFFORT: 0}}


def test_one_look_reads_each_file_once(tmp_path: Path, make: Make) -> None:
    """Sixteen domains, one read: what changes meanwhile is seen by the next look."""
    make_tree(tmp_path / "resctrl", EPYC)
    add_group(tmp_path / "resctrl", "parties-a", EPYC, mask=0xF)
    actuator = make(EPYC)
    with actuator.one_look():
        first = actuator.read_back()
        add_files(tmp_path / "resctrl/parties-a", replace(EPYC, monitoring=False), mask=0xFF)
        assert actuator.read_back() == first
    assert actuator.read_back()[key(0)]["a"] == 8


def test_leftovers_are_removed_unless_a_journal_knows_them(tmp_path: Path, make: Make) -> None:
    """What an earlier run left goes; what the journal can bring back, and what others made, stays."""
    make_tree(tmp_path / "resctrl", XEON)
    for name in ("parties-old", "parties-kept", "vm"):
        (tmp_path / "resctrl" / name).mkdir()
    add_group(tmp_path / "resctrl", "vm")
    actuator = make(XEON)
    assert isinstance(actuator, Tidies)
    mount = tmp_path / "resctrl"
    for name in ("parties-old", "parties-kept"):
        add_group(mount, name)
    actuator = make(XEON)
    for name in ("parties-old", "parties-kept"):
        for file in ("schemata", "mode", "tasks"):
            (mount / name / file).unlink()  # the kernel removes a group's files with it
    told = actuator.tidy({GroupKnob(mount, "parties-kept").ref})
    assert [line.split(":")[0] for line in told] == [str(mount / "parties-old")]
    assert sorted(path.name for path in mount.glob("[pv]*")) == ["parties-kept", "vm"]


def test_a_leftover_that_stays_is_told(tmp_path: Path, make: Make) -> None:
    """A group that cannot be removed is named with what to do, and nothing else fails."""
    make_tree(tmp_path / "resctrl", XEON)
    add_group(tmp_path / "resctrl", "parties-old")
    assert "remove it with rmdir" in make(XEON).tidy(())[0]


def test_each_holder_s_threads_are_looked_after(make: Make, layer: GroupLayerV1) -> None:
    """One task for each group, with the directories where its threads are listed."""
    actuator = make(XEON)
    assert isinstance(actuator, NeedsUpkeep)
    assert [task.ref.address[1:] for task in actuator.upkeep()] == [
        (f"parties-{holder}", thread_directory(layer.hierarchies, path)) for holder, (path,) in MANAGED.items()
    ]


def test_where_threads_are_listed(tmp_path: Path) -> None:
    """The first hierarchy that has the group; v2 where no other has; the first of all where none has it yet."""
    hierarchies = Hierarchies({"cpuset": tmp_path / "cpuset", "memory": tmp_path / "memory"}, tmp_path / "unified")
    (tmp_path / "memory/web").mkdir(parents=True)
    (tmp_path / "unified/web").mkdir(parents=True)
    (tmp_path / "unified/db").mkdir(parents=True)
    places = [thread_directory(hierarchies, path) for path in ("/web", "/db", "/none")]
    assert places == [str(tmp_path / "memory/web"), str(tmp_path / "unified/db"), str(tmp_path / "cpuset/none")]


def test_a_root_group_that_is_gone_is_gone(make: Make, tmp_path: Path) -> None:
    """Unmounted: the root's mask raises ENOENT, as what vanished; a holder's group merely is not there."""
    actuator = make(HASWELL)
    writes = start(actuator, {0: {"a": 18}})
    actuator.close()
    (tmp_path / "resctrl").rename(tmp_path / "away")
    root = next(write.knob for write in writes if write.holder == RESERVED)
    mine = next(write.knob for write in writes[3:] if write.holder == "a")
    with pytest.raises(KnobError) as error:
        root.read()
    assert error.value.errno == errno.ENOENT
    assert mine.read() is None

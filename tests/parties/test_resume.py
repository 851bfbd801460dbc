"""Going on where an earlier daemon left off: what is taken up, who gets what, and whose values go back."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.in_force import IN_FORCE_NAME, InForce, Wanted, write_in_force
from parties.knob import Knob, KnobKind, KnobRef
from parties.model import BEST_EFFORT, IDLE, Core, Domain, Holder, Node, Partition, Pool, PoolKey, QosTarget, Resource, Service
from parties.placement import Placement
from parties.policies.fair import fair_start
from parties.resume import (
    Earlier,
    Leavers,
    Left,
    ResumeError,
    forget,
    leave,
    members_of,
    network_place,
    resumed_partition,
    take_up,
)
from parties.settings import BestEffortSettings, ControlSettings, NetworkSettings, NodeSettings, ServiceSettings

CORES, FREQUENCY, DISK = PoolKey(Resource.CORES, 0), PoolKey(Resource.FREQUENCY, 0), PoolKey(Resource.DISK)
LEVELS = (1_000, 1_500, 2_000)
DOMAINS = (Domain(0, (Core(1, (1,)),)),)


def node(total: int = 1000, step: int = 50, floor: int = 100, *, disk: bool = False, kept: int = 0) -> Node:
    pools = [Pool(CORES, total, step, floor, best_effort_floor=kept), Pool(FREQUENCY, levels=LEVELS)]
    pools += [Pool(DISK, 100, 10, 10)] if disk else []
    return Node("n", DOMAINS, {pool.key: pool for pool in pools})


def service(name: str, low: int = 0, high: int = 0) -> Service:
    limits = [{Resource.CORES: amount} if amount else {} for amount in (low, high)]
    return Service(name, QosTarget(10), minimum=limits[0], maximum=limits[1])


def resumed(
    earlier: Mapping[Holder, int], services: tuple[Service, ...], *, best_effort: bool = True, on: Node | None = None
) -> Mapping[Holder, int]:
    """The cores of everybody after going on from these."""
    on = on or node()
    fresh = fair_start(on, services, best_effort=best_effort)
    partition = resumed_partition(on, services, best_effort=best_effort, earlier=Partition({CORES: earlier}), fresh=fresh)
    partition.check(on, services)
    return partition.amounts[CORES]


A, B, C = service("a"), service("b"), service("c")


@pytest.mark.parametrize(
    ("services", "best_effort", "expected"),
    [
        ((A, B), True, {"a": 500, "b": 150, BEST_EFFORT: 300, IDLE: 50}),
        ((A,), True, {"a": 500, BEST_EFFORT: 450, IDLE: 50}),
        ((A,), False, {"a": 500, IDLE: 500}),
        ((A, B), False, {"a": 500, "b": 150, IDLE: 350}),
        ((A, B, C), True, {"a": 500, "b": 150, "c": 100, BEST_EFFORT: 250, IDLE: 0}),
        ((A, B, service("c", 450)), True, {"a": 400, "b": 150, "c": 450, BEST_EFFORT: 0, IDLE: 0}),
        ((service("a", 0, 200), B), True, {"a": 200, "b": 150, BEST_EFFORT: 600, IDLE: 50}),
        ((A, service("b", 200)), True, {"a": 500, "b": 200, BEST_EFFORT: 300, IDLE: 0}),
    ],
    ids=["same", "removed", "removed-no-job", "job-removed", "added", "added-large", "lower-maximum", "higher-minimum"],
)
def test_who_gets_what(services: tuple[Service, ...], *, best_effort: bool, expected: dict[str, int]) -> None:
    """Leavers give to best effort or idle; newcomers take idle, best effort, then from who has most above its floor."""
    assert resumed({"a": 500, "b": 150, BEST_EFFORT: 300, IDLE: 50}, services, best_effort=best_effort) == expected


def test_who_holds_most_but_needs_it_does_not_give() -> None:
    """What counts is how much is above the floor, not how much is held."""
    held = {"a": 500, "b": 450, BEST_EFFORT: 50, IDLE: 0}
    assert resumed(held, (service("a", 500), B, C)) == {"a": 500, "b": 400, "c": 100, BEST_EFFORT: 0, IDLE: 0}


@pytest.mark.parametrize(
    ("held", "services", "expected"),
    [
        ({"a": 500, "b": 150, BEST_EFFORT: 300, IDLE: 50}, (A, B, C), {"a": 450, "b": 150, "c": 100, BEST_EFFORT: 300, IDLE: 0}),
        ({"a": 500, "b": 150, BEST_EFFORT: 100, IDLE: 250}, (A, B), {"a": 500, "b": 150, BEST_EFFORT: 300, IDLE: 50}),
        ({"a": 600, "b": 400, BEST_EFFORT: 0, IDLE: 0}, (A, B), {"a": 350, "b": 350, BEST_EFFORT: 300, IDLE: 0}),
    ],
    ids=["kept", "raised-from-idle", "raised-from-services"],
)
def test_best_effort_keeps_what_it_is_to_keep(
    held: Mapping[Holder, int], services: tuple[Service, ...], expected: dict[str, int]
) -> None:
    """Nobody's floor is met out of it; where it has less it is raised, as a service is."""
    assert resumed(held, services, on=node(kept=300)) == expected


def test_jobs_that_are_new_hold_what_nobody_needs() -> None:
    """No service gives for a best-effort job that was not there before."""
    assert resumed({"a": 500, "b": 150, IDLE: 350}, (A, B)) == {"a": 500, "b": 150, BEST_EFFORT: 350, IDLE: 0}


@pytest.mark.parametrize("on", [node(total=1200), node(step=100), node(step=75, total=900, floor=75)])
def test_a_pool_that_changed_is_split_afresh_and_no_other_is(on: Node) -> None:
    """Another total, or amounts that are no steps any more: a fair split of that pool; frequency stays as it was."""
    services = (A, B)
    earlier = Partition({CORES: {"a": 650, "b": 350, IDLE: 0}, FREQUENCY: {"a": 1_000, "b": 2_000}})
    fresh = fair_start(on, services, best_effort=False)
    partition = resumed_partition(on, services, best_effort=False, earlier=earlier, fresh=fresh)
    assert partition.amounts == {CORES: fresh.amounts[CORES], FREQUENCY: {"a": 1_000, "b": 2_000}}


def test_finer_steps_that_the_amounts_still_fit_change_nothing() -> None:
    """Half the step: everybody keeps what they had."""
    held = {"a": 650, "b": 300, IDLE: 50}
    assert resumed(held, (A, B), best_effort=False, on=node(step=25)) == held


def test_a_pool_that_was_not_managed_is_split_afresh() -> None:
    """A resource that is managed from now on begins as on a fresh start; one that is not any more is left out."""
    services, on = (A, B), node(disk=True)
    fresh = fair_start(on, services, best_effort=False)
    gone = PoolKey(Resource.MEMORY, 0)
    earlier = Partition({CORES: {"a": 650, "b": 350, IDLE: 0}, gone: {"a": 1}})
    partition = resumed_partition(on, services, best_effort=False, earlier=earlier, fresh=fresh)
    assert partition.amounts[DISK] == fresh.amounts[DISK]
    assert partition.amounts[CORES] == {"a": 650, "b": 350, IDLE: 0}
    assert gone not in partition.amounts


def test_levels_are_kept_and_new_limits_move_them_to_the_nearest() -> None:
    """Frequency is no shared pool: each holder by itself; a newcomer gets what a fresh start gives it."""
    services = (Service("a", QosTarget(10), maximum={Resource.FREQUENCY: 1_500}), B, C)
    on = node()
    fresh = fair_start(on, services, best_effort=True)
    earlier = Partition({FREQUENCY: {"a": 2_000, "b": 1_000, BEST_EFFORT: 1_000, "gone": 2_000}})
    held = resumed_partition(on, services, best_effort=True, earlier=earlier, fresh=fresh).amounts[FREQUENCY]
    assert held == {"a": 1_500, "b": 1_000, "c": 1_500, BEST_EFFORT: 1_000}


NAMES = "abcdef"


@st.composite
def changes(draw: st.DrawFn) -> tuple[Mapping[Holder, int], tuple[Service, ...], bool]:
    """Earlier amounts of 40 steps of 50, services of now with limits that fit, and whether there are jobs."""
    holders = [*draw(st.sets(st.sampled_from(NAMES))), *draw(st.sampled_from([(), (BEST_EFFORT,)]))]
    held = dict.fromkeys(holders, 100)
    left = 2000 - sum(held.values())
    for holder in holders:
        more = draw(st.integers(0, left // 50)) * 50
        held[holder] += more
        left -= more
    floors = {name: draw(st.integers(1, 330)) for name in draw(st.sets(st.sampled_from(NAMES), min_size=1))}
    ceilings = {name: draw(st.sampled_from([0, max(100, floor + 50), 1000])) for name, floor in floors.items()}
    services = tuple(service(name, floor, ceilings[name]) for name, floor in sorted(floors.items()))
    return held | {IDLE: left}, services, draw(st.booleans())


@given(changes())
def test_whatever_changes_the_sum_stays_and_nobody_changes_more_than_needed(
    case: tuple[Mapping[Holder, int], tuple[Service, ...], bool],
) -> None:
    """Conservation, floors, ceilings, whole steps; a service within its limits gives only what idle and best effort cannot."""
    held, services, best_effort = case
    on = node(total=2000)
    now = resumed(held, services, best_effort=best_effort, on=on)
    pool = on.pools[CORES]
    floors = {one.name: -(-one.floor(pool) // 50) * 50 for one in services}
    ceilings = {one.name: max(floors[one.name], one.ceiling(pool) // 50 * 50) for one in services}
    assert sum(now.values()) == 2000
    assert set(now) == set(floors) | ({BEST_EFFORT, IDLE} if best_effort else {IDLE})
    assert all(amount % 50 == 0 and amount >= 0 for amount in now.values())
    assert all(floors[name] <= now[name] <= ceilings[name] for name in floors)
    for name, floor in floors.items():
        before = held.get(name, 0)
        if before < floor:
            assert now[name] == floor
        elif before > ceilings[name]:
            assert now[name] <= ceilings[name]
        else:
            assert now[name] <= before
            if now[name] < before:  # it gave: nobody else had anything left that nobody needs
                assert now[IDLE] == now.get(BEST_EFFORT, 0) == 0
    if set(floors) == set(held) - {BEST_EFFORT, IDLE} and best_effort == (BEST_EFFORT in held):
        within = all(floors[name] <= held[name] <= ceilings[name] for name in floors)
        assert not within or now == held


# The files

BOOT, SHAPE = "boot-1", "shape-1"


def in_force(**changes: object) -> InForce:
    placement = Placement(Partition({CORES: {"a": 1000}}), {"a": (1,)}, {})
    return replace(InForce(BOOT, SHAPE, 7, "parties", placement), **changes)  # type: ignore[arg-type]


def left(**changes: object) -> Left:
    return replace(Left(7, {"a": ("/a",)}, "x", {"a": 3}), **changes)  # type: ignore[arg-type]


def test_what_was_left_is_taken_up_once(tmp_path: Path) -> None:
    """The second one finds nothing: a crash after the first is a crash."""
    write_in_force(tmp_path / IN_FORCE_NAME, in_force())
    leave(tmp_path, left())
    assert take_up(tmp_path, boot_id=BOOT, topology=SHAPE) == Earlier(in_force(), left())
    assert take_up(tmp_path, boot_id=BOOT, topology=SHAPE) is None


def test_what_was_forgotten_is_not_taken_up(tmp_path: Path) -> None:
    """Once the values are put back nobody goes on from them; forgetting twice is no error."""
    write_in_force(tmp_path / IN_FORCE_NAME, in_force())
    leave(tmp_path, left())
    forget(tmp_path)
    forget(tmp_path)
    assert take_up(tmp_path, boot_id=BOOT, topology=SHAPE) is None


@pytest.mark.parametrize(
    ("found", "mark", "words"),
    [
        (in_force(boot_id="boot-0"), left(), "another boot"),
        (in_force(topology="shape-0"), left(), "topology"),
        (in_force(pid=8), left(), "left by process 7"),
        (in_force(version=99), left(), "version 99"),
        (in_force(), left(version=99), "version 99"),
        (None, left(), "does not exist"),
    ],
)
def test_what_does_not_fit_is_refused_and_gone(tmp_path: Path, found: InForce | None, mark: Left, words: str) -> None:
    """Another boot, topology, process or version, or nothing in force: said, and not found a second time."""
    if found is not None:
        write_in_force(tmp_path / IN_FORCE_NAME, found)
    leave(tmp_path, mark)
    with pytest.raises(ResumeError, match=words):
        take_up(tmp_path, boot_id=BOOT, topology=SHAPE)
    assert take_up(tmp_path, boot_id=BOOT, topology=SHAPE) is None


def test_a_mark_without_homes_is_of_another_version(tmp_path: Path) -> None:
    """Who wrote it had every service in the first domain: nothing is gone on with, so that nobody changes domain unsaid."""
    write_in_force(tmp_path / IN_FORCE_NAME, in_force())
    (tmp_path / "resume").write_text('{"pid": 7, "members": {"a": ["/a"]}, "network": "x", "version": 1}')
    with pytest.raises(ResumeError, match="of version 1, this is version 2"):
        take_up(tmp_path, boot_id=BOOT, topology=SHAPE)


DAMAGED = [
    "",
    "{",
    "[]",
    "7",
    '{"version": 2}',
    '{"version": 2, "pid": "x", "members": {}, "network": "", "homes": {}}',
    '{"version": 2, "pid": 7, "members": {}, "network": "", "homes": {"a": "0"}}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_mark_is_refused(tmp_path: Path, text: str) -> None:
    """Whatever the file holds, it is one message."""
    write_in_force(tmp_path / IN_FORCE_NAME, in_force())
    (tmp_path / "resume").write_text(text)
    with pytest.raises(ResumeError):
        take_up(tmp_path, boot_id=BOOT, topology=SHAPE)


ERRORS = [errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO]


@pytest.mark.parametrize("number", ERRORS)
def test_a_mark_that_cannot_be_taken_away_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whatever the error: two daemons must not both go on from it."""
    write_in_force(tmp_path / IN_FORCE_NAME, in_force())
    leave(tmp_path, left())

    def failing(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "unlink", failing)
    with pytest.raises(ResumeError, match=os.strerror(number)):
        take_up(tmp_path, boot_id=BOOT, topology=SHAPE)
    forget(tmp_path)


@pytest.mark.parametrize("number", ERRORS)
def test_a_mark_that_cannot_be_written_is_an_error_and_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Written beside and renamed: half a mark is none."""

    def failing(_: Path, __: Path) -> Path:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match=os.strerror(number)):
        leave(tmp_path, left())
    assert not (tmp_path / "resume").exists()


def test_the_mark_is_written_whole(tmp_path: Path) -> None:
    """Readable by others than its decoder, and nothing else is left beside it."""
    leave(tmp_path, left())
    assert json.loads((tmp_path / "resume").read_text()) == {
        "pid": 7,
        "members": {"a": ["/a"]},
        "network": "x",
        "homes": {"a": 3},
        "version": 2,
    }
    assert [file.name for file in tmp_path.iterdir()] == ["resume"]


# Whose values go back


class WithFile:
    """A knob whose writing leaves a file of its group behind."""

    def __init__(self, kind: str, address: tuple[str, ...]) -> None:
        self.ref = KnobRef(kind, address)

    def journalled_first(self) -> list[WithFile]:
        return [WithFile("file", self.ref.address[:1])]


def with_file(kind: str) -> Callable[[tuple[str, ...]], Knob]:
    return lambda address: cast("Knob", WithFile(kind, address))


KINDS = {kind: KnobKind(with_file(kind), resource) for kind, resource in (("cpu", Resource.CORES), ("disk", Resource.DISK))}


@pytest.mark.parametrize(
    ("ref", "back"),
    [
        (KnobRef("cpu", ("/a",)), False),
        (KnobRef("cpu", ("/a", "later")), False),
        (KnobRef("cpu", ("/b",)), True),
        (KnobRef("cpu", ("/c/old",)), True),
        (KnobRef("disk", ("/a",)), True),
        (KnobRef("cpu", ("/unknown",)), True),
        (KnobRef("cpu", ("/theirs",)), False),
        (KnobRef("file", ("/a",)), False),
        (KnobRef("file", ("/b",)), True),
    ],
    ids=[
        *("written", "same-holder", "holder-left", "holder-moved", "not-managed", "nobody-knows", "yielded"),
        *("changed-besides", "changed-besides-by-who-left"),
    ],
)
def test_whose_knobs_go_back(ref: KnobRef, *, back: bool) -> None:
    """Those of services that left or moved, and of resources that are not managed any more; nobody else's."""
    wanted = {
        KnobRef("cpu", ("/a",)): Wanted("a", "1"),
        KnobRef("cpu", ("/a", "later")): Wanted("a", "1"),
        KnobRef("cpu", ("/b",)): Wanted("b", "1"),
        KnobRef("cpu", ("/c/old",)): Wanted("c", "1"),
        KnobRef("disk", ("/a",)): Wanted("a", "1"),
    }
    earlier = Earlier(
        in_force(wanted=wanted, yielded=frozenset({KnobRef("cpu", ("/theirs",))})),
        left(members={"a": ("/a",), "b": ("/b",), "c": ("/c/old",), BEST_EFFORT: ()}),
    )
    members = {"a": ("/a",), "c": ("/c/new",), BEST_EFFORT: ()}
    leavers = Leavers(earlier, members, frozenset({KnobRef("cpu", ("/a",))}), frozenset({Resource.CORES}), KINDS)
    assert leavers(ref) is back


def test_the_place_of_traffic_classes_is_another_only_on_another_device() -> None:
    """Services, ports, jobs, the rate and its steps change in place; another device, namespace or class above does not."""
    settings = ControlSettings(
        (ServiceSettings("a", 10, ("/a",)), ServiceSettings("b", 10, ("/b",))),
        (BestEffortSettings("job", ("/job",)),),
        NodeSettings(network=NetworkSettings("eth0", 10**9)),
    )
    a, b = settings.services
    same = [
        replace(settings, services=(b, replace(a, target_ns=99, ports=(80,)))),
        replace(settings, best_effort=()),
        replace(settings, node=NodeSettings(network=NetworkSettings("eth0", 2 * 10**9, step_bits_per_s=10**8))),
    ]
    others = [
        replace(settings, node=NodeSettings(network=network))
        for network in (
            None,
            NetworkSettings("eth1", 10**9),
            NetworkSettings("eth0", 10**9, "space"),
            NetworkSettings("eth0", 10**9, parent="1:30"),
        )
    ]
    assert {network_place(one) for one in same} == {network_place(settings)}
    assert len({network_place(one) for one in (settings, *others)}) == 1 + len(others)
    assert members_of(settings) == {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/job",)}

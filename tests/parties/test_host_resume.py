"""The host platform at a restart: it goes on from what is in force, and waits for slow writes before it leaves."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from parties.enforcer import Outcome
from parties.host import POLL_AT_START_NS, HostPlatform, Monitors, StoppedError, refs_at_start
from parties.in_force import InForce, read_in_force
from parties.knob import Effect, KnobRef, KnobWrite
from parties.model import (
    BEST_EFFORT,
    IDLE,
    Core,
    Decision,
    Domain,
    Holder,
    Move,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    Usage,
)
from parties.placement import Placement
from parties.record import Timing
from parties.resume import InForceFile
from parties.upkeep import Upkeep

MS = 1_000_000
CORES = PoolKey(Resource.CORES, 0)
NODE = Node("four", (Domain(0, tuple(Core(cpu, (cpu,)) for cpu in range(4))),), {CORES: Pool(CORES, 4000, 1000, 1000)})
HELD = Partition({CORES: {"web": 2000, BEST_EFFORT: 1000, IDLE: 1000}})
EARLIER = Placement(HELD, {"web": (1, 3), BEST_EFFORT: (0,), IDLE: (2,)}, {})


class Knob:
    def __init__(self, name: str) -> None:
        self.ref = KnobRef("cpus", (name,))


class Parts:
    """A core actuator, an enforcer whose first writes take a while, and monitors that see nothing."""

    best_effort_idle_class = False

    def __init__(self, polls_until_done: int = 0) -> None:
        self.planned: list[Placement] = []
        self.applied: list[str] = []
        self.left = polls_until_done
        self.pending = False

    def writes(self, placement: Placement, _before: Placement | None) -> Sequence[KnobWrite]:
        self.planned.append(placement)
        return [KnobWrite(cast("Any", Knob(holder)), str(cpus), holder, Effect.NEUTRAL) for holder, cpus in placement.cpus.items()]

    def idle_class_writes(self) -> Sequence[KnobWrite]:
        return [KnobWrite(cast("Any", Knob("idle-class")), "1", BEST_EFFORT, Effect.TAKE)]

    def warnings(self) -> tuple[str, ...]:
        return ()

    def apply(self, plan: Sequence[KnobWrite], _now_ns: int) -> Outcome:
        self.applied += [write.knob.ref.address[0] for write in plan]
        if self.left:
            self.pending = True
            return Outcome(MoveStatus.PENDING, ticket=1)
        return Outcome(MoveStatus.DONE)

    def poll(self, _now_ns: int) -> Sequence[tuple[int, Outcome]]:
        self.left -= self.pending
        if self.pending and self.left <= 0:
            self.pending = False
            return [(1, Outcome(MoveStatus.DONE, ticket=1))]
        return []

    def drift(self, _now_ns: int) -> Sequence[Any]:
        return []

    def note_change(self, service: str, now_ns: int) -> None:
        """Nobody asks."""

    def sample(self, _now_ns: int) -> Mapping[Holder, Usage]:
        return {}


class Sleeps(selectors.DefaultSelector):
    """Time passes only here."""

    now_ns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now_ns += round((timeout or 0) * 1e9)
        return []


def platform_of(parts: Parts, alive: Callable[[int], None] = lambda _now_ns: None) -> tuple[HostPlatform, Sleeps]:
    sleeps = Sleeps()
    platform = HostPlatform(
        NODE,
        [Service("web", QosTarget(10))],
        actuators=cast("Any", {Resource.CORES: parts}),
        enforcer=cast("Any", parts),
        monitors=Monitors(*cast("Any", (parts, parts, parts))),
        selector=sleeps,
        sources=selectors.DefaultSelector(),
        events=lambda _level, _text: None,
        upkeep=Upkeep((), cast("Any", parts)),
        alive=alive,
        clock=lambda: sleeps.now_ns,
    )
    return platform, sleeps


def test_a_start_that_waits_for_slow_writes_gives_signs_of_life() -> None:
    """A watchdog that bears less than the start takes does not end it: there is one sign at least for each look."""
    signs: list[int] = []
    platform, sleeps = platform_of(Parts(polls_until_done=20), signs.append)
    platform.start(HELD, best_effort_idle_class=False, sharing={})
    assert sleeps.now_ns > 10 * POLL_AT_START_NS
    assert max(after - before for before, after in pairwise([0, *signs, sleeps.now_ns])) <= 2 * POLL_AT_START_NS


@pytest.mark.parametrize("looks", [0, 3])
def test_a_start_that_waits_for_slow_writes_heeds_a_stop_at_the_next_look(looks: int) -> None:
    """Asked before or while it waits, it ends within one look, in no failure, and plans nothing more."""
    parts, signs = Parts(polls_until_done=10_000), list[int]()

    def alive(now_ns: int) -> None:
        signs.append(now_ns)
        if len(signs) == looks:
            platform.stop()

    platform, sleeps = platform_of(parts, alive)
    if not looks:
        platform.stop()
    with pytest.raises(StoppedError):
        platform.start(HELD, best_effort_idle_class=False, sharing={})
    assert sleeps.now_ns <= looks * POLL_AT_START_NS
    assert bool(parts.applied) == bool(looks)


def test_cpus_stay_where_an_earlier_daemon_put_them() -> None:
    """A fresh start would place from CPU 0 upwards; going on keeps every holder where it is."""
    fresh, on = Parts(), Parts()
    platform_of(fresh)[0].start(HELD, best_effort_idle_class=False, sharing={})
    platform = platform_of(on)[0]
    platform.start(HELD, best_effort_idle_class=False, sharing={}, previous=EARLIER)
    assert fresh.planned[0].cpus["web"] == (0, 1)
    assert on.planned[0].cpus == EARLIER.cpus
    assert platform.placement == EARLIER


@pytest.mark.parametrize(("partition", "idle_class"), [(HELD, True), (HELD, False), (None, True)])
def test_the_knobs_of_a_start_are_told_before_it(partition: Partition | None, *, idle_class: bool) -> None:
    """Told and written are the same, and telling applies nothing."""
    parts = Parts()
    told = refs_at_start(NODE, cast("Any", {Resource.CORES: parts}), partition, EARLIER, best_effort_idle_class=idle_class)
    assert parts.applied == []
    platform_of(parts)[0].start(partition, best_effort_idle_class=idle_class, sharing={}, previous=EARLIER)
    assert {ref.address[0] for ref in told} == set(parts.applied)


@pytest.mark.parametrize(("polls", "through"), [(3, True), (10_000, False)])
def test_slow_writes_are_waited_for_before_leaving_and_not_for_ever(polls: int, *, through: bool) -> None:
    """What is through by then is in the partition that is handed on; what is not stays as before."""
    parts = Parts()
    platform, sleeps = platform_of(parts)
    platform.start(HELD, best_effort_idle_class=False, sharing={})
    parts.left = polls
    platform.apply([Move(1, CORES, IDLE, "web", 1000, Reason.UPSIZE_FROM_IDLE)])
    before_ns = sleeps.now_ns
    platform.settle(5_000 * MS)
    assert platform.placement is not None
    assert platform.placement.partition.amount(CORES, "web") == (3000 if through else 2000)
    assert sleeps.now_ns - before_ns <= 5_000 * MS


# The file of what is in force


def test_the_file_is_written_when_something_changed_and_only_then(tmp_path: Path) -> None:
    """Made and written once for each change, not for each tick."""
    made, changes = list[int](), [0]
    path = tmp_path / "in-force.json"

    def in_force() -> InForce:
        made.append(changes[0])
        return InForce("boot", "shape", 7, "parties", EARLIER)

    file = InForceFile(path, in_force, lambda: changes[0], lambda _level, _text: None)
    tick = Observation(0, 1, {}, HELD), Decision((), Reason.HOLD_TARGETS_MET), Timing(0, 0, 0)
    for change in (0, 0, 1, 1, 1, 2):
        changes[0] = change
        file.tick(*tick)
    assert made == [0, 1, 2]
    assert read_in_force(path).placement == EARLIER


def test_a_file_that_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path) -> None:
    """The run goes on; as soon as it can be written it is."""
    told: list[str] = []
    directory = tmp_path / "gone"
    file = InForceFile(
        directory / "in-force.json",
        lambda: InForce("boot", "shape", 7, "parties", EARLIER),
        lambda: 1,
        lambda level, text: told.append(f"{level}: {text}"),
    )
    assert [file.keep() for _ in range(3)] == [False] * 3
    assert len(told) == 1
    assert "No such file or directory" in told[0]
    directory.mkdir()
    assert file.keep() is True
    assert read_in_force(directory / "in-force.json").placement == EARLIER

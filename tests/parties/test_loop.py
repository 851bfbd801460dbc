"""The loop's schedule, its order of work and its counting, on a platform of plain values with a clock of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from parties.loop import Loop
from parties.membership import Membership
from parties.model import (
    BEST_EFFORT,
    IDLE,
    Core,
    Decision,
    Domain,
    Holder,
    LatencyView,
    Move,
    MoveOutcome,
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
    ServiceObservation,
    ServiceState,
)
from parties.record import Timing

MS = 1_000_000
CORES = PoolKey(Resource.CORES, 0)
NODE = Node("two", (Domain(0, (Core(1, (1,)),)),), {CORES: Pool(CORES, 1000, 50, 100)})
SERVICE = Service("web", QosTarget(10 * MS))


class VirtualPlatform:
    """A platform whose time passes only when it is told to; ``delays`` are what holding a tick costs."""

    node = NODE

    def __init__(self, *, delays: Sequence[int] = (), states: Sequence[ServiceState] = (), stop_after: int = 1_000) -> None:
        self.time_ns = 0
        self.delays = list(delays)
        self.states = list(states)
        self.stop_after = stop_after
        self.partition = Partition({CORES: {"web": 400, BEST_EFFORT: 500, IDLE: 100}})
        self.calls: list[str] = []
        self.waited: list[int] = []

    def now_ns(self) -> int:
        return self.time_ns

    def wait_until(self, deadline_ns: int) -> bool:
        self.waited.append(deadline_ns)
        self.time_ns = max(self.time_ns, deadline_ns)
        return len(self.waited) <= self.stop_after

    def start(self, partition: Partition | None, *, best_effort_idle_class: bool, sharing: Mapping[str, Holder]) -> None:
        raise NotImplementedError

    def observe(self, tick: int) -> Observation:
        self.calls.append(f"observe {tick}")
        state = self.states.pop(0) if self.states else ServiceState.OK
        self.time_ns += self.delays.pop(0) if self.delays else 0
        view = LatencyView(state, 5 * MS, 5 * MS, fresh=True)
        return Observation(self.time_ns, tick, {"web": ServiceObservation(view)}, self.partition)

    def apply(self, moves: Sequence[Move]) -> None:
        self.calls.append(f"apply {len(moves)}")
        self.partition = self.partition.after(moves)

    def close(self) -> None:
        raise NotImplementedError


class TakeOneStep:
    """A policy that gives the service one step from the best-effort pool at each tick."""

    name = "take-one-step"
    best_effort_idle_class = True
    sharing: Mapping[str, Holder] = MappingProxyType({})

    def initial(self) -> Partition | None:
        return None

    def decide(self, observation: Observation) -> Decision:
        move = Move(observation.tick, CORES, BEST_EFFORT, "web", 50, Reason.UPSIZE_FROM_BEST_EFFORT)
        return Decision((move,), Reason.UPSIZE_FROM_BEST_EFFORT, "web")


class Listening:
    def __init__(self) -> None:
        self.heard: list[tuple[int, Decision, Timing]] = []

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        self.heard.append((observation.tick, decision, timing))


def loop_on(platform: VirtualPlatform, listener: Listening, *, grace_ns: int = 1_000 * MS) -> Loop:
    membership = Membership(NODE, [SERVICE], grace_ns=grace_ns)
    return Loop(platform, TakeOneStep(), interval_ns=500 * MS, membership=membership, listeners=(listener,), phase_ns=0)


def test_deadlines_lie_on_an_absolute_schedule() -> None:
    """A tick that takes 120 ms does not shift the ones after it."""
    platform = VirtualPlatform(delays=[120 * MS] * 5)
    loop_on(platform, Listening()).run(ticks=5)
    assert platform.waited == [500 * MS * n for n in range(1, 6)]


def test_ticks_fall_shortly_after_the_windows_of_the_clients_end() -> None:
    """Whenever the run begins, ticks lie 10 ms after multiples of the interval, where all windows have arrived."""
    platform = VirtualPlatform()
    platform.time_ns = 12_345 * MS
    membership = Membership(NODE, [SERVICE], grace_ns=0)
    Loop(platform, TakeOneStep(), interval_ns=500 * MS, membership=membership).run(ticks=2)
    assert platform.waited == [12_510 * MS, 13_010 * MS]


def test_missed_ticks_are_skipped_and_counted_not_caught_up() -> None:
    """A tick that takes 1.7 s costs the three that fell due meanwhile: one is held late, two are missed."""
    platform, listener = VirtualPlatform(delays=[1_700 * MS]), Listening()
    loop = loop_on(platform, listener)
    loop.run(ticks=3)
    assert [tick for tick, _, _ in listener.heard] == [1, 4, 5]
    assert loop.timings.missed == 2
    assert listener.heard[1][2].lateness_ns == 1_200 * MS
    assert platform.waited == [500 * MS, 1_000 * MS, 2_500 * MS]


def test_each_tick_observes_decides_applies_and_tells() -> None:
    """Order of work in a tick, and the policy's moves reach the platform."""
    platform, listener = VirtualPlatform(), Listening()
    loop_on(platform, listener).run(ticks=2)
    assert platform.calls == ["observe 1", "apply 1", "observe 2", "apply 1"]
    assert platform.partition.amount(CORES, "web") == 500
    assert all(decision.reason is Reason.UPSIZE_FROM_BEST_EFFORT for _, decision, _ in listener.heard)


def test_a_stop_request_ends_the_run_before_the_next_tick() -> None:
    """No tick is held once the platform was asked to stop."""
    platform = VirtualPlatform(stop_after=3)
    loop = loop_on(platform, Listening())
    loop.run()
    assert loop.timings.ticks == 3


def test_an_absent_service_gives_back_after_the_grace_time_and_is_admitted_when_it_returns() -> None:
    """Absent: held for the grace time, then down to the floor; back: up to what it had, from idle first and then best effort."""
    absent, listener = ServiceState.ABSENT, Listening()
    platform = VirtualPlatform(states=[absent] * 4 + [ServiceState.OK])
    loop_on(platform, listener, grace_ns=1_400 * MS).run(ticks=5)
    reasons = [decision.reason for _, decision, _ in listener.heard]
    assert reasons[:3] == [Reason.UPSIZE_FROM_BEST_EFFORT] * 3
    assert reasons[3:] == [Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED]
    released, admitted = listener.heard[3][1].moves, listener.heard[4][1].moves
    assert [(move.giver, move.taker, move.amount) for move in released] == [("web", BEST_EFFORT, 450)]
    assert [(move.giver, move.amount) for move in admitted] == [(IDLE, 100), (BEST_EFFORT, 350)]
    platform.partition.check(NODE, [SERVICE])


def test_a_refused_admission_is_asked_for_again_and_not_for_ever() -> None:
    """What a slow write stood in the way of comes again two seconds later; after six refusals the policy is left to it."""
    membership = Membership(NODE, [SERVICE], grace_ns=0)
    refused: tuple[MoveOutcome, ...] = ()
    asked = []
    for tick in range(60):
        state = ServiceState.OK if tick else ServiceState.ABSENT
        partition = Partition({CORES: {"web": 100, BEST_EFFORT: 900} if tick else {"web": 600, BEST_EFFORT: 400}})
        seen = {"web": ServiceObservation(LatencyView(state))}
        decision = membership.decide(Observation((tick + 1) * 500 * MS, tick, seen, partition, outcomes=refused))
        moves = decision.moves if decision is not None and tick else ()
        refused = tuple(MoveOutcome(move, MoveStatus.REFUSED) for move in moves)
        asked += [(tick, move.amount) for move in moves]
    assert [amount for _, amount in asked] == [asked[0][1]] * 6
    assert [tick for tick, _ in asked] == [1, 6, 11, 16, 21, 26]


def test_who_goes_again_before_it_had_back_what_it_had_is_still_owed_it() -> None:
    """A refused admission, a second absence, and a return: it is asked for the whole of what it had at first."""
    membership = Membership(NODE, [SERVICE], grace_ns=0)
    asked: list[tuple[Move, ...]] = []
    for tick, state in enumerate([ServiceState.ABSENT, ServiceState.OK, ServiceState.ABSENT, ServiceState.OK]):
        partition = Partition({CORES: {"web": 100, BEST_EFFORT: 900} if tick else {"web": 600, BEST_EFFORT: 400}})
        seen = {"web": ServiceObservation(LatencyView(state))}
        refused = tuple(MoveOutcome(move, MoveStatus.REFUSED) for move in asked[-1]) if tick == 2 else ()
        decision = membership.decide(Observation((tick + 1) * 500 * MS, tick, seen, partition, outcomes=refused))
        asked.append(decision.moves if decision is not None else ())
    assert [move.amount for move in asked[1]] == [move.amount for move in asked[3]] != []


@pytest.mark.parametrize(("best_effort", "kept", "expected"), [(0, 0, 0), (50, 0, 50), (170, 0, 150), (170, 100, 50), (50, 100, 0)])
def test_admission_takes_only_what_is_there_in_whole_steps(best_effort: int, kept: int, expected: int) -> None:
    """A returning service is not given what nobody has, nor what best effort is to keep."""
    pool = dataclasses.replace(NODE.pools[CORES], best_effort_floor=kept)
    membership = Membership(dataclasses.replace(NODE, pools={CORES: pool}), [SERVICE], grace_ns=0)

    def seen(state: ServiceState, partition: Partition) -> Observation:
        return Observation(0, 1, {"web": ServiceObservation(LatencyView(state))}, partition)

    membership.decide(seen(ServiceState.ABSENT, Partition({CORES: {"web": 600, BEST_EFFORT: 400}})))
    left = Partition({CORES: {"web": 100, BEST_EFFORT: best_effort, "other": 900 - best_effort}})
    decision = membership.decide(seen(ServiceState.OK, left))
    given = sum(move.amount for move in decision.moves) if decision else 0
    assert given == expected


def test_the_policy_hears_of_a_refusal_that_came_while_the_loop_decided_in_its_stead() -> None:
    """An outcome in the interval of a release is not lost: it stands in the next observation that the policy gets, once."""
    refused = MoveOutcome(Move(1, CORES, BEST_EFFORT, "web", 50, Reason.UPSIZE_FROM_BEST_EFFORT), MoveStatus.REFUSED, "busy")
    heard: list[tuple[MoveOutcome, ...]] = []

    class Refusing(VirtualPlatform):
        def observe(self, tick: int) -> Observation:
            observation = super().observe(tick)
            return replace(observation, outcomes=(refused,)) if tick == 2 else observation

    class Hearing(TakeOneStep):
        def decide(self, observation: Observation) -> Decision:
            heard.append(observation.outcomes)
            return Decision((), Reason.HOLD_TARGETS_MET)

    platform = Refusing(states=[ServiceState.OK, ServiceState.ABSENT])
    listener = Listening()
    membership = Membership(NODE, [SERVICE], grace_ns=0)
    Loop(platform, Hearing(), interval_ns=500 * MS, membership=membership, listeners=(listener,)).run(ticks=5)
    assert [decision.reason for _, decision, _ in listener.heard[1:3]] == [Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED]
    assert heard == [(), (refused,), ()]

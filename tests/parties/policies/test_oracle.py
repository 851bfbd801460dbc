"""Oracle as a policy: it brings about what the search found, and asks again when a load has changed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.interfaces import Policy
from parties.model import (
    BEST_EFFORT,
    IDLE,
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
from parties.policies import Foresight, NeedsModelError, UnknownPolicyError, policy_named
from parties.policies.fair import fair_start
from parties.settings import PartiesSettings

CORES, CACHE, FREQUENCY = (PoolKey(resource, 0) for resource in (Resource.CORES, Resource.CACHE, Resource.FREQUENCY))
NODE = Node(
    "small",
    (),
    {
        CORES: Pool(CORES, total=6000, step=1000, floor=1000),
        CACHE: Pool(CACHE, total=6, step=1, floor=1),
        FREQUENCY: Pool(FREQUENCY, levels=(10, 20, 30)),
    },
)
SERVICES = (Service("a", QosTarget(10)), Service("b", QosTarget(10)))
HOLDERS = ("a", "b", BEST_EFFORT, IDLE)


def partition(cores: tuple[int, ...], ways: tuple[int, ...], levels: tuple[int, ...]) -> Partition:
    """Of a, b, best effort and idle."""
    return Partition(
        {
            CORES: dict(zip(HOLDERS, (count * 1000 for count in cores), strict=True)),
            CACHE: dict(zip(HOLDERS, ways, strict=True)),
            FREQUENCY: dict(zip(HOLDERS[:3], levels, strict=True)),
        }
    )


FEW = partition((2, 2, 2, 0), (1, 1, 4, 0), (20, 20, 30))
MANY = partition((3, 2, 1, 0), (3, 2, 1, 0), (30, 20, 10))


@dataclass
class Model:
    """A search whose answers are written down, by the load of a; and the loads, which a test sets."""

    answers: Mapping[float, Partition | None]
    loads: dict[str, float] = field(default_factory=lambda: {"a": 100.0, "b": 50.0})
    asked: list[float] = field(default_factory=list)

    def solve(self, loads_rps: Mapping[str, float]) -> Partition | None:
        self.asked.append(loads_rps["a"])
        return self.answers.get(loads_rps["a"])

    def policy(self, *, best_effort: bool = True) -> Policy:
        make = policy_named("oracle", foresight=Foresight(self, lambda _now_ns: dict(self.loads)))
        return make(NODE, SERVICES, best_effort=best_effort, settings=PartiesSettings(), rng=random.Random(1))  # noqa: S311 - replayable


def seen(
    held: Partition, outcomes: tuple[MoveOutcome, ...] = (), state: ServiceState = ServiceState.OK, tick: int = 1
) -> Observation:
    views = {name: ServiceObservation(LatencyView(state, 8, 8, fresh=True)) for name in ("a", "b")}
    return Observation(tick * 500, tick, views, held, outcomes)


def test_it_starts_with_what_the_search_found() -> None:
    """No move is needed, and the search is asked once for one load."""
    model = Model({100.0: FEW})
    policy = model.policy()
    assert policy.initial() == FEW
    decision = policy.decide(seen(FEW))
    assert (decision.moves, decision.reason) == ((), Reason.HOLD_SOLVED)
    assert decision.slack == {"a": pytest.approx(0.2), "b": pytest.approx(0.2)}
    assert model.asked == [100.0]


def test_where_there_is_no_allocation_it_starts_fair_and_holds() -> None:
    """The fair start, and the reason that there is none."""
    policy = Model({}).policy()
    assert policy.initial() == fair_start(NODE, SERVICES, best_effort=True)
    decision = policy.decide(seen(FEW))
    assert (decision.moves, decision.reason) == ((), Reason.HOLD_NO_ALLOCATION)


def test_another_load_brings_another_allocation_in_one_interval() -> None:
    """All moves at once; each takes from who has too much, and the frequency from nobody."""
    model = Model({100.0: FEW, 200.0: MANY})
    policy = model.policy()
    model.loads["a"] = 200.0
    decision = policy.decide(seen(FEW))
    assert decision.reason is Reason.SOLVED_ALLOCATION
    assert set(decision.moves) == {
        Move(1, CORES, BEST_EFFORT, "a", 1000, Reason.SOLVED_ALLOCATION),
        Move(1, CACHE, BEST_EFFORT, "a", 2, Reason.SOLVED_ALLOCATION),
        Move(1, CACHE, BEST_EFFORT, "b", 1, Reason.SOLVED_ALLOCATION),
        Move(1, FREQUENCY, None, "a", 10, Reason.SOLVED_ALLOCATION),
        Move(1, FREQUENCY, BEST_EFFORT, None, 20, Reason.SOLVED_ALLOCATION),
    }


@pytest.mark.parametrize(("load", "asked"), [(101.9, False), (98.1, False), (102.1, True), (97.9, True)])
def test_it_asks_again_when_a_load_is_two_percent_off(load: float, asked: bool) -> None:  # noqa: FBT001 - a row of the table
    """A smaller change is not worth a search."""
    model = Model({100.0: FEW})
    policy = model.policy()
    model.loads["a"] = load
    policy.decide(seen(FEW))
    assert model.asked == ([100.0, load] if asked else [100.0])


def test_a_change_of_load_to_and_from_nothing_is_noticed() -> None:
    """No load is no reason to divide by it."""
    model = Model({0.0: FEW, 5.0: MANY}, {"a": 0.0, "b": 1.0})
    policy = model.policy()
    model.loads["a"] = 5.0
    assert policy.decide(seen(FEW)).moves
    assert model.asked == [0.0, 5.0]


def test_what_is_pending_is_waited_for_and_what_was_refused_is_asked_for_again() -> None:
    """A pool with a move under way gets none; the others go on; a move that failed comes again."""
    model = Model({100.0: MANY})
    policy = model.policy()
    first = policy.decide(seen(FEW))
    pending = tuple(MoveOutcome(move, MoveStatus.PENDING) for move in first.moves if move.pool == CORES)
    assert {move.pool for move in policy.decide(seen(FEW, pending)).moves} == {CACHE, FREQUENCY}
    almost = Partition({**MANY.amounts, CORES: FEW.amounts[CORES]})
    assert policy.decide(seen(almost, pending)).reason is Reason.HOLD_PENDING
    refused = tuple(MoveOutcome(move, MoveStatus.REFUSED) for move in first.moves)
    assert policy.decide(seen(FEW, refused)).moves == first.moves


def test_it_waits_while_a_service_is_absent() -> None:
    """The loop gives away what an absent service holds, and Oracle does not take it back meanwhile."""
    decision = Model({100.0: MANY}).policy().decide(seen(FEW, state=ServiceState.ABSENT))
    assert (decision.moves, decision.reason) == ((), Reason.HOLD_NOT_JUDGED)


@given(st.data())
def test_every_way_between_two_partitions_conserves_at_each_move(data: st.DataObject) -> None:
    """One move after another: nobody gives what it has not, the sums stay, and the end is what was wanted."""

    def shares() -> st.SearchStrategy[tuple[int, ...]]:
        return st.permutations([1, 1, 2, 2]).map(tuple) | st.permutations([0, 1, 2, 3]).map(tuple)

    def drawn() -> Partition:
        levels = st.tuples(*[st.sampled_from([10, 20, 30])] * 3)
        return partition(data.draw(shares()), data.draw(shares()), data.draw(levels))

    have, want = drawn(), drawn()
    moves = Model({100.0: want}).policy().decide(seen(have)).moves
    now = have
    for move in moves:
        now = now.after([move])
        now.check(NODE, [])
    assert {key: {h: n for h, n in held.items() if n} for key, held in now.amounts.items()} == {
        key: {h: n for h, n in held.items() if n} for key, held in want.amounts.items()
    }


def test_what_holders_the_found_allocation_does_not_name_have_goes_to_those_it_names() -> None:
    """A pool that idle still has steps of, with an allocation that leaves nothing idle."""
    want = Partition({CORES: {"a": 4000, "b": 2000}})
    have = Partition({CORES: {"a": 1000, "b": 1000, IDLE: 4000}, CACHE: FEW.amounts[CACHE]})
    moves = Model({100.0: want}).policy().decide(seen(have)).moves
    assert {(move.giver, move.taker, move.amount) for move in moves} == {(IDLE, "a", 3000), (IDLE, "b", 1000)}


def test_without_a_model_it_says_what_it_needs() -> None:
    """One message that says what is missing and what to do; whoever catches unknown policies catches it too."""
    with pytest.raises(NeedsModelError, match=r"needs a model of the services.*parties simulate") as raised:
        policy_named("oracle")
    assert isinstance(raised.value, UnknownPolicyError)


def test_a_slip_in_its_name_is_answered_with_it() -> None:
    """The nearest name is told though the registry has no factory for it."""
    with pytest.raises(UnknownPolicyError, match="did you mean oracle"):
        policy_named("oracel")

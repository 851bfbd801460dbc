"""A shadow's enforcer: it takes plans for carried out, counts them, and never calls what would write."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.knob import Effect, KnobError, KnobKind, KnobRef, KnobWrite
from parties.model import BEST_EFFORT, Decision, Move, MoveStatus, Observation, Partition, PoolKey, Reason, Resource
from parties.record import Timing
from parties.shadow import ShadowEnforcer, ShadowReport


class Strict:
    """A knob that may be read and compared, and nothing else."""

    def __init__(self, name: str = "a", value: str | None = "1", *, kind: str = "file", error: int = 0) -> None:
        self.ref = KnobRef(kind, (name,))
        self.value = value
        self.error = error
        self.reads = 0

    def read(self) -> str | None:
        self.reads += 1
        if self.error:
            raise KnobError(self.error, "a fault")
        return self.value

    def same(self, wanted: str, found: str | None) -> bool:
        return wanted == found

    def write(self, value: str) -> NoReturn:
        raise AssertionError(f"a shadow wrote {value!r} to {self.ref}")

    def restore(self, old: str | None) -> NoReturn:
        raise AssertionError(f"a shadow restored {self.ref} to {old!r}")


def never_made(address: tuple[str, ...]) -> NoReturn:
    raise AssertionError(f"a shadow made a knob at {address}")


KINDS: Mapping[str, KnobKind] = {"file": KnobKind(never_made), "bus": KnobKind(never_made, slow=True)}


@pytest.fixture
def shadow() -> ShadowEnforcer:
    return ShadowEnforcer(KINDS)


def test_what_differs_is_counted_once_and_what_holds_is_not(shadow: ShadowEnforcer) -> None:
    """As the enforcer skips what is in force, and then goes on from what it would have written."""
    knob, other = Strict("a", "1"), Strict("b", None)
    plan = [KnobWrite(knob, "1", "web", Effect.NEUTRAL), KnobWrite(other, "5", "web", Effect.GIVE)]
    assert shadow.apply(plan, 0).status is MoveStatus.DONE
    assert shadow.counted.writes == {"file": 1}
    shadow.apply(plan, 1)
    assert shadow.counted.writes == {"file": 1}
    shadow.apply([KnobWrite(other, "6", "web", Effect.GIVE)], 2)
    assert shadow.counted.writes == {"file": 2}
    assert (knob.reads, other.reads) == (1, 1)


def test_writes_whose_end_nobody_can_foretell_are_counted_apart(shadow: ShadowEnforcer) -> None:
    """Slow kinds, and slow writes of any kind."""
    shadow.apply(
        [
            KnobWrite(Strict("a", kind="bus"), "2", "web", Effect.TAKE),
            KnobWrite(Strict("b"), "2", "web", Effect.TAKE, slow=True),
            KnobWrite(Strict("c"), "2", "web", Effect.GIVE),
        ],
        0,
    )
    assert shadow.counted.writes == {"bus": 1, "file": 2}
    assert shadow.counted.unknown == {"bus": 1, "file": 1}


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.EPERM, errno.EIO])
def test_a_plan_with_a_knob_that_cannot_be_read_is_refused_as_a_whole(shadow: ShadowEnforcer, error: int) -> None:
    """Nothing of it counts as done, and the cause is counted."""
    good = Strict("good")
    outcome = shadow.apply(
        [KnobWrite(good, "2", "web", Effect.TAKE), KnobWrite(Strict("bad", error=error), "2", "job", Effect.GIVE)], 0
    )
    assert outcome.status is MoveStatus.REFUSED
    assert "bad: cannot be read: a fault" in outcome.detail
    assert shadow.counted.writes == {}
    assert shadow.counted.refused == {outcome.detail: 1}


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ENODEV, errno.ESRCH])
def test_a_vanished_knob_can_be_taken_from_and_not_given_to(shadow: ShadowEnforcer, error: int) -> None:
    """As for the enforcer."""
    gone = Strict("gone", error=error)
    assert shadow.apply([KnobWrite(gone, "2", "web", Effect.TAKE)], 0).status is MoveStatus.DONE
    assert shadow.apply([KnobWrite(gone, "2", "web", Effect.GIVE)], 0).status is MoveStatus.REFUSED
    assert shadow.counted.writes == {}


def test_nothing_is_ever_pending_or_drifting(shadow: ShadowEnforcer) -> None:
    """What others write is no concern of one who manages nothing."""
    knob = Strict("a")
    shadow.apply([KnobWrite(knob, "2", "web", Effect.GIVE)], 0)
    knob.value = "99"
    assert (list(shadow.poll(1)), list(shadow.drift(1))) == ([], [])


WRITES = st.tuples(st.sampled_from("abc"), st.sampled_from("123"), st.sampled_from(Effect), st.booleans())


@given(st.lists(st.lists(WRITES, min_size=1, max_size=4), max_size=8))
def test_whatever_is_planned_nothing_is_written(plans: list[list[tuple[str, str, Effect, bool]]]) -> None:
    """Knobs whose write raises, some vanished, some unreadable: every plan ends in done or refused."""
    knobs = {"a": Strict("a"), "b": Strict("b", error=errno.ENOENT), "c": Strict("c", error=errno.EIO)}
    shadow = ShadowEnforcer(KINDS)
    for number, plan in enumerate(plans):
        writes = [KnobWrite(knobs[name], value, "web", effect, slow) for name, value, effect, slow in plan]
        assert shadow.apply(writes, number).status in (MoveStatus.DONE, MoveStatus.REFUSED)
    assert knobs["a"].reads <= 1
    assert set(shadow.counted.writes) <= {"file"}


def test_moves_are_counted_by_resource_reason_and_holder(shadow: ShadowEnforcer) -> None:
    """A frequency move has nobody on the other side."""
    cores, frequency = PoolKey(Resource.CORES, 0), PoolKey(Resource.FREQUENCY, 0)
    moves = (
        Move(1, cores, BEST_EFFORT, "web", 50, Reason.UPSIZE_FROM_BEST_EFFORT),
        Move(1, cores, "store", BEST_EFFORT, 50, Reason.DOWNSIZE_LARGEST_SLACK),
        Move(1, frequency, None, "web", 100, Reason.UPSIZE_FREQUENCY),
    )
    report = ShadowReport()
    report.tick(Observation(0, 1, {}, Partition({})), Decision(moves, Reason.UPSIZE_FREQUENCY), Timing(0, 0, 0))
    assert report.as_json(shadow.counted) == {
        "moves_by_resource": {"cores": 2, "frequency": 1},
        "moves_by_reason": {"downsize-largest-slack": 1, "upsize-frequency": 1, "upsize-from-best-effort": 1},
        "moves_by_giver": {BEST_EFFORT: 1, "store": 1},
        "moves_by_taker": {BEST_EFFORT: 1, "web": 2},
        "knob_writes": {},
        "unknown_writes": {},
        "refused_plans": {},
    }

"""The rule for foreign writers, and groups that vanish and return."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parties.enforcer import Enforcer
from parties.foreign import DriftState
from parties.journal import Journal, read_journal
from parties.knob import Effect, KnobRef, KnobWrite
from parties.model import NS_PER_S, MoveStatus

TICK_NS = NS_PER_S // 2
Board = Any  # of undo_kit, which only its fixture can import
Rig = tuple[Board, Any, Enforcer]


@pytest.fixture
def rig(undo_kit: ModuleType, tmp_path: Path) -> Rig:
    """A board with a = 4 (was 5) and b = 6 (was 5) under management."""
    board = undo_kit.Board({"a": "5", "b": "5"})
    slow = undo_kit.FakeSlowWriter(board)
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), slow)
    plan = [KnobWrite(board.knob("a"), "4", "A", Effect.TAKE), KnobWrite(board.knob("b"), "6", "B", Effect.GIVE)]
    assert enforcer.apply(plan, 0).status is MoveStatus.DONE
    return board, slow, enforcer


def play(
    board: Board, enforcer: Enforcer, ticks: int, foreign: Callable[[int], None], start: int = 0
) -> list[tuple[int, DriftState]]:
    """The drift events of so many half-second ticks, ``foreign`` acting before each."""
    events = []
    for tick in range(start, start + ticks):
        foreign(tick)
        events += [(tick, drift.state) for drift in enforcer.drift(tick * TICK_NS)]
        enforcer.poll(tick * TICK_NS)
    return events


def test_no_drift_no_event(rig: Rig) -> None:
    """Values in force are read, and nothing is said or written."""
    board, _, enforcer = rig
    writes = len(board.log)
    assert enforcer.drift(1) == []
    assert len(board.log) == writes


def test_foreign_value_is_named_then_reasserted(rig: Rig) -> None:
    """A foreign value is reported at once with what was expected and found, and overwritten a second later."""
    board, _, enforcer = rig
    board.values["a"] = "9"
    [drift] = enforcer.drift(0)
    assert (drift.ref, drift.holder, drift.expected, drift.found) == (KnobRef("board", ("a",)), "A", "4", "9")
    assert drift.state is DriftState.NOTICED
    assert enforcer.drift(NS_PER_S - 1) == []
    assert board.values["a"] == "9"
    assert [drift.state for drift in enforcer.drift(NS_PER_S)] == [DriftState.REASSERTED]
    assert board.values["a"] == "4"
    assert enforcer.drift(NS_PER_S + 1) == []


def test_obstinate_writer_is_yielded_to(rig: Rig, tmp_path: Path) -> None:
    """After three re-assertions at growing distances the knob is left alone, by drift and by plans, and so journalled."""
    board, _, enforcer = rig

    def foreign(tick: int) -> None:
        board.values["a"] = "9"

    events = play(board, enforcer, 40, foreign)
    noticed, done = DriftState.NOTICED, DriftState.REASSERTED
    assert events == [(0, noticed), (2, done), (3, noticed), (7, done), (8, noticed), (16, done), (17, DriftState.YIELDED)]
    assert enforcer.yielded == {KnobRef("board", ("a",))}
    assert board.values["a"] == "9"
    plan = [KnobWrite(board.knob("a"), "3", "A", Effect.TAKE), KnobWrite(board.knob("b"), "7", "B", Effect.GIVE)]
    outcome = enforcer.apply(plan, 100 * TICK_NS)
    assert outcome.status is MoveStatus.REFUSED
    assert "foreign writer" in outcome.detail
    assert board.values == {"a": "9", "b": "6"}
    entries = read_journal(tmp_path / "journal.jsonl").entries
    assert {ref.address[0]: entry.yielded for ref, entry in entries.items()} == {"a": True, "b": False}


def test_rare_foreign_writes_are_always_reasserted(rig: Rig) -> None:
    """Somebody who writes every 25 s is never yielded to: at most two of our writes fall into a minute's window."""
    board, _, enforcer = rig

    def foreign(tick: int) -> None:
        if tick % 50 == 0:
            board.values["a"] = "9"

    events = play(board, enforcer, 1000, foreign)
    assert [state for _, state in events].count(DriftState.REASSERTED) == 20
    assert enforcer.yielded == frozenset()


def test_plan_over_a_foreign_value_counts_as_reasserting(rig: Rig) -> None:
    """Plans must not carry on the fight that the rule forbids: three of them over foreign values, and the knob is yielded."""
    board, _, enforcer = rig
    for tick in range(3):
        board.values["a"] = "9"
        enforcer.drift(tick)
        plan = [KnobWrite(board.knob("a"), str(3 - tick % 2), "A", Effect.TAKE)]
        assert enforcer.apply(plan, tick).status is MoveStatus.DONE
    board.values["a"] = "9"
    assert [drift.state for drift in enforcer.drift(4)] == [DriftState.YIELDED]


def test_vanished_and_made_anew(rig: Rig, tmp_path: Path) -> None:
    """A group that goes is reported once; when it returns its own value is journalled anew and ours is written."""
    board, _, enforcer = rig
    del board.values["a"]
    events = play(board, enforcer, 3, lambda _tick: None)
    assert events == [(0, DriftState.VANISHED)]
    assert list(enforcer.expected) == [KnobRef("board", ("b",))]
    board.values["a"] = "8"
    [drift] = enforcer.drift(3 * TICK_NS)
    assert (drift.state, drift.found, drift.detail) == (DriftState.RETURNED, "8", "")
    assert board.values["a"] == "4"
    assert read_journal(tmp_path / "journal.jsonl").entries[KnobRef("board", ("a",))].old == "8"
    assert enforcer.drift(4 * TICK_NS) == []


def test_same_knob_back_keeps_its_first_value(rig: Rig, tmp_path: Path) -> None:
    """What returns with our value in it was not made anew: the journal keeps what was there before us."""
    board, _, enforcer = rig
    del board.values["a"]
    enforcer.drift(0)
    board.values["a"] = "4"
    assert [drift.state for drift in enforcer.drift(1)] == [DriftState.RETURNED]
    assert read_journal(tmp_path / "journal.jsonl").entries[KnobRef("board", ("a",))].old == "5"


def test_taken_while_away(rig: Rig) -> None:
    """What was taken from a vanished group is in force when it returns."""
    board, _, enforcer = rig
    del board.values["a"]
    enforcer.drift(0)
    plan = [KnobWrite(board.knob("a"), "1", "A", Effect.TAKE), KnobWrite(board.knob("b"), "9", "B", Effect.GIVE)]
    assert enforcer.apply(plan, 1).status is MoveStatus.DONE
    board.values["a"] = "8"
    enforcer.drift(2)
    assert board.values == {"a": "1", "b": "9"}


def test_knob_never_seen_before_it_vanished_is_journalled_on_return(rig: Rig, tmp_path: Path) -> None:
    """Even if it happens to hold the wanted value when it first appears."""
    board, _, enforcer = rig
    plan = [KnobWrite(board.knob("c"), "2", "C", Effect.TAKE)]
    assert enforcer.apply(plan, 0).status is MoveStatus.DONE
    board.values["c"] = "2"
    enforcer.drift(1)
    assert read_journal(tmp_path / "journal.jsonl").entries[KnobRef("board", ("c",))].old == "2"


def test_unreadable_is_said_once_and_never_rolled_back_to(rig: Rig) -> None:
    """A knob that cannot be read is reported once; plans on it are refused rather than rolled back to nothing."""
    board, _, enforcer = rig
    board.unreadable = {"a"}
    assert play(board, enforcer, 5, lambda _tick: None) == [(0, DriftState.UNREADABLE)]
    assert enforcer.apply([KnobWrite(board.knob("a"), "3", "A", Effect.TAKE)], 9).status is MoveStatus.REFUSED
    board.unreadable = set()
    assert enforcer.drift(10) == []
    assert enforcer.apply([KnobWrite(board.knob("a"), "3", "A", Effect.TAKE)], 11 * NS_PER_S).status is MoveStatus.DONE


def test_drift_of_a_slow_kind_is_reasserted_by_the_slow_writer(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Re-asserting a memory limit may reclaim: it is not done on the tick, and its plan's ticket is nobody's business."""
    board = undo_kit.Board({"a": "5"})
    slow = undo_kit.FakeSlowWriter(board)
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), slow)
    enforcer.apply([KnobWrite(board.knob("a"), "4", "A", Effect.TAKE, slow=True)], 0)
    enforcer.poll(0)
    board.values["a"] = "9"
    enforcer.drift(0)
    enforcer.drift(NS_PER_S)
    assert board.values["a"] == "9"
    assert enforcer.poll(NS_PER_S) == []
    assert board.values["a"] == "4"


def test_knobs_of_a_pending_plan_are_no_drift(rig: Rig) -> None:
    """A value that is just being changed is not mistaken for a foreign one."""
    board, slow, enforcer = rig
    slow.hold = True
    enforcer.apply([KnobWrite(board.knob("a"), "3", "A", Effect.TAKE, slow=True)], 0)
    board.values["a"] = "3"
    assert enforcer.drift(1) == []


def test_failing_reassertion_says_why(rig: Rig) -> None:
    """A re-assertion that the kernel refuses is reported with the kernel's words."""
    board, _, enforcer = rig
    board.values["a"] = "9"
    enforcer.drift(0)
    board.faults = {len(board.log): (errno.EPERM, False)}
    [drift] = enforcer.drift(NS_PER_S)
    assert drift.state is DriftState.REASSERTED
    assert "Operation not permitted" in drift.detail
    assert enforcer.expected[KnobRef("board", ("a",))] == "4"

"""What the enforcer says is wanted, and the rule for foreign writers as it is set."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parties.enforcer import Enforcer
from parties.foreign import Drift, DriftState, told
from parties.in_force import Wanted
from parties.journal import JOURNAL_NAME, Journal, read_journal
from parties.knob import Effect, KnobKind, KnobRef, KnobWrite
from parties.model import NS_PER_S, MoveStatus, Resource
from parties.settings import ForeignAction, ForeignSettings

Board = Any  # of undo_kit, which only its fixture can import
Rig = tuple[Board, Any, Enforcer]
A, B, C = (KnobRef("board", (name,)) for name in "abc")


@pytest.fixture
def rig(undo_kit: ModuleType, tmp_path: Path) -> Rig:
    """A = 4 (was 5, holder web), b = 6 (was unset, holder web), c = 7 (was 5, holder other)."""
    board = undo_kit.Board({"a": "5", "b": None, "c": "5"})
    slow = undo_kit.FakeSlowWriter(board)
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), slow)
    assert enforcer.apply([write(board, "a", "4"), write(board, "b", "6"), write(board, "c", "7", "other")], 0).status is DONE
    return board, slow, enforcer


DONE, REFUSED, PENDING = MoveStatus.DONE, MoveStatus.REFUSED, MoveStatus.PENDING


def write(board: Board, name: str, value: str, holder: str = "web", *, slow: bool = False) -> KnobWrite:
    return KnobWrite(board.knob(name), value, holder, Effect.NEUTRAL, slow)


def journalled(directory: Path) -> set[KnobRef]:
    return set(read_journal(directory / JOURNAL_NAME).entries)


def test_changes_tell_when_to_say_what_is_wanted(rig: Rig) -> None:
    """Every plan that ends and drift that is an event count; a tick in which nothing happens does not."""
    board, _, enforcer = rig
    seen = enforcer.changes
    enforcer.drift(1)
    enforcer.poll(1)
    assert enforcer.changes == seen
    for change in (
        lambda: enforcer.apply([write(board, "a", "3")], 2),
        lambda: (board.values.pop("b"), enforcer.drift(3)),
    ):
        change()
        assert enforcer.changes > seen
        seen = enforcer.changes


def test_wanted_keeps_what_is_away(rig: Rig) -> None:
    """Vanished and yielded knobs are wanted still, and told apart."""
    board, _, enforcer = rig
    del board.values["a"]
    enforcer.drift(1)
    assert enforcer.wanted == {A: Wanted("web", "4"), B: Wanted("web", "6"), C: Wanted("other", "7")}
    assert (enforcer.vanished, set(enforcer.expected)) == (frozenset({A}), {B, C})


def test_yielding_at_once(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Where the rule is to yield, the first foreign value is left, and the operator is told whose moves are refused from now on."""
    board = undo_kit.Board({"a": "5"})
    kinds = {"board": KnobKind(lambda _: board.knob("a"), Resource.MEMORY)}
    rule = ForeignSettings(action=ForeignAction.YIELD)
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(board), foreign_rule=rule, kinds=kinds)
    enforcer.apply([write(board, "a", "4")], 0)
    board.values["a"] = "9"
    writes = len(board.log)
    [drift] = enforcer.drift(1)
    assert (drift.state, drift.resource) == (DriftState.YIELDED, Resource.MEMORY)
    level, text = told(drift)
    assert level == "warning"
    assert "left to them from now on, also at restore; moves of memory that need it are refused" in text
    assert enforcer.drift(99 * NS_PER_S) == []
    assert len(board.log) == writes
    assert "left to a foreign writer" in enforcer.apply([write(board, "a", "3")], 100 * NS_PER_S).detail


def test_rule_is_as_it_is_set(undo_kit: ModuleType, tmp_path: Path) -> None:
    """The first wait, how often, and within what time come from the settings."""
    board = undo_kit.Board({"a": "5"})
    rule = ForeignSettings(first_ns=3 * NS_PER_S, most=1, window_ns=10 * NS_PER_S)
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(board), foreign_rule=rule)
    enforcer.apply([write(board, "a", "4")], 0)

    def at(second: int, found: str | None = None) -> list[DriftState]:
        board.values["a"] = found or board.values["a"]
        return [drift.state for drift in enforcer.drift(second * NS_PER_S)]

    assert [at(0, "9"), at(2), at(3)] == [[DriftState.NOTICED], [], [DriftState.REASSERTED]]
    assert [at(14, "9"), at(17), at(18, "9")] == [[DriftState.NOTICED], [DriftState.REASSERTED], [DriftState.YIELDED]]


@pytest.mark.parametrize("state", DriftState)
def test_every_event_has_its_words(state: DriftState) -> None:
    """Each says knob, holder and detail; what we did ourselves is information, the rest a warning."""
    level, text = told(Drift(A, "web", "4", "9", state, "why"))
    assert text.startswith("board:a of web: ")
    assert text.endswith(" (why)")
    assert level == ("info" if state in (DriftState.REASSERTED, DriftState.RETURNED) else "warning")

"""Holders that leave get their values back while the daemon runs on; what is wanted, and how the rule for others is set."""

from __future__ import annotations

import errno
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parties.enforcer import Enforcer
from parties.foreign import Drift, DriftState, told
from parties.in_force import Wanted
from parties.journal import JOURNAL_NAME, Journal, JournalError, read_journal
from parties.knob import Effect, KnobKind, KnobRef, KnobWrite
from parties.model import NS_PER_S, MoveStatus, Resource
from parties.restore import Fate, restore
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


def test_leaving_puts_back_and_forgets(rig: Rig, tmp_path: Path) -> None:
    """The leaver's values are as before at once, unset included; they are no longer wanted, watched or journalled."""
    board, _, enforcer = rig
    enforcer.release("web", 1)
    assert board.values == {"a": "5", "b": None, "c": "7"}
    assert {(one.ref, one.fate) for one in enforcer.released()} == {(A, Fate.RESTORED), (B, Fate.RESTORED)}
    assert enforcer.released() == []
    assert enforcer.wanted == {C: Wanted("other", "7")}
    assert journalled(tmp_path) == {C}
    board.values["a"] = "9"
    assert enforcer.drift(2) == []


def test_coming_back_is_journalled_anew(rig: Rig, tmp_path: Path) -> None:
    """What somebody set between leaving and coming back is what a restore brings back."""
    board, _, enforcer = rig
    enforcer.release("web", 1)
    board.values["a"] = "8"
    assert enforcer.apply([write(board, "a", "3")], 2).status is DONE
    assert read_journal(tmp_path / JOURNAL_NAME).entries[A].old == "8"


def test_what_a_plan_has_under_way_is_put_back_after_it(rig: Rig) -> None:
    """A slow write of the leaver's ends first; meanwhile nothing new is written for it, and then all is as before."""
    board, slow, enforcer = rig
    slow.hold = True
    assert enforcer.apply([write(board, "a", "3", slow=True)], 1).status is PENDING
    enforcer.release("web", 2)
    assert board.values == {"a": "4", "b": "6", "c": "7"}
    assert "web has left" in enforcer.apply([write(board, "b", "1")], 3).detail
    assert "web has left" in enforcer.apply([write(board, "c", "1")], 3).detail
    slow.hold = False
    enforcer.poll(4)  # the write ends; then its knob goes the same way
    enforcer.poll(5)
    assert board.values == {"a": "5", "b": None, "c": "7"}
    assert {one.fate for one in enforcer.released()} == {Fate.RESTORED}
    assert enforcer.apply([write(board, "b", "1", slow=True)], 6).status is PENDING


def test_slow_kinds_are_put_back_off_the_tick(undo_kit: ModuleType, tmp_path: Path) -> None:
    """The slow writer brings them back; until it has, no plan may touch them."""
    board = undo_kit.Board({"a": "5"})
    slow = undo_kit.FakeSlowWriter(board)
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), slow, kinds={"board": KnobKind(lambda _: board.knob("a"), slow=True)})
    enforcer.apply([write(board, "a", "4")], 0)
    enforcer.poll(0)
    slow.hold = True
    enforcer.release("web", 1)
    assert (board.values["a"], enforcer.released()) == ("4", [])
    assert "being put back" in enforcer.apply([write(board, "a", "3", "new")], 2).detail
    slow.hold = False
    enforcer.poll(3)
    assert board.values["a"] == "5"
    assert [one.fate for one in enforcer.released()] == [Fate.RESTORED]
    assert journalled(tmp_path) == set()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO])
@pytest.mark.parametrize("slow_kind", [False, True])
def test_whatever_putting_back_fails_with(undo_kit: ModuleType, tmp_path: Path, number: int, *, slow_kind: bool) -> None:
    """It is named, stays in the journal unless the knob is gone, and the next restore brings it back."""
    board = undo_kit.Board({"a": "5"})
    table = {"board": KnobKind(lambda _: board.knob("a"), slow=slow_kind)}
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(board), kinds=table)
    enforcer.apply([write(board, "a", "4")], 0)
    enforcer.poll(0)
    board.faults = {len(board.log): (number, False)}
    enforcer.release("web", 1)
    enforcer.poll(1)
    [restored] = enforcer.released()
    gone = number in (errno.ENODEV, errno.ESRCH)
    assert restored.fate is (Fate.GONE if gone else Fate.FAILED)
    assert journalled(tmp_path) == (set() if gone else {A})
    if not gone:
        assert restore(tmp_path / JOURNAL_NAME, board.kinds()).complete
        assert board.values["a"] == "5"


def test_yielded_stays_with_whom_it_was_yielded_to(rig: Rig, tmp_path: Path) -> None:
    """A leaver's knob that somebody else has is not taken from them."""
    board, _, enforcer = rig
    journal = Journal(tmp_path, started_unix_ns=2)
    journal.mark_yielded(A)
    again = Enforcer(journal, rig[1])
    assert again.apply([write(board, "b", "3")], 1).status is DONE
    again._releases.begin(board.knob("a"), 2)
    again.release("web", 2)
    assert {(one.ref, one.fate) for one in again.released()} == {(A, Fate.YIELDED), (B, Fate.RESTORED)}
    assert board.values["a"] == "4"
    assert enforcer is not again


def test_journal_that_fails_while_putting_back(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The values are back all the same; that they are put back once more at the end does no harm."""
    board, _, enforcer = rig

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", broken)
        enforcer.release("web", 1)
    assert board.values == {"a": "5", "b": None, "c": "7"}
    assert restore(tmp_path / JOURNAL_NAME, board.kinds()).complete
    assert board.values == {"a": "5", "b": None, "c": "5"}


def test_never_written_is_nothing_to_put_back(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A holder whose first plan could not even be journalled leaves without a trace."""
    board = undo_kit.Board({"a": "5"})

    class Full(Journal):
        def save(self, entries: object) -> None:  # noqa: ARG002 - the journal's signature
            raise JournalError("full")

    enforcer = Enforcer(Full(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(board))
    assert enforcer.apply([write(board, "a", "4")], 0).status is REFUSED
    enforcer.release("web", 1)
    assert (board.log, enforcer.released()) == ([], [])


def test_changes_tell_when_to_say_what_is_wanted(rig: Rig) -> None:
    """Every plan that ends, drift that is an event, and a release count; a tick in which nothing happens does not."""
    board, _, enforcer = rig
    seen = enforcer.changes
    enforcer.drift(1)
    enforcer.poll(1)
    assert enforcer.changes == seen
    for change in (
        lambda: enforcer.apply([write(board, "a", "3")], 2),
        lambda: (board.values.pop("b"), enforcer.drift(3)),
        lambda: enforcer.release("web", 4),
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

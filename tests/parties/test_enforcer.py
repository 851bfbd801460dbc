"""Plans: order, skipping, roll-back, waiting for slow writes, back-off."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parties.enforcer import Backoff, Enforcer
from parties.journal import Journal, read_journal
from parties.knob import Effect, KnobRef, KnobWrite
from parties.model import NS_PER_S, MoveStatus

Board = Any  # of undo_kit, which only its fixture can import
Rig = tuple[Board, Any, Enforcer]


def ref(name: str) -> KnobRef:
    return KnobRef("board", (name,))


@pytest.fixture
def rig(undo_kit: ModuleType, tmp_path: Path) -> Callable[..., Rig]:
    """Makes a board of knobs, a slow writer and an enforcer on them."""

    def make(**values: str | None) -> Rig:
        board = undo_kit.Board(values)
        slow = undo_kit.FakeSlowWriter(board)
        return board, slow, Enforcer(Journal(tmp_path, started_unix_ns=1), slow)

    return make


def take(board: Board, name: str, value: int, *, slow: bool = False) -> KnobWrite:
    return KnobWrite(board.knob(name), str(value), name, Effect.TAKE, slow)


def give(board: Board, name: str, value: int, *, slow: bool = False) -> KnobWrite:
    return KnobWrite(board.knob(name), str(value), name, Effect.GIVE, slow)


def test_takes_come_before_gives(rig: Callable[..., Rig]) -> None:
    """A plan's takes are written before its gives, each kind in the order of the plan."""
    board, _, enforcer = rig(a="5", b="5", c="5", d="5")
    neutral = KnobWrite(board.knob("c"), "6", "c", Effect.NEUTRAL)
    outcome = enforcer.apply([give(board, "b", 7), neutral, take(board, "a", 4), take(board, "d", 4)], 0)
    assert outcome.status is MoveStatus.DONE
    assert [name for name, _ in board.log] == ["a", "d", "c", "b"]


def test_value_in_force_is_not_written(rig: Callable[..., Rig]) -> None:
    """What already holds, as the knob compares, is neither written nor read again."""
    board, _, enforcer = rig(a="5")
    assert enforcer.apply([give(board, "a", 5)], 0).status is MoveStatus.DONE
    reads = board.reads
    assert enforcer.apply([KnobWrite(board.knob("a"), "05", "a", Effect.GIVE)], 0).status is MoveStatus.DONE
    assert board.log == []
    assert board.reads == reads
    assert enforcer.expected == {ref("a"): "05"}


def test_old_value_is_on_disk_before_the_write(rig: Callable[..., Rig], tmp_path: Path) -> None:
    """At the moment of the first write the journal file has the knob's value, and it keeps that one."""
    board, _, enforcer = rig(a="5", b=None)
    seen = []
    board.watch = lambda: seen.append({r.address[0]: e.old for r, e in read_journal(tmp_path / "journal.jsonl").entries.items()})
    enforcer.apply([give(board, "a", 6), give(board, "b", 1)], 0)
    enforcer.apply([give(board, "a", 7)], 0)
    assert seen == [{"a": "5", "b": None}] * 3


def test_full_disk_refuses_the_plan(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the journal no knob is written; with room again the same plan goes through at once."""
    board, _, enforcer = rig(a="5", b="5")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        outcome = enforcer.apply([take(board, "a", 4), give(board, "b", 6)], 0)
    assert outcome.status is MoveStatus.REFUSED
    assert "No space left" in outcome.detail
    assert board.log == []
    assert enforcer.apply([take(board, "a", 4), give(board, "b", 6)], 0).status is MoveStatus.DONE


def test_failure_rolls_back_newest_first(rig: Callable[..., Rig]) -> None:
    """When a write is refused what was written comes back in reverse order, the refused one needing nothing."""
    board, _, enforcer = rig(a="5", b="5", c="0")
    board.faults = {2: (errno.EINVAL, False)}
    outcome = enforcer.apply([take(board, "a", 4), give(board, "b", 6), give(board, "c", 1)], 0)
    assert outcome.status is MoveStatus.REFUSED
    assert "board:c = '1' for c" in outcome.detail
    assert "Invalid argument" in outcome.detail
    assert board.log == [("a", "4"), ("b", "6"), ("c", "1"), ("b", "5"), ("a", "5")]
    assert board.values == {"a": "5", "b": "5", "c": "0"}
    assert enforcer.expected == {}


def test_ignored_write_is_noticed(rig: Callable[..., Rig], undo_kit: ModuleType) -> None:
    """A write that succeeds and changes nothing is a refusal: nothing is believed before it is read back."""
    board, _, enforcer = rig(a="5", b="5")
    board.faults = {1: (undo_kit.IGNORE, False)}
    outcome = enforcer.apply([take(board, "a", 4), give(board, "b", 6)], 0)
    assert outcome.status is MoveStatus.REFUSED
    assert "read back as '5'" in outcome.detail
    assert board.values == {"a": "5", "b": "5"}


def test_unset_value_comes_back_unset(rig: Callable[..., Rig]) -> None:
    """Rolling back a knob that was unset unsets it."""
    board, _, enforcer = rig(a=None, b="5")
    board.faults = {1: (errno.EIO, False)}
    enforcer.apply([give(board, "a", 6), give(board, "b", 6)], 0)
    assert board.values == {"a": None, "b": "5"}


def test_refused_write_is_not_repeated_every_tick(rig: Callable[..., Rig]) -> None:
    """The same refused write is tried again after 1 s, then 2 s; another value of the knob at once."""
    board, _, enforcer = rig(a="5")
    board.faults = dict.fromkeys(range(20), (errno.EBUSY, False))
    half = NS_PER_S // 2
    writes = []
    for tick in range(16):
        assert enforcer.apply([take(board, "a", 4)], tick * half).status is MoveStatus.REFUSED
        writes.append(len(board.log))
    assert writes == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4]
    before = len(board.log)
    enforcer.apply([take(board, "a", 3)], 16 * half)
    assert len(board.log) == before + 1


def test_failed_roll_back_is_retried_and_blocks(rig: Callable[..., Rig]) -> None:
    """A grown knob that cannot be shrunk again is named, keeps the giver shrunk, blocks both, and is retried with back-off."""
    board, _, enforcer = rig(a="5", b="5", c="5")
    board.faults = {2: (errno.EIO, False), 3: (errno.EIO, False)}  # giving to c, and shrinking b back
    outcome = enforcer.apply([take(board, "a", 4), give(board, "b", 6), give(board, "c", 6)], 0)
    assert outcome.status is MoveStatus.REFUSED
    assert set(outcome.uncertain) == {ref("a"), ref("b")}
    assert board.values == {"a": "4", "b": "6", "c": "5"}, "what a gave is not grown again while b has it"
    for name in ("a", "b"):
        blocked = enforcer.apply([give(board, name, 9)], 1)
        assert blocked.status is MoveStatus.REFUSED
        assert "uncertain" in blocked.detail
    assert enforcer.apply([take(board, "c", 4)], 1).status is MoveStatus.DONE, "other knobs go on"
    writes = len(board.log)
    board.faults = {writes: (errno.EIO, False), writes + 1: (errno.EIO, False)}
    assert enforcer.poll(NS_PER_S - 1) == []
    assert len(board.log) == writes
    enforcer.poll(NS_PER_S)
    enforcer.poll(3 * NS_PER_S - 1)
    assert len(board.log) == writes + 1
    enforcer.poll(3 * NS_PER_S)
    assert len(board.log) == writes + 2
    assert enforcer.poll(7 * NS_PER_S) == []
    assert board.values == {"a": "5", "b": "5", "c": "4"}
    assert enforcer.uncertain == frozenset()
    assert enforcer.apply([take(board, "a", 4), give(board, "b", 6)], 8 * NS_PER_S).status is MoveStatus.DONE


def test_backoff_ends_at_its_longest() -> None:
    """Waits double up to the longest."""
    backoff = Backoff(1, 60)
    waits = itertools.accumulate(range(7), lambda wait, _: backoff.after(wait), initial=backoff.after(0))
    assert list(waits) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_slow_take_holds_back_the_gives(rig: Callable[..., Rig]) -> None:
    """While a slow take is under way its plan's gives wait and plans on other knobs go on; then the plan is done."""
    board, slow, enforcer = rig(a="5", b="5", c="5", d="5")
    slow.hold = True
    outcome = enforcer.apply([give(board, "b", 6), take(board, "a", 4, slow=True)], 0)
    assert outcome.status is MoveStatus.PENDING
    assert board.values["b"] == "5"
    assert enforcer.apply([take(board, "c", 4), give(board, "d", 6)], 1).status is MoveStatus.DONE
    busy = enforcer.apply([take(board, "b", 4)], 1)
    assert busy.status is MoveStatus.REFUSED
    assert "being written" in busy.detail
    assert enforcer.poll(2) == []
    slow.hold = False
    [(ticket, ended)] = enforcer.poll(3)
    assert (ticket, ended.status) == (outcome.ticket, MoveStatus.DONE)
    assert board.values == {"a": "4", "b": "6", "c": "4", "d": "6"}


def test_refused_slow_take_gives_nothing(rig: Callable[..., Rig]) -> None:
    """A slow take that the kernel refuses ends its plan: nothing was given, what was taken fast comes back."""
    board, _, enforcer = rig(a="5", b="5", c="5")
    board.faults = {1: (errno.EBUSY, False)}
    outcome = enforcer.apply([take(board, "c", 4), take(board, "a", 4, slow=True), give(board, "b", 7)], 0)
    assert outcome.status is MoveStatus.PENDING
    [(_, ended)] = enforcer.poll(1)
    assert ended.status is MoveStatus.REFUSED
    assert "Device or resource busy" in ended.detail
    assert board.values == {"a": "5", "b": "5", "c": "5"}
    assert ("b", "7") not in board.log


def test_roll_back_of_a_slow_kind_is_slow_too(rig: Callable[..., Rig]) -> None:
    """Shrinking back what grew may take as long as any shrinking: it is left to the slow writer, and the plan stays pending."""
    board, slow, enforcer = rig(a="5", b="5", c="5")
    board.faults = {2: (errno.EIO, False)}
    enforcer.apply([take(board, "a", 4, slow=True), give(board, "b", 6), give(board, "c", 6)], 0)
    assert enforcer.poll(1) == []
    assert [value for _, _, value in slow.queue] == ["5"]
    [(_, ended)] = enforcer.poll(2)
    assert ended.status is MoveStatus.REFUSED
    assert board.values == {"a": "5", "b": "5", "c": "5"}


def test_vanished_holder_can_be_taken_from_but_not_given_to(rig: Callable[..., Rig]) -> None:
    """A group that is gone has nothing, so taking is done; giving would waste what somebody else lost."""
    board, _, enforcer = rig(a="5", b="5")
    enforcer.apply([take(board, "a", 4), give(board, "b", 6)], 0)
    del board.values["a"]
    assert enforcer.apply([take(board, "a", 3), give(board, "b", 7)], 1).status is MoveStatus.DONE
    assert board.values == {"b": "7"}
    assert enforcer.vanished == {ref("a")}
    refused = enforcer.apply([take(board, "b", 6), give(board, "a", 4)], 2)
    assert refused.status is MoveStatus.REFUSED
    assert "vanished" in refused.detail
    assert board.values == {"b": "7"}


def test_unreadable_knob_is_not_written(rig: Callable[..., Rig]) -> None:
    """A knob whose value cannot be read cannot be journalled, so it is left alone."""
    board, _, enforcer = rig(a="5")
    board.unreadable = {"a"}
    outcome = enforcer.apply([take(board, "a", 4)], 0)
    assert outcome.status is MoveStatus.REFUSED
    assert "cannot be read" in outcome.detail
    assert board.log == []


def test_any_error_of_an_actuator_is_a_refusal(rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not the kernel's rolls the plan back like any other."""
    board, _, enforcer = rig(a="5", b="5")
    put = board.put

    def broken(name: str, value: str) -> None:
        if name == "b":
            raise ZeroDivisionError("in an actuator")
        put(name, value)

    monkeypatch.setattr(board, "put", broken)
    outcome = enforcer.apply([take(board, "a", 4), give(board, "b", 6)], 0)
    assert outcome.status is MoveStatus.REFUSED
    assert "ZeroDivisionError: in an actuator" in outcome.detail
    assert board.values == {"a": "5", "b": "5"}

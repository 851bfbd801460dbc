"""The kit that fails every write of a plan, on knobs that are files; and that it notices what is not undone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from fault_kit import ERRNOS, fault_points

from parties.enforcer import Enforcer, Outcome
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, KnobKind, KnobKinds, KnobWrite
from parties.model import NS_PER_S, MoveStatus
from parties.restore import restore
from parties.slow_writer import SlowWriter

TOTAL = 12
BEFORE = {"a": "8", "b": "4"}


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """Two files that hold 12 together, and room for a third."""
    group = tmp_path / "group"
    group.mkdir()
    for name, value in BEFORE.items():
        (group / name).write_text(value)
    return group


@pytest.fixture
def plan(undo_kit: ModuleType, group: Path) -> Callable[[], list[KnobWrite]]:
    """The first gives three to b and one to c, which does not exist yet."""
    wanted = (("b", "7", Effect.GIVE), ("c", "1", Effect.GIVE), ("a", "4", Effect.TAKE))
    return lambda: [KnobWrite(undo_kit.FileKnob((str(group / name),)), value, name, effect) for name, value, effect in wanted]


def conserved(group: Path) -> Callable[[], None]:
    def check() -> None:
        held = {file.name: int(file.read_text()) for file in group.iterdir()}
        assert sum(held.values()) <= TOTAL, held

    return check


@pytest.mark.usefixtures("without_fsync")
def test_files(undo_kit: ModuleType, plan: Callable[[], list[KnobWrite]], group: Path, tmp_path: Path) -> None:
    """Three writes, seven errors, a hang and SIGKILL, each before and after the effect: all undone."""
    assert fault_points(plan, undo_kit.KINDS, tmp_path / "state", invariant=conserved(group)) == 3 * (len(ERRNOS) + 2) * 2


@pytest.mark.usefixtures("without_fsync")
def test_slow_files(undo_kit: ModuleType, plan: Callable[[], list[KnobWrite]], group: Path, tmp_path: Path) -> None:
    """Of a slow kind the enforcer learns of a write that never ends, and has to undo it."""
    kinds: KnobKinds = {"file": KnobKind(undo_kit.FileKnob, slow=True)}
    assert fault_points(plan, kinds, tmp_path / "state", invariant=conserved(group)) == 3 * (len(ERRNOS) + 2) * 2


def test_what_is_not_undone_is_noticed(undo_kit: ModuleType, plan: Callable[[], list[KnobWrite]], tmp_path: Path) -> None:
    """A knob that does not put back what it was fails, also one that forgets that it was unset."""

    class Forgetful(undo_kit.FileKnob):  # type: ignore[misc,name-defined]
        def restore(self, old: str | None) -> None:
            super().restore("1" if old is None else old)

    with pytest.raises(AssertionError, match=r"read back|restore left|without a fault"):
        fault_points(plan, {"file": KnobKind(Forgetful)}, tmp_path / "state", kills=False)


def test_more_than_there_is_is_noticed(undo_kit: ModuleType, group: Path, tmp_path: Path) -> None:
    """A plan that gives before it takes fails at the moment between."""

    def gives_first() -> list[KnobWrite]:
        wanted = (("b", "7", Effect.TAKE), ("a", "5", Effect.GIVE))
        return [KnobWrite(undo_kit.FileKnob((str(group / name),)), value, name, effect) for name, value, effect in wanted]

    with pytest.raises(AssertionError, match="'b': 7"):
        fault_points(gives_first, undo_kit.KINDS, tmp_path / "state", invariant=conserved(group), kills=False)


def test_a_process_that_hangs_holds_up_nobody(undo_kit: ModuleType, group: Path, tmp_path: Path) -> None:
    """A real write that never ends: its plan waits, others go on, past the limit it is refused, and restore has all as before."""
    writer = SlowWriter("undo_kit:KINDS", limit_ns=10 * NS_PER_S)
    try:
        enforcer = Enforcer(Journal(tmp_path / "state", started_unix_ns=1), writer, kinds=undo_kit.KINDS)
        a, b, c = (undo_kit.FileKnob((str(group / name),)) for name in "abc")
        slow = undo_kit.SlowFileKnob((str(group / "slow"),))
        pending = [KnobWrite(slow, "hang", "x", Effect.TAKE, slow=True), KnobWrite(b, "9", "b", Effect.GIVE)]
        assert enforcer.apply(pending, 0).status is MoveStatus.PENDING
        assert (
            enforcer.apply([KnobWrite(a, "1", "a", Effect.TAKE), KnobWrite(c, "2", "c", Effect.GIVE)], 1).status is MoveStatus.DONE
        )
        assert enforcer.poll(9 * NS_PER_S) == []
        assert (group / "b").read_text() == BEFORE["b"]
        ended: list[tuple[int, Outcome]] = []
        patience = time.monotonic() + 120
        while not ended and time.monotonic() < patience:
            ended = enforcer.poll(11 * NS_PER_S)
            time.sleep(0.005)
        assert ended[0][1].status is MoveStatus.REFUSED
        assert "timed out after 11.0 s" in ended[0][1].detail
    finally:
        writer.close()
    assert restore(tmp_path / "state" / JOURNAL_NAME, undo_kit.KINDS).complete
    assert {file.name: file.read_text() for file in group.iterdir()} == BEFORE

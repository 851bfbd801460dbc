"""Restoring: order, passes, boots, damage, and SIGKILL of the writer at any moment."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from parties.journal import JOURNAL_NAME, Journal, JournalError, read_journal
from parties.knob import KnobError, KnobKind, KnobKinds, KnobRef
from parties.restore import Fate, RestoreReport, restore

KILLS = 60


def ref(name: str) -> KnobRef:
    return KnobRef("board", (name,))


def write_journal(directory: Path, values: dict[str, str | None], proc: Path = Path("/proc")) -> Path:
    journal = Journal(directory, started_unix_ns=1, proc=proc)
    journal.save([(ref(name), value) for name, value in values.items()])
    journal.close()
    return journal.path


def fates(report: RestoreReport) -> dict[str, Fate]:
    return {entry.ref.address[0]: entry.fate for entry in report.entries}


def test_everything_comes_back_newest_first(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Changed, unset, untouched and vanished knobs each have their fate; the journal goes; a second run finds nothing to do."""
    board = undo_kit.Board({"a": "9", "b": "9", "c": "3"})
    path = write_journal(tmp_path, {"a": "1", "b": None, "c": "3", "gone": "4"})
    report = restore(path, board.kinds())
    assert report.complete
    assert fates(report) == {"gone": Fate.GONE, "c": Fate.UNCHANGED, "b": Fate.RESTORED, "a": Fate.RESTORED}
    assert board.log == [("b", None), ("a", "1")]
    assert board.values == {"a": "1", "b": None, "c": "3"}
    assert not path.exists()
    assert restore(path, board.kinds()) == RestoreReport(path)


def test_dry_run_writes_nothing(undo_kit: ModuleType, tmp_path: Path) -> None:
    """It tells what would be done, and the journal stays."""
    board = undo_kit.Board({"a": "9"})
    path = write_journal(tmp_path, {"a": "1"})
    report = restore(path, board.kinds(), dry_run=True)
    assert [(entry.fate, entry.detail) for entry in report.entries] == [(Fate.RESTORED, "from '9'")]
    assert board.log == []
    assert path.exists()


def test_failure_is_named_and_kept(undo_kit: ModuleType, tmp_path: Path) -> None:
    """What cannot be brought back is named with the cause, the rest comes back, and a later run tries only what is left."""
    board = undo_kit.Board({"a": "9", "b": "9"})
    board.faults = {0: (errno.EPERM, False)}
    path = write_journal(tmp_path, {"a": "1", "b": "2"})
    failing = dict.fromkeys(range(20), (errno.EPERM, False))
    board.faults = {n: fault for n, fault in failing.items() if n % 2 == 0}
    report = restore(path, board.kinds())
    assert fates(report) == {"b": Fate.FAILED, "a": Fate.RESTORED}
    assert "Operation not permitted" in report.of(Fate.FAILED)[0].detail
    assert list(read_journal(path).entries) == [ref("b")]
    board.faults = {}
    assert restore(path, board.kinds()).complete
    assert board.values == {"a": "1", "b": "2"}


def test_ignored_write_is_a_failure(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A write that succeeds and changes nothing has not restored anything."""
    board = undo_kit.Board({"a": "9"})
    board.faults = dict.fromkeys(range(20), (undo_kit.IGNORE, False))
    path = write_journal(tmp_path, {"a": "1"})
    report = restore(path, board.kinds())
    assert [(entry.fate, entry.detail) for entry in report.entries] == [(Fate.FAILED, "wrote '1', read back '9'")]
    assert path.exists()


def test_unknown_kind_is_named(tmp_path: Path) -> None:
    """An entry of a kind that this version does not know stays in the journal."""
    path = write_journal(tmp_path, {"a": "1"})
    report = restore(path, {})
    assert not report.complete
    assert "knows no knobs of kind 'board'" in report.entries[0].detail
    assert path.exists()


class Coupled:
    """Two knobs as the CPU controller has them: weights cannot be set in the idle class, and leaving it resets them."""

    values: ClassVar[dict[str, str]] = {}

    def __init__(self, address: tuple[str, ...]) -> None:
        self.name = address[0]

    @property
    def ref(self) -> KnobRef:
        return ref(self.name)

    def read(self) -> str | None:
        return self.values[self.name]

    def write(self, value: str) -> None:
        if self.name == "weight" and self.values["idle"] == "1":
            raise KnobError(errno.EINVAL, "Invalid argument")
        self.values[self.name] = value
        if self.name == "idle" and value == "0":
            self.values["weight"] = "1024"

    def same(self, wanted: str, found: str | None) -> bool:
        return wanted == found

    def restore(self, old: str | None) -> None:
        assert old is not None
        self.write(old)


@pytest.mark.parametrize("order", [("idle", "weight"), ("weight", "idle")])
def test_knobs_that_disturb_each_other(tmp_path: Path, order: tuple[str, str]) -> None:
    """In whichever order they were journalled, passes go on until both are as before."""
    Coupled.values = {"idle": "1", "weight": "3"}
    before = {"idle": "0", "weight": "500"}
    path = write_journal(tmp_path, {name: before[name] for name in order})
    kinds: KnobKinds = {"board": KnobKind(Coupled)}
    assert restore(path, kinds).complete
    assert Coupled.values == before


def test_other_boot_voids_the_entries(undo_kit: ModuleType, tmp_path: Path) -> None:
    """After a reboot what bears the old names is somebody else's; only kinds that outlive a boot are restored."""
    proc = tmp_path / "proc/sys/kernel/random"
    proc.mkdir(parents=True)
    (proc / "boot_id").write_text("one\n")
    for persistent, value, fate in ((True, "1", Fate.RESTORED), (False, "9", Fate.VOID)):
        board = undo_kit.Board({"a": "9"})
        path = write_journal(tmp_path, {"a": "1"}, proc=tmp_path / "proc")
        report = restore(path, board.kinds(persistent=persistent))
        assert report.complete
        assert fates(report) == {"a": fate}
        assert board.values == {"a": value}
        assert not path.exists()
    assert report.entries[0].detail == "of boot one"


def test_yielded_knob_is_left_alone(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A foreign writer that was yielded to keeps its value; one that was not does not."""
    board = undo_kit.Board({"a": "9", "b": "9"})
    path = write_journal(tmp_path, {"a": "1", "b": "2"})
    journal = Journal(tmp_path, started_unix_ns=2)
    journal.mark_yielded(ref("a"))
    report = restore(path, board.kinds())
    assert report.complete
    assert fates(report) == {"b": Fate.RESTORED, "a": Fate.YIELDED}
    assert board.values == {"a": "9", "b": "2"}


def test_damaged_journal_restores_the_rest(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Undamaged entries come back, the damaged line is named, and the file is set aside as evidence."""
    board = undo_kit.Board({"a": "9", "b": "9"})
    path = write_journal(tmp_path, {"a": "1", "b": "2"})
    path.write_bytes(path.read_bytes().replace(b'"old":"1"', b'"old":"7"'))
    report = restore(path, board.kinds())
    assert not report.complete
    assert report.corrupt == (f"{path} line 2: the checksum does not match",)
    assert board.values == {"a": "9", "b": "2"}
    assert report.set_aside is not None
    assert report.set_aside.exists()
    assert not path.exists()
    Journal(tmp_path, started_unix_ns=1).close()


def test_damaged_header_names_the_values(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Without the boot nothing is written, but every value that was journalled is named."""
    board = undo_kit.Board({"a": "9"})
    path = write_journal(tmp_path, {"a": "1"})
    path.write_bytes(b"x" + path.read_bytes())
    report = restore(path, board.kinds())
    assert not report.complete
    assert [(entry.ref, entry.old, entry.fate) for entry in report.entries] == [(ref("a"), "1", Fate.FAILED)]
    assert board.log == []


def test_interrupted_restore_can_be_run_again(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Interrupted at every write and before the journal is removed: the next run completes it."""
    before = {"a": "1", "b": None, "c": "3"}
    for crash_at in range(4):
        board = undo_kit.Board(dict.fromkeys(before, "9"))
        path = write_journal(tmp_path, before)

        def crash() -> None:
            if len(board.log) > crash_at:  # noqa: B023 - used up within its own turn
                raise KeyboardInterrupt

        board.watch = crash
        try:
            restore(path, board.kinds())
        except KeyboardInterrupt:
            assert path.exists()
        board.watch = lambda: None
        restore(path, board.kinds())
        assert board.values == before
        assert not path.exists()


def test_journal_that_cannot_be_put_away(undo_kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are back, and the message says what is not."""
    board = undo_kit.Board({"a": "9"})
    path = write_journal(tmp_path, {"a": "1"})

    def broken(fd: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(JournalError, match="Read-only file system; the values are back"):
        restore(path, board.kinds())
    assert board.values == {"a": "1"}


def kill_and_restore(undo_kit: ModuleType, directory: Path, seed: int) -> bool:
    """A daemon making moves, killed at a random moment, and restored. Whether any value had changed."""
    rng = random.Random(seed)  # noqa: S311 - values of a test
    group = directory / f"group-{seed}"
    group.mkdir()
    knobs = [undo_kit.FileKnob((str(group / f"knob-{n}"),)) for n in range(6)]
    for knob in knobs[:4]:
        knob.write(str(rng.randrange(1000)))
    before = snapshot(group)
    state = directory / f"state-{seed}"
    slow = ((undo_kit.SlowFileKnob((str(group / "slow"),)), random_delay), "undo_kit:KINDS") if seed % 10 == 1 else None
    undo_kit.killed_daemon(seed, (state, seed, [(knob, random_text) for knob in knobs], slow), 0.3 if slow else 0.03)
    changed = snapshot(group) != before
    if seed % 10 == 0:
        program = (
            "import sys; from pathlib import Path; from parties.restore import restore; from undo_kit import KINDS\n"
            "sys.exit(0 if restore(Path(sys.argv[1]), KINDS).complete else 1)"
        )
        subprocess.run([sys.executable, "-c", program, str(state / JOURNAL_NAME)], check=True)
    else:
        assert restore(state / JOURNAL_NAME, undo_kit.KINDS).complete
    assert snapshot(group) == before, f"seed {seed}"
    assert not (state / JOURNAL_NAME).exists()
    return changed


def random_delay(rng: random.Random) -> str:
    return str(rng.randrange(5))


def random_text(rng: random.Random) -> str:
    return str(rng.randrange(1000))


def snapshot(group: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(group.iterdir())}


def test_sigkill_at_any_moment(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A daemon killed at 60 random moments leaves nothing that a restore in another process does not bring back."""
    changed = sum(kill_and_restore(undo_kit, tmp_path, seed) for seed in range(KILLS))
    assert changed > KILLS // 2, "the kills came too early to prove anything"

"""Verify: every verdict, beside a daemon and without one, and that nothing is written for it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner, Result

from parties.cli import main
from parties.commands.directories import RUNTIME_DIRECTORY, Directories
from parties.commands.errors import STATE_DIRECTORY
from parties.in_force import IN_FORCE_NAME, InForce, Wanted, write_in_force
from parties.journal import JOURNAL_NAME, Journal, JournalContents, JournalEntry, JournalHeader, boot_id
from parties.knob import Knob, KnobKind, KnobKinds, KnobRef
from parties.lock import LOCK_NAME, RuntimeLock
from parties.model import Resource
from parties.settings import ExitPolicy, ExitSettings
from parties.verify import Verdict, Verification, Verified, Verifier, running_daemon

Board = Any  # of undo_kit, which only its fixture can import


def ref(name: str, kind: str = "board") -> KnobRef:
    return KnobRef(kind, (name,))


def kinds(board: Board, *, persistent: bool = False) -> KnobKinds:
    return {"board": KnobKind(lambda address: board.knob(address[0]), Resource.DISK, persistent=persistent, safe=lambda _: "50")}


def journal(*entries: JournalEntry, disk: ExitPolicy = ExitPolicy.RESTORE) -> JournalContents:
    header = JournalHeader("one", 7, 1)
    return JournalContents(header, {entry.ref: entry for entry in entries}, exit=ExitSettings(disk=disk))


IN_FORCE = InForce("one", "topology", 7, "parties", wanted={ref("a"): Wanted("web", "4")})


def verdict(
    board: Board, contents: JournalContents, in_force: InForce | None = None, *, boot: str = "one", persistent: bool = False
) -> list[tuple[str, Verdict]]:
    knobs = Verifier(kinds(board, persistent=persistent), in_force, contents, boot).verify()
    assert board.log == [], "verify wrote something"
    return [(knob.ref.address[0], knob.verdict) for knob in knobs]


A = JournalEntry(ref("a"), "1")


def test_beside_a_daemon(undo_kit: ModuleType) -> None:
    """As wanted (as the knob compares), not as wanted, gone, unreadable, left to somebody else."""
    for value, expected in (("04", Verdict.IN_FORCE), ("5", Verdict.DIFFERS), ("1", Verdict.DIFFERS), (None, Verdict.DIFFERS)):
        assert verdict(undo_kit.Board({"a": value}), journal(A), IN_FORCE) == [("a", expected)]
    assert verdict(undo_kit.Board({}), journal(A), IN_FORCE) == [("a", Verdict.VANISHED)]
    board = undo_kit.Board({"a": "4"})
    board.unreadable = {"a"}
    assert verdict(board, journal(A), IN_FORCE) == [("a", Verdict.UNREADABLE)]
    for in_force, entry in (
        (dataclasses.replace(IN_FORCE, yielded=frozenset({ref("a")})), A),
        (IN_FORCE, dataclasses.replace(A, yielded=True)),
    ):
        assert verdict(undo_kit.Board({"a": "9"}), journal(entry), in_force) == [("a", Verdict.YIELDED)]


def test_journalled_and_not_wanted_any_more(undo_kit: ModuleType) -> None:
    """Of a service that left: put back already, or not; a daemon's exit policy does not excuse it while it runs."""
    nobody = dataclasses.replace(IN_FORCE, wanted={})
    assert verdict(undo_kit.Board({"a": "1"}), journal(A), nobody) == [("a", Verdict.UNDONE)]
    for policy in ExitPolicy:
        assert verdict(undo_kit.Board({"a": "50"}), journal(A, disk=policy), nobody) == [("a", Verdict.LEFT_OVER)]


def test_what_changes_with_a_wanted_knob_is_not_left_over(undo_kit: ModuleType) -> None:
    """A knob that another one's writing changes, such as a drop-in, is in force as long as the other is wanted, and only then."""
    board = undo_kit.Board({"a": "4", "b": "6"})

    class ChangesB(undo_kit.BoardKnob):  # type: ignore[misc, name-defined]
        def journalled_first(self) -> Sequence[Knob]:
            return [board.knob("b")]

    def make(address: tuple[str, ...]) -> Knob:
        knob: Knob = ChangesB(board, "a") if address == ("a",) else board.knob(*address)
        return knob

    contents = journal(A, JournalEntry(ref("b"), "5"))
    for in_force, expected in ((IN_FORCE, Verdict.IN_FORCE), (dataclasses.replace(IN_FORCE, wanted={}), Verdict.LEFT_OVER)):
        found = Verifier({"board": KnobKind(make)}, in_force, contents, "one").verify()
        assert {knob.ref: knob.verdict for knob in found}[ref("b")] is expected


@pytest.mark.parametrize(
    ("policy", "value", "expected"),
    [
        (ExitPolicy.RESTORE, "1", Verdict.UNDONE),
        (ExitPolicy.RESTORE, "4", Verdict.LEFT_OVER),
        (ExitPolicy.HOLD, "4", Verdict.HELD),
        (ExitPolicy.HOLD, "1", Verdict.UNDONE),
        (ExitPolicy.SAFE, "50", Verdict.SAFE),
        (ExitPolicy.SAFE, "4", Verdict.LEFT_OVER),
    ],
)
def test_without_a_daemon(undo_kit: ModuleType, policy: ExitPolicy, value: str, expected: Verdict) -> None:
    """What is journalled is as before, as the exit policy says, or was not put back."""
    assert verdict(undo_kit.Board({"a": value}), journal(A, disk=policy)) == [("a", expected)]


def test_of_another_boot(undo_kit: ModuleType) -> None:
    """What bears the name now is somebody else's, unless the kind outlives a boot."""
    board = undo_kit.Board({"a": "4"})
    assert verdict(board, journal(A), boot="two") == [("a", Verdict.VANISHED)]
    assert verdict(board, journal(A), boot="two", persistent=True) == [("a", Verdict.LEFT_OVER)]


def test_unknown_kind(undo_kit: ModuleType) -> None:
    """A knob of another version is named rather than left out."""
    entry = JournalEntry(ref("a", "later-kind"), "1")
    assert verdict(undo_kit.Board({}), journal(entry)) == [("a", Verdict.UNKNOWN_KIND)]


def test_what_counts_as_a_difference() -> None:
    """A vanished group is normal; a knob that somebody else has, or that was not put back, is not."""
    differences = {one for one in Verdict if not Verification(None, (Verified(ref("a"), one),)).as_wanted}
    assert differences == {Verdict.DIFFERS, Verdict.UNREADABLE, Verdict.YIELDED, Verdict.LEFT_OVER, Verdict.UNKNOWN_KIND}
    assert not Verification(None, damaged=("line 2",)).as_wanted
    assert not Verification(1, silence="nothing said").as_wanted
    assert Verification(None).as_wanted


def test_who_holds_the_lock(tmp_path: Path) -> None:
    """The process is found without touching the lock; a lock file that nobody holds is nobody's."""
    assert running_daemon(tmp_path / LOCK_NAME) is None
    with RuntimeLock(tmp_path):
        assert running_daemon(tmp_path / LOCK_NAME) == os.getpid()
    assert running_daemon(tmp_path / LOCK_NAME) is None
    assert running_daemon(tmp_path / LOCK_NAME, proc=tmp_path) is None


def test_lines_of_waiting_processes_are_understood(tmp_path: Path) -> None:
    """Who waits for a lock does not hold it, and other sorts of lock on the same file are not ours."""
    lock = tmp_path / LOCK_NAME
    lock.write_text("")
    status = lock.stat()
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    (tmp_path / "locks").write_text(
        f"1: FLOCK  ADVISORY  WRITE 10 {file}9 0 EOF\n"
        f"2: POSIX  ADVISORY  WRITE 11 {file} 0 EOF\n"
        f"3: FLOCK  ADVISORY  WRITE 12 {file} 0 EOF\n"
        f"3: -> FLOCK  ADVISORY  WRITE 13 {file} 0 EOF\n"
    )
    assert running_daemon(lock, proc=tmp_path) == 12


# The command

Call = Callable[..., Result]


@pytest.fixture
def call(undo_kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """``parties verify`` with knobs that are files."""
    monkeypatch.setattr("parties.commands.verify.KINDS", {"file": KnobKind(undo_kit.FileKnob, Resource.DISK)})
    monkeypatch.setattr("parties.commands.verify._BETWEEN_LOOKS_S", 0)

    def called(*words: str) -> Result:
        directories = ["--state-directory", str(tmp_path / "state"), "--runtime-directory", str(tmp_path / "run")]
        return CliRunner().invoke(main, ["verify", *directories, *words])

    return called


@pytest.fixture
def knob(tmp_path: Path) -> Path:
    """A file that was "theirs" and is to be "ours", journalled and in force."""
    file = tmp_path / "knob"
    file.write_text("ours")
    state = Journal(tmp_path / "state", started_unix_ns=1)
    state.save([(ref(str(file), "file"), "theirs")])
    state.close()
    (tmp_path / "run").mkdir()
    wanted = {ref(str(file), "file"): Wanted("web", "ours")}
    write_in_force(tmp_path / "run" / IN_FORCE_NAME, InForce(boot_id(), "", os.getpid(), "parties", wanted=wanted))
    return file


def test_command_beside_a_daemon(call: Call, knob: Path, tmp_path: Path) -> None:
    """Exit code 0 as long as all is as wanted, 1 with what differs; wanted, before and actual are all told."""
    with RuntimeLock(tmp_path / "run"):
        result = call()
        assert (result.exit_code, result.output.splitlines()[-1]) == (0, f"daemon {os.getpid()}: 1 in force")
        knob.write_text("somebody's")
        result = call()
        assert result.exit_code == 1
        for words in ("DIFFERS", "web", "ours", "theirs", "somebody's", f"file:{knob}"):
            assert words in result.output
        told = json.loads(call("--json").output)
    assert (told["running_pid"], told["as_wanted"], told["counts"]["differs"]) == (os.getpid(), False, 1)
    assert told["knobs"] == [
        {
            "kind": "file",
            "address": [str(knob)],
            "verdict": "differs",
            "holder": "web",
            "wanted": "ours",
            "journalled": True,
            "before": "theirs",
            "actual": "somebody's",
            "detail": "",
        }
    ]


def test_command_without_a_daemon(call: Call, knob: Path, tmp_path: Path) -> None:
    """What was not put back is told with the whole command that does it; once it is, all is well."""
    result = call()
    assert result.exit_code == 1
    state, run = tmp_path / "state", tmp_path / "run"
    command = f"parties restore --state-directory {state} --runtime-directory {run}"
    assert result.output.splitlines()[-1] == f"no daemon in {run}: 1 NOT PUT BACK; run: {command}"
    assert Directories(STATE_DIRECTORY, run).options() == f" --runtime-directory {run}"
    assert Directories(STATE_DIRECTORY, RUNTIME_DIRECTORY).options() == ""
    knob.write_text("theirs")
    assert call().exit_code == 0


def test_command_with_a_daemon_that_says_nothing(call: Call, knob: Path, tmp_path: Path) -> None:
    """Without its word nothing is judged: another process's, none, a damaged one."""
    file = tmp_path / "run" / IN_FORCE_NAME
    with RuntimeLock(tmp_path / "run"):
        write_in_force(file, InForce(boot_id(), "", 1, "parties"))
        assert "has not said yet what it wants" in call().output
        file.write_text("{")
        assert "damaged" in call().output
        file.unlink()
        result = call()
    assert result.exit_code == 1
    assert "does not exist" in result.output
    assert knob.read_text() == "ours"


def test_command_looks_again_at_what_is_being_moved(
    call: Call, knob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A knob that was written before the daemon could say so is no difference a moment later."""
    knob.write_text("new")
    wanted = {ref(str(knob), "file"): Wanted("web", "new")}

    def daemon_says_so(_seconds: float) -> None:
        write_in_force(tmp_path / "run" / IN_FORCE_NAME, InForce(boot_id(), "", os.getpid(), "parties", wanted=wanted))

    monkeypatch.setattr("parties.commands.verify.time.sleep", daemon_says_so)
    with RuntimeLock(tmp_path / "run"):
        assert call().exit_code == 0


def test_command_with_a_damaged_journal(call: Call, knob: Path, tmp_path: Path) -> None:
    """Damaged lines are named and are a difference."""
    path = tmp_path / "state/journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b"theirs", b"thairs"))
    result = call()
    assert result.exit_code == 1
    assert "line 2: the checksum does not match" in result.output
    assert knob.exists()


def test_command_with_nothing(call: Call, tmp_path: Path) -> None:
    """No daemon, no journal: nothing is changed, as far as the places show that were looked at."""
    result = call()
    state, run = tmp_path / "state", tmp_path / "run"
    told = f"no daemon in {run}: nothing is changed (there is no {state / JOURNAL_NAME})\n"
    assert (result.exit_code, result.output) == (0, told)
    Journal(state, started_unix_ns=1).close()
    assert call().output == f"no daemon in {run}: nothing is changed ({state / JOURNAL_NAME})\n"
    assert json.loads(call("--json").output)["journal"] == str(state / JOURNAL_NAME)


@pytest.mark.parametrize(("columns", "broken"), [(400, False), (80, True)])
def test_no_path_is_broken(columns: int, *, broken: bool, call: Call, knob: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that is too narrow for the table each knob has two lines, and its path stays in one piece."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = unstyle(call().output)
    assert f"file:{knob}" in text
    assert ("  actual ours, before theirs" in text.splitlines()) is broken
    assert ("verdict" in text) is not broken

"""What becomes of values when the daemon ends: restored, held or made safe, and in every case never lost."""

from __future__ import annotations

import errno
import itertools
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from parties.cli import main
from parties.codec import to_json
from parties.journal import JOURNAL_NAME, Journal, JournalError, encode_record, read_journal
from parties.knob import Knob, KnobKind, KnobKinds, KnobRef
from parties.model import Resource
from parties.restore import Fate, RestoreReport, exit_policy_of, restore
from parties.resume import RESUME_NAME
from parties.settings import ExitPolicy, ExitSettings

Board = Any  # of undo_kit, which only its fixture can import
BEFORE: dict[str, str | None] = {"a": "1", "b": None, "c": "3"}
DURING = {"a": "7", "b": "8", "c": "9"}


def kinds(board: Board, safe: str | None = "50") -> KnobKinds:
    """The board's knobs are memory; "50" is safe."""
    return {"board": KnobKind(lambda address: board.knob(address[0]), Resource.MEMORY, safe=lambda _knob: safe)}


def ended(undo_kit: ModuleType, directory: Path, memory: ExitPolicy) -> tuple[Board, Path]:
    """A board after a run with this policy, and its journal."""
    journal = Journal(directory, started_unix_ns=1, exit_policy=ExitSettings(memory=memory))
    journal.save([(KnobRef("board", (name,)), value) for name, value in BEFORE.items()])
    journal.close()
    return undo_kit.Board(dict(DURING)), journal.path


def fates(report: RestoreReport) -> set[Fate]:
    return {entry.fate for entry in report.entries}


def test_held_values_stay_and_come_back_later(undo_kit: ModuleType, tmp_path: Path) -> None:
    """At exit nothing is written, as often as it is called; a restore by hand afterwards brings back the originals."""
    board, journal = ended(undo_kit, tmp_path, ExitPolicy.HOLD)
    for _ in range(2):
        report = restore(journal, kinds(board), at_exit=True)
        assert (report.complete, fates(report), board.log) == (True, {Fate.HELD}, [])
    assert fates(restore(journal, kinds(board))) == {Fate.RESTORED}
    assert board.values == BEFORE
    assert not journal.exists()


@pytest.mark.parametrize("safe", ["50", None])
def test_safe_values_are_set_and_originals_come_back_later(undo_kit: ModuleType, tmp_path: Path, safe: str | None) -> None:
    """At exit every knob gets its safe value, unset included; what was there before stays known."""
    board, journal = ended(undo_kit, tmp_path, ExitPolicy.SAFE)
    report = restore(journal, kinds(board, safe), at_exit=True)
    assert (report.complete, fates(report)) == (True, {Fate.SAFE})
    assert board.values == dict.fromkeys(BEFORE, safe)
    writes = len(board.log)
    assert fates(restore(journal, kinds(board, safe), at_exit=True)) == {Fate.SAFE}
    assert len(board.log) == writes
    restore(journal, kinds(board, safe))
    assert board.values == BEFORE
    assert not journal.exists()


def test_policy_of_a_knob() -> None:
    """By the kind's resource, the rest of the machine by "rest"; without a safe value, or unknown, it is restored."""
    settings = ExitSettings(memory=ExitPolicy.SAFE, rest=ExitPolicy.HOLD, cores=ExitPolicy.HOLD)

    def made(_address: tuple[str, ...]) -> Knob:
        raise AssertionError

    table = {
        "safe": KnobKind(made, Resource.MEMORY, safe=lambda _: None),
        "unsafe": KnobKind(made, Resource.MEMORY),
        "rest": KnobKind(made),
        "cores": KnobKind(made, Resource.CORES),
        "disk": KnobKind(made, Resource.DISK),
    }
    policies = {name: exit_policy_of(KnobRef(name, ()), table, settings) for name in (*table, "unknown")}
    assert policies == {
        "safe": ExitPolicy.SAFE,
        "unsafe": ExitPolicy.RESTORE,
        "rest": ExitPolicy.HOLD,
        "cores": ExitPolicy.HOLD,
        "disk": ExitPolicy.RESTORE,
        "unknown": ExitPolicy.RESTORE,
    }


def test_safe_value_that_is_refused_is_named_and_kept(undo_kit: ModuleType, tmp_path: Path) -> None:
    """What cannot be made safe is a failure like any other; so is a safe value that cannot be found out."""
    board, journal = ended(undo_kit, tmp_path, ExitPolicy.SAFE)
    board.faults = dict.fromkeys(range(99), (errno.EPERM, False))
    assert fates(restore(journal, kinds(board), at_exit=True)) == {Fate.FAILED}

    def unknown(_knob: Knob) -> str | None:
        raise OSError(errno.EIO, "Input/output error")

    table: KnobKinds = {"board": KnobKind(lambda address: board.knob(address[0]), Resource.MEMORY, safe=unknown)}
    assert fates(restore(journal, table, at_exit=True)) == {Fate.FAILED}
    board.faults = {}
    restore(journal, kinds(board))
    assert board.values == BEFORE


def test_a_later_run_goes_on_with_what_was_held(undo_kit: ModuleType, tmp_path: Path) -> None:
    """The oldest values count however many runs held theirs, and the last run's policy is the one that is carried out."""
    board, journal = ended(undo_kit, tmp_path, ExitPolicy.HOLD)
    restore(journal, kinds(board), at_exit=True)
    later = Journal(tmp_path, started_unix_ns=2, exit_policy=ExitSettings())
    later.save([(KnobRef("board", (name,)), value) for name, value in board.values.items()])
    later.close()
    assert fates(restore(journal, kinds(board), at_exit=True)) == {Fate.RESTORED}
    assert board.values == BEFORE


def test_interrupted_at_any_write(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Whatever policy is interrupted at whichever write: the originals come back."""
    for crash_at, policy in itertools.product(range(4), (ExitPolicy.SAFE, ExitPolicy.RESTORE, ExitPolicy.HOLD)):
        board, journal = ended(undo_kit, tmp_path / f"{crash_at}-{policy}", policy)

        def crash() -> None:
            if len(board.log) > crash_at:  # noqa: B023 - used up within its own turn
                raise KeyboardInterrupt

        board.watch = crash
        try:
            restore(journal, kinds(board), at_exit=True)
        except KeyboardInterrupt:
            assert journal.exists()
        board.watch = lambda: None
        restore(journal, kinds(board))
        assert board.values == BEFORE


def test_only_some(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Some knobs by themselves: the others' entries stay as they were, yielded ones included."""
    board, path = ended(undo_kit, tmp_path, ExitPolicy.RESTORE)
    journal = Journal(tmp_path, started_unix_ns=2)
    journal.mark_yielded(KnobRef("board", ("c",)))
    journal.close()
    report = restore(path, kinds(board), only=lambda ref: ref.address == ("a",))
    assert [entry.ref.address for entry in report.entries] == [("a",)]
    assert board.values == {**DURING, "a": "1"}
    assert {ref.address[0]: entry.yielded for ref, entry in read_journal(path).entries.items()} == {"b": False, "c": True}
    restore(path, kinds(board))
    assert board.values == {**BEFORE, "c": "9"}


# Boots, topologies, versions


def with_boot(root: Path, boot: str) -> Path:
    path = root / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(boot + "\n")
    return root


def test_other_topology_voids_nothing(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Values are tried one by one; what this machine does not take any more is named with the reason, and kept."""
    board = undo_kit.Board({"a": "9", "b": "9"})
    journal = Journal(tmp_path, started_unix_ns=1, topology="four-cpus")
    journal.save([(KnobRef("board", ("gone",)), "1"), (KnobRef("board", ("a",)), "1"), (KnobRef("board", ("b",)), "2")])
    journal.close()
    board.faults = {0: (errno.EINVAL, False), 2: (errno.EINVAL, False)}
    report = restore(journal.path, kinds(board), topology="two-cpus")
    assert report.other_topology
    assert {entry.ref.address[0]: entry.fate for entry in report.entries} == {
        "b": Fate.FAILED, "a": Fate.RESTORED, "gone": Fate.GONE,
    }  # fmt: skip
    assert "CPUs, caches or memory nodes have come or gone since" in report.of(Fate.FAILED)[0].detail
    assert list(read_journal(journal.path).entries) == [KnobRef("board", ("b",))]
    again = restore(journal.path, kinds(board), topology="two-cpus")
    assert (again.complete, again.other_topology) == (True, False)


def test_same_topology_says_nothing(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Neither the same fingerprint, nor one that is not known, nor that of the run that went on, is another topology."""
    board = undo_kit.Board({"a": "9"})
    for first, later, now in (("x", None, "x"), ("", None, "x"), ("x", None, ""), ("y", "x", "x")):
        journal = Journal(tmp_path, started_unix_ns=1, topology=first)
        journal.save([(KnobRef("board", ("a",)), "1")])
        journal.close()
        if later is not None:
            Journal(tmp_path, started_unix_ns=2, topology=later).close()
        assert not restore(journal.path, kinds(board), topology=now).other_topology


def test_what_outlives_a_boot_is_of_the_next_one_too(undo_kit: ModuleType, tmp_path: Path) -> None:
    """After a reboot a held value that outlived it stays journalled, a daemon goes on with it, and it still comes back."""
    proc = with_boot(tmp_path / "proc", "one")
    board = undo_kit.Board({"a": "9"})
    table: KnobKinds = {
        "board": KnobKind(lambda address: board.knob(address[0]), Resource.MEMORY, persistent=True),
        "fleeting": KnobKind(lambda address: board.knob(address[0])),
    }
    journal = Journal(tmp_path, started_unix_ns=1, exit_policy=ExitSettings(memory=ExitPolicy.HOLD), proc=proc)
    journal.save([(KnobRef("board", ("a",)), "1"), (KnobRef("fleeting", ("a",)), "2")])
    journal.close()
    with_boot(proc, "two")
    report = restore(journal.path, table, at_exit=True, proc=proc)
    assert {entry.ref.kind: entry.fate for entry in report.entries} == {"fleeting": Fate.VOID, "board": Fate.HELD}
    later = Journal(tmp_path, started_unix_ns=2, proc=proc)
    assert KnobRef("board", ("a",)) in later
    later.close()
    assert restore(journal.path, table, proc=proc).complete
    assert board.values == {"a": "1"}


def test_unknown_kind_of_another_boot_is_kept_as_it_is(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Whether it outlives a boot only its own version knows: it is named, and keeps its boot."""
    proc = with_boot(tmp_path / "proc", "one")
    journal = Journal(tmp_path, started_unix_ns=1, proc=proc)
    journal.save([(KnobRef("later-kind", ("a",)), "1")])
    journal.close()
    with_boot(proc, "two")
    report = restore(journal.path, kinds(undo_kit.Board({})), proc=proc)
    assert fates(report) == {Fate.FAILED}
    header = read_journal(journal.path).header
    assert header is not None
    assert header.boot_id == "one"
    with pytest.raises(JournalError, match="another boot"):
        Journal(tmp_path, started_unix_ns=2, proc=proc)


def version_1(directory: Path) -> Path:
    """A journal as version 1 of the format had it: two runs, three knobs of which one was yielded."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    bodies: list[dict[str, object]] = [
        {"record": "header", "version": 1, "boot_id": boot, "pid": 5, "started_unix_ns": 1},
        {"record": "entry", "kind": "board", "address": ["a"], "old": "1"},
        {"record": "resumed", "pid": 6, "started_unix_ns": 2},
        {"record": "entry", "kind": "board", "address": ["b"], "old": None},
        {"record": "entry", "kind": "board", "address": ["c"], "old": "3"},
        {"record": "yielded", "kind": "board", "address": ["c"]},
    ]
    directory.mkdir()
    path = directory / JOURNAL_NAME
    path.write_bytes(b"".join(encode_record({**body, "n": n}) for n, body in enumerate(bodies)))
    return path


def test_version_1_is_restored(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A journal of before an upgrade comes back; it knows no policy, so everything is restored."""
    board, path = undo_kit.Board(dict(DURING)), version_1(tmp_path / "state")
    report = restore(path, kinds(board), at_exit=True, topology="x")
    assert (report.complete, report.other_topology) == (True, False)
    assert board.values == {**BEFORE, "c": "9"}


def test_version_1_is_gone_on_with_in_version_2(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A run that goes on with it rewrites it first: no file has records of two versions."""
    board, path = undo_kit.Board(dict(DURING)), version_1(tmp_path / "state")
    journal = Journal(path.parent, started_unix_ns=3, exit_policy=ExitSettings(memory=ExitPolicy.HOLD))
    journal.save([(KnobRef("board", ("d",)), "4")])
    contents = read_journal(path)
    assert contents.header is not None
    assert (contents.header.version, contents.header.pid, contents.corrupt) == (2, 5, [])
    assert contents.exit.memory is ExitPolicy.HOLD
    assert {ref.address[0]: (entry.old, entry.yielded) for ref, entry in contents.entries.items()} == {
        "a": ("1", False), "b": (None, False), "c": ("3", True), "d": ("4", False),
    }  # fmt: skip
    restore(path, kinds(board))
    assert board.values == {**BEFORE, "c": "9"}


def test_damaged_policy_is_named_and_everything_restored(undo_kit: ModuleType, tmp_path: Path) -> None:
    """A policy that nobody can read any more is not guessed at."""
    board, path = ended(undo_kit, tmp_path, ExitPolicy.RESTORE)
    later = Journal(tmp_path, started_unix_ns=2, exit_policy=ExitSettings(memory=ExitPolicy.HOLD))
    later.close()
    path.write_bytes(path.read_bytes().replace(b'"hold"', b'"hole"'))
    report = restore(path, kinds(board), at_exit=True)
    assert "line 5" in report.corrupt[0]
    assert board.values == BEFORE


# The command


@pytest.fixture
def call(undo_kit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a function with options
    """``parties restore`` on files of ``tmp_path``, whose kind is memory."""
    table = {"file": KnobKind(undo_kit.FileKnob, Resource.MEMORY, safe=lambda _: "50")}
    monkeypatch.setattr("parties.commands.restore.KINDS", table)

    def called(*words: str) -> Result:
        directories = ["--state-directory", str(tmp_path / "state"), "--runtime-directory", str(tmp_path / "run")]
        return CliRunner().invoke(main, ["restore", *directories, *words])

    return called


def run_that_ended(tmp_path: Path, memory: ExitPolicy) -> Path:
    knob = tmp_path / "knob"
    knob.write_text("ours")
    journal = Journal(tmp_path / "state", started_unix_ns=1, exit_policy=ExitSettings(memory=memory))
    journal.save([(KnobRef("file", (str(knob),)), "theirs")])
    journal.close()
    return knob


@pytest.mark.parametrize(
    ("memory", "value", "words"),
    [
        (ExitPolicy.RESTORE, "theirs", "1 put back"),
        (ExitPolicy.HOLD, "ours", "1 held as it is"),
        (ExitPolicy.SAFE, "50", "1 set to what is safe without a daemon"),
    ],
)
def test_at_exit(call: Any, tmp_path: Path, memory: ExitPolicy, value: str, words: str) -> None:  # noqa: ANN401
    """--at-exit does what the run's policy said, without its configuration; a plain restore puts all back afterwards."""
    knob = run_that_ended(tmp_path, memory)
    result = call("--at-exit")
    assert (result.exit_code, knob.read_text()) == (0, value)
    assert words in result.output
    assert call().exit_code == 0
    assert knob.read_text() == "theirs"


def test_at_exit_leaves_a_restart_alone(call: Any, tmp_path: Path) -> None:  # noqa: ANN401
    """While the daemon is being restarted on purpose nothing is put back; by hand it is."""
    knob = run_that_ended(tmp_path, ExitPolicy.RESTORE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RESUME_NAME).write_text("{}")
    result = call("--at-exit")
    assert (result.exit_code, knob.read_text()) == (0, "ours")
    assert result.output == f"{tmp_path / 'run' / RESUME_NAME}: the daemon is being restarted; everything is left as it is\n"
    assert json.loads(call("--at-exit", "--json").output)["left_for_restart"]
    assert call().exit_code == 0
    assert knob.read_text() == "theirs"


@pytest.mark.parametrize(("code", "value"), [("killed", "theirs"), ("dumped", "theirs"), ("exited", "ours")])
def test_at_exit_puts_back_what_a_killed_main_process_did_not_leave(
    call: Any,  # noqa: ANN401
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    value: str,
) -> None:
    """The mark is of an earlier daemon where systemd says that this one ended by a signal."""
    knob = run_that_ended(tmp_path, ExitPolicy.RESTORE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RESUME_NAME).write_text("{}")
    monkeypatch.setenv("EXIT_CODE", code)
    assert call("--at-exit").exit_code == 0
    assert knob.read_text() == value


def test_policy_is_journalled_as_it_is_set(tmp_path: Path) -> None:
    """Every field of the settings is in the file's first line."""
    policy = ExitSettings(disk=ExitPolicy.SAFE, rest=ExitPolicy.HOLD)
    Journal(tmp_path, started_unix_ns=1, exit_policy=policy).close()
    header = json.loads((tmp_path / JOURNAL_NAME).read_text().splitlines()[0])["body"]
    assert header["exit"] == to_json(policy)
    assert read_journal(tmp_path / JOURNAL_NAME).exit == policy

"""The write-ahead journal: what is on disk when, and what is made of a damaged one."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.journal import JOURNAL_NAME, Journal, JournalError, encode_record, read_journal
from parties.knob import KnobRef

A, B, C = (KnobRef("kind", (name,)) for name in "abc")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A procfs of boot "one"."""
    return make_proc(tmp_path / "proc", "one")


def make_proc(root: Path, boot: str) -> Path:
    path = root / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(boot + "\n")
    return root


@pytest.fixture
def journal(tmp_path: Path, proc: Path) -> Journal:
    """A journal with a = "1" and b unset."""
    journal = Journal(tmp_path, started_unix_ns=7, proc=proc)
    journal.save([(A, "1"), (B, None)])
    return journal


def old_values(path: Path) -> dict[KnobRef, str | None]:
    return {ref: entry.old for ref, entry in read_journal(path).entries.items()}


def test_what_is_saved_is_read(journal: Journal) -> None:
    """Header and entries come back, unset apart from empty, oldest first."""
    journal.save([(C, "")])
    contents = read_journal(journal.path)
    assert contents.header is not None
    assert (contents.header.boot_id, contents.header.pid, contents.header.started_unix_ns) == ("one", os.getpid(), 7)
    assert list(old_values(journal.path).items()) == [(A, "1"), (B, None), (C, "")]
    assert contents.corrupt == []


ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT, st.lists(ANY_TEXT), st.none() | ANY_TEXT)
def test_any_text_survives(kind: str, address: list[str], old: str | None) -> None:
    """Newlines, quotes, control characters and the surrogates of undecodable paths are kept, in one line per record."""
    line = encode_record({"kind": kind, "address": address, "old": old})
    assert line.count(b"\n") == 1
    assert json.loads(line)["body"] == {"kind": kind, "address": address, "old": old}


def test_first_value_is_the_one_that_counts(journal: Journal) -> None:
    """A knob is journalled once: what it was before the first write, not before the second."""
    journal.save([(A, "2")])
    assert old_values(journal.path)[A] == "1"


def test_entry_is_synced_before_save_returns(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """One save is one write and one fsync after it, however many knobs; nothing new, no fsync."""
    calls: list[str] = []
    write, fsync = os.write, os.fsync

    def noted_write(fd: int, data: bytes) -> int:
        calls.append("write")
        return write(fd, data)

    def noted_fsync(fd: int) -> None:
        calls.append("fsync")
        fsync(fd)

    monkeypatch.setattr("os.write", noted_write)
    monkeypatch.setattr("os.fsync", noted_fsync)
    journal.save([(C, "3"), (KnobRef("kind", ("d",)), "4")])
    assert calls == ["write", "fsync"]
    journal.save([(C, "9")])
    assert calls == ["write", "fsync"]


def test_directory_is_synced_when_the_file_is_made(tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that a power loss may take the file's name."""
    synced = []

    def noted_fsync(fd: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(fd).st_mode))

    monkeypatch.setattr("os.fsync", noted_fsync)
    Journal(tmp_path / "state", started_unix_ns=0, proc=proc)
    assert synced == [False, True]


def test_file_is_private_and_not_inherited(journal: Journal) -> None:
    """Mode 0600; processes that the daemon starts do not get the descriptor."""
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert not os.get_inheritable(journal._fd)


def test_later_run_continues(journal: Journal, tmp_path: Path, proc: Path) -> None:
    """A run that finds a journal of this boot keeps its values, the older and truer ones, and adds to it."""
    journal.close()
    later = Journal(tmp_path, started_unix_ns=8, proc=proc)
    assert A in later
    later.save([(A, "ours"), (C, "3")])
    assert old_values(later.path) == {A: "1", B: None, C: "3"}


def test_last_line_cut_short_is_dropped(journal: Journal, tmp_path: Path, proc: Path) -> None:
    """At every byte: the knob of a line cut short was never written; a later run goes on behind the last whole line."""
    data = journal.path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    for length in range(last, len(data)):
        journal.path.write_bytes(data[:length])
        contents = read_journal(journal.path)
        assert (list(contents.entries), contents.corrupt) == ([A], [])
    later = Journal(tmp_path, started_unix_ns=8, proc=proc)
    later.save([(C, "3")])
    assert old_values(journal.path) == {A: "1", C: "3"}


def test_cut_short_at_its_creation(tmp_path: Path, proc: Path) -> None:
    """An empty file, or half a header, is no journal: nothing was written, and a run may begin."""
    for text in ("", '{"body":{"boot_'):
        (tmp_path / JOURNAL_NAME).write_text(text)
        assert read_journal(tmp_path / JOURNAL_NAME).header is None
        Journal(tmp_path, started_unix_ns=0, proc=proc).close()
        assert read_journal(tmp_path / JOURNAL_NAME).header is not None


def test_every_flipped_byte_is_noticed(journal: Journal) -> None:
    """Any changed byte of a whole line is named with file and line; the other lines' entries are still given."""
    data = journal.path.read_bytes()
    lines = data.splitlines(keepends=True)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 0x01
        line = data[:index].count(b"\n")
        if data[index] == ord("\n") or changed[index] == ord("\n"):
            continue
        journal.path.write_bytes(bytes(changed))
        contents = read_journal(journal.path)
        assert [text.partition(": ")[0] for text in contents.corrupt] == [f"{journal.path} line {line + 1}"]
        assert len(contents.entries) == (2 if line == 0 else 1), lines[line]


@pytest.mark.parametrize(("damage", "complaint"), [
    (lambda lines: [lines[0], lines[2]], "record 2 stands where record 1 should be"),
    (lambda lines: [lines[0], lines[1], lines[1], lines[2]], "record 1 stands where record 2 should be"),
    (lambda lines: [lines[0], b"\x00" * 40 + b"\n", lines[2]], "line 2: it is not JSON"),
    (lambda lines: [lines[0], b"\xff" * 40 + b"\n", lines[2]], "line 2: it is not JSON"),
    (lambda lines: [lines[0], encode_record({"record": "entry"}), lines[2]], "line 2: it has no field 'n'"),
    (lambda lines: [lines[0], b"[]\n", lines[2]], "not a record"),
])  # fmt: skip
def test_damage_in_the_middle(
    journal: Journal, tmp_path: Path, proc: Path, damage: Callable[[list[bytes]], list[bytes]], complaint: str
) -> None:
    """A lost, doubled or overwritten line is an error that names it, and no run continues such a journal."""
    journal.path.write_bytes(b"".join(damage(journal.path.read_bytes().splitlines(keepends=True))))
    assert complaint in read_journal(journal.path).corrupt[0]
    with pytest.raises(JournalError, match="parties restore"):
        Journal(tmp_path, started_unix_ns=0, proc=proc)


def test_other_version_is_named(journal: Journal) -> None:
    """A journal of another version says which, and what to do."""
    body = {"n": 0, "record": "header", "version": 9, "boot_id": "one", "pid": 1, "started_unix_ns": 1}
    journal.path.write_bytes(encode_record(body))
    with pytest.raises(JournalError, match=r"version 9, this is version 2.*of the version that wrote it"):
        read_journal(journal.path)


def test_other_boot_is_not_continued(journal: Journal, tmp_path: Path) -> None:
    """Values of another boot are not this boot's."""
    with pytest.raises(JournalError, match=r"another boot \(one\); run 'parties restore' first"):
        Journal(tmp_path, started_unix_ns=0, proc=make_proc(tmp_path / "later", "two"))


def test_full_disk_leaves_whole_lines(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fills half-way through a line, save fails, the half is taken off, and with room again it goes on."""
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, bytes(data[:50]))

    with monkeypatch.context() as patch:
        patch.setattr("os.write", half)
        with pytest.raises(JournalError, match="No space left on device; make room"):
            journal.save([(C, "3")])
    assert C not in journal
    assert journal.path.read_bytes().endswith(b"\n")
    journal.save([(C, "4")])
    assert old_values(journal.path) == {A: "1", B: None, C: "4"}


def test_failed_fsync_ends_the_journal(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the kernel forgets the error and the next one lies: nothing more is saved, so nothing is written."""

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", broken)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.save([(C, "3")])
    with pytest.raises(JournalError, match="given up"):
        journal.save([(C, "3")])


def test_replaced_entry_supersedes(journal: Journal) -> None:
    """A knob made anew has a new value, and is the newest."""
    journal.replace(A, "8")
    assert list(old_values(journal.path).items()) == [(B, None), (A, "8")]


def test_yielded_is_kept_and_a_later_run_journals_anew(journal: Journal, tmp_path: Path, proc: Path) -> None:
    """A yielded knob counts as not journalled: a later run that manages it again saves what it then is."""
    journal.mark_yielded(A)
    assert read_journal(journal.path).entries[A].yielded
    later = Journal(tmp_path, started_unix_ns=8, proc=proc)
    assert A not in later
    later.save([(A, "foreign")])
    assert (read_journal(journal.path).entries[A].old, read_journal(journal.path).entries[A].yielded) == ("foreign", False)


def test_directory_that_cannot_be_written(tmp_path: Path, proc: Path) -> None:
    """One message with path and cause."""
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"file/journal\.jsonl: .*no knob may be written without a journal|Not a directory"):
        Journal(tmp_path / "file", started_unix_ns=0, proc=proc)


def test_a_journal_that_nobody_holds_gives_its_descriptor_up(tmp_path: Path) -> None:
    """Closed or forgotten, no descriptor is left open; to close twice is harmless."""

    def opened() -> bool:
        return any(link.is_symlink() and link.resolve() == path for link in Path("/proc/self/fd").iterdir())

    path = tmp_path / JOURNAL_NAME
    closed = Journal(tmp_path, started_unix_ns=1)
    assert opened()
    closed.close()
    closed.close()
    assert not opened()
    forgotten = Journal(tmp_path, started_unix_ns=1)
    assert opened()
    del forgotten
    assert not opened()

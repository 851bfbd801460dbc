"""The write-ahead journal: what every knob was before it was first written (invariant 3).

One append-only file in the state directory, one JSON record per line::

    {"body":{"boot_id":"...","exit":{"cores":"restore",...},"n":0,"pid":1,"record":"header","topology":"...",...},"crc32":"..."}
    {"body":{"address":["..."],"kind":"...","n":1,"old":"50000","record":"entry"},"crc32":"..."}

``n`` counts the lines, so that a lost one is noticed. Entries are on disk (fsync) before their knobs are written, so a last line
that was cut short belongs to a knob that never was. A later entry of a knob supersedes an earlier one: its group was made anew.
Values of the kernel do not outlive a boot, so the header says which boot they are of. Each run that begins or goes on with the
journal says what its exit policy is, so that nobody needs its configuration to carry it out.

Version 1 had no topology and no exit policy; it is still read, and rewritten before a run goes on with it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parties.codec import from_json, to_json
from parties.knob import KnobRef
from parties.settings import ExitSettings

JOURNAL_NAME = "journal.jsonl"
JOURNAL_VERSION = 2
_READABLE = (1, 2)
_RESTORE_ALL = ExitSettings()


class JournalError(Exception):
    """The journal cannot be written, or not be read as a whole; the message names file and cause, and what to do."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A knob and what it was, None meaning unset. ``yielded``: left to a foreign writer, not to be restored."""

    ref: KnobRef
    old: str | None
    yielded: bool = False


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """Of which boot and topology the values are ("" if not known), which process began the journal, and its exit policy."""

    boot_id: str
    pid: int
    started_unix_ns: int
    topology: str = ""
    exit: ExitSettings = field(default_factory=ExitSettings)
    version: int = JOURNAL_VERSION


@dataclass(slots=True)
class JournalContents:
    """What could be read.

    ``entries`` hold each knob once, oldest first. ``header`` is None if the file has none (it was cut short at its creation, or its
    first line is damaged). ``corrupt`` names each damaged line; the other lines are still good, each by its own checksum.
    ``good_bytes`` is the length without a last line that was cut short; ``records`` counts the lines. ``exit`` is the exit policy
    of the last run, ``topology`` what the machine was like then.
    """

    header: JournalHeader | None = None
    entries: dict[KnobRef, JournalEntry] = field(default_factory=dict)
    corrupt: list[str] = field(default_factory=list)
    good_bytes: int = 0
    records: int = 0
    exit: ExitSettings = field(default_factory=ExitSettings)
    topology: str = ""


def boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's name for this boot. Raises JournalError."""
    path = proc / "sys/kernel/random/boot_id"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}; without it nobody can tell which boot a journal is of") from error


def encode_record(body: dict[str, object]) -> bytes:
    """One line of the journal."""
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return f'{{"body":{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def _decode_record(line: bytes) -> dict[str, object]:
    """The body of a line. Raises ValueError saying what is wrong with it."""
    record = json.loads(line)
    body = record.get("body") if isinstance(record, dict) else None
    if not isinstance(body, dict):
        raise ValueError("not a record")  # noqa: TRY004 - a damaged line is one kind of error, whatever its type turned into
    if encode_record(body) != line + b"\n":
        raise ValueError("the checksum does not match")
    return body


def read_journal(path: Path) -> JournalContents:
    """Read a journal as far as it is intact.

    Raises JournalError if it cannot be read at all or is of another version, FileNotFoundError if there is none.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        hint = "; run parties as root, for example with sudo" if isinstance(error, PermissionError) else ""
        raise JournalError(
            f"{path}: {error.strerror}; the journal cannot be read, so nothing is known of earlier values{hint}"
        ) from error
    contents = JournalContents(good_bytes=data.rfind(b"\n") + 1)
    for number, line in enumerate(data[: contents.good_bytes].split(b"\n")[:-1]):
        try:
            _take_in(contents, _decode_record(line), number, path)
        except (ValueError, KeyError, TypeError) as error:
            contents.corrupt.append(f"{path} line {number + 1}: {_told(error)}")
        contents.records = number + 1
    return contents


def damaged_lines(corrupt: Sequence[str]) -> str:
    """How many lines are damaged, in words."""
    return f"{len(corrupt)} {'line' if len(corrupt) == 1 else 'lines'} of the journal damaged"


def _told(error: ValueError | KeyError | TypeError) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is not JSON"
    return f"it has no field {error}" if isinstance(error, KeyError) else str(error)


def _take_in(contents: JournalContents, body: dict[str, object], number: int, path: Path) -> None:
    if number == 0 and body.get("record") == "header" and body.get("version") not in _READABLE:
        raise JournalError(
            f"{path}: journal of version {body.get('version')}, this is version {JOURNAL_VERSION}; "
            "run 'parties restore' of the version that wrote it"
        )
    if body["n"] != number:
        raise ValueError(f"record {body['n']} stands where record {number} should be: lines are missing or doubled")
    match body["record"]:
        case "header":
            contents.header = _header(body)
            contents.topology, contents.exit = contents.header.topology, contents.header.exit
        case "entry":
            ref, old = _ref(body), body["old"]
            contents.entries.pop(ref, None)  # to the end: newest first is the order of restoring
            contents.entries[ref] = JournalEntry(ref, None if old is None else str(old))
        case "yielded":
            ref = _ref(body)
            contents.entries[ref] = JournalEntry(ref, contents.entries[ref].old, yielded=True)
        case "resumed":
            contents.topology, contents.exit = str(body.get("topology", "")), _exit(body)
        case other:
            raise ValueError(f"unknown record {other!r}")


def _header(body: dict[str, object]) -> JournalHeader:
    return JournalHeader(
        boot_id=str(body["boot_id"]),
        pid=int(str(body["pid"])),
        started_unix_ns=int(str(body["started_unix_ns"])),
        topology=str(body.get("topology", "")),
        exit=_exit(body),
        version=int(str(body["version"])),
    )


def _exit(body: dict[str, object]) -> ExitSettings:
    return from_json(ExitSettings, body.get("exit", {}))


def _ref(body: dict[str, object]) -> KnobRef:
    address = body["address"]
    if not isinstance(address, list):
        raise TypeError("the address is not a list")
    return KnobRef(str(body["kind"]), tuple(str(part) for part in address))


def _fsync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rewrite_journal(path: Path, header: JournalHeader, entries: Iterable[JournalEntry]) -> None:
    """Replace the journal, all or nothing, by one with these entries, oldest first. Raises OSError."""
    bodies = [_header_body(header)]
    for entry in entries:
        bodies.append(_entry_body(entry.ref, entry.old))
        if entry.yielded:
            bodies.append(_yielded_body(entry.ref))
    temporary = path.with_suffix(".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _write_all(fd, b"".join(encode_record({**body, "n": n}) for n, body in enumerate(bodies)))
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)
    _fsync_directory(path.parent)


def remove_journal(path: Path) -> None:
    """Remove a journal all of whose values are back. Raises OSError."""
    path.unlink(missing_ok=True)
    _fsync_directory(path.parent)


def _header_body(header: JournalHeader) -> dict[str, object]:
    return {**_run_body(header), "record": "header", "version": JOURNAL_VERSION, "boot_id": header.boot_id}


def _run_body(run: JournalHeader) -> dict[str, object]:
    return {
        "record": "resumed",
        "pid": run.pid,
        "started_unix_ns": run.started_unix_ns,
        "topology": run.topology,
        "exit": to_json(run.exit),
    }


def _entry_body(ref: KnobRef, old: str | None) -> dict[str, object]:
    return {"record": "entry", "kind": ref.kind, "address": list(ref.address), "old": old}


def _yielded_body(ref: KnobRef) -> dict[str, object]:
    return {"record": "yielded", "kind": ref.kind, "address": list(ref.address)}


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Journal:
    """The journal of a running daemon, which has one writer: whoever holds the ``RuntimeLock``.

    A journal of this boot that an earlier run left is continued, its values being the older and truer ones. One of an earlier
    boot, or a damaged one, raises JournalError: it must be restored first. ``directory`` is the state directory, ``proc`` the root
    of procfs, ``started_unix_ns`` the time of day, ``topology`` the machine's fingerprint, ``exit_policy`` what to do at the end.
    """

    _fd = -1  # until it is open

    def __init__(
        self,
        directory: Path,
        *,
        started_unix_ns: int,
        topology: str = "",
        exit_policy: ExitSettings = _RESTORE_ALL,
        proc: Path = Path("/proc"),
    ) -> None:
        self.path = directory / JOURNAL_NAME
        run = JournalHeader(boot_id(proc), os.getpid(), started_unix_ns, topology, exit_policy)
        earlier = self._brought_up_to_date(run.boot_id)
        self._known = earlier.entries if earlier else {}
        self._records = earlier.records if earlier else 0
        self._good_bytes = earlier.good_bytes if earlier else 0
        self._broken = ""
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}; no knob may be written without a journal") from error
        try:
            os.ftruncate(self._fd, self._good_bytes)
            self._append([_run_body(run) if earlier else _header_body(run)])
            _fsync_directory(directory)
        except OSError as error:
            self.close()
            raise JournalError(f"{self.path}: {error.strerror}; no knob may be written without a journal") from error
        except JournalError:
            self.close()
            raise

    def _brought_up_to_date(self, this_boot: str) -> JournalContents | None:
        """What an earlier run of this boot left, in this version's format."""
        earlier = self._earlier(this_boot)
        if earlier is None or earlier.header is None or earlier.header.version == JOURNAL_VERSION:
            return earlier
        try:
            rewrite_journal(self.path, earlier.header, earlier.entries.values())
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}; no knob may be written without a journal") from error
        return self._earlier(this_boot)

    def _earlier(self, this_boot: str) -> JournalContents | None:
        """What an earlier run of this boot left, None if nothing. Raises JournalError if it may not be continued."""
        try:
            contents = read_journal(self.path)
        except FileNotFoundError:
            return None
        if contents.corrupt:
            raise JournalError(f"{contents.corrupt[0]}; run 'parties restore', which brings back the undamaged entries")
        if contents.header is None:
            return None  # cut short at its creation: no knob was written
        if contents.header.boot_id != this_boot:
            raise JournalError(f"{self.path}: of another boot ({contents.header.boot_id}); run 'parties restore' first")
        return contents

    def __del__(self) -> None:
        self.close()

    def __contains__(self, ref: KnobRef) -> bool:
        """Whether the knob may be written: its earlier value is on disk, and it was not left to somebody else since."""
        entry = self._known.get(ref)
        return entry is not None and not entry.yielded

    def save(self, entries: Iterable[tuple[KnobRef, str | None]]) -> None:
        """Put knobs' values on disk, all in one fsync; what is there already (see ``in``) is left out.

        Raises JournalError, and then none of these knobs may be written.
        """
        self._save([JournalEntry(ref, old) for ref, old in entries if ref not in self])

    def replace(self, ref: KnobRef, old: str | None) -> None:
        """Supersede a knob's entry: its group was made anew, with a value of its own. Raises JournalError."""
        self._save([JournalEntry(ref, old)])

    def mark_yielded(self, ref: KnobRef) -> None:
        """Leave the knob to a foreign writer: it will not be restored. Raises JournalError."""
        entry = self._known.get(ref)
        if entry is not None and not entry.yielded:
            self._append([_yielded_body(ref)])
            self._known[ref] = JournalEntry(ref, entry.old, yielded=True)

    def close(self) -> None:
        """Give the descriptor up. The file stays until all of it is restored."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _save(self, entries: list[JournalEntry]) -> None:
        self._append([_entry_body(entry.ref, entry.old) for entry in entries])
        for entry in entries:
            self._known[entry.ref] = entry

    def _append(self, bodies: list[dict[str, object]]) -> None:
        if not bodies:
            return
        if self._broken:
            raise JournalError(self._broken)
        data = b"".join(encode_record({**body, "n": self._records + n}) for n, body in enumerate(bodies))
        try:
            _write_all(self._fd, data)
            os.fsync(self._fd)
        except OSError as error:
            self._cut_back(error)
            hint = "make room; " if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
            raise JournalError(f"{self.path}: {error.strerror}; {hint}no knob is written without its entry") from error
        self._records += len(bodies)
        self._good_bytes += len(data)

    def _cut_back(self, cause: OSError) -> None:
        """Take the torn end off, so that the next entry starts on a line of its own; if even that fails, write no more."""
        if cause.errno in {errno.ENOSPC, errno.EDQUOT}:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._good_bytes)
                return
        # After a failed fsync nobody knows what is on disk, and the next fsync would claim success.
        self._broken = f"{self.path}: {cause.strerror}; the journal is given up: run 'parties restore' and start again"

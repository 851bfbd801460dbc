"""The record: one line of JSON per interval and event, sufficient to replay a run through any policy (invariant 8).

First line: the header, with version, node, services, settings and seed. Then one ``tick`` line per interval: the policy's whole
input (observation), its output (decision), and, apart from them, what differs from run to run (timing). ``event`` lines tell what
else happened. The last line of a run that ended in order is its ``report``.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from parties import __version__
from parties.codec import CodecError, compact_json, from_json, to_json, to_text
from parties.model import Decision, InvariantError, Node, Observation, Service
from parties.settings import ControlSettings

RECORD_VERSION = 1
LONGEST_LINE_BYTES = 16_000_000  # an interval takes a few thousand; what has longer lines is something else
GZIP_MAGIC = b"\x1f\x8b"
GOOD_BEFORE = "the lines before it are good"


class RecordError(Exception):
    """A record that cannot be written or read; the message says which file, where in it, and what to do."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a run was started with."""

    version: int
    parties_version: str
    platform: str
    started_unix_ns: int
    node: Node
    services: tuple[Service, ...]
    best_effort: bool
    settings: ControlSettings


@dataclass(frozen=True, slots=True)
class Timing:
    """What of an interval is not part of the decision."""

    lateness_ns: int
    missed_ticks: int
    cpu_ns: int


@dataclass(frozen=True, slots=True)
class TickLine:
    """One interval as it was recorded."""

    observation: Observation
    decision: Decision
    timing: Timing


class RecordWriter:
    """Appends lines to a new file. After a failed write (disk full) it stops, says so once, and the run goes on without it."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError if the file exists or cannot be made."""
        self.path = path
        self.failure: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # among them a file where a directory should be
            raise RecordError(f"record {path} cannot be made: {path.parent}: {error.strerror}") from error
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        except FileExistsError as error:
            raise RecordError(f"record {path} exists already; name another file or move it away") from error
        except OSError as error:
            raise RecordError(f"record {path} cannot be made: {error.strerror}") from error

    def header(
        self, *, platform: str, started_unix_ns: int, node: Node, settings: ControlSettings, services: tuple[Service, ...]
    ) -> None:
        """Write the first line."""
        header = Header(
            RECORD_VERSION, __version__, platform, started_unix_ns, node, services, bool(settings.best_effort), settings
        )
        self._line("header", to_json(header))

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Write one interval."""
        if self.failure is None:
            self._write(f'{{"tick":{to_text(TickLine(observation, decision, timing))}}}\n'.encode())

    def event(self, now_ns: int, level: str, text: str) -> None:
        """Write what else happened."""
        self._line("event", {"now_ns": now_ns, "level": level, "text": text})

    def report(self, report: Mapping[str, object]) -> None:
        """Write the last line of an orderly end."""
        self._line("report", report)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _line(self, kind: str, body: object) -> None:
        if self.failure is None:
            self._write(compact_json({kind: body}) + b"\n")

    def _write(self, data: bytes) -> None:
        try:
            if os.write(self._fd, data) != len(data):
                self.failure = f"record {self.path} stopped: the disk took only part of a line; free space and restart"
        except OSError as error:
            self.failure = f"record {self.path} stopped: {error.strerror}; free space and restart"


def read_record(path: Path) -> tuple[Header, Iterator[TickLine]]:
    """The header and the intervals of a record, plain or gzipped, read as they are asked for.

    Raises RecordError, also from the iterator: where the record is damaged, or lacks an interval that was held.
    """
    lines = _lines(path)
    number, kind, body = next(lines, (1, "", None))
    if kind != "header" or not isinstance(body, dict):
        raise RecordError(f"{path}: not a record: its first line is no header")
    if body.get("version") != RECORD_VERSION:
        raise RecordError(
            f"{path}: record version {body.get('version')!r}, this program reads {RECORD_VERSION}; "
            f"read it with the parties that wrote it ({body.get('parties_version', 'unknown')})"
        )
    return _decoded(path, number, Header, body), _ticks(path, lines)


def _ticks(path: Path, lines: Iterator[tuple[int, str, Any]]) -> Iterator[TickLine]:
    before: TickLine | None = None
    for number, kind, body in lines:
        if kind == "header":
            raise RecordError(f"{path}:{number}: another record begins here; one file holds one run")
        if kind == "tick":
            line: TickLine = _decoded(path, number, TickLine, body)
            if trouble := _disorder(before, line):
                raise RecordError(f"{path}:{number}: {trouble}")
            yield line
            before = line


def _disorder(before: TickLine | None, line: TickLine) -> str | None:
    """What is wrong with the order of two intervals: a tick's number is how many were held so far, and how many missed."""
    tick, missed = line.observation.tick, line.timing.missed_ticks
    if before is None:
        due = 1 + missed
    else:
        due = before.observation.tick + 1 + missed - before.timing.missed_ticks
        if tick <= before.observation.tick or line.observation.now_ns <= before.observation.now_ns:
            return f"tick {tick} stands after tick {before.observation.tick}: lines are out of order"
    if tick == due:
        return None
    gone = f"tick {due} is" if tick == due + 1 else f"ticks {due} to {tick - 1} are"
    return f"{gone} missing before this line" if tick > due else f"tick {tick} does not fit {missed} missed ones"


def _decoded(path: Path, number: int, kind: type, body: object) -> Any:  # noqa: ANN401 - an instance of ``kind``
    try:
        return from_json(kind, body)
    except (CodecError, InvariantError) as error:
        raise RecordError(f"{path}:{number}: {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, str, Any]]:
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE_BYTES):
                number += 1
                yield (number, *_parsed(path, number, line))
    except (EOFError, zlib.error) as error:
        raise RecordError(f"{path}:{number + 1}: the compressed record is cut short or damaged here; {GOOD_BEFORE}") from error
    except OSError as error:
        raise RecordError(f"record {path} cannot be read: {error.strerror or error}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """The record's text, decompressed if it is compressed; opened once, so that it may be a pipe."""
    with path.open("rb") as file:
        if file.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] == GZIP_MAGIC:
            with gzip.open(file) as text:
                yield text
        else:
            yield file


def _parsed(path: Path, number: int, line: bytes) -> tuple[str, Any]:
    if not line.endswith(b"\n"):
        if len(line) == LONGEST_LINE_BYTES:
            raise RecordError(f"{path}:{number}: not a line of a record: longer than {LONGEST_LINE_BYTES} bytes")
        raise RecordError(f"{path}:{number}: the record is cut short here; {GOOD_BEFORE}")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}:{number}: not a line of a record: {error}") from error
    if not isinstance(entry, dict) or len(entry) != 1:
        raise RecordError(f"{path}:{number}: not a line of a record")
    ((kind, body),) = entry.items()
    return kind, body

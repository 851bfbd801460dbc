"""The record: one line of JSON per interval and event, sufficient to replay a run through any policy (invariant 8).

First line: the header, with version, node, services, settings and seed. Then one ``tick`` line per interval: the policy's whole
input (observation), its output (decision), and, apart from them, what differs from run to run (timing). ``event`` lines tell what
else happened. The last line of a run that ended in order is its ``report``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parties import __version__
from parties.codec import CodecError, compact_json, from_json, to_json
from parties.model import Decision, Node, Observation, Service
from parties.settings import ControlSettings

RECORD_VERSION = 1


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
        self._line("tick", to_json(TickLine(observation, decision, timing)))

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
        if self.failure is not None:
            return
        data = compact_json({kind: body}) + b"\n"
        try:
            if os.write(self._fd, data) != len(data):
                self.failure = f"record {self.path} stopped: the disk took only part of a line; free space and restart"
        except OSError as error:
            self.failure = f"record {self.path} stopped: {error.strerror}; free space and restart"


def read_record(path: Path) -> tuple[Header, Iterator[TickLine]]:
    """The header and the intervals of a record, read as they are asked for. Raises RecordError, also from the iterator."""
    lines = _lines(path)
    number, kind, body = next(lines, (1, "", None))
    if kind != "header" or not isinstance(body, dict):
        raise RecordError(f"{path}: not a record: its first line is no header")
    if body.get("version") != RECORD_VERSION:
        raise RecordError(f"{path}: record version {body.get('version')!r}, this program reads {RECORD_VERSION}")
    return _decoded(path, number, Header, body), _ticks(path, lines)


def _ticks(path: Path, lines: Iterator[tuple[int, str, Any]]) -> Iterator[TickLine]:
    for number, kind, body in lines:
        if kind == "tick":
            yield _decoded(path, number, TickLine, body)


def _decoded(path: Path, number: int, kind: type, body: object) -> Any:  # noqa: ANN401 - an instance of ``kind``
    try:
        return from_json(kind, body)
    except CodecError as error:
        raise RecordError(f"{path}:{number}: {error}") from error


def _lines(path: Path) -> Iterator[tuple[int, str, Any]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield (number, *_parsed(path, number, line))
    except OSError as error:
        raise RecordError(f"record {path} cannot be read: {error.strerror}") from error


def _parsed(path: Path, number: int, line: bytes) -> tuple[str, Any]:
    if not line.endswith(b"\n"):
        raise RecordError(f"{path}:{number}: the record is cut short here; the lines before it are good")
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{path}:{number}: not a line of a record: {error}") from error
    if not isinstance(entry, dict) or len(entry) != 1:
        raise RecordError(f"{path}:{number}: not a line of a record")
    ((kind, body),) = entry.items()
    return kind, body

"""What a run makes, written down before it is made, so that whoever cleans up knows where to look.

The manifest is a file of JSON lines. It outlives the run only if both the run and its janitor died; the next run then finds it.
Processes are known by the freezer group that all of a run's processes are born into, so that a reused process id is never hit.
"""

from __future__ import annotations

import enum
import json
import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


class Kind(enum.StrEnum):
    """The kinds of things that a run leaves behind if nobody removes them."""

    PARENT = "parent"  # the run's own process: "pid:start"
    JANITOR = "janitor"  # the same of its janitor
    DAEMON = "daemon"  # the controller: stopped first and gracefully, so that it restores what it changed
    KILL_GROUP = "kill-group"  # a freezer group's directory: every process of the run is in it or below
    GROUP = "group"  # a control group's directory, with everything below it
    NAMESPACE = "namespace"  # a named network namespace
    DIRECTORY = "directory"  # a temporary directory


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a manifest."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int, proc: Path = PROC) -> ProcessId | None:
        """The process that has this number now; None if there is none, or only its zombie."""
        try:
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def parse(cls, text: str) -> ProcessId:
        """The inverse of ``str``. Raises ValueError."""
        pid, start = text.split(":")
        return cls(int(pid), int(start))

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}"

    def alive(self, proc: Path = PROC) -> bool:
        """Whether it still runs."""
        return self.of(self.pid, proc) == self


class Manifest:
    """The file of one run; ``path`` is created by the first entry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, kind: Kind, name: str) -> None:
        """Write down what is about to be made. Raises OSError: then it must not be made."""
        line = json.dumps({"kind": kind, "name": name}) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def entries(self) -> tuple[Entry, ...]:
        """What was written down; a line cut short by a crash is left out, as what it names was not made. Empty once gone."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:  # its janitor has just done its work
            return ()
        found = []
        for line in text.splitlines():
            try:
                record = json.loads(line)
                found.append(Entry(Kind(record["kind"]), str(record["name"])))
            except (ValueError, KeyError, TypeError):
                continue
        return tuple(found)

    def names(self, kind: Kind) -> tuple[str, ...]:
        """The names of one kind, in the order of their making."""
        return tuple(entry.name for entry in self.entries() if entry.kind is kind)

    def orphaned(self) -> bool:
        """Whether neither the run nor its janitor lives, so that somebody else has to clean up."""
        keepers = [*self.names(Kind.PARENT), *self.names(Kind.JANITOR)]
        return not any(ProcessId.parse(keeper).alive() for keeper in keepers)

    def remove(self) -> None:
        """Forget the run: nothing of it is left."""
        self.path.unlink(missing_ok=True)

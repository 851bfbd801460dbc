"""Upkeep: what has to be looked after while the loop runs and is too slow for the tick.

New threads have to join their group, a slow sensor has to be read: each task is a knob that a process of its own sets and reads
back again and again. This module decides when, and hands what was found to the task's own judgement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from parties.interfaces import Finding, UpkeepTask
from parties.knob import KnobRef
from parties.slow_writer import SlowResult


class Tender(Protocol):
    """What upkeep needs of the process that does it: a slow writer of its own, so that no move waits for a task."""

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        """Queue a task; the ticket returns in a result."""

    def poll(self, now_ns: int) -> list[SlowResult]:
        """The tasks that ended since the last call."""


@dataclass(slots=True)
class _Entry:
    task: UpkeepTask
    due_ns: int = 0
    ticket: int | None = None
    done: bool = False  # at least once


class Upkeep:
    """Keeps every task going, one at a time each. ``now_ns`` is the platform's monotonic clock; nothing here blocks."""

    def __init__(self, tasks: Iterable[UpkeepTask], tender: Tender) -> None:
        self._entries = [_Entry(task) for task in tasks]
        self._tender = tender

    @property
    def begun(self) -> bool:
        """Whether every task was done at least once."""
        return all(entry.done for entry in self._entries)

    def tend(self, now_ns: int) -> list[Finding]:
        """Take in what ended, and have done what is due."""
        if not self._entries:
            return []
        waiting = {entry.ticket: entry for entry in self._entries if entry.ticket is not None}
        findings = []
        for result in self._tender.poll(now_ns):
            entry = waiting[result.ticket]
            entry.ticket, entry.done = None, True
            entry.due_ns = now_ns + entry.task.period_ns
            findings.append(entry.task.judge(result.found, result.error))
        for entry in self._entries:
            if entry.ticket is None and entry.due_ns <= now_ns:
                entry.ticket = self._tender.submit(entry.task.ref, entry.task.value, now_ns)
        return findings

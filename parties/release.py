"""Release: what a holder that leaves had of the kernel's values is put back while the daemon runs on (invariant 3)."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Sequence
from typing import Protocol

from parties.journal import JournalEntry, JournalError
from parties.knob import Knob, KnobRef
from parties.restore import Fate, Restored, judged, restore_one
from parties.slow_writer import SlowResult


class Restorable(Protocol):
    """What releasing needs of the journal."""

    def entry(self, ref: KnobRef) -> JournalEntry | None:
        """What the knob was, None if it was never journalled."""

    def mark_restored(self, refs: Sequence[KnobRef]) -> None:
        """Forget the knobs: they are as they were. Raises JournalError."""


class Submit(Protocol):
    """How a write of a slow kind is handed over."""

    def __call__(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        """Queue it; the ticket returns in a result."""


class Releases:
    """Knobs that nobody manages any more, on their way back to what they were.

    What cannot be put back stays in the journal, and so is tried again by the next restore. Those of ``slow_kinds`` are put back
    by the slow writer.
    """

    def __init__(self, journal: Restorable, submit: Submit, slow_kinds: Container[str]) -> None:
        self._journal = journal
        self._submit = submit
        self._slow_kinds = slow_kinds
        self._awaited: dict[int, tuple[JournalEntry, Knob]] = {}
        self._ended: list[Restored] = []

    @property
    def refs(self) -> frozenset[KnobRef]:
        """The knobs that are not back yet."""
        return frozenset(entry.ref for entry, _ in self._awaited.values())

    def begin(self, knob: Knob, now_ns: int) -> None:
        """Put this one back; no plan may have it under way."""
        ref, entry = knob.ref, self._journal.entry(knob.ref)
        if entry is None:
            return  # it was never written
        if entry.yielded:
            self._end(Restored(ref, entry.old, Fate.YIELDED))
        elif ref.kind in self._slow_kinds:
            self._awaited[self._submit(ref, entry.old, now_ns)] = entry, knob
        else:
            self._end(restore_one(entry, knob))

    def take(self, result: SlowResult) -> bool:
        """Take in what a slow write came to; False if it was none of ours."""
        if result.ticket not in self._awaited:
            return False
        entry, knob = self._awaited.pop(result.ticket)
        self._end(judged(entry, knob, result.found, result.error))
        return True

    def ended(self) -> list[Restored]:
        """What became of each knob, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, restored: Restored) -> None:
        self._ended.append(restored)
        if restored.fate is not Fate.FAILED:
            with contextlib.suppress(JournalError):  # it is put back once more at the end, which does no harm
                self._journal.mark_restored([restored.ref])

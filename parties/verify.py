"""Verify: what is wanted, journalled and really there of every knob (invariant 6: nothing is believed before it is read back)."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parties.in_force import InForce, Wanted
from parties.journal import JournalContents, JournalEntry
from parties.knob import VANISHED, ChangesMore, Knob, KnobKind, KnobKinds, KnobRef
from parties.model import Holder
from parties.restore import exit_policy_of
from parties.settings import ExitPolicy


class Verdict(enum.StrEnum):
    """What is to be said of a knob."""

    IN_FORCE = "in-force"  # as wanted
    DIFFERS = "differs"  # not as wanted
    VANISHED = "vanished"  # its group or device is gone: normal, there is nothing to be wrong
    UNREADABLE = "unreadable"
    YIELDED = "yielded"  # left to a foreign writer
    UNDONE = "undone"  # not wanted any more, and as before
    LEFT_OVER = "left-over"  # not wanted any more, and not as before
    HELD = "held"  # as the exit policy left it
    SAFE = "safe"  # as the exit policy set it
    UNKNOWN_KIND = "unknown-kind"  # of another version


DIFFERENCES = frozenset({Verdict.DIFFERS, Verdict.UNREADABLE, Verdict.YIELDED, Verdict.LEFT_OVER, Verdict.UNKNOWN_KIND})


@dataclass(frozen=True, slots=True)
class Verified:
    """One knob. ``wanted``, ``before`` and ``actual`` are None where unset or not known; ``journalled`` says if ``before`` is."""

    ref: KnobRef
    verdict: Verdict
    holder: Holder = ""
    wanted: str | None = None
    journalled: bool = False
    before: str | None = None
    actual: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """Every knob. ``running`` is the daemon's process, None where there is none.

    ``damaged`` names lines of the journal; ``silence`` says why it is not known what a running daemon wants, empty if it is.
    """

    running: int | None
    knobs: tuple[Verified, ...] = ()
    damaged: tuple[str, ...] = ()
    silence: str = ""

    def of(self, verdict: Verdict) -> tuple[Verified, ...]:
        """The knobs of one verdict."""
        return tuple(knob for knob in self.knobs if knob.verdict is verdict)

    @property
    def as_wanted(self) -> bool:
        """Whether there is no difference."""
        return not self.damaged and not self.silence and not any(knob.verdict in DIFFERENCES for knob in self.knobs)


@dataclass(slots=True)
class Verifier:
    """Reads knobs and compares them. ``in_force`` is what the running daemon wants, None where there is none."""

    kinds: KnobKinds
    in_force: InForce | None
    journal: JournalContents
    this_boot: str
    _knobs: dict[KnobRef, Knob] = field(default_factory=dict)

    def verify(self) -> tuple[Verified, ...]:
        """Look at every knob that is wanted or journalled."""
        return tuple(self._verify_one(ref) for ref in dict.fromkeys((*self._wanted, *self.journal.entries)))

    def _verify_one(self, ref: KnobRef) -> Verified:
        entry = self.journal.entries.get(ref)
        wanted = self._wanted.get(ref)
        found, verdict, detail = self._look(ref, entry)
        return Verified(
            ref,
            verdict or self._compared(ref, entry, wanted, found),
            holder="" if wanted is None else wanted.holder,
            wanted=None if wanted is None else wanted.value,
            journalled=entry is not None,
            before=None if entry is None else entry.old,
            actual=found,
            detail=detail,
        )

    @property
    def _wanted(self) -> Mapping[KnobRef, Wanted]:
        return {} if self.in_force is None else self.in_force.wanted

    @property
    def _changed_besides(self) -> frozenset[KnobRef]:
        """What changes with the wanted knobs, such as drop-ins of a unit: nobody wants a value of it, yet it is not left over."""
        knobs: list[object] = [self._knobs[ref] for ref in self._wanted if ref in self._knobs]
        return frozenset(other.ref for knob in knobs if isinstance(knob, ChangesMore) for other in knob.journalled_first())

    def _compared(self, ref: KnobRef, entry: JournalEntry | None, wanted: Wanted | None, found: str | None) -> Verdict:
        yielded = self.in_force is not None and ref in self.in_force.yielded
        if yielded or (entry is not None and entry.yielded):
            return Verdict.YIELDED
        knob = self._knobs[ref]
        if wanted is not None:
            return Verdict.IN_FORCE if knob.same(wanted.value, found) else Verdict.DIFFERS
        if ref in self._changed_besides:
            return Verdict.IN_FORCE
        return Verdict.UNDONE if entry is None else self._judge_unwanted(entry, self.kinds[ref.kind], knob, found)

    def _look(self, ref: KnobRef, entry: JournalEntry | None) -> tuple[str | None, Verdict | None, str]:
        """What is there; a verdict if that is all there is to say."""
        kind = self.kinds.get(ref.kind)
        if kind is None:
            return None, Verdict.UNKNOWN_KIND, f"this version knows no knobs of kind {ref.kind!r}"
        if entry is not None and self._of_another_boot(kind):
            return None, Verdict.VANISHED, "of an earlier boot"
        try:
            knob = self._knobs.get(ref) or self._knobs.setdefault(ref, kind.make(ref.address))
            return knob.read(), None, ""
        except Exception as error:  # noqa: BLE001 - one knob's trouble must not hide the others
            gone = isinstance(error, OSError) and error.errno in VANISHED
            words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            return None, Verdict.VANISHED if gone else Verdict.UNREADABLE, words

    def _of_another_boot(self, kind: KnobKind) -> bool:
        header = self.journal.header
        return header is not None and header.boot_id != self.this_boot and not kind.persistent

    def _judge_unwanted(self, entry: JournalEntry, kind: KnobKind, knob: Knob, found: str | None) -> Verdict:
        """What is to be said of a journalled knob that no daemon wants anything of."""
        if _same(knob, entry.old, found):
            return Verdict.UNDONE
        if self.in_force is not None:
            return Verdict.LEFT_OVER
        policy = exit_policy_of(entry.ref, self.kinds, self.journal.exit)
        if policy is ExitPolicy.HOLD:
            return Verdict.HELD
        if policy is ExitPolicy.SAFE and kind.safe is not None and _same(knob, kind.safe(knob), found):
            return Verdict.SAFE
        return Verdict.LEFT_OVER


def running_daemon(lock: Path, *, proc: Path = Path("/proc")) -> int | None:
    """The process that holds the lock of a runtime directory, without touching the lock; None if nobody does."""
    try:
        status = lock.stat()
        locks = (proc / "locks").read_text()
    except OSError:
        return None
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in locks.splitlines():
        fields = line.split()  # 3: FLOCK ADVISORY WRITE 1234 08:01:567 0 EOF; "->" for who waits
        if "FLOCK" in fields[:2] and fields[5] == file:
            return int(fields[4])
    return None


def _same(knob: Knob, wanted: str | None, found: str | None) -> bool:
    return found is None if wanted is None else knob.same(wanted, found)

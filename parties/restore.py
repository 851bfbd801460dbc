"""Restore: bring back what every journalled knob was, after any end of the daemon (invariant 3)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from parties.journal import JournalContents, JournalEntry, JournalError, boot_id, read_journal, remove_journal, rewrite_journal
from parties.knob import VANISHED, Knob, KnobKinds, KnobRef

_MOST_PASSES = 5


class Fate(enum.StrEnum):
    """What became of a journalled value."""

    RESTORED = "restored"  # written and read back; in a dry run: would be written
    UNCHANGED = "unchanged"  # already as before
    GONE = "gone"  # its group or device has vanished: nothing to bring back
    YIELDED = "yielded"  # left to a foreign writer while the daemon ran
    VOID = "void"  # of another boot, and of a kind that does not outlive one
    FAILED = "failed"  # not as before, and why


@dataclass(frozen=True, slots=True)
class Restored:
    """The fate of one knob; ``old`` is what it was before the daemon, None meaning unset."""

    ref: KnobRef
    old: str | None
    fate: Fate
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore came to, newest entry first.

    ``corrupt`` names the damaged lines of the journal; ``set_aside`` is where a damaged journal was moved to after its undamaged
    entries were restored.
    """

    journal: Path
    entries: tuple[Restored, ...] = ()
    corrupt: tuple[str, ...] = ()
    set_aside: Path | None = None
    dry_run: bool = False

    def of(self, fate: Fate) -> tuple[Restored, ...]:
        """The entries of one fate."""
        return tuple(entry for entry in self.entries if entry.fate is fate)

    @property
    def complete(self) -> bool:
        """Whether everything that was journalled is as before, as far as it still exists and was not left to somebody else."""
        return not self.corrupt and not self.of(Fate.FAILED)


def restore(
    journal: Path,
    kinds: KnobKinds,
    *,
    dry_run: bool = False,
    proc: Path = Path("/proc"),
) -> RestoreReport:
    """Bring back every value of a journal, newest first, and read each one back.

    May be run again at any time, also after it was interrupted. Entries of an earlier boot are void, except for kinds that are
    ``persistent``: control groups, their limits and traffic classes go with the boot, and what bears their names now belongs to
    somebody else. What failed stays in the journal; when nothing is left the journal is removed. ``dry_run`` only reads. The caller
    holds the ``RuntimeLock``, so that no daemon is at work meanwhile.

    Raises JournalError if the journal cannot be read, is of another version, or cannot be rewritten. No journal: an empty report.
    """
    try:
        contents = read_journal(journal)
    except FileNotFoundError:
        return RestoreReport(journal, dry_run=dry_run)
    entries = _bring_back(contents, kinds, boot_id(proc), dry_run=dry_run)
    set_aside = None
    if not dry_run:
        set_aside = _tidy(journal, contents, entries)
    return RestoreReport(journal, tuple(entries), tuple(contents.corrupt), set_aside, dry_run)


def _bring_back(contents: JournalContents, kinds: KnobKinds, this_boot: str, *, dry_run: bool) -> list[Restored]:
    newest_first = list(contents.entries.values())[::-1]
    if contents.header is None:
        cause = "of which boot it is cannot be told, the journal's first line being damaged; set it by hand"
        return [Restored(entry.ref, entry.old, Fate.FAILED, cause) for entry in newest_first]
    other_boot = contents.header.boot_id != this_boot
    fates: dict[KnobRef, Restored] = {}
    work: list[tuple[JournalEntry, Knob]] = []
    for entry in newest_first:
        if entry.yielded:
            fates[entry.ref] = Restored(entry.ref, entry.old, Fate.YIELDED)
        elif other_boot and not _outlives_a_boot(entry, kinds):
            fates[entry.ref] = Restored(entry.ref, entry.old, Fate.VOID, f"of boot {contents.header.boot_id}")
        else:
            knob = _find(entry, kinds)
            if isinstance(knob, Restored):
                fates[entry.ref] = knob
            else:
                fates[entry.ref] = Restored(entry.ref, entry.old, Fate.UNCHANGED)
                work.append((entry, knob))
    _pass_until_settled(work, fates, dry_run=dry_run)
    return list(fates.values())


def _pass_until_settled(work: list[tuple[JournalEntry, Knob]], fates: dict[KnobRef, Restored], *, dry_run: bool) -> None:
    """Restore in passes: one knob may only be writable after another, or be reset by it (leaving the idle class resets weights)."""
    for _ in range(1 if dry_run else _MOST_PASSES):
        wrote = False
        for entry, knob in work:
            before, now = fates[entry.ref], _restore_one(entry, knob, dry_run=dry_run)
            wrote |= now.fate is Fate.RESTORED
            if now.fate is not Fate.UNCHANGED or before.fate is not Fate.RESTORED:
                fates[entry.ref] = now
        if not wrote:
            return


def _outlives_a_boot(entry: JournalEntry, kinds: KnobKinds) -> bool:
    kind = kinds.get(entry.ref.kind)
    return kind is not None and kind.persistent


def _find(entry: JournalEntry, kinds: KnobKinds) -> Knob | Restored:
    kind = kinds.get(entry.ref.kind)
    if kind is None:
        return Restored(entry.ref, entry.old, Fate.FAILED, f"this version knows no knobs of kind {entry.ref.kind!r}")
    try:
        return kind.make(entry.ref.address)
    except Exception as error:  # noqa: BLE001 - one knob's trouble must not keep the others from being restored
        return _trouble(entry, error)


def _restore_one(entry: JournalEntry, knob: Knob, *, dry_run: bool) -> Restored:
    try:
        found = knob.read()
        if _as_before(knob, entry.old, found):
            return Restored(entry.ref, entry.old, Fate.UNCHANGED)
        if dry_run:
            return Restored(entry.ref, entry.old, Fate.RESTORED, f"from {found!r}")
        knob.restore(entry.old)
        now = knob.read()
    except Exception as error:  # noqa: BLE001 - one knob's trouble must not keep the others from being restored
        return _trouble(entry, error)
    if _as_before(knob, entry.old, now):
        return Restored(entry.ref, entry.old, Fate.RESTORED, f"from {found!r}")
    return Restored(entry.ref, entry.old, Fate.FAILED, f"wrote {entry.old!r}, read back {now!r}")


def _as_before(knob: Knob, old: str | None, found: str | None) -> bool:
    return found is None if old is None else knob.same(old, found)


def _trouble(entry: JournalEntry, error: Exception) -> Restored:
    if isinstance(error, OSError) and error.errno in VANISHED:
        return Restored(entry.ref, entry.old, Fate.GONE, error.strerror or str(error))
    return Restored(entry.ref, entry.old, Fate.FAILED, str(error) or type(error).__name__)


def _tidy(journal: Path, contents: JournalContents, entries: list[Restored]) -> Path | None:
    """Keep what failed, remove the rest; a damaged journal is moved aside as evidence."""
    failed = {entry.ref for entry in entries if entry.fate is Fate.FAILED}
    aside = _unused_name(journal) if contents.corrupt else None
    try:
        if aside is not None:
            journal.rename(aside)
        if contents.header is not None and failed:
            rewrite_journal(journal, contents.header, [entry for entry in contents.entries.values() if entry.ref in failed])
        else:
            remove_journal(journal)
    except OSError as error:
        raise JournalError(
            f"{journal}: {error.strerror}; the values are back, the journal is not put away: restore again"
        ) from error
    return aside


def _unused_name(journal: Path) -> Path:
    number = 1
    while (aside := journal.with_name(f"{journal.name}.corrupt.{number}")).exists():
        number += 1
    return aside

"""Restore: bring back what every journalled knob was, after any end of the daemon (invariant 3).

At the end of a run, its exit policy may say otherwise for a resource: values are held as they are, or set to what suits a machine
without us. Either way what they were before stays in the journal, so that a later restore still brings that back.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parties.journal import (
    JournalContents,
    JournalEntry,
    JournalError,
    JournalHeader,
    boot_id,
    read_journal,
    remove_journal,
    rewrite_journal,
)
from parties.knob import VANISHED, Knob, KnobKind, KnobKinds, KnobRef
from parties.settings import ExitPolicy, ExitSettings

_MOST_PASSES = 5


class Fate(enum.StrEnum):
    """What became of a journalled value."""

    RESTORED = "restored"  # written and read back; in a dry run: would be written
    UNCHANGED = "unchanged"  # already as before
    GONE = "gone"  # its group or device has vanished: nothing to bring back
    YIELDED = "yielded"  # left to a foreign writer while the daemon ran
    VOID = "void"  # of another boot, and of a kind that does not outlive one
    HELD = "held"  # left as it is by the exit policy; still journalled
    SAFE = "safe"  # set to what suits a machine without us by the exit policy; still journalled
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
    entries were restored. ``other_topology`` says that CPUs, caches or memory nodes have come or gone since the journal was begun.
    """

    journal: Path
    entries: tuple[Restored, ...] = ()
    corrupt: tuple[str, ...] = ()
    set_aside: Path | None = None
    dry_run: bool = False
    other_topology: bool = False

    def of(self, fate: Fate) -> tuple[Restored, ...]:
        """The entries of one fate."""
        return tuple(entry for entry in self.entries if entry.fate is fate)

    @property
    def complete(self) -> bool:
        """Whether everything that was journalled is as before, as far as it still exists and was not left to somebody else."""
        return not self.corrupt and not self.of(Fate.FAILED)


def exit_policy_of(ref: KnobRef, kinds: KnobKinds, settings: ExitSettings) -> ExitPolicy:
    """What becomes of a knob when the daemon ends; a kind that has no safe value, or is not known, is restored instead."""
    kind = kinds.get(ref.kind)
    if kind is None:
        return ExitPolicy.RESTORE
    policy: ExitPolicy = getattr(settings, "rest" if kind.resource is None else kind.resource.value)
    return ExitPolicy.RESTORE if policy is ExitPolicy.SAFE and kind.safe is None else policy


def restore(  # noqa: PLR0913 (each says another way in which a restore can be limited)
    journal: Path,
    kinds: KnobKinds,
    *,
    dry_run: bool = False,
    at_exit: bool = False,
    only: Callable[[KnobRef], bool] | None = None,
    topology: str = "",
    proc: Path = Path("/proc"),
) -> RestoreReport:
    """Bring back every value of a journal, newest first, and read each one back.

    May be run again at any time, also after it was interrupted. Entries of an earlier boot are void, except for kinds that are
    ``persistent``: control groups, their limits and traffic classes go with the boot, and what bears their names now belongs to
    somebody else. Another topology voids nothing: each value is tried, and what this machine does not take any more is named.
    What failed stays in the journal; when nothing is left the journal is removed. The caller holds the ``RuntimeLock``, so that no
    daemon is at work meanwhile.

    ``at_exit`` carries out the exit policy that the journal recorded, instead of bringing back everything. ``only`` leaves all
    other entries as they are; no ``Journal`` may be open then, as the file is replaced. ``topology`` is this machine's fingerprint,
    "" if not known. ``dry_run`` only reads.

    Raises JournalError if the journal cannot be read, is of another version, or cannot be rewritten. No journal: an empty report.
    """
    try:
        contents = read_journal(journal)
    except FileNotFoundError:
        return RestoreReport(journal, dry_run=dry_run)
    changed = bool(topology and contents.topology and topology != contents.topology)
    this_boot = boot_id(proc)
    settings = contents.exit if at_exit else ExitSettings()
    fates = _Undoing(contents, kinds, this_boot, settings, only or _every).carry_out(dry_run=dry_run)
    if changed:
        fates = {ref: _on_changed_machine(fate) for ref, fate in fates.items()}
    set_aside = None
    if not dry_run:
        set_aside = _tidy(journal, contents, fates, _header_to_keep(contents, fates, kinds, this_boot, topology))
    return RestoreReport(journal, tuple(fates.values()), tuple(contents.corrupt), set_aside, dry_run, changed)


@dataclass(frozen=True, slots=True)
class _Job:
    """A knob and what it is to be, None meaning unset; the last two are its fate if it was written, and if it was so already.

    What was written has a detail that says from what.
    """

    entry: JournalEntry
    knob: Knob
    target: str | None
    written: Fate
    as_it_was: Fate


@dataclass(frozen=True, slots=True)
class _Undoing:
    """One restore of the entries that ``chosen`` says."""

    contents: JournalContents
    kinds: KnobKinds
    this_boot: str
    exit_policy: ExitSettings
    chosen: Callable[[KnobRef], bool]

    def carry_out(self, *, dry_run: bool) -> dict[KnobRef, Restored]:
        """What became of each entry, newest first."""
        newest_first = [entry for entry in list(self.contents.entries.values())[::-1] if self.chosen(entry.ref)]
        if self.contents.header is None:
            cause = "of which boot it is cannot be told, the journal's first line being damaged; set it by hand"
            return {entry.ref: Restored(entry.ref, entry.old, Fate.FAILED, cause) for entry in newest_first}
        fates: dict[KnobRef, Restored] = {}
        work: list[_Job] = []
        for entry in newest_first:
            job = self._decide(entry, self.contents.header)
            if isinstance(job, Restored):
                fates[entry.ref] = job
            else:
                fates[entry.ref] = Restored(entry.ref, entry.old, job.as_it_was)
                work.append(job)
        _pass_until_settled(work, fates, dry_run=dry_run)
        return fates

    def _decide(self, entry: JournalEntry, header: JournalHeader) -> Restored | _Job:
        """What is to be done about an entry, or what has become of it without doing anything."""
        ref, old = entry.ref, entry.old
        if entry.yielded:
            return Restored(ref, old, Fate.YIELDED)
        kind = self.kinds.get(ref.kind)
        if kind is None:
            cause = f"this version knows no knobs of kind {ref.kind!r}; use the version that wrote it"
            return Restored(ref, old, Fate.FAILED, cause)
        if header.boot_id != self.this_boot and not kind.persistent:
            return Restored(ref, old, Fate.VOID, f"of boot {header.boot_id}")
        policy = exit_policy_of(ref, self.kinds, self.exit_policy)
        return Restored(ref, old, Fate.HELD) if policy is ExitPolicy.HOLD else _job(entry, kind, policy)


def _job(entry: JournalEntry, kind: KnobKind, policy: ExitPolicy) -> Restored | _Job:
    try:
        knob = kind.make(entry.ref.address)
        if policy is ExitPolicy.SAFE and kind.safe is not None:
            return _Job(entry, knob, kind.safe(knob), Fate.SAFE, Fate.SAFE)
    except Exception as error:  # noqa: BLE001 - one knob's trouble must not keep the others from being restored
        return _trouble(entry, error)
    return _Job(entry, knob, entry.old, Fate.RESTORED, Fate.UNCHANGED)


def _every(_ref: KnobRef) -> bool:
    return True


def _on_changed_machine(restored: Restored) -> Restored:
    if restored.fate is not Fate.FAILED:
        return restored
    hint = "CPUs, caches or memory nodes have come or gone since"
    return Restored(restored.ref, restored.old, Fate.FAILED, f"{restored.detail} ({hint})")


def _pass_until_settled(work: list[_Job], fates: dict[KnobRef, Restored], *, dry_run: bool) -> None:
    """Restore in passes: one knob may only be writable after another, or be reset by it (leaving the idle class resets weights)."""
    for _ in range(1 if dry_run else _MOST_PASSES):
        wrote = False
        for job in work:
            before, now = fates[job.entry.ref], _carry_out(job, dry_run=dry_run)
            wrote |= now.fate is job.written and bool(now.detail)
            if now.fate is not job.as_it_was or before.fate is not job.written:
                fates[job.entry.ref] = now
        if not wrote:
            return


def _carry_out(job: _Job, *, dry_run: bool) -> Restored:
    entry, knob = job.entry, job.knob
    try:
        found = knob.read()
        if _same(knob, job.target, found):
            return Restored(entry.ref, entry.old, job.as_it_was)
        if not dry_run:
            knob.restore(job.target)
            return _compared(job, knob.read(), f"from {found!r}")
    except Exception as error:  # noqa: BLE001 - one knob's trouble must not keep the others from being restored
        return _trouble(entry, error)
    return Restored(entry.ref, entry.old, job.written, f"from {found!r}")


def _compared(job: _Job, now: str | None, detail: str) -> Restored:
    entry = job.entry
    if _same(job.knob, job.target, now):
        return Restored(entry.ref, entry.old, job.written, detail)
    return Restored(entry.ref, entry.old, Fate.FAILED, f"wrote {job.target!r}, read back {now!r}")


def _same(knob: Knob, wanted: str | None, found: str | None) -> bool:
    return found is None if wanted is None else knob.same(wanted, found)


def _trouble(entry: JournalEntry, error: Exception) -> Restored:
    if isinstance(error, OSError) and error.errno in VANISHED:
        return Restored(entry.ref, entry.old, Fate.GONE, error.strerror or str(error))
    return Restored(entry.ref, entry.old, Fate.FAILED, str(error) or type(error).__name__)


_KEPT = frozenset({Fate.FAILED, Fate.HELD, Fate.SAFE})


def _header_to_keep(
    contents: JournalContents, fates: Mapping[KnobRef, Restored], kinds: KnobKinds, this_boot: str, topology: str
) -> JournalHeader | None:
    """The header for what stays in the journal.

    What outlives a boot is of this boot as well, so that a daemon may go on with it. Not so where something is left that this
    version does not know: whoever does has to see of which boot it is.
    """
    header = contents.header
    if header is None or any(ref.kind not in kinds and restored.fate is Fate.FAILED for ref, restored in fates.items()):
        return header
    return JournalHeader(this_boot, header.pid, header.started_unix_ns, topology or contents.topology, contents.exit)


def _tidy(journal: Path, contents: JournalContents, fates: Mapping[KnobRef, Restored], header: JournalHeader | None) -> Path | None:
    """Keep what is not as before, remove the rest; a damaged journal is moved aside as evidence."""
    kept = [entry for ref, entry in contents.entries.items() if ref not in fates or fates[ref].fate in _KEPT]
    aside = _unused_name(journal) if contents.corrupt else None
    try:
        if aside is not None:
            journal.rename(aside)
        if header is not None and kept:
            rewrite_journal(journal, header, kept)
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

"""The knobs of resctrl: a holder's group, and a group's way mask in one L3 domain."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from actuators.cache.resctrl import Mask, ResctrlError, cache_masks, format_schemata, parse_schemata, read_cache_info, who_holds
from actuators.cgroup.files import KeptFile, vanished
from parties.knob import Knob, KnobError, KnobKind, KnobKinds, KnobRef, Said
from parties.model import Resource

PRESENT = "present"


class GroupKnob:
    """Whether one of our groups exists: "present", or None. Removing it returns its threads to the root group.

    What the group's masks are is for ``MaskKnob``; which threads are in it for ``ResctrlTasksKnob``.
    """

    KIND = "resctrl.group"

    def __init__(self, mount: Path, name: str, schemata: SchemataFile | None = None) -> None:
        self._mount, self._path = mount, mount / name
        self._schemata = schemata
        self.ref = KnobRef(self.KIND, (str(mount), name))

    def read(self) -> str | None:
        """Whether it is there."""
        return PRESENT if _exists(str(self._path)) else None

    def said(self) -> Said:
        """The file of its masks, if it was read already: kept open, it fails once the group is removed."""
        return self._schemata.said() if self._schemata is not None else ()

    def write(self, value: str) -> None:  # noqa: ARG002 (there is only one)
        """Make it. ENOSPC says how many classes of service there are and who holds them."""
        try:
            self._path.mkdir(mode=0o755, exist_ok=True)
        except OSError as error:
            cause = self._exhausted() if error.errno == errno.ENOSPC else ""
            told = "; ".join(filter(None, (cause, last_status(self._mount))))
            raise KnobError(error.errno, f"{self._path}: cannot be made: {error.strerror}{f' ({told})' if told else ''}") from error

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Remove it where there was none."""
        if old is None:
            remove_group(self._path)
        else:
            self.write(old)

    def _exhausted(self) -> str:
        try:
            count = f"the machine has {read_cache_info(self._mount).closids} classes of service (CLOSIDs), one is the root group's"
        except ResctrlError as error:
            count = str(error)
        return f"{count}; the others are held by {who_holds(self._mount)}; remove what nobody needs with rmdir"


def remove_group(path: Path) -> None:
    """Remove a group, which may be gone already. Raises KnobError."""
    try:
        path.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise KnobError(_honest(error, path), f"{path}: cannot be removed: {error.strerror}") from error


class SchemataFile:
    """The ``schemata`` of one group, which the mask knobs of all its domains share. ``name`` is empty for the root group."""

    def __init__(self, mount: Path, name: str) -> None:
        self.mount, self.name = mount, name
        self.file = KeptFile(mount / name / "schemata")
        self._text = b""
        self._masks: dict[int, str] = {}
        self._lines: tuple[str, ...] = ()
        self._looking = self._seen = False

    def begin_look(self) -> None:
        """Answer every read until ``end_look`` from one read of the file, as long as nothing is written."""
        self._looking, self._seen = True, False

    def end_look(self) -> None:
        """Read the file each time again."""
        self._looking = False

    def mask(self, domain: int) -> str | None:
        """The mask in force; None where the group does not exist. The root group's raises KnobError (ENOENT) then."""
        try:
            self._read()
        except KnobError as error:
            self._seen = False
            if self.name and vanished(error) and not _exists(str(self.file.path.parent)):
                return None
            raise
        try:
            return self._masks[domain]
        except KeyError:
            raise KnobError(errno.ENODEV, f"{self.file.path}: there is no L3 domain {domain}") from None

    def said(self) -> Said:
        """What it said when it was read last; nothing where it is shared by knobs."""
        return ((self.file, self._text),) if len(self._masks) == 1 else ()

    def set_mask(self, domain: int, mask: Mask) -> None:
        """Write one domain's mask, code and data alike or apart; what the line does not name stays as it is."""
        self._read()
        self._seen = False
        apart = (mask.code, mask.data) if len(self._lines) > 1 else (mask.code,)
        text = format_schemata({line: {domain: f"{part:x}"} for line, part in zip(self._lines, apart, strict=True)})
        try:
            self.file.write(text)
        except KnobError as error:
            told = self.file.refused(OSError(error.errno, os.strerror(error.errno or 0)), text, last_status(self.mount))
            raise KnobError(_honest(error, self.file.path), told.strerror) from error

    def _read(self) -> None:
        if self._looking and self._seen:
            return
        text = self.file.raw()
        if text != self._text:
            try:
                schemata = parse_schemata(text.decode())
                self._masks = {domain: str(mask) for domain, mask in cache_masks(schemata).items()}
            except ValueError as error:
                raise KnobError(errno.EIO, f"{self.file.path}: not understood: {error}") from error
            self._lines = ("L3",) if "L3" in schemata else ("L3CODE", "L3DATA")
            self._text = text
        self._seen = True


class MaskKnob:
    """The ways of one L3 domain that a group may fill, in hex; "CODE/DATA" where CDP keeps them apart.

    None means that the group does not exist; to restore that is to remove the group, in whatever order the journal goes.
    """

    KIND = "resctrl.mask"

    def __init__(self, schemata: SchemataFile, domain: int) -> None:
        self._schemata, self._domain = schemata, domain
        self.ref = KnobRef(self.KIND, (str(schemata.mount), schemata.name, str(domain)))

    def read(self) -> str | None:
        """The mask in force, which may be narrower than what was written."""
        return self._schemata.mask(self._domain)

    def said(self) -> Said:
        """The group's file, where it has a mask for one domain alone: several knobs are read at the cost of one look."""
        return self._schemata.said()

    def write(self, value: str) -> None:
        """Set the mask; it has to be contiguous and wide enough (EINVAL), and may not touch an exclusive group's."""
        self._schemata.set_mask(self._domain, Mask.parse(value))

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as numbers."""
        return found is not None and (wanted == found or Mask.parse(wanted) == Mask.parse(found))

    def restore(self, old: str | None) -> None:
        """Bring back the mask, or that there was no group."""
        if old is not None:
            self.write(old)
        elif self._schemata.name:
            remove_group(self._schemata.file.path.parent)

    def everything(self) -> str | None:
        """What suits a machine without us: every way for the root group, none of our groups. Raises KnobError."""
        if self._schemata.name:
            return None
        try:
            return f"{read_cache_info(self._schemata.mount).full:x}"
        except ResctrlError as error:
            raise KnobError(errno.EIO, str(error)) from error


def last_status(mount: Path) -> str:
    """What the kernel says of the last command; empty for "ok". Some failures leave the word of an earlier one there."""
    try:
        status = (mount / "info/last_cmd_status").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return f"last_cmd_status: {status}" if status and status != "ok" else ""


def _honest(error: OSError, path: Path) -> int | None:
    """The errno of a failure; one that says that all is gone, of what is still there, would make a restore forget it."""
    return errno.EIO if vanished(error) and _exists(str(path)) else error.errno


def _exists(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 (a Path costs three times the call, and this is done at every tick)
    except OSError as error:
        if vanished(error):
            return False
        raise KnobError(error.errno, f"{path}: cannot look: {error.strerror}") from error
    return True


def _everything(knob: Knob) -> str | None:
    return knob.everything() if isinstance(knob, MaskKnob) else None


def _mask_knob(address: tuple[str, ...]) -> MaskKnob:
    mount, name, domain = address
    return MaskKnob(SchemataFile(Path(mount), name), int(domain))


KINDS: KnobKinds = {
    GroupKnob.KIND: KnobKind(lambda address: GroupKnob(Path(address[0]), address[1]), Resource.CACHE),
    MaskKnob.KIND: KnobKind(_mask_knob, Resource.CACHE, safe=_everything),
}

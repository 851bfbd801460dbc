"""The kernel's resctrl file system, read: what it offers, what its root group has, and who else uses it.

Nothing is written here. The layout is that of Documentation/arch/x86/resctrl.rst: ``info`` says what the hardware can, the root
directory is the default group, every other directory with a ``schemata`` is a group. Under CDP (code and data prioritisation) the
L3 has two lines, L3CODE and L3DATA, which we write alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from parties.model import Holder

PREFIX = "parties-"
"""What the names of our groups begin with."""

_NOT_GROUPS = frozenset({"info", "mon_groups", "mon_data"})
_LINES = (("L3",), ("L3CODE", "L3DATA"))
_SHAREABLE = "shareable"
_NO_MASKS_YET = "pseudo-locksetup"
_MOST_NAMED = 16
Schemata = dict[str, dict[int, str]]
"""The value of each resource in each domain, as text: ``{"L3": {0: "fffff"}, "MB": {0: "100"}}``."""


class ResctrlError(Exception):
    """The file system is not as it has to be: one message for the operator (what, where, what to do)."""


class Mask(NamedTuple):
    """The way masks of one group in one domain; apart only under CDP."""

    code: int
    data: int

    def __str__(self) -> str:
        return f"{self.code:x}" if self.code == self.data else f"{self.code:x}/{self.data:x}"

    @classmethod
    def parse(cls, text: str) -> Mask:
        """The inverse of ``str``. Raises ValueError."""
        code, _, data = text.partition("/")
        return cls(int(code, 16), int(data or code, 16))

    @property
    def ways(self) -> int:
        """Every way that is used for either."""
        return self.code | self.data


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What the hardware can: ``closids`` is how many groups there can be, the root included."""

    lines: tuple[str, ...]
    full: int
    least: int
    shareable: int
    closids: int


@dataclass(frozen=True, slots=True)
class ForeignGroup:
    """A group of somebody else. The ways of an exclusive or a pseudo-locked one are closed to everybody else."""

    name: str
    masks: Mapping[int, int]
    exclusive: bool


@dataclass(frozen=True, slots=True)
class ResctrlTree:
    """The file system at one moment. ``masks`` are the root group's, by the id of the L3."""

    mount: Path
    cache: CacheInfo
    masks: Mapping[int, Mask]
    own: tuple[str, ...]
    foreign: tuple[ForeignGroup, ...]


def group_name(holder: Holder) -> str:
    """The name of a holder's group."""
    return PREFIX + holder


def parse_schemata(text: str) -> Schemata:
    """The lines of a ``schemata`` file, padded or not. Raises ValueError."""
    found: Schemata = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, values = line.partition(":")
        if not colon:
            raise ValueError(f"no resource in the line {line!r}")
        pairs = (pair.split("=") for pair in values.split(";"))
        found[name.strip()] = {int(domain): amount.strip() for domain, amount in pairs}
    return found


def format_schemata(schemata: Schemata) -> str:
    """Lines that the kernel takes; what is not named stays as it is."""
    return "\n".join(
        f"{name}:{';'.join(f'{domain}={amount}' for domain, amount in values.items())}" for name, values in schemata.items()
    )


def cache_masks(schemata: Schemata) -> dict[int, Mask]:
    """The L3 masks by domain, of one line or of two. Raises ValueError."""
    code, data = schemata.get("L3CODE", schemata.get("L3")), schemata.get("L3DATA", schemata.get("L3"))
    if not code or not data or code.keys() != data.keys():
        raise ValueError("no L3 line, or its domains differ for code and data")
    return {domain: Mask(int(code[domain], 16), int(data[domain], 16)) for domain in code}


def read_tree(mount: Path) -> ResctrlTree:
    """Read what is there. Raises ResctrlError, naming the file."""
    cache = read_cache_info(mount)
    own, foreign = [], []
    for name in group_names(mount):
        if name.startswith(PREFIX):
            own.append(name)
        else:
            mode = _text(mount / name / "mode")
            masks = {} if mode == _NO_MASKS_YET else _masks(mount / name / "schemata")
            foreign.append(ForeignGroup(name, {domain: mask.ways for domain, mask in masks.items()}, mode != _SHAREABLE))
    return ResctrlTree(mount, cache, _masks(mount / "schemata"), tuple(own), tuple(foreign))


def read_cache_info(mount: Path) -> CacheInfo:
    """Read ``info``. Raises ResctrlError."""
    try:
        present = sorted(entry.name for entry in (mount / "info").iterdir() if entry.is_dir())
    except OSError as error:
        advice = "is resctrl mounted there? mount -t resctrl resctrl /sys/fs/resctrl"
        raise ResctrlError(f"{mount / 'info'}: cannot read: {error.strerror}; {advice}") from error
    lines = next((lines for lines in _LINES if set(lines) <= set(present)), None)
    if lines is None:
        raise ResctrlError(
            f"{mount / 'info'}: no L3 allocation, only {', '.join(present) or 'nothing'}; the processor has none, or the kernel "
            "argument rdt= switches it off (rdt=l3cat switches it on)"
        )
    info = mount / "info" / lines[0]
    return CacheInfo(
        lines,
        full=_number(info / "cbm_mask", 16),
        least=_number(info / "min_cbm_bits", 10),
        shareable=_number(info / "shareable_bits", 16) if (info / "shareable_bits").exists() else 0,
        closids=min(_number(place, 10) for place in (mount / "info").glob("*/num_closids")),
    )


def group_names(mount: Path) -> tuple[str, ...]:
    """Every group but the root, ours included. Raises ResctrlError."""
    try:
        entries = sorted(entry.name for entry in mount.iterdir() if entry.name not in _NOT_GROUPS)
    except OSError as error:
        raise ResctrlError(f"{mount}: cannot read: {error.strerror}") from error
    return tuple(name for name in entries if (mount / name / "schemata").exists())


def who_holds(mount: Path, proc: Path = Path("/proc")) -> str:
    """The groups that hold classes of service, with what runs in them; as much of it as can be told."""
    try:
        names = group_names(mount)
    except ResctrlError as error:
        return str(error)
    told = [f"{name} ({_members(mount / name, proc)})" for name in names[:_MOST_NAMED]]
    return ", ".join(told) + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def _members(group: Path, proc: Path) -> str:
    try:
        tasks = (group / "tasks").read_text(encoding="ascii").split()
        example = f", such as {(proc / tasks[0] / 'comm').read_text(errors='replace').strip()}" if tasks else ""
    except OSError:
        return "gone"
    return f"{len(tasks)} threads{example}"


def _masks(path: Path) -> dict[int, Mask]:
    try:
        return cache_masks(parse_schemata(_text(path)))
    except ValueError as error:
        raise ResctrlError(f"{path}: not understood: {error}; is another file system mounted there?") from error


def _number(path: Path, base: int) -> int:
    text = _text(path)
    try:
        return int(text, base)
    except ValueError:
        raise ResctrlError(f"{path}: {text!r} is not a number; is another file system mounted there?") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise ResctrlError(f"{path}: cannot read: {error.strerror}") from error

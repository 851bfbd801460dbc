"""What a running daemon wants to be in force, in a file of the runtime directory, for whoever comes after it or asks beside it.

The control process writes it after each change, whole and at once (a new file renamed over the old one), so that a reader never
sees half of it. It tells ``parties verify`` what is wanted of each knob, and a daemon that is restarted on purpose where to go on.
It is on a file system in memory and worth nothing after the boot: it says of which boot and which topology it is.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parties.codec import CodecError, from_json, pool_key, to_text
from parties.knob import KnobRef
from parties.model import Holder, Partition
from parties.placement import Placement
from parties.settings import ExitSettings

IN_FORCE_NAME = "in-force.json"
IN_FORCE_VERSION = 1

_MISSING_HINT = "no daemon has written it in this boot; start one, or use 'parties restore' for what an earlier one left"


class Unfit(enum.StrEnum):
    """Why what was in force cannot be used."""

    ABSENT = "absent"
    UNREADABLE = "unreadable"
    MALFORMED = "malformed"
    VERSION = "version"  # of another version of the program
    BOOT = "boot"  # of another boot: the values went with it
    TOPOLOGY = "topology"  # of another set of CPUs: its places mean nothing here


class InForceError(Exception):
    """What was in force cannot be used; the message says what, where and what to do, ``unfit`` why."""

    def __init__(self, unfit: Unfit, message: str) -> None:
        super().__init__(message)
        self.unfit = unfit


@dataclass(frozen=True, slots=True)
class Wanted:
    """The value that a knob should have, and for whom."""

    holder: Holder
    value: str


@dataclass(frozen=True, slots=True)
class InForce:
    """What a daemon wants to be in force.

    ``topology`` is ``Topology.fingerprint``; ``placement`` is empty as long as the policy partitions nothing.
    ``wanted`` has every knob under management; ``yielded`` those left to a foreign writer, ``vanished`` those whose group or device
    is gone (what is wanted of them is written should they return). ``exit`` is what becomes of all this when the daemon ends.
    """

    boot_id: str
    topology: str
    pid: int
    policy: str
    placement: Placement = field(default_factory=lambda: Placement(Partition({}), {}, {}))
    wanted: Mapping[KnobRef, Wanted] = field(default_factory=dict)
    yielded: frozenset[KnobRef] = frozenset()
    vanished: frozenset[KnobRef] = frozenset()
    exit: ExitSettings = field(default_factory=ExitSettings)
    version: int = IN_FORCE_VERSION

    @property
    def partition(self) -> Partition:
        """Who holds how much."""
        return self.placement.partition


class InForceText:
    """Makes the text of the file, and keeps what it made of each knob: from one tick to the next few of them change."""

    def __init__(self) -> None:
        self._knobs: dict[KnobRef, tuple[Wanted, str]] = {}

    def __call__(self, in_force: InForce) -> bytes:
        """The whole text."""
        placement = in_force.placement
        body = {
            "version": in_force.version,
            "boot_id": in_force.boot_id,
            "topology": in_force.topology,
            "pid": in_force.pid,
            "policy": in_force.policy,
            "partition": placement.partition.amounts,
            "cpus": placement.cpus,
            "way_masks": [(domain, holder, mask) for (domain, holder), mask in placement.way_masks.items()],
        }
        kept = self._knobs
        self._knobs = {
            ref: one if (one := kept.get(ref)) is not None and one[0] is wanted else (wanted, _knob_text(ref, wanted))
            for ref, wanted in in_force.wanted.items()
        }
        wanted = ",".join([text for _wanted, text in self._knobs.values()])
        left = {
            "yielded": _listed(in_force.yielded),
            "vanished": _listed(in_force.vanished),
            "exit": in_force.exit,
        }
        return f'{to_text(body)[:-1]},"wanted":[{wanted}],{to_text(left)[1:]}'.encode()


def _knob_text(ref: KnobRef, wanted: Wanted) -> str:
    return to_text([ref.kind, *ref.address, wanted.holder, wanted.value])


def encode(in_force: InForce) -> bytes:
    """The text of the file."""
    return InForceText()(in_force)


def write_in_force(path: Path, in_force: InForce, text_of: Callable[[InForce], bytes] = encode) -> None:
    """Replace the file by this, all or nothing. Not synced: it is not meant to outlive the boot. Raises OSError.

    Who writes it again and again gives an ``InForceText`` of its own as ``text_of``.
    """
    text = text_of(in_force)
    temporary = f"{path}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    os.rename(temporary, path)  # noqa: PTH104 - with the text at hand; on the tick


def read_in_force(path: Path, *, boot_id: str | None = None, topology: str | None = None) -> InForce:
    """What was last written. With ``boot_id`` or ``topology`` it has to be of these. Raises InForceError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise InForceError(Unfit.ABSENT, f"{path}: does not exist; {_MISSING_HINT}") from error
    except OSError as error:
        raise InForceError(Unfit.UNREADABLE, f"{path}: {error.strerror}; run as root, for example with sudo") from error
    in_force = _decoded(path, data)
    if boot_id is not None and in_force.boot_id != boot_id:
        raise InForceError(Unfit.BOOT, f"{path}: of another boot ({in_force.boot_id}); its values went with it: remove the file")
    if topology is not None and in_force.topology != topology:
        raise InForceError(
            Unfit.TOPOLOGY,
            f"{path}: of another topology ({in_force.topology}, this machine is now {topology}): CPUs, caches or memory nodes have "
            "come or gone, so its places mean nothing here; run 'parties restore', then start anew",
        )
    return in_force


def _listed(refs: Iterable[KnobRef]) -> list[list[str]]:
    return [[ref.kind, *ref.address] for ref in refs]


def _decoded(path: Path, data: bytes) -> InForce:
    try:
        body = json.loads(data)
        version = body["version"]
        if version != IN_FORCE_VERSION:
            raise InForceError(
                Unfit.VERSION,
                f"{path}: of version {version}, this is version {IN_FORCE_VERSION}; run 'parties restore', then start anew",
            )
        return InForce(
            boot_id=_text(body["boot_id"]),
            topology=_text(body["topology"]),
            pid=int(body["pid"]),
            policy=_text(body["policy"]),
            placement=_placement(body),
            wanted={_ref(item[:-2]): Wanted(_text(item[-2]), _text(item[-1])) for item in body["wanted"]},
            yielded=frozenset(_ref(item) for item in body["yielded"]),
            vanished=frozenset(_ref(item) for item in body["vanished"]),
            exit=from_json(ExitSettings, body["exit"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, CodecError) as error:
        raise InForceError(
            Unfit.MALFORMED, f"{path}: damaged ({type(error).__name__}: {error}); run 'parties restore', then start anew"
        ) from error


def _placement(body: Mapping[str, object]) -> Placement:
    amounts = from_json(_Amounts, {"held": body["partition"]}).held
    cpus = from_json(_Cpus, {"cpus": body["cpus"]}).cpus
    masks = body["way_masks"]
    if not isinstance(masks, list):
        raise TypeError("way_masks is not a list")
    way_masks = {(int(domain), _text(holder)): int(mask) for domain, holder, mask in masks}
    return Placement(Partition({pool_key(pool): held for pool, held in amounts.items()}), cpus, way_masks)


@dataclass(frozen=True, slots=True)
class _Amounts:
    held: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class _Cpus:
    cpus: Mapping[str, tuple[int, ...]]


def _ref(item: object) -> KnobRef:
    if not isinstance(item, list) or not item:
        raise TypeError("a knob is a list of its kind and its address")
    kind, *address = (_text(part) for part in item)
    return KnobRef(kind, tuple(address))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return value

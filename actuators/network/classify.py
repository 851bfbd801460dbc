"""Whose packet is it: by the control group of its socket where the kernel can tell, else by its source port.

By control group: a bpf classifier on our own qdisc asks for the cgroup v2 ancestor of the packet's socket and compares its id. The
program is eight instructions, written here, so no compiler is needed; it lives and dies with its filter, and nothing is
attached to the group. What it cannot see: sockets that were created (or accepted from a listener that was created) before their
process entered the group.

By net_cls, where it is mounted and the v2 tree does not have the group: another bpf classifier compares the mark that the group
has, or is given (``actuators.network.net_cls``). Open sockets get the mark as well.

By port: the source port of TCP and UDP, IPv4 (whatever its header length) and IPv6. What it cannot see: connections that the
service itself opens from an ephemeral port, IPv6 packets with extension headers, and fragments other than the first.

What is not recognised goes to the class of the rest.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actuators.network.net_cls import marks
from actuators.network.tc import ClassIdRule, GroupRule, PortRule
from parties.model import BEST_EFFORT, Holder
from parties.settings import ServiceSettings

_BPF_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_BPF_PROG_LOAD: Final = 5
_BPF_PROG_TYPE_SCHED_CLS: Final = 3
_FUNC_CGROUP_CLASSID: Final = 17
_FUNC_SKB_ANCESTOR_CGROUP_ID: Final = 83

_INSTRUCTION: Final = struct.Struct("=BBhi")  # opcode, source << 4 | destination, jump offset, immediate
_MOVE: Final = 0xB7
_MOVE32: Final = 0xB4
_CALL: Final = 0x85
_LOAD64: Final = 0x18
_JUMP_IF_EQUAL: Final = 0x1D
_EXIT: Final = 0x95
_U32_MAX: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Mark:
    """What a group's file in net_cls is to say, and whether it does already."""

    path: Path
    number: int
    holder: Holder
    there: bool


@dataclass(frozen=True, slots=True)
class Classification:
    """The rules for every holder, and what to tell the operator about traffic that no rule recognises."""

    groups: frozenset[GroupRule]
    ports: frozenset[PortRule]
    problems: tuple[str, ...]
    class_ids: frozenset[ClassIdRule] = frozenset()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Recognised:
    """How one holder's traffic may be recognised: control-group paths below the v2 mount point, and ports."""

    what: str  # "service web", "best-effort job batch": for messages
    holder: Holder
    cgroups: tuple[str, ...]
    ports: tuple[int, ...] = ()


def service(settings: ServiceSettings) -> Recognised:
    """A service, as configured."""
    return Recognised(f"service {settings.name}", settings.name, settings.cgroups, settings.ports)


def classify(
    recognised: Sequence[Recognised], classes: Mapping[Holder, int], v2_root: Path | None, net_cls: Path | None = None
) -> Classification:
    """The rules by which these are recognised: their groups, where they exist in the v2 tree or in net_cls, and their ports.

    A port of two services is a problem and belongs to the first, and so does a mark that somebody gave groups of both.
    """
    groups: set[GroupRule] = set()
    ports: dict[int, Recognised] = {}
    marked = _Marks(classes.values())
    problems = []
    for one in recognised:
        in_v2 = _group_rules(one, classes[one.holder], v2_root)
        groups.update(in_v2.values())
        others = [group for group in one.cgroups if group not in in_v2] if net_cls is not None else []
        found = bool(in_v2) + sum(marked.add((net_cls or Path()) / group.strip("/"), one, classes[one.holder]) for group in others)
        problems += [
            f"{one.what}: port {port} is {ports[port].what}'s already; it stays there"
            for port in one.ports
            if ports.setdefault(port, one) is not one
        ]
        if not found and not one.ports:
            ports_too = "give its ports, or " if one.holder != BEST_EFFORT else ""
            problems.append(
                f"{one.what}: its network traffic cannot be told from the rest ({_missing(one, v2_root)}), and has no rate of its "
                f"own; {ports_too}run it in a cgroup v2 group of that path"
            )
    rules = frozenset(PortRule(port, classes[one.holder]) for port, one in ports.items())
    return Classification(frozenset(groups), rules, (*problems, *marked.problems), marked.rules(), tuple(marked.to_set))


class _Marks:
    """The numbers in net_cls: those that somebody gave, and those that we are to give, which are ids of classes of our qdisc.

    Any of our qdisc is ours, also that of a class that is no more: an earlier run gave it.
    """

    def __init__(self, classes: Iterable[int]) -> None:
        self._own = {class_id >> 16 for class_id in classes}
        self._owners: dict[int, tuple[Recognised, int]] = {}
        self.to_set: list[Mark] = []
        self.problems: list[str] = []

    def add(self, group: Path, one: Recognised, class_id: int) -> bool:
        """Whether a group's traffic can be told by its mark."""
        found = list(marks(group))
        for path, number in found:
            foreign = number >> 16 not in self._own and number != 0
            owner, _ = self._owners.setdefault(number if foreign else class_id, (one, class_id))
            if owner.holder != one.holder:
                self.problems.append(f"{one.what}: {path} has the number {number} of {owner.what}; its traffic counts as theirs")
            if not foreign:
                self.to_set.append(Mark(path, class_id, one.holder, number == class_id))
        return bool(found)

    def rules(self) -> frozenset[ClassIdRule]:
        """One rule for each number."""
        return frozenset(ClassIdRule(number, class_id) for number, (_, class_id) in self._owners.items())


def _group_rules(one: Recognised, class_id: int, v2_root: Path | None) -> dict[str, GroupRule]:
    rules = {}
    for group in one.cgroups if v2_root is not None else ():
        parts = Path(group.strip("/")).parts
        try:
            rules[group] = GroupRule(len(parts), Path(v2_root or "", *parts).stat().st_ino, class_id)
        except OSError:  # not in this tree, or just gone
            continue
    return rules


def _missing(one: Recognised, v2_root: Path | None) -> str:
    if v2_root is None:
        return "no cgroup v2 tree is mounted"
    return f"no group {' or '.join(one.cgroups) or 'named'} below {v2_root}"


def group_program(depth: int, group_id: int) -> bytes:
    """The classifier: -1 (the filter's own class) if the packet's socket is in that group or below it, 0 (no match) if not."""
    return _program(_INSTRUCTION.pack(_MOVE, 2, 0, depth), _FUNC_SKB_ANCESTOR_CGROUP_ID, group_id)


def class_id_program(number: int) -> bytes:
    """The classifier: -1 (the filter's own class) if net_cls marked the packet's socket with that number, 0 (no match) if not."""
    return _program(b"", _FUNC_CGROUP_CLASSID, number)


def _program(arguments: bytes, function: int, expected: int) -> bytes:
    return b"".join(
        (
            arguments,  # after the first: r1 holds the packet from the start
            _INSTRUCTION.pack(_CALL, 0, 0, function),
            _INSTRUCTION.pack(_LOAD64, 1, 0, _signed(expected & _U32_MAX)),
            _INSTRUCTION.pack(0, 0, 0, _signed(expected >> 32)),
            _INSTRUCTION.pack(_JUMP_IF_EQUAL, 1 << 4 | 0, 2, 0),
            _INSTRUCTION.pack(_MOVE, 0, 0, 0),
            _INSTRUCTION.pack(_EXIT, 0, 0, 0),
            _INSTRUCTION.pack(_MOVE32, 0, 0, -1),
            _INSTRUCTION.pack(_EXIT, 0, 0, 0),
        )
    )


def load_group_program(depth: int, group_id: int) -> int:
    """Load it into the kernel and return its descriptor. Raises OSError."""
    return _load(group_program(depth, group_id))


def load_class_id_program(number: int) -> int:
    """Load it into the kernel and return its descriptor. Raises OSError."""
    return _load(class_id_program(number))


def _load(code: bytes) -> int:
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"the bpf call is not known for {platform.machine()}")
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    request = struct.pack(
        "=IIQQ128x",
        _BPF_PROG_TYPE_SCHED_CLS,
        len(code) // _INSTRUCTION.size,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(number, _BPF_PROG_LOAD, ctypes.create_string_buffer(request, len(request)), len(request))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"load the bpf classifier: {os.strerror(ctypes.get_errno())}")
    return descriptor


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word

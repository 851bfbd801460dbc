"""Traffic control as the kernel sees it: HTB classes, u32 and bpf filters, packed into and read from rtnetlink messages.

Rates are bytes/s, as HTB keeps them, in 64 bits. Bursts are in scheduler ticks of 64 ns, again as HTB keeps them, so that what
is read back is exactly what was written: the kernel rounds nothing.
"""

from __future__ import annotations

import errno
import functools
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from actuators.network.netlink import (
    NLM_F_CREATE,
    NLM_F_ECHO,
    NLM_F_EXCL,
    NetlinkError,
    RouteSocket,
    attribute,
    attributes,
    find_attribute,
)

RTM_NEWQDISC: Final = 36
RTM_DELQDISC: Final = 37
RTM_GETQDISC: Final = 38
RTM_NEWTCLASS: Final = 40
RTM_DELTCLASS: Final = 41
RTM_GETTCLASS: Final = 42
RTM_NEWTFILTER: Final = 44
RTM_DELTFILTER: Final = 45
RTM_GETTFILTER: Final = 46

TC_H_ROOT: Final = 0xFFFFFFFF
TC_H_INGRESS: Final = 0xFFFFFFF1

TICK_NS: Final = 64
ETH_P_ALL: Final = 0x0003
ETH_P_IP: Final = 0x0800
ETH_P_IPV6: Final = 0x86DD

_TCA_KIND: Final = 1
_TCA_OPTIONS: Final = 2
_TCA_STATS2: Final = 7
_TCA_STATS_BASIC: Final = 1
_TCA_HTB_PARMS: Final = 1
_TCA_HTB_INIT: Final = 2
_TCA_HTB_RATE64: Final = 6
_TCA_HTB_CEIL64: Final = 7
_TCA_U32_CLASSID: Final = 1
_TCA_U32_HASH: Final = 2
_TCA_U32_LINK: Final = 3
_TCA_U32_DIVISOR: Final = 4
_TCA_U32_SEL: Final = 5
_TCA_BPF_CLASSID: Final = 3
_TCA_BPF_FD: Final = 6
_TCA_BPF_NAME: Final = 7

_HTB_VERSION: Final = 3
_HTB_RATE_TO_QUANTUM: Final = 10  # the kernel's own default; every class states its quantum
_LINKLAYER_ETHERNET: Final = 1  # spares the rate tables that old tools send
_U32_MAX: Final = 0xFFFFFFFF

_TCMSG: Final = struct.Struct("=BxxxiIII")  # family, device index, handle, parent, info
_WORD: Final = struct.Struct("=I")
_WORD64: Final = struct.Struct("=Q")
_RATE: Final = struct.Struct("=BBHhHI")  # struct tc_ratespec
_PARAMETERS: Final = struct.Struct(f"={_RATE.size}s{_RATE.size}sIIIII")  # struct tc_htb_opt
_INIT: Final = struct.Struct("=IIIII")  # struct tc_htb_glob
_SELECTOR: Final = struct.Struct("=BBBxHHhhI")  # struct tc_u32_sel
_KEY: Final = struct.Struct("=IIii")  # struct tc_u32_key

_U32_TERMINAL: Final = 1
_U32_OFFSET: Final = 2
_U32_VARIABLE_OFFSET: Final = 4
_FROM_NEXT_HEADER: Final = -1
_IPV6_HEADER_BYTES: Final = 40
_TABLE_MASK: Final = 0xFFF00000
_TRANSPORTS: Final = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)


def handle_text(handle: int) -> str:
    """A handle as ``tc`` writes it, in hexadecimal: "7061:10", and "7061:" for a qdisc."""
    return f"{handle >> 16:x}:{handle & 0xFFFF:x}" if handle & 0xFFFF else f"{handle >> 16:x}:"


def parse_handle(text: str) -> int:
    """The inverse of ``handle_text``. Raises ValueError."""
    major, _colon, minor = text.partition(":")
    return int(major, 16) << 16 | int(minor or "0", 16)


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A queueing discipline of a device; ``default_class`` is HTB's, a whole class id."""

    kind: str
    handle: int
    parent: int
    default_class: int = 0


@dataclass(frozen=True, slots=True)
class HtbClass:
    """What an HTB class is set to; see the module for the units."""

    parent: int
    rate_bytes_per_s: int
    ceil_bytes_per_s: int
    buffer_ticks: int
    ceil_buffer_ticks: int
    quantum_bytes: int
    priority: int

    def text(self) -> str:
        """One line that a person can read and ``parse`` takes back."""
        return (
            f"parent {handle_text(self.parent)} rate {self.rate_bytes_per_s} ceil {self.ceil_bytes_per_s} "
            f"buffer {self.buffer_ticks} cbuffer {self.ceil_buffer_ticks} quantum {self.quantum_bytes} prio {self.priority}"
        )

    @classmethod
    def parse(cls, text: str) -> HtbClass:
        """The inverse of ``text``. Raises ValueError."""
        words = text.split()
        values = dict(zip(words[::2], words[1::2], strict=True))
        names = ("rate", "ceil", "buffer", "cbuffer", "quantum", "prio")
        if set(values) != {"parent", *names}:
            raise ValueError(f"not a traffic class: {text!r}")
        return cls(parse_handle(values["parent"]), *(int(values[name]) for name in names))


@dataclass(frozen=True, slots=True)
class ClassState:
    """A class as found: what it is set to and the bytes that it has sent."""

    settings: HtbClass
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class PortRule:
    """TCP and UDP traffic from this source port belongs to this class."""

    port: int
    class_id: int


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Traffic of sockets in this cgroup v2 group, at this depth below the root, or below it, belongs to this class."""

    depth: int
    group_id: int
    class_id: int


@dataclass(frozen=True, slots=True)
class ClassIdRule:
    """Traffic of sockets that net_cls marked with this number belongs to this class."""

    number: int
    class_id: int


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter as found, its options still packed."""

    kind: str
    preference: int
    protocol: int
    options: Mapping[int, bytes]
    handle: int = 0


@dataclass(frozen=True, slots=True)
class PortTable:
    """What was found of the port table of one preference: each rule with its filters; ``whole`` if both links to it are there."""

    there: bool
    whole: bool
    rules: Mapping[PortRule, Sequence[Filter]]


def unpack_filters(bodies: Iterable[bytes]) -> list[Filter]:
    """The filters in the answers; those that only head a list have no options and are left out."""
    found = []
    for body in bodies:
        described = attributes(body, _TCMSG.size)
        if _TCA_OPTIONS in described:
            _family, _index, handle, _parent, info = _TCMSG.unpack_from(body)
            kind = described[_TCA_KIND].rstrip(b"\0").decode()
            found.append(Filter(kind, info >> 16, socket.ntohs(info & 0xFFFF), attributes(described[_TCA_OPTIONS]), handle))
    return found


def class_of(one: Filter) -> int | None:
    """The class that a filter sends its packets to; None for what only leads to other filters."""
    packed = one.options.get({"u32": _TCA_U32_CLASSID, "bpf": _TCA_BPF_CLASSID}.get(one.kind, 0))
    return None if packed is None else int(_WORD.unpack(packed)[0])


def rule_of(one: Filter) -> GroupRule | ClassIdRule | PortRule | None:
    """The rule that a filter is; None for any that we have not made, and for what only leads to other filters."""
    class_id = class_of(one)
    if class_id is None:
        return None
    if one.kind == "u32":
        return _port_rule(one, class_id)
    words = one.options.get(_TCA_BPF_NAME, b"").rstrip(b"\0").decode(errors="replace").split("-")
    if words[0] == "cgroup":
        return GroupRule(int(words[1]), int(words[2]), class_id)
    return ClassIdRule(int(words[1]), class_id) if words[0] == "netcls" else None


def _port_rule(one: Filter, class_id: int) -> PortRule | None:
    if _WORD.unpack(one.options[_TCA_U32_HASH])[0] & _TABLE_MASK != _table(one.preference):
        return None
    _mask, value, _offset, _offset_mask = _KEY.unpack_from(one.options[_TCA_U32_SEL], _SELECTOR.size)
    return PortRule(socket.ntohl(value) >> 16, class_id)


def port_table(found: Iterable[Filter], preference: int, protocol: int) -> PortTable:
    """What there is of a port table."""
    filters = [one for one in found if (one.kind, one.preference, one.protocol) == ("u32", preference, protocol)]
    links = sum(one.options.get(_TCA_U32_LINK) == _WORD.pack(_table(preference)) for one in filters)
    rules: dict[PortRule, list[Filter]] = {}
    for one in filters:
        rule = rule_of(one)
        if isinstance(rule, PortRule):
            rules.setdefault(rule, []).append(one)
    return PortTable(bool(filters), links == len(_TRANSPORTS), rules)


def port_rules(found: Iterable[Filter], preference: int, protocol: int) -> frozenset[PortRule]:
    """The rules of a port table, if it is whole; otherwise none."""
    table = port_table(found, preference, protocol)
    return frozenset(table.rules) if table.whole else frozenset()


def group_rules(found: Iterable[Filter]) -> frozenset[GroupRule]:
    """The rules that ``add_group_rule`` made; each is told by its filter's name."""
    return frozenset(rule for one in found if isinstance(rule := rule_of(one), GroupRule))


def class_id_rules(found: Iterable[Filter]) -> frozenset[ClassIdRule]:
    """The rules that ``add_class_id_rule`` made; each is told by its filter's name."""
    return frozenset(rule for one in found if isinstance(rule := rule_of(one), ClassIdRule))


def unpack_qdisc(body: bytes) -> Qdisc:
    """The qdisc in an answer."""
    counters, _end = find_attribute(body, _TCA_STATS2, _TCMSG.size, len(body))
    return _unpack_qdisc(body[:counters])


@functools.lru_cache(maxsize=64)
def _unpack_qdisc(body: bytes) -> Qdisc:
    """Remembered, as ours is asked for in every tick and never changes."""
    _family, _index, handle, parent, _info = _TCMSG.unpack_from(body)
    described = attributes(body, _TCMSG.size)
    kind = described[_TCA_KIND].rstrip(b"\0").decode()
    default = 0
    if kind == "htb":
        default = handle | _INIT.unpack_from(attributes(described[_TCA_OPTIONS])[_TCA_HTB_INIT])[2]
    return Qdisc(kind, handle, parent, default)


def pack_class(settings: HtbClass) -> bytes:
    """The attributes of RTM_NEWTCLASS that make or change a class."""
    rate, ceil = settings.rate_bytes_per_s, settings.ceil_bytes_per_s
    parameters = _PARAMETERS.pack(
        _pack_rate(rate),
        _pack_rate(ceil),
        settings.buffer_ticks,
        settings.ceil_buffer_ticks,
        settings.quantum_bytes,
        0,
        settings.priority,
    )
    options = attribute(_TCA_HTB_PARMS, parameters)
    if rate > _U32_MAX:
        options += attribute(_TCA_HTB_RATE64, _WORD64.pack(rate))
    if ceil > _U32_MAX:
        options += attribute(_TCA_HTB_CEIL64, _WORD64.pack(ceil))
    return attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, options)


def unpack_class(body: bytes) -> tuple[int, ClassState] | None:
    """The id and state of a class in an answer; None if it is of another discipline."""
    counters, end = find_attribute(body, _TCA_STATS2, _TCMSG.size, len(body))
    described = _unpack_settings(body[:counters])
    if described is None:
        return None
    class_id, settings = described
    basic, _end = find_attribute(body, _TCA_STATS_BASIC, counters, end)
    return class_id, ClassState(settings, _WORD64.unpack_from(body, basic)[0] if basic < end else 0)


@functools.lru_cache(maxsize=256)
def _unpack_settings(body: bytes) -> tuple[int, HtbClass] | None:
    """A class's id and what it is set to, which the kernel tells before it comes to the counters.

    Remembered, as it is asked for in every tick and seldom changes.
    """
    _family, _index, class_id, parent, _info = _TCMSG.unpack_from(body)
    found = attributes(body, _TCMSG.size)
    if found.get(_TCA_KIND) != b"htb\0":
        return None
    options = attributes(found[_TCA_OPTIONS])
    rate, ceil, buffer, ceil_buffer, quantum, _level, priority = _PARAMETERS.unpack(options[_TCA_HTB_PARMS])
    return class_id, HtbClass(
        class_id & 0xFFFF0000 if parent == TC_H_ROOT else parent,  # a class right below the qdisc shows "root"
        _unpack_rate(rate, options.get(_TCA_HTB_RATE64)),
        _unpack_rate(ceil, options.get(_TCA_HTB_CEIL64)),
        buffer,
        ceil_buffer,
        quantum,
        priority,
    )


def _pack_rate(rate: int) -> bytes:
    return _RATE.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(rate, _U32_MAX))


def _unpack_rate(specification: bytes, rate64: bytes | None) -> int:
    rate: int = _WORD64.unpack(rate64)[0] if rate64 else _RATE.unpack(specification)[5]
    return rate


def pack_key(mask: int, value: int, offset: int, offset_mask: int = 0) -> bytes:
    """One comparison of u32: the 32-bit word at an offset from the network (or next) header, in network byte order."""
    return _KEY.pack(socket.htonl(mask), socket.htonl(value), offset, offset_mask)


def pack_selector(flags: int, keys: Iterable[bytes], *, offset: int = 0, offset_mask: int = 0, shift: int = 0) -> bytes:
    """What a u32 filter compares, and where the header after it begins."""
    keys = tuple(keys)
    return _SELECTOR.pack(flags, shift, len(keys), socket.htons(offset_mask), offset, 0, 0, 0) + b"".join(keys)


def _link_selector(protocol: int, transport: int) -> bytes:
    """From the IP header to the transport header: IPv4 by its header length and no later fragment, IPv6 by its fixed length."""
    if protocol == ETH_P_IP:
        keys = (pack_key(0x00FF0000, transport << 16, 8), pack_key(0x00001FFF, 0, 4))
        return pack_selector(_U32_VARIABLE_OFFSET, keys, offset_mask=0x0F00, shift=6)
    return pack_selector(_U32_OFFSET, (pack_key(0x0000FF00, transport << 8, 4),), offset=_IPV6_HEADER_BYTES)


class _Target(NamedTuple):
    """What of a device a request is about; for a filter ``info`` is preference and protocol."""

    handle: int
    parent: int = 0
    info: int = 0


class TrafficControl:
    """The qdiscs, classes and filters of one device, through a socket in its namespace. Raises NetlinkError."""

    def __init__(self, route: RouteSocket, index: int) -> None:
        self._route = route
        self._index = index

    def qdiscs(self) -> list[Qdisc]:
        """Those of the device that the kernel shows; the kernel lists every device's, so this is not for every tick."""
        bodies = self._route.dump(RTM_GETQDISC, _TCMSG.pack(0, self._index, 0, 0, 0))
        return [unpack_qdisc(body) for body in bodies if _TCMSG.unpack_from(body)[1] == self._index]

    def qdisc(self, handle: int, parent: int) -> Qdisc | None:
        """The qdisc of that handle at the root or below that class; None where there is none, or another one."""
        try:
            bodies = self._send(RTM_GETQDISC, NLM_F_ECHO, _Target(handle, parent))
        except NetlinkError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):
                return None
            raise
        return unpack_qdisc(bodies[0]) if bodies else None

    def add_htb(self, handle: int, default_class: int, parent: int = TC_H_ROOT) -> None:
        """Make an HTB at the root or below a class, in place of the kernel's default; EEXIST if somebody's own is there."""
        initial = _INIT.pack(_HTB_VERSION, _HTB_RATE_TO_QUANTUM, default_class & 0xFFFF, 0, 0)
        options = attribute(_TCA_KIND, b"htb\0") + attribute(_TCA_OPTIONS, attribute(_TCA_HTB_INIT, initial))
        self._send(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, _Target(handle, parent), options)

    def delete_qdisc(self, handle: int, parent: int = TC_H_ROOT) -> None:
        """Remove the qdisc of that handle with all that is below it; the kernel's default comes back."""
        self._send(RTM_DELQDISC, 0, _Target(handle, parent))

    def set_class(self, class_id: int, settings: HtbClass) -> None:
        """Make a class, or change it without touching its queue."""
        self._send(RTM_NEWTCLASS, NLM_F_CREATE, _Target(class_id, settings.parent), pack_class(settings))

    def delete_class(self, class_id: int) -> None:
        """Remove a class; EBUSY while filters or classes hang on it."""
        self._send(RTM_DELTCLASS, 0, _Target(class_id))

    def one_class(self, class_id: int) -> ClassState:
        """One HTB class; ENOENT if there is none of that id."""
        for body in self._send(RTM_GETTCLASS, NLM_F_ECHO, _Target(class_id)):
            found = unpack_class(body)
            if found is not None:
                return found[1]
        raise NetlinkError(errno.ENOENT, "no HTB class of that id")

    def classes(self) -> Mapping[int, ClassState]:
        """Every HTB class of the device, by id."""
        bodies = self._route.dump(RTM_GETTCLASS, _TCMSG.pack(0, self._index, 0, 0, 0))
        return dict(found for found in map(unpack_class, bodies) if found is not None)

    def add_port_rules(self, parent: int, preference: int, protocol: int, rules: Iterable[PortRule]) -> None:
        """Classify IPv4 or IPv6 by source port: a table of ports, and what belongs in it."""
        self.add_port_table(parent, preference, protocol)
        for rule in rules:
            self.add_port_rule(parent, preference, protocol, rule)

    def add_port_table(self, parent: int, preference: int, protocol: int) -> None:
        """A table of ports, reached through one link for TCP and one for UDP; its preference may have no other filters."""
        table = _table(preference)
        info = _info(preference, protocol)
        self._add_u32(parent, info, table, attribute(_TCA_U32_DIVISOR, _WORD.pack(1)))
        for transport in _TRANSPORTS:
            link = attribute(_TCA_U32_LINK, _WORD.pack(table))
            self._add_u32(parent, info, 0, link + attribute(_TCA_U32_SEL, _link_selector(protocol, transport)))

    def add_port_rule(self, parent: int, preference: int, protocol: int, rule: PortRule) -> None:
        """One rule more in a table of ports, behind those that it has."""
        key = pack_key(0xFFFF0000, rule.port << 16, 0, _FROM_NEXT_HEADER)
        self._add_u32(
            parent,
            _info(preference, protocol),
            0,
            attribute(_TCA_U32_CLASSID, _WORD.pack(rule.class_id))
            + attribute(_TCA_U32_HASH, _WORD.pack(_table(preference)))
            + attribute(_TCA_U32_SEL, pack_selector(_U32_TERMINAL, (key,))),
        )

    def add_group_rule(self, parent: int, preference: int, rule: GroupRule, program: int) -> None:
        """Classify by a bpf program (a descriptor) that says whether a packet's socket belongs to the rule's group."""
        self._add_bpf(parent, preference, rule.class_id, program, f"cgroup-{rule.depth}-{rule.group_id}")

    def add_class_id_rule(self, parent: int, preference: int, rule: ClassIdRule, program: int) -> None:
        """Classify by a bpf program (a descriptor) that says whether a packet's socket has the rule's mark."""
        self._add_bpf(parent, preference, rule.class_id, program, f"netcls-{rule.number}")

    def _add_bpf(self, parent: int, preference: int, class_id: int, program: int, name: str) -> None:
        options = (
            attribute(_TCA_BPF_CLASSID, _WORD.pack(class_id))
            + attribute(_TCA_BPF_FD, _WORD.pack(program))
            + attribute(_TCA_BPF_NAME, f"{name}\0".encode())
        )
        described = attribute(_TCA_KIND, b"bpf\0") + attribute(_TCA_OPTIONS, options)
        self._send(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, _Target(0, parent, _info(preference, ETH_P_ALL)), described)

    def filters(self, parent: int) -> list[bytes]:
        """The filters of a qdisc, still packed: see ``unpack_filters``."""
        return self._route.dump(RTM_GETTFILTER, _TCMSG.pack(0, self._index, 0, parent, 0))

    def delete_filter(self, parent: int, one: Filter) -> None:
        """Remove one filter; ENOENT if it is not there."""
        info = _info(one.preference, one.protocol)
        self._send(RTM_DELTFILTER, 0, _Target(one.handle, parent, info), attribute(_TCA_KIND, f"{one.kind}\0".encode()))

    def delete_preference(self, parent: int, preference: int, protocol: int) -> None:
        """Remove every filter of one preference."""
        self._send(RTM_DELTFILTER, 0, _Target(0, parent, _info(preference, protocol)))

    def flush_filters(self, parent: int) -> None:
        """Remove every filter of a qdisc."""
        self._send(RTM_DELTFILTER, 0, _Target(0, parent))

    def _add_u32(self, parent: int, info: int, handle: int, options: bytes) -> None:
        described = attribute(_TCA_KIND, b"u32\0") + attribute(_TCA_OPTIONS, options)
        self._send(RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, _Target(handle, parent, info), described)

    def _send(self, kind: int, flags: int, target: _Target, options: bytes = b"") -> list[bytes]:
        return self._route.request(kind, flags, _TCMSG.pack(0, self._index, *target) + options)


def _table(preference: int) -> int:
    """The handle of the port table; u32 numbers the tables of a whole qdisc, so each preference has its own."""
    return preference << 20


def _info(preference: int, protocol: int) -> int:
    return preference << 16 | socket.htons(protocol)

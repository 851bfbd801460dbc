"""Route netlink, as much of it as traffic control needs: one socket, one request at a time, the kernel's own words in errors.

Why not pyroute2: importing any part of it costs 23 MB and asyncio, and a dump of nine classes 0.8 ms, on every tick
(docs/decisions/0003-own-netlink.md has the figures).

A socket belongs to the network namespace in which it was opened. It is opened by a thread that enters the namespace and ends, so
that no failure can leave the daemon's own thread in a foreign namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

NAMESPACE_ROOT: Final = Path("/run/netns")

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_ECHO: Final = 0x8  # without it a class that is asked for is told to listeners only
NLM_F_DUMP: Final = 0x300
NLM_F_DUMP_INTR: Final = 0x10
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400

RTM_GETLINK: Final = 18
IFLA_IFNAME: Final = 3

_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_CAPPED: Final = 0x100
_NLM_F_ACK_TLVS: Final = 0x200
_NLMSGERR_ATTR_MSG: Final = 1
_SOL_NETLINK: Final = 270
_NETLINK_CAP_ACK: Final = 10
_NETLINK_EXT_ACK: Final = 11
_CLONE_NEWNET: Final = 0x40000000

_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, type
_ERROR: Final = struct.Struct("=i")
_LINK: Final = struct.Struct("=BxHiII")  # struct ifinfomsg

_TYPE_MASK: Final = 0x3FFF  # without the nested and byte-order flags
_BUFFER_BYTES: Final = 65536
_TIMEOUT_S: Final = 5.0
_DUMP_ATTEMPTS: Final = 3


class NetlinkError(OSError):
    """The kernel refused a request; ``strerror`` is its own explanation where it gave one."""


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes from ``offset`` on, by type; of a repeated one the last. A torn one ends the list."""
    found = {}
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            break
        found[kind & _TYPE_MASK] = data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return found


def find_attribute(data: bytes, wanted: int, begin: int, end: int) -> tuple[int, int]:
    """Where the payload of the first attribute of that type begins and ends; twice ``end`` if there is none."""
    while begin + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < _ATTRIBUTE.size or begin + length > end:
            break
        if kind & _TYPE_MASK == wanted:
            return begin + _ATTRIBUTE.size, begin + length
        begin += (length + 3) & ~3
    return end, end


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """One request with its header."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags | NLM_F_REQUEST, sequence, 0) + payload


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Type, flags, sequence number and body of each message in what one receive gave."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _port = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def raise_refusal(flags: int, body: bytes) -> None:
    """Raise NetlinkError if an acknowledgement says that the kernel refused, with its explanation (extended ack)."""
    code = -_ERROR.unpack_from(body)[0]
    if not code:
        return
    words = os.strerror(code)
    if flags & _NLM_F_ACK_TLVS:
        start = _ERROR.size + _HEADER.size
        if not flags & _NLM_F_CAPPED:
            start = _ERROR.size + ((_HEADER.unpack_from(body, _ERROR.size)[0] + 3) & ~3)
        explained = attributes(body, start).get(_NLMSGERR_ATTR_MSG)
        if explained:
            words = f"{words}: {explained.rstrip(bytes(1)).decode(errors='replace').rstrip('.')}"
    raise NetlinkError(code, words)


def namespace_path(namespace: str) -> Path:
    """Where a namespace is bound: a name lies under /run/netns, anything with a slash is a path (/proc/PID/ns/net)."""
    return Path(namespace) if "/" in namespace else NAMESPACE_ROOT / namespace


class RouteSocket:
    """A route netlink socket in a network namespace ("" is the caller's own). Every method raises OSError or NetlinkError."""

    def __init__(self, namespace: str = "") -> None:
        self._socket = _in_namespace(namespace, _open_socket) if namespace else _open_socket()
        self._sequence = 0

    @classmethod
    def in_new_namespace(cls) -> RouteSocket:
        """A socket in a fresh namespace of its own, that holds but a ``lo`` and vanishes with the socket."""
        made = cls.__new__(cls)
        made._socket = _on_thread(_unshared_socket)  # noqa: SLF001 (an alternative constructor of this very class)
        made._sequence = 0  # noqa: SLF001 (the same)
        return made

    def request(self, kind: int, flags: int, payload: bytes) -> list[bytes]:
        """Ask, wait for the acknowledgement, and return the bodies of what came before it."""
        answers, _whole = self._exchange(kind, flags | NLM_F_ACK, payload)
        return answers

    def dump(self, kind: int, payload: bytes) -> list[bytes]:
        """Every object that the request selects. A list that changed while it was read is read again, a few times."""
        for _attempt in range(_DUMP_ATTEMPTS):
            answers, whole = self._exchange(kind, NLM_F_DUMP, payload)
            if whole:
                break
        return answers

    def interface_index(self, name: str) -> int:
        """The index of a network device in this namespace."""
        wanted = attribute(IFLA_IFNAME, name.encode() + b"\0")
        answer = self.request(RTM_GETLINK, 0, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + wanted)
        index: int = _LINK.unpack_from(answer[0])[2]
        return index

    def close(self) -> None:
        """Give up the descriptor."""
        self._socket.close()

    def _exchange(self, kind: int, flags: int, payload: bytes) -> tuple[list[bytes], bool]:
        self._sequence += 1
        self._socket.send(message(kind, flags, self._sequence, payload))
        answers: list[bytes] = []
        whole = True
        while True:
            for answer, answer_flags, sequence, body in messages(self._socket.recv(_BUFFER_BYTES)):
                if sequence != self._sequence:  # the answer to a request that was given up
                    continue
                whole = whole and not answer_flags & NLM_F_DUMP_INTR
                if answer in (_NLMSG_ERROR, _NLMSG_DONE):
                    if len(body) >= _ERROR.size:
                        raise_refusal(answer_flags if answer == _NLMSG_ERROR else 0, body)
                    return answers, whole
                answers.append(body)


def _open_socket() -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        made.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        made.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        made.settimeout(_TIMEOUT_S)
        made.bind((0, 0))
    except OSError:
        made.close()
        raise
    return made


def _in_namespace(namespace: str, opener: Callable[[], socket.socket]) -> socket.socket:
    path = namespace_path(namespace)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def enter() -> socket.socket:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            code = ctypes.get_errno()
            if code == errno.EINVAL:  # the bind mount is gone, an empty file is left
                raise FileNotFoundError(errno.ENOENT, "not a network namespace", str(path))
            raise OSError(code, os.strerror(code), str(path))
        return opener()

    try:
        return _on_thread(enter)
    finally:
        os.close(descriptor)


def _unshared_socket() -> socket.socket:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return _open_socket()


def _on_thread(opener: Callable[[], socket.socket]) -> socket.socket:
    """Run it on a thread that ends: what it did to its namespace ends with it."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            made.append(opener())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="network-namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]

"""The histogram socket: the one way in for latency (``docs/histogram-socket.md``).

Everything here is non-blocking and bounded: one wake-up handles at most so many messages and bytes of all connections together, in
turn, so that a busy client never delays the tick (invariant 5). All connections hang on one epoll descriptor, which is the one that
the caller's selector watches.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import socket
import stat
import struct
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from monitors.histogram_message import (
    MAX_MESSAGE_BYTES,
    Hello,
    MessageError,
    Window,
    encode_answer,
    encode_welcome,
    parse_message,
    parse_window,
)

__all__ = ["HistogramSocket", "MessageError", "SocketError", "Window", "parse_window"]

Clock = Callable[[], int]

MESSAGES_PER_WAKE_UP = 32
BYTES_PER_WAKE_UP = 2 * MAX_MESSAGE_BYTES
MESSAGES_PER_TURN = 4
ACCEPTS_PER_WAKE_UP = 8
FLOOD_PERIOD_NS = 1_000_000_000
FLOOD_MESSAGES = 1000  # in a period from one connection; a client that keeps to the protocol sends 10
IDLE_CONNECTION_NS = 60_000_000_000  # after so long a connection may be closed to make room for another
CLIENTS_REMEMBERED = 1024

_CREDENTIALS = struct.Struct("3i")
_HUNG_UP = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_COUNTERS = (
    "accepted",  # windows that were taken
    "refused",  # messages that were answered with an error
    "dropped",  # duplicates and out-of-order windows
    "lost",  # windows that a gap in the sequence tells of
    "restarts",  # clients that began their sequence anew
    "hellos",
    "answers_lost",  # answers that a sender did not read
    "connections_opened",
    "connections_refused",
    "connections_evicted",
    "connections_closed_for_flooding",
)


class SocketError(OSError):
    """The socket cannot be opened. The message says what, where, and what to do."""


@dataclass(slots=True)
class _Connection:
    """A connected sender."""

    sock: socket.socket
    sender: str  # for messages: process, command, user
    last_ns: int
    hung_up: bool = False
    reported: bool = False  # one line for each connection
    period_start_ns: int = 0
    period_messages: int = 0


@dataclass(slots=True)
class _Client:
    """Where a client of a service stands: what was accepted last, and over which connection."""

    connection: _Connection
    sequence: int
    window_end_ns: int


class HistogramSocket:
    """Listens on ``path`` and hands each good window to ``sink``.

    ``report`` gets one line for the first refusal of each connection. ``proc_root`` is where senders' command names are looked up.
    Raises SocketError where the path cannot be listened on: in use by a living process (named), not a socket, no permission.
    """

    def __init__(  # noqa: PLR0913 - independent options, by keyword
        self,
        path: Path | str,
        services: Iterable[str],
        sink: Callable[[Window], None],
        *,
        interval_ns: int,
        sub_interval_ns: int,
        now_ns: Clock = time.monotonic_ns,
        mode: int = 0o660,
        max_connections: int = 64,
        report: Callable[[str], None] = lambda _line: None,
        proc_root: Path | str = "/proc",
    ) -> None:
        self.path = Path(path)
        self.services = frozenset(services)
        self._sink = sink
        self._interval_ns = interval_ns
        self._sub_interval_ns = sub_interval_ns
        self._now_ns = now_ns
        self._max_connections = max_connections
        self._report = report
        self._proc_root = Path(proc_root)
        self._counters = Counter(dict.fromkeys(_COUNTERS, 0))
        self._connections: dict[int, _Connection] = {}
        self._ready: deque[int] = deque()  # descriptors with something to read, whose turn is first in front
        self._clients: OrderedDict[tuple[str, str], _Client] = OrderedDict()
        self._listener = _listen(self.path, mode, self._proc_root)
        self._inode = os.stat(self.path).st_ino  # noqa: PTH116 - as cheap as the other way
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._selector: selectors.BaseSelector | None = None

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Register with a selector; ``key.data(mask)`` is to be called when it is ready."""
        selector.register(self._epoll.fileno(), selectors.EVENT_READ, self._on_ready)
        self._selector = selector

    def counters(self) -> Mapping[str, int]:
        """Everything that was counted since the start, and how many connections are open."""
        return {**self._counters, "connections_open": len(self._connections)}

    def close(self) -> None:
        """Stop listening, close every connection, remove the socket's file if it is still this one's."""
        if self._selector is not None:
            self._selector.unregister(self._epoll.fileno())
            self._selector = None
        self._epoll.close()
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._listener.close()
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            pass  # gone already, or no longer ours to remove: the next start replaces a dead one

    def _on_ready(self, _mask: int) -> None:
        """One wake-up: accept a few, then read in turn until everything is read or the budget is used up."""
        waiting = set(self._ready)
        for descriptor, events in self._epoll.poll(0):
            if descriptor == self._listener.fileno():
                self._accept()
            elif descriptor in self._connections:
                self._connections[descriptor].hung_up |= bool(events & _HUNG_UP)
                if descriptor not in waiting:
                    self._ready.append(descriptor)
        messages, size = MESSAGES_PER_WAKE_UP, BYTES_PER_WAKE_UP
        while self._ready and messages > 0 and size > 0:
            descriptor = self._ready.popleft()
            connection = self._connections.get(descriptor)
            if connection is None:
                continue
            for _ in range(min(MESSAGES_PER_TURN, messages)):
                taken = self._read(connection)
                if taken is None:
                    break
                messages -= 1
                size -= taken
            else:
                self._ready.append(descriptor)
        # What is left is found again: epoll reports a descriptor until it is read empty. Only the order of turns is kept.

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE_UP):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._evict():
                    self._epoll.modify(self._listener, 0)  # until a connection is closed; else the wake-ups never end
                    self._counters["connections_refused"] += 1
                return
            sock.setblocking(False)
            now_ns = self._now_ns()
            connection = _Connection(sock, _sender(sock, self._proc_root), now_ns, period_start_ns=now_ns)
            if len(self._connections) >= self._max_connections and not self._evict():
                self._counters["connections_refused"] += 1
                self._answer(
                    connection,
                    encode_answer(
                        f"{len(self._connections)} connections are open on {self.path}, the most that are allowed; close one"
                    ),
                )
                sock.close()
                continue
            self._counters["connections_opened"] += 1
            self._connections[sock.fileno()] = connection
            self._epoll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)

    def _evict(self) -> bool:
        """Make room by closing the connection that was silent the longest, if that was long."""
        oldest = min(self._connections.values(), key=lambda connection: connection.last_ns, default=None)
        if oldest is None or self._now_ns() - oldest.last_ns < IDLE_CONNECTION_NS:
            return False
        self._counters["connections_evicted"] += 1
        self._answer(oldest, encode_answer("closed to make room for another, as nothing came for a minute; connect again"))
        self._drop(oldest)
        return True

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.sock.fileno(), None)
        self._epoll.unregister(connection.sock)
        self._epoll.modify(self._listener, select.EPOLLIN)
        connection.hung_up = True
        connection.sock.close()

    def _read(self, connection: _Connection) -> int | None:
        """Handle one message; its size, or None if there is none."""
        try:
            data = connection.sock.recv(MAX_MESSAGE_BYTES + 1)
        except BlockingIOError:
            return None
        except OSError:
            self._drop(connection)
            return None
        if not data and _hung_up(connection):  # an empty message otherwise
            self._drop(connection)
            return None
        now_ns = self._now_ns()
        connection.last_ns = now_ns
        if self._floods(connection, now_ns):
            return None
        try:
            self._handle(connection, data, now_ns)
        except MessageError as error:
            self._refuse(connection, str(error))
        return len(data)

    def _floods(self, connection: _Connection, now_ns: int) -> bool:
        """Close a connection that sends many times more than the protocol asks for, before it takes the control process's CPU."""
        if now_ns - connection.period_start_ns >= FLOOD_PERIOD_NS:
            connection.period_start_ns, connection.period_messages = now_ns, 0
        connection.period_messages += 1
        if connection.period_messages <= FLOOD_MESSAGES:
            return False
        self._counters["connections_closed_for_flooding"] += 1
        self._refuse(connection, f"more than {FLOOD_MESSAGES} messages in a second; send one for each window of 100 ms to 500 ms")
        self._drop(connection)
        return True

    def _handle(self, connection: _Connection, data: bytes, now_ns: int) -> None:
        message = parse_message(data)
        if isinstance(message, Hello):
            self._counters["hellos"] += 1
            self._answer(connection, encode_welcome(self.services, self._interval_ns, self._sub_interval_ns))
            return
        if message.service not in self.services:
            known = ", ".join(sorted(self.services)) or "none"
            raise MessageError(f"service {message.service!a} is not registered; registered are: {known}")
        if message.window_end_ns > now_ns:
            raise MessageError(
                f"field 'window_end_ns' is {message.window_end_ns - now_ns} ns in the future; "
                "send a window after its end, with times of CLOCK_MONOTONIC"
            )
        if self._in_order(connection, message):
            self._counters["accepted"] += 1
            self._sink(message)

    def _in_order(self, connection: _Connection, window: Window) -> bool:
        """Whether a window carries on from its client's last one; counts what does not."""
        key = window.service, window.client
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= CLIENTS_REMEMBERED:
                self._clients.popitem(last=False)  # the one silent for longest
            self._clients[key] = _Client(connection, window.sequence, window.window_end_ns)
            return True
        self._clients.move_to_end(key)
        restarted = client.connection is not connection and self._restarted(client, connection, window)
        if window.window_end_ns < client.window_end_ns or (window.sequence <= client.sequence and not restarted):
            self._counters["dropped"] += 1
            return False
        if restarted:
            self._counters["restarts"] += 1
        elif window.sequence > client.sequence + 1:
            self._counters["lost"] += window.sequence - client.sequence - 1
        client.connection, client.sequence, client.window_end_ns = connection, window.sequence, window.window_end_ns
        return True

    def _restarted(self, client: _Client, connection: _Connection, window: Window) -> bool:
        """Whether a client on another connection began anew: a lower sequence, a later window. Raises if two use one name."""
        if not _hung_up(client.connection):
            if _hung_up(connection):
                return False  # what a predecessor left unread; its windows are earlier, and dropped for that
            raise MessageError(
                f"client {window.client!a} of service {window.service!a} already reports from {client.connection.sender}; "
                "give each client of a service a name of its own"
            )
        return window.sequence <= client.sequence and window.window_start_ns >= client.window_end_ns

    def _refuse(self, connection: _Connection, error: str) -> None:
        self._counters["refused"] += 1
        self._answer(connection, encode_answer(error))
        if not connection.reported:
            connection.reported = True
            self._report(f"{self.path}: refused a message from {connection.sender}: {error}")

    def _answer(self, connection: _Connection, answer: bytes) -> None:
        try:
            connection.sock.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            self._counters["answers_lost"] += 1  # its sender does not read, or is gone


def _hung_up(connection: _Connection) -> bool:
    """Whether the other end is closed, also where its last messages are still to be read."""
    if connection.hung_up or connection.sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Process and user of the other end, as they were when it connected (or listened)."""
    pid, uid, _gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _sender(sock: socket.socket, proc_root: Path) -> str:
    """The other end in words: process, command name, user."""
    pid, uid = _credentials(sock)
    try:
        command = (proc_root / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        command = "unknown"  # gone already, or of another process namespace
    return f"process {pid} ({command}), user {uid}"


def _listen(path: Path, mode: int, proc_root: Path) -> socket.socket:
    """A listening socket at that path, replacing the file that a dead process left."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        os.fchmod(listener.fileno(), mode)  # the file gets these bits less the umask's: never more than asked for
        try:
            listener.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_dead(path, proc_root)
            listener.bind(str(path))
        path.chmod(mode)
        listener.listen(ACCEPTS_PER_WAKE_UP * 8)
    except SocketError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise SocketError(error.errno, f"cannot listen on {path}: {error.strerror or error}; {_advice(error.errno)}") from None
    return listener


def _advice(number: int | None) -> str:
    advice = {
        errno.ENOENT: "create its directory",
        errno.EACCES: "run as a user who may write to its directory",
        errno.EPERM: "run as a user who may write to its directory",
        errno.EROFS: "choose a runtime directory that can be written to",
    }
    # A path of more than 107 bytes has no number, only a text.
    return advice.get(number or 0, "choose another runtime directory")


def _remove_dead(path: Path, proc_root: Path) -> None:
    """Remove the socket file of a process that is gone. Raises SocketError if anyone listens on it, or if it is no socket."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise SocketError(errno.EADDRINUSE, f"cannot listen on {path}: it exists and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            owner = f"another program ({error.strerror})"  # of another socket type, or with a full queue
        else:
            owner = _sender(probe, proc_root)
    raise SocketError(
        errno.EADDRINUSE,
        f"cannot listen on {path}: {owner} listens on it; stop that process, or choose another runtime directory",
    )

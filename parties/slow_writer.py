"""A process of its own for writes that may take long, such as shrinking memory under use (invariant 5).

``SlowWriter`` is the control process's side; ``python -m parties.slow_writer`` the other. Between them a SEQPACKET socket pair
carries one request and one answer at a time as JSON. The process dies with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from parties.knob import VANISHED, Knob, KnobKinds, KnobRef
from parties.model import NS_PER_S

KINDS = "actuators.registry:KINDS"
LIMIT_NS = 20 * NS_PER_S
"""For one write, the start of the process included: on an emulated machine that alone, with a first call of systemd, took 10 s."""

_MESSAGE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class SlowResult:
    """What became of a slow write: the value read back after it, or the error."""

    ticket: int
    found: str | None = None
    error: OSError | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    ticket: int
    ref: KnobRef
    value: str | None

    def encode(self) -> bytes:
        body = {"ticket": self.ticket, "kind": self.ref.kind, "address": self.ref.address, "value": self.value}
        return json.dumps(body).encode()


class _Link(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: socket.socket


class SlowWriter:
    """Does one write after another in a process of its own; no method blocks.

    ``kinds`` names the ``KnobKinds`` table as ``module:attribute``, looked up in that process. A write that takes longer than
    ``limit_ns`` is abandoned: the process is killed by its number, the next write starts another one; the result comes when the
    killed one is really gone, for until then its write may still take effect.
    """

    def __init__(self, kinds: str = KINDS, *, limit_ns: int = LIMIT_NS) -> None:
        self._kinds = kinds
        self._limit_ns = limit_ns
        self._waiting: deque[_Request] = deque()
        self._current: _Request | None = None
        self._sent_ns = 0
        self._next_ticket = 1
        self._results: list[SlowResult] = []
        self._dying: list[tuple[subprocess.Popen[bytes], SlowResult | None]] = []
        self._selectors: list[selectors.BaseSelector] = []
        self._link: _Link | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """The process that does the writes; None while there is none, until the next write."""
        return self._link.process.pid if self._link is not None else None

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Have answers taken in when the selector says so; the key's data is to be called with the event mask."""
        self._selectors.append(selector)
        if self._link is not None:
            selector.register(self._link.socket, selectors.EVENT_READ, self._receive)

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        """Queue a write; None brings back the unset state. The ticket returns in a result of ``poll``."""
        request = _Request(self._next_ticket, ref, value)
        self._next_ticket += 1
        self._waiting.append(request)
        self._send_next(now_ns)
        return request.ticket

    def poll(self, now_ns: int) -> list[SlowResult]:
        """The writes that ended since the last call, successfully or not."""
        if self._current is not None or not self._selectors:  # else nothing is to come but its end, of which the selectors tell
            self._receive(selectors.EVENT_READ)
        if self._current is not None and now_ns - self._sent_ns > self._limit_ns:
            cause = OSError(errno.ETIMEDOUT, f"timed out after {(now_ns - self._sent_ns) / NS_PER_S:.1f} s")
            self._drop(SlowResult(self._current.ticket, error=cause))
        self._reap()
        self._send_next(now_ns)
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        """End the process. Writes under way or queued are abandoned without a result."""
        self._drop(None)
        for process, _ in self._dying:
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it dies once it comes out
                process.wait(timeout=1)

    def _start(self) -> _Link:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own module
                [sys.executable, "-P", "-m", "parties.slow_writer", str(theirs.fileno()), str(os.getpid()), self._kinds],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        for selector in self._selectors:
            selector.register(ours, selectors.EVENT_READ, self._receive)
        self._link = _Link(process, ours)
        return self._link

    def _drop(self, result: SlowResult | None) -> None:
        """Kill the process; the result is held back until it is gone. The next write starts another one."""
        if self._link is not None:
            for selector in self._selectors:
                with contextlib.suppress(KeyError):  # closed before us
                    selector.unregister(self._link.socket)
            self._link.socket.close()
            self._link.process.kill()
            self._dying.append((self._link.process, result))
        self._link = None
        self._current = None

    def _reap(self) -> None:
        if not self._dying:
            return
        gone = [entry for entry in self._dying if entry[0].poll() is not None]
        for entry in gone:
            self._dying.remove(entry)
            if entry[1] is not None:
                self._results.append(entry[1])

    def _receive(self, mask: int) -> None:
        if self._link is None or not mask & selectors.EVENT_READ:
            return
        try:
            data = self._link.socket.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._lost()
        elif self._current is not None:
            self._results.append(_decode_result(self._current.ticket, data))
            self._current = None

    def _lost(self) -> None:
        """The process ended on its own: whatever it was writing has failed."""
        failed = None
        if self._current is not None:
            failed = SlowResult(self._current.ticket, error=OSError(errno.EPIPE, "the process that was writing it ended"))
        self._drop(failed)

    def _send_next(self, now_ns: int) -> None:
        if self._current is not None or not self._waiting:
            return
        request = self._waiting.popleft()
        self._current, self._sent_ns = request, now_ns
        link = self._link or self._start()
        try:
            link.socket.send(request.encode())
        except OSError:
            self._lost()


def _decode_result(ticket: int, data: bytes) -> SlowResult:
    answer = json.loads(data)
    if answer["errno"] is not None:
        return SlowResult(ticket, error=OSError(answer["errno"], answer["message"]))
    return SlowResult(ticket, found=answer["found"])


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        sys.exit(0)


def _answer(kinds: KnobKinds, knobs: dict[KnobRef, Knob], data: bytes) -> dict[str, object]:
    request = json.loads(data)
    ref = KnobRef(request["kind"], tuple(request["address"]))
    try:
        return {"errno": None, "found": _carry_out(kinds, knobs, ref, request["value"])}
    except Exception as error:  # noqa: BLE001 - whatever a knob raises is the other side's to judge
        number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
        return {"errno": number, "message": str(error) or repr(error)}


def _carry_out(kinds: KnobKinds, knobs: dict[KnobRef, Knob], ref: KnobRef, value: str | None) -> str | None:
    """Write and read back. A knob that was kept may be that of a group which was made anew since: then once more with a new one."""
    kept = knobs.pop(ref, None)
    knob = kept or kinds[ref.kind].make(ref.address)
    try:
        if value is None:
            knob.restore(None)
        else:
            knob.write(value)
        found = knob.read()
    except OSError as error:
        if kept is None or error.errno not in VANISHED:
            raise
        return _carry_out(kinds, knobs, ref, value)
    knobs[ref] = knob
    return found


def main() -> None:
    """Serve requests until the other end closes: ``slow_writer FD PARENT_PID MODULE:ATTRIBUTE``."""
    fd, parent, kinds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    _die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the socket
    module, _, attribute = kinds.partition(":")
    table = getattr(importlib.import_module(module), attribute)
    knobs: dict[KnobRef, Knob] = {}
    with socket.socket(fileno=fd) as server, contextlib.suppress(ConnectionError):  # the parent was killed: so are we, in a moment
        while data := server.recv(_MESSAGE_BYTES):
            server.send(json.dumps(_answer(table, knobs, data)).encode())


if __name__ == "__main__":
    main()

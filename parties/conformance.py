"""Checks any client of the histogram socket against ``docs/histogram-socket.md``.

    python -m parties.conformance [--service NAME] [--duration 5s] [--socket PATH] [--json] -- COMMAND...

opens a private socket and runs COMMAND with ``PARTIES_HISTOGRAM_SOCKET`` and ``PARTIES_SERVICE`` in its environment, and with
``{socket}`` and ``{service}`` replaced in its arguments. Every message is checked by itself and against those before it. Exit code
0: conforms; 1: it does not; 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from monitors.histogram_message import (
    MAX_MESSAGE_BYTES,
    Hello,
    MessageError,
    Window,
    encode_answer,
    encode_welcome,
    parse_message,
)
from parties.histogram import lower

MS = 1_000_000
NS_PER_S = 1_000_000_000
INTERVAL_NS = 500 * MS
SUB_INTERVAL_NS = 100 * MS
TOLERANCE_NS = MS  # of ages: clocks are read at different moments
SHOWN_PER_RULE = 5
_UNITS_NS = {"ms": MS, "s": NS_PER_S, "min": 60 * NS_PER_S}


class ConformanceError(Exception):
    """The command could not be tried. The message says what, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule (or one piece of advice)."""

    rule: str
    client: str
    sequence: int | None
    text: str

    def __str__(self) -> str:
        place = "" if self.sequence is None else f"client {self.client!r}, message {self.sequence}: "
        return f"{self.rule}: {place}{self.text}"


@dataclass(slots=True)
class Verdict:
    """What came of it. ``violations`` and ``advice`` hold the first few of each rule, ``counts`` how many there were."""

    service: str
    command: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    messages: int = 0
    scheduled: int = 0
    completed: int = 0
    failed: int = 0
    unsent: int = 0
    violations: list[Finding] = field(default_factory=list)
    advice: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def conforms(self) -> bool:
        """Whether no rule was broken."""
        return not self.violations

    def to_json(self) -> str:
        """The verdict for programs."""
        return json.dumps({"version": 1, "conforms": self.conforms, **asdict(self)}, indent=2)

    def __str__(self) -> str:
        requests = f"{self.scheduled} requests due, {self.completed} completed, {self.failed} failed, {self.unsent} unsent"
        lines = [f"{self.messages} messages of {len(self.clients)} clients: {requests}"]
        lines += [f"violation  {finding}" for finding in self.violations]
        lines += [f"advice     {finding}" for finding in self.advice]
        shown = {finding.rule for finding in (*self.violations, *self.advice)}
        lines += [
            f"           {rule}: {count - SHOWN_PER_RULE} more"
            for rule, count in self.counts.items()
            if rule in shown and count > SHOWN_PER_RULE
        ]
        lines.append("conforms" if self.conforms else "does not conform")
        return "\n".join(lines)


@dataclass(slots=True)
class _Client:
    """Where one client stands."""

    connection: int
    window: Window
    expected: int  # outstanding requests, going by the counts so far


class Checker:
    """The rules, without a socket: messages in, findings out. Times are CLOCK_MONOTONIC ns; ``start_ns`` is the command's start."""

    def __init__(self, service: str, start_ns: int) -> None:
        self.verdict = Verdict(service)
        self._start_ns = start_ns
        self._clients: dict[str, _Client] = {}
        self._open: set[int] = set()

    def opened(self, connection: int) -> None:
        """A connection was made."""
        self._open.add(connection)

    def closed(self, connection: int) -> None:
        """A connection ended."""
        self._open.discard(connection)

    def message(self, connection: int, data: bytes, now_ns: int) -> bytes | None:
        """Check one message; what the daemon would answer, if anything."""
        try:
            message = parse_message(data)
        except MessageError as error:
            self._violation("schema", None, str(error))
            return encode_answer(str(error))
        if isinstance(message, Hello):
            return encode_welcome((self.verdict.service,), INTERVAL_NS, SUB_INTERVAL_NS)
        self._count(message)
        self._check_alone(message, now_ns)
        client = self._clients.get(message.client)
        before = None if client is None else client.window
        if client is None or before is None:
            expected = message.outstanding
            if _balance(message) > message.outstanding:
                self._violation(
                    "balance", message, f"{_balance(message)} are unaccounted for, and {message.outstanding} outstanding"
                )
            self.verdict.clients.append(message.client)
        else:
            if client.connection != connection and client.connection in self._open:
                self._violation("name", message, "another open connection reports under this name; it must be unique")
            expected = self._check_after(message, before, client.expected)
        self._clients[message.client] = _Client(connection, message, expected)
        return None

    def finish(self, end_ns: int) -> Verdict:
        """The verdict, the command having ended (or been told to end) then."""
        if not self._clients:
            self._violation(
                "silence", None, "no window came; connect to $PARTIES_HISTOGRAM_SOCKET and send one in every 100 ms to 500 ms"
            )
        newest = max((client.window for client in self._clients.values()), key=lambda window: window.window_end_ns, default=None)
        if newest is not None:
            silent_ns = end_ns - newest.window_end_ns
            if silent_ns > 2 * INTERVAL_NS:
                self._violation("silence", newest, f"nothing came for {silent_ns // MS} ms at the end; send zeros while idle")
        return self.verdict

    def command_failed(self, text: str) -> None:
        """The command itself did not do well."""
        self._violation("command", None, text)

    def _violation(self, rule: str, window: Window | None, text: str) -> None:
        self._find(self.verdict.violations, rule, window, text)

    def _find(self, findings: list[Finding], rule: str, window: Window | None, text: str) -> None:
        count = self.verdict.counts[rule] = self.verdict.counts.get(rule, 0) + 1
        if count <= SHOWN_PER_RULE:
            findings.append(Finding(rule, window.client if window else "", window.sequence if window else None, text))

    def _count(self, window: Window) -> None:
        self.verdict.messages += 1
        self.verdict.scheduled += window.scheduled
        self.verdict.completed += window.completed
        self.verdict.failed += window.failed
        self.verdict.unsent += window.unsent

    def _check_alone(self, window: Window, now_ns: int) -> None:
        """What one window tells by itself, and beside the clock."""
        if window.service != self.verdict.service:
            self._violation("service", window, f"its service is {window.service!a}, not {self.verdict.service!a}")
        late_ns = now_ns - window.window_end_ns
        if late_ns < 0:
            self._violation("future", window, f"it ends {-late_ns} ns after it was received; use CLOCK_MONOTONIC")
        elif late_ns > INTERVAL_NS:
            self._violation("late", window, f"it was received {late_ns // MS} ms after its end; send it when it ends")
        width_ns = window.window_end_ns - window.window_start_ns
        if width_ns > INTERVAL_NS + SUB_INTERVAL_NS:
            self._violation("length", window, f"it is {width_ns // MS} ms long; send one in every 100 ms to 500 ms")
        if window.window_end_ns % SUB_INTERVAL_NS:
            text = f"it does not end on a multiple of {SUB_INTERVAL_NS // MS} ms, as the hello's answer asks for"
            self._find(self.verdict.advice, "aligned", window, text)
        oldest_ns = max(window.oldest_outstanding_ns, lower(max(window.histogram.counts, default=0)))
        if oldest_ns > window.window_end_ns - self._start_ns + TOLERANCE_NS:
            self._violation(
                "age", window, f"a latency or age of {oldest_ns} ns reaches back before the client's start; the unit is ns"
            )

    def _check_after(self, window: Window, before: Window, expected: int) -> int:
        """What a window tells beside the client's previous one; the number of outstanding requests by the counts so far."""
        if window.sequence <= before.sequence:
            self._violation("sequence", window, f"it follows {before.sequence}; the sequence must rise by one")
        elif window.sequence > before.sequence + 1:
            self._violation(
                "sequence", window, f"it follows {before.sequence}; {window.sequence - before.sequence - 1} are missing"
            )
        gap_ns = window.window_start_ns - before.window_end_ns
        if gap_ns < 0:
            self._violation("overlap", window, f"it begins {-gap_ns} ns before the previous one's end")
        width_ns = max(before.window_end_ns - before.window_start_ns, window.window_end_ns - window.window_start_ns)
        if gap_ns > width_ns:
            self._violation("gap", window, f"{gap_ns // MS} ms since the previous one's end are missing; send zeros while idle")
        self._check_oldest(window, before)
        expected += _balance(window)
        if window.sequence != before.sequence + 1:
            return window.outstanding  # what is missing cannot be added up
        if abs(expected - window.outstanding) > max(2, window.scheduled // 100):
            self._violation(
                "balance",
                window,
                f"'outstanding' is {window.outstanding}, and it should be {expected}: "
                "what was outstanding before, plus scheduled, less completed, failed and unsent",
            )
            return window.outstanding
        return expected

    def _check_oldest(self, window: Window, before: Window) -> None:
        """The oldest outstanding request can only be replaced by a younger one, and ages while nothing ends."""
        if not (window.outstanding and before.outstanding):
            return
        start_ns = window.window_end_ns - window.oldest_outstanding_ns
        start_before_ns = before.window_end_ns - before.oldest_outstanding_ns
        ended = window.completed + window.failed + window.unsent
        if start_ns < start_before_ns - TOLERANCE_NS:
            self._violation(
                "oldest",
                window,
                f"the oldest outstanding request began {start_before_ns - start_ns} ns before the one that was the oldest",
            )
        elif not ended and start_ns > start_before_ns + TOLERANCE_NS:
            self._violation("oldest", window, "nothing ended in the window, and the oldest outstanding request did not age with it")


def _balance(window: Window) -> int:
    """By how much a window changes the number of outstanding requests."""
    return window.scheduled - window.completed - window.failed - window.unsent


def run(
    command: Sequence[str], *, service: str = "conformance", duration_ns: int = 5 * NS_PER_S, socket_path: Path | None = None
) -> Verdict:
    """Run a client for so long and judge it. Raises ConformanceError if it cannot be run."""
    with contextlib.ExitStack() as stack:
        if socket_path is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="parties-conformance-"))
            socket_path = Path(directory) / "histogram.sock"
        server = stack.enter_context(_Server(socket_path))
        start_ns = time.monotonic_ns()
        checker = Checker(service, start_ns)
        checker.verdict.command = [_filled(word, socket_path, service) for word in command]
        child = stack.enter_context(_child(checker.verdict.command, socket_path, service))
        deadline_ns = start_ns + duration_ns
        while child.poll() is None and time.monotonic_ns() < deadline_ns:
            server.serve(checker, min(0.05, max(0.0, (deadline_ns - time.monotonic_ns()) / NS_PER_S)))
        end_ns = time.monotonic_ns()
        if child.poll():
            checker.command_failed(f"the command ended by itself with exit code {child.returncode}")
        _stop(child, server, checker)
        server.serve(checker, 0)
        return checker.finish(end_ns)


def _filled(word: str, socket_path: Path, service: str) -> str:
    return word.replace("{socket}", str(socket_path)).replace("{service}", service)


@contextlib.contextmanager
def _child(command: Sequence[str], socket_path: Path, service: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a session of its own, so that its children can be ended with it."""
    # Its output goes to standard error, as standard output is the verdict's.
    environment = {**os.environ, "PARTIES_HISTOGRAM_SOCKET": str(socket_path), "PARTIES_SERVICE": service}
    try:
        child = subprocess.Popen(command, env=environment, stdout=2, start_new_session=True)  # noqa: S603 - what it is for
    except OSError as error:
        raise ConformanceError(f"cannot run {command[0]}: {error.strerror}; name a program that can be run") from None
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _stop(child: subprocess.Popen[bytes], server: _Server, checker: Checker) -> None:
    """Ask the command to end, and listen to its last words for two seconds."""
    child.terminate()
    deadline_ns = time.monotonic_ns() + 2 * NS_PER_S
    while child.poll() is None and time.monotonic_ns() < deadline_ns:
        server.serve(checker, 0.05)


class _Server:
    """A private socket that hands every message to the checker."""

    def __init__(self, path: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._path = path
        try:
            self._listener.bind(str(path))
        except OSError as error:
            self._listener.close()
            raise ConformanceError(f"cannot listen on {path}: {error.strerror or error}; choose another --socket") from None
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, 0)
        self._opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def serve(self, checker: Checker, timeout_s: float) -> None:
        """Wait that long for something, then take in all there is."""
        while ready := self._selector.select(timeout_s):
            timeout_s = 0
            for key, _ in ready:
                if isinstance(key.fileobj, socket.socket):
                    self._ready(checker, key.fileobj, key.data)

    def _ready(self, checker: Checker, sock: socket.socket, connection: int) -> None:
        if sock is self._listener:
            accepted, _ = sock.accept()
            accepted.setblocking(False)
            self._opened += 1
            self._selector.register(accepted, selectors.EVENT_READ, self._opened)
            checker.opened(self._opened)
            return
        try:
            data = sock.recv(MAX_MESSAGE_BYTES + 1)
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(sock)
            sock.close()
            checker.closed(connection)
            return
        answer = checker.message(connection, data, time.monotonic_ns())
        if answer is not None:
            with contextlib.suppress(OSError):  # who does not read loses it
                sock.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _duration_ns(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)(ms|s|min)", text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f'{text!r} is not a duration; say "500ms", "5s" or "1min"')
    return int(found[1]) * _UNITS_NS[found[2]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m parties.conformance", description="Check a client of the histogram socket.")
    parser.add_argument("--service", default="conformance", help="the service that the client reports for (default: %(default)s)")
    parser.add_argument("--duration", default="5s", type=_duration_ns, help="how long it runs (default: %(default)s)")
    parser.add_argument("--socket", type=Path, help="where to listen (default: a private path)")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="the client and its arguments; {socket} and {service} are filled in"
    )
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("name the client to run, after --")
    try:
        verdict = run(command, service=options.service, duration_ns=options.duration, socket_path=options.socket)
    except ConformanceError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line
        return 2
    print(verdict.to_json() if options.json else verdict)  # noqa: T201 - a command line
    return 0 if verdict.conforms else 1


if __name__ == "__main__":
    sys.exit(main())

"""The front's side of the control process: start it, hear it, stop it.

The control process is another process, so that nothing that is busy or slow here delays its tick. It gets its settings on one
descriptor and sends datagrams of JSON on another; when ours closes, it stops and puts everything back.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from parties.codec import to_json
from parties.model import NS_PER_S
from parties.settings import ControlSettings
from parties.signals import waking

STOP_LIMIT_NS = 15 * NS_PER_S
"""How long a stopped control process may take to put everything back."""

_MESSAGE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16

Message = dict[str, Any]
Argv = Callable[[int, int], Sequence[str]]


def control_argv(settings_fd: int, front_fd: int) -> Sequence[str]:
    """The control process's command line."""
    return [sys.executable, "-m", "parties.control", "--settings-fd", str(settings_fd), "--front-fd", str(front_fd)]


@dataclass(slots=True)
class Ending:
    """How a run came to its end. ``exit_code`` is None if the process is still at work, negative for a signal."""

    pid: int
    exit_code: int | None
    report: Message | None = None
    interrupted: bool = False
    errors: str = ""  # what it wrote to standard error


@dataclass(slots=True)
class Stop:
    """What the front was asked to do by signals."""

    requested: bool = False
    interrupted: bool = False
    wake: socket.socket = field(init=False)  # readable after a signal


@dataclass(frozen=True, slots=True)
class Launch:
    """How the control process is started and ended.

    ``show_errors`` leaves its standard error on ours instead of keeping it for the end; ``limit_ns`` is what it has to put
    everything back once it was asked to stop.
    """

    argv: Argv = control_argv
    show_errors: bool = False
    limit_ns: int = STOP_LIMIT_NS


def follow(
    settings: ControlSettings,
    show: Callable[[Message], object],
    *,
    duration_ns: int | None = None,
    launch: Launch | None = None,
) -> Ending:
    """Run a control process and hand every message of it to ``show``, until it has ended or its time to do so is over.

    It is asked to end by SIGINT, SIGTERM or SIGHUP to us, ``duration_ns`` after its start, and by whatever ``show`` raises.
    """
    with _signals() as stop, contextlib.closing(ControlProcess(settings, launch or Launch())) as process:
        return process.follow(show, stop, duration_ns)


class ControlProcess:
    """A running control process."""

    def __init__(self, settings: ControlSettings, launch: Launch) -> None:
        self._limit_ns = launch.limit_ns
        self._front, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings_fd = os.memfd_create("parties-settings")
        self._errors = None if launch.show_errors else tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        try:
            os.write(settings_fd, json.dumps(to_json(settings)).encode())
            os.lseek(settings_fd, 0, os.SEEK_SET)
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                launch.argv(settings_fd, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=self._errors or sys.stderr,
                stderr=self._errors,
                pass_fds=(settings_fd, theirs.fileno()),
                start_new_session=True,  # Ctrl-C is for the front, which stops it in order
            )
        finally:
            os.close(settings_fd)
            theirs.close()

    def follow(self, show: Callable[[Message], object], stop: Stop, duration_ns: int | None) -> Ending:
        """See the function of that name."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._front, selectors.EVENT_READ)
            selector.register(stop.wake, selectors.EVENT_READ)
            try:
                report = self._follow(show, stop, selector, duration_ns)
            except BaseException:
                self._stop()
                self._wait(self._limit_ns)
                raise
        return Ending(self._process.pid, self._process.poll(), report, stop.interrupted, self._error_text())

    def close(self) -> None:
        """Give up descriptors; a process that is still there sees its front go away, and stops."""
        self._front.close()
        if self._errors is not None:
            self._errors.close()

    def _follow(
        self, show: Callable[[Message], object], stop: Stop, selector: selectors.BaseSelector, duration_ns: int | None
    ) -> Message | None:
        report: Message | None = None
        deadline_ns: int | None = None  # of the run; once it is stopping, of its end
        stopping = False
        while True:
            late = deadline_ns is not None and time.monotonic_ns() >= deadline_ns
            if stopping and late:
                return report
            if not stopping and (stop.requested or late):
                self._stop()
                stopping, deadline_ns = True, time.monotonic_ns() + self._limit_ns
            for message in self._messages(stop, selector, deadline_ns):
                if message is None:  # it has closed its end and is about to exit
                    self._wait(self._limit_ns)
                    return report
                if message.get("type") == "started" and duration_ns is not None and not stopping:
                    deadline_ns = time.monotonic_ns() + duration_ns
                if message.get("type") == "stopped":
                    report = message.get("report")
                show(message)

    def _messages(self, stop: Stop, selector: selectors.BaseSelector, deadline_ns: int | None) -> Iterator[Message | None]:
        """What comes until the deadline or a signal, at most one round; None is the end."""
        timeout = None if deadline_ns is None else max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S
        for key, _ in selector.select(timeout):
            if key.fileobj is stop.wake:
                with contextlib.suppress(BlockingIOError):
                    stop.wake.recv(64)
                continue
            data = self._receive()
            yield json.loads(data) if data else None

    def _receive(self) -> bytes:
        try:
            return self._front.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it ended with a message of ours unread
            return b""

    def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def _wait(self, limit_ns: int) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit_ns / NS_PER_S)

    def _error_text(self) -> str:
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL_BYTES))
        return self._errors.read().decode(errors="replace")


@contextlib.contextmanager
def _signals() -> Iterator[Stop]:
    """Signals that ask for a stop are noted, and wake the selector, meanwhile."""
    stop = Stop()

    def asked(number: int) -> None:
        stop.requested = True
        stop.interrupted |= number == signal.SIGINT

    with waking((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), asked) as stop.wake:
        yield stop

"""The front's side of the control process: start it, hear it, stop it, and follow it with another one at a reload.

The control process is another process, so that nothing that is busy or slow here delays its tick. It gets its settings on one
descriptor and sends datagrams of JSON on another; when ours closes, it stops and puts everything back.
"""

from __future__ import annotations

import contextlib
import enum
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
from parties.signals import held, waking

STOP_LIMIT_NS = 60 * NS_PER_S
"""How long a stopped control process may take to put everything back, or to leave it to the next one.

A service manager that is asked to read its units anew takes seconds on a busy machine. The unit's TimeoutStopSec is longer."""

_MESSAGE_BYTES = 1 << 20
_TAIL_BYTES = 1 << 16

Message = dict[str, Any]
Argv = Callable[[int, int], Sequence[str]]


def control_argv(settings_fd: int, front_fd: int) -> Sequence[str]:
    """The control process's command line."""
    return [sys.executable, "-m", "parties.control", "--settings-fd", str(settings_fd), "--front-fd", str(front_fd)]


@dataclass(slots=True)
class Ending:
    """How a run came to its end. ``exit_code`` is None if the process is still at work, negative for a signal.

    ``started`` says that its loop began; ``left`` that its values are still in force, for the daemon that follows; ``orphaned``
    that they are, and a stop came after that: none will follow; ``hung`` that the service manager's watchdog had it killed.
    """

    pid: int
    exit_code: int | None
    report: Message | None = None
    interrupted: bool = False
    errors: str = ""  # what it wrote to standard error
    started: bool = False
    left: bool = False
    orphaned: bool = False
    hung: bool = False


class Wish(enum.IntEnum):
    """What a front is asked for by signals. A greater one overrules a smaller one."""

    NOTHING = 0
    RELOAD = 1
    LEAVE = 2  # end, with everything left in force
    STOP = 3
    KILL = 4  # the service manager's watchdog: it hangs


_WISHES = {
    signal.SIGHUP: Wish.RELOAD,
    signal.SIGUSR1: Wish.LEAVE,
    signal.SIGINT: Wish.STOP,
    signal.SIGTERM: Wish.STOP,
    signal.SIGABRT: Wish.KILL,
}


@dataclass(slots=True)
class Asked:
    """What the front was asked for so far."""

    wish: Wish = Wish.NOTHING
    interrupted: bool = False
    wake: socket.socket = field(init=False)  # readable after a signal

    def done(self, wish: Wish) -> None:
        """It was carried out, or turned out to be impossible; what overruled it meanwhile stays."""
        if self.wish is wish:
            self.wish = Wish.NOTHING


@dataclass(frozen=True, slots=True)
class Launch:
    """How the control process is started and ended.

    ``show_errors`` leaves its standard error on ours instead of keeping it for the end; ``limit_ns`` is what it has to put
    everything back once it was asked to stop; ``shadow`` has it write nothing. ``restarting`` tells, at a stop, whether another
    daemon is about to follow, so that everything is left in force.
    """

    argv: Argv = control_argv
    show_errors: bool = False
    limit_ns: int = STOP_LIMIT_NS
    shadow: bool = False
    restarting: Callable[[], bool] = lambda: False


def no_reload() -> ControlSettings | None:
    """For runs whose settings are not from a file: SIGHUP changes nothing."""
    return None


def follow(
    settings: ControlSettings,
    show: Callable[[Message], object],
    *,
    duration_ns: int | None = None,
    launch: Launch | None = None,
    reload: Callable[[], ControlSettings | None] = no_reload,
) -> Ending:
    """Run a control process and hand every message of it to ``show``, until it has ended or its time to do so is over.

    It is asked to end by SIGINT or SIGTERM to us, ``duration_ns`` after its start, and by whatever ``show`` raises; by SIGUSR1 to
    end and leave everything in force. At SIGHUP ``reload`` gives other settings, or None if the ones of now are to stay: the
    control process leaves everything in force and another one goes on with them; if that cannot begin, one with the earlier
    settings does. At SIGABRT it is killed.
    """
    with _signals() as asked:
        return _Run(settings, show, asked, launch or Launch(), reload, duration_ns).to_its_end()


@dataclass(slots=True)
class _Run:
    """Control processes that follow each other, one for each reload."""

    settings: ControlSettings
    show: Callable[[Message], object]
    asked: Asked
    launch: Launch
    reload: Callable[[], ControlSettings | None]
    duration_ns: int | None
    following: ControlSettings | None = None
    end_ns: int | None = None  # of all of them, once the first has started
    _restart: bool | None = None

    def to_its_end(self) -> Ending:
        """Until one ends that none is to follow."""
        ending = self._one(self.settings)
        while self.following is not None and ending.left and self.asked.wish <= Wish.RELOAD:
            earlier, self.settings, self.following = self.settings, self.following, None
            ending = self._one(self.settings, hand_back=True)
            if not ending.started and ending.exit_code and self.asked.wish <= Wish.RELOAD:
                cause = ending.errors.strip() or f"exit code {ending.exit_code}"
                self.show(_event("error", f"reload failed, the earlier configuration is in force again: {cause}"))
                self.settings = earlier
                ending = self._one(earlier)
        ending.orphaned = ending.left and self.asked.wish >= Wish.STOP and not self.is_restart()
        ending.interrupted = self.asked.interrupted
        return ending

    def is_restart(self) -> bool:
        """Whether the stop that was asked for is the first half of a restart; found out once."""
        if self._restart is None:
            self._restart = self.launch.restarting()
        return self._restart

    def _one(self, settings: ControlSettings, *, hand_back: bool = False) -> Ending:
        with contextlib.closing(ControlProcess(settings, self.launch, hand_back=hand_back)) as process:
            return process.follow(self)


class ControlProcess:
    """A running control process."""

    def __init__(self, settings: ControlSettings, launch: Launch, *, hand_back: bool = False) -> None:
        self._launch = launch
        self._front, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings_fd = os.memfd_create("parties-settings")
        self._errors = None if launch.show_errors else tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        flags = [*(["--shadow"] if launch.shadow else []), *(["--hand-back"] if hand_back else [])]
        try:
            os.write(settings_fd, json.dumps(to_json(settings)).encode())
            os.lseek(settings_fd, 0, os.SEEK_SET)
            with held():  # it inherits this, so that none ends it before it listens
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [*launch.argv(settings_fd, theirs.fileno()), *flags],
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors or sys.stderr,
                    stderr=self._errors,
                    pass_fds=(settings_fd, theirs.fileno()),
                    start_new_session=True,  # Ctrl-C is for the front, which stops it in order
                )
        finally:
            os.close(settings_fd)
            theirs.close()
        self._ending = Ending(self._process.pid, None)
        self._deadline_ns: int | None = None  # of its end, once it was asked to
        self._heeded = Wish.NOTHING

    def follow(self, run: _Run) -> Ending:
        """Hand on its messages and heed what is asked for, until it has ended or its time to do so is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._front, selectors.EVENT_READ)
            selector.register(run.asked.wake, selectors.EVENT_READ)
            try:
                while self._heed(run) and self._take_in(run, selector):
                    pass
            except BaseException:
                self._signal(signal.SIGTERM)
                self._wait()
                raise
        self._ending.exit_code = self._process.poll()
        self._ending.errors = self._error_text()
        report = self._ending.report
        self._ending.left = self._ending.exit_code == 0 and bool(report and report.get("left_in_force"))
        return self._ending

    def close(self) -> None:
        """Give up descriptors; a process that is still there sees its front go away, and stops."""
        self._front.close()
        if self._errors is not None:
            self._errors.close()

    def _heed(self, run: _Run) -> bool:
        """Pass on what is asked for and was not yet; False once its time to end is over."""
        now_ns = time.monotonic_ns()
        if self._deadline_ns is not None and now_ns >= self._deadline_ns:
            return False
        wish = run.asked.wish
        if run.end_ns is not None and now_ns >= run.end_ns:
            wish = max(wish, Wish.STOP)
        if wish <= self._heeded or (wish is Wish.RELOAD and not self._ending.started):
            return True
        if self._ending.report is not None and wish < Wish.KILL:
            return True  # it has said its last word, and a signal would only spoil its exit code
        if wish is Wish.RELOAD:
            run.following = run.reload()
            run.asked.done(Wish.RELOAD)
            if run.following is None:
                return True
        leave = wish <= Wish.LEAVE or (wish is Wish.STOP and run.is_restart())
        self._ending.hung = wish is Wish.KILL
        self._signal(signal.SIGKILL if wish is Wish.KILL else signal.SIGUSR1 if leave else signal.SIGTERM)
        self._heeded, self._deadline_ns = wish, now_ns + self._launch.limit_ns
        return True

    def _take_in(self, run: _Run, selector: selectors.BaseSelector) -> bool:
        """What comes until the deadline or a signal, at most one round; False at its end."""
        for message in self._messages(run.asked, selector, self._deadline_ns or run.end_ns):
            if message is None:  # it has closed its end and is about to exit
                self._wait()
                return False
            if message.get("type") == "started":
                self._ending.started = True
                if run.duration_ns is not None and run.end_ns is None:
                    run.end_ns = time.monotonic_ns() + run.duration_ns
            elif message.get("type") == "stopped":
                self._ending.report = message.get("report")
            run.show(message)
        return True

    def _messages(self, asked: Asked, selector: selectors.BaseSelector, deadline_ns: int | None) -> Iterator[Message | None]:
        timeout = None if deadline_ns is None else max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S
        for key, _ in selector.select(timeout):
            if key.fileobj is asked.wake:
                with contextlib.suppress(BlockingIOError):
                    asked.wake.recv(64)
                continue
            data = self._receive()
            yield json.loads(data) if data else None

    def _receive(self) -> bytes:
        try:
            return self._front.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it ended with a message of ours unread
            return b""

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._launch.limit_ns / NS_PER_S)

    def _error_text(self) -> str:
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _TAIL_BYTES))
        return self._errors.read().decode(errors="replace")


def _event(level: str, text: str) -> Message:
    return {"type": "event", "level": level, "text": text}


@contextlib.contextmanager
def _signals() -> Iterator[Asked]:
    """Signals that ask for something are noted, and wake the selector, meanwhile."""
    asked = Asked()
    terminal = _has_terminal()

    def note(number: int) -> None:
        wish = _WISHES[signal.Signals(number)]
        if wish is Wish.RELOAD and terminal and not _has_terminal():
            wish = Wish.STOP  # the terminal was closed: this is its hangup, and no operator's wish
        asked.wish = max(asked.wish, wish)
        asked.interrupted |= number == signal.SIGINT

    with waking(_WISHES, note) as asked.wake:
        yield asked


def _has_terminal() -> bool:
    """Whether a terminal controls us, and is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True

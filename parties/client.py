"""The client that an application imports to report its latencies to the daemon (``docs/histogram-socket.md``).

It depends on nothing but the standard library, never blocks the application and never raises into it: without a daemon the windows
are lost and counted, and the connection is made again when there is one.

    with HistogramClient("/run/parties/histogram.sock", "search") as client:
        with client.request():
            answer = search(query)
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from parties.histogram import Histogram

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_WINDOW_NS = 100_000_000
_VERSION = 1
_NS_PER_S = 1_000_000_000
_ANSWER_BYTES = 65_536
_log = logging.getLogger(__name__)


class ClientError(Exception):
    """A window that was not taken; raised only by ``flush`` of a strict client."""


class HistogramClient:
    """Counts requests and sends one window after the other.

    Args:
        path: the daemon's socket.
        service: the service's name in the daemon's configuration.
        client: who reports; unique among the service's clients. By default the process id and a number in the process.
        window_ns: the windows' length; they end on its multiples. By default what the daemon asks for (100 ms until it is heard).
        background: send from a thread of its own; otherwise the application calls ``flush`` about once in every window.
        strict: ``flush`` raises ClientError where a window is not taken. For tests.
        on_refusal: called with each refusal by the daemon; by default each different one is logged once, as a warning.
        now_ns: the clock, CLOCK_MONOTONIC.

    All methods may be called from any thread. After ``os.fork`` the child makes a client of its own.
    """

    _made = 0

    def __init__(  # noqa: PLR0913 - independent options, by keyword
        self,
        path: str | os.PathLike[str],
        service: str,
        client: str | None = None,
        *,
        window_ns: int | None = None,
        background: bool = True,
        strict: bool = False,
        on_refusal: Callable[[str], None] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        HistogramClient._made += 1
        self.service = service
        self.client = client or f"{os.getpid()}-{HistogramClient._made}"
        self.lost_windows = 0
        self.sent_windows = 0
        self._fixed_window = window_ns is not None
        self._window_ns = window_ns or DEFAULT_WINDOW_NS
        self._strict = strict
        self._on_refusal = on_refusal or _logged_once()
        self._now_ns = now_ns
        self._lock = threading.Lock()  # of the counts
        self._sending = threading.Lock()  # of the link: one window leaves at a time
        self._link = _Link(os.fspath(path))
        self._counts = _Counts()
        self._requests: dict[int, int] = {}  # number -> intended start
        self._told_outstanding: tuple[int, int] | None = None
        self._next_request = 0
        self._sequence = 0
        self._end_ns = now_ns()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="parties-histogram", daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def record(self, latency_ns: int, count: int = 1) -> None:
        """Report good answers after the fact, their whole life at once: due, sent and completed."""
        with self._lock:
            self._counts.scheduled += count
            self._counts.sent += count
            self._counts.histogram.add(latency_ns, count)

    def failed(self, count: int = 1) -> None:
        """Report failed requests after the fact: due, sent and failed."""
        with self._lock:
            self._counts.scheduled += count
            self._counts.sent += count
            self._counts.failed += count

    def unsent(self, count: int = 1) -> None:
        """Report requests that were due and will never be sent."""
        with self._lock:
            self._counts.scheduled += count
            self._counts.unsent += count

    def scheduled(self, intended_ns: int | None = None) -> Request:
        """A request that is due (at ``intended_ns``, else now) and not sent yet; it is outstanding until it ends."""
        with self._lock:
            self._counts.scheduled += 1
            number = self._next_request
            self._next_request += 1
            start_ns = self._now_ns() if intended_ns is None else intended_ns
            self._requests[number] = start_ns
        return Request(self, number, start_ns)

    def request(self, intended_ns: int | None = None) -> Request:
        """A request that is sent now. As a context manager it completes at the block's end and fails by an exception."""
        return self.scheduled(intended_ns).sent()

    def measured(self, function: Callable[P, R]) -> Callable[P, R]:
        """A decorator: each call is one request. For a coroutine use ``with client.request():`` inside it."""

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.request():
                return function(*args, **kwargs)

        return call

    def outstanding(self, count: int, oldest_ns: int) -> None:
        """Tell how many are outstanding and the oldest's age in ns now, for applications that keep count themselves."""
        with self._lock:
            self._told_outstanding = (count, self._now_ns() - oldest_ns) if count else None

    def flush(self) -> bool:
        """Send the window from the last one's end until now; whether the daemon could be reached."""
        return self._send(self._now_ns())

    def close(self) -> None:
        """Send what is left and disconnect. More than once is no error."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(ClientError):
            self.flush()
        self._link.close()

    def _run(self) -> None:
        """Send each window when it has ended."""
        while True:
            window_ns = self._window_ns
            now_ns = self._now_ns()
            if self._stop.wait((window_ns - now_ns % window_ns) / _NS_PER_S):
                return
            now_ns = self._now_ns()
            try:
                self._send(now_ns - now_ns % window_ns)
            except ClientError as error:
                _log.debug("%s", error)
            except Exception:  # noqa: BLE001 - the application must not suffer for its measurement
                _log.exception("a window of service %s was not sent", self.service)

    def _send(self, end_ns: int) -> bool:
        """Send the window that ends then, an empty one too: that is how idle differs from stale."""
        with self._sending:
            if end_ns <= self._end_ns:
                return True
            reached = self._link.ready({"version": _VERSION, "hello": self.client})
            reached = self._link.send(self._taken(end_ns)) and reached
            if reached:
                self.sent_windows += 1
            else:
                self.lost_windows += 1
            refusals = self._heard()
        if self._strict and (refusals or not reached):
            raise ClientError(refusals[0] if refusals else f"no daemon listens on {self._link.path}")
        return reached

    def _taken(self, end_ns: int) -> dict[str, object]:
        """The window's message; counting begins anew."""
        with self._lock:
            counts, self._counts = self._counts, _Counts()
            told_count, told_start_ns = self._told_outstanding or (0, end_ns)
            outstanding = len(self._requests) + told_count
            oldest_ns = min(self._requests.values(), default=end_ns)
            start_ns, self._end_ns = self._end_ns, end_ns
            sequence, self._sequence = self._sequence, self._sequence + 1
        return {
            "version": _VERSION,
            "service": self.service,
            "client": self.client,
            "sequence": sequence,
            "window_start_ns": start_ns,
            "window_end_ns": end_ns,
            "scheduled": counts.scheduled,
            "sent": counts.sent,
            "completed": counts.histogram.count,
            "failed": counts.failed,
            "unsent": counts.unsent,
            "outstanding": outstanding,
            "oldest_outstanding_ns": max(0, end_ns - min(oldest_ns, told_start_ns)),
            "histogram": counts.histogram.encode(),
        }

    def _heard(self) -> list[str]:
        """Read the daemon's answers: its refusals, and the sub-interval that it would have."""
        refusals = []
        for answer in self._link.answers():
            if isinstance(error := answer.get("error"), str):
                refusals.append(error)
                self._on_refusal(error)
            sub_interval_ns = answer.get("sub_interval_ns")
            if not self._fixed_window and isinstance(sub_interval_ns, int) and sub_interval_ns > 0:
                self._window_ns = sub_interval_ns
        return refusals

    def _ended(self, number: int, latency_ns: int | None, *, sent: bool) -> None:
        """A request ended: answered after ``latency_ns``, or not (None)."""
        with self._lock:
            if self._requests.pop(number, None) is None:
                return  # it ended before
            if latency_ns is not None:
                self._counts.histogram.add(latency_ns)
            elif sent:
                self._counts.failed += 1
            else:
                self._counts.unsent += 1

    def _was_sent(self) -> None:
        with self._lock:
            self._counts.sent += 1


class Request:
    """One request on its way. What ends it first counts; the rest is ignored."""

    __slots__ = ("_client", "_number", "_sent", "_start_ns")

    def __init__(self, client: HistogramClient, number: int, start_ns: int) -> None:
        self._client = client
        self._number = number
        self._start_ns = start_ns
        self._sent = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.completed()
        else:
            self.failed()

    def sent(self) -> Self:
        """It was sent now."""
        if not self._sent:
            self._sent = True
            self._client._was_sent()  # noqa: SLF001 - the two are one
        return self

    def completed(self) -> None:
        """A good answer came now."""
        self.sent()
        self._client._ended(self._number, self._client._now_ns() - self._start_ns, sent=True)  # noqa: SLF001 - the two are one

    def failed(self) -> None:
        """It failed: error answer, lost connection, time-out; one that was not sent never will be."""
        self._client._ended(self._number, None, sent=self._sent)  # noqa: SLF001 - the two are one


class _Counts:
    """What was counted in a window."""

    __slots__ = ("failed", "histogram", "scheduled", "sent", "unsent")

    def __init__(self) -> None:
        self.scheduled = self.sent = self.failed = self.unsent = 0
        self.histogram = Histogram()


class _Link:
    """A connection that is made again when it breaks. Never blocks, never raises."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: socket.socket | None = None

    def ready(self, hello: dict[str, object]) -> bool:
        """Connect if there is no connection, and say hello on a new one."""
        if self._socket is not None and not self._broken(self._socket):
            return True
        self.close()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            link.connect(self.path)
        except OSError:
            link.close()
            return False
        self._socket = link
        return self.send(hello)

    @staticmethod
    def _broken(link: socket.socket) -> bool:
        """Whether the daemon closed it: found out before a window is lost on it."""
        try:
            return link.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: dict[str, object]) -> bool:
        """Send one message if it can be sent at once."""
        if self._socket is None:
            return False
        try:
            self._socket.send(json.dumps(message, separators=(",", ":")).encode(), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False  # the daemon is slow; the next window may pass
        except OSError:
            self.close()
            return False
        return True

    def answers(self) -> list[dict[str, object]]:
        """What the daemon said so far."""
        heard: list[dict[str, object]] = []
        while self._socket is not None:
            try:
                data = self._socket.recv(_ANSWER_BYTES)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                break
            if not data:
                self.close()
                break
            with contextlib.suppress(ValueError):
                answer = json.loads(data)
                if isinstance(answer, dict):
                    heard.append(answer)
        return heard

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _logged_once() -> Callable[[str], None]:
    """Log each different refusal once, and no more than a few: some name numbers that differ each time."""
    seen: set[str] = set()

    def log(error: str) -> None:
        if error not in seen and len(seen) < 10:  # noqa: PLR2004 - a few
            seen.add(error)
            _log.warning("the daemon refused a window: %s", error)

    return log

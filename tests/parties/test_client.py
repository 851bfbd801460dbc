"""The client that applications import: what it counts, what it sends, and that it never disturbs them."""

import ast
import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import parties.client
from monitors.histogram_message import Hello, Window, parse_message
from parties.client import ClientError, HistogramClient
from parties.histogram import Histogram

MS = 1_000_000


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_ns = 5_000 * MS

    def __call__(self) -> int:
        return self.now_ns


class Listener:
    """A daemon's end, read by hand."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(str(path))
        self.sock.listen(4)
        self.sock.settimeout(120)
        self.connection: socket.socket | None = None
        self.hellos = 0

    def accepted(self) -> socket.socket:
        if self.connection is None:
            self.connection, _ = self.sock.accept()
            self.connection.settimeout(120)
        return self.connection

    def window(self) -> Window:
        """The next window; every message must keep the schema."""
        while True:
            message = parse_message(self.accepted().recv(70_000))
            if isinstance(message, Window):
                return message
            assert isinstance(message, Hello)
            self.hellos += 1

    def answer(self, **fields: object) -> None:
        self.accepted().send(json.dumps({"version": 1, **fields}).encode())

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.sock.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def listener(path: Path) -> Iterator[Listener]:
    """A daemon that listens."""
    made = Listener(path)
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(path: Path, clock: Clock) -> Iterator[HistogramClient]:
    """A client without a thread, on the clock moved by hand."""
    made = HistogramClient(path, "search", "me", background=False, now_ns=clock)
    yield made
    made.close()


def test_the_client_depends_on_nothing_but_the_standard_library() -> None:
    """An application must be able to import it without the daemon's dependencies."""
    for module in (parties.client, sys.modules["parties.histogram"], sys.modules["parties"]):
        assert module.__file__ is not None
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name == "parties.histogram"


def test_a_window_holds_what_was_counted(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """Requests told after the fact: good, failed, unsent."""
    client.record(3 * MS)
    client.record(4 * MS, count=2)
    client.failed()
    client.unsent(5)
    clock.now_ns += 100 * MS
    assert client.flush()
    window = listener.window()
    expected = Histogram()
    expected.add(3 * MS)
    expected.add(4 * MS, 2)
    assert window == Window("search", "me", 0, 5_000 * MS, 5_100 * MS, 9, 4, 3, 1, 5, 0, 0, expected)
    assert listener.hellos == 1


def test_windows_follow_each_other_and_idle_ones_are_zero(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """No gap, no overlap, a sequence that rises by one; nothing to report is reported too."""
    windows = []
    for _ in range(3):
        clock.now_ns += 150 * MS
        client.flush()
        windows.append(listener.window())
    assert [window.sequence for window in windows] == [0, 1, 2]
    assert [window.window_start_ns for window in windows[1:]] == [window.window_end_ns for window in windows[:-1]]
    assert all(window.scheduled == window.completed == window.outstanding == 0 for window in windows)
    client.flush()  # no time has passed: there is no window to send
    clock.now_ns += MS
    client.flush()
    assert listener.window().sequence == 3


def test_requests_on_their_way_are_outstanding_with_their_age(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """From the intended send time on, sent or not, until they end."""
    late = client.scheduled(intended_ns=clock.now_ns - 30 * MS)
    quick = client.request()
    clock.now_ns += 100 * MS
    client.flush()
    window = listener.window()
    assert (window.scheduled, window.sent, window.outstanding, window.oldest_outstanding_ns) == (2, 1, 2, 130 * MS)
    quick.completed()
    late.sent()
    late.failed()
    late.failed()
    late.completed()  # what ended it first counts
    dropped = client.scheduled()
    dropped.failed()
    clock.now_ns += 100 * MS
    client.flush()
    window = listener.window()
    assert (window.scheduled, window.sent, window.completed, window.failed, window.unsent) == (1, 1, 1, 1, 1)
    assert (window.outstanding, window.oldest_outstanding_ns) == (0, 0)
    assert window.histogram.percentile(99) == pytest.approx(100 * MS, rel=0.01)


def test_latency_counts_from_the_intended_send_time(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """So that a stalled service cannot hide the requests behind it."""
    with client.request(intended_ns=clock.now_ns - 200 * MS):
        clock.now_ns += 50 * MS
    client.flush()
    assert listener.window().histogram.percentile(50) == pytest.approx(250 * MS, rel=0.01)


def test_the_context_manager_and_the_decorator_measure(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """A block is a request; an exception is a failure and passes through."""

    @client.measured
    def work(duration_ns: int) -> str:
        """Do it."""
        clock.now_ns += duration_ns
        if duration_ns > 50 * MS:
            raise ValueError
        return "done"

    with client.request():
        assert work(20 * MS) == "done"
    with contextlib.suppress(ValueError):
        work(60 * MS)
    with pytest.raises(ZeroDivisionError), client.request():
        _ = 1 / 0
    clock.now_ns += MS
    client.flush()
    window = listener.window()
    assert (window.scheduled, window.sent, window.completed, window.failed, window.outstanding) == (4, 4, 2, 2, 0)
    assert work.__doc__ == "Do it."


def test_an_application_may_count_its_outstanding_requests_itself(
    listener: Listener, client: HistogramClient, clock: Clock
) -> None:
    """And the age grows until it says something else."""
    client.outstanding(4, oldest_ns=10 * MS)
    for count, age_ns in ((4, 110 * MS), (4, 210 * MS)):
        clock.now_ns += 100 * MS
        client.flush()
        window = listener.window()
        assert (window.outstanding, window.oldest_outstanding_ns) == (count, age_ns)
    client.outstanding(0, 0)
    clock.now_ns += 100 * MS
    client.flush()
    assert listener.window().outstanding == 0


def test_without_a_daemon_windows_are_lost_and_counted(path: Path, client: HistogramClient, clock: Clock) -> None:
    """Nothing is raised; when there is a daemon its first window tells by its sequence how many are missing."""
    for _ in range(3):
        client.record(MS)
        clock.now_ns += 100 * MS
        assert not client.flush()
    assert (client.lost_windows, client.sent_windows) == (3, 0)
    listener = Listener(path)
    client.record(MS)
    clock.now_ns += 100 * MS
    assert client.flush()
    window = listener.window()
    assert (window.sequence, window.completed) == (3, 1)
    listener.close()


def test_a_restarted_daemon_is_found_again(path: Path, client: HistogramClient, clock: Clock) -> None:
    """Without losing the window that finds out."""
    for sequence in range(3):
        path.unlink(missing_ok=True)
        listener = Listener(path)
        clock.now_ns += 100 * MS
        assert client.flush()
        assert listener.window().sequence == sequence
        listener.close()
    assert client.lost_windows == 0


def test_a_daemon_that_does_not_read_never_blocks(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """The queue fills, windows are lost and counted, and it goes on when there is room."""
    for _ in range(600):
        clock.now_ns += 100 * MS
        client.flush()
    lost = client.lost_windows
    assert lost > 0
    assert client.sent_windows + lost == 600
    while listener.window().sequence < client.sent_windows - 1:
        pass
    clock.now_ns += 100 * MS
    assert client.flush()


def test_refusals_are_handed_over_or_logged_once(
    listener: Listener, client: HistogramClient, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt service must not stay unnoticed, and must not fill the log."""
    caplog.set_level(logging.WARNING)
    clock.now_ns += 100 * MS
    client.flush()
    for _ in range(3):
        listener.answer(error="service 'serach' is not registered")
        clock.now_ns += 100 * MS
        client.flush()
    assert [record.getMessage() for record in caplog.records] == ["the daemon refused a window: service 'serach' is not registered"]
    heard: list[str] = []
    listener.connection = None
    other = HistogramClient(path, "s", "other", background=False, now_ns=clock, on_refusal=heard.append)
    clock.now_ns += 100 * MS
    other.flush()
    listener.answer(error="no")
    clock.now_ns += 100 * MS
    other.flush()
    assert heard == ["no"]
    other.close()


def test_a_strict_client_raises(path: Path, clock: Clock) -> None:
    """Only when asked to: no daemon, or a refusal."""
    client = HistogramClient(path, "s", background=False, strict=True, now_ns=clock)
    clock.now_ns += MS
    with pytest.raises(ClientError, match="no daemon listens on"):
        client.flush()
    listener = Listener(path)
    clock.now_ns += MS
    client.flush()
    listener.answer(error="no such service")
    clock.now_ns += MS
    with pytest.raises(ClientError, match="no such service"):
        client.flush()
    client.close()
    listener.close()


def test_nonsense_from_the_daemon_is_ignored(listener: Listener, client: HistogramClient, clock: Clock) -> None:
    """Whatever listens there, the application goes on."""
    clock.now_ns += MS
    client.flush()
    for answer in (b"nonsense", b"[]", b"\xff\xff", b'{"sub_interval_ns":"x","error":5}', b'{"sub_interval_ns":-1}'):
        listener.accepted().send(answer)
    clock.now_ns += MS
    assert client.flush()
    assert client._window_ns == parties.client.DEFAULT_WINDOW_NS


def test_clients_of_one_process_have_different_names(path: Path) -> None:
    """Two under one name would be refused."""
    first, second = (HistogramClient(path, "s", background=False) for _ in range(2))
    assert first.client != second.client
    first.close()
    second.close()


def test_the_thread_sends_aligned_windows_as_the_daemon_asks(path: Path, listener: Listener) -> None:
    """100 ms at first, then the sub-interval of the hello's answer; the last, partial window leaves at the end."""
    with HistogramClient(path, "search") as client:
        assert listener.window().window_end_ns % (100 * MS) == 0
        listener.answer(services=["search"], interval_ns=150 * MS, sub_interval_ns=30 * MS)
        windows = [listener.window()]
        while not windows[-1].window_end_ns % (100 * MS):  # on its way before the answer was read
            windows.append(listener.window())
        asked_for = [listener.window() for _ in range(5)]
        windows += asked_for
        client.record(MS)
    windows.append(listener.window())
    while not windows[-1].completed:
        windows.append(listener.window())
    assert all(window.window_end_ns % (30 * MS) == 0 for window in asked_for)
    assert all(before.window_end_ns == after.window_start_ns for before, after in pairwise(windows))
    client.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "parties-histogram"]


def test_a_length_that_was_asked_for_stays(path: Path, listener: Listener) -> None:
    """The daemon's wish yields to the application's."""
    with HistogramClient(path, "search", window_ns=20 * MS):
        listener.window()
        listener.answer(services=[], interval_ns=150 * MS, sub_interval_ns=30 * MS)
        ends = [listener.window().window_end_ns for _ in range(6)]
    assert all(end_ns % (20 * MS) == 0 for end_ns in ends)


def test_many_threads_lose_nothing(path: Path, listener: Listener) -> None:
    """Every request of every thread is in exactly one window, whatever moment it is cut at."""
    windows: list[Window] = []

    def read() -> None:
        while sum(window.completed + window.failed + window.unsent for window in windows) < 8 * 400:
            windows.append(listener.window())

    reader = threading.Thread(target=read)
    reader.start()
    with HistogramClient(path, "search", window_ns=5 * MS) as client:

        def work() -> None:
            for number in range(100):
                with client.request():
                    time.sleep(0)
                client.record(number)
                client.failed()
                client.unsent()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader.join(timeout=120)
    assert not reader.is_alive()
    assert sum(window.completed for window in windows) == 1600
    assert sum(window.failed for window in windows) == 800
    assert sum(window.scheduled for window in windows) == 3200
    assert sum(window.sent for window in windows) == 2400
    outstanding = 0
    for window in windows:
        outstanding += window.scheduled - window.completed - window.failed - window.unsent
        assert window.outstanding == outstanding

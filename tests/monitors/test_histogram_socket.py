"""The histogram socket as its senders and the control process see it."""

import contextlib
import json
import os
import resource
import selectors
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import monitors.histogram_socket as under_test
from monitors.histogram_message import Window, encode_window
from monitors.histogram_socket import HistogramSocket, SocketError
from parties.histogram import Histogram

MS = 1_000_000


class Daemon:
    """A listening socket with its selector, and a clock to be moved by hand."""

    def __init__(self, path: Path, **options: object) -> None:
        self.path = path
        self.now_ns = 10_000 * MS
        self.windows: list[Window] = []
        self.reports: list[str] = []
        self.socket = HistogramSocket(
            path,
            ["search", "web"],
            self.windows.append,
            interval_ns=500 * MS,
            sub_interval_ns=100 * MS,
            now_ns=lambda: self.now_ns,
            report=self.reports.append,
            **options,  # type: ignore[arg-type]
        )
        self.selector = selectors.DefaultSelector()
        self.socket.attach(self.selector)

    def wake(self) -> bool:
        """One wake-up of the control process; whether there was anything."""
        ready = self.selector.select(0)
        for key, mask in ready:
            key.data(mask)
        return bool(ready)

    def work(self) -> None:
        """Wake-ups until nothing is left."""
        for _ in range(10_000):
            if not self.wake():
                return
        pytest.fail("the wake-ups do not end")

    def count(self, name: str) -> int:
        return self.socket.counters()[name]

    def sequences(self) -> list[int]:
        return [window.sequence for window in self.windows]


class Sender:
    """A connected client without manners."""

    def __init__(self, path: Path, client: str = "a") -> None:
        self.client = client
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(2)
        self.sock.connect(str(path))

    def window(self, sequence: int, *, service: str = "search", end_ns: int | None = None) -> None:
        """The window of 100 ms that goes with a sequence number, or one that ends at another time."""
        end_ns = (sequence + 1) * 100 * MS if end_ns is None else end_ns
        self.sock.send(encode_window(Window(service, self.client, sequence, end_ns - 100 * MS, end_ns)))

    def raw(self, data: bytes) -> None:
        self.sock.send(data)

    def answers(self) -> list[str]:
        """The refusals so far."""
        errors = []
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.sock.recv(65536):
                errors.append(json.loads(data).get("error", ""))
        return errors

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon's socket in a directory of its own."""
    made = Daemon(tmp_path / "histogram.sock")
    yield made
    made.socket.close()
    made.selector.close()


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[..., Sender]]:
    """Makes senders, and closes them at the end."""
    senders: list[Sender] = []

    def make(client: str = "a") -> Sender:
        senders.append(Sender(daemon.path, client))
        return senders[-1]

    yield make
    for sender in senders:
        sender.close()


Connect = Callable[..., Sender]


def test_good_windows_reach_the_sink_and_get_no_answer(daemon: Daemon, connect: Connect) -> None:
    """The plain way in, several messages of several clients."""
    first, second = connect("a"), connect("b")
    histogram = Histogram({500: 3})
    whole = Window("web", "c", 0, 0, 100 * MS, 3, 3, 3, 0, 0, 1, 5, histogram)
    first.raw(encode_window(whole))
    for sequence in range(3):
        second.window(sequence)
    daemon.work()
    assert daemon.windows[0] == whole
    assert [window.client for window in daemon.windows] == ["c", "b", "b", "b"]
    assert first.answers() == second.answers() == []
    assert daemon.count("accepted") == 4
    assert daemon.count("connections_open") == 2


def test_a_hello_is_told_services_and_intervals(daemon: Daemon, connect: Connect) -> None:
    """So that a client can line its windows up."""
    sender = connect()
    sender.raw(b'{"version": 1, "hello": "me"}')
    daemon.work()
    welcome = json.loads(sender.sock.recv(65536))
    assert welcome == {"version": 1, "services": ["search", "web"], "interval_ns": 500 * MS, "sub_interval_ns": 100 * MS}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"nonsense", "not JSON"),
        (b"", "not JSON"),
        (b"x" * 65_537, "longer than 65536 bytes"),
        (b"x" * 100_000, "longer than 65536 bytes"),
        (encode_window(Window("serach", "a", 0, 0, 1)), "service 'serach' is not registered; registered are: search, web"),
        (encode_window(Window("search", "a", 0, 0, 10_001 * MS)), "in the future; send a window after its end"),
    ],
)
def test_a_refused_message_is_answered_and_the_connection_stays(daemon: Daemon, connect: Connect, data: bytes, what: str) -> None:
    """What, where, what to do; the next good message is taken, and the operator gets one line that names the sender."""
    sender = connect()
    sender.raw(data)
    daemon.work()
    sender.raw(data)
    daemon.work()
    sender.window(0)
    daemon.work()
    answers = sender.answers()
    assert len(answers) == 2
    assert what in answers[0]
    assert daemon.sequences() == [0]
    assert daemon.count("refused") == 2
    assert len(daemon.reports) == 1
    assert f"process {os.getpid()} (" in daemon.reports[0]
    assert f"user {os.getuid()}" in daemon.reports[0]


def test_a_client_that_does_not_read_loses_its_answers_only(daemon: Daemon, connect: Connect) -> None:
    """The daemon never waits for a reader."""
    sender = connect()
    for _ in range(60):
        for _ in range(9):
            sender.raw(b"x")
        daemon.work()
    sender.window(0)
    daemon.work()
    assert daemon.count("answers_lost") > 0
    assert daemon.sequences() == [0]


def test_duplicates_and_out_of_order_windows_are_dropped_and_counted(daemon: Daemon, connect: Connect) -> None:
    """No sample counts twice."""
    sender = connect()
    for sequence in (0, 1, 1, 0, 2):
        sender.window(sequence)
    sender.window(3, end_ns=200 * MS)  # a later number, an earlier window
    daemon.work()
    assert daemon.sequences() == [0, 1, 2]
    assert daemon.count("dropped") == 3
    assert daemon.count("lost") == 0
    assert sender.answers() == []


def test_a_gap_in_the_sequence_is_counted_as_lost(daemon: Daemon, connect: Connect) -> None:
    """Also across a new connection that carries on."""
    first = connect()
    first.window(5)
    first.window(8)
    daemon.work()
    first.close()
    connect().window(10)
    daemon.work()
    assert daemon.sequences() == [5, 8, 10]
    assert daemon.count("lost") == 3


def test_a_client_that_begins_anew_is_taken(daemon: Daemon, connect: Connect) -> None:
    """A new connection, the sequence from zero, a later window; what overlaps the old one's is dropped."""
    first = connect()
    for sequence in range(5, 8):
        first.window(sequence)
    daemon.work()
    first.close()
    second = connect()
    second.window(0, end_ns=850 * MS)  # begins before 800 ms, where the old one ended
    second.window(1, end_ns=950 * MS)
    second.window(2, end_ns=1050 * MS)
    daemon.work()
    assert daemon.sequences() == [5, 6, 7, 1, 2]
    assert daemon.count("restarts") == 1
    assert daemon.count("dropped") == 1
    assert daemon.count("lost") == 0


def test_a_restart_is_taken_before_the_old_connection_was_read(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old end's last messages may still be in its queue; they are dropped, not refused."""
    monkeypatch.setattr(under_test, "MESSAGES_PER_WAKE_UP", 1)
    monkeypatch.setattr(under_test, "MESSAGES_PER_TURN", 1)
    first = connect()
    first.window(5)
    daemon.work()
    for sequence in range(6, 10):
        first.window(sequence)
    first.close()
    connect().window(0, end_ns=2000 * MS)
    daemon.work()
    assert daemon.sequences()[-1] == 0
    assert daemon.count("restarts") == 1
    assert daemon.count("refused") == 0
    assert daemon.count("dropped") > 0


def test_two_clients_under_one_name_are_refused(daemon: Daemon, connect: Connect) -> None:
    """Else their sequences would drop each other's windows in silence."""
    first, second = connect("same"), connect("same")
    first.window(5)
    daemon.work()
    second.window(0, end_ns=700 * MS)
    daemon.work()
    assert "already reports from process" in second.answers()[0]
    assert daemon.sequences() == [5]


def test_a_busy_client_gets_its_share_of_a_wake_up_and_no_more(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wake-up handles a bounded number of messages, and the quiet client's is among the first."""
    monkeypatch.setattr(under_test, "MESSAGES_PER_WAKE_UP", 6)
    busy, quiet = connect("busy"), connect("quiet")
    for sequence in range(9):
        busy.window(sequence)
    quiet.window(0)
    for _ in range(2):  # accepting takes a wake-up of its own
        daemon.wake()
        if daemon.windows:
            break
    assert len(daemon.windows) == 6
    assert [window.client for window in daemon.windows] == ["busy"] * 4 + ["quiet", "busy"]
    daemon.work()
    assert len(daemon.windows) == 10


def test_one_wake_up_reads_a_bounded_number_of_bytes(daemon: Daemon, connect: Connect) -> None:
    """Messages of the largest size count for more, as they take longer to check."""
    senders = [connect(str(number)) for number in range(4)]
    for sender in senders:
        sender.raw(b" " * 65_000)
    while not daemon.count("refused"):
        daemon.wake()
    assert daemon.count("refused") == 3  # two make 130,000 bytes; the third passes the budget of 131,072
    daemon.work()
    assert daemon.count("refused") == 4


def test_a_flood_ends_the_connection(daemon: Daemon, connect: Connect) -> None:
    """Far more messages than the protocol asks for would take the control process's own CPU."""
    sender = connect()
    sequence = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sequence < under_test.FLOOD_MESSAGES + 50:
            for _ in range(5):
                sender.window(sequence, end_ns=sequence + 100 * MS)
                sequence += 1
            daemon.work()
    assert daemon.count("connections_closed_for_flooding") == 1
    assert daemon.count("accepted") == under_test.FLOOD_MESSAGES
    assert daemon.count("connections_open") == 0


def test_a_steady_sender_is_no_flood(daemon: Daemon, connect: Connect) -> None:
    """The count begins anew in each second."""
    sender = connect()
    for sequence in range(under_test.FLOOD_MESSAGES + 50):
        daemon.now_ns = 10_000 * MS + sequence * 2 * MS
        sender.window(sequence, end_ns=sequence + 100 * MS)
        daemon.work()
    assert daemon.count("connections_closed_for_flooding") == 0


def test_connections_are_limited_and_idle_ones_make_room(tmp_path: Path) -> None:
    """The one too many is told so; after a minute's silence the oldest gives way."""
    daemon = Daemon(tmp_path / "s", max_connections=2)
    senders = [Sender(daemon.path, str(number)) for number in range(3)]
    daemon.work()
    assert "2 connections are open on" in senders[2].answers()[0]
    assert daemon.count("connections_refused") == 1
    daemon.now_ns += 59_000 * MS
    senders[1].window(0)
    daemon.work()
    daemon.now_ns += 2_000 * MS
    senders.append(Sender(daemon.path, "late"))
    daemon.work()
    assert daemon.count("connections_evicted") == 1
    assert "make room" in senders[0].answers()[0]
    senders[1].window(1)
    senders[3].window(0)
    daemon.work()
    assert daemon.count("accepted") == 3
    for sender in senders:
        sender.close()
    daemon.work()
    assert daemon.count("connections_open") == 0
    daemon.socket.close()


def test_running_out_of_descriptors_does_not_spin(daemon: Daemon, connect: Connect) -> None:
    """The listener rests until a connection is closed, and then takes the one that waited."""
    first = connect("first")
    daemon.work()
    waiting = connect("waiting")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are enough
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    fillers = []
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.open("/dev/null", os.O_RDONLY))
        daemon.work()  # fails if the wake-ups do not end
        assert daemon.count("connections_open") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    waiting.window(0)
    first.close()
    daemon.work()
    assert [window.client for window in daemon.windows] == ["waiting"]


def test_memory_for_clients_is_bounded(daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that invents names cannot fill the control process."""
    monkeypatch.setattr(under_test, "CLIENTS_REMEMBERED", 10)
    sender = connect()
    for number in range(50):
        sender.client = f"client-{number}"
        sender.window(0)
        daemon.work()
    assert len(daemon.socket._clients) == 10
    assert daemon.count("accepted") == 50


def test_the_file_has_the_mode_asked_for_and_goes_at_the_end(tmp_path: Path) -> None:
    """Group access by default; whatever the umask."""
    before = os.umask(0o077)
    try:
        daemon = Daemon(tmp_path / "a")
        open_to_all = Daemon(tmp_path / "b", mode=0o666)
    finally:
        os.umask(before)
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o660
    assert stat.S_IMODE(open_to_all.path.stat().st_mode) == 0o666
    daemon.socket.close()
    open_to_all.socket.close()
    assert list(tmp_path.iterdir()) == []


def test_a_second_daemon_is_told_who_listens(daemon: Daemon) -> None:
    """By process and command; and the first goes on undisturbed."""
    with pytest.raises(SocketError, match=rf"process {os.getpid()} \(.*listens on it; stop that process"):
        Daemon(daemon.path)
    sender = Sender(daemon.path)
    sender.window(0)
    daemon.work()
    assert daemon.sequences() == [0]
    sender.close()


def test_closing_leaves_a_successors_file_alone(tmp_path: Path) -> None:
    """Who lost the path to another must not remove the other's socket."""
    first = Daemon(tmp_path / "s")
    first.path.unlink()
    second = Daemon(tmp_path / "s")
    first.socket.close()
    assert second.path.exists()
    second.socket.close()


def test_a_dead_process_socket_is_replaced(tmp_path: Path) -> None:
    """After SIGKILL the file is still there; the next start works."""
    path = tmp_path / "s"
    script = (
        "import os, signal, sys; from monitors.histogram_socket import HistogramSocket\n"
        "HistogramSocket(sys.argv[1], [], print, interval_ns=1, sub_interval_ns=1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert stat.S_ISSOCK(path.stat().st_mode)
    daemon = Daemon(path)
    sender = Sender(path)
    sender.window(0)
    daemon.work()
    assert daemon.sequences() == [0]
    sender.close()
    daemon.socket.close()


def test_a_path_that_cannot_be_listened_on_is_one_clear_error(tmp_path: Path) -> None:
    """No directory, a plain file, another kind of socket, a path that is too long."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SocketError, match="exists and is not a socket; move it away"):
        Daemon(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(SocketError, match="create its directory"):
        Daemon(tmp_path / "none" / "s")
    with pytest.raises(SocketError, match="choose another runtime directory"):
        Daemon(tmp_path / ("x" * 120))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "stream"))
        other.listen()
        with pytest.raises(SocketError, match="another program"):
            Daemon(tmp_path / "stream")


def test_the_clock_is_monotonic_by_default(tmp_path: Path) -> None:
    """A window that ended just now is taken without a clock given."""
    windows: list[Window] = []
    listening = HistogramSocket(tmp_path / "s", ["search"], windows.append, interval_ns=1, sub_interval_ns=1)
    selector = selectors.DefaultSelector()
    listening.attach(selector)
    sender = Sender(tmp_path / "s")
    sender.window(0, end_ns=time.monotonic_ns())
    while not windows:
        for key, mask in selector.select(1):
            key.data(mask)
    assert windows[0].sequence == 0
    sender.close()
    listening.close()

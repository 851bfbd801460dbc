"""Windows for the daemon, by the documented schema."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from .conftest import Run, Running, Start
from .servers import Behaviour, Memcached
from .windows import Daemon, merged, percentile_ns


def feeding(start: Start, port: int, path: Path, seconds: float, *options: object) -> Running:
    feed = ("--histogram-socket", path, "--service", "cache", "--client", "load-1", "--interval", "100ms", "--max-lag", "20s")
    return start("memcached", f"127.0.0.1:{port}", "--rate", 500, "--duration", f"{seconds}s", *feed, *options)


def test_every_message_obeys_the_document(start: Start, tmp_path: Path) -> None:
    """Messages have the documented form, one a window without a gap, and hold the same as the report."""
    path = tmp_path / "histogram.sock"
    with Memcached(Behaviour(error_every=50, stall_at_request=300, stall_s=0.25)) as server, Daemon(path) as daemon:
        done = feeding(start, server.port, path, 1.2).finish()
    assert daemon.found == []
    lines = done.of("interval")
    assert len(daemon.messages) == len(lines) >= 12
    sequences = [message["sequence"] for message in daemon.messages]
    assert sequences == list(range(sequences[0], sequences[0] + len(lines)))
    names = (
        "window_start_ns",
        "window_end_ns",
        "scheduled",
        "sent",
        "completed",
        "failed",
        "unsent",
        "outstanding",
        "oldest_outstanding_ns",
    )
    for message, line in zip(daemon.messages, lines, strict=True):
        assert {name: message[name] for name in names} == {name: line[name] for name in names}
        assert (message["service"], message["client"]) == ("cache", "load-1")
    assert any(message["outstanding"] > 16 and message["oldest_outstanding_ns"] > 50_000_000 for message in daemon.messages)
    histogram = merged([message["histogram"] for message in daemon.messages])
    assert percentile_ns(histogram, 0.99) == done.summary["response_ns"]["p99"]


def test_load_goes_on_without_the_daemon(start: Start, tmp_path: Path) -> None:
    """With nobody at the socket the load is the same, and one line on stderr says so."""
    with Memcached() as server:
        done = feeding(start, server.port, tmp_path / "absent.sock", 1.5, "--json").finish()
    assert done.code == 0
    assert done.summary["completed"] == done.summary["scheduled"] > 500
    assert done.stderr.count("\n") == 1
    assert "absent.sock" in done.stderr


def test_windows_resume_when_the_daemon_returns(start: Start, tmp_path: Path) -> None:
    """A daemon that goes away and comes back gets windows again, with a higher sequence number, and stderr stays at one line."""
    path = tmp_path / "histogram.sock"
    with Memcached() as server:
        with Daemon(path) as first:
            running = feeding(start, server.port, path, 3.5, "--json")
            time.sleep(1.2)
        time.sleep(0.3)
        with Daemon(path) as second:
            done = running.finish()
    assert first.found == second.found == []
    assert len(first.messages) > 3
    assert len(second.messages) > 3
    assert second.messages[0]["sequence"] > first.messages[-1]["sequence"]
    assert done.stderr.count("\n") == 1
    assert done.summary["completed"] == done.summary["scheduled"]


def test_refusals_are_said_once(start: Start, tmp_path: Path) -> None:
    """What the daemon complains about is passed on, each complaint once."""
    path = tmp_path / "histogram.sock"
    with Memcached() as server, Daemon(path, refuse=5) as daemon:
        done = feeding(start, server.port, path, 1, "--json").finish()
    assert len(daemon.messages) >= 5
    assert done.stderr == "parties-loadgen: the daemon refused a window: service: unknown, register it\n"


def test_a_second_run_is_not_taken_for_a_repetition(start: Start, tmp_path: Path) -> None:
    """A generator started again under the same name goes on above the sequence numbers of the one before."""
    path = tmp_path / "histogram.sock"
    with Memcached() as server, Daemon(path) as daemon:
        for _ in range(2):
            feeding(start, server.port, path, 0.3).finish()
    assert daemon.found == []
    assert len(daemon.messages) >= 6


def test_steps_of_a_scan_are_fed_too(run: Run, tmp_path: Path) -> None:
    """During a scan windows go to the daemon without a gap in time, also between the steps."""
    path = tmp_path / "histogram.sock"
    with Memcached() as server, Daemon(path) as daemon:
        feed = ("--histogram-socket", path, "--service", "cache", "--interval", "100ms", "--max-lag", "20s")
        steps = ("--scan", "100:300:100", "--step-duration", "300ms", "--step-warmup", "0")
        run("memcached", f"127.0.0.1:{server.port}", *steps, *feed)
    assert daemon.found == []
    messages = daemon.messages
    assert all(a["window_end_ns"] == b["window_start_ns"] for a, b in itertools.pairwise(messages))
    assert messages[0]["client"].startswith("loadgen-")

"""Interval lines, summary, control socket and the ways a run ends."""

from __future__ import annotations

import itertools
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S

from .conftest import Run, Running, Start
from .servers import Behaviour, Memcached
from .windows import merged, percentile_ns

MS = 1_000_000
QUIET = ("--max-lag", "20s")


def wait_for_lines(path: Path, count: int) -> None:
    """Waits until a report holds so many lines."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if path.exists() and path.read_text(encoding="utf-8").count("\n") >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"{path} does not grow to {count} lines")


def report(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_windows_are_whole_and_add_up_to_the_summary(run: Run) -> None:
    """Windows follow each other on multiples of the interval; their counts and histograms are those of the summary."""
    with Memcached(Behaviour(error_every=10)) as server:
        options = ("--rate", 1500, "--duration", "1s", "--interval", "100ms", "--interval-histograms")
        done = run("memcached", f"127.0.0.1:{server.port}", *options, *QUIET)
    lines, summary = done.of("interval"), done.summary
    assert len(lines) >= 10
    for line, after in itertools.pairwise(lines):
        assert line["window_end_ns"] == line["window_start_ns"] + 100 * MS == after["window_start_ns"]
        assert line["window_start_ns"] % (100 * MS) == 0
        left = after["outstanding"] - after["scheduled"] + after["completed"] + after["failed"] + after["unsent"]
        assert left == line["outstanding"]
    for name in ("scheduled", "sent", "completed", "failed", "unsent"):
        assert sum(line[name] for line in lines) == summary[name], name
    histogram = merged([line["response_histogram"] for line in lines])
    assert sum(histogram.values()) == summary["completed"]
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        assert percentile_ns(histogram, share) == summary["response_ns"][name], name


def test_idle_windows_are_reported(run: Run) -> None:
    """A rate of zero gives windows of zeros, not silence."""
    with Memcached() as server:
        done = run("memcached", f"127.0.0.1:{server.port}", "--rate", 0, "--duration", "600ms", "--interval", "200ms", *QUIET)
    assert done.code == 0
    assert len(done.of("interval")) == 3
    assert all(line["scheduled"] == line["completed"] == line["outstanding"] == 0 for line in done.lines[1:-1])


def test_header_holds_configuration_and_seed(run: Run) -> None:
    """The first line says how to repeat the run; all quantities are integers."""
    with Memcached() as server:
        options = ("--rate", "1k", "--duration", "200ms", "--seed", 77, "--timeout", "1s")
        done = run("memcached", f"127.0.0.1:{server.port}", *options, *QUIET)
    header = done.lines[0]
    assert (header["kind"], header["version"], header["seed"], header["protocol"]) == ("header", 1, 77, "memcached")
    configuration = header["configuration"]
    assert (configuration["rate_per_s"], configuration["timeout_ns"], configuration["duration_ns"]) == (1000, 1000 * MS, 200 * MS)
    assert all(line["version"] == 1 for line in done.lines)
    cpu = done.summary["cpu_user_ns"] + done.summary["cpu_system_ns"]
    assert 0 < done.summary["cpu_per_request_ns"] <= cpu


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_with_a_summary(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    """A signal ends the run with a whole report and exit code 0."""
    path = tmp_path / "report"
    with Memcached() as server:
        target = f"127.0.0.1:{server.port}"
        running = start("memcached", target, "--rate", 500, "--duration", 0, "--interval", "100ms", "--report", path, *QUIET)
        wait_for_lines(path, 4)
        running.process.send_signal(number)
        done = running.finish()
    lines = report(path)
    assert done.code == 0
    assert done.lines == [], "all lines are in the file"
    assert lines[-1]["kind"] == "summary"
    assert lines[-1]["valid"] is True
    assert lines[-1]["completed"] == lines[-1]["scheduled"] == len(server.seen.requests) > 50


def test_signal_ends_a_run_that_gets_no_answers(start: Start, tmp_path: Path) -> None:
    """A stalled service does not keep the generator from ending."""
    path = tmp_path / "report"
    with Memcached(Behaviour(mute_every=1)) as server:
        target = f"127.0.0.1:{server.port}"
        running = start("memcached", target, "--rate", 100, "--duration", 0, "--interval", "100ms", "--report", path, *QUIET)
        wait_for_lines(path, 4)
        running.process.send_signal(signal.SIGTERM)
        done = running.finish()
    assert done.code == 3
    assert report(path)[-1]["failed_abandoned"] == 16


def controlled(start: Start, tmp_path: Path, port: int, *options: object) -> tuple[Running, Path, Path]:
    lines, control = tmp_path / "report", tmp_path / "control"
    target = f"127.0.0.1:{port}"
    more = ("--duration", "300s", "--interval", "100ms", "--report", lines, "--control", control)
    running = start("memcached", target, *more, *options, *QUIET)
    wait_for_lines(lines, 5)
    return running, lines, control


def test_control_changes_the_rate(start: Start, run: Run, tmp_path: Path) -> None:
    """The control command changes the rate at once, up and down to nothing; status tells it; stop ends the run."""
    with Memcached() as server:
        running, path, control = controlled(start, tmp_path, server.port, "--rate", 200)
        answers = []
        for rate in ("2k", "0"):
            answers += run("control", control, "rate", rate, "--json").lines
            wait_for_lines(path, len(report(path)) + 5)
            answers += run("control", control, "status", "--json").lines
        answers += run("control", control, "stop", "--json").lines
        done = running.finish()
    assert done.code == 0
    assert not control.exists(), "the socket is removed"
    assert [answer.get("rate_per_s") for answer in answers] == [2000, 2000, 0, 0, None]
    rates = [line["rate_per_s"] for line in report(path)[1:-1]]
    assert rates[0] == 200
    assert max(rates) == 2000
    assert rates[-2] == 0
    whole = [line["scheduled"] for line in report(path)[1:-1] if line["rate_per_s"] == 2000]
    assert abs(sum(whole) / len(whole) - 200) < 50
    assert [line["scheduled"] for line in report(path)[1:-1]][-2] == 0


def test_control_refuses_what_cannot_be(start: Start, run: Run, tmp_path: Path) -> None:
    """A closed loop has no rate to change; a socket in use is not taken over; an absent one is reported."""
    with Memcached(Behaviour(delay_s=0.01)) as server:
        running, _, control = controlled(start, tmp_path, server.port, "--closed")
        refused = run("control", control, "rate", 5)
        second = run("memcached", f"127.0.0.1:{server.port}", "--control", control)
        run("control", control, "stop")
        running.finish()
    absent = run("control", control, "status")
    assert (refused.code, second.code, absent.code) == (2, 2, 1)
    assert "closed loop" in refused.stderr
    assert "nobody listens" in second.stderr
    assert str(control) in absent.stderr


def test_control_leaves_the_rates_of_a_scan_alone(start: Start, run: Run, tmp_path: Path) -> None:
    """A scan refuses a change of its rate, and says where it is."""
    path, control = tmp_path / "report", tmp_path / "control"
    with Memcached() as server:
        options = ("--scan", "100:200:100", "--step-duration", "1s", "--interval", "100ms", "--report", path, "--control", control)
        running = start("memcached", f"127.0.0.1:{server.port}", *options, *QUIET)
        wait_for_lines(path, 4)
        refused = run("control", control, "rate", 5)
        running.finish()
    assert refused.code == 2
    assert "scan" in refused.stderr
    assert [line["rate_per_s"] for line in report(path) if line["kind"] == "row"] == [100, 200]


def test_socket_left_behind_is_replaced(start: Start, run: Run, tmp_path: Path) -> None:
    """After a generator was killed, another one can take its control path."""
    with Memcached() as server:
        running, _, control = controlled(start, tmp_path, server.port, "--rate", 100)
        running.process.kill()
        running.process.wait()
        assert control.exists()
        again = run("memcached", f"127.0.0.1:{server.port}", "--control", control, "--duration", "100ms", *QUIET)
    assert again.code == 0


def test_tables_are_for_readers_only(run: Run) -> None:
    """The table is on stderr, and --json leaves it out."""
    with Memcached() as server:
        options = ("memcached", f"127.0.0.1:{server.port}", "--rate", 100, "--duration", "100ms", *QUIET)
        assert "lag p99" in run(*options).stderr
        assert run(*options, "--json").stderr == ""


@pytest.mark.parametrize(
    ("argument", "part"),
    [("--version", "parties-loadgen 0."), ("--help", "--histogram-socket"), ("completion", "complete -F")],
)
def test_help_is_there(run: Run, argument: str, part: str) -> None:
    """Version, help of a protocol and shell completion are printed."""
    arguments = {"--help": ("memcached", "--help"), "completion": ("completion", "bash")}.get(argument, (argument,))
    done = run(*arguments)
    assert done.code == 0
    assert part in done.stdout

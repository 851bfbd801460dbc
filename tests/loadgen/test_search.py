"""Scan and search on a server of known capacity."""

from __future__ import annotations

import pytest

from .conftest import Run
from .servers import Behaviour, Memcached

MS = 1_000_000
# One request at a time, 5 ms each and a little: at most 200 a second.
CAPACITY_PER_S = 200
KNOWN = Behaviour(serial_s=1 / CAPACITY_PER_S)
STEPS = ("--step-duration", "1500ms", "--step-warmup", "300ms", "--max-lag", "20s")


@pytest.mark.slow
def test_scan_shows_the_knee(run: Run) -> None:
    """Below the capacity rows achieve their rate at low latency; above it they achieve the capacity, with long queues."""
    with Memcached(KNOWN) as server:
        done = run("memcached", f"127.0.0.1:{server.port}", "--scan", "50:350:150", *STEPS)
    rows = {row["rate_per_s"]: row for row in done.of("row")}
    assert list(rows) == [50, 200, 350]
    assert rows[50]["response_ns"]["p50"] < 40 * MS
    assert rows[350]["response_ns"]["p50"] > 4 * rows[50]["response_ns"]["p50"]
    assert rows[350]["response_ns"]["p95"] > 500 * MS
    assert rows[350]["service_ns"]["p50"] < rows[350]["response_ns"]["p50"], "the wait is in the generator's queue"
    assert rows[50]["scheduled"] == pytest.approx(75, abs=45)
    assert done.summary["mode"] == "scan"
    assert done.summary["complete"] is True
    assert len([line for line in done.stderr.splitlines() if "|" in line]) == 4, "a head and three rows"


@pytest.mark.slow
def test_search_ends_below_the_capacity(run: Run) -> None:
    """The search finds a rate near the capacity and not above it, although probes above it leave a backlog behind."""
    with Memcached(KNOWN) as server:
        options = ("--search", "p90:100ms", "--search-min", 20, "--search-max", 5000, "--search-tolerance", "20%")
        done = run("memcached", f"127.0.0.1:{server.port}", *options, *STEPS)
    summary, probes = done.summary, done.of("probe")
    assert summary["bound"] == "inside"
    assert CAPACITY_PER_S * 0.35 < summary["highest_rate_per_s"] < CAPACITY_PER_S * 1.15
    assert summary["probes"] == len(probes)
    assert {probe["met"] for probe in probes} == {True, False}
    assert [probe["rate_per_s"] for probe in probes][:3] == [20, 40, 80]
    assert summary["highest_rate_per_s"] == max(probe["rate_per_s"] for probe in probes if probe["met"])
    assert summary["lowest_missed_per_s"] <= summary["highest_rate_per_s"] * 1.21 + 1


def test_backlog_does_not_fall_on_the_next_step(run: Run) -> None:
    """What one step left over is waited for, so that the next one begins with nothing outstanding."""
    with Memcached(KNOWN) as server:
        options = (
            "--scan",
            "600:601:1",
            "--step-duration",
            "400ms",
            "--step-warmup",
            "0",
            "--interval",
            "100ms",
            "--max-lag",
            "20s",
        )
        done = run("memcached", f"127.0.0.1:{server.port}", *options)
    first, second = done.of("row")
    for row in (first, second):
        assert row["completed"] == row["scheduled"] > 150
        assert row["failed"] == row["unsent"] == 0
    # Twice the same overload from an empty start: without the drain the second would begin where the first ended.
    assert second["response_ns"]["p50"] < 1.7 * first["response_ns"]["p50"]
    lines = done.of("interval")
    begins = [i for i, line in enumerate(lines) if line["rate_per_s"] > 0 and lines[i - 1]["rate_per_s"] == 0]
    assert lines[begins[-1] - 1]["outstanding"] == 0


def test_target_out_of_reach_is_said(run: Run) -> None:
    """If even the lowest rate misses the target, or the highest meets it, the summary says so."""
    options = ("--step-duration", "300ms", "--step-warmup", "0", "--max-lag", "20s", "--interval", "100ms")
    with Memcached(Behaviour(delay_s=0.02)) as server:
        target = f"127.0.0.1:{server.port}"
        never = run("memcached", target, "--search", "p99:1ms", "--search-min", 100, *options).summary
        always = run("memcached", target, "--search", "p50:900ms", "--search-min", 100, "--search-max", 200, *options).summary
    assert (never["bound"], never["highest_rate_per_s"], never["lowest_missed_per_s"]) == ("below search_min", 0, 100)
    assert (always["bound"], always["highest_rate_per_s"], always["lowest_missed_per_s"]) == ("search_max", 200, None)


def test_failures_count_against_the_target(run: Run) -> None:
    """A service that answers quickly with errors does not meet its target."""
    with Memcached(Behaviour(error_every=20)) as server:
        options = (
            "--search",
            "p99:900ms",
            "--search-min",
            200,
            "--step-duration",
            "500ms",
            "--step-warmup",
            "0",
            "--max-lag",
            "20s",
        )
        done = run("memcached", f"127.0.0.1:{server.port}", *options)
    assert done.summary["highest_rate_per_s"] == 0


def test_repeats_decide_by_majority(run: Run) -> None:
    """With three repeats a probe runs until two of them agree."""
    with Memcached() as server:
        options = ("--search", "p50:900ms", "--search-min", 100, "--search-max", 100, "--search-repeats", 3)
        short = ("--step-duration", "200ms", "--step-warmup", "0", "--max-lag", "20s")
        done = run("memcached", f"127.0.0.1:{server.port}", *options, *short)
    assert len(done.of("probe")) == 2
    assert done.summary["highest_rate_per_s"] == 100

"""Latency from the intended time, the schedule, and what is never sent."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from .conftest import Run, Start
from .servers import Behaviour, Http, Memcached

MS = 1_000_000
S = 1_000 * MS


def test_stall_shows_in_response_and_not_in_service(run: Run) -> None:
    """A stall of 300 ms is in the response time of every request due in it, but only the few in flight have it as service time."""
    with Memcached(Behaviour(stall_at_request=400, stall_s=0.3)) as server:
        done = run(
            "memcached", f"127.0.0.1:{server.port}", "--rate", 1000, "--duration", "1s", "--connections", 4, "--max-lag", "20s"
        )
    summary = done.summary
    assert summary["completed"] == summary["scheduled"] == summary["sent"]
    # About 300 of 1000 requests were due in it, evenly over it: a fifth of all waited 100 ms and more, a tenth 200 ms and more.
    assert summary["response_ns"]["p90"] > 100 * MS
    assert summary["response_ns"]["max"] > 250 * MS
    assert summary["service_ns"]["max"] > 250 * MS, "the requests in flight did wait in the service"
    assert summary["service_ns"]["p95"] < 100 * MS


def test_queue_wait_is_not_lag(run: Run) -> None:
    """Requests that wait for a busy connection have a long response time, while the generator itself is in time."""
    with Memcached(Behaviour(delay_s=0.05)) as server:
        target = f"127.0.0.1:{server.port}"
        done = run("memcached", target, "--rate", 400, "--duration", "1s", "--connections", 10, "--max-lag", "20s")
    summary = done.summary
    assert summary["response_ns"]["p95"] > 3 * summary["service_ns"]["p50"]
    assert summary["lag_ns"]["p50"] * 10 < summary["response_ns"]["p50"]
    assert summary["lag_ns"]["count"] == summary["scheduled"], "lag is known of every request, also of those that had to queue"


def test_late_generator_makes_the_run_invalid(start: Start) -> None:
    """A generator that is held up for a third of a second says that its own lag spoiled the run, and exits with 3."""
    with Memcached() as server:
        running = start("memcached", f"127.0.0.1:{server.port}", "--rate", 1000, "--duration", "3s")
        time.sleep(1)
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        running.process.send_signal(signal.SIGCONT)
        done = running.finish()
    assert done.code == 3
    assert done.summary["valid"] is False
    assert "send_lag" in [reason["code"] for reason in done.summary["reasons"]]
    assert done.summary["lag_ns"]["max"] > 200 * MS
    assert done.summary["completed"] == done.summary["scheduled"], "late, but nothing is lost"


def test_requests_beyond_the_cap_are_unsent(run: Run) -> None:
    """With a service that never answers, requests beyond the cap are counted as unsent, and every request is accounted for."""
    with Memcached(Behaviour(mute_every=1)) as server:
        target = f"127.0.0.1:{server.port}"
        options = ("--rate", 1000, "--duration", "1s", "--max-outstanding", 50, "--drain-timeout", "100ms", "--interval", "100ms")
        done = run("memcached", target, *options)
    summary = done.summary
    assert done.code == 3
    assert {"unsent", "nothing_completed"} <= {reason["code"] for reason in summary["reasons"]}
    assert summary["sent"] == summary["failed"] == summary["failed_abandoned"] == 16 == server.seen.muted
    assert summary["unsent"] == summary["scheduled"] - 16
    during = done.of("interval")[:10]
    assert during[-1]["outstanding"] == 50
    assert sum(line["unsent"] for line in during) == sum(line["scheduled"] for line in during) - 50
    ages = [line["oldest_outstanding_ns"] for line in during]
    assert ages == sorted(ages)
    assert ages[-1] > 700 * MS


def test_queue_longer_than_the_run_is_still_answered(run: Run) -> None:
    """Requests still queued when the last one was due are sent and waited for."""
    with Memcached(Behaviour(stall_at_request=300, stall_s=0.5)) as server:
        done = run("memcached", f"127.0.0.1:{server.port}", "--rate", 1000, "--duration", "600ms", "--max-lag", "20s")
    assert done.code == 0
    assert done.summary["completed"] == done.summary["scheduled"]
    assert done.summary["response_ns"]["p90"] > 150 * MS


def keys_of(run: Run, seed: int, behaviour: Behaviour) -> tuple[list[str], int]:
    with Memcached(behaviour) as server:
        target = f"127.0.0.1:{server.port}"
        mix = ("--mix", "get=6,set=2,multiget=2", "--multiget-keys", 3, "--connections", 1)
        done = run("memcached", target, "--rate", 300, "--duration", "1s", "--seed", seed, "--max-lag", "20s", *mix)
    return server.seen.requests, done.summary["scheduled"]


def test_schedule_depends_on_the_seed_alone(run: Run) -> None:
    """The same seed asks for the same keys in the same order of a quick service and of a slow one; another seed does not."""
    quick = keys_of(run, 5, Behaviour())
    slow = keys_of(run, 5, Behaviour(delay_s=0.004, stall_at_request=50, stall_s=0.2))
    other = keys_of(run, 6, Behaviour())
    assert quick == slow
    assert other != quick


def test_keys_follow_zipf(run: Run) -> None:
    """Popular keys are asked for as often as the exponent says, and unpopular ones too with an exponent of 0."""
    shares = {}
    for exponent in (0, 1):
        with Memcached() as server:
            target = f"127.0.0.1:{server.port}"
            run("memcached", target, "--rate", 2000, "--duration", "1s", "--zipf", exponent, "--keys", 10, "--max-lag", "20s")
        first = sum(request.endswith("000") for request in server.seen.requests)
        shares[exponent] = first / len(server.seen.requests)
    assert 0.06 < shares[0] < 0.14
    assert 0.27 < shares[1] < 0.41, "1 over the sum of 1/1 to 1/10 is 0.34"


@pytest.mark.parametrize(("shape", "expected"), [("step", [400, 400, 2000, 2000]), ("linear", [600, 1000, 1400, 1800])])
def test_profile_is_followed(run: Run, tmp_path: Path, shape: str, expected: list[int]) -> None:
    """Each half second has the requests that the profile asks for, and the last line ends the run."""
    profile = tmp_path / "profile"
    last = 2000
    profile.write_text(f"0s 400\n{'1s 2000' if shape == 'step' else ''}\n2s {last}\n", encoding="utf-8")
    with Memcached() as server:
        target = f"127.0.0.1:{server.port}"
        done = run("memcached", target, "--profile", profile, "--profile-shape", shape, "--max-lag", "20s")
    lines = done.of("interval")[:4]
    assert [line["rate_per_s"] for line in lines] == expected
    for line, rate in zip(lines, expected, strict=True):
        assert abs(line["scheduled"] - rate / 2) < 5 * (rate / 2) ** 0.5
    assert done.summary["measured_ns"] == 2 * S


def test_warm_up_is_left_out_of_the_summary(run: Run) -> None:
    """The summary counts requests due after the warm-up, the intervals count all."""
    with Memcached() as server:
        target = f"127.0.0.1:{server.port}"
        done = run("memcached", target, "--rate", 1000, "--duration", "1s", "--warmup", "500ms", "--max-lag", "20s")
    assert done.summary["measured_ns"] == S // 2
    assert done.summary["scheduled"] == done.of("interval")[1]["scheduled"]
    assert len(server.seen.requests) > 1.5 * done.summary["scheduled"]


@pytest.mark.parametrize("waiting", [("--wait", "timerfd"), ("--wait", "epoll_pwait2"), ("--spin",)])
def test_every_way_of_waiting_keeps_the_schedule(run: Run, waiting: tuple[str, ...]) -> None:
    """With each way to wait for the next send all requests are sent, and half of them with little lag."""
    with Memcached() as server:
        target = f"127.0.0.1:{server.port}"
        done = run("memcached", target, "--rate", 500, "--duration", "500ms", "--max-lag", "20s", *waiting)
    assert done.summary["completed"] == done.summary["scheduled"] > 150
    assert done.summary["lag_ns"]["p50"] < 100 * MS
    assert done.lines[0]["wait"] == waiting[-1].removeprefix("--")


def test_closed_loop_keeps_every_connection_busy(run: Run) -> None:
    """In a closed loop the rate is what the delay and the number of connections allow."""
    with Http(Behaviour(delay_s=0.02)) as server:
        done = run("http", f"http://127.0.0.1:{server.port}", "--closed", "--connections", 8, "--duration", "1s")
    assert done.summary["mode"] == "closed"
    assert done.summary["lag_ns"]["count"] == 0, "there is no schedule to be late for"
    assert 100 < done.summary["achieved_per_s"] <= 410
    assert done.summary["completed"] == len(server.seen.requests)


@pytest.mark.parametrize("depth", [1, 4])
def test_pipeline_depth_is_kept(run: Run, depth: int) -> None:
    """As many requests are in flight on a connection as its pipeline holds, and no more."""
    with Memcached(Behaviour(mute_every=1)) as server:
        options = ("--rate", 500, "--duration", "500ms", "--connections", 2, "--pipeline", depth, "--drain-timeout", "100ms")
        run("memcached", f"127.0.0.1:{server.port}", *options)
    assert server.seen.muted == 2 * depth

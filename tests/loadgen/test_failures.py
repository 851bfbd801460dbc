"""Errors, lost connections, time-outs, and services that are not there."""

from __future__ import annotations

import socket
import time

import pytest

from .conftest import Run, Start
from .servers import Behaviour, Http, Memcached, Server


def command(server: Server) -> tuple[str, str]:
    if isinstance(server, Http):
        return "http", f"http://127.0.0.1:{server.port}"
    return "memcached", f"127.0.0.1:{server.port}"


QUICK = ("--rate", 1000, "--duration", "500ms", "--max-lag", "20s")


@pytest.mark.parametrize("protocol", [Memcached, Http])
def test_error_answers_fail_and_keep_the_connection(run: Run, protocol: type[Server]) -> None:
    """Every error answer is a failed request and nothing else; its connection goes on."""
    with protocol(Behaviour(error_every=4)) as server:
        done = run(*command(server), *QUICK)
    summary = done.summary
    assert summary["failed"] == summary["failed_answer"] == server.seen.errors > 50
    assert summary["completed"] == summary["scheduled"] - summary["failed"] == summary["response_ns"]["count"]
    assert summary["last_failure"] in {"SERVER_ERROR out of memory", "HTTP/1.1 503 Busy"}
    assert server.seen.connections == 16


@pytest.mark.parametrize("protocol", [Memcached, Http])
def test_lost_connections_fail_their_requests_and_come_back(run: Run, protocol: type[Server]) -> None:
    """A lost connection fails the request it carried, is opened again, and all other requests are answered."""
    with protocol(Behaviour(hang_up_every=20)) as server:
        done = run(*command(server), *QUICK)
    summary = done.summary
    assert summary["failed"] == summary["failed_connection"] == server.seen.hang_ups > 10
    assert summary["completed"] == summary["scheduled"] - summary["failed"]
    assert summary["reconnects"] == server.seen.hang_ups
    assert done.code == 0


@pytest.mark.parametrize("protocol", [Memcached, Http])
def test_garbage_costs_the_connection(run: Run, protocol: type[Server]) -> None:
    """Bytes that are no answer fail the request and the connection, and the load goes on."""
    with protocol(Behaviour(garbage_every=20)) as server:
        done = run(*command(server), *QUICK)
    summary = done.summary
    assert summary["failed_connection"] == server.seen.garbage == summary["reconnects"] > 10
    assert summary["completed"] == summary["scheduled"] - summary["failed"]


def test_announced_end_of_connection_is_no_failure(run: Run) -> None:
    """A server that closes kept-alive connections after an answer, and says so, costs no request."""
    with Http(Behaviour(close_every=7)) as server:
        done = run(*command(server), *QUICK)
    assert done.summary["failed"] == 0
    assert done.summary["completed"] == done.summary["scheduled"]
    assert done.summary["reconnects"] == server.seen.closes > 20


def test_requests_without_an_answer_time_out(run: Run) -> None:
    """A request not answered in time has failed and takes its connection along; the others are answered."""
    with Memcached(Behaviour(mute_every=25)) as server:
        done = run(*command(server), *QUICK, "--timeout", "1s")
    summary = done.summary
    assert summary["failed"] == summary["failed_timeout"] == server.seen.muted > 10
    assert summary["completed"] == summary["scheduled"] - summary["failed"]
    assert summary["reconnects"] == server.seen.muted


def test_load_goes_on_when_the_service_comes_back(start: Start) -> None:
    """While the service is away requests fail or wait, and after its return they are answered again."""
    with Memcached() as server:
        port = server.port
        running = start(
            "memcached", f"127.0.0.1:{port}", "--rate", 500, "--duration", "4s", "--interval", "100ms", "--max-lag", "20s"
        )
        time.sleep(1.5)
    time.sleep(0.5)
    with Memcached(port=port):
        done = running.finish()
    lines = done.of("interval")
    assert any(line["completed"] == 0 and line["outstanding"] > 0 for line in lines)
    assert sum(line["completed"] for line in lines[-10:]) > 100
    assert done.summary["reconnects"] >= 16
    assert done.summary["scheduled"] == done.summary["completed"] + done.summary["failed"] + done.summary["unsent"]


def test_absent_service_is_an_error(run: Run) -> None:
    """If nobody listens, the exit code is 1 and one message says where and what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = run("memcached", f"127.0.0.1:{taken.getsockname()[1]}", "--connect-timeout", "200ms")
    assert done.code == 1
    assert done.lines == []
    assert "cannot connect to 127.0.0.1:" in done.stderr
    assert "refused" in done.stderr


def test_failed_preload_is_an_error(run: Run) -> None:
    """If the key space cannot be stored, the run does not begin."""
    with Memcached(Behaviour(error_every=10)) as server:
        done = run(*command(server), "--load-only", "--keys", 200)
    assert done.code == 1
    assert "20 of 200 keys could not be stored (SERVER_ERROR out of memory)" in done.stderr


def test_preload_stores_every_key_that_is_asked_for(run: Run) -> None:
    """After the preload every GET hits; without one every GET misses; sizes are as asked."""
    with Memcached() as server:
        options = ("--keys", 300, "--key-size", 20, "--value-size", 50, "--rate", 500, "--duration", "500ms", "--max-lag", "20s")
        cold = run(*command(server), *options)
        warm = run(*command(server), *options, "--load-keys")
    assert cold.summary["misses"] == cold.summary["completed"] > 150
    assert warm.summary["misses"] == 0
    assert len(server.seen.stored) == 300
    assert set(server.seen.stored.values()) == {50}
    assert {len(key) for key in server.seen.stored} == {20}


def test_http_requests_carry_paths_and_headers(run: Run) -> None:
    """Paths come from the pattern, and the headers given are sent."""
    with Http() as server:
        paths = ("--path-pattern", "/page/{}.html", "--path-count", 5, "--header", "Accept-Encoding: gzip")
        done = run(*command(server), *QUICK, *paths)
    assert done.summary["failed"] == 0
    assert {request.split()[1] for request in server.seen.requests} == {f"/page/{n}.html" for n in range(5)}
    assert f"Host: 127.0.0.1:{server.port}" in server.seen.headers
    assert "Accept-Encoding: gzip" in server.seen.headers


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("memcached", "127.0.0.1:1", "--rate", "fast"), "500, 5k"),
        (("memcached", "127.0.0.1:1", "--duration", "10"), "such as 600us"),
        (("memcached", "127.0.0.1:1", "--interval", "50ms"), "from 100ms to 500ms"),
        (("memcached", "127.0.0.1:1", "--mix", "put=1"), "--mix"),
        (("memcached", "127.0.0.1:1", "--key-size", "5"), "need at least"),
        (("memcached", "nowhere"), "HOST:PORT"),
        (("memcached", "127.0.0.1:1", "--profile", "/no/such/file"), "/no/such/file"),
        (("memcached", "127.0.0.1:1", "--histogram-socket", "/x"), "--service"),
        (("memcached", "127.0.0.1:1", "--closed", "--scan", "1:2:1"), "cannot be used with"),
        (("http", "127.0.0.1:80"), "http://"),
        (("http", "http://127.0.0.1:1", "--path", "no-slash"), "begin with /"),
        (("http", "http://127.0.0.1:1", "--search", "p99"), "p99:10ms"),
        (("http", "http://127.0.0.1:1", "--warmup", "5s", "--duration", "5s"), "--warmup"),
        (("control", "/x", "faster"), "rate 5000"),
    ],
)
def test_wrong_usage_is_explained(run: Run, arguments: tuple[str, ...], part: str) -> None:
    """Wrong input ends with exit code 2 and a message that names it and says what to write."""
    done = run(*arguments)
    assert done.code == 2
    assert part in done.stderr
    assert done.lines == []

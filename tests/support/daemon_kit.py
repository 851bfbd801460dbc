"""A real control process on groups of the test's own, fed with latencies that the test writes down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waiting import LIMIT_S

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1
from parties.client import HistogramClient
from parties.codec import to_json
from parties.model import BEST_EFFORT
from parties.settings import (
    MS,
    BestEffortSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    DiskSettings,
    MemorySettings,
    NodeSettings,
    ServiceSettings,
)
from parties.signals import held

TARGET_NS = 10 * MS
RELAXED_NS = 3 * MS
CONTENT_NS = 8 * MS  # a slack that calls for nothing
VIOLATING_NS = 30 * MS
INTERVAL_NS = 100 * MS
REQUESTS_PER_WINDOW = 40

_SO_SNDBUFFORCE = 32
_UNREAD_BYTES = 16 << 20


def settings_for(
    services: Mapping[str, ControlGroupV1], best_effort: ControlGroupV1 | None, directory: Path, disk: str = ""
) -> ControlSettings:
    """A daemon on the last CPU, shared in fractions, with memory and (where one is named) a disk."""
    last = max(os.sched_getaffinity(0))
    return ControlSettings(
        services=tuple(ServiceSettings(name, TARGET_NS, (group.path,)) for name, group in services.items()),
        best_effort=(BestEffortSettings("job", (best_effort.path,)),) if best_effort is not None else (),
        node=NodeSettings(
            cores=CoreSettings(managed_cpus=(last,), division=CoreDivision.FRACTIONS),
            memory=MemorySettings(3 << 30, 256 << 20),
            disk=DiskSettings(disk, 10**9) if disk else None,
        ),
        interval_ns=INTERVAL_NS,
        absent_grace_ns=300 * MS,
        runtime_directory=str(directory / "run"),
        state_directory=str(directory / "state"),
    )


TOUCHED = {
    Controller.CPU: ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpu.idle"),
    Controller.CPUSET: ("cpuset.cpus", "cpuset.mems"),
    Controller.MEMORY: ("memory.limit_in_bytes",),
    Controller.DISK: ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    Controller.FREEZER: ("freezer.state",),
}


@dataclass
class Site:
    """Two services and a best-effort job, each a sleeping process in a group of its own."""

    web: ControlGroupV1
    store: ControlGroupV1
    job: ControlGroupV1
    settings: ControlSettings
    processes: dict[str, subprocess.Popen[bytes]]

    def values(self) -> dict[str, str]:
        """Every value that the daemon may touch."""
        files = [
            group.directory(controller) / name for group in self.groups for controller, names in TOUCHED.items() for name in names
        ]
        return {str(file): file.read_text() for file in files if file.exists()}

    @property
    def groups(self) -> tuple[ControlGroupV1, ...]:
        return (self.web, self.store, self.job)


class Feeder:
    """Reports latencies for a service, window by window, from a thread.

    ``latency_ns``, ``failing`` and ``silent`` may be changed at any time; once they are, no window of before is still to come.
    """

    def __init__(self, path: Path, service: str, latency_ns: int = RELAXED_NS) -> None:
        self._turn = threading.Lock()
        self.latency_ns = latency_ns
        self.failing = False
        self.silent = False
        self._client = HistogramClient(str(path), service, "feeder", window_ns=INTERVAL_NS // 5, background=False)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def __setattr__(self, name: str, value: object) -> None:
        with contextlib.nullcontext() if name.startswith("_") else self._turn:
            super().__setattr__(name, value)

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._client.close()

    def _feed(self) -> None:
        while not self._end.wait(INTERVAL_NS / 5 / 1e9):
            with self._turn:
                if not self.silent:
                    self._report()

    def _report(self) -> None:
        for number in range(REQUESTS_PER_WINDOW):
            if self.failing:
                self._client.failed()
            else:
                self._client.record(self.latency_ns * (90 + number % 20) // 100)
        self._client.flush()


class Daemon:
    """The control process and what it says. Leaving the context ends it in order if it still runs."""

    def __init__(
        self,
        settings: ControlSettings,
        *,
        wrapper: Sequence[str] = (),
        python: str = sys.executable,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``wrapper`` is a command that runs the daemon, such as unshare; ``flags`` are further words for it."""
        self.settings = settings
        self.messages: list[dict[str, Any]] = []
        read_fd, write_fd = os.pipe()
        with os.fdopen(write_fd, "w") as file:
            json.dump(to_json(settings), file)
        self._front, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(PermissionError):  # a message that a slow test does not take at once is dropped where no room is
            theirs.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _UNREAD_BYTES)
        command = [*wrapper, python, "-m", "parties.control", "--settings-fd", str(read_fd), "--front-fd", str(theirs.fileno())]
        with held():  # as the front does
            self.process = subprocess.Popen(
                [*command, *flags],
                pass_fds=(read_fd, theirs.fileno()),
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        os.close(read_fd)
        theirs.close()

    @property
    def socket_path(self) -> Path:
        return Path(self.settings.histogram_socket)

    @property
    def journal(self) -> Path:
        return Path(self.settings.state_directory) / "journal.jsonl"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._front.close()

    def until(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The next message for which the condition holds. Fails the test if none comes in time or the daemon ends."""
        deadline = time.monotonic() + limit_s
        while (left := deadline - time.monotonic()) > 0:
            self._front.settimeout(left)
            try:
                data = self._front.recv(1 << 20)
            except TimeoutError:
                break
            if not data:
                raise AssertionError(f"the daemon ended: {self.process.communicate()[1]}")
            self.messages.append(json.loads(data))
            if condition(self.messages[-1]):
                return self.messages[-1]
        raise AssertionError(f"nothing of the sort in {limit_s} s; last: {self.messages[-1:]}")

    def started(self) -> Self:
        self.until(lambda message: message["type"] == "started")
        return self

    def tick(self, condition: Callable[[dict[str, Any]], bool] = lambda _: True, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The next tick for which the condition holds."""
        return self.until(lambda message: message["type"] == "tick" and condition(message), limit_s)

    def event(self, words: str, limit_s: float = LIMIT_S) -> str:
        """The next event that contains the words."""
        return str(self.until(lambda message: message["type"] == "event" and words in message["text"], limit_s)["text"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> dict[str, Any]:
        """End it in order; its report."""
        self.process.send_signal(number)
        report = self.until(lambda message: message["type"] == "stopped")["report"]
        assert self.process.wait(timeout=LIMIT_S) == 0, self.process.communicate()[1]
        return dict(report)


def at_rest(tick: Callable[[Callable[[dict[str, Any]], bool]], dict[str, Any]], *feeders: Feeder) -> dict[str, Any]:
    """The tick after which nothing moves any more: all targets met, and then no more news of any service. ``feeders``: of each."""
    for feeder in feeders:
        feeder.latency_ns = CONTENT_NS
    tick(lambda message: message["reason"] == "hold-targets-met")
    for feeder in feeders:
        feeder.silent = True
    return tick(lambda message: {service["state"] for service in message["services"].values()} == {"stale"})


def state_of(message: dict[str, Any], service: str) -> str:
    return str(message["services"][service]["state"])


def cores_of(message: dict[str, Any], service: str) -> int:
    part = message["best_effort"] if service == BEST_EFFORT else message["services"][service]
    return int(part["amounts"]["cores"])

"""A daemon with all six resources that is killed again and again, in the middle of everything that it does, and restored.

Control groups and traffic control are this kernel's; cache and frequency are emulated trees. ``kill_and_restore`` runs in a private
mount namespace with the emulated CPUs in place (``tests.emulation.namespace``), and forks its daemons.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daemon_kit import RELAXED_NS, TARGET_NS, TOUCHED, VIOLATING_NS
from waiting import LIMIT_S, children, gone, until

from actuators.cgroup.group import FROZEN, IDLE_CLASS, THAWED, Direction
from actuators.cgroup.v1 import ControlGroupV1
from parties.client import HistogramClient
from parties.commands.restore import restore_all
from parties.control import Control
from parties.journal import JOURNAL_NAME
from parties.model import Resource
from parties.settings import (
    MS,
    BestEffortSettings,
    CacheSettings,
    ControlSettings,
    CoreSettings,
    DiskSettings,
    FrequencySettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
    PartiesSettings,
    ServiceSettings,
)
from tests.emulation.fuse_tree import Mounted

MIB = 1 << 20
INTERVAL_NS = 20 * MS
WINDOW_NS = INTERVAL_NS // 5
FULL_MASK = 0xFFFFF
POLICY_FILES = ("scaling_governor", "scaling_min_freq", "scaling_max_freq", "scaling_setspeed")


@dataclass(frozen=True)
class Scene:
    """What the daemon manages, and what of it is looked at before and after."""

    web: ControlGroupV1
    job: ControlGroupV1
    pids: tuple[int, ...]  # of the processes in them
    resctrl: Mounted
    cpufreq: Mounted
    namespace: str
    disk: str
    directory: Path

    def settings(self, seed: int) -> ControlSettings:
        """One service and best-effort jobs on two whole cores, with every resource."""
        return ControlSettings(
            services=(ServiceSettings("web", TARGET_NS, (self.web.path,), ports=(8080,)),),
            best_effort=(BestEffortSettings("job", (self.job.path,)),),
            node=NodeSettings(
                cores=CoreSettings(),
                cache=CacheSettings(mount=str(self.resctrl.path)),
                frequency=FrequencySettings(),
                memory=MemorySettings(3 << 30, 256 * MIB),
                disk=DiskSettings(self.disk, 10**9),
                network=NetworkSettings("lo", 10**10, self.namespace),
            ),
            interval_ns=INTERVAL_NS,
            seed=seed,
            parties=PartiesSettings(downsize_block_ns=200 * MS),
            runtime_directory=str(self.directory / "run"),
            state_directory=str(self.directory / f"state{seed}"),
        )

    def draw(self, rng: random.Random) -> None:
        """Have other values from time to time, so that what was put back cannot be mistaken for what was reset."""
        for group in (self.web, self.job):
            draws: list[tuple[Any, str]] = [
                (group.cpu_bandwidth, rng.choice(("max 100000", f"{rng.randrange(5000, 50000)} 50000"))),
                (group.cpu_class, rng.choice((IDLE_CLASS, f"shares={rng.randrange(2, 5000)}"))),
                (group.cpus, rng.choice(("0", "1", "0-1"))),
                (group.memory_limit, str(rng.randrange(64, 4000) * MIB)),
                (group.disk_throttle(self.disk, rng.choice(list(Direction))), str(rng.randrange(1, 1000) * MIB)),
                (group.freezer, rng.choice((FROZEN, THAWED))),
            ]
            for knob, value in rng.sample(draws, 2):
                knob.write(value)
        if rng.random() < 0.3:
            (self.resctrl.path / "schemata").write_text(f"L3:0={FULL_MASK >> rng.randrange(8):x}\n")
        if rng.random() < 0.3:
            policy = rng.choice(sorted((self.cpufreq.path / "cpufreq").glob("policy*")))
            (policy / "scaling_governor").write_text(rng.choice(("userspace", "performance", "schedutil")))

    def snapshot(self) -> dict[str, str]:
        """Every value that a daemon could have touched, as the kernel, `tc` and the emulated trees give it."""
        groups = (
            group.directory(controller) / name
            for group in (self.web, self.job)
            for controller in TOUCHED
            for name in TOUCHED[controller]
        )
        policies = (policy / name for policy in (self.cpufreq.path / "cpufreq").glob("policy*") for name in POLICY_FILES)
        found = {str(file): file.read_text() for file in (*groups, *policies) if file.exists()}
        found["tc"] = shown(self.namespace)
        found["resctrl"] = json.dumps(self.resctrl.order("get_state"), sort_keys=True)
        inside = (self.resctrl.path / "tasks").read_text().split()
        found["threads in the root group of resctrl"] = str([pid for pid in self.pids if str(pid) in inside])
        return found

    def clear(self) -> None:
        """No fault is left, and what hung goes on."""
        self.resctrl.clear()
        self.cpufreq.clear()


def shown(namespace: str) -> str:
    """What `tc` says of the device, without its counters."""
    words = "tc qdisc show dev lo; tc class show dev lo; tc filter show dev lo"
    return subprocess.run(["ip", "netns", "exec", namespace, "sh", "-c", words], check=True, capture_output=True, text=True).stdout


class ForkedDaemon:
    """The real control process in a child that was forked, and what it says."""

    def __init__(self, settings: ControlSettings) -> None:
        self.settings = settings
        self.messages: list[dict[str, Any]] = []
        self.ended: int | None = None
        self._helpers: set[int] = set()
        self._front, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._front.setblocking(False)
        self.pid = os.fork()
        if self.pid == 0:
            self._front.close()
            _control(settings, theirs)
        theirs.close()

    def poll(self) -> None:
        """Take in what it said, and whether it has ended."""
        with contextlib.suppress(BlockingIOError):
            while data := self._front.recv(1 << 20):
                self.messages.append(json.loads(data))
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.ended = os.waitstatus_to_exitcode(status) if pid else None

    def said(self, kind: str) -> dict[str, Any] | None:
        """The last message of a kind."""
        return next((message for message in reversed(self.messages) if message["type"] == kind), None)

    def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait for the condition, or its end."""
        deadline = time.monotonic() + limit_s
        while not condition() and self.ended is None:
            assert time.monotonic() < deadline, f"nothing of the sort; last: {self.messages[-2:]}"
            time.sleep(0.001)
            self.poll()

    def started(self) -> None:
        """Wait until its loop runs."""
        self.until(lambda: self.said("started") is not None)
        assert self.ended is None, self.trouble()

    def signal(self, number: signal.Signals) -> None:
        """Send one."""
        if self.ended is None:
            self._helpers |= set(self.children())
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.poll()
        self.signal(signal.SIGKILL)
        self.until(lambda: False)
        for helper in self._helpers:  # they die with it, but not before it
            until(lambda helper=helper: gone(helper), "a helper lives on")  # type: ignore[misc]
        self._front.close()

    def children(self) -> list[int]:
        """The processes for slow writes and upkeep."""
        return children(self.pid)

    def trouble(self) -> str:
        """Why it ended by itself."""
        file = Path(self.settings.state_directory) / "trouble"
        return file.read_text() if file.exists() else f"exit code {self.ended}"


def _control(settings: ControlSettings, front: socket.socket) -> None:
    """The child: never returns."""
    try:
        Control(settings, front).run()
    except BaseException:  # noqa: BLE001 - told to the test
        Path(settings.state_directory, "trouble").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


@dataclass(frozen=True, slots=True)
class Point:
    """One restore and what came before it. ``changed``: whether anything was other than before when it began."""

    seed: int
    moment: str
    kills: int
    changed: bool
    differences: tuple[str, ...]
    moves: int


class Attempt:
    """One seed: values, a daemon, the moment of its end, restore."""

    def __init__(self, scene: Scene, seed: int, start_s: float) -> None:
        self.scene, self.seed, self.start_s = scene, seed, start_s
        self.rng = random.Random(seed)  # noqa: S311 - moments of a test
        self.settings = scene.settings(seed)
        Path(self.settings.state_directory).mkdir(parents=True)
        self.kills = 0
        self.moves = 0

    def run(self, moment: str) -> Point:
        self.scene.draw(self.rng)
        before = self.scene.snapshot()
        MOMENTS[moment](self)
        changed = self.scene.snapshot() != before
        self.restore()
        after = self.scene.snapshot()
        differences = tuple(
            f"{name}: {before.get(name)!r} became {after.get(name)!r}" for name in before if before[name] != after.get(name)
        )
        if (Path(self.settings.state_directory) / JOURNAL_NAME).exists():
            differences += ("the journal is still there",)
        return Point(self.seed, moment, self.kills, changed, differences, self.moves)

    def restore(self) -> None:
        """What `parties restore` does; one in ten by the command itself."""
        state, runtime = Path(self.settings.state_directory), Path(self.settings.runtime_directory)
        if self.seed % 10 == 0:
            words = ["--state-directory", str(state), "--runtime-directory", str(runtime)]
            command = [str(Path(sys.executable).with_name("parties")), "restore", *words]
            ended = subprocess.run(command, check=False, capture_output=True, text=True)
            assert ended.returncode == 0, f"seed {self.seed}: {ended.stdout}{ended.stderr}"
        else:
            report = restore_all(state, runtime)
            assert report.complete, f"seed {self.seed}: {report}"

    def daemon(self, settings: ControlSettings | None = None) -> ForkedDaemon:
        return ForkedDaemon(settings or self.settings)

    def kill(self, daemon: ForkedDaemon) -> None:
        daemon.kill()
        self.kills += 1
        if daemon.ended not in {-signal.SIGKILL, 0}:
            raise AssertionError(f"seed {self.seed}: the daemon ended by itself: {daemon.trouble()}")
        self.moves += sum(len(message["moves"]) for message in daemon.messages if message["type"] == "tick")

    def feed(self, daemon: ForkedDaemon, seconds: float) -> None:
        """Report latencies that make it move, for so long."""
        end = time.monotonic() + seconds
        with HistogramClient(self.settings.histogram_socket, "web", "feeder", window_ns=WINDOW_NS, background=False) as client:
            while (left := end - time.monotonic()) > 0 and daemon.ended is None:
                phase = int(left / 0.08) + self.seed
                for number in range(40):
                    client.record((VIOLATING_NS if phase % 3 else RELAXED_NS) * (90 + number % 20) // 100)
                client.flush()
                time.sleep(min(left, WINDOW_NS / 1e9))
                daemon.poll()

    # When

    def while_starting(self) -> None:
        daemon = self.daemon()
        time.sleep(self.rng.random() * self.start_s)
        self.kill(daemon)

    def while_moving(self) -> None:
        daemon = self.daemon()
        daemon.started()
        self.feed(daemon, 0.05 + self.rng.random() * 0.3)
        self.kill(daemon)

    def after_its_helpers(self) -> None:
        """First the processes for slow writes and upkeep, then soon the daemon."""
        daemon = self.daemon()
        daemon.started()
        self.feed(daemon, self.rng.random() * 0.2)
        for pid in daemon.children():
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            self.feed(daemon, self.rng.random() * 0.04)
        self.kill(daemon)

    def in_a_write_that_hangs(self) -> None:
        """The kernel does not come back from a write; it takes effect once it does, after the signal."""
        daemon = self.daemon()
        daemon.started()
        tree, pattern = self.rng.choice(((self.scene.resctrl, "*/schemata"), (self.scene.cpufreq, "*/scaling_*")))
        done = tree.count()
        tree.hang(pattern)
        for _ in range(20):
            self.feed(daemon, 0.03)
            if tree.count() > done:
                break
        daemon.signal(signal.SIGKILL)
        time.sleep(0.01)
        self.scene.clear()
        self.kill(daemon)

    def while_restoring(self) -> None:
        self.while_moving()
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    restore_all(Path(self.settings.state_directory), Path(self.settings.runtime_directory))
                os._exit(0)
            time.sleep(self.rng.random() * 0.03)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.kills += 1

    def while_stopping(self) -> None:
        daemon = self.daemon()
        daemon.started()
        self.feed(daemon, 0.1)
        daemon.signal(signal.SIGTERM)
        time.sleep(self.rng.random() * 0.05)
        self.kill(daemon)

    def while_being_replaced(self) -> None:
        """It leaves everything in force, and the next goes on from there: as before, or with less memory, no disk, other ports."""
        first = self.daemon()
        first.started()
        self.feed(first, 0.1)
        first.signal(signal.SIGUSR1)
        if self.rng.random() < 0.3:
            time.sleep(self.rng.random() * 0.03)
        else:
            first.until(lambda: False)
        self.kill(first)
        node = replace(self.settings.node, memory=MemorySettings(2 << 30, 256 * MIB), disk=None)
        services = tuple(replace(service, ports=(8081, 8082)) for service in self.settings.services)
        changed = replace(self.settings, node=node, services=services)
        second = self.daemon(self.rng.choice((self.settings, changed)))
        time.sleep(self.rng.random() * self.start_s * 1.2)
        self.kill(second)


MOMENTS: Mapping[str, Callable[[Attempt], None]] = {
    "while it starts": Attempt.while_starting,
    "while it moves": Attempt.while_moving,
    "after its helpers": Attempt.after_its_helpers,
    "in a write that hangs": Attempt.in_a_write_that_hangs,
    "while it is restored": Attempt.while_restoring,
    "while it stops": Attempt.while_stopping,
    "while it is replaced": Attempt.while_being_replaced,
}


def kill_and_restore(scene: Scene, seeds: Sequence[int]) -> list[Point]:
    """One attempt for each seed, the moments in turn. Raises AssertionError where a daemon does not do its part."""
    first = Attempt(scene, -1, 0.0)
    begin = time.monotonic()
    daemon = first.daemon()
    daemon.started()
    start_s = time.monotonic() - begin
    daemon.until(lambda: daemon.said("tick") is not None)
    managed = (daemon.said("tick") or {})["services"]["web"]["amounts"].keys()
    assert managed == {resource.value for resource in Resource}, (managed, daemon.messages)
    daemon.signal(signal.SIGTERM)
    daemon.until(lambda: False)
    assert daemon.ended == 0, daemon.trouble()
    names = list(MOMENTS)
    return [Attempt(scene, seed, start_s).run(names[number % len(names)]) for number, seed in enumerate(seeds)]

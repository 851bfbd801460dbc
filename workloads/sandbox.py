"""A place on this machine to run services in, that is always removed again.

Two network namespaces joined by a veth pair, a parent control group with a child for each service, a temporary directory, and
every process started in them. Everything is written in the manifest before it is made; the janitor removes it, whether the run
ends well, is interrupted or is killed. Nothing is written to groups, namespaces or processes that are not the sandbox's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.libcgroup import Libcgroup
from workloads import launch
from workloads.cleanup import clean, send_signal
from workloads.janitor import READY
from workloads.machine import CpuPlan
from workloads.manifest import Kind, Manifest, ProcessId

PREFIX = "parties-demo-"
CLIENT_ADDRESS = "198.18.0.1"  # RFC 2544: the range set aside for benchmarks
SERVER_ADDRESS = "198.18.0.2"
CLEAN_LIMIT_S = 60.0
# The rest of the system may be at work on the same CPUs. What is in the sandbox is measured: it goes first, against everybody else.
HARNESS_PRIORITY = -10  # nice: of load generators and controller
PARENT_SHARES = 16384  # of the run's parent group; among the groups in it the default shares stay as they are
NETNS = Path("/run/netns")


class SandboxError(Exception):
    """The sandbox, or something in it, could not be made; the message says what and why, for an operator."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group: the same path below each controller's mount point."""

    path: str
    directories: dict[str, Path]

    def write(self, controller: str, file: str, value: object) -> None:
        """Write a control file. Raises OSError."""
        (self.directories[controller] / file).write_text(str(value))

    def read(self, controller: str, file: str) -> str:
        """Read a control file. Raises OSError."""
        return (self.directories[controller] / file).read_text()

    def cpu_ns(self) -> int:
        """CPU time of all that ever ran in the group."""
        return int(self.read("cpuacct", "cpuacct.usage"))


@dataclass(slots=True)
class Child:
    """A process that was started in the sandbox, and where its output goes."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    identity: ProcessId | None = field(default=None)

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.popen.poll() is None

    def log_tail(self, lines: int = 5) -> str:
        """The last lines of its output."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self, limit_s: float = 5.0) -> int:
        """Ask it to end, wait, and insist after the limit; its exit status. Only ever this process, by its pidfd."""
        if self.identity is not None and self.running():
            send_signal(self.identity, signal.SIGTERM)
        try:
            return self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()  # Popen has not reaped it, so the number is still its own
            return self.popen.wait(limit_s)


class Sandbox:
    """Use as a context manager. ``cache`` keeps the manifest while the run lives; ``mounts`` are the cgroup v1 mount points."""

    def __init__(self, *, cache: Path, mounts: dict[str, Path], cpus: CpuPlan) -> None:
        self.run = secrets.token_hex(3)
        self.cpus = cpus
        self._mounts = mounts
        self._parent = f"{PREFIX}{self.run}"
        self._cache = cache
        self._manifest = Manifest(cache / f"{self._parent}.manifest")
        self._janitor: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._children: list[Child] = []
        self.server_namespace = f"{self._parent}-s"
        self.client_namespace = f"{self._parent}-c"
        self.server_device = f"pds{self.run}"
        self.client_device = f"pdc{self.run}"
        self.directory = Path(tempfile.gettempdir()) / self._parent

    def __enter__(self) -> Self:
        try:
            self._start_janitor()
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        problems = self.close()
        if problems and error is None:
            raise SandboxError("could not be removed:\n  " + "\n  ".join(problems))

    def group(self, name: str) -> Group:
        """Make the child group of that name, on the managed CPUs."""
        group = Group(f"/{self._parent}/{name}", {key: root / self._parent / name for key, root in self._mounts.items()})
        self._create(f"{self._parent}/{name}")  # below a group that the manifest names
        self._pin(group.directories["cpuset"])
        return group

    @contextlib.contextmanager
    def all_cpus(self) -> Iterator[None]:
        """Until the block ends the run's groups may have every CPU that this process may use."""
        cpus = self._mounts["cpuset"] / self._parent / "cpuset.cpus"
        cpus.write_text(",".join(map(str, sorted(os.sched_getaffinity(0)))))
        try:
            yield
        finally:
            cpus.write_text(",".join(map(str, self.cpus.managed)))

    def spawn(  # noqa: PLR0913 - each is a property of its own of where a process runs
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        group: Group | None = None,
        namespace: str | None = None,
        pass_fds: tuple[int, ...] = (),
        real_time: bool = False,
    ) -> Child:
        """Start a program in a group (on the managed CPUs) or in none (on the reserved ones), and in a namespace.

        Output goes to a log in the sandbox's directory. ``real_time`` is for what sleeps most of the time and must wake at once.
        Raises SandboxError if it cannot be started.
        """
        inner = list(group.directories.values()) if group else []
        home = group.directories["freezer"] if group else self._harness_group
        specification = {
            "groups": [str(directory) for directory in [home, *(item for item in inner if item != home)]],
            "namespace": str(NETNS / namespace) if namespace else None,
            "cpus": list(self.cpus.managed if group else self.cpus.reserved),
            "priority": 0 if group else HARNESS_PRIORITY,
            "real_time": real_time,
        }
        log = self.directory / f"{name}.log"
        words = [sys.executable, "-I", "-S", launch.__file__, json.dumps(specification), *map(str, command)]
        try:
            with log.open("ab") as output:
                popen = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=pass_fds,
                    start_new_session=True,  # the keyboard's Ctrl-C is the run's alone
                    cwd=self.directory,
                )
        except OSError as error:
            raise SandboxError(f"{name}: cannot start {command[0]}: {error}") from error
        child = Child(name, popen, log, ProcessId.of(popen.pid))
        self._children.append(child)
        return child

    def declare_daemon(self, child: Child) -> None:
        """Have the janitor stop this process first and gracefully, so that it puts back what it changed."""
        if child.identity is not None:
            self._manifest.add(Kind.DAEMON, str(child.identity))

    def close(self) -> tuple[str, ...]:
        """Remove everything; what could not be removed. Ctrl-C is ignored meanwhile. Closing twice does nothing."""
        janitor, self._janitor = self._janitor, None
        if janitor is None:
            return ()
        with _undisturbed():
            os.close(self._pipe)
            try:
                output, _ = janitor.communicate(timeout=CLEAN_LIMIT_S)
            except subprocess.TimeoutExpired:
                return (f"the janitor (process {janitor.pid}) is still at work after {CLEAN_LIMIT_S:.0f} s",)
            for child in self._children:
                child.popen.wait(CLEAN_LIMIT_S)
        if janitor.returncode < 0:  # it was killed: do its work
            return clean(self._manifest)
        return tuple(output.decode().splitlines()) if janitor.returncode else ()

    @property
    def _harness_group(self) -> Path:
        return self._mounts["freezer"] / self._parent / "harness"

    def _start_janitor(self) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        self._manifest.add(Kind.PARENT, str(ProcessId.of(os.getpid())))
        read_end, self._pipe = os.pipe()
        try:
            self._janitor = subprocess.Popen(
                [sys.executable, "-m", "workloads.janitor", str(self._manifest.path), str(read_end)],
                pass_fds=(read_end,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=Path(__file__).parents[1],
            )
        finally:
            os.close(read_end)
        if self._janitor.stdout is None or os.read(self._janitor.stdout.fileno(), 1) != READY:
            raise SandboxError("the janitor could not be started")

    def _make(self) -> None:
        self._manifest.add(Kind.DIRECTORY, str(self.directory))
        self.directory.mkdir(mode=0o755)
        freezer = self._mounts["freezer"]
        for root in (freezer, *sorted(set(self._mounts.values()) - {freezer})):
            directory = root / self._parent
            self._manifest.add(Kind.KILL_GROUP if root == freezer else Kind.GROUP, str(directory))
        self._create(self._parent)
        self._harness_group.mkdir()
        self._pin(self._mounts["cpuset"] / self._parent)
        (self._mounts["cpu"] / self._parent / "cpu.shares").write_text(str(PARENT_SHARES))
        self._make_network()

    def _create(self, path: str) -> None:
        try:
            Libcgroup(Hierarchies(self._mounts)).create(tuple(self._mounts), path)
        except SetupError as error:
            raise SandboxError(f"control group {path}: {error}") from error

    def _pin(self, directory: Path) -> None:
        (directory / "cpuset.mems").write_text((directory.parent / "cpuset.mems").read_text())
        (directory / "cpuset.cpus").write_text(",".join(map(str, self.cpus.managed)))

    def _make_network(self) -> None:
        server, client = self.server_namespace, self.client_namespace
        for name in (server, client):
            self._manifest.add(Kind.NAMESPACE, name)
            _ip("netns", "add", name)
        _ip(
            *("link", "add", self.server_device, "netns", server, "type", "veth"),
            *("peer", "name", self.client_device, "netns", client),
        )
        for name, device, address in (
            (server, self.server_device, SERVER_ADDRESS),
            (client, self.client_device, CLIENT_ADDRESS),
        ):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
            _ip("-n", name, "link", "set", "lo", "up")


def living(cache: Path) -> tuple[str, ...]:
    """The runs of this cache that are under way."""
    return tuple(path.stem for path in sorted(cache.glob(f"{PREFIX}*.manifest")) if not Manifest(path).orphaned())


def sweep(cache: Path, mounts: dict[str, Path]) -> tuple[str, ...]:
    """Clean up after earlier runs whose janitor died too; what is still there, or is nobody's as far as one can tell, is named."""
    notes: list[str] = []
    known = set()
    for path in sorted(cache.glob(f"{PREFIX}*.manifest")):
        manifest = Manifest(path)
        known.add(path.stem)
        if manifest.orphaned():
            notes += [f"left by an earlier run, and cannot be removed: {problem}" for problem in clean(manifest)]
    found = [directory for root in mounts.values() for directory in root.glob(f"{PREFIX}*")]
    found += list(NETNS.glob(f"{PREFIX}*"))
    found += list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    for path in found:
        if not any(path.name.startswith(stem) for stem in known):
            notes.append(f"{path}: of a run started elsewhere, or of one without a record; left alone")
    return tuple(notes)


def wait_for(condition: Callable[[], bool], what: str, children: Sequence[Child] = (), limit_s: float = 10.0) -> None:
    """Poll a callable until it is true. Raises SandboxError, with the log's end, if a child ends or the time is over."""
    deadline = time.monotonic() + limit_s
    while not condition():
        for child in children:
            if not child.running():
                raise SandboxError(f"{child.name} ended with status {child.popen.returncode}: {child.log_tail()}")
        if time.monotonic() > deadline:
            raise SandboxError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.02)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Sockets opened meanwhile by this thread belong to the namespace. Raises OSError."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(NETNS / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            launch.enter_namespace(there)
            yield
        finally:
            launch.enter_namespace(here)
            os.close(there)
    finally:
        os.close(here)


def _ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)
    except subprocess.CalledProcessError as error:
        raise SandboxError(f"ip {' '.join(words)}: {error.stderr.strip()}") from error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Cleaning is not interrupted: the second Ctrl-C of an impatient operator would leave the rest behind."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

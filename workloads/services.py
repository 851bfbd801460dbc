"""The real services that the harness runs, and the best-effort job beside them, as Debian packages them.

Requests are made costly for the server and cheap for the client, so that clients stay well under half of their reserved CPUs while
the service saturates its share: memcached answers multi-GETs, nginx compresses a page of text for each request.
"""

from __future__ import annotations

import itertools
import random
import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workloads.sandbox import SERVER_ADDRESS, Child, Group, Sandbox, SandboxError, inside, wait_for

MEMCACHED_PORT = 11211
NGINX_PORT = 8080
CONNECTIONS = 32  # of each service's load generator
START_LIMIT_S = 10.0
WORKING_NS = 100_000_000  # a job that has used so much CPU time is at work
GOLDEN = 0.618034


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that answers."""

    child: Child
    group: Group
    error_log: Path | None = None

    def errors(self) -> tuple[str, ...]:
        """What it complained of."""
        if self.error_log is None or not self.error_log.exists():
            return ()
        return tuple(self.error_log.read_text(errors="replace").splitlines())


class ServiceProgram(Protocol):
    """A latency-critical service that can be started in a group, and how load is sent to it."""

    @property
    def name(self) -> str:
        """The service's name."""

    @property
    def port(self) -> int:
        """Where it listens."""

    def start(self, box: Sandbox, group: Group) -> RunningService:
        """Start it in its group and the server's namespace, and wait until it answers. Raises SandboxError."""

    def load_arguments(self, address: str) -> Sequence[str]:
        """The load generator's subcommand, target and request options for the service at an address."""

    def preload_arguments(self, address: str) -> Sequence[str] | None:
        """The same to fill it with data; None if it needs none."""

    def version(self) -> str:
        """What the program says its version is. Raises SandboxError."""

    def parameters(self) -> str:
        """Everything that changes what a request costs: the key of a calibration."""


@dataclass(frozen=True, slots=True)
class Memcached:
    """memcached with one worker thread; a request is a multi-GET."""

    name: str = "memcached"
    port: int = MEMCACHED_PORT
    keys: int = 100_000
    key_bytes: int = 16
    value_bytes: int = 32  # small, as the client has to take in every byte
    keys_per_request: int = 300
    memory_mib: int = 256

    def start(self, box: Sandbox, group: Group) -> RunningService:
        """As the protocol says."""
        command = ["memcached", "-l", SERVER_ADDRESS, "-p", str(self.port), "-U", "0", "-t", "1"]
        command += ["-m", str(self.memory_mib), "-c", "1024", "-u", "nobody"]
        child = box.spawn(self.name, command, group=group, namespace=box.server_namespace)
        _wait_for_port(box, child, self.port)
        return RunningService(child, group)

    def load_arguments(self, address: str) -> Sequence[str]:
        """As the protocol says."""
        return (
            *("memcached", f"{address}:{self.port}", "--mix", "multiget=1", "--multiget-keys", str(self.keys_per_request)),
            *("--keys", str(self.keys), "--key-size", str(self.key_bytes), "--value-size", str(self.value_bytes)),
        )

    def preload_arguments(self, address: str) -> Sequence[str] | None:
        """As the protocol says."""
        return (*self.load_arguments(address), "--load-only")

    def version(self) -> str:
        """As the protocol says."""
        return _version(["memcached", "-V"])

    def parameters(self) -> str:
        """As the protocol says."""
        return repr(self)


@dataclass(frozen=True, slots=True)
class Nginx:
    """nginx with one worker that compresses a page of text for each request."""

    name: str = "nginx"
    port: int = NGINX_PORT
    pages: int = 64
    page_bytes: int = 8 * 1024  # the mean; pages are from half to one and a half of it
    gzip_level: int = 6
    corpus_seed: int = 1

    def start(self, box: Sandbox, group: Group) -> RunningService:
        """As the protocol says."""
        home = box.directory / self.name
        if not home.exists():  # else of an earlier start in the same sandbox
            for directory in (home, home / "pages", home / "temporary"):
                directory.mkdir()
            write_pages(home / "pages", self.pages, self.page_bytes, self.corpus_seed)
        error_log = home / "error.log"
        configuration = home / "nginx.conf"
        configuration.write_text(self._configuration(home, error_log))
        # -e: until it has read its configuration it would complain into the system's own log
        command: list[str | Path] = ["nginx", "-p", home, "-e", error_log, "-c", configuration]
        child = box.spawn(self.name, command, group=group, namespace=box.server_namespace)
        _wait_for_port(box, child, self.port)
        return RunningService(child, group, error_log)

    def load_arguments(self, address: str) -> Sequence[str]:
        """As the protocol says."""
        return (
            *("http", f"http://{address}:{self.port}", "--path-pattern", "/{}.html", "--path-count", str(self.pages)),
            *("--header", "Accept-Encoding: gzip"),
        )

    def preload_arguments(self, address: str) -> Sequence[str] | None:
        """As the protocol says."""
        del address
        return None

    def version(self) -> str:
        """As the protocol says."""
        return _version(["nginx", "-v"])

    def parameters(self) -> str:
        """As the protocol says."""
        return repr(self)

    def _configuration(self, home: Path, error_log: Path) -> str:
        temporary = "\n  ".join(
            f"{kind}_temp_path {home}/temporary/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""daemon off;
user nobody nogroup;
worker_processes 1;
pid {home}/nginx.pid;
error_log {error_log} warn;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile off;
  open_file_cache off;
  types {{ text/html html; }}
  gzip on;
  gzip_comp_level {self.gzip_level};
  keepalive_requests 100000000;
  keepalive_timeout 3600s;
  {temporary}
  server {{
    listen {SERVER_ADDRESS}:{self.port} backlog=1024;
    root {home}/pages;
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class BestEffortFigures:
    """What a best-effort job says of itself at its end."""

    operations: float
    cpu_s: float

    @property
    def operations_per_cpu_s(self) -> float:
        """Its speed; times the CPU time of a stretch it is what was done in that stretch."""
        return self.operations / self.cpu_s if self.cpu_s else 0.0


@dataclass(frozen=True, slots=True)
class StressNg:
    """stress-ng multiplying matrices: compute and cache, and an operation that always costs the same."""

    name: str = "best-effort"
    workers: int = 2
    method: str = "matrixprod"

    def start(self, box: Sandbox, group: Group) -> Child:
        """Start it in its group and wait until it works. Raises SandboxError."""
        self._report(box).unlink(missing_ok=True)
        command: list[str | Path] = [
            "stress-ng",
            "--cpu",
            str(self.workers),
            "--cpu-method",
            self.method,
            "--temp-path",
            box.directory,
        ]
        command += ["--metrics-brief", "--yaml", self._report(box), "--timeout", "0"]
        before_ns = group.cpu_ns()
        child = box.spawn(self.name, command, group=group)
        wait_for(lambda: group.cpu_ns() - before_ns > WORKING_NS, "stress-ng to work", [child], START_LIMIT_S)
        return child

    def stop(self, box: Sandbox, child: Child) -> BestEffortFigures:
        """Stop it and read its report. Raises SandboxError if there is none."""
        child.stop()
        try:
            return read_stress_report(self._report(box).read_text())
        except (OSError, ValueError) as error:
            raise SandboxError(f"stress-ng left no report: {error}; {child.log_tail()}") from error

    def version(self) -> str:
        """What the program says its version is. Raises SandboxError."""
        return _version(["stress-ng", "--version"])

    @staticmethod
    def _report(box: Sandbox) -> Path:
        return box.directory / "stress-ng.yaml"


def read_stress_report(text: str) -> BestEffortFigures:
    """The figures of a ``stress-ng --yaml`` report of one stressor. Raises ValueError."""
    values = {}
    for key in ("bogo-ops", "user-time", "system-time"):
        found = re.search(rf"^\s*{key}: ([0-9.]+)\s*$", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"no {key} in it")
        values[key] = float(found[1])
    return BestEffortFigures(values["bogo-ops"], values["user-time"] + values["system-time"])


def write_pages(directory: Path, count: int, mean_bytes: int, seed: int) -> None:
    """Pages of text whose words follow Zipf's law, so that compressing them costs what compressing prose costs."""
    rng = random.Random(seed)  # noqa: S311 - wants a seed
    consonants, vowels = "bcdfghklmnprstvz", "aeiou"
    words = [
        "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.choices((1, 2, 3, 4), (3, 5, 3, 1))[0]))
        for _ in range(5000)
    ]
    ranks = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    for page in range(count):
        # From a half to one and a half of the mean, evenly, and in an order that has nothing to do with popularity.
        size = round(mean_bytes * (0.5 + (0.5 + page * GOLDEN) % 1))
        paragraphs = ["<!DOCTYPE html>\n<html><body>\n"]
        length = 0
        while length < size:
            text = " ".join(rng.choices(words, cum_weights=ranks, k=rng.randint(40, 80)))
            paragraphs.append(f"<p>{text.capitalize()}.</p>\n")
            length += len(paragraphs[-1])
        (directory / f"{page}.html").write_text("".join(paragraphs) + "</body></html>\n")


def _version(command: list[str]) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"{command[0]}: {error}") from error
    return (done.stdout or done.stderr).strip().splitlines()[0]


def _wait_for_port(box: Sandbox, child: Child, port: int) -> None:
    def answers() -> bool:
        with inside(box.client_namespace), socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((SERVER_ADDRESS, port)) == 0

    wait_for(answers, f"{child.name} to listen on port {port}", [child], START_LIMIT_S)

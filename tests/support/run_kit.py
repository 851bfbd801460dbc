"""``parties run`` as a process, on the groups of a site."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from daemon_kit import Site
from waiting import LIMIT_S


def configuration(site: Site, *, target: str = "10ms", store: bool = True, more: str = "") -> str:
    settings = site.settings
    services = [("web", site.web, target), *([("store", site.store, "10ms")] if store else [])]
    tables = [f'[[service]]\nname = "{name}"\ncgroup = "{group.path}"\ntarget = "{limit}"\n' for name, group, limit in services]
    return f"""
version = 1
interval = "100ms"
runtime_directory = "{settings.runtime_directory}"
state_directory = "{settings.state_directory}"
{more}
[node.cores]
managed = "{max(os.sched_getaffinity(0))}"
division = "fractions"
[node.memory]
total = "3GiB"
step = "256MiB"
{"".join(tables)}
[[best_effort]]
name = "job"
cgroup = "{site.job.path}"
"""


class Run:
    """``parties run --json`` as a process, and the lines that it writes."""

    begun: ClassVar[list[Run]] = []

    def __init__(self, file: Path, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-c", "from parties.cli import main; main()", "run", "-c", str(file), "--json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.messages: list[dict[str, Any]] = []
        self.begun.append(self)

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        for line in self.process.stdout:
            self.messages.append(json.loads(line))
            if condition(self.messages[-1]):
                return self.messages[-1]
            assert time.monotonic() < deadline, self.messages[-1]
        assert self.process.stderr is not None
        raise AssertionError(f"the run ended: {self.process.stderr.read()}")

    def tick(self, condition: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        return self.until(lambda message: message["type"] == "tick" and condition(message))

    def event(self, words: str) -> str:
        return str(self.until(lambda message: message["type"] == "event" and words in message["text"])["text"])

    def started(self) -> dict[str, Any]:
        return self.until(lambda message: message["type"] == "started")

    def end(self, number: signal.Signals) -> tuple[int, dict[str, Any], str]:
        """Exit code, the last report and standard error."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=LIMIT_S)
        self.messages += [json.loads(line) for line in out.splitlines()]
        reports = [message["report"] for message in self.messages if message["type"] == "stopped"]
        return self.process.returncode, reports[-1] if reports else {}, err

    @classmethod
    def end_all(cls) -> None:
        """Whatever a test that failed has left running."""
        while cls.begun:
            with cls.begun.pop().process as process:
                process.terminate()
                try:
                    process.communicate(timeout=LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()

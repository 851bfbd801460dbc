"""The generator's binary, and a way to run it and read what it says."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from waiting import ahead_of_others

BUILT = Path(__file__).parents[2] / "workloads/loadgen/target/release/parties-loadgen"
LONGEST_RUN_SECONDS = 300
_TWO = 2


@dataclass
class Result:
    """What a run left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What stdout holds."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The lines of a kind."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def summary(self) -> dict[str, Any]:
        """The last line."""
        assert self.lines[-1]["kind"] == "summary", self.stderr
        return self.lines[-1]


@dataclass
class Running:
    """A generator that is not yet done."""

    process: subprocess.Popen[str]

    def finish(self) -> Result:
        """Waits for the end."""
        stdout, stderr = self.process.communicate(timeout=LONGEST_RUN_SECONDS)
        return Result(self.process.returncode, stdout, stderr)


@pytest.fixture(scope="session")
def binary() -> Path:
    """The built generator."""
    path = Path(os.environ.get("PARTIES_LOADGEN", BUILT))
    if not path.exists():
        pytest.skip(f"{path} is absent: run `cargo build --release` in workloads/loadgen, or set PARTIES_LOADGEN")
    return path


Start = Callable[..., Running]
Run = Callable[..., Result]


@pytest.fixture
def start(binary: Path, request: pytest.FixtureRequest) -> Start:
    """Starts the generator; what still runs at the test's end is stopped."""

    def begin(*arguments: object) -> Running:
        command = [str(binary), *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        request.addfinalizer(lambda: _end(process))
        return Running(process)

    return begin


def _end(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@pytest.fixture(autouse=True)
def _undisturbed() -> Iterator[None]:
    """Generator and server run before whatever else wants the CPUs; on a single one they would be in each other's way."""
    with ahead_of_others() if len(os.sched_getaffinity(0)) >= _TWO else contextlib.nullcontext():
        yield


@pytest.fixture
def run(start: Start) -> Run:
    """Runs the generator to its end."""

    def whole(*arguments: object) -> Result:
        return start(*arguments).finish()

    return whole

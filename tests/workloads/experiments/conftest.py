"""What tests of the experiments share: a view that keeps what it was told, and calls on a fixed day."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_experiment import Heard

from workloads.experiments import fingerprint
from workloads.experiments.runner import Call

Measured = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who edits the tree while tests run does not make points stale; what is taken in has a test of its own."""
    monkeypatch.setattr(fingerprint, "_files", lambda: iter(()))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def call() -> Callable[..., Call]:
    """A call on a fixed day."""

    def make(*, quick: bool = False, seed: int = 1, jobs: int = 1) -> Call:
        return Call(quick=quick, seed=seed, jobs=jobs, today=lambda: dt.date(2026, 1, 2))

    return make


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    """The names of the points that were measured so far, in any process."""
    log = tmp_path / "measured.log"
    monkeypatch.setenv("FAKE_EXPERIMENT_LOG", str(log))
    return lambda: sorted(line.split()[0] for line in log.read_text().splitlines()) if log.exists() else []

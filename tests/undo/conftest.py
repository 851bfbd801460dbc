"""Control groups as in the tests of kernel and actuators, and what every count of fault points needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.actuators.conftest import v2
from tests.kernel.conftest import cgroup_factory, layer, spawn

__all__ = ["cgroup_factory", "layer", "said", "spawn", "v2", "without_fsync"]


@pytest.fixture
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of journals in one test: what fsync adds is tested elsewhere."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[int, str], None]:
    """Prints how many fault points were covered."""

    def say(points: int, what: str) -> None:
        with capsys.disabled():
            print(f"\n{points} fault points covered on {what}")  # noqa: T201 - the figure is wanted

    return say

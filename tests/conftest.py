"""What holds for every test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator

import fault_kit
import fault_table
import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and no verdict on the speed of a machine that others use too.
settings.register_profile("parties", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parties")

FAULT_POINTS = "fault points"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Note the fault points that a test covers; one that is to cover a kind of knob and does not has failed."""
    before = Counter(fault_kit.COVERED)
    yield
    covered = fault_kit.COVERED - before
    item.user_properties.append((FAULT_POINTS, dict(covered)))
    lacking = fault_table.expected_of(item.nodeid) - covered.keys()
    assert not lacking, f"fault_table.py says that this test fails the writes of {sorted(lacking)}, and it does not"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many fault points were covered, by kind of knob."""
    points: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        points.update(dict(report.user_properties).get(FAULT_POINTS, {}))
    if points:
        terminalreporter.write_line(fault_table.summary(points))


@pytest.fixture
def without_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For hundreds of journals in one test: what fsync adds is tested elsewhere."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[int, str], None]:
    """Prints how many fault points were covered."""

    def say(points: int, what: str) -> None:
        with capsys.disabled():
            print(f"\n{points} fault points covered on {what}")  # noqa: T201 - the figure is wanted

    return say

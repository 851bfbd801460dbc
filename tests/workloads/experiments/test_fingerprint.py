"""What makes a finished point stale."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path

import fake_experiment
import pytest

from workloads.experiments import fingerprint, registry
from workloads.experiments.experiment import Point, Row

FILES = fingerprint._files  # as it is, before the tests' fixture puts another in its place


def test_all_that_a_run_executes_is_taken_in() -> None:
    """Simulator, policies, loop, signal, data, and the experiments' shared modules; not what only summarises or draws."""
    found = {"/".join(path.parts[-2:]) for path in FILES()}
    assert found >= {
        *("simulator/machine.py", "simulator/run.py", "policies/parties.py", "parties/loop.py", "monitors/signal.py"),
        *("services/memcached.toml", "nodes/e5-2699v4.toml", "scenarios/fluctuating.toml", "experiments/trials.py"),
    }
    assert not found & {"experiments/plot.py", "experiments/report.py", "parties/cli.py"}
    assert all(path.is_file() for path in FILES())


def test_a_changed_file_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte is enough, and so is a file that was renamed."""
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("a")
    monkeypatch.setattr(fingerprint, "_files", lambda: iter((one,)))
    before = fingerprint.fingerprint(fake_experiment.experiment())
    assert fingerprint.fingerprint(fake_experiment.experiment("another")) == before
    one.write_text("b")
    assert fingerprint.fingerprint(fake_experiment.experiment()) != before
    other.write_text("a")
    monkeypatch.setattr(fingerprint, "_files", lambda: iter((other,)))
    assert fingerprint.fingerprint(fake_experiment.experiment()) != before


def _another(point: Point) -> Sequence[Row]:
    return [{"name": point.name}]


def test_what_measures_is_taken_in_and_what_draws_is_not() -> None:
    """Another measure function is another fingerprint; another title, summary or figure is not."""
    experiment = fake_experiment.experiment()
    before = fingerprint.fingerprint(experiment)
    drawn = dataclasses.replace(experiment, title="another", draw=lambda *_: None, summarise=lambda _: {})
    assert fingerprint.fingerprint(drawn) == before
    measured = dataclasses.replace(experiment, measure=_another)
    assert fingerprint.fingerprint(measured) != before


def test_measure_functions_lean_on_shared_modules_only() -> None:
    """Every project module of the harness that a figure's file imports is taken in, or is there to summarise and draw."""
    shared = {f"workloads.experiments.{name.removesuffix('.py')}" for name in fingerprint._SHARED}
    afterwards = {f"workloads.experiments.{name}" for name in ("paper", "plot", "tables")}
    for name in registry.NAMES:
        module = importlib.import_module(f"workloads.experiments.figures.{name.replace('-', '_')}")
        imported = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
        ours = {found for found in imported if found.startswith("workloads.") and found != module.__name__}
        assert ours <= shared | afterwards

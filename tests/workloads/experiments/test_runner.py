"""The runner: what it measures, what it leaves on disk, and what an interruption or a failure costs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import fake_experiment
import pytest
from fake_experiment import Heard

from workloads.experiments import fingerprint
from workloads.experiments.runner import Call, run
from workloads.experiments.store import Store

MakeCall = Callable[..., Call]
Measured = Callable[[], list[str]]
SUFFIXES = (".csv", ".json", ".png")
ALL_POINTS = [f"x={x}" for x in range(6)]


def _files(directory: Path, name: str = "fake") -> dict[str, bytes]:
    return {suffix: (directory / f"{name}{suffix}").read_bytes() for suffix in SUFFIXES}


def test_an_experiment_leaves_its_table_summary_and_figure(tmp_path: Path, heard: Heard, call: MakeCall) -> None:
    """All rows are in the CSV in the order of the grid; the summary says how it came about; the figure is a PNG."""
    outcome = run([fake_experiment.experiment()], Store(tmp_path / "deep" / "er"), heard, call(seed=7))
    with (tmp_path / "deep" / "er" / "fake.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["x"] for row in rows] == [str(x) for x in range(6) for _ in range(2)]
    assert rows[4]["y"] == "4"
    assert rows[5]["noise"] == ""
    summary = json.loads((tmp_path / "deep" / "er" / "fake.json").read_text())
    assert summary == outcome.summaries["fake"]
    assert (summary["seed"], summary["quick"], summary["date"], summary["points"]) == (7, False, "2026-01-02", 6)
    assert summary["total"] == sum(x * x - x for x in range(6))
    assert (tmp_path / "deep" / "er" / "fake.png").read_bytes().startswith(b"\x89PNG")


def test_a_reason_stands_only_where_the_figure_differs(tmp_path: Path, heard: Heard, call: MakeCall) -> None:
    """A line that holds has no reason; one that does not has one, be it that nobody has looked into it."""
    comparison = run([fake_experiment.experiment()], Store(tmp_path), heard, call()).summaries["fake"]["comparison"]
    assert [(line["holds"], bool(line["reason"])) for line in comparison] == [(False, True), (True, False)]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured) -> None:
    """After Ctrl-C the same call measures the rest only, and its files are those of an uninterrupted run."""
    run([fake_experiment.experiment()], Store(tmp_path / "whole"), heard, call())
    heard.finished.clear()
    heard.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        run([fake_experiment.experiment()], Store(tmp_path / "parts"), heard, call())
    assert not (tmp_path / "parts" / "fake.csv").exists()
    before = len(measured())
    heard.stop_after = None
    run([fake_experiment.experiment()], Store(tmp_path / "parts"), heard, call())
    assert heard.kept["fake"] == 2
    assert len(measured()) - before == 4
    assert _files(tmp_path / "parts") == _files(tmp_path / "whole")


def test_a_finished_experiment_is_not_measured_again(tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured) -> None:
    """The same call again measures nothing, and neither does the quick one, whose points are among those finished."""
    run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    run([fake_experiment.experiment()], Store(tmp_path), heard, call(quick=True))
    assert measured() == ALL_POINTS
    assert heard.weight == 0


def test_points_of_another_seed_or_code_are_measured_again(
    tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured with another seed, version or data is not taken for the same; both stay on disk."""
    run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    run([fake_experiment.experiment()], Store(tmp_path), heard, call(seed=2))
    assert len(measured()) == 12
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "__version__", "another")
        run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    assert len(measured()) == 18
    run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    assert len(measured()) == 18


def test_two_processes_give_the_same_files_as_one(tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured) -> None:
    """Nothing in table, summary or figure depends on who measured what and in which order."""
    run([fake_experiment.experiment()], Store(tmp_path / "one"), heard, call())
    assert len(measured()) == 6
    run([fake_experiment.experiment()], Store(tmp_path / "two"), heard, call(jobs=2))
    assert len(measured()) == 12
    assert _files(tmp_path / "one") == _files(tmp_path / "two")


def test_two_processes_interrupted_leave_finished_points(tmp_path: Path, heard: Heard, call: MakeCall) -> None:
    """Ctrl-C ends the other processes at once and loses nothing that was finished."""
    heard.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        run([fake_experiment.experiment()], Store(tmp_path), heard, call(jobs=2))
    heard.stop_after = None
    run([fake_experiment.experiment()], Store(tmp_path), heard, call())
    assert heard.kept["fake"] == 3


def test_points_in_common_are_measured_once(tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured) -> None:
    """Two experiments with one points file share what they have in common, and the remaining time knows it."""
    outcome = run(
        [fake_experiment.experiment("first", "both"), fake_experiment.experiment("second", "both")], Store(tmp_path), heard, call()
    )
    assert measured() == ALL_POINTS
    assert heard.weight == 6
    assert heard.kept == {"first": 0, "second": 6}
    assert set(outcome.summaries) == {"first", "second"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_point_that_fails_costs_its_experiment_only(
    tmp_path: Path, heard: Heard, call: MakeCall, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """The others go on, finished points stay, and the failure is told with its cause."""
    monkeypatch.setenv(fake_experiment.FAIL, "x=3")
    outcome = run([fake_experiment.experiment("first")], Store(tmp_path), heard, call(jobs=jobs))
    assert "x=3" in str(outcome.failures["first"])
    assert "no such luck" in str(outcome.failures["first"].__cause__)
    assert not (tmp_path / "first.csv").exists()
    monkeypatch.delenv(fake_experiment.FAIL)
    outcome = run([fake_experiment.experiment("first"), fake_experiment.experiment("second")], Store(tmp_path), heard, call())
    assert not outcome.failures
    assert heard.kept["first"] > 0

"""Result directories: what is taken up, what is passed over, and what is never overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import fake_experiment
import pytest
from fake_experiment import Heard

from workloads.experiments.runner import Call, run
from workloads.experiments.store import Store, StoreError

MakeCall = Callable[..., Call]
Measured = Callable[[], list[str]]


def _finish(directory: Path, heard: Heard, call: MakeCall) -> Path:
    run([fake_experiment.experiment()], Store(directory), heard, call())
    return directory / "fake.points.jsonl"


def test_a_line_cut_short_is_measured_again(tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured) -> None:
    """A crash in the middle of a line costs that point alone, and the file is good again afterwards."""
    points = _finish(tmp_path, heard, call)
    points.write_text(points.read_text()[:-20])
    _finish(tmp_path, heard, call)
    assert len(measured()) == 7
    assert any("1 broken line(s)" in said for said in heard.said)
    _finish(tmp_path, heard, call)
    assert len(measured()) == 7


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"point": "x"}', '{"point": "x", "fingerprint": "y", "cost_s": 1, "rows": [3]}', "\x00\xff"]
)
def test_a_broken_line_in_the_middle_is_passed_over(
    tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured, line: str
) -> None:
    """Whatever stands in a line, the others count."""
    points = _finish(tmp_path, heard, call)
    lines = points.read_text().splitlines()
    points.write_text("\n".join([*lines[:3], line, *lines[4:]]) + "\n")
    _finish(tmp_path, heard, call)
    assert len(measured()) == 7


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("my own notes", "no points file"),
        (json.dumps({"format": "parties-experiment-points", "version": 99, "points_of": "fake"}), "version 99"),
        (json.dumps({"format": "parties-experiment-points", "version": 1, "points_of": "emu"}), "'emu'"),
    ],
)
def test_a_foreign_points_file_is_left_alone(  # noqa: PLR0913, PLR0917 - fixtures
    tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured, head: str, words: str
) -> None:
    """A file of another kind, version or experiment stops the run before anything is measured, and stays as it is."""
    points = tmp_path / "fake.points.jsonl"
    points.write_text(head + "\n")
    with pytest.raises(StoreError, match=words):
        _finish(tmp_path, heard, call)
    assert points.read_text() == head + "\n"
    assert not measured()


@pytest.mark.parametrize("suffix", [".csv", ".json", ".png"])
def test_somebody_elses_results_are_not_overwritten(
    tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured, suffix: str
) -> None:
    """A file that bears a result's name, without the points that it would be made of, is not ours."""
    (tmp_path / f"fake{suffix}").write_text("precious")
    with pytest.raises(StoreError, match="not from here"):
        _finish(tmp_path, heard, call)
    assert (tmp_path / f"fake{suffix}").read_text() == "precious"
    assert not measured()


def test_a_directory_that_cannot_be_written_is_told_first(tmp_path: Path, heard: Heard, call: MakeCall, measured: Measured) -> None:
    """One message names the directory, before anything is measured."""
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(StoreError, match=f"{place}.*can be written"):
            _finish(place, heard, call)
    assert not measured()


def test_two_runs_do_not_write_the_same_points(tmp_path: Path, heard: Heard, call: MakeCall) -> None:
    """A second run into the same directory is told to wait."""
    with Store(tmp_path).points("fake"), pytest.raises(StoreError, match="another run"):
        _finish(tmp_path, heard, call)


def test_rows_that_json_cannot_hold_are_a_failure(tmp_path: Path) -> None:
    """Infinity and NaN never reach a file."""
    with Store(tmp_path).points("fake") as points:
        point = fake_experiment.points(quick=True, seed=1)[0]
        with pytest.raises(ValueError, match="JSON"):
            points.add(point, "f", [{"y": float("inf")}], 0.0)
        assert points.rows(point, "f") is None

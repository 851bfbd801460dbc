"""``parties experiment``: calls, mistakes, exit codes, and what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fake_experiment
import pytest
from waiting import gone, until

from parties.cli import main
from workloads.experiments import registry

Invoke = Callable[..., int]
PROGRAM = """
import sys
import fake_experiment
from workloads.experiments import registry
registry.NAMES = ("fake",)
registry._load = fake_experiment.experiment
from workloads.experiments import cli
from parties.cli import main
if __name__ == "__main__":
    main(["experiment", *sys.argv[1:]])
"""


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The program's own command line, with two experiments in the place of all."""
    monkeypatch.setattr(registry, "NAMES", ("pairs", "triples"))
    monkeypatch.setattr(registry, "_load", fake_experiment.experiment)

    def call(*words: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["experiment", *map(str, words)])
        code = ended.value.code
        assert isinstance(code, int)
        return code

    return call


def test_the_word_run_may_be_left_out(tmp_path: Path, invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, names after options and ``run`` are the same call; results and the comparison are shown."""
    assert invoke("pairs", "--quick", "--jobs", "1", "--out", tmp_path / "a") == 0
    assert "pairs: 6 rows & a sum of 2" in capsys.readouterr().out
    assert invoke("--quick", "--jobs", "1", "pairs", "--out", tmp_path / "b") == 0
    assert invoke("run", "pairs", "--quick", "--jobs", "1", "--out", tmp_path / "c") == 0
    for place in "bc":
        assert (tmp_path / place / "pairs.csv").read_bytes() == (tmp_path / "a" / "pairs.csv").read_bytes()


def test_all_runs_each_once_and_json_is_alone_on_standard_output(
    tmp_path: Path, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--json`` prints the summaries; progress goes to standard error."""
    assert invoke("all", "pairs", "--jobs", "1", "--seed", "5", "--json", "--out", tmp_path) == 0
    said = capsys.readouterr()
    summaries = json.loads(said.out)
    assert list(summaries) == ["pairs", "triples"]
    assert summaries["pairs"]["seed"] == 5
    assert "pairs: The pairs title (Figure 0); 6 points" in said.err


def test_the_report_is_made_of_what_was_run(tmp_path: Path, invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> None:
    """``report`` names the page it wrote; without results it is a mistake."""
    assert invoke("report", "--out", tmp_path) == 2
    assert "no experiment was run into it" in capsys.readouterr().err
    assert invoke("triples", "--jobs", "1", "--out", tmp_path) == 0
    assert invoke("report", "--out", tmp_path) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_the_list_has_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its figure and title, and as JSON with its method."""
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "list"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(registry.NAMES)
    with pytest.raises(SystemExit):
        main(["experiment", "list", "--json"])
    assert all(entry["method"] for entry in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pares",), "no experiment 'pares'; did you mean pairs"),
        (("run", "pairs", "tripels"), "no experiment 'tripels'; did you mean triples?"),
        (("xyzzy",), "known: "),
        (("run",), "NAME"),
        (("pairs", "--jobs", "0"), "--jobs"),
        (("pairs", "--seed", "x"), "--seed"),
        (("pairs", "--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_a_mistake_is_one_message_and_nothing_is_run(  # noqa: PLR0913, PLR0917 - fixtures
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str],
    said: str,
) -> None:
    """What is wrong, with the nearest names; exit code 2, no traceback, no point measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(fake_experiment.LOG, str(tmp_path / "log"))
    assert invoke(*words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_point_is_told_and_the_others_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, one line with the cause and where its details are."""
    monkeypatch.setenv(fake_experiment.FAIL, "x=4")
    assert invoke("pairs", "--jobs", "1", "--out", tmp_path) == 1
    error = capsys.readouterr().err
    assert "pairs: point 'x=4' failed: RuntimeError: no such luck" in error
    assert "Traceback" not in error
    (details,) = tmp_path.glob("parties-error-*.log")
    assert "Traceback" in details.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_finished_points(tmp_path: Path, jobs: str) -> None:
    """Exit code 130, one message, no process left, and the same call goes on from there."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), fake_experiment.LOG: str(log)}
    call = [sys.executable, str(program), "fake", "--jobs", jobs, "--out", str(tmp_path / "out")]
    started = subprocess.Popen(call, env={**environment, fake_experiment.SLOW: "2"}, stderr=subprocess.PIPE, text=True)
    points = tmp_path / "out" / "fake.points.jsonl"
    while started.poll() is None and not (points.exists() and len(points.read_text().splitlines()) > 1):
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, error = started.communicate()
    assert started.returncode == 130
    assert "finished points are kept" in error
    assert "Traceback" not in error
    finished = len(points.read_text().splitlines()) - 1
    assert 0 < finished < 6
    for process in {int(line.split()[1]) for line in log.read_text().splitlines()}:
        until(partial(gone, process), "a process is left")
    log.unlink()
    subprocess.run(call, env=environment, check=True, capture_output=True)
    assert len(log.read_text().splitlines()) == 6 - finished

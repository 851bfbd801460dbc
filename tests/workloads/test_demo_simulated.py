"""The demo where the machine cannot be divided: it runs on the simulated node, says so, and ends well."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from workloads import cli
from workloads.demo import simulated
from workloads.demo.preflight import Findings
from workloads.machine import CONTROLLERS, CpuPlan

MOUNTS = {name: Path("/sys/fs/cgroup") / name for name in CONTROLLERS}
PNG = b"\x89PNG\r\n"


def call(*words: str | Path) -> Result:
    """``parties demo`` within this process."""
    return CliRunner().invoke(cli.demo, [*map(str, words)])


UNPRIVILEGED = Findings(1000, MOUNTS, CpuPlan((0,), (1,)), ())
"""A user who may not divide the machine, on one that has everything."""


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo is called by that user."""
    monkeypatch.setattr(cli, "look", lambda: UNPRIVILEGED)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the picture, which takes longer than all else."""
    monkeypatch.setattr(simulated, "draw", lambda _runs, _path: None)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The whole demo, once, by that user."""
    results = tmp_path_factory.mktemp("demo") / "results"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "look", lambda: UNPRIVILEGED)
        return call("--out", results), results


def test_without_root_it_runs_on_the_simulated_node_and_says_so(shown: tuple[Result, Path]) -> None:
    """First why and what is left out, then a line for each manager, the table, what came out, and the files; exit code 0."""
    result, results = shown
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("demo: on the simulated node, a model of the paper's server (e5-2699v4)")
    assert "not root" in lines[1]
    assert lines[2].startswith("demo: left out: real services")
    assert [line.partition(":")[0] for line in lines[3:7]] == list(simulated.MANAGERS)
    assert "says nothing about this machine" in " ".join(lines)
    assert sorted(path.name for path in results.iterdir()) == ["demo.json", "demo.png"]
    assert (results / "demo.png").read_bytes().startswith(PNG)


def test_the_results_say_what_they_are_of(shown: tuple[Result, Path]) -> None:
    """Platform, node, scenario and seed; each manager's counts agree with the number of intervals."""
    summary = json.loads((shown[1] / "demo.json").read_text())
    assert (summary["platform"], summary["node"], summary["seed"]) == ("simulated", "e5-2699v4", 1)
    assert list(summary["managers"]) == list(simulated.MANAGERS)
    intervals = summary["length_s"] * 1000 / summary["interval_ms"]
    for manager in summary["managers"].values():
        for service in manager["services"].values():
            assert service["intervals"] == intervals
            assert service["intervals_after_settling"] == intervals - 1000 * summary["settle_s"] / summary["interval_ms"]
            assert service["violations_after_settling"] <= service["violations"]


@pytest.mark.usefixtures("nobody", "undrawn")
def test_what_a_manager_does_hangs_on_nothing_but_the_seed(shown: tuple[Result, Path], tmp_path: Path) -> None:
    """Called again with one manager alone, it comes out the same; with another seed it does not. --json prints the file."""
    first = json.loads((shown[1] / "demo.json").read_text())
    again = call("--out", tmp_path, "--managers", "parties", "--json")
    assert json.loads(again.stdout) == json.loads((tmp_path / "demo.json").read_text())
    assert json.loads(again.stdout)["managers"] == {"parties": first["managers"]["parties"]}
    other = call("--out", tmp_path, "--managers", "parties", "--json", "--seed", "4")
    assert json.loads(other.stdout)["managers"]["parties"] != first["managers"]["parties"]


@pytest.mark.usefixtures("nobody")
def test_the_host_can_be_insisted_on(tmp_path: Path) -> None:
    """--platform host says what is missing instead, with exit code 2, and makes nothing."""
    result = call("--platform", "host", "--out", tmp_path / "results")
    assert result.exit_code == 2
    assert "not root" in result.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("nobody")
def test_managers_are_those_of_the_platform(tmp_path: Path) -> None:
    """The idle class alone means nothing where whole cores are handed out."""
    result = call("--managers", "idle-only", "--out", tmp_path)
    assert result.exit_code == 2
    assert "idle-only; choose from unmanaged, equal, heracles, parties" in " ".join(result.stderr.split())


@pytest.mark.usefixtures("nobody")
def test_results_that_cannot_be_written_are_one_message(tmp_path: Path) -> None:
    """A file where the directory should be: what, where, what to do."""
    (tmp_path / "file").touch()
    result = call("--out", tmp_path / "file" / "results", "--managers", "equal")
    assert result.exit_code == 2
    assert str(tmp_path / "file") in result.stderr
    assert "name another directory with --out" in result.stderr


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Findings(0, {}, CpuPlan((0,), (1,)), ()), "no control groups (version 1)"),
        (Findings(0, MOUNTS, None, ()), "fewer than two physical cores"),
    ],
)
def test_root_without_what_it_takes_gets_the_simulated_node_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Findings, reason: str
) -> None:
    """In a container, or on a single core."""
    monkeypatch.setattr(cli, "look", lambda: found)
    result = call("--out", tmp_path, "--managers", "equal")
    assert result.exit_code == 0
    assert reason in result.stdout


def test_the_table_fits_a_narrow_terminal(shown: tuple[Result, Path]) -> None:
    """80 columns, whatever comes out."""
    summary = json.loads((shown[1] / "demo.json").read_text())
    for service in summary["managers"]["equal"]["services"].values():
        service["median_p99_over_target"], service["worst_p99_over_target"] = 99999.0, None
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(simulated.final_table(summary))
    text = console.export_text()
    assert "…" not in text
    assert "memcached" in text

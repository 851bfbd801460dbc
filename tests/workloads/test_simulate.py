"""``parties simulate``: what comes out, what is written, and one message for whatever cannot be run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from parties import cli
from parties.model import Decision, MoveStatus, Observation, Partition, Reason
from parties.policies.registry import POLICIES
from parties.record import Timing, read_record
from simulator.faults import Faults, Restart
from simulator.library import CONFIGS, names
from simulator.run import Simulation
from workloads import simulate as command
from workloads.simulated.request import Wanted, prepared
from workloads.simulated.timeline import condensed

PAIR = ("--service", "memcached=0.4", "--service", "xapian=0.2", "--best-effort")
PNG = b"\x89PNG\r\n"


def call(*words: str | Path) -> Result:
    """``parties simulate`` within this process."""
    return CliRunner().invoke(cli.main, ["simulate", *map(str, words)])


def call_json(*words: str | Path) -> Any:  # noqa: ANN401 - a JSON object
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def process(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    code = "from parties.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False)


def test_the_result_has_exactly_the_fields_that_scripts_rely_on() -> None:
    """Names and kinds of every field of the JSON result."""
    found = call_json(*PAIR, "--duration", "20s", "--seed", "3")
    assert (found["policy"], found["node"], found["seed"], found["duration_s"]) == ("parties", "e5-2699v4", 3, 20)
    fields = ("policy", "node", "seed", "duration_s", "converged_s", "moves", "reverts", "migrations", "services")
    assert tuple(found) == (*fields, "best_effort_throughput")
    assert list(found["services"]) == ["memcached", "xapian"]
    for service in found["services"].values():
        counts = ("intervals", "violations", "violations_after_convergence")
        assert tuple(service) == ("load", "target_us", *counts, "median_p99_over_target", "final")
        units = ("frequency_mhz", "memory_bytes", "disk_bytes_per_s", "network_bits_per_s")
        assert tuple(service["final"]) == ("cores", "ways", *units)
        assert all(type(amount) is int for amount in service["final"].values())
        assert service["intervals"] == 40
    assert found["services"]["memcached"]["target_us"] == 600
    assert 0 <= found["best_effort_throughput"] <= 1


def test_the_same_seed_gives_the_same_run_and_another_one_does_not() -> None:
    """Byte for byte, so that a figure can be told by its call."""
    one, two, other = (call(*PAIR, "--duration", "20s", "--seed", seed, "--json").stdout for seed in ("5", "5", "6"))
    assert one == two
    assert json.loads(one)["services"] != json.loads(other)["services"]


def test_the_view_tells_of_each_service_and_of_what_it_holds() -> None:
    """The table has what the JSON result has, for people."""
    found = call_json(*PAIR, "--duration", "20s")
    result = call(*PAIR, "--duration", "20s")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "parties on e5-2699v4, seed 1: 20 s in 40 intervals of 500 ms"
    memcached, held = (next(line for line in part if line.startswith("memcached")) for part in (lines, lines[4:]))
    assert memcached.split()[:4] == ["memcached", "40", "%", "600us"]
    assert f"{found['services']['memcached']['violations']}/40" in memcached
    final = found["services"]["memcached"]["final"]
    assert held.split()[1:3] == [str(final["cores"]), str(final["ways"])]
    assert f"{found['moves']} moves, {found['reverts']} of them reverts" in result.stdout
    assert f"best effort did {100 * found['best_effort_throughput']:.0f} %" in " ".join(lines)
    assert result.stderr == ""


def test_a_service_that_is_named_twice_runs_twice() -> None:
    """The second one has a name of its own."""
    found = call_json("--service", "memcached=0.3", "--service", "memcached=0.2", "--duration", "5s")
    assert {name: service["load"] for name, service in found["services"].items()} == {"memcached": 0.3, "memcached-2": 0.2}


def test_a_service_of_a_file_has_the_name_that_the_file_says(tmp_path: Path) -> None:
    """A path would be a strange name in a table, and beside the project's own service of that name it is a second one."""
    path = tmp_path / "mine.toml"
    path.write_text((CONFIGS / "services" / "xapian.toml").read_text())
    found = call_json("--service", "xapian=0.1", "--service", f"{path}=0.2", "--duration", "2s")
    assert {name: service["load"] for name, service in found["services"].items()} == {"xapian": 0.1, "xapian-2": 0.2}


def test_a_load_may_be_a_file(tmp_path: Path) -> None:
    """Times and fractions; what is told is the mean over the run."""
    path = tmp_path / "ramp.txt"
    path.write_text("0 0.1  # low\n10 0.1\n10, 0.3\n")
    found = call_json("--service", f"xapian={path}", "--duration", "20s")
    assert found["services"]["xapian"]["load"] == pytest.approx(0.2)


def test_a_scenario_is_run_as_it_says_or_with_changes() -> None:
    """Options beside --scenario change what the scenario says."""
    found = call_json("--scenario", "fluctuating", "--duration", "4s", "--policy", "equal", "--seed", "9", "--best-effort")
    assert (found["policy"], found["seed"], found["duration_s"]) == ("equal", 9, 4)
    assert list(found["services"]) == ["memcached", "moses", "xapian"]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_recorded_run_replays_byte_for_byte(tmp_path: Path, policy: str) -> None:
    """The record of a simulated run holds the policy's whole input, whichever policy it was."""
    path = tmp_path / "run.jsonl"
    assert call(*PAIR, "--duration", "30s", "--policy", policy, "--record", path).exit_code == 0
    result = CliRunner().invoke(cli.main, ["replay", str(path)])
    assert result.stdout == f"{path}: all 60 decisions are the same, byte for byte ({policy}, seed 1)\n"
    assert result.exit_code == 0


def test_a_run_with_absences_and_refusals_replays_byte_for_byte(tmp_path: Path) -> None:
    """A service that goes away for longer than the grace time, refused and slow moves: the loop's part is repeated as well."""
    path = tmp_path / "run.jsonl"
    simulation = prepared(Wanted(services=(("mongodb", "0.4"), ("xapian", "0.2")), best_effort=True, duration_s=60.0))
    restarts = tuple(Restart("mongodb", at_s) for at_s in (10.0, 14.0, 18.0))  # each while it is still away
    faults = Faults(refused={1: "busy", 4: "busy"}, pending_ticks={6: 3}, restarts=restarts)
    Simulation(simulation.scenario, faults=faults).run(record=path)
    header, ticks = read_record(path)
    reasons: set[Reason] = set()
    statuses: set[MoveStatus] = set()
    for line in ticks:
        reasons.add(line.decision.reason)
        statuses.update(outcome.status for outcome in line.observation.outcomes)
    assert header.platform == "simulated"
    assert {Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED} <= reasons
    assert statuses >= {MoveStatus.REFUSED, MoveStatus.PENDING}
    result = CliRunner().invoke(cli.main, ["replay", str(path)])
    assert "all 120 decisions are the same, byte for byte" in result.stdout


def test_heracles_cannot_be_judged_on_a_partition_of_another_kind(tmp_path: Path) -> None:
    """It keeps services together that had their own shares, and the other way round: exit code 2, and what to do instead."""
    own, shared = tmp_path / "own.jsonl", tmp_path / "shared.jsonl"
    call(*PAIR, "--duration", "5s", "--record", own)
    call(*PAIR, "--duration", "5s", "--record", shared, "--policy", "heracles")
    there = CliRunner().invoke(cli.main, ["replay", str(own), "--policy", "heracles"])
    back = CliRunner().invoke(cli.main, ["replay", str(shared), "--policy", "parties"])
    assert (there.exit_code, back.exit_code) == (2, 2)
    assert "heracles keeps xapian together in best-effort" in there.stderr
    assert "record a run under heracles instead" in there.stderr
    assert "heracles did not partition" in back.stderr


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    """Whole, in the format of its name, and nothing else is left."""
    result = call(*PAIR, "--duration", "10s", "--save-plot", tmp_path / "run.png")
    assert result.exit_code == 0
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
    assert [path.name for path in tmp_path.iterdir()] == ["run.png"]


@pytest.mark.parametrize("policy", ["heracles", "unmanaged"])
def test_runs_that_partition_less_are_drawn_and_shown_too(tmp_path: Path, policy: str) -> None:
    """Where services share a holder, or nothing is partitioned, there is something to see all the same."""
    result = call(*PAIR, "--duration", "10s", "--policy", policy, "--save-plot", tmp_path / "run.svg")
    assert result.exit_code == 0
    assert "<svg" in (tmp_path / "run.svg").read_text()
    assert ("xapian (in best-effort)" in result.stdout) == (policy == "heracles")


def test_without_matplotlib_a_picture_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install; nothing is written."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = call(*PAIR, "--save-plot", tmp_path / "run.png", "--record", tmp_path / "run.jsonl")
    assert result.exit_code == 2
    assert "matplotlib" in result.stderr
    assert list(tmp_path.iterdir()) == []


def small_node(tmp_path: Path, **changes: str) -> Path:
    """The paper's node with other values."""
    lines = (CONFIGS / "nodes" / "e5-2699v4.toml").read_text().splitlines()
    path = tmp_path / "node.toml"
    path.write_text("\n".join(_changed(line, changes) for line in lines))
    return path


def _changed(line: str, changes: dict[str, str]) -> str:
    key = line.partition("=")[0].strip()
    return f"{key} = {changes[key]}" if key in changes else line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to simulate; say --service NAME=LOAD"),
        (("--service", "memcachd=0.4"), 'there is no service "memcachd"; did you mean memcached?'),
        (("--service", "memcached=0.4", "--node", "e5-2699"), 'there is no node "e5-2699"; did you mean e5-2699v4?'),
        (("--service", "memcached=0.4", "--policy", "heracls"), "no policy is named 'heracls'; did you mean heracles"),
        (("--scenario", "fluctuatin"), 'there is no scenario "fluctuatin"; did you mean fluctuating or fluctuating-50'),
        (("--scenario", "fluctuating", "--service", "memcached=0.4"), "say either --scenario or --service"),
        (("--service", "memcached"), "'memcached' is no service with its load; say NAME=LOAD"),
        (("--service", "=0.4"), "'=0.4' is no service with its load"),
        (("--service", "memcached=1.6"), "load 1.6 is not between 0 and 1.5"),
        (("--service", "memcached=-0.1"), "load -0.1 is not between 0 and 1.5"),
        (("--service", "memcached=nan"), "load nan is not between 0 and 1.5"),
        (("--service", "memcached=40%"), "load profile 40% cannot be read"),
        (("--service", "memcached=/nowhere/ramp.txt"), "load profile /nowhere/ramp.txt cannot be read: No such file"),
        (("--service", "memcached=0.4", "--duration", "-5s"), "a duration must be more than zero"),
        (("--service", "memcached=0.4", "--duration", "90"), "has no unit"),
        (("--service", "memcached=0.4", "--duration", "300ms"), "give at least one second"),
        (("--service", "memcached=0.4", "--seed", "-1"), "-1 is not in the range"),
        (("--service", "xapian=0.01") * 15, "15 services do not fit on 14 cores"),
        (("--service", "memcached=0.4", "--node", "/nowhere/node.toml"), "/nowhere/node.toml: cannot be read: No such file"),
        (("--service", "memcached=0.4", "--save-plot", "run.txt"), "the name of a picture ends in"),
        (("--service", "memcached=0.4", "--save-plot", "/nowhere/run.png"), "not a file in a directory that exists"),
        (("--service", "memcached=0.4", "--save-plot", "/proc/fs/run.png"), "--save-plot /proc/fs/run.png: "),
    ],
)
def test_what_cannot_be_run_is_one_message(words: tuple[str, ...], message: str) -> None:
    """What is wrong, with the nearest names or what to say instead; exit code 2; nothing on standard output."""
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache": '"1 way"'}, "do not fit on 1 cache ways"),
        ({"cache_classes": "2"}, "do not fit on 2 cache classes"),
        ({"memory": '"-1GB"'}, "a size must be more than zero"),
        ({"cores": "0"}, "line 6, cores: must be from 1 to 4096, not 0"),
    ],
)
def test_an_impossible_node_is_one_message(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    """A node too small for the services, or none at all: what and where; exit code 2."""
    result = call(*PAIR, "--node", small_node(tmp_path, **changes))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bad_line_of_a_load_file_is_named(tmp_path: Path) -> None:
    """File and line."""
    path = tmp_path / "ramp.txt"
    path.write_text("0 0.1\n10 high\n")
    result = call("--service", f"memcached={path}")
    assert result.exit_code == 2
    assert f"{path}:2: '10 high' is not a time in seconds and a fraction" in result.stderr


def test_an_existing_record_is_never_overwritten(tmp_path: Path) -> None:
    """Nor is one made where nothing can be written."""
    path = tmp_path / "run.jsonl"
    path.write_text("precious\n")
    result = call(*PAIR, "--duration", "1s", "--record", path)
    assert result.exit_code == 2
    assert f"record {path} exists already; name another file" in result.stderr
    assert path.read_text() == "precious\n"
    result = call(*PAIR, "--duration", "1s", "--record", path / "run.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"record {path / 'run.jsonl'} cannot be made" in result.stderr


def test_everything_that_can_be_named_is_listed() -> None:
    """Nodes, services, jobs, policies, scenarios; the same in JSON."""
    text, found = call("--list").stdout, call_json("--list")
    assert list(found) == ["nodes", "services", "jobs", "policies", "scenarios"]
    assert list(found["services"]) == names("service")
    assert set(POLICIES) < set(found["policies"])
    assert all(f"  {name}" in text for kind in found.values() for name in kind)
    assert all(line for kind in found.values() for line in kind.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--service mem", "plain,memcached=\n"),
        ("--policy hera", "plain,heracles\n"),
        ("--node e5", "plain,e5-2699v4\n"),
        ("--scenario cyc", "plain,cycling\n"),
    ],
)
def test_names_are_completed(words: str, expected: str) -> None:
    """What a shell is told for the beginning of a name."""
    environment = {"_PARTIES_COMPLETE": "bash_complete", "COMP_WORDS": f"parties simulate {words}", "COMP_CWORD": "3"}
    code = "from parties.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == expected


@pytest.mark.parametrize(("words", "code"), [(("--service", "xapian=0.2", "--duration", "2s"), 0), (("--service", "xapian"), 2)])
def test_exit_codes_of_the_process(words: tuple[str, ...], code: int) -> None:
    """What a script sees, and no traceback."""
    done = process("simulate", *words)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_the_help_loads_no_simulator() -> None:
    """Listing the commands imports this one, so it has to be light."""
    code = "import sys, workloads.simulate; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"numpy", "pydantic", "matplotlib", "rich", "simulator.run"}


def observed(now_s: float) -> tuple[Observation, Decision, Timing]:
    return Observation(round(now_s * 1e9), 1, {}, Partition({})), Decision((), Reason.HOLD_TARGETS_MET), Timing(0, 0, 0)


def progress_at(clock_s: Callable[[], float], *, shown: bool) -> command.Progress:
    with command.Progress(90.0, shown=shown, clock_s=clock_s) as progress:
        for second in range(4):
            progress.tick(*observed(10.0 * second))
    return progress


def test_progress_is_told_on_a_terminal_where_a_run_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    """Every so often, on standard error, in a line that is wiped at the end; nothing in a pipe, nothing for a short run."""
    slow = iter([0.0, 0.1, 0.3, 0.3, 0.4, 0.6, 0.6])
    progress_at(lambda: next(slow), shown=True)
    assert capsys.readouterr().err == "\rsimulated 10 of 90 s\rsimulated 30 of 90 s\r"
    progress_at(lambda: 0.0, shown=True)
    progress_at(iter(range(99)).__next__, shown=False)
    assert capsys.readouterr().err == ""


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=300), st.integers(1, 60))
def test_a_condensed_course_keeps_its_worst_moments(ratios: list[float | None], length: int) -> None:
    """At most so many values, none invented, the worst still there."""
    short = condensed(ratios, length)
    assert len(short) == min(len(ratios), length)
    assert set(short) <= {*ratios, None}
    assert max((r for r in short if r is not None), default=None) == max((r for r in ratios if r is not None), default=None)

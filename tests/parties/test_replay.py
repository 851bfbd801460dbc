"""Replay: the same policy and seed repeat every decision, another one is compared, and bad records end in one message."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import record_kit
from click.testing import CliRunner, Result

from parties import cli
from parties.model import MoveStatus, Reason
from parties.policies.registry import POLICIES
from parties.record import read_record
from parties.replay import Comparison, policy_of, replay

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of 300 intervals with absences, refusals, slow moves and missed ticks."""
    return record_kit.write_record(tmp_path_factory.mktemp("record") / "run.jsonl", ticks=300)


@pytest.fixture
def changed(record: Path, tmp_path: Path) -> Callable[[Callable[[Lines], object]], Path]:
    """Makes a copy of the record whose lines were changed."""

    def make(change: Callable[[Lines], object]) -> Path:
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        change(lines)
        path = tmp_path / "changed.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return make


def call(*words: str | Path) -> Result:
    """``parties replay`` within this process."""
    return CliRunner().invoke(cli.main, ["replay", *map(str, words)])


def call_json(*words: str | Path) -> Any:  # noqa: ANN401 - a JSON object
    return json.loads(call(*words, "--json").stdout)


def test_the_record_under_test_has_what_makes_replaying_hard(record: Path) -> None:
    """Absences, refused and pending moves, missed ticks: none of the cases below is judged on a smooth run."""
    _, ticks = read_record(record)
    lines = list(ticks)
    reasons = {line.decision.reason for line in lines}
    assert {Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED, Reason.DOWNSIZE_REVERTED} <= reasons
    assert {outcome.status for line in lines for outcome in line.observation.outcomes} == set(MoveStatus)
    assert lines[-1].timing.missed_ticks > 0


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(3))
def test_the_same_policy_and_seed_repeat_every_decision(tmp_path: Path, policy: str, seed: int) -> None:
    """Every policy, also through ticks that the loop decided in its stead (invariant 8)."""
    path = record_kit.write_record(tmp_path / "run.jsonl", policy=policy, seed=seed)
    result = call(path)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}: all 200 decisions are the same, byte for byte ({policy}, seed {seed})\n"


def test_another_seed_is_no_determinism_break(record: Path) -> None:
    """Other random choices lead to other moves, which is what was asked for: exit code 0."""
    result = call(record, "--seed", "2")
    assert result.exit_code == 0
    assert "replayed through parties (seed 2)" in result.stdout
    assert call_json(record, "--seed", "2")["different"] > 0


def test_another_policy_is_compared_interval_by_interval(record: Path) -> None:
    """The counts of equal, against a count of our own over the record; releases of absent services stay the loop's."""
    _, ticks = read_record(record)
    decisions = [line.decision for line in ticks]
    stand_ins = sum(decision.reason in {Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED} for decision in decisions)
    idle = sum(not decision.moves and decision.migration is None for decision in decisions)
    found = call_json(record, "--policy", "equal")
    assert (found["ticks"], found["identical"]) == (300, stand_ins)
    assert found["same_moves"] == idle
    assert found["different"] == 300 - stand_ins - idle > 0
    assert found["reasons"]["hold-fixed"] == {"recorded": 0, "replayed": 300 - stand_ins, "both": 0}
    assert found["reasons"]["absent-released"]["both"] == found["reasons"]["absent-released"]["recorded"] > 0
    recorded_up = sum(move.taker == "web" for decision in decisions for move in decision.moves)
    replayed_up = sum(
        move.taker == "web" for decision in decisions if decision.reason is Reason.RETURNED_ADMITTED for move in decision.moves
    )
    counted = found["services"]["web"]
    assert (counted["recorded_up"], counted["replayed_up"]) == (recorded_up, replayed_up)
    assert recorded_up > replayed_up


def test_the_first_differences_are_shown_and_the_rest_counted(record: Path) -> None:
    """As many as asked for, with time, what was decided and what would be; then how many more there are."""
    found = call_json(record, "--policy", "equal", "--differences", "3")
    assert len(found["differences"]) == 3
    assert found["differences_left_out"] == 300 - found["identical"] - 3
    first = found["differences"][0]
    assert (first["tick"], first["time_s"], first["replayed"]["reason"]) == (1, 0.0, "hold-fixed")
    assert first["recorded"]["reason"] != "hold-fixed"
    text = call(record, "--policy", "equal", "--differences", "3").stdout
    assert f"and {found['differences_left_out']} more" in text
    assert call_json(record, "--policy", "equal", "--differences", "0")["differences"] == []


def test_the_policy_is_judged_on_the_recorded_partition(record: Path) -> None:
    """A policy that is replayed sees what was there at each tick, not what its own moves would have made of it."""
    header, ticks = read_record(record)
    lines = list(ticks)
    seen = []

    class Watching:
        name, best_effort_idle_class, sharing = "parties", True, policy_of(header).sharing

        def __init__(self) -> None:
            self._equal = policy_of(header, "equal")

        def initial(self) -> Any:  # noqa: ANN401 - the partition
            return self._equal.initial()

        def decide(self, observation: Any) -> Any:  # noqa: ANN401 - observation and decision
            seen.append(observation)
            return self._equal.decide(observation)

    list(replay(header, lines, Watching()))
    stand_ins = {Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED}
    assert seen == [line.observation for line in lines if line.decision.reason not in stand_ins]


def test_a_decision_that_does_not_repeat_has_an_exit_code_of_its_own(changed: Callable[..., Path]) -> None:
    """A record whose decision was changed: 3, said loudly, with the interval."""
    ticks = []

    def change(lines: Lines) -> None:
        lines[5]["tick"]["decision"]["slack"] = {"web": 0.25}
        ticks.append(lines[5]["tick"]["observation"]["tick"])

    result = call(changed(change))
    assert result.exit_code == 3
    assert "THE DECISIONS DO NOT REPEAT; same version" in result.stdout
    assert result.stdout.splitlines()[-3].startswith(f"tick {ticks[0]}, ")
    assert result.stdout.endswith("; other slack\n")


def test_another_version_is_named_as_a_likely_cause(changed: Callable[..., Path]) -> None:
    """A policy that was changed between versions is no surprise, and the text says which versions."""

    def change(lines: Lines) -> None:
        lines[0]["header"]["parties_version"] = "0.0.1"
        lines[0]["header"]["settings"]["parties"]["upsize_slack"] = 0.15

    result = call(changed(change))
    assert result.exit_code == 3
    assert "the record is of parties 0.0.1, this is" in result.stdout


def test_a_truncated_record_is_replayed_as_far_as_it_goes(record: Path, tmp_path: Path) -> None:
    """The intervals before the cut are judged and counted, the line is named, exit code 2."""
    lines = record.read_bytes().splitlines(keepends=True)
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"".join(lines[:51]) + lines[51][:-20])
    result = call(path)
    assert result.exit_code == 2
    assert result.stdout == f"{path}: all 50 decisions are the same, byte for byte (parties, seed 1)\n"
    assert result.stderr == f"parties: {path}:52: the record is cut short here; the lines before it are good\n"
    assert call_json(path)["damage"].startswith(f"{path}:52: ")


def test_a_record_cut_after_its_header_has_no_intervals(record: Path, tmp_path: Path) -> None:
    """Nothing to replay is said, and is no break."""
    path = tmp_path / "cut.jsonl"
    path.write_bytes(record.read_bytes().splitlines(keepends=True)[0])
    result = call(path)
    assert (result.exit_code, result.stdout) == (0, f"{path}: no intervals to replay\n")


def test_a_gzipped_record_is_read(record: Path, tmp_path: Path) -> None:
    """Compressed or not is told from the content, not from the name."""
    path = tmp_path / "run"
    path.write_bytes(gzip.compress(record.read_bytes()))
    assert call(path).stdout.startswith(f"{path}: all 300 decisions are the same")


def test_a_truncated_gzipped_record_is_replayed_as_far_as_it_goes(record: Path, tmp_path: Path) -> None:
    """What could be decompressed counts."""
    path = tmp_path / "run.gz"
    path.write_bytes(gzip.compress(record.read_bytes())[:-2000])
    result = call(path)
    assert result.exit_code == 2
    assert "the compressed record is cut short or damaged here" in result.stderr
    assert 100 < call_json(path)["ticks"] < 300


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a record: its first line is no header"),
        (b"This is a text.\nOf two lines.\n", ":1: not a line of a record"),
        (bytes(range(256)) * 20, ":1: not a line of a record"),
        (b"\x00" * 20_000_000, ":1: not a line of a record: longer than 16000000 bytes"),
        (b"[" * 200_000 + b"\n", ":1: not a line of a record"),
        (b'{"services": [], "version": 1}\n', ":1: not a line of a record"),
        (b'{"header": [1]}\n', "its first line is no header"),
        (b'{"tick": {}}\n', "its first line is no header"),
        (b"\x1f\x8bnot gzip at all", "cannot be read"),
        (b"\x1f\x8b", "cut short or damaged"),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """Text, binary, JSON of something else: one message, exit code 2."""
    path = tmp_path / "foreign"
    path.write_bytes(content)
    result = call(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_a_missing_record_and_a_directory_are_named(tmp_path: Path) -> None:
    """What the system says, with the name, exit code 2."""
    for path, words in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        result = call(path)
        assert (result.exit_code, result.stderr) == (2, f"parties: record {path} cannot be read: {words}\n")


def header_change(**changes: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[0]["header"].update(changes)

    return change


def pool_change(lines: Lines) -> None:
    lines[0]["header"]["node"]["pools"]["cores@0"]["step"] = 999


def without_node(lines: Lines) -> None:
    del lines[0]["header"]["node"]


def unknown_policy(lines: Lines) -> None:
    lines[0]["header"]["settings"]["policy"] = "partis"


def contradiction(lines: Lines) -> None:
    lines[0]["header"]["settings"]["parties"]["upsize_slack"] = 0.9


def overflow(lines: Lines) -> None:
    lines[0]["header"]["settings"]["signal"]["confidence"] = 10**400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (header_change(version=2), "record version 2, this program reads 1; read it with the parties that wrote it (0."),
        (header_change(version="1"), "record version '1', this program reads 1"),
        (header_change(services=7), ":1: Header.services: expected an array, found int"),
        (pool_change, ":1: cores@0: total 14000 is not a positive multiple of step 999"),
        (without_node, ":1: Header: field 'node' is missing"),
        (unknown_policy, "no policy is named 'partis'; did you mean parties?; this record's policy is not one of this program's"),
        (contradiction, "parties cannot be made for this record: upsize_slack 0.9 must be less than downsize_slack"),
        (overflow, ":1: Header.settings.signal.confidence: "),
    ],
)
def test_a_damaged_header_is_named(changed: Callable[..., Path], change: Callable[[Lines], None], message: str) -> None:
    """Another version, a missing or wrong field, values that contradict each other: one message, exit code 2."""
    result = call(changed(change))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def without_ticks(lines: Lines) -> None:
    del lines[20:23]


def swapped(lines: Lines) -> None:
    lines[20], lines[21] = lines[21], lines[20]


def twice(lines: Lines) -> None:
    lines.insert(20, lines[19])


def two_runs(lines: Lines) -> None:
    lines[20:] = lines[:20]


def foreign_service(lines: Lines) -> None:
    lines[20]["tick"]["observation"]["services"]["mail"] = lines[20]["tick"]["observation"]["services"].pop("web")


def foreign_pool(lines: Lines) -> None:
    lines[20]["tick"]["observation"]["partition"]["amounts"]["disk"] = {}


@pytest.mark.parametrize(
    ("change", "message", "ticks"),
    [
        (without_ticks, "missing before this line", 19),
        (swapped, ":21: tick", 19),
        (twice, "stands after tick", 19),
        (two_runs, ":21: another record begins here", 19),
        (foreign_service, "speaks of 'mail', which is no service of the record's header", 19),
        (foreign_pool, "speaks of disk, which is no pool of the record's header", 19),
    ],
)
def test_ticks_that_do_not_follow_each_other_end_the_replay(
    changed: Callable[..., Path], change: Callable[[Lines], None], message: str, ticks: int
) -> None:
    """A policy remembers: after a gap its decisions say nothing. Those before it count; exit code 2."""
    path = changed(change)
    result = call(path)
    assert result.exit_code == 2
    assert f"all {ticks} decisions are the same" in result.stdout
    assert message in result.stderr


def test_a_record_that_begins_in_the_middle_is_no_whole_record(changed: Callable[..., Path]) -> None:
    """The first ticks are gone: nothing after them can be judged."""

    def change(lines: Lines) -> None:
        del lines[1:4]

    result = call(changed(change))
    assert result.exit_code == 2
    assert "ticks 1 to 3 are missing" in result.stderr


def test_an_unknown_policy_gets_the_nearest_names(record: Path) -> None:
    """A typing error is told with what may have been meant."""
    result = call(record, "--policy", "partys")
    assert result.exit_code == 2
    assert "no policy is named 'partys'; did you mean parties" in result.stderr


def test_oracle_cannot_be_judged_on_a_record(record: Path, changed: Callable[..., Path]) -> None:
    """It needs a model, whether it is asked for or made the record."""

    def change(lines: Lines) -> None:
        lines[0]["header"]["settings"]["policy"] = "oracle"

    for result in (call(record, "--policy", "oracle"), call(changed(change))):
        assert (result.exit_code, result.stdout) == (2, "")
        assert "needs a model" in result.stderr
        assert "a record has neither the model nor the loads to come" in result.stderr


def test_a_policy_cannot_be_judged_where_nothing_was_partitioned(tmp_path: Path) -> None:
    """A record of unmanaged holds no partition that parties could move."""
    path = record_kit.write_record(tmp_path / "run.jsonl", policy="unmanaged", ticks=5)
    result = call(path, "--policy", "parties")
    assert result.exit_code == 2
    assert "unmanaged partitioned nothing in this record" in result.stderr
    assert call(path, "--policy", "idle-only").exit_code == 0


def test_unmanaged_is_judged_on_any_record(record: Path) -> None:
    """It would have held at each tick but those of the loop."""
    found = call_json(record, "--policy", "unmanaged")
    assert found["reasons"]["hold-not-managed"]["replayed"] + found["identical"] == 300


def test_a_long_record_is_read_as_it_is_replayed(record: Path) -> None:
    """No interval is read before it is asked for, and of those that differ only the first are kept."""
    header, ticks = read_record(record)
    comparison = Comparison.of(header, limit=2)
    asked = 0

    def counted() -> Any:  # noqa: ANN401 - an iterator of ticks
        nonlocal asked
        for line in ticks:
            asked += 1
            yield line

    for number, judged in enumerate(replay(header, counted(), policy_of(header, "equal")), 1):
        assert asked == number
        comparison.add(judged)
    assert (comparison.ticks, len(comparison.differences)) == (300, 2)


def test_policy_names_are_completed() -> None:
    """A shell that asks for what may follow ``--policy un`` gets the names."""
    environment = {"_PARTIES_COMPLETE": "bash_complete", "COMP_WORDS": "parties replay x --policy un", "COMP_CWORD": "4"}
    code = "from parties.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "plain,unmanaged\n"


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--policy", "equal"), 0), (("--policy", "nothing"), 2)])
def test_exit_codes_of_the_process(record: Path, words: tuple[str, ...], code: int) -> None:
    """What a script sees."""
    command = [sys.executable, "-c", "from parties.cli import main; main()", "replay", str(record), *words]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code

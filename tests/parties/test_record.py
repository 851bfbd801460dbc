"""Records and the codec under them: what is written comes back equal, and a bad file is named with its place."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.codec import CodecError, compact_json, from_json, to_json, to_text
from parties.model import (
    BEST_EFFORT,
    Core,
    Decision,
    Domain,
    LatencyView,
    Move,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.record import RecordError, RecordWriter, TickLine, Timing, read_record
from parties.settings import ControlSettings, ServiceSettings

CORES = PoolKey(Resource.CORES, 0)
DISK = PoolKey(Resource.DISK)
NODE = Node(
    "two", (Domain(0, (Core(1, (1, 3)),)),), {CORES: Pool(CORES, 1000, 50, 100), DISK: Pool(DISK, managed=False, reason="no")}
)
SETTINGS = ControlSettings(services=(ServiceSettings("web", 10_000_000, ("/web",)),))
SERVICES = (Service("web", QosTarget(10_000_000), minimum={Resource.CORES: 200}),)

moves = st.builds(
    Move,
    st.integers(0, 9),
    st.sampled_from([CORES, DISK]),
    st.none() | st.just("web"),
    st.just(BEST_EFFORT),
    st.integers(1, 99),
    st.sampled_from(Reason),
)
counts = st.integers(0, 10**12)
views = st.builds(LatencyView, st.sampled_from(ServiceState), st.none() | counts, fresh=st.booleans(), load_rps=st.floats(0, 1e6))
usages = st.builds(Usage, st.none() | counts, st.none() | counts)
observations = st.builds(
    Observation,
    counts,
    st.integers(0, 10**6),
    st.dictionaries(st.sampled_from(["web", "db"]), st.builds(ServiceObservation, views, usages)),
    st.builds(
        Partition, st.dictionaries(st.sampled_from([CORES, DISK]), st.dictionaries(st.sampled_from(["web", BEST_EFFORT]), counts))
    ),
    st.lists(st.builds(MoveOutcome, moves, st.sampled_from(MoveStatus)), max_size=3).map(tuple),
)
slacks = st.dictionaries(st.just("web"), st.floats(-5, 1) | st.just(float("-inf")))
decisions = st.builds(Decision, st.lists(moves, max_size=3).map(tuple), st.sampled_from(Reason), st.none() | st.just("web"), slacks)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([*Reason, CORES, DISK]),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.sampled_from([CORES, *Resource]), inner)
    ),
)


@given(VALUES)
def test_text_in_one_go_is_what_two_steps_make(value: object) -> None:
    """Of whatever a record may hold: infinities, text that has to be escaped, pools and resources as keys."""
    assert to_text(value) == compact_json(to_json(value)).decode()


def test_what_cannot_be_encoded_is_a_defect_in_both() -> None:
    """Never a line that nobody can read."""
    for encode in (to_json, to_text):
        with pytest.raises(TypeError, match="cannot encode object"):
            encode([object()])


@pytest.mark.parametrize("shared", [True, False])
@given(ticks=st.lists(st.tuples(observations, decisions), min_size=1, max_size=4))
def test_a_line_is_what_the_codec_makes_of_it(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[tuple[Observation, Decision]], *, shared: bool
) -> None:
    """Byte for byte, also where pools are the very ones of the line before."""
    path = tmp_path_factory.mktemp("record") / "r.jsonl"
    writer = RecordWriter(path)
    before: dict[PoolKey, Any] = {}
    lines = []
    for seen, decision in ticks:
        amounts = {**seen.partition.amounts, **before} if shared else seen.partition.amounts
        observation = dataclasses.replace(seen, partition=Partition(amounts))
        before = dict(amounts)
        writer.tick(observation, decision, Timing(1, 2, 3))
        lines.append(compact_json({"tick": to_json(TickLine(observation, decision, Timing(1, 2, 3)))}))
    writer.close()
    assert path.read_bytes().splitlines() == lines


def written(path: Path, ticks: list[tuple[Observation, Decision]]) -> RecordWriter:
    writer = RecordWriter(path)
    writer.header(platform="test", started_unix_ns=1, node=NODE, settings=SETTINGS, services=SERVICES)
    for observation, decision in ticks:
        writer.tick(observation, decision, Timing(1, 2, 3))
    writer.event(5, "warning", "something")
    writer.report({"ticks": len(ticks)})
    return writer


@given(observation=observations, decision=decisions)
def test_observation_and_decision_survive_json(observation: Observation, decision: Decision) -> None:
    """What a record holds of an interval is the policy's whole input and output, exactly."""
    assert from_json(Observation, json.loads(json.dumps(to_json(observation)))) == observation
    assert from_json(Decision, json.loads(json.dumps(to_json(decision), allow_nan=False))) == decision


def test_a_record_reads_back_whole(tmp_path: Path) -> None:
    """Header and ticks come back equal, events and the report do not disturb."""
    observation = Observation(7, 3, {"web": ServiceObservation(LatencyView(ServiceState.OK, 5))}, Partition({CORES: {"web": 50}}))
    decision = Decision(
        (Move(3, CORES, BEST_EFFORT, "web", 50, Reason.UPSIZE_FROM_BEST_EFFORT),), Reason.UPSIZE_FROM_BEST_EFFORT, "web"
    )
    written(tmp_path / "r.jsonl", [(observation, decision)]).close()
    header, ticks = read_record(tmp_path / "r.jsonl")
    assert (header.node, header.services, header.settings) == (NODE, SERVICES, SETTINGS)
    assert [(tick.observation, tick.decision) for tick in ticks] == [(observation, decision)]


def test_an_existing_record_is_never_overwritten(tmp_path: Path) -> None:
    """A second run into the same file is refused."""
    written(tmp_path / "r.jsonl", []).close()
    with pytest.raises(RecordError, match="exists already"):
        RecordWriter(tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a record"),
        (b"hello\n", r":1: not a line of a record"),
        (b'{"tick": {}}\n', "first line is no header"),
        (b'{"header": {"version": 99}}\n', "record version 99, this program reads 1"),
        (b'{"header": {"version": 1}}\n', "field 'best_effort' is missing"),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that is no record, or of another version, ends in one message that says where."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=message):
        read_record(path)


def test_a_truncated_record_gives_what_is_whole_and_then_says_where_it_ends(tmp_path: Path) -> None:
    """The good intervals before the cut are not lost."""
    path = tmp_path / "r.jsonl"
    tick = (Observation(7, 3, {}, Partition({})), Decision((), Reason.HOLD_TARGETS_MET))
    written(path, [tick, tick]).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:-5])
    _, ticks = read_record(path)
    assert next(ticks).observation.tick == 3
    with pytest.raises(RecordError, match=r":3: the record is cut short"):
        next(ticks)


def line(tick: int, now_ns: int, missed: int) -> tuple[Observation, Decision, Timing]:
    return Observation(now_ns, tick, {}, Partition({})), Decision((), Reason.HOLD_TARGETS_MET), Timing(0, missed, 0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([line(1, 5, 0), line(3, 6, 0)], ":3: tick 2 is missing before this line"),
        ([line(1, 5, 0), line(7, 6, 2)], ":3: ticks 4 to 6 are missing before this line"),
        ([line(4, 5, 0)], ":2: ticks 1 to 3 are missing before this line"),
        ([line(1, 5, 0), line(2, 6, 0), line(1, 7, 0)], ":4: tick 1 stands after tick 2: lines are out of order"),
        ([line(1, 5, 0), line(2, 4, 0)], ":3: tick 2 stands after tick 1: lines are out of order"),
        ([line(1, 5, 0), line(2, 6, 3)], ":3: tick 2 does not fit 3 missed ones"),
    ],
)
def test_intervals_that_are_missing_or_out_of_order_are_named(
    tmp_path: Path, lines: list[tuple[Observation, Decision, Timing]], message: str
) -> None:
    """Those before the gap are handed out, then the line is named: a tick's number is how many were held and missed so far."""
    writer = RecordWriter(tmp_path / "r.jsonl")
    writer.header(platform="test", started_unix_ns=1, node=NODE, settings=SETTINGS, services=SERVICES)
    for one in lines:
        writer.tick(*one)
    writer.close()
    _, ticks = read_record(tmp_path / "r.jsonl")
    good = [next(ticks).observation.tick for _ in lines[:-1]]
    assert good == [observation.tick for observation, _, _ in lines[:-1]]
    with pytest.raises(RecordError, match=message):
        next(ticks)


def test_intervals_that_the_loop_missed_are_no_gap(tmp_path: Path) -> None:
    """A late daemon skips ticks and counts them; its record is whole."""
    writer = RecordWriter(tmp_path / "r.jsonl")
    writer.header(platform="test", started_unix_ns=1, node=NODE, settings=SETTINGS, services=SERVICES)
    for one in (line(3, 5, 2), line(4, 6, 2), line(9, 7, 6)):
        writer.tick(*one)
    writer.close()
    assert [tick.observation.tick for tick in read_record(tmp_path / "r.jsonl")[1]] == [3, 4, 9]


def test_a_record_may_be_gzipped(tmp_path: Path) -> None:
    """What is inside counts, not the name."""
    written(tmp_path / "r.jsonl", [(Observation(7, 3, {}, Partition({})), Decision((), Reason.HOLD_TARGETS_MET))]).close()
    (tmp_path / "r").write_bytes(gzip.compress((tmp_path / "r.jsonl").read_bytes()))
    header, ticks = read_record(tmp_path / "r")
    assert (header.node, [tick.observation.now_ns for tick in ticks]) == (NODE, [7])


def test_a_record_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    """The message names what stands where a directory should be."""
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"r.jsonl cannot be made: .*file: File exists"):
        RecordWriter(tmp_path / "file" / "r.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_record_and_not_the_run(tmp_path: Path) -> None:
    """After ENOSPC the writer says so once and takes further lines without error."""
    writer = RecordWriter(tmp_path / "r.jsonl")
    os.dup2(os.open("/dev/full", os.O_WRONLY), writer._fd)
    writer.event(1, "info", "a")
    writer.event(2, "info", "b")
    assert writer.failure is not None
    assert "No space left" in writer.failure
    writer.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"services": 1}, "ControlSettings.services: expected an array"),
        ({"services": [{"name": "a", "cgroups": ["/x"]}]}, r"services\[0\]: field 'target_ns' is missing"),
        ({"services": [], "polcy": "x"}, "unknown field 'polcy'"),
        ({"services": [], "interval_ns": "1"}, "interval_ns: expected int, found str"),
        ({"services": [], "node": {"cores": {"division": "some"}}}, "division"),
        ({"services": [], "signal": {"confidence": 10**400}}, "confidence: int too large"),
    ],
)
def test_the_codec_says_where_data_is_wrong(data: object, message: str) -> None:
    """A wrong shape is named by its path."""
    with pytest.raises(CodecError, match=message):
        from_json(ControlSettings, data)

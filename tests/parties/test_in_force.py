"""What a running daemon wants to be in force: written whole, and read with every way of not fitting told apart."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parties.codec import compact_json
from parties.in_force import IN_FORCE_NAME, InForce, InForceError, InForceText, Unfit, Wanted, encode, read_in_force, write_in_force
from parties.knob import KnobRef
from parties.model import Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import ExitPolicy, ExitSettings

CPUS = KnobRef("cgroup1.list", ("/sys/fs/cgroup/cpuset/web/cpuset.cpus",))
LIMIT = KnobRef("cgroup1.disk-throttle", ("/blkio/web/read", "8:0"))
IN_FORCE = InForce(
    boot_id="one",
    topology="abc",
    pid=7,
    policy="parties",
    placement=Placement(
        Partition({PoolKey(Resource.CORES, 0): {"web": 2000, "idle": 0}, PoolKey(Resource.DISK): {"web": 5}}),
        {"web": (0, 1, 4, 5), "best-effort": ()},
        {(0, "web"): 0b1100, (3, "web"): 0b11},
    ),
    wanted={CPUS: Wanted("web", "0-1,4-5"), LIMIT: Wanted("web", "5")},
    yielded=frozenset({LIMIT}),
    vanished=frozenset({CPUS}),
    exit=ExitSettings(memory=ExitPolicy.HOLD),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with ``IN_FORCE``."""
    write_in_force(tmp_path / IN_FORCE_NAME, IN_FORCE)
    return tmp_path / IN_FORCE_NAME


def test_what_is_written_is_read(path: Path) -> None:
    """Placement, knobs, those left to others and the exit policy come back as they were."""
    assert read_in_force(path, boot_id="one", topology="abc") == IN_FORCE
    assert read_in_force(path).partition.amount(PoolKey(Resource.CORES, 0), "web") == 2000


def test_of_nothing(tmp_path: Path) -> None:
    """A policy that partitions nothing has something to say all the same."""
    nothing = InForce(boot_id="one", topology="abc", pid=1, policy="unmanaged")
    write_in_force(tmp_path / IN_FORCE_NAME, nothing)
    assert read_in_force(tmp_path / IN_FORCE_NAME) == nothing


TEXT = st.text(st.characters(exclude_categories=()))


@given(st.dictionaries(st.builds(KnobRef, TEXT, st.lists(TEXT).map(tuple)), st.builds(Wanted, TEXT, TEXT)))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, wanted: dict[KnobRef, Wanted]) -> None:
    """Kinds, addresses, holders and values are kept whatever they are made of, empty addresses and surrogates included."""
    path = tmp_path_factory.getbasetemp() / IN_FORCE_NAME
    in_force = dataclasses.replace(IN_FORCE, wanted=wanted, yielded=frozenset(wanted), vanished=frozenset())
    write_in_force(path, in_force)
    assert read_in_force(path) == in_force


PARTITIONS = st.dictionaries(
    st.sampled_from([PoolKey(Resource.CORES, 0), PoolKey(Resource.DISK)]),
    st.dictionaries(st.sampled_from(["web", "idle"]), st.integers(0, 9)),
)
KNOBS = st.dictionaries(
    st.builds(KnobRef, st.sampled_from("ab"), st.lists(st.sampled_from("xy"), max_size=1).map(tuple)),
    st.builds(Wanted, st.sampled_from("AB"), st.sampled_from(["1", "2"])),
)


@given(st.lists(st.tuples(PARTITIONS, KNOBS), max_size=6))
def test_what_is_kept_of_a_text_does_not_show(steps: list[tuple[Any, dict[KnobRef, Wanted]]]) -> None:
    """One after the other, the texts are what each would be by itself, and what a plain encoder makes of it."""
    text = InForceText()
    for amounts, wanted in steps:
        placement = dataclasses.replace(IN_FORCE.placement, partition=Partition(amounts))
        in_force = dataclasses.replace(IN_FORCE, placement=placement, wanted=wanted)
        assert text(in_force) == text(in_force) == encode(in_force)
        body = json.loads(encode(in_force))
        assert encode(in_force) == compact_json(body)
        assert list(body)[4:9] == ["policy", "partition", "cpus", "way_masks", "wanted"]
        assert body["wanted"] == [[ref.kind, *ref.address, one.holder, one.value] for ref, one in wanted.items()]


def unfit(path: Path, **asked: str) -> tuple[Unfit, str]:
    with pytest.raises(InForceError) as caught:
        read_in_force(path, **asked)
    return caught.value.unfit, str(caught.value)


def test_what_does_not_fit_is_told_apart(path: Path, tmp_path: Path) -> None:
    """Another boot, another topology, another version, no file, and one that cannot be read each have their name and advice."""
    assert unfit(path, boot_id="two")[0] is Unfit.BOOT
    assert unfit(path, topology="xyz")[0] is Unfit.TOPOLOGY
    assert unfit(path, boot_id="two", topology="xyz")[0] is Unfit.BOOT
    assert unfit(tmp_path / "none")[0] is Unfit.ABSENT
    assert unfit(tmp_path)[0] is Unfit.UNREADABLE
    path.write_bytes(encode(dataclasses.replace(IN_FORCE, version=9)))
    which, text = unfit(path)
    assert which is Unfit.VERSION
    assert "of version 9, this is version 1; run 'parties restore', then start anew" in text


def test_every_cut_is_malformed(path: Path) -> None:
    """A file cut short anywhere is damaged, never a traceback and never half of the truth."""
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert unfit(path)[0] is Unfit.MALFORMED, length


WRONG: tuple[object, ...] = (None, 1, -1, "x", [], [[]], [["a"]], [[1, 2, 3]], {}, {"x": 1}, {"cores@0": {"a": "b"}}, {"b": ["a"]})


@pytest.mark.parametrize("field", ["partition", "cpus", "way_masks", "wanted", "yielded", "vanished", "exit"])
def test_wrong_types_are_malformed(path: Path, field: str) -> None:
    """Whatever stands where something else should, it is damage that is named, or means the same as nothing."""
    good = json.loads(path.read_bytes())
    refused = 0
    for wrong in WRONG:
        path.write_text(json.dumps({**good, field: wrong}))
        try:
            read_in_force(path)
        except InForceError as error:
            assert error.unfit is Unfit.MALFORMED  # noqa: PT017 - some of the wrong ones are empty and good
            refused += 1
    assert refused >= len(WRONG) - 3
    del good[field]
    path.write_text(json.dumps(good))
    assert unfit(path)[0] is Unfit.MALFORMED


def test_a_torn_write_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails half-way leaves what was there, whole."""

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="No space left"):
        write_in_force(path, dataclasses.replace(IN_FORCE, pid=8))
    assert read_in_force(path) == IN_FORCE

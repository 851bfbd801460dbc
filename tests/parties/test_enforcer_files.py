"""Drift of knobs that files make: what is asked of the files alone tells as much as reading the knobs, at the same moment."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.cgroup.v1_knobs import CpuBandwidthKnob, DiskThrottleKnob, FreezerKnob, ListKnob, MemoryLimitKnob
from actuators.frequency.knobs import UserspaceKnob
from parties.enforcer import Enforcer
from parties.foreign import DriftState
from parties.journal import Journal
from parties.knob import Effect, Knob, KnobError, KnobRef, KnobWrite, Said, SaidByFiles, still_said
from parties.model import NS_PER_S, MoveStatus

TICK_NS = NS_PER_S // 2
Board = Any  # of undo_kit, which only its fixture can import


class CellFile:
    """A board's cell as a file that is kept open. ``asked`` counts how often it was read so."""

    def __init__(self, board: Board, name: str) -> None:
        self._board, self._name = board, name
        self.asked = 0

    def says(self, text: bytes) -> bool:
        self.asked += 1
        if self._name in self._board.unreadable:
            raise OSError(errno.EIO, "cannot be read")
        if self._name not in self._board.values:
            raise OSError(errno.ENODEV, "gone")
        return repr(self._board.values[self._name]).encode() == text


def file_knob(board: Board, name: str, files: dict[str, CellFile]) -> Knob:
    """A board's knob that also tells what its value was made of."""
    plain = board.knob(name)
    file = files.setdefault(name, CellFile(board, name))

    class Told(type(plain)):  # type: ignore[misc]
        said_last: Said = ()

        def read(self) -> str | None:
            value: str | None = super().read()
            self.said_last = ((file, repr(value).encode()),)
            return value

        def said(self) -> Said:
            return self.said_last

    knob: Knob = Told(board, name)
    assert isinstance(knob, SaidByFiles)
    return knob


class Stage:
    """A board with knobs a and b under management, whose files are asked, or (``plain``) whose knobs are read."""

    def __init__(self, kit: ModuleType, state: Path, *, plain: bool) -> None:
        self.board = kit.Board({"a": "5", "b": "5"})
        self.files: dict[str, CellFile] = {}
        self.enforcer = Enforcer(Journal(state, started_unix_ns=1), kit.FakeSlowWriter(self.board))
        self._plain = plain
        assert self.plan("4", "6", 0) is MoveStatus.DONE

    def knob(self, name: str) -> Knob:
        plain: Knob = self.board.knob(name)
        return plain if self._plain else file_knob(self.board, name, self.files)

    def plan(self, a: str, b: str, now_ns: int) -> MoveStatus:
        plan = [KnobWrite(self.knob("a"), a, "A", Effect.TAKE), KnobWrite(self.knob("b"), b, "B", Effect.GIVE)]
        return self.enforcer.apply(plan, now_ns).status

    def play(self, act: tuple[str, str], now_ns: int) -> list[object]:
        """Something happens, then a tick; all that can be seen of it."""
        what, value = act
        name = "a" if what[-1] == "a" else "b"
        if what.startswith("set"):
            self.board.values[name] = value
        elif what.startswith("remove"):
            self.board.values.pop(name, None)
        elif what.startswith("hide"):
            self.board.unreadable.symmetric_difference_update({name})
        seen: list[object] = [self.plan(value, "6", now_ns)] if what == "plan" else []
        seen += [str(drift) for drift in self.enforcer.drift(now_ns)]
        self.enforcer.poll(now_ns)
        known = {ref: (one.in_force, one.gone, one.unreadable) for ref, one in self.enforcer._table.items()}
        return [*seen, known, self.enforcer.wanted, self.enforcer.contested, self.enforcer.yielded, dict(self.board.values)]


ACTS = st.tuples(
    st.sampled_from(["nothing", "set a", "set b", "remove a", "remove b", "hide a", "hide b", "plan"]),
    st.sampled_from(["4", "04", "5", "6", "9"]),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ACTS, max_size=30))
def test_asking_files_shows_what_reading_knobs_shows(
    undo_kit: ModuleType, tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str]]
) -> None:
    """Whatever others write, remove or hide, and whatever is moved: the same events at the same ticks, and the same is known."""
    stages = [Stage(undo_kit, tmp_path_factory.mktemp("state"), plain=plain) for plain in (True, False)]
    for tick, act in enumerate(acts):
        plain, told = [stage.play(act, tick * TICK_NS) for stage in stages]
        assert plain == told, (tick, act)


def test_every_file_is_read_at_every_tick(undo_kit: ModuleType, tmp_path: Path) -> None:
    """What agreed is never believed without a look, and the knob itself is read no more as long as it does."""
    stage = Stage(undo_kit, tmp_path, plain=False)
    stage.enforcer.drift(0)
    reads, asked = stage.board.reads, {name: file.asked for name, file in stage.files.items()}
    for tick in range(1, 6):
        assert stage.enforcer.drift(tick * TICK_NS) == []
        assert {name: file.asked - tick for name, file in stage.files.items()} == asked
    assert stage.board.reads == reads


def test_what_cannot_be_asked_has_changed() -> None:
    """One file that fails or says something else is enough, and of no file at all nothing is known to differ."""

    class File:
        def __init__(self, text: bytes | None) -> None:
            self.text = text

        def says(self, text: bytes) -> bool:
            if self.text is None:
                raise OSError(errno.ENODEV, "gone")
            return text == self.text

    good, other, gone = File(b"1"), File(b"2"), File(None)
    assert still_said(((good, b"1"), (other, b"2")))
    assert not still_said(((good, b"1"), (other, b"1")))
    assert not still_said(((good, b"1"), (gone, b"1")))
    assert not still_said(((good, b"11"),))


# The kernel's own kinds of files


def _put(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text + "\n")
    return directory


BANDWIDTH = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
CPUFREQ = {
    "scaling_governor": "userspace",
    "scaling_setspeed": "2000000",
    "scaling_min_freq": "1200000",
    "scaling_max_freq": "2200000",
    "scaling_available_frequencies": "1200000 2000000 2100000 2200000",
}
Made = tuple[Callable[[Path], Knob], dict[str, str], str, str, str]
KINDS: dict[str, Made] = {  # how it is made, its files, what is wanted of it, and which file somebody else sets to what
    "list": (lambda place: ListKnob(place / "cpuset.cpus"), {"cpuset.cpus": "0-7"}, "0-3", "cpuset.cpus", "0-4"),
    "memory": (MemoryLimitKnob, {"memory.limit_in_bytes": "4096"}, "8192", "memory.limit_in_bytes", "81920"),
    "freezer": (FreezerKnob, {"freezer.state": "THAWED"}, "THAWED", "freezer.state", "FROZEN"),
    "quota": (CpuBandwidthKnob, BANDWIDTH, "20000 100000", "cpu.cfs_quota_us", "30000"),
    "period": (CpuBandwidthKnob, BANDWIDTH, "20000 100000", "cpu.cfs_period_us", "50000"),
    "speed": (UserspaceKnob, CPUFREQ, "userspace 2100000 1200000 2200000", "scaling_setspeed", "1200000"),
    "governor": (UserspaceKnob, CPUFREQ, "userspace 2100000 1200000 2200000", "scaling_setspeed", "<unsupported>"),
    "limit": (UserspaceKnob, CPUFREQ, "userspace 2100000 1200000 2200000", "scaling_min_freq", "2100000"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_write_is_seen_at_the_next_look(tmp_path: Path, undo_kit: ModuleType, kind: str) -> None:
    """In each of a knob's files, also when it was undone and done again, and an error or a vanished file likewise."""
    make, files, wanted, name, foreign = KINDS[kind]
    knob = make(_put(tmp_path / "group", files))
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(None))
    assert enforcer.apply([KnobWrite(knob, wanted, "web", Effect.TAKE)], 0).status is MoveStatus.DONE
    file = tmp_path / "group" / name
    ours = file.read_text()
    assert [enforcer.drift(1), enforcer.drift(2)] == [[], []]
    for round_ns in (3, 13):
        file.write_text(foreign + "\n")
        [drift] = enforcer.drift(round_ns)
        assert drift.state is DriftState.NOTICED
        assert drift.found == make(tmp_path / "group").read()
        file.write_text(ours)
        assert [enforcer.drift(round_ns + 1), enforcer.drift(round_ns + 2)] == [[], []]


def test_what_else_is_in_a_file_is_taken_apart_once(tmp_path: Path, undo_kit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another disk's line in the same file is no drift, and after it the file alone is asked again."""
    file = _put(tmp_path / "group", {"bps": "8:0 5"}) / "bps"
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(None))
    plan = [KnobWrite(DiskThrottleKnob(file, "8:0"), "5", "web", Effect.TAKE)]
    assert enforcer.apply(plan, 0).status is MoveStatus.DONE
    assert [enforcer.drift(1), enforcer.drift(2)] == [[], []]
    file.write_text("8:0 5\n8:16 7\n")
    assert enforcer.drift(3) == []
    monkeypatch.setattr(DiskThrottleKnob, "read", lambda _knob: pytest.fail("read although nothing changed"))
    assert enforcer.drift(4) == []


def test_a_governor_is_seen_by_the_speed_that_it_does_not_show(tmp_path: Path) -> None:
    """Under userspace three files say it all; without a speed the governor's own file is asked as well."""
    knob = UserspaceKnob(_put(tmp_path / "policy0", CPUFREQ))
    knob.read()
    assert [text.decode().strip() for _file, text in knob.said()] == ["1200000", "2200000", "2000000"]
    for files in ({"scaling_governor": "performance"}, {"scaling_setspeed": "<unsupported>", "scaling_governor": "userspace"}):
        _put(tmp_path / "policy0", files)
        knob.read()
        assert files["scaling_governor"].encode() + b"\n" in [text for _file, text in knob.said()]


def test_a_file_that_fails_is_told_at_the_next_look(tmp_path: Path, undo_kit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error takes the ordinary way: unreadable, or vanished, and back when it reads again."""
    knob = MemoryLimitKnob(_put(tmp_path / "group", {"memory.limit_in_bytes": "4096"}))
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(None))
    assert enforcer.apply([KnobWrite(knob, "8192", "web", Effect.GIVE)], 0).status is MoveStatus.DONE
    assert [enforcer.drift(1), enforcer.drift(2)] == [[], []]
    for number, state in ((errno.EIO, DriftState.UNREADABLE), (errno.ENODEV, DriftState.VANISHED)):

        def fail(fd: int, size: int, offset: int, number: int = number) -> bytes:
            raise OSError(number, "as told")

        with monkeypatch.context() as patch:
            patch.setattr("os.pread", fail)
            assert [drift.state for drift in enforcer.drift(3)] == [state]
            assert enforcer.drift(4) == []
        told = [drift.state for drift in enforcer.drift(5)]
        assert told == ([DriftState.RETURNED] if state is DriftState.VANISHED else [])
        assert enforcer.drift(6) == []


def test_a_group_made_anew_with_the_same_values_is_another(tmp_path: Path, undo_kit: ModuleType) -> None:
    """The kept descriptor fails with the old group; that the new one says the same does not hide it."""
    knob = MemoryLimitKnob(_put(tmp_path / "group", {"memory.limit_in_bytes": "8192"}))
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), undo_kit.FakeSlowWriter(None))
    assert enforcer.apply([KnobWrite(knob, "8192", "web", Effect.GIVE)], 0).status is MoveStatus.DONE
    assert enforcer.drift(1) == []
    gone = KnobError(errno.ENODEV, "gone")
    knob._file.close()  # what an ENODEV brings about
    read = knob.look
    knob.look = lambda: (_ for _ in ()).throw(gone)  # type: ignore[method-assign]
    assert [drift.state for drift in enforcer.drift(2)] == [DriftState.VANISHED]
    knob.look = read  # type: ignore[method-assign]
    assert [drift.state for drift in enforcer.drift(3)] == [DriftState.RETURNED]
    assert KnobRef(MemoryLimitKnob.KIND, (str(tmp_path / "group"),)) in enforcer.wanted

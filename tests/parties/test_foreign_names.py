"""Naming foreign writers: what is asked of the process for upkeep, and what is said of its answer."""

from __future__ import annotations

import json
from pathlib import Path

from parties.foreign import NamesWriters
from parties.knob import KnobRef


class Enforcer:
    """Knobs under management, and those that somebody else writes."""

    def __init__(self, *refs: KnobRef) -> None:
        self.wanted: dict[KnobRef, object] = dict.fromkeys(refs)
        self.contested: frozenset[KnobRef] = frozenset()


def answer(seen: dict[str, str] | None = None, suspects: tuple[str, ...] = ()) -> str:
    return json.dumps({"seen": seen or {}, "suspects": suspects, "exact": True})


FILE = KnobRef("file", ("/group/limit",))
GROUP = KnobRef("group", ("/group",))
CLASS = KnobRef("class", ("ns", "eth0", "7061:10"))


def warnings(task: NamesWriters, found: str | None, error: OSError | None = None) -> list[str]:
    return list(task.judge(found, error).warnings)


def test_directories_of_all_files_are_watched(tmp_path: Path) -> None:
    """A knob that is a directory by itself, a file by its directory, what is no file not at all; new knobs the next time."""
    enforcer = Enforcer(KnobRef("file", (str(tmp_path / "limit"), "8:0")), CLASS)
    task = NamesWriters(enforcer, kind="writers")
    assert task.ref == KnobRef("writers", ())
    assert json.loads(task.value) == {"directories": [str(tmp_path)], "guess": False}
    (tmp_path / "group").mkdir()
    enforcer.wanted[KnobRef("group", (str(tmp_path / "group"),))] = None
    assert warnings(task, answer()) == []
    assert json.loads(task.value)["directories"] == [str(tmp_path), str(tmp_path / "group")]


def test_a_contested_knob_s_writer_is_named_once() -> None:
    """By file and by group; again only if it is another one; writes to knobs that are as they should be are nobody's concern."""
    enforcer = Enforcer(FILE, GROUP)
    task = NamesWriters(enforcer, kind="writers")
    assert warnings(task, answer({"/group/limit": "tuned (process 9)"})) == []
    enforcer.contested = frozenset({FILE})
    assert warnings(task, answer()) == ["file:/group/limit: written by tuned (process 9)"]
    assert warnings(task, answer({"/group/limit": "tuned (process 9)"})) == []
    assert warnings(task, answer({"/group/limit": "bash (process 10)"})) == ["file:/group/limit: written by bash (process 10)"]
    enforcer.contested = frozenset({GROUP})
    assert warnings(task, answer({"/group/other": "bash (process 11)"})) == ["group:/group: written by bash (process 11)"]
    assert warnings(task, answer({"/elsewhere/limit": "bash (process 12)"})) == []


def test_without_an_exact_answer_the_probable_ones_are_named() -> None:
    """Suspects are asked for only while there is somebody to be named, and an exact answer that comes later is said."""
    enforcer = Enforcer(CLASS, FILE)
    task = NamesWriters(enforcer, kind="writers")
    enforcer.contested = frozenset({CLASS})
    assert warnings(task, answer()) == []
    assert json.loads(task.value)["guess"]
    [said] = warnings(task, answer(suspects=("cgrulesengd (process 7)", "tuned (process 9)")))
    known = "probably one of those that are known to do so: cgrulesengd (process 7), tuned (process 9)"
    assert said == f"class:ns:eth0:7061:10: written by {known}"
    assert warnings(task, answer(suspects=("tuned (process 9)",))) == []
    assert not json.loads(task.value)["guess"]


def test_an_error_is_said_and_nothing_else() -> None:
    """Not to know is no reason to do anything."""
    task = NamesWriters(Enforcer(FILE), kind="writers")
    assert warnings(task, None, OSError(24, "Too many open files")) == [
        "who writes our values cannot be found out: [Errno 24] Too many open files"
    ]


def test_memory_of_writers_is_bounded() -> None:
    """Thousands of files written by others leave the latest ones."""
    enforcer = Enforcer(FILE)
    task = NamesWriters(enforcer, kind="writers")
    for number in range(30):
        warnings(task, answer({f"/x/{number}-{file}": "bash (process 1)" for file in range(100)}))
    assert len(task._last) <= 600
    enforcer.contested = frozenset({FILE})
    assert warnings(task, answer({"/group/limit": "bash (process 2)"})) == ["file:/group/limit: written by bash (process 2)"]

"""The controller's bench: what it feeds, what it computes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitors.histogram_message import parse_window
from parties.knob import KnobError, KnobRef
from parties.loop import Loop
from workloads import bench_control
from workloads.bench_control import EXIT_MISTAKE, EXIT_OK, Figures, knob_table, table
from workloads.bench_feed import PHASE_INTERVALS, Level, Script, histogram, message
from workloads.bench_knobs import KnobCost, _measured
from workloads.bench_parts import PARTS, clock, parts_table
from workloads.machine import CONTROLLERS, cgroup_mounts, cpu_plan

TARGET_NS = 10_000_000
REPORT: dict[str, Any] = {
    "ticks": 90,
    "missed_ticks": 10,
    "refused": 0,
    "reverts": 2,
    "moves": {"cores": 5, "cache": 0},
    "tick_cpu_p50_ms": 1.0,
    "tick_cpu_p99_ms": 1.9,
    "tick_cpu_max_ms": 2.5,
    "tick_cpu_total_ms": 90.0,
    "cpu_ms": 240.0,
    "cpu_fraction_of_core": 0.05,
    "lateness_p50_ms": 0.5,
    "lateness_p99_ms": 1.0,
    "rss_mb": 22.0,
    "counters": {"windows": 3000},
}
SERVICES = {"web": {"amounts": {"cores": 2000, "memory": 1 << 30}}}
TICKS: list[dict[str, Any]] = [{"moves": [{}, {}], "services": SERVICES}, {"moves": [], "services": SERVICES}]


@pytest.mark.parametrize("level", list(Level))
def test_windows_look_like_a_busy_services(level: Level) -> None:
    """About 150 occupied buckets for a thousand samples, and the p99 that the level asks for."""
    wanted_ns = int(level.value * TARGET_NS)
    made = histogram(wanted_ns, random.Random(3))  # noqa: S311 - seeded
    assert 120 <= len(made.counts) <= 180
    assert made.count == 1000
    assert made.percentile(99) == pytest.approx(wanted_ns, rel=0.1)


def test_messages_are_what_the_socket_takes() -> None:
    """The hand-made text parses as a window with every count in agreement."""
    made = histogram(TARGET_NS, random.Random(1))  # noqa: S311 - seeded
    text = f'"completed":{made.count},"histogram":{json.dumps(made.encode())}'
    window = parse_window(message("web", 7, 100, 200, text))
    assert (window.service, window.sequence, window.window_start_ns, window.window_end_ns) == ("web", 7, 100, 200)
    assert window.completed == window.histogram.count == 1000


def test_the_script_repeats_and_has_violations_and_relaxations() -> None:
    """The same seed gives the same run; some phases violate and some do not, and in each somebody is to be moved."""
    intervals = range(0, 100 * PHASE_INTERVALS, PHASE_INTERVALS)
    script = Script(6, 1)
    phases = [script.levels(interval) for interval in intervals]
    repeated = Script(6, 1)
    assert [repeated.levels(interval) for interval in intervals] == phases
    assert [Script(6, 2).levels(0), Script(6, 3).levels(0)] != phases[:2]
    violating = sum(Level.VIOLATING in phase for phase in phases)
    assert 30 <= violating <= 70
    assert all(Level.RELAXED in phase or Level.VIOLATING in phase for phase in phases)
    assert script.levels(PHASE_INTERVALS - 1) == phases[0]


def test_a_script_for_one_service_can_be_made() -> None:
    """Fewer services than a phase concerns."""
    assert len(Script(1, 1).levels(0)) == 1


def test_the_cost_of_an_interval_is_its_tick_and_its_windows() -> None:
    """A missed tick had its windows too, so windows count per interval and not per tick."""
    figures = Figures.of(REPORT, TICKS, 50)
    assert figures.cpu_per_window_ms == pytest.approx(150 / 3000)
    assert figures.cpu_per_interval_ms == pytest.approx(90 / 90 + 0.05 * 3000 / 100)
    assert figures.fraction_at_500ms == pytest.approx(2.5 / 500)
    assert figures.ticks_with_moves == 1
    assert figures.moves == {"cores": 5}
    assert figures.resources == "cores, memory"


def test_a_goal_that_is_just_missed_is_missed() -> None:
    """Half a percent is not under half a percent."""
    assert Figures.of(REPORT, TICKS, 50).goals() == {"cpu_fraction_of_core": False, "tick_cpu_p99_ms": True, "rss_mb": True}
    assert Figures.of(REPORT | {"cpu_ms": 239.0}, TICKS, 50).goals()["cpu_fraction_of_core"]
    assert not Figures.of(REPORT | {"tick_cpu_p99_ms": 2.0}, TICKS, 50).goals()["tick_cpu_p99_ms"]


def test_figures_are_plain_json() -> None:
    """Every field by its name, and what follows from them."""
    fields = json.loads(json.dumps(Figures.of(REPORT, TICKS, 50).as_json()))
    assert fields["interval_ms"] == 50
    assert fields["fraction_at_500ms"] == 0.005
    assert fields["goals"]["rss_mb"] is True


def test_tables_show_runs_and_knobs() -> None:
    """One column for each run and one line for each knob, in the units of the heading."""
    figures = Figures.of(REPORT, TICKS, 50)
    lines = table([figures, figures]).splitlines()
    assert any("of a core" in line and line.count("0.50%") == 2 for line in lines)
    assert "1.5" in knob_table([KnobCost("freezer", "kernel", 10, 1500, 2000, 300, 400, 1800, 2400)]).splitlines()[1].split()


class _Knob:
    """Remembers what it was set to; refuses one value."""

    ref = KnobRef("fake", ("x",))

    def __init__(self, refused: str = "") -> None:
        self.value: str | None = "before"
        self.refused = refused

    def read(self) -> str | None:
        return self.value

    def write(self, value: str) -> None:
        if value == self.refused:
            raise KnobError(22, "refused")
        self.value = value

    def same(self, wanted: str, found: str | None) -> bool:
        return wanted == found

    def restore(self, old: str | None) -> None:
        self.value = old


def test_a_measured_knob_is_as_it_was() -> None:
    """Also when a write is refused half-way."""
    knob = _Knob()
    cost = _measured("fake", knob, "one", "other", samples=10)
    assert knob.value == "before"
    assert cost.samples == 10
    assert cost.write_p99_ns >= cost.write_p50_ns > 0
    refusing = _Knob("one")
    with pytest.raises(KnobError):
        _measured("fake", refusing, "one", "other", samples=10)
    assert refusing.value == "before"


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One message, exit code 2, nothing made."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert bench_control.main([]) == EXIT_MISTAKE
    assert "not root" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--ticks=0", "--services=0", "--usual-ticks=-1", "--here-ticks=-1"])
def test_a_run_of_nothing_is_refused(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Argparse's own exit code for a wrong argument."""
    with pytest.raises(SystemExit) as refused:
        bench_control.main([argument])
    assert refused.value.code == EXIT_MISTAKE
    assert "at least" in capsys.readouterr().err


def test_every_part_of_a_tick_has_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a part gives and raises is what it gave and raised, and each time counts once; without the first few."""
    times: dict[str, list[int]] = {}
    for kind, method in PARTS.values():
        monkeypatch.setattr(kind, method, lambda part, what: [part, what])
    monkeypatch.setattr(Loop, "_tick", lambda _part, _what: int("none"))
    clock(times)
    for kind, method in PARTS.values():
        if kind is Loop and method == "_tick":
            with pytest.raises(ValueError, match="none"):
                getattr(kind, method)(None, 1)
        else:
            assert getattr(kind, method)("part", 1) == ["part", 1]
    assert {name: len(ns) for name, ns in times.items()} == dict.fromkeys(PARTS, 1)
    table_of = parts_table({"drift": [9_000_000] * 20 + [1_000_000] * 99 + [3_000_000], "front": [5_000_000]})
    assert [line.split() for line in table_of.splitlines()[1:]] == [
        ["drift", "1.00", "1.00", "100"],
        ["front", "5.00", "5.00", "1"],
    ]


@pytest.mark.kernel
def test_a_short_run_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The real control process for some seconds: every figure is there, moves were made, and the groups are gone."""
    if os.geteuid() != 0 or cpu_plan() is None or any(name not in cgroup_mounts() for name in CONTROLLERS):
        pytest.skip("needs root, control groups and two cores")
    file = tmp_path / "bench.json"
    command = [
        sys.executable,
        "-m",
        "workloads.bench_control",
        "--ticks",
        "20",
        "--usual-ticks",
        "0",
        "--here-ticks",
        "20",
        "--parts",
        "30",
        "--services",
        "2",
    ]
    ended = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == EXIT_OK, ended.stderr
    counted = {line.split("  ")[0]: line.split()[-1] for line in ended.stdout.split("part of a tick")[1].splitlines()[1:11]}
    assert set(counted) == set(PARTS)
    assert int(counted["whole tick"]) >= 10, "a clock was around every tick"
    result = json.loads(file.read_text())
    assert [len(run["resources"].split(", ")) >= 6 for run in result["runs"]] == [True, False]
    for run in result["runs"]:
        assert run["ticks"] >= 20
        assert run["windows"] > 0
        assert run["tick_cpu_p50_ms"] > 0
        assert run["cpu_per_interval_ms"] > run["tick_cpu_p50_ms"] / 2
        assert sum(run["moves"].values()) > 0
    knobs = {(knob["kind"], knob["on"]) for knob in result["knobs"]}
    assert {("CPU bandwidth", "kernel"), ("memory limit", "kernel"), ("network class", "kernel"), ("cache mask", "files")} <= knobs
    left = [path for root in cgroup_mounts().values() for path in root.glob(f"parties-demo-{result['sandbox']}*")]
    assert not left

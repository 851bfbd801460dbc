"""Pressure stall information: its text, and fractions of an interval for each holder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.pressure import Pressure, Stall, parse_pressure, some_total_ns
from actuators.cgroup.v1 import GroupLayerV1
from monitors.pressure import PressureMonitor, Waits, read_pressure
from monitors.usage import GroupUsageMonitor
from parties.codec import from_json, to_json
from parties.front import usage_of
from parties.model import BEST_EFFORT, NS_PER_S, Usage

CAPTURED = """\
some avg10=28.13 avg60=7.42 avg300=1.70 total=4874122
full avg10=1.50 avg60=0.09 avg300=0.02 total=63104
"""


@pytest.mark.parametrize(
    ("text", "some", "full"),
    [
        (CAPTURED, Stall(4_874_122_000, 0.2813), Stall(63_104_000, 0.015)),
        ("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", Stall(7000), Stall()),  # cpu before 5.13
        ("full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n", Stall(), Stall(9000)),  # irq
        ("", Stall(), Stall()),
    ],
)
def test_the_kernel_s_text_is_taken_apart(text: str, some: Stall, full: Stall) -> None:
    """Totals are microseconds, averages percent; a line that is not there is no waiting."""
    parsed = parse_pressure(text)
    assert (parsed.some.total_ns, parsed.full.total_ns) == (some.total_ns, full.total_ns)
    assert (parsed.some.avg10, parsed.full.avg10) == pytest.approx((some.avg10, full.avg10))
    assert isinstance(parsed, Pressure)


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_the_short_way_finds_the_same_total(some_us: int, full_us: int) -> None:
    """A tick reads one figure only."""
    line = "avg10=1.00 avg60=2.00 avg300=3.00 total="
    assert some_total_ns(f"some {line}{some_us}\nfull {line}{full_us}\n".encode()) == some_us * 1000


def put(place: Path, *, populated: int = 1, cpu: int = 0, memory: int = 0, io: int | None = 0) -> None:
    """The files of one group; totals in microseconds."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "cgroup.events").write_text(f"populated {populated}\nfrozen 0\n")
    for name, total in (("cpu", cpu), ("memory", memory), ("io", io)):
        if total is None:
            (place / f"{name}.pressure").unlink(missing_ok=True)
        else:
            (place / f"{name}.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0 total=0\n")


def test_waits_are_fractions_of_the_interval(tmp_path: Path) -> None:
    """From the totals' growth; nothing at the first sample, and of several groups the one that waits most counts."""
    for name in "ab":
        put(tmp_path / name)
    monitor = PressureMonitor(tmp_path, {"web": ("/a", "/b"), BEST_EFFORT: ()})
    assert monitor.sample(0) == {"web": Waits(), BEST_EFFORT: Waits()}
    put(tmp_path / "a", cpu=125_000, memory=500_000)
    put(tmp_path / "b", cpu=250_000, io=1_000)
    assert monitor.sample(NS_PER_S // 2)["web"] == Waits(0.5, 1.0, 0.002)
    assert monitor.sample(NS_PER_S)["web"] == Waits(0.0, 0.0, 0.0)
    monitor.close()


def test_what_cannot_be_told_is_none(tmp_path: Path) -> None:
    """No tree, no group, no process in it, no PSI, a group made anew: never a zero that nobody measured."""
    assert PressureMonitor(None, {"web": ("/a",)}).sample(0) == {"web": Waits()}
    monitor = PressureMonitor(tmp_path, {"web": ("/a",)})
    assert monitor.sample(0) == {"web": Waits()}
    put(tmp_path / "a", cpu=900, io=None)
    monitor.sample(2 * NS_PER_S)
    put(tmp_path / "a", cpu=500_900, io=None)
    assert monitor.sample(3 * NS_PER_S) == {"web": Waits(0.5, 0.0, None)}
    put(tmp_path / "a", cpu=100, populated=1, io=None)  # fell: another group
    assert monitor.sample(4 * NS_PER_S) == {"web": Waits(None, 0.0, None)}
    put(tmp_path / "a", cpu=100, populated=0, io=None)
    assert monitor.sample(5 * NS_PER_S) == {"web": Waits()}
    assert set(read_pressure(tmp_path / "a")) == {"cpu", "memory"}
    assert read_pressure(tmp_path / "gone") == {}


def test_a_group_that_is_not_there_is_looked_for_every_two_seconds(tmp_path: Path) -> None:
    """Not at every tick, which would cost as much as reading it; one that was there and went is looked for as seldom."""
    monitor = PressureMonitor(tmp_path, {"web": ("/a",)})
    monitor.sample(0)
    put(tmp_path / "a")
    for half_seconds in range(1, 5):
        assert monitor.sample(half_seconds * NS_PER_S // 2) == {"web": Waits()}
    put(tmp_path / "a", cpu=250_000)
    assert monitor.sample(5 * NS_PER_S // 2) == {"web": Waits(0.5, 0.0, 0.0)}
    monitor.close()


def test_pressure_reaches_usage_front_and_record(tmp_path: Path) -> None:
    """A v2 group beside the v1 one is the sensor; without it the fields are absent, not zero."""
    (tmp_path / "cpu/a").mkdir(parents=True)
    (tmp_path / "cpu/a/cgroup.procs").write_text("7\n")
    layer = GroupLayerV1(Hierarchies({"cpu": tmp_path / "cpu"}, tmp_path / "v2"))
    put(tmp_path / "v2/a")
    managed = {"a": ("/a",), "b": ("/b",)}
    monitor = GroupUsageMonitor(layer, managed, proc=tmp_path, pressure=PressureMonitor(tmp_path / "v2", managed))
    monitor.sample(0)
    put(tmp_path / "v2/a", cpu=100_000, memory=20_000, io=3_000)
    sample = monitor.sample(NS_PER_S)
    monitor.close()
    waits = {"cpu_pressure": 0.1, "memory_pressure": 0.02, "io_pressure": 0.003}
    assert usage_of(sample["a"]) == waits
    assert not usage_of(sample["b"]).keys() & waits.keys()
    assert from_json(Usage, to_json(sample["a"])) == sample["a"]
    assert from_json(Usage, {"cpu_millicores": 5}) == Usage(5)  # a record of before

"""Each part of the machine by itself: the values that its formula gives, and where they end."""

from __future__ import annotations

import dataclasses
import math

import pytest

from simulator import contention
from simulator.library import node_profile, service_model
from simulator.machine import Strain, core_time_s

NODE = node_profile("e5-2699v4")


@pytest.mark.parametrize(("use", "times"), [(0.0, 1.0), (0.5, 1 + 2.5 / 16), (1.0, 3.5), (1.2, 1 + 2.5 * 1.8), (9.0, 1 + 2.5 * 3)])
def test_memory_latency_rises_late_and_ends(use: float, times: float) -> None:
    """1 on an idle bus, 1 + rise at full use with the stated power, a straight line beyond, an end at one and a half."""
    node = dataclasses.replace(NODE, memory_latency_rise=2.5, memory_latency_power=4.0)
    assert contention.memory_pressure(node, use) == pytest.approx(times)


@pytest.mark.parametrize(("active", "ghz"), [(0, 3.6), (1, 3.6), (2, 3.6), (2.5, 3.5), (3, 3.4), (7.5, 2.9), (8, 2.8), (40, 2.8)])
def test_turbo_between_the_bins(active: float, ghz: float) -> None:
    """The bin of whole cores, a straight line between two, the last bin beyond."""
    assert contention.turbo_hz(NODE, active) == pytest.approx(ghz * 1e9)


def test_power_limit() -> None:
    """Turbo is what the power that is left lets so many cores have, and a core's power is cubic in its frequency."""
    node = dataclasses.replace(NODE, power_milliwatts=145_000, base_milliwatts=55_000, core_milliwatts=3_000)
    drawn = contention.power_milliwatts(node, [(10.0, 2.2e9), (5.0, 1.1e9)])
    assert drawn == pytest.approx(55_000 + 10 * 3_000 + 5 * 3_000 / 8)
    turbo = contention.limited_turbo_hz(node, 2.8e9, 20.0, 55_000)
    assert contention.power_milliwatts(node, [(20.0, turbo)]) == pytest.approx(145_000)
    assert contention.limited_turbo_hz(node, 2.8e9, 10.0, 55_000) == pytest.approx(2.8e9)
    assert contention.limited_turbo_hz(node, 2.8e9, 100.0, 55_000) == pytest.approx(2.2e9)
    assert contention.limited_turbo_hz(node, 2.8e9, 5.0, 200_000) == pytest.approx(2.2e9)


@pytest.mark.parametrize(
    ("demands", "unlimited", "level"),
    [
        ([], 1, 12.0),
        ([], 2, 6.0),
        ([4.0], 1, 8.0),
        ([4.0], 2, 4.0),
        ([1.0, 20.0], 1, 5.5),
        ([20.0, 20.0], 1, 4.0),
        ([0.0], 1, 12.0),
    ],
)
def test_fair_level(demands: list[float], unlimited: int, level: float) -> None:
    """Everybody gets the same of 12 and nobody more than is wanted; what is over is divided again."""
    assert contention.fair_level(12.0, demands, unlimited) == pytest.approx(level)


def test_misses() -> None:
    """The floor with endless cache, everything without any, one e-fold less for each working set, which grows with the load."""
    model = dataclasses.replace(service_model("moses"), working_set_bytes=10_000_000, working_set_idle=0.4, miss_floor=0.2)
    assert contention.miss_ratio(model, 0.0, 0.5) == pytest.approx(1.0)
    assert contention.miss_ratio(model, 1e12, 0.5) == pytest.approx(0.2)
    assert contention.miss_ratio(model, 10e6, 1.0) == pytest.approx(0.2 + 0.8 / math.e)
    assert contention.miss_ratio(model, 10e6, 0.0) == pytest.approx(0.2 + 0.8 * math.exp(-2.5))


def test_disk_reads() -> None:
    """The stated bytes at the page set, less by the slope above it, more by the thrash under it, and no overflow at nothing."""
    base = service_model("mongodb")
    model = dataclasses.replace(
        base, disk_bytes=20_000, page_set_bytes=80 * 10**9, page_set_power=2.0, page_slope=0.5, page_thrash=10.0
    )
    assert contention.disk_bytes(model, 80e9, 1.0) == pytest.approx(20_000)
    assert contention.disk_bytes(model, 160e9, 1.0) == pytest.approx(20_000 / math.sqrt(2))
    assert contention.disk_bytes(model, 40e9, 1.0) == pytest.approx(20_000 * 2**10.5)
    assert contention.disk_bytes(model, 20e9, 0.5) == pytest.approx(20_000 * 2)
    assert contention.disk_bytes(model, 0.0, 0.5) > 1e20
    assert contention.disk_bytes(service_model("moses"), 0.0, 0.5) == 0.0


def test_process_grows_to_its_size() -> None:
    """The stated size at the largest load and beyond, the idle fraction without load."""
    model = dataclasses.replace(service_model("sphinx"), resident_bytes=1000, resident_idle=0.6)
    assert [contention.process_bytes(model, load) for load in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([600, 800, 1000, 1000])


def test_occupancy() -> None:
    """A tenant's part of all accesses, everything where there are no others, and never less than what it keeps."""
    assert contention.occupancy(3.0, 4.0) == pytest.approx(0.75)
    assert contention.occupancy(3.0, 3.0) == 1.0
    assert contention.occupancy(0.0, 0.0) == 1.0
    assert contention.occupancy(0.0, 100.0) == contention.LEAST_OCCUPANCY


def test_wake_delay() -> None:
    """The whole delay beside a job, hardly any beside cores that are half idle."""
    assert contention.wake_delay_s(NODE, 1.0) == pytest.approx(0.012)
    assert contention.wake_delay_s(NODE, 0.5) == pytest.approx(0.012 / 16)


def test_core_time() -> None:
    """Compute scales with frequency and the busy sibling, the rest with misses and pressure, all of it with the cache's use."""
    model = dataclasses.replace(
        service_model("moses"),
        compute_ns=1000,
        reference_hz=2_000_000_000,
        memory_ns=500,
        sibling_slowdown=1.6,
        cache_contention=2.0,
    )
    assert core_time_s(model, 0.0, 1e9, Strain()) == pytest.approx(2000e-9)
    assert core_time_s(model, 0.5, 2e9, Strain(3.0, 0.0)) == pytest.approx(1750e-9)
    assert core_time_s(model, 0.0, 2e9, Strain(1.0, 0.25), 0.5) == pytest.approx(1300e-9 * 1.5)

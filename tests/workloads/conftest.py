"""Trials made up from what a run records, without a machine."""

import random
from collections.abc import Callable

import pytest

from parties.histogram import Histogram
from workloads.demo.calibration import Scan
from workloads.demo.plan import INTERVAL_NS, MS, PROGRAMS, STRESS, Calibration, Plan
from workloads.demo.trial import CpuSample, Trial
from workloads.intervals import Window
from workloads.knee import Point
from workloads.load import Totals
from workloads.machine import CpuTimes

TARGET_NS = 10 * MS
WINDOW_NS = 100 * MS
ORIGIN_NS = 1_000_000_000_000

MakeTrial = Callable[..., Trial]


def _windows(rng: random.Random, count: int, late: set[int]) -> list[Window]:
    """Windows of 20 requests each; those of the intervals in ``late`` are over the target."""
    windows = []
    for index in range(count):
        histogram = Histogram()
        scale = 3 * TARGET_NS if index * WINDOW_NS // INTERVAL_NS in late else TARGET_NS // 3
        for _ in range(20):
            histogram.add(round(rng.uniform(0.5, 1.0) * scale))
        start_ns = ORIGIN_NS + index * WINDOW_NS
        windows.append(Window(start_ns, start_ns + WINDOW_NS, 20, 20, 20, 0, 0, 0, 0, histogram))
    return windows


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.fixture
def scans() -> dict[str, Scan]:
    """Calibrations as a scan leaves them."""
    points = (Point(100.0, 2 * MS), Point(900.0, 8 * MS), Point(1000.0, 90 * MS, saturated=True))
    return {program.name: Scan(Calibration(TARGET_NS, 1000), 900.0, 8 * MS, points) for program in PROGRAMS}


@pytest.fixture
def make_trial(plan: Plan) -> MakeTrial:
    """A trial of ``manager`` in which each service is late in the given intervals and best effort used ``best_effort`` cores."""

    def make(
        manager: str, *, late: dict[str, set[int]] | None = None, best_effort: float = 0.3, valid: bool = True, foreign: float = 0.0
    ) -> Trial:
        rng = random.Random(1)  # noqa: S311 - wants a seed
        length_ns = round(plan.timeline.length_s * 1e9)
        count = length_ns // WINDOW_NS
        names = [program.name for program in PROGRAMS]
        seconds = range(int(plan.timeline.length_s) + 1)
        shares = {names[0]: 0.3, names[1]: 0.2, STRESS.name: best_effort}
        partitioned = manager in ("equal", "parties")
        held = {names[0]: 350, names[1]: 350, "best-effort": 300, "idle": 0}
        return Trial(
            manager=manager,
            origin_ns=ORIGIN_NS,
            length_ns=length_ns,
            windows={name: _windows(rng, count, (late or {}).get(name, set())) for name in names},
            totals={
                name: Totals(20 * count, 0, 0, TARGET_NS, 100_000, 7 * 10**9, valid, () if valid else ("late",)) for name in names
            },
            cpu=[
                CpuSample(
                    ORIGIN_NS + second * 10**9,
                    {name: round(share * second * 1e9) for name, share in shares.items()},
                    CpuTimes(round((sum(shares.values()) + foreign) * second * 1e9), 0),
                )
                for second in seconds
            ],
            allocation=[(ORIGIN_NS + second * 10**9, held) for second in seconds] if partitioned else [],
            operations_per_cpu_s=1000.0,
            report={
                "moves": {"cores": 3, "memory": 0},
                "reverts": 1,
                "cpu_fraction_of_core": 0.004,
                "tick_cpu_p50_ms": 1.0,
                "tick_cpu_p99_ms": 2.0,
                "lateness_p99_ms": 0.5,
                "missed_ticks": 0,
                "rss_mb": 24.0,
                "ticks": 140,
            },
        )

    return make

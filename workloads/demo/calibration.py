"""Measures each service's target and maximum load, and keeps them for the next demo on the same machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workloads.demo.plan import FLOOR_MILLICORES, MS, PERIOD_NS, PROGRAMS, SCAN_MILLICORES, Calibration
from workloads.intervals import PERCENTILE, merge
from workloads.knee import KneeError, Point, find_knee, max_load
from workloads.load import LoadRun, preload
from workloads.machine import fingerprint
from workloads.sandbox import Group, Sandbox, SandboxError
from workloads.services import ServiceProgram

VERSION = 1
STEP_S = 1.8
SKIP_S = 0.4  # of each step: what it inherits from the one before
LIMIT_S = 60.0  # of one service's scan
FIRST_RPS = 300.0
# Of what the quota can serve, going by what a request cost so far; costs fall as load rises, so the last ones are repeated.
SHARES = (0.4, 0.55, 0.7, 0.8, 0.86, 0.92, 0.97, 1.02, 1.07, 1.12)
LEAST_GROWTH = 1.03  # from step to step
OVERLOADED_STEPS = 2  # in a row end the scan
CLIP_NS = 5 * PERIOD_NS
LEAST_TARGET_NS = 3 * PERIOD_NS // 2
MOST_TARGET_NS = 2 * PERIOD_NS
ROUND_NS = MS // 2


@dataclass(frozen=True, slots=True)
class Scan:
    """A service's load-latency curve and what was made of it."""

    calibration: Calibration
    knee_rps: float
    knee_p99_ns: int
    points: tuple[Point, ...]


def target_of(knee_p99_ns: int) -> int:
    """The p99 at the knee, kept between one and a half and two periods of CPU bandwidth control, rounded up to half a millisecond.

    A request that meets an exhausted quota waits for most of a period, and a hiccup of the machine may come on top: a lower target
    would measure the mechanism and the machine, not the manager. Where the tail is beyond two periods a backlog has outlived a
    whole one, which is past the knee.
    """
    bounded = min(max(knee_p99_ns, LEAST_TARGET_NS), MOST_TARGET_NS)
    return -(-bounded // ROUND_NS) * ROUND_NS


def judge(points: Sequence[Point]) -> Scan:
    """Target and maximum load of a curve. Raises KneeError."""
    knee = find_knee(points, clip_ns=CLIP_NS)
    target_ns = target_of(knee.p99_ns)
    highest = max_load(points, target_ns)
    if highest <= 0:
        raise KneeError(f"even the lowest load is over {target_ns / MS:.1f} ms: the machine is too busy")
    return Scan(Calibration(target_ns, round(highest)), knee.load_rps, knee.p99_ns, tuple(points))


def scan(box: Sandbox, group: Group, program: ServiceProgram, *, seed: int, say: Callable[[str], None]) -> Scan:
    """Load a running service step by step, alone, on as much CPU bandwidth as it can ever hold. Raises SandboxError."""
    group.write("cpu", "cpu.cfs_period_us", PERIOD_NS // 1000)
    group.write("cpu", "cpu.cfs_quota_us", PERIOD_NS * SCAN_MILLICORES // 1000 // 1000)
    try:
        return judge(_steps(box, group, program, seed, say))
    except KneeError as error:
        raise SandboxError(f"no knee found for {program.name}: {error}") from error
    finally:
        group.write("cpu", "cpu.cfs_quota_us", -1)


def measure(box: Sandbox, groups: dict[str, Group], *, seed: int, say: Callable[[str], None]) -> dict[str, Scan]:
    """Scan each service alone. Raises SandboxError."""
    scans = {}
    for program in PROGRAMS:
        running = program.start(box, groups[program.name])
        preload(box, program)
        scans[program.name] = scan(box, groups[program.name], program, seed=seed, say=say)
        running.child.stop()
    return scans


def cache_key() -> str:
    """What a calibration depends on: machine, kernel, versions, parameters of services and of CPU bandwidth control."""
    facts = [f"{program.version()} {program.parameters()}" for program in PROGRAMS]
    return fingerprint(
        str(VERSION),
        *facts,
        f"period {PERIOD_NS} quota {SCAN_MILLICORES} floor {FLOOR_MILLICORES} {LEAST_TARGET_NS} {MOST_TARGET_NS}",
    )


def load(cache: Path, key: str) -> dict[str, Scan] | None:
    """The scans of an earlier demo with the same key; None if there are none, or none that can be read."""
    try:
        data = json.loads((cache / f"calibration-{key}.json").read_text())
        if data["version"] != VERSION:
            return None
        return {
            name: Scan(
                Calibration(**found["calibration"]),
                found["knee_rps"],
                found["knee_p99_ns"],
                tuple(Point(**point) for point in found["points"]),
            )
            for name, found in data["services"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(cache: Path, key: str, scans: dict[str, Scan]) -> None:
    """Keep the scans; written whole or not at all."""
    data = {"version": VERSION, "unix_s": round(time.time()), "services": {name: asdict(found) for name, found in scans.items()}}
    path = cache / f"calibration-{key}.json"
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(data, indent=1))
    temporary.replace(path)


def _steps(box: Sandbox, group: Group, program: ServiceProgram, seed: int, say: Callable[[str], None]) -> tuple[Point, ...]:
    """The points of a scan, in one run of the generator, until it is plain that the service is overloaded."""
    deadline = time.monotonic() + LIMIT_S
    run = LoadRun(box, program, [(0.0, FIRST_RPS), (LIMIT_S, FIRST_RPS)], seed=seed)
    points: list[Point] = []
    rate, cost_ns = FIRST_RPS, _step(run, group, FIRST_RPS)[1]  # the first step tells the cost, and is too light for a point
    while time.monotonic() < deadline and not _overloaded(points):
        share = SHARES[min(len(points), len(SHARES) - 1)]
        rate = max(rate * LEAST_GROWTH if points else 0.0, share * SCAN_MILLICORES / 1000 * 1e9 / cost_ns)
        run.set_rate(rate)
        point, cost_ns = _step(run, group, rate)
        points.append(point)
        say(f"{program.name}: {rate:.0f} requests/s, p99 {point.p99_ns / MS:.1f} ms, {cost_ns / 1000:.0f} us of CPU each")
    run.finish()
    return tuple(points)


def _overloaded(points: Sequence[Point]) -> bool:
    last = points[-OVERLOADED_STEPS:]
    return len(last) == OVERLOADED_STEPS and all(point.saturated or point.p99_ns > CLIP_NS for point in last)


def _step(run: LoadRun, group: Group, rate: float) -> tuple[Point, float]:
    """Hold the load for a step; its point, and the CPU time of a request. Raises SandboxError if nothing is answered."""
    _watch(run, SKIP_S)
    first, before_ns = len(run.windows), group.cpu_ns()
    _watch(run, STEP_S - SKIP_S)
    used_ns, windows = group.cpu_ns() - before_ns, run.windows[first:]
    if not windows or not (whole := merge(windows)).completed:
        raise SandboxError(f"{run.service} answered nothing at {rate:.0f} requests/s: {run.child.log_tail()}")
    saturated = whole.unsent > 0 or whole.oldest_outstanding_ns > CLIP_NS
    return Point(rate, whole.latency_ns(PERCENTILE) or CLIP_NS, saturated), used_ns / whole.completed


def _watch(run: LoadRun, length_s: float) -> None:
    """Read what the generator reports for so long. Raises SandboxError if it ends."""
    end = time.monotonic() + length_s
    while (left := end - time.monotonic()) > 0:
        run.poll()
        if not run.child.running():
            raise SandboxError(f"load generator of {run.service} ended: {run.child.log_tail()}")
        time.sleep(min(0.05, left))
    run.poll()

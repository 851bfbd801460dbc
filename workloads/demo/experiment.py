"""The demo from end to end: calibrate, try each manager, write the results."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.demo import calibration
from workloads.demo.calibration import Scan
from workloads.demo.live import View
from workloads.demo.plan import MEMCACHED, NGINX, PROGRAMS, STRESS, Plan
from workloads.demo.plot import draw
from workloads.demo.preflight import Machine
from workloads.demo.results import outcome, summarise
from workloads.demo.trial import Stage, Trial, play
from workloads.machine import block_device, cpu_model
from workloads.sandbox import Group, Sandbox, SandboxError, living, sweep

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
START_S = 5.0  # about what starting and stopping everything takes for each manager
CALIBRATION_S = 50.0


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    plan: Plan
    results: Path
    recalibrate: bool = False
    cache: Path = CACHE


def expected_s(options: Options, *, cached: bool) -> float:
    """How long the demo takes, about."""
    return len(options.plan.managers) * (options.plan.timeline.length_s + START_S) + (0 if cached else CALIBRATION_S)


def run(machine: Machine, options: Options, view: View) -> dict[str, Any]:
    """Play the demo; the summary, which is also written. Raises SandboxError. Everything made is removed in any case."""
    options.results.mkdir(parents=True, exist_ok=True)
    if alive := living(options.cache):
        raise SandboxError(
            f"another demo is running here ({', '.join(alive)}); two of them cannot manage the same CPU: wait for its end"
        )
    for note in sweep(options.cache, machine.mounts):
        view.say(note)
    os.sched_setaffinity(0, machine.cpus.reserved)
    with Sandbox(cache=options.cache, mounts=machine.mounts, cpus=machine.cpus) as box:
        groups = {program.name: box.group(program.name) for program in PROGRAMS} | {STRESS.name: box.group(STRESS.name)}
        scans = _calibrate(box, groups, options, view)
        view.calibrations = {name: found.calibration for name, found in scans.items()}
        view.managers = options.plan.managers
        trials = _play_all(box, groups, options, view)
        return _write(options, scans, trials)


def _calibrate(box: Sandbox, groups: dict[str, Group], options: Options, view: View) -> dict[str, Scan]:
    key = calibration.cache_key()
    scans = None if options.recalibrate else calibration.load(options.cache, key)
    origin = "measured on an earlier run; --recalibrate measures anew"
    if scans is None:
        view.step("calibrating: each service alone, its load rising until its tail does")
        scans = calibration.measure(box, groups, seed=options.plan.seed, say=view.step)
        calibration.save(options.cache, key, scans)
        origin = "measured just now"
    for name, found in scans.items():
        target, highest = found.calibration.target_ns / 1e6, found.calibration.max_load_rps
        view.say(f"{name}: target p99 {target:.1f} ms, maximum load {highest} requests/s ({origin})")
    return scans


def _play_all(box: Sandbox, groups: dict[str, Group], options: Options, view: View) -> list[Trial]:
    stage = Stage(
        box=box,
        groups=groups,
        plan=options.plan,
        calibrations=dict(view.calibrations),
        device=block_device(ROOT),
        results=options.results,
        watch=view.watch,
    )
    shutil.rmtree(options.results / "raw", ignore_errors=True)
    trials = []
    for manager in options.plan.managers:
        view.step(f"{manager}: starting services, best-effort job, controller and load")
        trial = play(stage, manager)
        trials.append(trial)
        view.say(outcome(options.plan, stage.calibrations, trial))
    return trials


def _write(options: Options, scans: Mapping[str, Scan], trials: list[Trial]) -> dict[str, Any]:
    summary = summarise(options.plan, scans, trials, versions=_versions(), machine=_machine())
    _replace(options.results / "demo.json", lambda path: path.write_text(json.dumps(summary, indent=1) + "\n"))
    targets_ns = {name: found.calibration.target_ns for name, found in scans.items()}
    _replace(options.results / "demo.png", lambda path: draw(trials, targets_ns, path))
    return summary


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".new-{path.name}")
    write(temporary)
    temporary.replace(path)


def _versions() -> dict[str, str]:
    return {MEMCACHED.name: MEMCACHED.version(), NGINX.name: NGINX.version(), STRESS.name: STRESS.version()}


def _machine() -> dict[str, Any]:
    return {"cpu": cpu_model(), "cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}

"""One manager's turn: fresh services, the controller, the load, and what was seen meanwhile."""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parties.model import BEST_EFFORT, IDLE
from workloads.demo.controller import Controller, Message
from workloads.demo.plan import PROGRAMS, STRESS, Calibration, Plan, control_settings
from workloads.intervals import Window
from workloads.load import LoadRun, Totals, preload
from workloads.machine import CpuTimes, cpu_times
from workloads.sandbox import Group, Sandbox, SandboxError
from workloads.services import RunningService, ServiceProgram

SAMPLE_S = 0.5
POLL_S = 0.05
OVERTIME_S = 10.0


@dataclass(frozen=True, slots=True)
class CpuSample:
    """CPU time that each group has used since it was made, at a time of CLOCK_MONOTONIC."""

    at_ns: int
    used_ns: Mapping[str, int]
    managed: CpuTimes  # of the managed CPUs as a whole


@dataclass(slots=True)
class Trial:
    """What one manager's turn came to, before anything is judged."""

    manager: str
    origin_ns: int
    length_ns: int
    windows: dict[str, list[Window]]
    totals: dict[str, Totals]
    cpu: list[CpuSample]
    allocation: list[
        tuple[int, dict[str, int]]
    ]  # time and millicores by holder, as the daemon read them back; empty if it has none
    operations_per_cpu_s: float
    report: Message
    events: list[Message] = field(default_factory=list)
    errors: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what the services complained of


@dataclass(frozen=True, slots=True)
class Progress:
    """What a live view shows."""

    manager: str
    elapsed_s: float
    length_s: float
    latest: Mapping[str, Window]  # of 100 ms
    tick: Message | None


Watcher = Callable[[Progress], None]


@dataclass(slots=True)
class Stage:
    """Where trials take place, and what is the same for all of them."""

    box: Sandbox
    groups: dict[str, Group]
    plan: Plan
    calibrations: dict[str, Calibration]
    device: str | None
    results: Path
    watch: Watcher


def play(stage: Stage, manager: str) -> Trial:
    """Try one manager. Raises SandboxError where something that ought to run does not."""
    services = {program.name: _start(stage, program) for program in PROGRAMS}
    stress = STRESS.start(stage.box, stage.groups[STRESS.name])
    record = stage.box.directory / f"{manager}.record.jsonl"
    controller = Controller(
        stage.box,
        control_settings(
            manager,
            plan=stage.plan,
            box=stage.box,
            groups=stage.groups,
            calibrations=stage.calibrations,
            device=stage.device,
            record=record,
        ),
    )
    controller.wait_started()
    loads = _load(stage, controller.histogram_socket)
    cpu = _follow(stage, manager, loads, controller)
    totals = {name: run.finish() for name, run in loads.items()}
    report = controller.stop()
    figures = STRESS.stop(stage.box, stress)
    for service in services.values():
        service.child.stop()
    _keep(stage, manager, [record, *(run.report for run in loads.values())])
    return Trial(
        manager=manager,
        origin_ns=max(run.windows[0].start_ns for run in loads.values()),
        length_ns=round(stage.plan.timeline.length_s * 1e9),
        windows={name: run.windows for name, run in loads.items()},
        totals=totals,
        cpu=cpu,
        allocation=[(tick["now_ns"], held) for tick in controller.ticks if (held := millicores(tick))],
        operations_per_cpu_s=figures.operations_per_cpu_s,
        report=report,
        events=controller.events,
        errors={name: service.errors() for name, service in services.items()},
    )


def millicores(tick: Mapping[str, Any]) -> dict[str, int]:
    """Who holds how much of the CPU at a tick; empty where cores are not partitioned."""
    held = {name: service["amounts"].get("cores") for name, service in tick["services"].items()}
    held[BEST_EFFORT] = tick["best_effort"]["amounts"].get("cores")
    held[IDLE] = tick["idle"]["amounts"].get("cores", 0)
    if any(held[name] is None for name in tick["services"]):
        return {}
    return {name: amount or 0 for name, amount in held.items()}


def _start(stage: Stage, program: ServiceProgram) -> RunningService:
    service = program.start(stage.box, stage.groups[program.name])
    preload(stage.box, program)
    return service


def _load(stage: Stage, histogram_socket: Path) -> dict[str, LoadRun]:
    profiles = stage.plan.profiles(stage.calibrations)
    return {
        program.name: LoadRun(
            stage.box,
            program,
            profiles[program.name],
            seed=stage.plan.seed + index,  # two services that did not draw the same arrivals
            histogram_socket=histogram_socket,
        )
        for index, program in enumerate(PROGRAMS)
    }


def _follow(stage: Stage, manager: str, loads: dict[str, LoadRun], controller: Controller) -> list[CpuSample]:
    """Watch until the load is over; the CPU time of each group, twice a second."""
    samples: list[CpuSample] = []
    began = time.monotonic()
    length_s = stage.plan.timeline.length_s
    while any(run.child.running() for run in loads.values()):
        now = time.monotonic()
        if now - began > length_s + OVERTIME_S:
            raise SandboxError("the load generators do not end")
        for run in loads.values():
            run.poll()
        controller.poll()
        controller.require_running()
        if now - began >= len(samples) * SAMPLE_S:
            used_ns = {name: group.cpu_ns() for name, group in stage.groups.items()}
            samples.append(CpuSample(time.monotonic_ns(), used_ns, cpu_times(stage.box.cpus.managed)))
            latest = {name: run.windows[-1] for name, run in loads.items() if run.windows}
            tick = controller.ticks[-1] if controller.ticks else None
            stage.watch(Progress(manager, now - began, length_s, latest, tick))
        time.sleep(POLL_S)
    return samples


def _keep(stage: Stage, manager: str, files: list[Path]) -> None:
    """Keep the raw reports and the daemon's record, compressed."""
    raw = stage.results / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for file in files:
        name = file.name if file.name.startswith(manager) else f"{manager}.{file.name}"
        with file.open("rb") as source, gzip.open(raw / f"{name}.gz", "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)

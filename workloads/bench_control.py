"""What the controller costs: ``python -m workloads.bench_control``, part of ``make bench``.

The real control process manages six services and a best-effort job, all asleep in control groups of the bench's own, and is told
latencies by a seeded script that makes it move something in most ticks. All six resources are managed on whole cores of a machine
that is in part made of files (``workloads.bench_machine``); one more run has only what this machine has. Ticks follow each other
ten times as fast as usual, so that 2,000 of them take 100 s; every other time constant is shortened alike, so that a tick sees what
it would see at 500 ms. A short run at 500 ms stands beside it, as caches are colder there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import GroupLayerV1
from parties.settings import (
    MS,
    BestEffortSettings,
    CacheSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    DiskSettings,
    FrequencySettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
    PartiesSettings,
    ServiceSettings,
    SignalSettings,
)
from workloads.bench_feed import WINDOWS_PER_INTERVAL, Feed
from workloads.bench_knobs import KnobCost, cpu_set_cost, file_costs, group_costs, network_costs
from workloads.bench_machine import CPUS, FileMachine, holders, in_memory
from workloads.bench_parts import parts_table
from workloads.demo.controller import Controller
from workloads.machine import CONTROLLERS, CpuPlan, block_device, cgroup_mounts, cpu_model, cpu_plan
from workloads.sandbox import Sandbox, SandboxError, sweep, wait_for

EXIT_OK, EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 0, 1, 2, 130
VERSION = 2
CACHE = Path(__file__).parents[1] / ".cache"  # with the demo, so that each cleans up after the other
USUAL_INTERVAL_MS = 500
FAST_INTERVAL_MS = 50
TARGET_NS = 10 * MS
GBIT = 1_000_000_000
MIB = 1 << 20

GOAL_FRACTION_OF_CORE = 0.005
GOAL_TICK_P99_MS = 2.0
GOAL_RSS_MB = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of the control process. ``cpu_fraction_of_core`` is as measured, at the run's own interval."""

    resources: str
    interval_ms: int
    ticks: int
    missed_ticks: int
    windows: int
    moves: dict[str, int]
    ticks_with_moves: int
    refused: int
    reverts: int
    tick_cpu_p50_ms: float
    tick_cpu_p99_ms: float
    tick_cpu_max_ms: float
    cpu_per_window_ms: float
    cpu_per_interval_ms: float
    cpu_fraction_of_core: float
    lateness_p50_ms: float
    lateness_p99_ms: float
    rss_mb: float

    @classmethod
    def of(cls, report: dict[str, Any], ticks: Sequence[dict[str, Any]], interval_ms: int) -> Figures:
        """From the control process's own report and its messages."""
        windows = report["counters"]["windows"]
        names = ["ticks", "missed_ticks", "refused", "reverts", "tick_cpu_p50_ms", "tick_cpu_p99_ms", "tick_cpu_max_ms"]
        names += ["cpu_fraction_of_core", "lateness_p50_ms", "lateness_p99_ms", "rss_mb"]
        per_window = (report["cpu_ms"] - report["tick_cpu_total_ms"]) / max(1, windows)
        per_tick = report["tick_cpu_total_ms"] / max(1, report["ticks"])
        # Windows per interval, not per tick: one that was missed had its windows too.
        intervals = max(1, report["ticks"] + report["missed_ticks"])
        amounts = next(iter(ticks[-1]["services"].values()))["amounts"]
        return cls(
            resources=", ".join(amounts),
            interval_ms=interval_ms,
            windows=windows,
            moves={name: count for name, count in report["moves"].items() if count},
            ticks_with_moves=sum(bool(tick["moves"]) for tick in ticks),
            cpu_per_window_ms=round(per_window, 4),
            cpu_per_interval_ms=round(per_tick + per_window * windows / intervals, 4),
            **{name: report[name] for name in names},
        )

    @property
    def fraction_at_500ms(self) -> float:
        """The part of a core that two such intervals in a second come to."""
        return self.cpu_per_interval_ms / USUAL_INTERVAL_MS

    def goals(self) -> dict[str, bool]:
        """Which of the design's goals were reached."""
        return {
            "cpu_fraction_of_core": self.fraction_at_500ms < GOAL_FRACTION_OF_CORE,
            "tick_cpu_p99_ms": self.tick_cpu_p99_ms < GOAL_TICK_P99_MS,
            "rss_mb": self.rss_mb < GOAL_RSS_MB,
        }

    def as_json(self) -> dict[str, object]:
        """By field name, with what follows from them."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "fraction_at_500ms": round(self.fraction_at_500ms, 6), "goals": self.goals()}


def settings_for(box: Sandbox, groups: Sequence[str], disk: str | None, interval_ms: int, directory: Path) -> ControlSettings:
    """Every resource that this machine has; time constants in proportion to the interval. The last group is best-effort."""
    usual, usual_signal = PartiesSettings(), SignalSettings()

    def shortened(usual_ns: int) -> int:
        return usual_ns * interval_ms // USUAL_INTERVAL_MS

    services = groups[:-1]
    return ControlSettings(
        services=tuple(
            ServiceSettings(Path(path).name, TARGET_NS, (path,), ports=(20_000 + number,)) for number, path in enumerate(services)
        ),
        best_effort=(BestEffortSettings("job", (groups[-1],)),),
        node=NodeSettings(
            cores=CoreSettings(box.cpus.reserved, box.cpus.managed, CoreDivision.FRACTIONS),
            memory=MemorySettings(4096 * MIB, 128 * MIB),
            disk=DiskSettings(disk, 2000 * MIB) if disk is not None else None,
            network=NetworkSettings(box.server_device, 10 * GBIT, box.server_namespace),
        ),
        interval_ns=interval_ms * MS,
        parties=PartiesSettings(
            downsize_block_ns=shortened(usual.downsize_block_ns), migrate_after_ns=shortened(usual.migrate_after_ns)
        ),
        signal=SignalSettings(
            longest_window_ns=shortened(usual_signal.longest_window_ns), stale_after_ns=shortened(usual_signal.stale_after_ns)
        ),
        runtime_directory=str(directory / "run"),
        state_directory=str(directory / "state"),
    )


def with_all_resources(settings: ControlSettings, machine: FileMachine) -> ControlSettings:
    """Whole cores, ways and frequency as well, on the machine that is made of files."""
    node = dataclasses.replace(
        settings.node,
        cores=CoreSettings((0,), tuple(range(1, CPUS))),
        cache=CacheSettings(mount=str(machine.resctrl)),
        frequency=FrequencySettings(),
    )
    return dataclasses.replace(settings, node=node, controllers={"cpuset": str(machine.cpuset)})


class Bench:
    """A sandbox with sleeping services in which control processes are run one after the other."""

    def __init__(self, box: Sandbox, *, services: int, seed: int) -> None:
        self._box = box
        self._seed = seed
        self._disk = block_device(Path("/"))
        self._runs = 0
        self._program: tuple[str, ...] = ()
        self._names = [f"service{number}" for number in range(services)]
        groups = [box.group(name) for name in (*self._names, "job")]
        self._paths = [group.path for group in groups]
        for name, group in zip((*self._names, "job"), groups, strict=True):
            child = box.spawn(name, ["sleep", "infinity"], group=group)
            wait_for(lambda group=group: group.read("cpu", "cgroup.procs") != "", f"{name} to be in its group", [child])  # type: ignore[misc]

    def run(self, interval_ms: int, ticks: int, *, all_resources: bool, parts: Path | None = None) -> Figures:
        """Have the control process hold so many ticks. Raises SandboxError if it ends before that.

        ``parts`` is a file for the CPU time of each part of each tick.
        """
        self._program = ("parties.control",) if parts is None else ("workloads.bench_parts", str(parts))
        with tempfile.TemporaryDirectory(prefix="parties-bench-", dir=in_memory()) as runtime:
            if not all_resources:
                return self._run(interval_ms, ticks, runtime, None)
            with FileMachine(holders(self._names, self._paths)) as machine:
                return self._run(interval_ms, ticks, runtime, machine)

    def _run(self, interval_ms: int, ticks: int, runtime: str, machine: FileMachine | None) -> Figures:
        self._runs += 1
        directory = self._box.directory / f"run{self._runs}"
        directory.mkdir()
        settings = settings_for(self._box, self._paths, self._disk, interval_ms, directory)
        settings = dataclasses.replace(settings, runtime_directory=runtime)
        if machine is not None:
            settings = with_all_resources(settings, machine)
        controller = Controller(self._box, settings, machine.wrapper if machine is not None else (), self._program)
        controller.wait_started()
        window_ns = settings.interval_ns // WINDOWS_PER_INTERVAL
        with Feed(
            controller.histogram_socket, self._names, target_ns=TARGET_NS, window_ns=window_ns, seed=self._seed + self._runs
        ) as feed:
            while len(controller.ticks) < ticks:
                feed.next_window()
                controller.poll()
                controller.require_running()
        return Figures.of(controller.stop(), controller.ticks, interval_ms)

    def knobs(self) -> list[KnobCost]:
        """What each kind of knob costs to write and to read."""
        group = GroupLayerV1(Hierarchies.find()).group(self._paths[0])
        costs = list(group_costs(group, self._disk))
        with self._box.all_cpus():
            costs.append(cpu_set_cost(group, sorted(os.sched_getaffinity(0))))
        group.close()
        costs += network_costs(self._box.server_device, self._box.server_namespace)
        with FileMachine(holders(self._names, self._paths)) as machine:
            return [*costs, *file_costs(machine)]


def table(runs: Sequence[Figures]) -> str:
    """The runs side by side, one figure in each line."""
    rows: list[tuple[str, list[str]]] = [
        ("resources", [str(run.resources.count(",") + 1) for run in runs]),
        ("interval", [f"{run.interval_ms} ms" for run in runs]),
        ("ticks", [f"{run.ticks} ({run.missed_ticks} missed)" for run in runs]),
        ("windows per interval", [f"{run.windows / max(1, run.ticks + run.missed_ticks):.1f}" for run in runs]),
        ("moves (ticks with any)", [f"{sum(run.moves.values())} ({run.ticks_with_moves})" for run in runs]),
        ("tick CPU p50", [f"{run.tick_cpu_p50_ms:.2f} ms" for run in runs]),
        (f"tick CPU p99 (goal: under {GOAL_TICK_P99_MS} ms)", [f"{run.tick_cpu_p99_ms:.2f} ms" for run in runs]),
        ("tick CPU max", [f"{run.tick_cpu_max_ms:.2f} ms" for run in runs]),
        ("CPU per window taken in", [f"{1000 * run.cpu_per_window_ms:.0f} us" for run in runs]),
        ("CPU per interval, all in all", [f"{run.cpu_per_interval_ms:.2f} ms" for run in runs]),
        (f"of a core at 500 ms (goal: under {GOAL_FRACTION_OF_CORE:.1%})", [f"{run.fraction_at_500ms:.2%}" for run in runs]),
        (f"resident, at most (goal: under {GOAL_RSS_MB:.0f} MB)", [f"{run.rss_mb:.1f} MB" for run in runs]),
        ("lateness p50", [f"{run.lateness_p50_ms:.2f} ms" for run in runs]),
        ("lateness p99", [f"{run.lateness_p99_ms:.2f} ms" for run in runs]),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  " + "  ".join(f"{cell:>16}" for cell in cells) for name, cells in rows)


def knob_table(costs: Sequence[KnobCost]) -> str:
    """One kind of knob in each line, times in us."""
    times_of = [(what, part) for what in ("write", "read", "both") for part in ("p50", "p99")]
    lines = [f"{'knob, wall-clock us':<38}  " + "  ".join(f"{f'{what} {part}':>10}" for what, part in times_of)]
    for cost in costs:
        times = [getattr(cost, f"{what}_{part}_ns") for what, part in times_of]
        lines.append(f"{f'{cost.kind} ({cost.on})':<38}  " + "  ".join(f"{time_ns / 1000:>10.1f}" for time_ns in times))
    return "\n".join(lines)


def missing() -> tuple[str, ...]:
    """What this machine lacks for the bench, one message for each thing, with what to do."""
    messages = []
    if os.geteuid() != 0:
        messages.append("not root: control groups and network namespaces need it; run it with sudo")
    mounts = cgroup_mounts()
    if absent := [name for name in CONTROLLERS if name not in mounts]:
        messages.append(f"no control groups (version 1) for {', '.join(absent)}: the controller has nothing to write; mount them")
    if cpu_plan() is None:
        messages.append("fewer than two physical cores that this process may use: one is for the controller, one is managed")
    return tuple(messages)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workloads.bench_control", description="Measures what the controller costs.")
    parser.add_argument("--ticks", type=int, default=2000, help=f"of {FAST_INTERVAL_MS} ms (default: %(default)s)")
    parser.add_argument("--usual-ticks", type=int, default=60, help=f"of {USUAL_INTERVAL_MS} ms (default: %(default)s; 0: none)")
    parser.add_argument(
        "--here-ticks", type=int, default=400, help="with this machine's resources alone (default: %(default)s; 0: none)"
    )
    parser.add_argument("--parts", type=int, default=0, metavar="TICKS", help="more, with a clock around each part (default: 0)")
    parser.add_argument("--services", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of latencies and moves (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    chosen = parser.parse_args(argv)
    if chosen.ticks < 1 or chosen.services < 1 or min(chosen.usual_ticks, chosen.here_ticks, chosen.parts) < 0:
        parser.error("--ticks and --services must be at least 1, --usual-ticks, --here-ticks and --parts at least 0")
    return chosen


def _machine(cpus: CpuPlan) -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "controller_cpus": list(cpus.reserved),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
    }


def _measure(chosen: argparse.Namespace, cpus: CpuPlan) -> dict[str, object]:
    mounts = cgroup_mounts()
    for note in sweep(CACHE, mounts):
        print(f"bench: {note}", file=sys.stderr)
    machine = _machine(cpus)
    plan = [(FAST_INTERVAL_MS, chosen.ticks, True), (USUAL_INTERVAL_MS, chosen.usual_ticks, True)]
    plan = [run for run in [*plan, (FAST_INTERVAL_MS, chosen.here_ticks, False)] if run[1]]
    seconds = sum(interval_ms * ticks for interval_ms, ticks, _ in plan) / 1000
    print(f"bench: {chosen.services} services, about {seconds:.0f} s; Ctrl-C leaves nothing behind", file=sys.stderr)
    with Sandbox(cache=CACHE, mounts=mounts, cpus=cpus) as box:
        bench = Bench(box, services=chosen.services, seed=chosen.seed)
        costs = bench.knobs()
        runs = [bench.run(interval_ms, ticks, all_resources=everything) for interval_ms, ticks, everything in plan]
        parts = _parts(bench, chosen.parts, box.directory / "parts.json") if chosen.parts else ""
    print(table(runs), knob_table(costs), *filter(None, (parts,)), sep="\n\n")
    short = [name for name, reached in runs[0].goals().items() if not reached]
    print(f"\ngoals not reached: {', '.join(short)}" if short else "\ngoals reached")
    return {
        "version": VERSION,
        "sandbox": box.run,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", "-m", "workloads.bench_control", *sys.argv[1:]]),
        "machine": machine,
        "services": chosen.services,
        "seed": chosen.seed,
        "runs": [run.as_json() for run in runs],
        "knobs": [cost.as_json() for cost in costs],
    }


def _parts(bench: Bench, ticks: int, file: Path) -> str:
    """Where the time of a tick goes, from a run of its own, as the clocks add to it."""
    bench.run(FAST_INTERVAL_MS, ticks, all_resources=True, parts=file)
    return parts_table(json.loads(file.read_text(encoding="ascii")))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; the exit code."""
    chosen = _arguments(argv)
    cpus = cpu_plan()
    if problems := missing():
        for problem in problems:
            print(f"bench: {problem}", file=sys.stderr)
        return EXIT_MISTAKE
    assert cpus is not None  # noqa: S101 - else it were among the problems
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    try:
        result = _measure(chosen, cpus)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (SandboxError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

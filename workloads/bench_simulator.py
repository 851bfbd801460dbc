"""How fast the simulated node is: ``python -m workloads.bench_simulator``, part of ``make bench``.

Six services and a best-effort job under PARTIES, every part of the signal on. First undisturbed, best of a few runs: simulated
seconds per second of CPU time of one core. Then once more with a clock around each part, which adds to it, to tell where a tick's
time goes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulator.library import job_model, node_profile
from simulator.load_profile import LoadProfile
from simulator.run import Simulation
from simulator.scenario import DEFAULT_JOB, DEFAULT_NODE, Scenario, Tenant, tenant_model
from workloads.machine import cpu_model

VERSION = 1
GOAL_S_PER_S = 5_000
LEAST_S_PER_S = 2_000
LOADS = {"memcached": 0.2, "xapian": 0.2, "nginx": 0.2, "moses": 0.1, "mongodb": 0.3, "sphinx": 0.1}
RUNS = 3


def scenario(duration_s: float, seed: int) -> Scenario:
    """The mix: each service at a load of its own, so that something is moved in most ticks."""
    tenants = {name: Tenant(tenant_model(name), LoadProfile.steady(load)) for name, load in LOADS.items()}
    return Scenario(node_profile(DEFAULT_NODE), tenants, job_model(DEFAULT_JOB), duration_s, seed)


def cpu_seconds(run: Callable[[], object]) -> float:
    """What a call costs in CPU time of this process."""
    before_s = time.process_time()
    run()
    return time.process_time() - before_s


class Clock:
    """Adds up what is spent in some calls."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}

    def around(self, owner: object, method: str, part: str) -> None:
        """Time a method of an object from now on."""
        call = getattr(owner, method)
        self.spent_s.setdefault(part, 0.0)
        spent_s = self.spent_s

        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes and gives
            before_s = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                spent_s[part] += time.process_time() - before_s

        setattr(owner, method, timed)


def parts_of_a_tick(run: Scenario) -> dict[str, float]:
    """CPU time of a tick by part, in microseconds, in a run with clocks."""
    simulation = Simulation(run)
    simulated, clock = simulation.platform, Clock()
    clock.around(simulated._machine, "outlook", "model")  # noqa: SLF001 - a bench looks inside
    clock.around(simulated._clients, "advance", "traffic")  # noqa: SLF001 - the same
    clock.around(simulated, "wait_until", "wait")
    clock.around(simulated._signal, "views", "signal")  # noqa: SLF001 - the same
    clock.around(simulated, "observe", "observe")
    clock.around(simulation.policy, "decide", "policy")
    clock.around(simulated, "apply", "moves")
    clock.around(simulation.measures, "tick", "measures")
    began_s = time.process_time()
    result = simulation.run()
    total_s = time.process_time() - began_s
    spent = dict(clock.spent_s)
    # Who contains whom: waiting asks the model and the clients and feeds the signal, observing asks the signal for its views.
    spent["signal"] += (feed_s := spent.pop("wait") - spent["model"] - spent["traffic"])
    observe_s = spent.pop("observe") - (spent["signal"] - feed_s)
    spent["observe"] = observe_s
    spent["loop"] = total_s - sum(spent.values())
    return {part: round(seconds / result.intervals * 1e6, 1) for part, seconds in spent.items()}


def bench(duration_s: float, seed: int) -> dict[str, Any]:
    """All figures."""
    run = scenario(duration_s, seed)
    Simulation(dataclasses.replace(run, duration_s=10.0)).run()  # imports, tables, and what is kept between runs
    spent_s = [cpu_seconds(Simulation(run).run) for _ in range(RUNS)]
    lean_s = [cpu_seconds(Simulation(run, latencies=False).run) for _ in range(RUNS)]
    ticks = duration_s * 2
    return {
        "version": VERSION,
        "machine": {"cpu": cpu_model(), "cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "simulated_s": duration_s,
        "services": len(LOADS),
        "goal_s_per_s": GOAL_S_PER_S,
        "least_s_per_s": LEAST_S_PER_S,
        "s_per_s": round(duration_s / min(spent_s)),
        "s_per_s_of_each_run": [round(duration_s / spent) for spent in spent_s],
        "s_per_s_without_latency_series": round(duration_s / min(lean_s)),
        "us_per_tick": round(min(spent_s) / ticks * 1e6, 1),
        "us_per_tick_by_part": parts_of_a_tick(run),
    }


def show(figures: dict[str, Any]) -> str:
    """The figures for a person."""
    parts = ", ".join(f"{part} {spent:g}" for part, spent in figures["us_per_tick_by_part"].items())
    return (
        f"simulator: {figures['s_per_s']:,} simulated seconds per second of one core with {figures['services']} services "
        f"(goal {figures['goal_s_per_s']:,}, at least {figures['least_s_per_s']:,}); "
        f"{figures['s_per_s_without_latency_series']:,} without the series of latencies\n"
        f"  {figures['us_per_tick']:g} us per tick; with clocks, by part: {parts}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workloads.bench_simulator", description="Measure the simulated node's speed.")
    parser.add_argument("--duration", type=float, default=300.0, help="simulated seconds of each run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    figures = bench(options.duration, options.seed)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(show(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

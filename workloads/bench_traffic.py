"""What the clients of the simulated node cost in a tick: ``python -m workloads.bench_traffic``.

The mix of ``workloads.bench_simulator``, in three ways: *steady*, where nothing changes; *changing*, where conditions are those of
a run under PARTIES, with a move in most ticks; and *starved*, the same with two services short of cores, so that they have a
backlog in every tick. CPU time in microseconds, best of a few runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from monitors.histogram_message import Window
from simulator.arrivals import Streams
from simulator.conditions import Conditions
from simulator.run import Simulation
from simulator.traffic import TrafficSet
from workloads.bench_simulator import scenario

RUNS: Final = 5
STARVED: Final = ("xapian", "nginx")
CAPACITY: Final = 0.97  # of a starved service, over its load

Seen = list[Mapping[str, Conditions]]


def conditions_of_a_run(duration_s: float, seed: int) -> Seen:
    """What the services meet in each interval under PARTIES."""
    simulation = Simulation(scenario(duration_s, seed))
    simulated = simulation.platform
    advance = simulated._clients.advance  # noqa: SLF001 - a bench looks inside
    seen: Seen = []

    def noting(conditions: Mapping[str, Conditions], start_ns: int, end_ns: int) -> Sequence[Window]:
        seen.append(conditions)
        return advance(conditions, start_ns, end_ns)

    setattr(simulated._clients, "advance", noting)  # noqa: B010, SLF001 - the same
    simulation.run()
    return seen


def starved(seen: Seen, loads_rps: Mapping[str, float]) -> Seen:
    """The same with too few cores for ``STARVED``."""
    changed: Seen = []
    for conditions in seen:
        short = {}
        for name in STARVED:
            cores, *others = conditions[name].stations
            fewer = cores._replace(servers=CAPACITY * loads_rps[name] * cores.service_s)
            short[name] = conditions[name]._replace(stations=(fewer, *others))
        changed.append({**conditions, **short})
    return changed


def us_per_tick(seen: Seen, clients: TrafficSet, interval_ns: int) -> float:
    """CPU time of a tick in microseconds."""
    before_s = time.process_time()
    for tick, conditions in enumerate(seen):
        clients.advance(conditions, tick * interval_ns, (tick + 1) * interval_ns)
    return (time.process_time() - before_s) / len(seen) * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workloads.bench_traffic", description="Measure the simulated clients' speed.")
    parser.add_argument("--duration", type=float, default=300.0, help="simulated seconds of each run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    run = scenario(options.duration, options.seed)
    interval_ns = Simulation(run).interval_ns
    tenants = {name: (tenant.model, tenant.load) for name, tenant in run.tenants.items()}
    changing = conditions_of_a_run(options.duration, options.seed)
    loads_rps = TrafficSet(tenants, Streams(options.seed), interval_ns).offered_rps()
    cases = {"steady": [changing[-1]] * len(changing), "changing": changing, "starved": starved(changing, loads_rps)}
    for name, seen in cases.items():
        spent = [us_per_tick(seen, TrafficSet(tenants, Streams(options.seed), interval_ns), interval_ns) for _ in range(RUNS)]
        print(f"{name:>8}: {min(spent):.0f} us per tick")
    return 0


if __name__ == "__main__":
    sys.exit(main())

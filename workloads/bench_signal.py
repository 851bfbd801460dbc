"""What judging and deciding cost by themselves, by the size of the windows: ``python -m workloads.bench_signal``.

In one process and without a kernel: windows of six services are fed to the signal, the signal is asked for its views, PARTIES
decides on them. That is a part of what ``workloads.bench_control`` and ``workloads.bench_simulator`` measure, here by itself for
whoever works on it. CPU time of this thread, the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.histogram import Histogram
from parties.membership import Membership
from parties.model import LatencyView, Node, Observation, Partition, QosTarget, Service, ServiceObservation, Usage
from parties.policies.parties import Parties
from parties.settings import PartiesSettings, SignalSettings
from simulator.library import node_profile
from workloads.bench_feed import Level, histogram
from workloads.machine import cpu_model

VERSION = 1
NODE = "e5-2699v4"
INTERVAL_NS = 500_000_000
PARTS = 5
TARGET_NS = 10_000_000
BUCKETS = (8, 37, 150)  # as a simulated client, one with steady and one with spread latencies report
VARIANTS = 40  # of the histograms of each level
SAMPLES = 1000  # in a window


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of one interval in us."""

    buckets: int
    make_us: float  # windows of histograms that are there
    feed_us: float
    views_us: float
    decide_us: float

    @property
    def sum_us(self) -> float:
        """All of it."""
        return self.make_us + self.feed_us + self.views_us + self.decide_us


def thinned(full: Histogram, buckets: int) -> Histogram:
    """A histogram of fewer buckets, as a simulated client reports it: the largest stay as they are, the rest is put together."""
    indexes, counts = full.columns()
    first = max(0, len(indexes) - buckets)
    rest = sum(counts[:first])
    kept = list(counts[first:])
    kept[0] += rest
    return Histogram.of_buckets(list(indexes[first:]), kept)


class Round:
    """One run over so many intervals, from a fresh start and the same seed."""

    def __init__(self, node: Node, services: Sequence[Service], histograms: dict[Level, list[Histogram]], seed: int) -> None:
        self._services = services
        self._histograms = histograms
        self._rng = random.Random(seed)  # noqa: S311 - a run has to repeat
        self._signal = Signal({service.name: service.target for service in services}, SignalSettings(), INTERVAL_NS)
        self._membership = Membership(node, services, grace_ns=PARTS * INTERVAL_NS)
        self._policy = Parties(node, services, best_effort=True, settings=PartiesSettings(), rng=random.Random(seed))  # noqa: S311
        self._partition = self._policy.initial()
        self._sequence = 0

    def hold(self, tick: int) -> tuple[int, int, int, int]:
        """One interval; the CPU time of its four parts in ns."""
        levels = [Level.VIOLATING, *[Level.RELAXED] * 2, *[Level.CONTENT] * len(self._services)]
        reports = [
            (service.name, tick * INTERVAL_NS + (part + 1) * INTERVAL_NS // PARTS, self._rng.choice(self._histograms[level]))
            for service, level in zip(self._services, levels, strict=False)
            for part in range(PARTS)
        ]
        now_ns = (tick + 1) * INTERVAL_NS + INTERVAL_NS // 50
        start = time.thread_time_ns()
        windows = [self._window(*report) for report in reports]
        made = time.thread_time_ns()
        for window in windows:
            self._signal.feed(window)
        fed = time.thread_time_ns()
        views = self._signal.views(now_ns)
        seen = time.thread_time_ns()
        self._partition = self._decided(Observation(now_ns, tick, self._observed(views), self._partition))
        return made - start, fed - made, seen - fed, time.thread_time_ns() - seen

    def _window(self, service: str, end_ns: int, made: Histogram) -> Window:
        self._sequence += 1
        count = made.count
        return Window(
            service, "bench", self._sequence, end_ns - INTERVAL_NS // PARTS, end_ns, count, count, count, 0, 0, 0, 0, made
        )

    def _observed(self, views: dict[str, LatencyView]) -> dict[str, ServiceObservation]:
        return {name: ServiceObservation(view, Usage(), in_memory=True) for name, view in views.items()}

    def _decided(self, observation: Observation) -> Partition:
        if self._membership.decide(observation) is not None:
            raise RuntimeError("no service of the bench ever leaves")
        return self._partition.after(self._policy.decide(observation).moves)


def measure(buckets: int, *, services: int, ticks: int, rounds: int, seed: int) -> Cost:
    """What windows of so many buckets cost, at most as many as a thousand samples fill."""
    node = node_profile(NODE).node()
    tenants = [Service(f"service{number}", QosTarget(TARGET_NS)) for number in range(services)]
    rng = random.Random(seed)  # noqa: S311 - as above
    made = {
        level: [thinned(histogram(round(level.value * TARGET_NS), rng, SAMPLES), buckets) for _ in range(VARIANTS)]
        for level in Level
    }
    sums = []
    for number in range(rounds):
        run = Round(node, tenants, made, seed + number)
        parts = [run.hold(tick) for tick in range(ticks)]
        sums.append([sum(part) / ticks / 1000 for part in zip(*parts, strict=True)])
    return Cost(buckets, *[round(median(part), 1) for part in zip(*sums, strict=True)])


def table(costs: Sequence[Cost]) -> str:
    """One size of window in each line."""
    names = ("make", "feed", "views", "decide", "sum")
    lines = ["CPU time of an interval, us".ljust(28) + "".join(f"{name:>9}" for name in names)]
    for cost in costs:
        figures = (cost.make_us, cost.feed_us, cost.views_us, cost.decide_us, cost.sum_us)
        lines.append(f"windows of {cost.buckets} buckets".ljust(28) + "".join(f"{figure:>9.1f}" for figure in figures))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m workloads.bench_signal", description="Measures what signal and policy cost.")
    parser.add_argument("--services", type=int, default=6, help="(default: %(default)s)")
    parser.add_argument("--ticks", type=int, default=400, help="in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    chosen = parser.parse_args(argv)
    if min(chosen.services, chosen.ticks, chosen.rounds) < 1:
        parser.error("--services, --ticks and --rounds must be at least 1")
    size = {"services": chosen.services, "ticks": chosen.ticks, "rounds": chosen.rounds, "seed": chosen.seed}
    costs = [measure(buckets, **size) for buckets in BUCKETS]
    print(table(costs))
    if chosen.json is not None:
        machine = {"cpu": cpu_model(), "python": platform.python_version()}
        result = {"version": VERSION, "machine": machine, **size, "costs": [asdict(cost) for cost in costs]}
        chosen.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a run was: moves, reverts, and the controller's own cost (section 5.4 of the paper: 15 % of a core)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from parties.loop import Timings
from parties.model import Decision, MoveStatus, Observation, Reason, Resource
from parties.record import Timing

MS = 1_000_000


def percentile(values: Sequence[int], percent: float) -> int:
    """The smallest value that at least ``percent`` of all are not above; 0 of none."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)] if ordered else 0


def resident_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The largest resident set that this process has had."""
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class RunReport:
    """Counts what happens tick by tick; a listener of the loop."""

    def __init__(self) -> None:
        self._moves: Counter[str] = Counter({resource.value: 0 for resource in Resource})
        self._refused = 0
        self._reverts = 0
        self._migrations = 0
        self.begin()

    def begin(self) -> None:
        """The loop begins now: what the start cost is not the controller's running cost."""
        self._started_ns = time.monotonic_ns()
        self._cpu_at_start_ns = time.process_time_ns()

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Take in one tick."""
        del timing
        for move in decision.moves:
            self._moves[move.pool.resource.value] += 1
            self._reverts += move.reason is Reason.DOWNSIZE_REVERTED
        self._refused += sum(outcome.status is MoveStatus.REFUSED for outcome in observation.outcomes)
        self._migrations += decision.migration is not None

    def as_json(self, timings: Timings) -> dict[str, object]:
        """The report with integer or plain fields, units in their names."""
        elapsed_ns = max(1, time.monotonic_ns() - self._started_ns)
        cpu_ns = time.process_time_ns() - self._cpu_at_start_ns
        return {
            "ticks": timings.ticks,
            "missed_ticks": timings.missed,
            "moves": dict(self._moves),
            "refused": self._refused,
            "reverts": self._reverts,
            "migrations": self._migrations,
            "cpu_fraction_of_core": round(cpu_ns / elapsed_ns, 6),
            "cpu_ms": round(cpu_ns / MS, 3),
            "tick_cpu_total_ms": round(sum(timings.cpu_ns) / MS, 3),
            "tick_cpu_p50_ms": round(percentile(timings.cpu_ns, 50) / MS, 3),
            "tick_cpu_p99_ms": round(percentile(timings.cpu_ns, 99) / MS, 3),
            "tick_cpu_max_ms": round(max(timings.cpu_ns, default=0) / MS, 3),
            "lateness_p50_ms": round(percentile(timings.lateness_ns, 50) / MS, 3),
            "lateness_p99_ms": round(percentile(timings.lateness_ns, 99) / MS, 3),
            "rss_mb": round(resident_bytes() / 1e6, 1),
        }

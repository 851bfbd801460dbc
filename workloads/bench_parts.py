"""Where a tick goes: the control process with a clock around each of its parts, for ``bench_control --parts``.

Started as ``python -m workloads.bench_parts FILE`` with the control process's own arguments after it; at the end FILE has the CPU
times. The clocks cost about 1 us for each part, and a part is what it calls as well.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parties import control
from parties.enforcer import Enforcer
from parties.front import FrontFeed
from parties.host import HostPlatform
from parties.loop import Loop
from parties.record import RecordWriter
from parties.report import percentile
from parties.resume import InForceFile

WARMING_UP = 20  # ticks of which the times are left out
Times = dict[str, list[int]]
PARTS: Mapping[str, tuple[type, str]] = {
    "upkeep": (HostPlatform, "_tend"),
    "drift": (Enforcer, "drift"),
    "use": (HostPlatform, "_use"),
    "signal": (HostPlatform, "_views"),
    "deciding": (Loop, "_decide"),
    "moving": (HostPlatform, "apply"),
    "record": (RecordWriter, "tick"),
    "in force": (InForceFile, "tick"),
    "front": (FrontFeed, "tick"),
    "whole tick": (Loop, "_tick"),
}


def clock(times: Times) -> None:
    """Put a clock around each part, in this process."""
    for name, (kind, method) in PARTS.items():
        setattr(kind, method, _clocked(getattr(kind, method), times.setdefault(name, [])))


def _clocked(call: Any, times: list[int]) -> Any:  # noqa: ANN401 - whatever the part takes and gives
    now_ns = time.thread_time_ns

    def clocked(*arguments: object) -> object:
        begun_ns = now_ns()
        try:
            return call(*arguments)
        finally:
            times.append(now_ns() - begun_ns)

    return clocked


def parts_table(times: Times) -> str:
    """One part in each line. A part that nothing happens in (moving, without a move) does not count there."""
    lines = [f"{'part of a tick, CPU time in ms':<30}  {'p50':>8}  {'p99':>8}  {'ticks':>6}"]
    for name, all_ns in times.items():
        ns = all_ns[WARMING_UP:] or all_ns
        lines.append(f"{name:<30}  {percentile(ns, 50) / 1e6:>8.2f}  {percentile(ns, 99) / 1e6:>8.2f}  {len(ns):>6}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the control process; its exit code."""
    file, *arguments = sys.argv[1:] if argv is None else argv
    times: Times = {}
    clock(times)
    try:
        return control.main(arguments)
    finally:
        Path(file).write_text(json.dumps(times), encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())

"""The machine as a whole."""

from __future__ import annotations

import json

import psutil

from monitors.machine import MachineMonitor


def test_a_sample_tells_every_cpu_and_the_memory_in_json() -> None:
    """One figure for each CPU between 0 and 100, memory that is there, and nothing that JSON cannot carry."""
    sample = json.loads(json.dumps(MachineMonitor().sample()))
    assert len(sample["cpu_percent"]) == psutil.cpu_count()
    assert all(0 <= percent <= 100 for percent in sample["cpu_percent"])
    assert 0 < sample["memory_available_bytes"] <= sample["memory_total_bytes"]

"""The machine as a whole, from psutil: what its control groups do not tell.

For the front, not for the control process: a managed CPU's load is the services' business, but a reserved one that is full makes
the controller late and every client slow, and an operator should see it.
"""

from __future__ import annotations

from collections.abc import Mapping

import psutil


class MachineMonitor:
    """Load of every CPU and memory left, in fields that JSON can carry."""

    def __init__(self) -> None:
        psutil.cpu_percent(percpu=True)  # the first call has nothing to compare with

    def sample(self) -> Mapping[str, object]:
        """``cpu_percent`` of each CPU since the last call, in the order of their numbers; memory in bytes."""
        memory = psutil.virtual_memory()
        return {
            "cpu_percent": psutil.cpu_percent(percpu=True),
            "memory_available_bytes": memory.available,
            "memory_total_bytes": memory.total,
        }

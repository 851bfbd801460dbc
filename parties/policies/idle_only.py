"""Idle-only: best-effort jobs in the idle scheduling class, and nothing else. What one kernel setting is worth on its own."""

from __future__ import annotations

from parties.policies.unmanaged import Unmanaged


class IdleOnly(Unmanaged):
    """Unmanaged but for the idle class of best-effort jobs."""

    name = "idle-only"
    best_effort_idle_class = True

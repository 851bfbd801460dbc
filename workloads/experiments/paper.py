"""The paper's figures beside ours: what is compared, how far apart is far, and why where it is known.

The reasons are data (``reasons.toml``): one line each, by experiment and key, written down after a run was looked into.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from workloads.experiments.experiment import Summary

REASONS = Path(__file__).with_name("reasons.toml")
NOT_LOOKED_INTO = "not looked into yet"


def compare(  # noqa: PLR0913 - the columns of a table, by name
    key: str, what: str, *, paper: float | str, ours: float | str | None, unit: str = "", holds: bool
) -> dict[str, Any]:
    """One line of the table: a figure or a statement of the paper, ours, and whether ours is near enough to call it the same."""
    return {"key": key, "what": what, "paper": paper, "ours": ours, "unit": unit, "holds": holds}


def near(ours: float | None, paper: float, tolerance: float) -> bool:
    """Whether a figure is within the tolerance of the paper's, in the same unit."""
    return ours is not None and abs(ours - paper) <= tolerance


def with_reasons(experiment: str, summary: Summary) -> Summary:
    """The summary with a reason at each line of its comparison that does not hold."""
    known = _reasons().get(experiment, {})
    lines = []
    for line in summary.get("comparison", ()):
        reason = "" if line["holds"] else known.get(line["key"], NOT_LOOKED_INTO)
        lines.append({**line, "reason": reason})
    return {**summary, "comparison": lines}


@cache
def _reasons() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(REASONS.read_text(encoding="utf-8"))

"""What an experiment is: points that can be measured one by one in any order, and what is made of their rows.

A point is a value: its name, its seed and its parameters say everything about it, so that it can be measured in another process,
kept on disk, and recognised later. Rows are flat, because they become lines of a CSV file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Value = int | float | str | bool | None
Row = Mapping[str, Value]
Summary = dict[str, Any]

SEED_BYTES = 6  # seeds fit into what JSON readers keep exactly


def derived_seed(seed: int, *words: object) -> int:
    """A seed of its own for whatever the words name; the same in every process and on every machine."""
    text = "/".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:SEED_BYTES], "big")


@dataclass(frozen=True, slots=True)
class Point:
    """One piece of an experiment.

    ``params`` are values that JSON can hold. ``seed`` is the run's; what a point draws it draws from seeds derived of it by names,
    so that points which are to share arrivals do. ``weight`` is what it costs beside others, for the remaining time only.
    """

    name: str
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    def identity(self) -> str:
        """What makes two points the same."""
        return json.dumps([self.name, self.seed, self.params], sort_keys=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table.

    ``measure`` must be a function of a module (it is sent to other processes by name); what it does beyond the shared modules
    stands in its own body, because its source is part of the points' fingerprint. ``points_file`` is another name for experiments
    that have points in common and the same ``measure``.
    """

    name: str
    figure: str
    title: str
    method: str  # the grid, and where it is searched or sampled; goes into the results
    points: Callable[[bool, int], Sequence[Point]]
    measure: Callable[[Point], Sequence[Row]]
    summarise: Callable[[Sequence[Row]], Summary]
    draw: Callable[[Sequence[Row], Summary, Path], None]
    points_file: str = ""

    @property
    def stored_as(self) -> str:
        """The name under which its points are kept."""
        return self.points_file or self.name

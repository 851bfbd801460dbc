"""A run on the simulated node, interval by interval: what its tables and pictures are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from parties.model import NS_PER_S, Decision, Observation, Partition
from parties.record import Timing
from simulator.run import Result


@dataclass(slots=True)
class Timeline:
    """Listens to a run and keeps when each interval ended and who held what in it."""

    times_s: list[float] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Take in one interval."""
        del decision, timing
        self.times_s.append(observation.now_ns / NS_PER_S)
        self.partitions.append(observation.partition)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a run, and its course."""

    result: Result
    timeline: Timeline

    def ratios(self, service: str) -> list[float | None]:
        """The percentile over the target in each interval: None where nothing was asked, infinite where nothing was answered."""
        measure = self.result.services[service]
        return [
            latency_ns / measure.target.latency_ns if latency_ns is not None else math.inf if violated else None
            for latency_ns, violated in zip(measure.latency_ns, measure.violated, strict=True)
        ]

    def loads(self, service: str) -> list[float]:
        """The load at the end of each interval, as a fraction of the maximum."""
        load = self.result.scenario.tenants[service].load
        return [load.at(time_s) for time_s in self.timeline.times_s]


def condensed(ratios: Sequence[float | None], length: int) -> list[float | None]:
    """The worst value of each of at most ``length`` stretches of equal length."""
    if len(ratios) <= length:
        return list(ratios)
    edges = [round(number * len(ratios) / length) for number in range(length + 1)]
    stretches = (ratios[first:last] for first, last in itertools.pairwise(edges))
    return [max((ratio for ratio in stretch if ratio is not None), default=None) for stretch in stretches]

"""The same figures as a client would measure them: from finitely many requests, as in the paper's characterisation runs.

Slower than the model's own judgement, and it differs from it by chance: most for services with few requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from parties.model import NS_PER_S, QosTarget
from simulator.arrivals import Streams
from simulator.calibration.bench import Bench
from simulator.conditions import Conditions
from simulator.machine import Machine
from simulator.measure import ServiceMeasure
from simulator.queueing import respond
from simulator.traffic import TrafficSet

WARMUP_S = 30
MEASURED_S = 300
"""Section 5: runs of one minute, five times."""

_INTERVAL_NS = 500_000_000
_TICKS_PER_S = NS_PER_S // _INTERVAL_NS


@dataclass(frozen=True, slots=True)
class _Constant:
    """A load that never changes."""

    load: float
    constant: bool = True

    def mean(self, start_s: float, end_s: float) -> float:
        """The load, whenever."""
        del start_s, end_s
        return self.load


class SampledBench(Bench):
    """A bench that judges by the requests of one run."""

    def __init__(self, machine: Machine, seed: int = 1) -> None:
        super().__init__(machine)
        self._seed = seed

    def met(self, conditions: Conditions, load_rps: float) -> bool:
        """Whether the percentile of all requests after the warm-up is within the target."""
        if load_rps <= 0.0 or respond(conditions, load_rps).capacity_rps <= 0.0:
            return load_rps <= 0.0
        model = self.model
        tenants = {self.name: (model, _Constant(load_rps / model.max_load_rps))}
        traffic = TrafficSet(tenants, Streams(self._seed), _INTERVAL_NS)
        measure = ServiceMeasure(QosTarget(model.target_ns, model.percentile), _INTERVAL_NS, latencies=False)
        for tick in range((WARMUP_S + MEASURED_S) * _TICKS_PER_S):
            measure.take(traffic.advance({self.name: conditions}, tick * _INTERVAL_NS, (tick + 1) * _INTERVAL_NS))
        return measure.met_over(WARMUP_S * _TICKS_PER_S)

"""The model against the paper, figure by figure: plain rows of what is published and what we have.

Everything here is judged on the model itself: the percentile of the steady state, without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from simulator.calibration import paper
from simulator.calibration.interference import ALONE, NEIGHBOURS, conditions_beside, two_digits
from simulator.conditions import Conditions, Share
from simulator.library import node_profile, service_model
from simulator.machine import Machine
from simulator.queueing import percentile_s, respond

LOAD_TOLERANCE = 0.05
USE_TOLERANCE = 0.05
CELL_TOLERANCE = 10
CELLS_NEEDED = 46

_STEPS = 10  # of Table 4's loads: 10, 20, ... 100 %
_ROUNDS = 18
_OVERLOADED = 0.5  # in units of the logarithm of percentile over target

ConditionsAt = Callable[[float], Conditions]
"""Conditions of one service at a request rate."""


class Row(NamedTuple):
    """One figure: of the paper, of the model, and whether they agree as closely as asked for."""

    kind: str  # max-load, use, cell, tuple or fact
    name: str
    paper: float
    ours: float
    within: bool
    unit: str = ""


class Bench:
    """The paper's node with one of its services at a time."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @classmethod
    def of(cls, service: str) -> Bench:
        """The bench of a service that comes with the project."""
        return cls(Machine(node_profile("e5-2699v4"), {service: service_model(service)}))

    @property
    def tenant(self) -> str:
        """The service."""
        return next(iter(self.machine.tenants))

    def whole(self, load_rps: float) -> Conditions:
        """Conditions with the whole managed node."""
        return self.holding(load_rps)

    def holding(  # noqa: PLR0913 - one argument for each resource, by name
        self,
        load_rps: float,
        *,
        cores: int | None = None,
        ways: int | None = None,
        frequency_hz: int | None = None,
        memory_bytes: int | None = None,
        disk_bytes_per_s: int | None = None,
    ) -> Conditions:
        """Conditions with so much of the node and nobody else on it; what is not said is whole."""
        node = self.machine.profile
        share = Share(
            (self.tenant,),
            best_effort=False,
            cores=node.cores if cores is None else cores,
            ways=node.cache_ways if ways is None else ways,
            frequency_hz=node.top_hz if frequency_hz is None else frequency_hz,
            memory_bytes=node.memory_bytes if memory_bytes is None else memory_bytes,
            disk_bytes_per_s=node.disk_bytes_per_s if disk_bytes_per_s is None else disk_bytes_per_s,
            network_bits_per_s=node.network_bits_per_s,
        )
        return self.machine.outlook([share], {self.tenant: load_rps}).services[self.tenant]

    def beside(self, interference: str | None) -> ConditionsAt:
        """Conditions on 8 cores beside the neighbours of a row of Table 4; None is beside nobody."""
        neighbours = ALONE if interference is None else NEIGHBOURS[interference]
        return lambda load_rps: conditions_beside(self.machine, self.tenant, load_rps, neighbours)

    def excess(self, conditions: Conditions, load_rps: float) -> float:
        """How far over its target the service is: the logarithm of percentile over target, more where it cannot keep up."""
        if conditions.killed:
            return math.inf
        model = self.machine.tenants[self.tenant]
        response = respond(conditions, load_rps)
        if response.capacity_rps <= 0.0:
            return math.inf
        excess = math.log(percentile_s(response, model.percentile) * 1e9 / model.target_ns)
        over = load_rps / response.capacity_rps - 1.0
        return excess if over < 0 else max(excess, _OVERLOADED) + over

    def met(self, conditions: Conditions, load_rps: float) -> bool:
        """Whether the target is met."""
        return self.excess(conditions, load_rps) <= 0.0

    def largest_rps(self, conditions_at: ConditionsAt) -> float:
        """The largest load that meets the target."""
        low, high = 0.0, 2.0 * self.machine.tenants[self.tenant].max_load_rps
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.met(conditions_at(middle), middle) else (low, middle)
        return low

    def cell(self, interference: str, full_rps: float) -> int:
        """A cell of Table 4: the highest multiple of 10 % of the load without neighbours at which the target is met."""
        conditions_at = self.beside(interference)
        loads = ((step, full_rps * step / _STEPS) for step in range(_STEPS, 0, -1))
        return next((100 * step // _STEPS for step, load in loads if self.met(conditions_at(load), load)), 0)

    def interference_load_rps(self) -> float:
        """The denominator of Table 4: the largest load of 8 threads on 8 cores beside nobody, in two digits."""
        return two_digits(self.largest_rps(self.beside(None)))


def rows(services: Iterable[str] = paper.SERVICES) -> Iterator[Row]:
    """Every published figure beside ours."""
    for service in services:
        bench = Bench.of(service)
        yield from _table_2(bench)
        yield from _table_4(bench)
        yield from _facts(bench)


def _table_2(bench: Bench) -> Iterator[Row]:
    service = bench.tenant
    published = paper.MAX_LOADS_RPS[service]
    ours = bench.largest_rps(bench.whole)
    yield Row("max-load", service, published, ours, _close(ours, published, LOAD_TOLERANCE), "rps")
    conditions = bench.whole(published)
    uses = (
        ("cpu", paper.CPU_USE.get(service), published * conditions.cpu_s / paper.CORES, ""),
        ("disk", paper.DISK_USE.get(service), published * conditions.disk_bytes / bench.machine.profile.disk_bytes_per_s, ""),
        ("disk traffic", paper.DISK_BYTES_PER_S.get(service), published * conditions.disk_bytes, "bytes/s"),
        ("memory", paper.MEMORY_BYTES[service], float(conditions.resident_bytes), "bytes"),
        ("memory traffic", paper.MEMORY_BANDWIDTH_BYTES_PER_S[service], published * conditions.memory_traffic_bytes, "bytes/s"),
        ("network traffic", paper.NETWORK_BITS_PER_S[service], published * conditions.network_bits, "bits/s"),
    )
    for name, figure, found, unit in uses:
        if figure is not None:
            yield Row("use", f"{service} {name}", figure, found, _close(found, figure, USE_TOLERANCE), unit)


def _table_4(bench: Bench) -> Iterator[Row]:
    full_rps = bench.interference_load_rps()
    for interference in paper.INTERFERENCE:
        published, ours = paper.cell(interference, bench.tenant), bench.cell(interference, full_rps)
        within = abs(ours - published) <= CELL_TOLERANCE
        yield Row("cell", f"{bench.tenant} {interference}", published, ours, within, "%")


def _close(ours: float, published: float, tolerance: float) -> bool:
    return abs(ours - published) <= tolerance * published

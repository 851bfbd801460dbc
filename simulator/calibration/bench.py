"""The paper's node with one of its services on it: conditions in the paper's set-ups, and what load or amount is just enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Self

from parties.model import NS_PER_S
from simulator.calibration.interference import ALONE, NEIGHBOURS, conditions_beside, two_digits
from simulator.calibration.paper import Allocation
from simulator.conditions import Conditions
from simulator.library import DEFAULT_NODE, node_profile, service_model
from simulator.machine import Group, Machine, Means
from simulator.profile import ServiceModel
from simulator.queueing import percentile_s, respond

STEPS = 10
"""Table 4's loads go in tenths."""

STREAM_CORES = 6
"""What the neighbours that stream through memory run on, as in Table 4."""

ConditionsAt = Callable[[float], Conditions]
"""Conditions of the service at a request rate."""

_BISECTIONS = 20
_OVERLOADED = 0.5  # as the logarithm of percentile over target


class Bench:
    """One service on a node."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.name, self.model = next(iter(machine.tenants.items()))

    @classmethod
    def of(cls, service: str | ServiceModel) -> Self:
        """A service, by its name or its model, on the paper's node."""
        model = service_model(service) if isinstance(service, str) else service
        return cls(Machine(node_profile(DEFAULT_NODE), {model.name: model}))

    def means(self, load_rps: float, allocation: Allocation | None = None, *, others_cores: float = 0.0) -> Means:
        """So many cores and ways at that frequency, and all of the rest; without an allocation, everything."""
        node = self.machine.profile
        cores, ways, frequency_hz = allocation if allocation is not None else (node.cores, node.cache_ways, None)
        busy = self.machine.busy_cores(self.name, load_rps, cores)
        hertz = self.machine.turbo([Group(busy, busy, None), Group(others_cores, others_cores, None)])
        return Means(
            cores,
            ways * node.way_bytes,
            hertz if frequency_hz is None else frequency_hz,
            node.memory_bytes,
            node.disk_bytes_per_s,
            node.network_bits_per_s,
        )

    def conditions(self, load_rps: float, means: Means, *, stream_bytes_per_s: float = 0.0) -> Conditions:
        """What requests meet with these means, beside others that only use memory bandwidth."""
        if self.machine.killed(self.name, load_rps, means.memory_bytes):
            return Conditions((), 0.0, killed=True)
        traffic = self.machine.traffic_bytes_per_s(self.name, load_rps, means.cache_bytes, means.cores)
        return self.machine.conditions(self.name, load_rps, means, self.machine.strain(traffic + stream_bytes_per_s))

    def whole(self, load_rps: float) -> Conditions:
        """Conditions with the whole managed node."""
        return self.conditions(load_rps, self.means(load_rps))

    def held(self, load: float, allocation: Allocation, *, stream_bytes_per_s: float = 0.0) -> bool:
        """Whether the target is met with an allocation at a fraction of the largest load."""
        load_rps = load * self.model.max_load_rps
        return self.met(self.with_allocation(load_rps, allocation, stream_bytes_per_s), load_rps)

    def held_over_target(self, load: float, allocation: Allocation, *, stream_bytes_per_s: float = 0.0) -> float:
        """The percentile over the target with an allocation at a fraction of the largest load."""
        load_rps = load * self.model.max_load_rps
        return self.over_target(self.with_allocation(load_rps, allocation, stream_bytes_per_s), load_rps)

    def with_allocation(self, load_rps: float, allocation: Allocation, stream_bytes_per_s: float = 0.0) -> Conditions:
        """Conditions with cores, ways and a frequency, beside others that stream through memory on cores of their own."""
        means = self.means(load_rps, allocation, others_cores=STREAM_CORES if stream_bytes_per_s else 0)
        return self.conditions(load_rps, means, stream_bytes_per_s=stream_bytes_per_s)

    def beside(self, interference: str | None) -> ConditionsAt:
        """Conditions on 8 cores beside the neighbours of a row of Table 4; None is beside nobody."""
        neighbours = ALONE if interference is None else NEIGHBOURS[interference]
        return lambda load_rps: conditions_beside(self.machine, self.name, load_rps, neighbours)

    def over_target(self, conditions: Conditions, load_rps: float) -> float:
        """The percentile over the target; infinite where nothing is answered."""
        return self._tail(conditions, load_rps)[0]

    def excess(self, conditions: Conditions, load_rps: float) -> float:
        """How far over its target the service is, for a fit: the logarithm of percentile over target, and more in overload."""
        over, use = self._tail(conditions, load_rps)
        if math.isinf(over):
            return over
        return math.log(over) if use < 1.0 else max(math.log(over), _OVERLOADED) + use - 1.0

    def met(self, conditions: Conditions, load_rps: float) -> bool:
        """Whether the target is met: the percentile is within it, and there is no growing backlog."""
        over, use = self._tail(conditions, load_rps)
        return over <= 1.0 and use < 1.0

    def _tail(self, conditions: Conditions, load_rps: float) -> tuple[float, float]:
        """The percentile over the target, and the load over what can be answered."""
        response = respond(conditions, load_rps)
        if response.capacity_rps <= 0.0:
            return math.inf, math.inf
        over = percentile_s(response, self.model.percentile) * NS_PER_S / self.model.target_ns
        return over, load_rps / response.capacity_rps

    def largest_rps(self, conditions_at: ConditionsAt) -> float:
        """The largest load that meets the target."""
        low, high = 0.0, 2.0 * self.model.max_load_rps
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.met(conditions_at(middle), middle) else (low, middle)
        return low

    def interference_load_rps(self) -> float:
        """The denominator of Table 4: the largest load of 8 threads on 8 cores beside nobody, in two digits as in Table 2."""
        return two_digits(self.largest_rps(self.beside(None)))

    def cell(self, interference: str, full_rps: float) -> int:
        """A cell of Table 4: the percentage of the load without neighbours up to which the target is met, in tenths."""
        conditions_at = self.beside(interference)
        for step in range(1, STEPS + 1):
            load_rps = full_rps * step / STEPS
            if not self.met(conditions_at(load_rps), load_rps):
                return 100 * (step - 1) // STEPS
        return 100

    def least_cores(self, load: float, *, stream_bytes_per_s: float = 0.0) -> int | None:
        """The fewest cores that meet the target with everything else whole; None if no number does."""
        node = self.machine.profile
        options = (Allocation(cores, node.cache_ways, None) for cores in range(1, node.cores + 1))
        found = self._first(options, load, stream_bytes_per_s)
        return None if found is None else found.cores

    def least_ways(self, load: float, cores: int, *, stream_bytes_per_s: float = 0.0) -> int | None:
        """The fewest ways that meet the target on so many cores with turbo; None if no number does."""
        options = (Allocation(cores, ways, None) for ways in range(1, self.machine.profile.cache_ways + 1))
        found = self._first(options, load, stream_bytes_per_s)
        return None if found is None else found.ways

    def least_hz(self, load: float, cores: int, *, stream_bytes_per_s: float = 0.0) -> int | None:
        """The lowest frequency, turbo as the top step, that meets the target on so many cores with all ways; None if none does."""
        node = self.machine.profile
        options = (Allocation(cores, node.cache_ways, hertz) for hertz in (*node.levels_hz, None))
        found = self._first(options, load, stream_bytes_per_s)
        return None if found is None else found.frequency_hz or node.top_hz

    def _first(self, options: Iterable[Allocation], load: float, stream_bytes_per_s: float) -> Allocation | None:
        return next((option for option in options if self.held(load, option, stream_bytes_per_s=stream_bytes_per_s)), None)

"""Fits the services' free parameters to the paper.

``python -m simulator.calibration.fit SERVICE... [--seconds N] [--seed N] [--write]``

Differential evolution (needs scipy) over what the paper does not publish, within bounds that are physically plausible. What it does
publish (targets, loads, process memory, network and disk traffic) stands in the service's file and is not touched; memory traffic
per request follows from the published bandwidth and the miss curve. ``--write`` puts the result, rounded, into the service's file.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy.optimize import differential_evolution

from parties.config_schema import keys_of
from simulator.calibration import paper
from simulator.calibration.bench import Bench
from simulator.calibration.facts import FEW_CORES, MANY_CORES, RELAXED, STREAM_BYTES_PER_S
from simulator.calibration.interference import two_digits
from simulator.calibration.paper import Allocation
from simulator.contention import disk_bytes, miss_ratio
from simulator.library import CONFIGS, service_model
from simulator.profile import GHZ, ServiceModel

MARGIN = 0.03
"""A cell's load must be held, and the next tenth missed, by so much of the target: rounding must not turn it."""

MOST_BYTES_PER_NS = 6.0
"""What one core can pull through the cache while it waits, in bytes per ns of ``memory_ns``; Moses streams, and may do more."""

WHOLE = 100
"""Percent: a cell that no load can miss."""

GOOD_ENOUGH = 1e-3
"""The loss at which a fit ends early."""

DIGITS = 3
"""Of what is written to the files."""

_WORST = 6.0  # the largest error of one figure: nothing is answered at all


class Bound(NamedTuple):
    """Where a parameter may lie; ``scale`` says whether it is searched by its logarithm."""

    low: float
    high: float
    scale: bool = False


def _log(low: float, high: float) -> Bound:
    return Bound(low, high, scale=True)


_COMMON: Mapping[str, Bound] = {
    "fixed_growth": Bound(0, 3),
    "fixed_growth_power": Bound(1, 6),
    "arrival_scv": _log(1, 8),
    "service_scv": Bound(0.1, 1.5),
    "sibling_slowdown": Bound(1.1, 1.95),  # two threads together get at least as much done as one
    "software_limit": Bound(0, 0.3),
    "working_set_bytes": _log(5e6, 50e6),
    "working_set_idle": Bound(0.2, 1),
    "miss_floor": Bound(0, 0.6),
    "cache_contention": Bound(0, 3),
}

SPACE: Mapping[str, Mapping[str, Bound]] = {
    "memcached": {
        **_COMMON,
        "compute_ns": _log(4e3, 14e3),
        "memory_ns": _log(200, 20e3),
        "fixed_ns": _log(5e4, 5e5),
        "service_scv": Bound(0.2, 2),
    },
    "xapian": {
        **_COMMON,
        "compute_ns": _log(3e5, 1.5e6),
        "memory_ns": _log(1e4, 2e6),
        "fixed_ns": _log(1e4, 1e6),
        "miss_floor": Bound(0, 0.05),
        "arrival_scv": _log(1, 30),
    },
    "nginx": {
        **_COMMON,
        "compute_ns": _log(6e3, 24e3),
        "memory_ns": _log(1e3, 40e3),
        "fixed_ns": _log(1e5, 5e6),
        "fixed_growth": Bound(0, 80),
        "fixed_growth_power": Bound(1, 8),
        "working_set_bytes": _log(5e6, 80e6),
        "miss_floor": Bound(0, 0.95),
    },
    "moses": {
        **_COMMON,
        "compute_ns": _log(3e5, 3e6),
        "memory_ns": _log(1e5, 4e6),
        "fixed_ns": _log(1e4, 5e6),
        "software_limit": Bound(0, 1.5),
        "software_limit_power": Bound(4, 16),
        "miss_floor": Bound(0.2, 0.9),
    },
    "mongodb": {
        "compute_ns": _log(2e4, 2e5),
        "memory_ns": _log(3e4, 2e6),
        "fixed_ns": _log(5e6, 8e7),
        "arrival_scv": _log(1, 4),
        "software_limit": Bound(0, 3),
        "disk_scv": _log(1, 16),
        "page_slope": Bound(0.03, 0.3),
        "sibling_slowdown": Bound(1.1, 1.6),
        "working_set_bytes": _log(5e6, 40e6),
        "working_set_idle": Bound(0.2, 1),
        "miss_floor": Bound(0.1, 0.6),
        "cache_contention": Bound(0, 2),
    },
    "sphinx": {
        **_COMMON,
        "compute_ns": _log(2e8, 1.2e9),
        "memory_ns": _log(5e7, 2e9),
        "fixed_ns": _log(1e6, 3e8),
        "service_scv": Bound(0.03, 0.5),
        "arrival_scv": _log(1, 3),
        "miss_floor": Bound(0.05, 0.9),
    },
}
"""The free parameters of each service."""


class Loss:
    """How far a model is from the paper, summed by figure: logarithms of percentile over target, squared while they are small."""

    def __init__(self, model: ServiceModel) -> None:
        self.bench = Bench.of(model)
        self.parts: dict[str, float] = {}
        self._largest_load()
        self._plausible()
        self._cells()
        if model.name == "mongodb":
            self._mongodb()
        else:
            self._compute()

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self.parts.values())

    def _add(self, name: str, weight: float, error: float) -> None:
        error = min(abs(error), _WORST)
        self.parts[name] = self.parts.get(name, 0.0) + weight * (error**2 if error < 1.0 else 2 * error - 1.0)

    def _held(self, name: str, weight: float, excess: float, margin: float = MARGIN) -> None:
        """The target has to be met with room."""
        self._add(name, weight, max(0.0, excess + margin))

    def _missed(self, name: str, weight: float, excess: float, margin: float = MARGIN) -> None:
        self._add(name, weight, max(0.0, margin - excess))

    def _largest_load(self) -> None:
        bench, load_rps = self.bench, self.bench.model.max_load_rps
        whole = bench.whole(load_rps)
        self._add("largest load", 100, bench.excess(whole, load_rps))
        over = 1.04 * load_rps
        self._missed("largest load", 400, bench.excess(bench.whole(over), over), 0.05)
        self._add("cpu use", 100, load_rps * whole.cpu_s / paper.CORES / paper.CPU_USE[bench.name] - 1.0)

    def _plausible(self) -> None:
        model = self.bench.model
        most = MOST_BYTES_PER_NS * (2.5 if model.name == "moses" else 1.0)
        self._add("stream", 3, max(0.0, model.memory_traffic_bytes / model.memory_ns / most - 1.0))

    def _cells(self) -> None:
        bench = self.bench
        full_rps = two_digits(bench.largest_rps(bench.beside(None)))
        if full_rps <= 0.0:
            self._add("cells", 100, _WORST)
            return
        for interference in paper.INTERFERENCE:
            if interference == "memory-capacity" or (interference == "disk-bandwidth" and not bench.model.disk_bytes):
                continue  # follows from the process's size, or there is nothing to fit
            percent, conditions_at = paper.cell(interference, bench.name), bench.beside(interference)
            at, above = full_rps * percent / 100, full_rps * (percent + 10) / 100
            if percent:
                self._held(interference, 10, bench.excess(conditions_at(at), at), MARGIN if percent < WHOLE else 0.0)
            if percent < WHOLE:
                self._missed(interference, 10, bench.excess(conditions_at(above), above))

    def _compute(self) -> None:
        """Section 5's facts on cores, ways and frequency, and the allocations of Moses."""
        bench, node = self.bench, self.bench.machine.profile
        self._add("software limit", 0.1 if bench.name != "moses" else 0.0, bench.model.software_limit)
        low = paper.LOW_LOAD * bench.model.max_load_rps
        whole = Allocation(node.cores, node.cache_ways, None)
        self._held("memory stream", 20, bench.excess(bench.with_allocation(low, whole, STREAM_BYTES_PER_S), low))
        cores = self._excess(paper.HIGH_LOAD, whole._replace(cores=node.cores // 2))
        for half in (whole._replace(ways=node.cache_ways // 2), whole._replace(frequency_hz=18 * GHZ // 10)):
            self._missed("most by cores", 20, cores - self._excess(paper.HIGH_LOAD, half))
        self._held("low frequency", 20, self._excess(paper.LOW_LOAD, whole._replace(frequency_hz=21 * GHZ // 10)))
        self._held("all but cores", 20, self._excess(paper.LOW_LOAD, RELAXED))
        if bench.name == "xapian":
            self._cache_demand()
        if bench.name == "moses":
            for allocation in paper.MOSES_FEASIBLE:
                self._held(str(tuple(allocation)), 20, self._excess(paper.MOSES_LOAD, allocation))

    def _cache_demand(self) -> None:
        """Few ways are enough at low load, and not at high load or beside a memory stream, where many are."""
        low, high, stream = paper.LOW_LOAD, paper.HIGH_LOAD, STREAM_BYTES_PER_S
        self._held("cache at low load", 20, self._excess(low, Allocation(FEW_CORES, 2, None)))
        self._missed("cache at high load", 20, self._excess(high, Allocation(MANY_CORES, 3, None)))
        self._held("cache at high load", 20, self._excess(high, Allocation(MANY_CORES, 15, None)))
        self._missed("cache beside a stream", 20, self._excess(low, Allocation(FEW_CORES, 3, None), stream))
        self._held("cache beside a stream", 20, self._excess(low, Allocation(FEW_CORES, 15, None), stream))

    def _mongodb(self) -> None:
        bench, node = self.bench, self.bench.machine.profile
        self._held("one core", 20, self._excess(paper.MONGODB_LOAD, Allocation(1, node.cache_ways, node.levels_hz[0])))
        load_rps = paper.MONGODB_LOAD * bench.model.max_load_rps
        least = paper.MONGODB_LEAST_MEMORY_BYTES
        enough, short = (
            bench.excess(bench.conditions(load_rps, bench.means(load_rps)._replace(memory_bytes=size)), load_rps)
            for size in (least, least - node.memory_step_bytes)
        )
        self._held("figure 3", 20, enough)
        self._missed("figure 3", 20, short)

    def _excess(self, load: float, allocation: Allocation, stream_bytes_per_s: float = 0.0) -> float:
        load_rps = load * self.bench.model.max_load_rps
        return self.bench.excess(self.bench.with_allocation(load_rps, allocation, stream_bytes_per_s), load_rps)


def candidate(base: ServiceModel, values: Sequence[float]) -> ServiceModel:
    """A model with these free parameters, as differential evolution has them; memory and disk traffic follow from Table 2."""
    space = SPACE[base.name]
    free = {
        field: _rounded(math.exp(value) if bound.scale else value)
        for (field, bound), value in zip(space.items(), values, strict=True)
    }
    changes: dict[str, Any] = {field: _typed(field, value) for field, value in free.items()}
    model = dataclasses.replace(base, **changes)
    node = Bench.of(model).machine.profile
    missed = miss_ratio(model, node.cache_size_bytes, 1.0)
    traffic = paper.MEMORY_BANDWIDTH_BYTES_PER_S[base.name] / model.max_load_rps / max(missed, 1e-4)
    model = dataclasses.replace(model, memory_traffic_bytes=int(_rounded(traffic)))
    if not model.disk_bytes:
        return model
    read = paper.DISK_BYTES_PER_S[base.name] / model.max_load_rps
    follows = model.disk_bytes * read / disk_bytes(model, node.memory_bytes, 1.0)
    return dataclasses.replace(model, disk_bytes=int(_rounded(follows)))


def fit(base: ServiceModel, seconds: float, seed: int) -> ServiceModel:
    """The best model that is found within the time, from what the service's file has."""
    space = SPACE[base.name]
    bounds = [(math.log(b.low), math.log(b.high)) if b.scale else (b.low, b.high) for b in space.values()]
    end = time.monotonic() + seconds

    def ended(values: Sequence[float], convergence: float) -> bool:
        del convergence
        return Loss(candidate(base, values)).total < GOOD_ENOUGH or time.monotonic() > end

    result = differential_evolution(
        lambda values: Loss(candidate(base, values)).total,
        bounds,
        maxiter=100_000,
        popsize=6,
        init="sobol",
        tol=0,
        polish=False,
        rng=seed,
        x0=[_inside(searched(base, field, bound), *limits) for (field, bound), limits in zip(space.items(), bounds, strict=True)],
        callback=ended,
    )
    return candidate(base, result.x)


def write(model: ServiceModel, fields: Sequence[str]) -> None:
    """Put fields of a model into its file, in place of what stands there; comments stay."""
    file = CONFIGS / "services" / f"{model.name}.toml"
    text = file.read_text(encoding="utf-8")
    for key in keys_of(ServiceModel):
        if key.field not in fields:
            continue
        value = getattr(model, key.field)
        shown = f'"{key.quantity.format(value)}"' if key.quantity is not None else f"{value:g}"
        line = re.compile(rf'^{key.name} = ("[^"]*"|\S+)', re.MULTILINE)
        text = line.sub(f"{key.name} = {shown}", text) if line.search(text) else f"{text}{key.name} = {shown}\n"
    file.write_text(text, encoding="utf-8")


def _inside(value: float, low: float, high: float) -> float:
    edge = (high - low) / 1000
    return min(max(value, low + edge), high - edge)


def searched(model: ServiceModel, field: str, bound: Bound) -> float:
    """A model's parameter as the search has it."""
    value = float(getattr(model, field))
    return math.log(max(value, bound.low)) if bound.scale else value


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _typed(field: str, value: float) -> float:
    return int(value) if field.endswith(("_ns", "_bytes")) else value


def main() -> None:
    """Fit the services that are named, or all."""
    parser = argparse.ArgumentParser(description="Fit the simulated services to the paper (sections 4 and 5).")
    parser.add_argument("services", nargs="*", choices=[*SPACE, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each service (default 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put the result into configs/services")
    arguments = parser.parse_args()
    for service in arguments.services or SPACE:
        model = fit(service_model(service), arguments.seconds, arguments.seed)
        loss = Loss(model)
        sys.stdout.write(f"{service}: loss {loss.total:.3f}\n")
        for name, part in loss.parts.items():
            if part > 0.0:
                sys.stdout.write(f"  {name}: {part:.4f}\n")
        follows = ("memory_traffic_bytes", *(("disk_bytes",) if model.disk_bytes else ()))
        fields = (*SPACE[service], *follows)
        for field in fields:
            sys.stdout.write(f"  {field} = {getattr(model, field):g}\n")
        if arguments.write:
            write(model, fields)


if __name__ == "__main__":
    main()

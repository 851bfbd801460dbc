"""What tenants of one node do to each other, one small function for each part of the machine. Plain floats in SI units.

Every function is monotone: more of a part never makes anything slower, and more use by others never makes it faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from simulator.profile import NodeProfile, ServiceModel

LEAST_OCCUPANCY = 0.1
"""The fraction of a common cache that a tenant keeps beside any stream: lines that are used again before they are evicted."""

HOGS_DELAY_POWER = 4.0
"""How late on the way to full cores a thread that wakes finds no idle CPU: the scheduler looks at all CPUs of a socket first."""

MOST_MEMORY_USE = 1.5
"""Demand for memory bandwidth counts up to so much over what there is; beyond it, streams only wait for each other."""

LARGEST_EXPONENT = 60
"""Reads per request grow at most by two to this power, so that no number overflows."""


def memory_pressure(node: NodeProfile, use: float) -> float:
    """How much longer a memory access takes where ``use`` of the bandwidth is asked for (1 is all of it).

    1 on an idle bus, rising late to 1 + ``memory_latency_rise`` at full use, and in a straight line beyond it.
    """
    rise, power = node.memory_latency_rise, node.memory_latency_power
    if use <= 1.0:
        return 1.0 + rise * math.pow(use, power)
    return 1.0 + rise * (1.0 + power * (min(use, MOST_MEMORY_USE) - 1.0))


def miss_ratio(model: ServiceModel, cache_bytes: float, load: float) -> float:
    """The fraction of accesses that this much cache does not save at this load (1 is the largest load)."""
    working_set = model.working_set_bytes * part_at(model.working_set_idle, load)
    return model.miss_floor + (1.0 - model.miss_floor) * math.exp(-cache_bytes / working_set)


def part_at(idle: float, load: float) -> float:
    """What lies between a fraction at no load and 1 at the largest load, in a straight line."""
    return idle + (1.0 - idle) * load


def process_bytes(model: ServiceModel, load: float) -> float:
    """What the process needs at a load; no more than at the largest one."""
    return model.resident_bytes * part_at(model.resident_idle, min(load, 1.0))


def page_set_bytes(model: ServiceModel, load: float) -> float:
    """Process and page cache that a service with data on disk needs at a load."""
    return model.page_set_bytes * math.pow(load, model.page_set_power)


def disk_bytes(model: ServiceModel, memory_bytes: float, load: float) -> float:
    """What a request reads from disk with so much memory.

    Falls slowly with memory beyond the page set of this load (``page_slope``); rises steeply short of it (``page_thrash``), because
    pages are then dropped before they are asked for again.
    """
    if memory_bytes <= 0.0 or model.page_set_bytes == 0:
        return math.ldexp(model.disk_bytes, LARGEST_EXPONENT) if memory_bytes <= 0.0 else float(model.disk_bytes)
    short = math.log2(max(1.0, page_set_bytes(model, load) / memory_bytes)) * model.page_thrash
    spare = math.log2(model.page_set_bytes / memory_bytes) * model.page_slope
    return model.disk_bytes * math.exp2(min(short + spare, LARGEST_EXPONENT))


def turbo_hz(node: NodeProfile, active_cores: float) -> float:
    """What turbo gives with so many active cores, in a straight line between the bins."""
    bins = node.turbo_hz
    if active_cores <= 1.0:
        return float(bins[0])
    below = int(active_cores)
    if below >= len(bins):
        return float(bins[-1])
    return bins[below - 1] + (active_cores - below) * (bins[below] - bins[below - 1])


def power_milliwatts(node: NodeProfile, loads: Iterable[tuple[float, float]]) -> float:
    """What the socket draws: for each group its busy cores (weighted by what they draw) and their frequency; cubic in it."""
    highest = node.levels_hz[-1]
    return node.base_milliwatts + node.core_milliwatts * sum(cores * (hz / highest) ** 3 for cores, hz in loads)


def limited_turbo_hz(node: NodeProfile, turbo: float, turbo_cores: float, other_milliwatts: float) -> float:
    """Turbo under the power limit: lowered until ``turbo_cores`` fit beside what the rest draws, not under the highest level."""
    highest = node.levels_hz[-1]
    if turbo_cores <= 0.0:
        return turbo
    left = max(0.0, node.power_milliwatts - other_milliwatts) / (node.core_milliwatts * turbo_cores)
    return max(float(highest), min(turbo, highest * math.cbrt(left)))


def fair_level(amount: float, demands: Iterable[float], unlimited: int = 1) -> float:
    """What each of ``unlimited`` takers that want everything gets beside these demands.

    All get the same, but nobody more than is wanted.
    """
    wanted = sorted(demands)
    left, takers = amount, len(wanted) + unlimited
    for demand in wanted:
        if demand * takers >= left:
            break
        left -= demand
        takers -= 1
    return left / takers


def occupancy(intensity: float, total: float) -> float:
    """The fraction of a common cache that a tenant's lines hold: its accesses over everybody's."""
    return max(LEAST_OCCUPANCY, intensity / total) if total > intensity else 1.0


def wake_delay_s(node: NodeProfile, others_busy: float) -> float:
    """How much later a thread runs that wakes on CPUs of which others keep this fraction busy."""
    return node.scheduling_delay_ns * 1e-9 * math.pow(min(1.0, others_busy), HOGS_DELAY_POWER)

"""The set-up of Table 4: a service with 8 threads on 8 cores of an unmanaged node, and neighbours that use up one thing.

Nothing is partitioned: neighbours share the cache by how much they access it, and bandwidth, turbo and power with everybody. What
is known of the neighbours is in the table; how hard they press was fitted together with the services, and is in comments here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from parties.model import NS_PER_S
from simulator.calibration.paper import INTERFERENCE_CORES
from simulator.conditions import Conditions
from simulator.contention import limited_turbo_hz, occupancy, turbo_hz
from simulator.machine import Machine, Means, Strain


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What runs beside the service."""

    same_thread: bool = False  # one busy thread on each of the service's hyper-threads
    sibling_thread: bool = False  # one busy thread on each sibling
    cores: int = 0  # of the rest, busy
    core_power: float = 1.0  # what those draw, over what a service's cores draw
    cache_bytes_per_s: float = 0.0  # accesses to the last-level cache
    memory_bytes_per_s: float = 0.0
    memory_bytes_left: float | None = None  # None: all of the node
    disk_left: float = 1.0  # fraction of random reads beside a sequential reader
    network_bits_per_s_left: float | None = None  # None: all of the node
    slowed: float = 0.0  # fraction of the service's core time that interrupts take


ALONE = Neighbours()

NEIGHBOURS = {
    # 8 compute antagonists on the same hardware threads: half the time, and a wait at each wake-up.
    "hyper-thread": Neighbours(same_thread=True),
    # 8 on the sibling threads.
    "cpu": Neighbours(sibling_thread=True),
    # 12 power viruses on 6 idle cores: wide vectors on both threads.
    "power": Neighbours(cores=6, core_power=3.2),
    # One stream as large as the cache: it hits as long as nobody else is there.
    "llc-capacity": Neighbours(cores=1, cache_bytes_per_s=15e9, memory_bytes_per_s=5e9),
    # 12 streams of a twelfth of the cache each.
    "llc-bandwidth": Neighbours(cores=6, cache_bytes_per_s=300e9, memory_bytes_per_s=5e9),
    # 12 streams through memory that reach 50 GB/s.
    "memory-bandwidth": Neighbours(cores=6, cache_bytes_per_s=50e9, memory_bytes_per_s=50e9),
    # Streams over 120 of 128 GB; the system has most of the rest.
    "memory-capacity": Neighbours(memory_bytes_left=1.2e9),
    # dd: sequential reads hold the disk most of the time.
    "disk-bandwidth": Neighbours(disk_left=0.22),
    # 100 iperf3 streams of 100 Mbit/s: a fair share of the link is left; copies and interrupts cost memory traffic, cache and time.
    "network-bandwidth": Neighbours(
        cores=2, cache_bytes_per_s=4e9, memory_bytes_per_s=4e9, network_bits_per_s_left=450e6, slowed=0.02
    ),
}


def conditions_beside(machine: Machine, tenant: str, load_rps: float, neighbours: Neighbours) -> Conditions:
    """What the service's requests meet on its 8 cores beside the neighbours."""
    node, model = machine.profile, machine.tenants[tenant]
    memory_bytes = node.memory_bytes if neighbours.memory_bytes_left is None else neighbours.memory_bytes_left
    if machine.killed(tenant, load_rps, memory_bytes):
        return Conditions((), 0.0, killed=True)
    busy = machine.busy_cores(tenant, load_rps, INTERFERENCE_CORES)
    bin_hz = turbo_hz(node, busy + neighbours.cores)
    turbo = limited_turbo_hz(node, bin_hz, busy + neighbours.cores * neighbours.core_power, node.base_milliwatts)
    accesses = load_rps * model.memory_traffic_bytes
    cache_bytes = node.cache_size_bytes * occupancy(accesses, accesses + neighbours.cache_bytes_per_s)
    traffic = machine.traffic_bytes_per_s(tenant, load_rps, cache_bytes, INTERFERENCE_CORES)
    pressure = machine.strain(traffic + neighbours.memory_bytes_per_s).memory_pressure
    cache_use = machine.strain(traffic + max(neighbours.cache_bytes_per_s, neighbours.memory_bytes_per_s)).cache_use
    left = neighbours.network_bits_per_s_left
    means = Means(
        INTERFERENCE_CORES,
        cache_bytes,
        turbo,
        memory_bytes,
        node.disk_bytes_per_s * neighbours.disk_left,
        node.network_bits_per_s if left is None else left,
        stretch=(2.0 if neighbours.same_thread else 1.0) / (1.0 - neighbours.slowed),
        sibling_busy=1.0 if neighbours.sibling_thread else 0.0,
        wake_delay_s=node.scheduling_delay_ns / NS_PER_S if neighbours.same_thread else 0.0,
    )
    return machine.conditions(tenant, load_rps, means, Strain(pressure, cache_use))


def two_digits(load_rps: float) -> float:
    """A load as Table 2 has them: the largest of two significant digits that is not above it."""
    if load_rps <= 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(load_rps)) - 1)
    return math.floor(load_rps / unit + 1e-9) * unit

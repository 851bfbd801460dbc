"""The published figures that the model is fitted to and measured against, each with its place in the paper (ASPLOS 2019)."""

from __future__ import annotations

from typing import NamedTuple

SERVICES = ("memcached", "xapian", "nginx", "moses", "mongodb", "sphinx")

CORES = 14
"""Table 1 and section 5: 22 cores of one socket, less 8 for network interrupts."""

INTERFERENCE_CORES = 8
"""Table 4: 8 threads on 8 cores."""

TARGETS_S = {"memcached": 600e-6, "xapian": 5e-3, "nginx": 10e-3, "moses": 15e-3, "mongodb": 0.3, "sphinx": 2.5}
"""Table 2: the 99th percentile that must be held."""

MAX_LOADS_RPS = {
    "memcached": 1_280_000.0,
    "xapian": 8_000.0,
    "nginx": 560_000.0,
    "moses": 2_800.0,
    "mongodb": 240.0,
    "sphinx": 14.0,
}
"""Table 2: the largest load under the target on the whole machine."""

CPU_USE = {"memcached": 0.91, "xapian": 0.65, "nginx": 0.70, "moses": 0.64, "mongodb": 0.005, "sphinx": 0.856}
"""Table 2: user and system time at the largest load, of all cores."""

DISK_USE = {"mongodb": 0.57}
"""Table 2: waiting for I/O at the largest load; read here as how busy the disk is."""

MEMORY_BANDWIDTH_BYTES_PER_S = {
    "memcached": 0.6e9,
    "xapian": 0.01e9,
    "nginx": 0.6e9,
    "moses": 26e9,
    "mongodb": 0.03e9,
    "sphinx": 3.1e9,
}
DISK_BYTES_PER_S = {"mongodb": 5.1e6}
NETWORK_BITS_PER_S = {"memcached": 3.0e9, "xapian": 0.07e9, "nginx": 6.2e9, "moses": 0.001e9, "mongodb": 0.01e9, "sphinx": 0.001e9}
MEMORY_BYTES = {"memcached": 9.3e9, "xapian": 0.02e9, "nginx": 1.9e9, "moses": 2.5e9, "mongodb": 18e9, "sphinx": 1.4e9}
"""Table 2, all at the largest load."""

INTERFERENCE = {
    "hyper-thread": (0, 0, 0, 0, 90, 0),
    "cpu": (10, 50, 60, 70, 100, 30),
    "power": (60, 80, 90, 90, 100, 70),
    "llc-capacity": (90, 90, 70, 80, 100, 30),
    "llc-bandwidth": (0, 60, 70, 30, 90, 0),
    "memory-bandwidth": (0, 50, 40, 10, 70, 0),
    "memory-capacity": (0, 100, 0, 0, 20, 80),
    "disk-bandwidth": (100, 100, 100, 100, 10, 100),
    "network-bandwidth": (20, 90, 10, 90, 90, 80),
}
"""Table 4: percent of the largest load (of 8 threads on 8 cores) that still meets the target; columns as ``SERVICES``."""


class Allocation(NamedTuple):
    """Cores, ways and frequency that are named as enough; None is turbo. Everything else is whole."""

    cores: int
    ways: int
    frequency_hz: int | None


MOSES_LOAD = 0.9
MOSES_FEASIBLE = (Allocation(10, 11, None), Allocation(14, 11, 1_800_000_000), Allocation(14, 2, 2_200_000_000))
"""Section 5 (Figure 2b): three allocations that hold Moses' target at high load."""

MONGODB_LOAD = 0.9
MONGODB_LEAST_MEMORY_BYTES = 60_000_000_000
"""Figure 3: at 90 % load no disk bandwidth is enough with less memory than this, page cache included."""

LOW_LOAD = 0.3
HIGH_LOAD = 0.9
"""Section 5: Figures 2a and 2c are at 30 % load, 2b is at 90 %."""


def cell(interference: str, service: str) -> int:
    """One cell of Table 4."""
    return INTERFERENCE[interference][SERVICES.index(service)]

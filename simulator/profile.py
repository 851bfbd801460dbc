"""What simulated nodes, services and best-effort jobs are: plain data, one TOML file each in ``configs``.

A field is a key of the file; its unit suffix says how the value is written there (``parties.config_schema``).
"""

from __future__ import annotations

from dataclasses import dataclass

from parties.settings import MS


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A server as far as it is simulated (Table 1): what is managed of one socket, and what its parts share."""

    name: str
    cores: int  # physical cores that are handed out
    cache_ways: int  # ways of the last-level cache
    cache_bytes: int
    levels_hz: tuple[int, ...]  # frequencies that can be set, ascending, turbo not among them
    turbo_hz: tuple[int, ...]  # what turbo gives with 1, 2, ... active cores; the last holds for more; the first names the top step
    memory_bytes: int
    memory_bandwidth_bytes_per_s: int
    disk_bytes_per_s: int
    network_bits_per_s: int
    power_milliwatts: int  # of the socket (TDP)
    threads_per_core: int = 2
    memory_step_bytes: int = 1_000_000_000
    disk_step_bytes_per_s: int = 0  # 0: a twentieth of the rate
    network_step_bits_per_s: int = 500_000_000


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A latency-critical service (Table 2): its target, its largest load, and what a request asks for."""

    name: str
    target_ns: int
    max_load_rps: float
    percentile: float = 99.0
    in_memory: bool = True
    stateless: bool = False
    longest_wait_ns: int = 5_000 * MS  # clients give up sending when the queue is longer than this


@dataclass(frozen=True, slots=True)
class JobModel:
    """A best-effort job: threads that compute and threads that stream through memory (section 5.1)."""

    name: str
    compute_threads: int
    memory_threads: int

"""What simulated nodes, services and best-effort jobs are: plain data, one TOML file each in ``configs``.

A field is a key of the file; its unit suffix says how the value is written there (``parties.config_schema``). What the numbers do
is in ``simulator.machine`` and ``docs/simulator.md``; ``simulator.profile_checks`` says which are impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

from parties.model import MILLICORES_PER_CORE, Core, Domain, Node, Pool, PoolKey, QosTarget, Resource, Service
from parties.settings import MS

DISK_STEPS = 20
"""A disk moves in twentieths of its rate where the file does not say otherwise, as on the host."""

GHZ = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A server as far as it is simulated (Table 1): what is managed of one socket, and what its parts share."""

    name: str
    cores: int  # physical cores that are handed out
    cache_ways: int  # ways of the last-level cache
    cache_size_bytes: int
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
    cache_classes: int = 16  # of cache allocation (CLOSIDs): as many groups can have ways of their own
    cache_bandwidth_bytes_per_s: int = 300_000_000_000  # of the last-level cache, by everybody together
    memory_latency_rise: float = 2.5  # a memory access at full bandwidth takes 1 + this times what it takes alone
    memory_latency_power: float = 4.0  # how late on the way to full bandwidth that comes
    base_milliwatts: int = 55_000  # what the socket draws with every managed core idle, reserved cores included
    core_milliwatts: int = 3_000  # what a core adds that a service keeps busy at the highest level without turbo
    scheduling_delay_ns: int = 12 * MS  # how long a thread that wakes beside busy ones waits for its CPU

    @property
    def way_bytes(self) -> float:
        """The size of one way."""
        return self.cache_size_bytes / self.cache_ways

    @property
    def top_hz(self) -> int:
        """The top step of the frequency: turbo."""
        return self.turbo_hz[0]

    def node(self) -> Node:
        """The node as the controller sees it: one domain, all six resources managed.

        The numbers of a core's hyper-threads are apart by the number of cores, as Linux counts them.
        """
        cores = tuple(
            Core(core, tuple(core + self.cores * thread for thread in range(self.threads_per_core))) for core in range(self.cores)
        )
        disk_step = self.disk_step_bytes_per_s or self.disk_bytes_per_s // DISK_STEPS
        shared = (
            (PoolKey(Resource.CORES, 0), self.cores * MILLICORES_PER_CORE, MILLICORES_PER_CORE),
            (PoolKey(Resource.CACHE, 0), self.cache_ways, 1),
            (PoolKey(Resource.MEMORY, 0), self.memory_bytes, self.memory_step_bytes),
            (PoolKey(Resource.DISK), self.disk_bytes_per_s, disk_step),
            (PoolKey(Resource.NETWORK), self.network_bits_per_s, self.network_step_bits_per_s),
        )
        pools = {key: Pool(key, total, step, floor=step) for key, total, step in shared}
        frequency = PoolKey(Resource.FREQUENCY, 0)
        pools[frequency] = Pool(frequency, levels=(*self.levels_hz, self.top_hz))
        return Node(self.name, (Domain(0, cores),), pools, self.memory_bandwidth_bytes_per_s, self.power_milliwatts)


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A latency-critical service (Table 2): its target, its largest load, and what a request asks for.

    Fractions of load are of ``max_load_rps``. Where a field has a value "at the largest load" and an ``idle`` one, what lies
    between is linear.
    """

    name: str
    target_ns: int
    max_load_rps: float
    percentile: float = 99.0
    in_memory: bool = True
    stateless: bool = False
    longest_wait_ns: int = 5_000 * MS  # clients give up sending when the queue is longer than this

    compute_ns: int = 0  # of a core at ``reference_hz``; scales with the frequency
    reference_hz: int = 2_200_000_000
    memory_ns: int = 0  # a core waits so long for memory if nothing is in the last-level cache, on an idle memory bus
    fixed_ns: int = 0  # outside the queues at the tail: network, kernel, client; grows as the core time of a request does
    fixed_growth: float = (
        0.0  # ... and by this factor more (plus 1) where all cores held are busy: connections wait for their thread
    )
    fixed_growth_power: float = 1.0
    service_scv: float = 1.0  # squared coefficient of variation of a request's core time
    arrival_scv: float = 1.0  # of the time between requests as the cores see them; more than 1: bursts
    sibling_slowdown: float = 1.5  # of the compute part beside a busy hyper-thread
    software_limit: float = 0.0  # locks and connection work: core time grows by this factor (plus 1) at the largest load
    software_limit_power: float = 8.0

    working_set_bytes: int = 1_000_000  # of the last-level cache at the largest load: e-folding size of what it saves
    working_set_idle: float = 0.5  # fraction of that at no load
    miss_floor: float = 0.0  # fraction of accesses that no cache saves
    memory_traffic_bytes: int = 0  # of memory per request if nothing is in the last-level cache
    cache_contention: float = 0.0  # core time grows by this factor (plus 1) where the cache's bandwidth is used up

    resident_bytes: int = 0  # what the process needs at the largest load; an in-memory service is killed with less
    resident_idle: float = 1.0  # fraction of that at no load

    disk_bytes: int = 0  # read per request with as much memory as ``page_set_bytes``
    disk_scv: float = 1.0  # squared coefficient of variation of what one request reads
    page_set_bytes: int = 0  # process and page cache that must fit at the largest load, or pages are dropped before they serve
    page_set_power: float = 1.0  # how it grows with the load
    page_slope: float = 0.0  # reads fall with this power of the memory beyond need
    page_thrash: float = 30.0  # reads rise with this power of the memory short of need

    network_bits: int = 0  # sent per request

    def service(self, name: str) -> Service:
        """The service as the controller knows it, under the name of a tenant."""
        target = QosTarget(self.target_ns, self.percentile)
        return Service(name, target, stateless=self.stateless, in_memory=self.in_memory, peak_load_rps=self.max_load_rps)


@dataclass(frozen=True, slots=True)
class JobModel:
    """A best-effort job: threads that compute and threads that stream through memory (section 5.1)."""

    name: str
    compute_threads: int
    memory_threads: int
    stream_bytes_per_s: int = 4_200_000_000  # memory traffic of one memory thread with a CPU to itself
    core_power: float = 1.5  # what its cores draw, over what a service's cores draw

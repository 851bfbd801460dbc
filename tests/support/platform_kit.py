"""A node in plain values, and a machine and clients that do what a test says, for tests of what stands around the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monitors.histogram_message import Window
from monitors.signal import Signal
from parties.histogram import Histogram
from parties.model import Core, Domain, Node, Pool, PoolKey, QosTarget, Resource, Service, Usage
from parties.settings import SignalSettings
from simulator.conditions import Conditions, Outlook, Share, Station
from simulator.faults import NO_FAULTS, Faults
from simulator.load_profile import LoadProfile
from simulator.platform import WINDOW_NS, SimulatedPlatform

MS = 1_000_000
GB = 1_000_000_000
CORES, WAYS, FREQUENCY, MEMORY = (PoolKey(resource, 0) for resource in list(Resource)[:4])
DISK, NETWORK = PoolKey(Resource.DISK), PoolKey(Resource.NETWORK)
LEVELS_HZ = (1_200_000_000, 2_200_000_000, 3_600_000_000)


def plain_node(cores: int = 14, ways: int = 20) -> Node:
    """A node of one domain with every resource."""
    pools = (
        Pool(CORES, cores * 1000, 1000, 1000),
        Pool(WAYS, ways, 1, 1),
        Pool(FREQUENCY, levels=LEVELS_HZ),
        Pool(MEMORY, 120 * GB, GB, GB),
        Pool(DISK, 100_000_000, 5_000_000, 5_000_000),
        Pool(NETWORK, 10 * GB, GB // 2, GB // 2),
    )
    domain = Domain(0, tuple(Core(core, (core, core + cores)) for core in range(cores)))
    return Node("plain", (domain,), {pool.key: pool for pool in pools})


class FakeMachine:
    """Remembers what it was asked; ends who has less memory than ``needs_bytes`` says."""

    def __init__(self, needs_bytes: Mapping[str, int] | None = None) -> None:
        self.needs_bytes = needs_bytes or {}
        self.asked: list[tuple[tuple[Share, ...], dict[str, float]]] = []

    def outlook(self, shares: Sequence[Share], loads_rps: Mapping[str, float]) -> Outlook:
        self.asked.append((tuple(shares), dict(loads_rps)))
        conditions = {
            name: Conditions(
                (Station(share.cores, 0.001),),
                0.0,
                killed=share.memory_bytes < self.needs_bytes.get(name, 0),
                cpu_s=0.001,
                disk_bytes=3.0,
                network_bits=5.0,
                memory_traffic_bytes=7.0,
                resident_bytes=GB,
                frequency_hz=share.frequency_hz or 0,
            )
            for share in shares
            for name in share.tenants
        }
        return Outlook(conditions, Usage(progress=0.5), 11, 13)


class FakeClients:
    """Every tenant has 100 requests of 1 ms in each window, none while it is down."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Conditions], int, int]] = []

    def advance(self, conditions: Mapping[str, Conditions], start_ns: int, end_ns: int) -> list[Window]:
        self.seen.append((dict(conditions), start_ns, end_ns))
        return [
            self._window(name, end_ns - (1 + left) * WINDOW_NS, down=stated.killed)
            for left in reversed(range((end_ns - start_ns) // WINDOW_NS))
            for name, stated in conditions.items()
        ]

    def _window(self, name: str, start_ns: int, *, down: bool) -> Window:
        histogram = Histogram()
        if not down:
            histogram.add(MS, 100)
        done = histogram.count
        return Window(name, "fake", start_ns, start_ns, start_ns + WINDOW_NS, 100, 100, done, 100 - done, histogram=histogram)


class Stage:
    """What a platform stands between; ``platform(...)`` makes a fresh one."""

    def __init__(self, names: Sequence[str] = ("a", "b"), needs_bytes: Mapping[str, int] | None = None) -> None:
        self.node = plain_node()
        self.services = tuple(Service(name, QosTarget(5 * MS), in_memory=True) for name in names)
        self.machine = FakeMachine(needs_bytes)
        self.clients = FakeClients()
        self.signal = Signal({service.name: service.target for service in self.services}, SignalSettings(), 500 * MS)

    def platform(
        self, *, duration_s: float = 60.0, faults: Faults = NO_FAULTS, job: bool = True, load: LoadProfile | None = None
    ) -> SimulatedPlatform:
        return SimulatedPlatform(
            self.node,
            self.services,
            machine=self.machine,
            clients=self.clients,
            signal=self.signal,
            loads={service.name: (load or LoadProfile.steady(0.5), 1000.0) for service in self.services},
            job_present=job,
            duration_ns=int(duration_s * 1000) * MS,
            faults=faults,
        )

"""The plain values that every part speaks in: node, service, partition, move, observation.

All quantities are integers in base units: nanoseconds, bytes, bytes/s, bits/s, Hz, millicores, LLC ways. This module knows
nobody: it opens nothing, reads no clock and imports nothing of the project but how a value is declared.

A *holder* is whoever holds an amount of a resource: a service by its name, the best-effort pool, idle (nobody), or reserved (the
system). A *pool* is one resource in one domain (or node-wide), and a *partition* says who holds how much of each pool. PARTIES,
section 4; conservation and isolation are invariants 1 and 2 of the design.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from parties.values import value

Holder = str
"""A service's name or one of the three constants below."""

BEST_EFFORT: Holder = "best-effort"
IDLE: Holder = "idle"
RESERVED: Holder = "reserved"
SPECIAL_HOLDERS = frozenset({BEST_EFFORT, IDLE, RESERVED})

NS_PER_S = 1_000_000_000
MILLICORES_PER_CORE = 1000


class InvariantError(Exception):
    """A partition or a move that would break conservation or isolation. Always a defect, never an operator's mistake."""


class Resource(enum.StrEnum):
    """The six resources of the paper (section 4.1), each with the base unit of its amounts."""

    CORES = "cores"  # millicores
    CACHE = "cache"  # LLC ways
    FREQUENCY = "frequency"  # Hz
    MEMORY = "memory"  # bytes
    DISK = "disk"  # bytes/s
    NETWORK = "network"  # bits/s

    @property
    def unit(self) -> str:
        """The unit that a field of this resource carries in JSON."""
        return _UNITS[self]

    @property
    def shared_pool(self) -> bool:
        """Whether an amount given to one holder is taken from another. Frequency is not: raising one takes from nobody."""
        return self is not _FREQUENCY


_FREQUENCY = Resource.FREQUENCY  # reading a member of an enumeration costs as much as a call

_UNITS = {
    Resource.CORES: "millicores",
    Resource.CACHE: "ways",
    Resource.FREQUENCY: "hz",
    Resource.MEMORY: "bytes",
    Resource.DISK: "bytes_per_s",
    Resource.NETWORK: "bits_per_s",
}


class PoolKey(NamedTuple):
    """One resource in one domain; ``domain`` is None for what the whole node shares (disk, network)."""

    resource: Resource
    domain: int | None = None

    def __str__(self) -> str:
        return self.resource.value if self.domain is None else f"{self.resource.value}@{self.domain}"


@dataclass(frozen=True, slots=True)
class Pool:
    """How much of one resource there is, in which steps it moves, and whether it is managed at all.

    ``total`` is a multiple of ``step`` (what is over belongs to nobody's partition). ``floor`` is the least that a service
    keeps (at least one step, invariant 2), ``best_effort_floor`` what the best-effort pool keeps, 0 if it may lose everything.
    Frequency has ``levels`` in ascending Hz instead, the last of them being turbo where
    there is ``turbo``; its total and step are 0.
    """

    key: PoolKey
    total: int = 0
    step: int = 0
    floor: int = 0
    levels: tuple[int, ...] = ()
    managed: bool = True
    reason: str = ""  # why it is not managed
    turbo: bool = True  # whether the last level is turbo
    best_effort_floor: int = 0

    def __post_init__(self) -> None:
        if not self.managed:
            return
        if self.key.resource.shared_pool:
            if self.step <= 0 or self.total <= 0 or self.total % self.step:
                raise InvariantError(f"{self.key}: total {self.total} is not a positive multiple of step {self.step}")
            if self.floor < self.step or self.floor % self.step:
                raise InvariantError(f"{self.key}: floor {self.floor} is not a multiple of step {self.step}, at least one")
            if not 0 <= self.best_effort_floor <= self.total or self.best_effort_floor % self.step:
                raise InvariantError(f"{self.key}: {self.best_effort_floor} for best effort is no multiple of step {self.step}")
        elif list(self.levels) != sorted(set(self.levels)) or not self.levels:
            raise InvariantError(f"{self.key}: levels must ascend and not be empty: {self.levels}")

    def spare(self, holder: Holder, amount: int) -> int:
        """What idle or the best-effort pool, which holds that much, may give of it."""
        return amount - self.best_effort_floor if holder == BEST_EFFORT else amount

    @property
    def nominal_level(self) -> int:
        """The highest level that is not turbo; where there is no other, turbo."""
        return self.levels[-2] if self.turbo and len(self.levels) > 1 else self.levels[-1]

    def above(self, amount: int) -> int | None:
        """The next larger amount, or None at the top."""
        if self.levels:
            return next((level for level in self.levels if level > amount), None)
        return amount + self.step if amount + self.step <= self.total else None

    def below(self, amount: int, floor: int) -> int | None:
        """The next smaller amount that is not under ``floor``, or None at the bottom."""
        if self.levels:
            return next((level for level in reversed(self.levels) if floor <= level < amount), None)
        return amount - self.step if amount - self.step >= floor else None


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core and its hardware threads (Linux CPU numbers)."""

    id: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """What shares an L3 cache, a socket or a NUMA node: the cores that are managed there."""

    id: int
    cores: tuple[Core, ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """Every managed hardware thread of the domain, ascending."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))


@dataclass(frozen=True, slots=True)
class Node:
    """A server as far as it is managed: its domains and its pools. Reserved cores are in no domain."""

    name: str
    domains: tuple[Domain, ...]
    pools: Mapping[PoolKey, Pool]
    memory_bandwidth_bytes_per_s: int | None = None  # what the memory can deliver; shared by all, and not a pool
    power_milliwatts: int | None = None  # what the sockets may draw for long (TDP)

    def key(self, resource: Resource, home: int) -> PoolKey:
        """The pool that a service with home domain ``home`` draws ``resource`` from."""
        local = PoolKey(resource, home)
        return local if local in self.pools else PoolKey(resource)

    def pool(self, resource: Resource, home: int) -> Pool | None:
        """The managed pool of a resource for that home domain, or None if it is not managed."""
        pool = self.pools.get(self.key(resource, home))
        return pool if pool is not None and pool.managed else None

    def managed_pools(self) -> tuple[Pool, ...]:
        """The managed pools, in the order of the node's description."""
        return tuple(pool for pool in self.pools.values() if pool.managed)

    def domain(self, domain_id: int) -> Domain:
        """The domain of that id. Raises KeyError."""
        for domain in self.domains:
            if domain.id == domain_id:
                return domain
        raise KeyError(domain_id)

    @property
    def divides_cores(self) -> bool:
        """Whether cores are shared in fractions (too few to give each service whole ones) instead of handed out whole."""
        return any(pool.key.resource is Resource.CORES and pool.step % MILLICORES_PER_CORE for pool in self.managed_pools())


@dataclass(frozen=True, slots=True)
class QosTarget:
    """A tail-latency target: this percentile of response time stays within this latency."""

    latency_ns: int
    percentile: float = 99.0

    def slack(self, latency_ns: int) -> float:
        """(target - latency) / target: 1 at no latency, 0 on target, negative in violation (section 4.2)."""
        return (self.latency_ns - latency_ns) / self.latency_ns


@dataclass(frozen=True, slots=True)
class Service:
    """A latency-critical service as the policy knows it. Limits are amounts by resource; min == max pins it."""

    name: str
    target: QosTarget
    home: int = 0
    stateless: bool = False
    in_memory: bool | None = None  # None: classified at its start (section 4.2)
    minimum: Mapping[Resource, int] = field(default_factory=dict)
    maximum: Mapping[Resource, int] = field(default_factory=dict)
    peak_load_rps: float = 0.0  # the largest load it is meant for; 0: not known

    def floor(self, pool: Pool) -> int:
        """The least it may hold of a pool."""
        lowest = pool.levels[0] if pool.levels else pool.floor
        return max(lowest, self.minimum.get(pool.key.resource, 0))

    def ceiling(self, pool: Pool) -> int:
        """The most it may hold of a pool."""
        highest = pool.levels[-1] if pool.levels else pool.total
        return min(highest, self.maximum.get(pool.key.resource, highest))


class Reason(enum.StrEnum):
    """Why a move was made, or why none was: the same constant in log, metric, record and explanation (invariant 7)."""

    UPSIZE_FROM_IDLE = "upsize-from-idle"
    UPSIZE_FROM_BEST_EFFORT = "upsize-from-best-effort"
    UPSIZE_FROM_LARGEST_SLACK = "upsize-from-largest-slack"
    UPSIZE_FROM_MEMORY_SLACK = "upsize-from-memory-slack"
    UPSIZE_FREQUENCY = "upsize-frequency"
    DOWNSIZE_LARGEST_SLACK = "downsize-largest-slack"
    DOWNSIZE_REVERTED = "downsize-reverted"
    NETWORK_HEADROOM_LOW = "network-headroom-low"
    NETWORK_HEADROOM_HIGH = "network-headroom-high"
    ABSENT_RELEASED = "absent-released"
    RETURNED_ADMITTED = "returned-admitted"
    HOLD_TARGETS_MET = "hold-targets-met"
    HOLD_NOT_JUDGED = "hold-not-judged"  # no service has a value that may be acted on
    HOLD_PENDING = "hold-pending"  # an earlier move is not through yet
    HOLD_NOTHING_TO_GIVE = "hold-nothing-to-give"  # in violation, and every resource at its end
    HOLD_DOWNSIZE_BLOCKED = "hold-downsize-blocked"
    HOLD_NOTHING_TO_TAKE = "hold-nothing-to-take"  # relaxed, and already at the floor of everything
    HOLD_NOT_MANAGED = "hold-not-managed"  # the policy partitions nothing
    HOLD_FIXED = "hold-fixed"  # the policy never changes its partition
    MIGRATE_NO_ALLOCATION = "migrate-no-allocation"
    # Heracles: what happens to the best-effort group.
    BEST_EFFORT_SUSPENDED = "best-effort-suspended"  # the service misses its target
    BEST_EFFORT_SUSPENDED_BY_LOAD = "best-effort-suspended-by-load"  # the service is near its peak
    BEST_EFFORT_RESUMED = "best-effort-resumed"
    BEST_EFFORT_GROWN = "best-effort-grown"
    BEST_EFFORT_GROWTH_UNDONE = "best-effort-growth-undone"  # it cost the service its target, or lowered no memory traffic
    BEST_EFFORT_CUT_BY_SLACK = "best-effort-cut-by-slack"
    BEST_EFFORT_CUT_BY_MEMORY_BANDWIDTH = "best-effort-cut-by-memory-bandwidth"
    BEST_EFFORT_SLOWED_BY_POWER = "best-effort-slowed-by-power"
    BEST_EFFORT_QUICKENED = "best-effort-quickened"  # power is left again
    BEST_EFFORT_NETWORK = "best-effort-network"  # what the service leaves of the link
    IDLE_TO_SERVICE = "idle-to-service"
    HOLD_SUSPENDED = "hold-suspended"  # best effort stays off
    HOLD_NO_GROWTH = "hold-no-growth"  # too little slack for best effort to grow
    # Oracle.
    SOLVED_ALLOCATION = "solved-allocation"  # on the way to the allocation that the search found
    HOLD_SOLVED = "hold-solved"  # it is in force
    HOLD_NO_ALLOCATION = "hold-no-allocation"  # none meets every target


@value
class Move:
    """One amount of one pool from one holder to another, decided in interval ``tick``.

    For frequency the holder that is not concerned is None: raising takes from nobody, lowering gives to nobody.
    """

    tick: int
    pool: PoolKey
    giver: Holder | None
    taker: Holder | None
    amount: int
    reason: Reason

    def reversed(self, tick: int, reason: Reason) -> Move:
        """The move that undoes this one."""
        return Move(tick, self.pool, self.taker, self.giver, self.amount, reason)


class MoveStatus(enum.StrEnum):
    """What became of a move."""

    DONE = "done"
    REFUSED = "refused"  # rolled back; the partition is as before
    PENDING = "pending"  # a slow write is under way; the partition is as before until it is through


@value
class MoveOutcome:
    """The fate of an earlier move, with the kernel's words where it was refused."""

    move: Move
    status: MoveStatus
    detail: str = ""


@value
class Partition:
    """Who holds how much of each managed pool. Immutable; every amount is at least 0.

    For a shared pool the amounts of all holders, idle and reserved included, add up to the pool's total. A pool that is not named
    at all is not partitioned: everybody uses it without limits (Heracles leaves memory and disk so).
    """

    amounts: Mapping[PoolKey, Mapping[Holder, int]]

    def amount(self, pool: PoolKey, holder: Holder) -> int:
        """What a holder has of a pool; 0 if nothing."""
        held = self.amounts.get(pool)
        return 0 if held is None else held.get(holder, 0)

    def after(self, moves: Iterable[Move]) -> Partition:
        """The partition once the moves are through. Raises InvariantError if a giver has less than is taken."""
        amounts = dict(self.amounts)
        touched: dict[PoolKey, dict[Holder, int]] = {}  # the pools that nothing moves in are shared with this partition
        for move in moves:
            held = touched.get(move.pool)
            if held is None:
                held = amounts[move.pool] = touched[move.pool] = dict(amounts.get(move.pool, {}))
            if move.amount <= 0 or move.giver == move.taker:
                raise InvariantError(f"not a move: {move}")
            if move.giver is not None:
                left = held.get(move.giver, 0) - move.amount
                if left < 0:
                    raise InvariantError(f"{move.giver} holds {held.get(move.giver, 0)} of {move.pool}: {move}")
                held[move.giver] = left
            if move.taker is not None:
                held[move.taker] = held.get(move.taker, 0) + move.amount
        return Partition(amounts)

    def check(self, node: Node, services: Iterable[Service]) -> None:
        """Raise InvariantError unless conservation holds and each of these services has one step of everything partitioned.

        Services that live in another's holder (``Policy.sharing``) have nothing of their own and are not to be given.
        """
        services = tuple(services)
        for pool in node.managed_pools():
            held = self.amounts.get(pool.key)
            if held is None:
                continue
            if any(amount < 0 for amount in held.values()):
                raise InvariantError(f"{pool.key}: a negative amount in {dict(held)}")
            if pool.key.resource.shared_pool and sum(held.values()) != pool.total:
                raise InvariantError(f"{pool.key}: {dict(held)} adds up to {sum(held.values())}, not to {pool.total}")
            for service in services:
                if node.key(pool.key.resource, service.home) != pool.key:
                    continue
                least = pool.levels[0] if pool.levels else pool.step
                if held.get(service.name, 0) < least:
                    raise InvariantError(f"{pool.key}: {service.name} holds {held.get(service.name, 0)}, under {least}")


class ServiceState(enum.StrEnum):
    """What can be said of a service in this interval (invariant 4)."""

    OK = "ok"  # the percentile is supported by its samples
    IDLE = "idle"  # nothing was asked for
    FEW_SAMPLES = "few-samples"  # asked for, answered, but too little even in the longest window
    STALE = "stale"  # no message, an old one, a dead feed: hold
    STALLED = "stalled"  # outstanding or unsent requests, none completing: the worst violation
    FAILING = "failing"  # answers, but too many of them errors
    ABSENT = "absent"  # no process in its group


@value
class Usage:
    """What a holder used during the interval; None where this machine cannot tell."""

    cpu_millicores: int | None = None
    memory_bytes: int | None = None
    disk_bytes_per_s: int | None = None
    network_bits_per_s: int | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    frequency_hz: int | None = None  # what its cores ran at, which a level of the frequency pool only asks for
    progress: float | None = None  # best effort: work done per second over what it does alone on the whole node
    cpu_pressure: float | None = None  # fraction of the interval in which some process waited for a CPU (PSI)
    memory_pressure: float | None = None  # the same for memory: reclaim, pages read again
    io_pressure: float | None = None  # the same for disks
    cache_bytes: int | None = None  # what its lines take of the last-level cache

    def of(self, resource: Resource) -> int | None:
        """The use of one resource in its base unit, or None."""
        return {
            Resource.CORES: self.cpu_millicores,
            Resource.MEMORY: self.memory_bytes,
            Resource.DISK: self.disk_bytes_per_s,
            Resource.NETWORK: self.network_bits_per_s,
        }.get(resource)


@value
class LatencyView:
    """What the signal says of one service at the end of an interval.

    ``latency_ns`` is what violations are judged by; ``cautious_latency_ns`` what is judged before something is taken from the
    service (the upper confidence bound; equal to ``latency_ns`` where bounds are switched off). Both are None where ``state``
    supports no value. ``fresh`` is false when nothing has arrived since the value was last handed out: nobody acts on one value
    twice.
    """

    state: ServiceState
    latency_ns: int | None = None
    cautious_latency_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    samples: int = 0
    window_ns: int = 0
    age_ns: int = 0
    fresh: bool = False
    scheduled: int = 0  # the counts are of the last interval
    completed: int = 0
    failed: int = 0
    unsent: int = 0
    outstanding: int = 0
    oldest_outstanding_ns: int = 0
    load_rps: float = 0.0  # requests that were due, per second


@value
class ServiceObservation:
    """One service in one interval: the signal's view and what it used."""

    latency: LatencyView
    usage: Usage = field(default_factory=Usage)
    in_memory: bool | None = None  # as configured or as found out; None while not yet known


@value
class Observation:
    """Everything a policy may know of an interval. ``partition`` is as read back, not as wished."""

    now_ns: int
    tick: int
    services: Mapping[str, ServiceObservation]
    partition: Partition
    outcomes: tuple[MoveOutcome, ...] = ()  # of moves that ended, or are still pending, since the last observation
    best_effort: Usage = field(default_factory=Usage)
    best_effort_present: bool = True
    memory_bandwidth_bytes_per_s: int | None = None  # of the whole node; None where this machine cannot tell
    power_milliwatts: int | None = None  # of the managed sockets


@dataclass(frozen=True, slots=True)
class MigrationRequest:
    """No allocation met every target for so long: this service should go elsewhere, and why (section 4.3)."""

    service: str
    violated_for_ns: int
    violating: tuple[str, ...]


@value
class Decision:
    """What a policy wants done, and the reason; ``subject`` is the service that the reason speaks of."""

    moves: tuple[Move, ...]
    reason: Reason
    subject: str | None = None
    slack: Mapping[str, float] = field(default_factory=dict)
    migration: MigrationRequest | None = None

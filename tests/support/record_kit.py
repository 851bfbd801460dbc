"""Records of short runs of the real loop on a toy node: queues whose capacity comes from cores and ways, failures included."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from parties.loop import Loop
from parties.membership import Membership
from parties.model import (
    Core,
    Domain,
    Holder,
    LatencyView,
    Move,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
)
from parties.policies.registry import policy_named
from parties.record import RecordWriter
from parties.settings import MS, BestEffortSettings, ControlSettings, ServiceSettings

INTERVAL_NS = 500 * MS
TARGET_NS = 10 * MS
GB = 1_000_000_000
CORES, CACHE = PoolKey(Resource.CORES, 0), PoolKey(Resource.CACHE, 0)
MEMORY = PoolKey(Resource.MEMORY, 0)
NODE = Node(
    "toy",
    (Domain(0, tuple(Core(core, (core,)) for core in range(14))),),
    {
        CORES: Pool(CORES, total=14_000, step=1000, floor=1000),
        CACHE: Pool(CACHE, total=20, step=1, floor=1),
        MEMORY: Pool(MEMORY, total=60 * GB, step=GB, floor=GB),
    },
)
SERVICES = tuple(Service(name, QosTarget(TARGET_NS), in_memory=False) for name in ("web", "db"))


class ToyPlatform:
    """A platform with virtual time. ``rng`` draws loads, absences and the fate of moves; missed ticks too if ``late``."""

    node = NODE

    def __init__(self, rng: random.Random, *, troubled: bool) -> None:
        self._rng = rng
        self._troubled = troubled
        self._time_ns = 0
        self._partition = Partition({})
        self._outcomes: tuple[MoveOutcome, ...] = ()
        self._pending: tuple[Move, ...] = ()
        self._absent: dict[str, int] = {}
        self._loads = {"web": 5.0, "db": 1.0}

    def now_ns(self) -> int:
        return self._time_ns

    def wait_until(self, deadline_ns: int) -> bool:
        late = self._troubled and self._rng.random() < 0.03
        self._time_ns = max(self._time_ns, deadline_ns) + (3 * INTERVAL_NS // 2 if late else 0)
        return True

    def start(self, partition: Partition | None, *, best_effort_idle_class: bool, sharing: Mapping[str, Holder]) -> None:
        del best_effort_idle_class, sharing
        self._partition = partition or Partition({})

    def observe(self, tick: int) -> Observation:
        self._end_pending()
        seen = {name: ServiceObservation(self._view(name)) for name in self._loads}
        outcomes, self._outcomes = self._outcomes, ()
        return Observation(self._time_ns, tick, seen, self._partition, outcomes)

    def apply(self, moves: Sequence[Move]) -> None:
        for move in moves:
            draw = self._rng.random() if self._troubled else 1.0
            if draw < 0.1:
                self._outcomes += (MoveOutcome(move, MoveStatus.REFUSED, "busy"),)
            elif draw < 0.2:
                self._outcomes += (MoveOutcome(move, MoveStatus.PENDING),)
                self._pending += (move,)
            else:
                self._partition = self._partition.after((move,))
                self._outcomes += (MoveOutcome(move, MoveStatus.DONE),)

    def close(self) -> None:
        raise NotImplementedError

    def _end_pending(self) -> None:
        for move in self._pending:
            if move not in [outcome.move for outcome in self._outcomes]:
                held = self._partition.amount(move.pool, move.giver) if move.giver else move.amount
                done = held >= move.amount
                self._partition = self._partition.after((move,)) if done else self._partition
                self._outcomes += (MoveOutcome(move, MoveStatus.DONE if done else MoveStatus.REFUSED),)
        self._pending = tuple(outcome.move for outcome in self._outcomes if outcome.status is MoveStatus.PENDING)

    def _view(self, name: str) -> LatencyView:
        self._loads[name] = min(8.0, max(0.2, self._loads[name] + self._rng.uniform(-0.3, 0.3)))
        if self._troubled and self._rng.random() < 0.02:
            self._absent[name] = self._rng.randrange(1, 12)
        if self._absent.get(name, 0) > 0:
            self._absent[name] -= 1
            return LatencyView(ServiceState.ABSENT)
        cores = self._partition.amount(CORES, name) / 1000
        capacity = (cores or 7.0) * (0.7 + 0.3 * min(1.0, self._partition.amount(CACHE, name) / 8))
        load = self._loads[name]
        if load >= capacity:
            return LatencyView(ServiceState.STALLED, fresh=True, outstanding=9, oldest_outstanding_ns=TARGET_NS, load_rps=load)
        latency_ns = round(4.6 * MS / (1 - load / capacity))
        return LatencyView(ServiceState.OK, latency_ns, latency_ns + MS, fresh=True, samples=99, load_rps=load)


def write_record(  # noqa: PLR0913 - what a run may differ in
    path: Path,
    *,
    ticks: int = 200,
    policy: str = "parties",
    seed: int = 1,
    troubled: bool = True,
    services: Sequence[Service] = SERVICES,
) -> Path:
    """Run a policy on the toy node and record it; ``troubled`` adds absences, refused and slow moves, and missed ticks."""
    settings = ControlSettings(
        services=tuple(ServiceSettings(service.name, TARGET_NS, (f"/{service.name}",)) for service in services),
        best_effort=(BestEffortSettings("batch", ("/batch",)),),
        policy=policy,
        seed=seed,
        absent_grace_ns=2 * INTERVAL_NS,
    )
    made = policy_named(policy)(
        NODE,
        services,
        best_effort=True,
        settings=settings.parties,
        rng=random.Random(seed),  # noqa: S311 - repeatable
    )
    platform = ToyPlatform(random.Random(seed + 1000), troubled=troubled)  # noqa: S311 - repeatable
    platform.start(made.initial(), best_effort_idle_class=made.best_effort_idle_class, sharing=made.sharing)
    writer = RecordWriter(path)
    writer.header(platform="toy", started_unix_ns=1, node=NODE, settings=settings, services=tuple(services))
    membership = Membership(NODE, services, grace_ns=settings.absent_grace_ns)
    Loop(platform, made, interval_ns=INTERVAL_NS, membership=membership, listeners=(writer,)).run(ticks=ticks)
    writer.report({"ticks": ticks})
    writer.close()
    return path

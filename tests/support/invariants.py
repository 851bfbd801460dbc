"""What has to hold in every interval of every run, as a listener of the loop: invariants 1, 2, 4 and 7 of the design."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from parties.model import (
    BEST_EFFORT,
    IDLE,
    RESERVED,
    Decision,
    Holder,
    Move,
    MoveStatus,
    Node,
    Observation,
    Reason,
    Resource,
    Service,
    ServiceState,
)
from parties.placement import Placement
from parties.record import Timing
from simulator.platform import SimulatedPlatform

_TRADED = frozenset(Resource) - {Resource.NETWORK}
_NO_VALUE = frozenset({ServiceState.IDLE, ServiceState.FEW_SAMPLES, ServiceState.STALE, ServiceState.ABSENT})


class InvariantListener:
    """Asserts, after each tick, that the partition, its placement, and what was decided are sound.

    ``sharing`` are the services without a holder of their own. ``literal`` adds what holds for PARTIES alone.
    """

    def __init__(
        self, platform: SimulatedPlatform, services: Sequence[Service], sharing: Iterable[str] = (), *, literal: bool = False
    ) -> None:
        self.ticks = 0
        self._platform = platform
        self._node = platform.node
        self._own = [service for service in services if service.name not in set(sharing)]
        self._holders = {service.name for service in services} | {BEST_EFFORT, IDLE, RESERVED}
        self._literal = literal
        self._expected = None  # the partition that follows from what was done
        self._now_ns = -1

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Check one interval."""
        del timing
        self.ticks += 1
        assert observation.now_ns > self._now_ns
        self._now_ns = observation.now_ns
        self._check_partition(observation)
        self._check_views(observation)
        self._check_moves(observation, decision)
        if self._literal:
            self._check_literal(observation, decision)

    def _check_partition(self, observation: Observation) -> None:
        if not observation.partition.amounts:
            assert self._platform.placement is None
            return
        observation.partition.check(self._node, self._own)
        placement = self._platform.placement
        assert placement is not None
        check_placement(self._node, placement)

    def _check_views(self, observation: Observation) -> None:
        """Absent, stale, zero and stalled are four different things, and only what was measured has a latency."""
        for seen in observation.services.values():
            view = seen.latency
            if view.state in _NO_VALUE:
                assert view.latency_ns is None
            if view.latency_ns is not None:
                assert view.cautious_latency_ns is not None
                assert view.cautious_latency_ns >= view.latency_ns >= 0

    def _check_moves(self, observation: Observation, decision: Decision) -> None:
        assert isinstance(decision.reason, Reason)
        for move in decision.moves:
            assert isinstance(move.reason, Reason)
            assert move.tick == observation.tick
            assert {move.giver, move.taker} <= self._holders | {None}
            _check_amount(self._node, move)
        observation.partition.after(decision.moves)  # nobody gives what it has not

    def _check_literal(self, observation: Observation, decision: Decision) -> None:
        """One move of one traded resource in an interval, never on a value that was acted on before."""
        if decision.reason in (Reason.ABSENT_RELEASED, Reason.RETURNED_ADMITTED):
            return  # the loop's own
        traded = [move for move in decision.moves if move.pool.resource in _TRADED]
        assert len(traded) <= 1
        pending = {outcome.move.pool for outcome in observation.outcomes if outcome.status is MoveStatus.PENDING}
        for move in traded:
            assert move.pool not in pending
            if move.reason is not Reason.DOWNSIZE_REVERTED:
                view = observation.services[str(decision.subject)].latency
                assert view.fresh
                assert view.state not in (ServiceState.FEW_SAMPLES, ServiceState.STALE, ServiceState.ABSENT)


def check_placement(node: Node, placement: Placement) -> None:
    """No two holders share a core or a way; cores are whole, masks contiguous, and both as large as the partition says."""
    cpus = {holder: set(held) for holder, held in placement.cpus.items()}
    assert _disjoint(cpus.values())
    cores = [set(core.cpus) for domain in node.domains for core in domain.cores]
    for held in cpus.values():
        assert all(core <= held or not core & held for core in cores)  # both hardware threads
    for pool in node.managed_pools():
        for holder, amount in placement.partition.amounts.get(pool.key, {}).items():
            if pool.key.resource is Resource.CORES:
                assert sum(core <= cpus[holder] for core in cores) * 1000 == amount
            elif pool.key.resource is Resource.CACHE and holder != IDLE:
                _check_mask(placement.way_masks.get((pool.key.domain or 0, holder), 0), amount, pool.total)
    assert _disjoint({bit for bit in range(mask.bit_length()) if mask >> bit & 1} for mask in placement.way_masks.values())


def _check_mask(mask: int, ways: int, total: int) -> None:
    assert mask.bit_count() == ways
    assert mask.bit_length() <= total
    if mask:
        lowest = (mask & -mask).bit_length() - 1
        assert mask >> lowest == (1 << ways) - 1


def _disjoint(sets: Iterable[set[int]]) -> bool:
    return all(not one & other for one, other in combinations(list(sets), 2))


def _check_amount(node: Node, move: Move) -> None:
    pool = node.pools[move.pool]
    assert move.amount > 0
    assert pool.managed
    if pool.key.resource.shared_pool:
        assert move.amount % pool.step == 0
        assert None not in (move.giver, move.taker)
    else:
        holders: tuple[Holder | None, ...] = (move.giver, move.taker)
        assert holders.count(None) == 1

"""Services that come and go while the daemon runs.

A vanished process is normal: the service becomes *absent*, and after a grace time what it holds above its floor goes back to the
best-effort pool, or to idle. When it returns it takes idle first, then from the best-effort pool, up to what it had; the rest it
has to win through the policy. Never a global reset. What is refused then, because a slow write holds the pool, is asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from parties.model import (
    BEST_EFFORT,
    IDLE,
    NS_PER_S,
    Decision,
    Holder,
    Move,
    MoveStatus,
    Node,
    Observation,
    PoolKey,
    Reason,
    Service,
    ServiceState,
)

RETRY_NS = 2 * NS_PER_S  # between two requests for the same: a slow write is through by then, and the policy has its turns
MOST_REFUSALS = 5  # then the service has to win the rest through the policy

_ABSENT = ServiceState.ABSENT


@dataclass(slots=True)
class _Absence:
    since_ns: int
    released: dict[PoolKey, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Refusal:
    """What of an admission was refused, and when last."""

    at_ns: int = 0
    count: int = 0
    owed: dict[PoolKey, int] = field(default_factory=dict)


class Membership:
    """Decides on services that became absent or returned; None while there is nothing to do."""

    def __init__(self, node: Node, services: Sequence[Service], *, grace_ns: int) -> None:
        self._node = node
        self._services = {service.name: service for service in services}
        self._grace_ns = grace_ns
        self._absent: dict[str, _Absence] = {}
        self._refused: dict[str, _Refusal] = {}

    def decide(self, observation: Observation) -> Decision | None:
        """The release or the admission that is due, at most one service's per interval."""
        self._note_refusals(observation)
        for name, service in self._services.items():
            seen = observation.services.get(name)
            if seen is None:
                continue
            if seen.latency.state is _ABSENT:
                if moves := self._release(service, observation):
                    return Decision(moves, Reason.ABSENT_RELEASED, name)
            elif (name in self._absent or name in self._refused) and (moves := self._admit(service, observation)):
                return Decision(moves, Reason.RETURNED_ADMITTED, name)
        return None

    def _release(self, service: Service, observation: Observation) -> tuple[Move, ...]:
        refusal = self._refused.pop(service.name, None)
        owed = refusal.owed if refusal is not None else {}  # gone again before it had back what it had
        absence = self._absent.setdefault(service.name, _Absence(observation.now_ns, owed))
        if observation.now_ns - absence.since_ns < self._grace_ns:
            return ()
        taker = BEST_EFFORT if observation.best_effort_present else IDLE
        moves = []
        for pool in self._node.managed_pools():
            if not pool.key.resource.shared_pool or self._node.key(pool.key.resource, service.home) != pool.key:
                continue
            spare = observation.partition.amount(pool.key, service.name) - service.floor(pool)
            if spare > 0:
                absence.released.setdefault(pool.key, spare)  # a refused release comes by again
                moves.append(Move(observation.tick, pool.key, service.name, taker, spare, Reason.ABSENT_RELEASED))
        return tuple(moves)

    def _note_refusals(self, observation: Observation) -> None:
        for outcome in observation.outcomes:
            move = outcome.move
            if outcome.status is MoveStatus.REFUSED and move.reason is Reason.RETURNED_ADMITTED and move.taker is not None:
                refusal = self._refused.setdefault(move.taker, _Refusal())
                refusal.count += refusal.at_ns != observation.now_ns
                refusal.at_ns = observation.now_ns
                refusal.owed[move.pool] = refusal.owed.get(move.pool, 0) + move.amount

    def _due(self, name: str, now_ns: int) -> dict[PoolKey, int]:
        """What a service that is there should be given back now."""
        absence = self._absent.pop(name, None)
        if absence is not None:
            return absence.released
        refusal = self._refused[name]
        if refusal.count > MOST_REFUSALS or now_ns - refusal.at_ns < RETRY_NS:
            return {}
        owed, refusal.owed = refusal.owed, {}
        return owed

    def _admit(self, service: Service, observation: Observation) -> tuple[Move, ...]:
        moves = []
        for key, wanted in self._due(service.name, observation.now_ns).items():
            for giver in (IDLE, BEST_EFFORT):
                amount = self._available(key, giver, wanted, observation)
                if amount > 0:
                    moves.append(Move(observation.tick, key, giver, service.name, amount, Reason.RETURNED_ADMITTED))
                    wanted -= amount  # noqa: PLW2901 - what is left to find
        return tuple(moves)

    def _available(self, key: PoolKey, giver: Holder, wanted: int, observation: Observation) -> int:
        pool = self._node.pools[key]
        return max(0, min(wanted, pool.spare(giver, observation.partition.amount(key, giver)))) // pool.step * pool.step

"""PARTIES: QoS-aware partitioning for several services (section 4.3, Algorithms 1 to 4), to the letter.

Every interval: the network rule; then, at most one move of one resource. The service with the smallest slack is upsized if that is
under 5 %; otherwise the one with the largest slack is downsized if that is over 20 %. Which resource, the trading wheels say. A
downsize that brings its service under 5 % is reverted at once, and that service is left alone for 30 s. An upsize is never
reverted. After 60 s without an allocation that meets every target, one service is to migrate. Each domain is a game of its own.

What the paper leaves open, and what is chosen here, is in docs/parties-algorithm.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from parties.model import (
    BEST_EFFORT,
    IDLE,
    Decision,
    Holder,
    Move,
    MoveStatus,
    Node,
    Observation,
    Partition,
    PoolKey,
    Reason,
    Resource,
    Service,
    ServiceState,
)
from parties.policies.exchange import Exchange, Offers, pools_of
from parties.policies.fair import fair_start
from parties.policies.judgement import Verdict, slacks, verdicts
from parties.policies.migration import MigrationTimer
from parties.policies.network import check_network, network_moves
from parties.policies.wheels import Action, Direction, kept, next_action, possible_action
from parties.settings import PartiesSettings


@dataclass(slots=True)
class _Trial:
    """An action whose effect is awaited: what the service had of the pool, and its latency, when it was decided."""

    action: Action
    move: Move
    held_before: int
    latency_before_ns: float
    was_pending: bool = False


@dataclass(slots=True)
class _Tenant:
    """What PARTIES remembers of a service."""

    service: Service
    action: Action | None = None
    trial: _Trial | None = None  # not judged yet
    revert: _Trial | None = None  # a downsize judged bad and not undone yet
    blocked_until_ns: int | None = None  # not downsized before

    def blocked(self, now_ns: int) -> bool:
        return self.blocked_until_ns is not None and now_ns < self.blocked_until_ns


class _Choice(NamedTuple):
    """The move of an interval, or why there is none."""

    move: Move | None
    reason: Reason
    subject: str | None

    def rank(self) -> int:
        """Sorts what is to be told first where several domains chose: moves, then what keeps from one, the gravest first."""
        return -1 if self.move is not None else _HOLD_ORDER.index(self.reason)


_Game = Mapping[str, _Tenant]
"""The services that trade with each other: those of one domain."""


class Parties:
    """The policy of the paper. Best-effort jobs run in the idle class; they hold what is left and give first."""

    name = "parties"
    best_effort_idle_class = True
    sharing: Mapping[str, Holder] = MappingProxyType({})

    def __init__(
        self, node: Node, services: Sequence[Service], *, best_effort: bool, settings: PartiesSettings, rng: random.Random
    ) -> None:
        """Raise ValueError for settings that contradict each other, or for a node too small for the services."""
        _check(node, settings)
        self._services = tuple(services)
        self._best_effort = best_effort
        self._settings = settings
        self._rng = rng
        self._tenants = {service.name: _Tenant(service) for service in self._services}
        self._pools = pools_of(node, self._services)
        self._games = _games(node, self._tenants)
        self._migration = MigrationTimer(self._services, settings.migrate_after_ns)
        self._node = node
        self._too_little: dict[PoolKey, int] = {}  # what best effort was to be left with, where it uses more and that was refused
        self._initial = fair_start(node, self._services, best_effort=best_effort)

    def initial(self) -> Partition:
        """The fair start."""
        return self._initial

    def decide(self, observation: Observation) -> Decision:
        """The moves of this interval: network steps, at most one other step in each domain, and a migration if it is due."""
        judged = verdicts(self._services, observation)
        self._note_refusals(observation)
        exchange = self._exchange(observation, judged)
        self._settle(exchange)
        moves = network_moves(self._services, exchange, self._settings)
        choices = [self._choose(game, seen, exchange) for game, seen in self._by_need(judged)]
        moves += tuple([choice.move for choice in choices if choice.move is not None])
        choice = min(choices, key=_Choice.rank)
        migration = self._migration.update(observation, judged)
        if migration is not None:
            return Decision(moves, Reason.MIGRATE_NO_ALLOCATION, migration.service, slacks(judged), migration)
        return Decision(moves, choice.reason, choice.subject, slacks(judged))

    def _exchange(self, observation: Observation, judged: Mapping[str, Verdict]) -> Exchange:
        recipient = BEST_EFFORT if self._best_effort and observation.best_effort_present else IDLE
        closed = frozenset([move.pool for move in _pending(observation)])
        withheld = {key: amount + self._node.pools[key].step for key, amount in self._too_little.items()}
        return Exchange(self._pools, self._services, self._settings, observation, judged, closed, frozenset(), recipient, withheld)

    def _note_refusals(self, observation: Observation) -> None:
        """Memory that best-effort jobs use and that could not be taken from them is not asked for again until they use less.

        A platform cannot take what is in use (EBUSY), and a frozen job frees nothing, so that every attempt costs an interval.
        """
        use = observation.best_effort.memory_bytes
        for outcome in observation.outcomes:
            move = outcome.move
            if outcome.status is MoveStatus.REFUSED and move.giver == BEST_EFFORT and move.pool.resource is Resource.MEMORY:
                left = observation.partition.amount(move.pool, BEST_EFFORT) - move.amount
                self._too_little[move.pool] = max(left, self._too_little.get(move.pool, 0))
        self._too_little = {key: left for key, left in self._too_little.items() if use is not None and use > left}

    def _engaged(self, exchange: Exchange) -> set[str]:
        """Who may take part in no move: whose last action is not judged or not undone yet, or who is party to another move."""
        engaged = {name for name, tenant in self._tenants.items() if tenant.trial is not None or tenant.revert is not None}
        engaged.update(exchange.traded)
        for move in _pending(exchange.observation):
            engaged.update(holder for holder in (move.giver, move.taker) if holder is not None)
        return engaged

    # What became of earlier actions.

    def _settle(self, exchange: Exchange) -> None:
        status = {outcome.move: outcome.status for outcome in exchange.observation.outcomes}
        for tenant in self._tenants.values():
            if tenant.trial is None and tenant.revert is None:
                continue
            if exchange.state(tenant.service) is ServiceState.ABSENT:
                tenant.trial = tenant.revert = None  # what came of the move went with the process
            elif tenant.trial is not None:
                self._settle_trial(tenant, tenant.trial, status.get(tenant.trial.move, MoveStatus.DONE), exchange)

    def _settle_trial(self, tenant: _Tenant, trial: _Trial, status: MoveStatus, exchange: Exchange) -> None:
        verdict = exchange.verdicts.get(tenant.service.name)
        if status is MoveStatus.REFUSED:  # it cannot be done, so there is nothing to judge or to revert
            tenant.trial = None
            tenant.action = self._turned(trial.action, tenant, exchange)
        elif status is MoveStatus.PENDING:
            trial.was_pending = True
        elif trial.was_pending:
            trial.was_pending = False  # through since some time in this interval: the next one is the first that it shaped
        elif verdict is not None:
            self._judge(tenant, trial, verdict, exchange)

    def _judge(self, tenant: _Tenant, trial: _Trial, verdict: Verdict, exchange: Exchange) -> None:
        tenant.trial = None
        if self._helped(trial, verdict):
            tenant.action = kept(trial.action)
            return
        tenant.action = self._turned(trial.action, tenant, exchange)
        if trial.action.direction is Direction.DOWN:
            tenant.revert = trial
            tenant.blocked_until_ns = exchange.observation.now_ns + self._settings.downsize_block_ns

    def _helped(self, trial: _Trial, verdict: Verdict) -> bool:
        if trial.action.direction is Direction.UP:
            return verdict.latency_ns <= trial.latency_before_ns and not verdict.stalled
        return verdict.slack >= self._settings.upsize_slack and not verdict.failing

    def _turned(self, action: Action, tenant: _Tenant, exchange: Exchange) -> Action:
        nearly_full = exchange.memory_nearly_full(tenant.service)
        return next_action(action, action.direction, memory_nearly_full=nearly_full, rng=self._rng)

    # The decision of this interval.

    def _by_need(self, judged: Mapping[str, Verdict]) -> Sequence[tuple[_Game, Mapping[str, Verdict]]]:
        """Each domain with its verdicts, that of the most urgent service first: it chooses first of what the whole node shares."""
        if len(self._games) == 1:
            return [(self._games[0], judged)]
        seen = [(game, {name: judged[name] for name in game if name in judged}) for game in self._games]
        return sorted(seen, key=lambda pair: min([verdict.urgency for verdict in pair[1].values()], default=_NO_NEED))

    def _choose(self, game: _Game, judged: Mapping[str, Verdict], exchange: Exchange) -> _Choice:
        """The choice of a domain. What it moves of the whole node's, and whose, is left alone by the domains after it."""
        exchange.engaged = self._engaged(exchange)
        choice = self._revert(game, exchange) or self._upsize(judged, exchange) or self._downsize(judged, exchange)
        if choice.move is not None and len(self._games) > 1:
            exchange.closed |= {choice.move.pool}
            exchange.traded |= {holder for holder in (choice.move.giver, choice.move.taker) if holder is not None}
        return choice

    def _revert(self, game: _Game, exchange: Exchange) -> _Choice | None:
        reverting = [tenant for tenant in game.values() if tenant.revert is not None]
        for tenant in reverting:
            if tenant.revert is None or tenant.revert.move.pool in exchange.closed:
                continue
            downsize, tenant.revert = tenant.revert, None
            # It has what it had: the step never went, or came back another way.
            if exchange.observation.partition.amount(downsize.move.pool, tenant.service.name) >= downsize.held_before:
                continue
            move = exchange.restoring(tenant.service, downsize.move)
            if move is not None:
                return _Choice(move, move.reason, tenant.service.name)
        if reverting:
            exchange.engaged = self._engaged(exchange)  # what need not be undone, or cannot be, is settled
        return None

    def _upsize(self, judged: Mapping[str, Verdict], exchange: Exchange) -> _Choice | None:
        violating = [name for name, verdict in judged.items() if verdict.slack < self._settings.upsize_slack]
        if not violating:
            return None
        violating.sort(key=lambda name: judged[name].urgency)
        tenant = next((self._tenants[name] for name in violating if name not in exchange.engaged), None)
        if tenant is None:
            return _Choice(None, Reason.HOLD_PENDING, violating[0])
        move = self._take_action(tenant, Direction.UP, exchange.upsizes(tenant.service), exchange)
        if move is None:
            reason = Reason.HOLD_PENDING if exchange.waits(tenant.service) else Reason.HOLD_NOTHING_TO_GIVE
            return _Choice(None, reason, tenant.service.name)
        self._prevent_ping_pong(move, exchange)
        return _Choice(move, move.reason, tenant.service.name)

    def _downsize(self, judged: Mapping[str, Verdict], exchange: Exchange) -> _Choice:
        sound = [name for name, verdict in judged.items() if not verdict.failing]
        relaxed = [name for name in sound if judged[name].cautious_slack > self._settings.downsize_slack]
        if not relaxed:
            return _Choice(None, Reason.HOLD_TARGETS_MET if sound else Reason.HOLD_NOT_JUDGED, None)
        relaxed.sort(key=lambda name: -judged[name].cautious_slack)
        held: list[_Choice] = []
        for name in relaxed:
            tenant = self._tenants[name]
            if tenant.blocked(exchange.observation.now_ns):
                held.append(_Choice(None, Reason.HOLD_DOWNSIZE_BLOCKED, name))
            elif name in exchange.engaged:
                held.append(_Choice(None, Reason.HOLD_PENDING, name))
            else:
                move = self._take_action(tenant, Direction.DOWN, exchange.downsizes(tenant.service), exchange)
                if move is not None:
                    return _Choice(move, move.reason, name)
                waits = exchange.waits(tenant.service)
                held.append(_Choice(None, Reason.HOLD_PENDING if waits else Reason.HOLD_NOTHING_TO_TAKE, name))
        return min(held, key=lambda choice: _HOLD_ORDER.index(choice.reason))

    def _take_action(self, tenant: _Tenant, direction: Direction, offers: Offers, exchange: Exchange) -> Move | None:
        nearly_full = exchange.memory_nearly_full(tenant.service)
        action = possible_action(tenant.action, direction, offers, memory_nearly_full=nearly_full, rng=self._rng)
        move = None if action is None else offers.get(action.resource)
        if action is None or move is None:
            return None
        name = tenant.service.name
        latency_before_ns = exchange.verdicts[name].latency_ns
        tenant.action = action
        tenant.trial = _Trial(action, move, exchange.observation.partition.amount(move.pool, name), latency_before_ns)
        return move

    def _prevent_ping_pong(self, move: Move, exchange: Exchange) -> None:
        """A victim that is after the same resource looks for another one, or it would take this one back."""
        victim = None if move.giver is None else self._tenants.get(move.giver)
        if victim is None or victim.action is None or victim.action.direction is not Direction.UP:
            return
        if victim.action.resource is move.pool.resource:
            victim.action = self._turned(victim.action, victim, exchange)


def _pending(observation: Observation) -> list[Move]:
    return [outcome.move for outcome in observation.outcomes if outcome.status is MoveStatus.PENDING]


def _games(node: Node, tenants: Mapping[str, _Tenant]) -> tuple[_Game, ...]:
    """Those who live in one domain, for each domain. Where only the whole node's pools are managed all are one."""
    local = {pool.key.domain for pool in node.managed_pools()}
    games: dict[int | None, dict[str, _Tenant]] = {}
    for name, tenant in tenants.items():
        home = tenant.service.home
        games.setdefault(home if home in local else None, {})[name] = tenant
    return tuple(games.values()) or ({},)


_NO_NEED = (math.inf, 0.0)  # of a domain where nobody can be judged
_HOLD_ORDER = (
    Reason.HOLD_NOTHING_TO_GIVE,
    Reason.HOLD_PENDING,
    Reason.HOLD_DOWNSIZE_BLOCKED,
    Reason.HOLD_NOTHING_TO_TAKE,
    Reason.HOLD_TARGETS_MET,
    Reason.HOLD_NOT_JUDGED,
)


def _check(node: Node, settings: PartiesSettings) -> None:
    if not settings.upsize_slack < settings.downsize_slack < 1.0:
        raise ValueError(
            f"upsize_slack {settings.upsize_slack} must be less than downsize_slack {settings.downsize_slack}, and that less than 1"
        )
    for name in ("downsize_block_ns", "migrate_after_ns", "memory_slack_bytes"):
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} must not be negative, it is {getattr(settings, name)}")
    check_network(node, settings)

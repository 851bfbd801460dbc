"""A record through a policy: what it would have decided, interval by interval, beside what was decided (invariant 8).

The observations are the recorded ones, so that a policy is judged on what really was: its own moves change nothing. Decisions are
made as the loop makes them: first ``Membership``, then the policy. The outcomes of moves that the policy did not hear of while the
loop decided in its stead are in the recorded observations already.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from parties.codec import compact_json, to_json
from parties.interfaces import Policy
from parties.membership import Membership
from parties.model import NS_PER_S, Decision, Holder, Move, Observation, PoolKey, Reason
from parties.policies.registry import NeedsModelError, UnknownPolicyError, policy_named
from parties.record import Header, RecordError, TickLine


class ReplayError(Exception):
    """A record that a policy cannot be judged on; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One interval: when it ended, counted from the end of the first, what was decided then, and what would be decided."""

    tick: int
    time_s: float
    recorded: Decision
    replayed: Decision

    @property
    def identical(self) -> bool:
        """Whether the decisions are the same, byte for byte."""
        return compact_json(to_json(self.recorded)) == compact_json(to_json(self.replayed))

    @property
    def same_moves(self) -> bool:
        """Whether the same is moved and the same migration asked for, for whatever reason."""
        return _deeds(self.recorded) == _deeds(self.replayed)


@dataclass(slots=True)
class ReasonCount:
    """In how many intervals a reason was given, would be given, and both."""

    recorded: int = 0
    replayed: int = 0
    both: int = 0


@dataclass(slots=True)
class ServiceCount:
    """How many moves gave a service something and took something from it, and how many would have."""

    recorded_up: int = 0
    recorded_down: int = 0
    replayed_up: int = 0
    replayed_down: int = 0


@dataclass(slots=True)
class Comparison:
    """What a replay comes to. ``differences`` are the first ``limit`` of the intervals that are not identical."""

    limit: int
    services: dict[Holder, ServiceCount]
    ticks: int = 0
    identical: int = 0
    same_moves: int = 0  # but another reason, subject or slack
    different: int = 0
    reasons: dict[Reason, ReasonCount] = field(default_factory=dict)
    changes: Counter[tuple[Reason, Reason]] = field(default_factory=Counter)  # from which reason to which, where moves differ
    differences: list[Judged] = field(default_factory=list)

    @classmethod
    def of(cls, header: Header, *, limit: int) -> Comparison:
        """Nothing counted yet."""
        return cls(limit, {service.name: ServiceCount() for service in header.services})

    @property
    def left_out(self) -> int:
        """How many intervals that are not identical are not among ``differences``."""
        return self.ticks - self.identical - len(self.differences)

    def add(self, judged: Judged) -> None:
        """Take in one interval."""
        self.ticks += 1
        self._count_reasons(judged)
        self._count_moves(judged)
        if judged.identical:
            self.identical += 1
            return
        if judged.same_moves:
            self.same_moves += 1
        else:
            self.different += 1
            self.changes[judged.recorded.reason, judged.replayed.reason] += 1
        if len(self.differences) < self.limit:
            self.differences.append(judged)

    def _count_reasons(self, judged: Judged) -> None:
        recorded, replayed = judged.recorded.reason, judged.replayed.reason
        self.reasons.setdefault(recorded, ReasonCount()).recorded += 1
        self.reasons.setdefault(replayed, ReasonCount()).replayed += 1
        self.reasons[recorded].both += recorded is replayed

    def _count_moves(self, judged: Judged) -> None:
        for move in judged.recorded.moves:
            for name, count in self.services.items():
                count.recorded_up += move.taker == name
                count.recorded_down += move.giver == name
        for move in judged.replayed.moves:
            for name, count in self.services.items():
                count.replayed_up += move.taker == name
                count.replayed_down += move.giver == name


def policy_of(header: Header, name: str | None = None, seed: int | None = None) -> Policy:
    """The recorded policy as it was at the start of its run, or another policy or seed in its place.

    Raises ReplayError for an unknown policy, and where it cannot be made for the recorded node and services.
    """
    settings = header.settings
    try:
        return policy_named(name or settings.policy)(
            header.node,
            header.services,
            best_effort=header.best_effort,
            settings=settings.parties,
            rng=random.Random(settings.seed if seed is None else seed),  # noqa: S311 - decisions have to repeat, not to be secret
        )
    except NeedsModelError as error:
        raise ReplayError(f"{error}; a record has neither the model nor the loads to come") from error
    except UnknownPolicyError as error:
        hint = "" if name else "; this record's policy is not one of this program's, name another with --policy"
        raise ReplayError(f"{error}{hint}") from error
    except ValueError as error:
        raise ReplayError(f"{name or settings.policy} cannot be made for this record: {error}") from error


def replay(header: Header, ticks: Iterable[TickLine], policy: Policy) -> Iterator[Judged]:
    """What the policy would have decided, as far as the ticks go.

    Raises ReplayError where the record holds no partition that the policy could be judged on, RecordError where a tick contradicts
    the header, and whatever ``ticks`` raises.
    """
    membership = Membership(header.node, header.services, grace_ns=header.settings.absent_grace_ns)
    first_ns: int | None = None
    for line in ticks:
        observation = line.observation
        if first_ns is None:
            first_ns = observation.now_ns
            _check_partition(header, observation, policy)
        _check_names(header, observation)
        yield Judged(
            observation.tick,
            (observation.now_ns - first_ns) / NS_PER_S,
            line.decision,
            _decided(observation, membership, policy),
        )


def _decided(observation: Observation, membership: Membership, policy: Policy) -> Decision:
    """As ``parties.loop`` decides."""
    decision = membership.decide(observation) if observation.partition.amounts else None
    return policy.decide(observation) if decision is None else decision


def _deeds(decision: Decision) -> tuple[object, ...]:
    migration = decision.migration.service if decision.migration is not None else None
    return (*(_what(move) for move in decision.moves), migration)


def _what(move: Move) -> tuple[PoolKey, Holder | None, Holder | None, int]:
    return (move.pool, move.giver, move.taker, move.amount)


def _check_partition(header: Header, observation: Observation, policy: Policy) -> None:
    """A policy can be judged only on a partition of the kind that it makes: a holder for each service, or for several together."""
    recorded, held = header.settings.policy, observation.partition.amounts
    initial = policy.initial()
    if policy.name == recorded or initial is None or not initial.amounts:
        return
    if not held:
        raise ReplayError(
            f"{recorded} partitioned nothing in this record, so there is nothing that {policy.name} could move; "
            f"record a run under a policy that partitions, and replay that"
        )
    if alone := initial.amounts.keys() - held.keys():
        raise ReplayError(
            f"{recorded} did not partition {', '.join(sorted(map(str, alone)))} in this record, which {policy.name} does; "
            f"record a run under {policy.name} instead"
        )
    holders = {holder for amounts in held.values() for holder, amount in amounts.items() if amount > 0}
    for service in header.services:
        place = policy.sharing.get(service.name)
        if place is None and service.name not in holders:
            raise ReplayError(
                f"{service.name} holds nothing of its own in this record ({recorded} kept it together with others), "
                f"while {policy.name} gives every service its own; record a run under {policy.name} instead"
            )
        if place is not None and service.name in holders:
            raise ReplayError(
                f"{policy.name} keeps {', '.join(policy.sharing)} together in {place}, while each has its own share in this record "
                f"of {recorded}; record a run under {policy.name} instead"
            )


def _check_names(header: Header, observation: Observation) -> None:
    unknown = observation.services.keys() - {service.name for service in header.services}
    if unknown:
        raise RecordError(f"tick {observation.tick} speaks of {min(unknown)!r}, which is no service of the record's header")
    if foreign := observation.partition.amounts.keys() - header.node.pools.keys():
        raise RecordError(f"tick {observation.tick} speaks of {min(foreign)}, which is no pool of the record's header")

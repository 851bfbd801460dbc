"""Oracle: the allocation that an exhaustive search on the model finds, for loads known beforehand (section 5.1).

Not a manager that could be built: it knows how services answer, and what they will be asked for. It is the bound that the others
are measured against. The search is a ``Solver`` (``simulator.oracle``); here is only what brings its allocation about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from parties.model import (
    Decision,
    Holder,
    Move,
    MoveStatus,
    Node,
    Observation,
    Partition,
    PoolKey,
    Reason,
    Service,
    ServiceState,
)
from parties.policies.fair import fair_start
from parties.policies.judgement import slacks, verdicts
from parties.settings import PartiesSettings

NOTICEABLE = 0.02
"""A load that is so far from the one that was solved for, as a part of it, is another one. A value of our own: a search for every
interval of a ramp would cost more than what it gains."""


class Solver(Protocol):
    """Searches all allocations of a node."""

    def solve(self, loads_rps: Mapping[str, float]) -> Partition | None:
        """One that meets every target at these loads; None if there is none."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """What Oracle knows and no other policy: the model, and the load of each service at a time of the platform's clock in ns."""

    solver: Solver
    loads_rps: Callable[[int], Mapping[str, float]]


class Oracle:
    """Starts with the allocation that the search finds, and goes to another one when a load has changed."""

    name = "oracle"
    best_effort_idle_class = True
    sharing: Mapping[str, Holder] = MappingProxyType({})

    def __init__(  # noqa: PLR0913 - what every policy is made of, and the model
        self,
        node: Node,
        services: Sequence[Service],
        *,
        best_effort: bool,
        settings: PartiesSettings,  # noqa: ARG002 - every policy is made in the same way
        rng: random.Random,  # noqa: ARG002 - the same
        foresight: Foresight,
    ) -> None:
        """Raise ValueError for a node too small for the services."""
        self._node = node
        self._services = tuple(services)
        self._foresight = foresight
        self._fair = fair_start(node, self._services, best_effort=best_effort)
        self._loads_rps: Mapping[str, float] = {}
        self._wanted: Partition | None = None
        self._foresee(0)

    def initial(self) -> Partition:
        """The allocation for the loads at time 0; the fair start where there is none."""
        return self._fair if self._wanted is None else self._wanted

    def decide(self, observation: Observation) -> Decision:
        """The moves from the partition observed to the one found, all in this interval."""
        slack = slacks(verdicts(self._services, observation))
        self._foresee(observation.now_ns)
        if any(seen.latency.state is ServiceState.ABSENT for seen in observation.services.values()):
            return Decision((), Reason.HOLD_NOT_JUDGED, slack=slack)  # the loop gives away and gives back what it holds
        if self._wanted is None:
            return Decision((), Reason.HOLD_NO_ALLOCATION, slack=slack)
        closed = {outcome.move.pool for outcome in observation.outcomes if outcome.status is MoveStatus.PENDING}
        moves = tuple(move for move in self._way_to(self._wanted, observation) if move.pool not in closed)
        if moves:
            return Decision(moves, Reason.SOLVED_ALLOCATION, slack=slack)
        return Decision((), Reason.HOLD_PENDING if closed else Reason.HOLD_SOLVED, slack=slack)

    def _foresee(self, now_ns: int) -> None:
        loads_rps = self._foresight.loads_rps(now_ns)
        if loads_rps.keys() == self._loads_rps.keys() and not any(
            abs(load_rps - self._loads_rps[name]) > NOTICEABLE * self._loads_rps[name] for name, load_rps in loads_rps.items()
        ):
            return
        self._loads_rps = dict(loads_rps)
        self._wanted = self._foresight.solver.solve(loads_rps)

    def _way_to(self, wanted: Partition, observation: Observation) -> list[Move]:
        moves: list[Move] = []
        for pool in self._node.managed_pools():
            have = observation.partition.amounts.get(pool.key)
            want = wanted.amounts.get(pool.key)
            if have is None or want is None:
                continue
            if pool.levels:
                moves += _levels(observation.tick, pool.key, have, want)
            else:
                moves += _exchange(observation.tick, pool.key, have, want)
        return moves


def _levels(tick: int, key: PoolKey, have: Mapping[Holder, int], want: Mapping[Holder, int]) -> list[Move]:
    """Each holder's own change: nobody gives and nobody takes."""
    moves = []
    for holder, level in want.items():
        change = level - have.get(holder, 0)
        if change > 0:
            moves.append(Move(tick, key, None, holder, change, Reason.SOLVED_ALLOCATION))
        elif change < 0:
            moves.append(Move(tick, key, holder, None, -change, Reason.SOLVED_ALLOCATION))
    return moves


def _exchange(tick: int, key: PoolKey, have: Mapping[Holder, int], want: Mapping[Holder, int]) -> list[Move]:
    """From those who have too much to those who lack, in the order of the holders, so that every step conserves."""
    lacking = {holder: amount - have.get(holder, 0) for holder, amount in want.items()}
    lacking |= {holder: -amount for holder, amount in have.items() if holder not in want}
    moves = []
    for giver in [holder for holder, change in lacking.items() if change < 0]:
        for taker in [holder for holder, change in lacking.items() if change > 0]:
            amount = min(-lacking[giver], lacking[taker])
            if amount > 0:
                moves.append(Move(tick, key, giver, taker, amount, Reason.SOLVED_ALLOCATION))
                lacking[giver] += amount
                lacking[taker] -= amount
    return moves

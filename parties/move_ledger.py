"""What became of moves: the part of a platform that is the same on the host and on the simulated node.

A *plan* is all moves of one pool in one interval (docs/decisions/0002). It is carried out, refused, or pending under a ticket until
it has become one of the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from parties.model import Move, MoveOutcome, MoveStatus, PoolKey

Plan = tuple[Move, ...]


def plans(moves: Iterable[Move]) -> dict[PoolKey, Plan]:
    """The moves of an interval by pool, in the order in which they were decided."""
    by_pool: dict[PoolKey, Plan] = {}
    for move in moves:
        by_pool[move.pool] = (*by_pool.get(move.pool, ()), move)
    return by_pool


@dataclass(slots=True)
class MoveLedger:
    """Pending plans by ticket, and what ended since it was last told of."""

    pending: dict[int, Plan] = field(default_factory=dict)
    _ended: list[MoveOutcome] = field(default_factory=list)

    def busy(self, key: PoolKey) -> bool:
        """Whether a plan of that pool is pending: another one has to be refused."""
        return any(plan[0].pool == key for plan in self.pending.values())

    def end(self, plan: Plan, status: MoveStatus, detail: str = "") -> None:
        """A plan is through, or was rolled back."""
        self._ended += [MoveOutcome(move, status, detail) for move in plan]

    def outcomes(self) -> tuple[MoveOutcome, ...]:
        """What ended since the last call, and what is still pending."""
        if not self._ended and not self.pending:
            return ()
        ended, self._ended = self._ended, []
        return (*ended, *(MoveOutcome(move, MoveStatus.PENDING) for plan in self.pending.values() for move in plan))

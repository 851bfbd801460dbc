"""What goes wrong on the simulated node, on a schedule: refused and slow moves, restarts, clients that fall silent.

Off unless asked for. A schedule is data, so that a run with faults repeats like any other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from parties.model import IDLE, Move, Resource

LONGEST_PENDING_TICKS = 10  # of random faults: 5 s, as long as shrinking a gigabyte may take under pressure
REFUSED_DETAIL = "write failed: Device or resource busy"  # the kernel's EBUSY, as an enforcer tells it


@dataclass(frozen=True, slots=True)
class Restart:
    """A service's processes are ended at a time."""

    service: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Silence:
    """A service's clients report nothing from one time to another; requests go on."""

    service: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in a run.

    Plans are numbered from 0 in the order in which they are enforced; a plan is all moves of one pool in one interval
    (docs/decisions/0002). ``refused`` has the kernel's words for each plan that is refused, ``pending_ticks`` how many intervals a
    slow one takes. ``memory_ticks`` makes every plan that shrinks a holder's memory slow, as reclaim does on a real machine.
    """

    refused: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))
    pending_ticks: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    memory_ticks: int = 0
    restarts: tuple[Restart, ...] = ()
    silences: tuple[Silence, ...] = ()

    def pending(self, plan: int, moves: Sequence[Move]) -> int:
        """How many intervals a plan takes; 0 is at once."""
        slow = self.memory_ticks if any(_shrinks_memory(move) for move in moves) else 0
        return max(slow, self.pending_ticks.get(plan, 0))

    def silent(self, service: str, at_s: float) -> bool:
        """Whether a service's clients report nothing at that time."""
        return any(silence.service == service and silence.from_s <= at_s < silence.to_s for silence in self.silences)


NO_FAULTS = Faults()


def random_faults(rng: random.Random, services: Sequence[str], *, duration_s: float, refused: float, pending: float) -> Faults:
    """Faults for a run: these shares of plans are refused or slow, and about one service in two restarts or falls silent once."""
    plans = range(int(duration_s * 4))  # more than there can be: one traded pool and the network in each interval of 500 ms
    fates = {plan: rng.random() for plan in plans}
    slow = {plan: rng.randint(1, LONGEST_PENDING_TICKS) for plan, fate in fates.items() if refused <= fate < refused + pending}
    restarts = [Restart(name, rng.uniform(0, duration_s)) for name in services if rng.random() < 1 / 2]
    silences = []
    for name in services:
        if rng.random() < 1 / 2:
            from_s = rng.uniform(0, duration_s)
            silences.append(Silence(name, from_s, from_s + rng.uniform(0, 10)))
    return Faults(
        refused={plan: REFUSED_DETAIL for plan, fate in fates.items() if fate < refused},
        pending_ticks=slow,
        restarts=tuple(sorted(restarts, key=lambda restart: restart.at_s)),
        silences=tuple(silences),
    )


def _shrinks_memory(move: Move) -> bool:
    return move.pool.resource is Resource.MEMORY and move.giver not in (None, IDLE)

"""A shadow run: the whole loop on what is really there, and not one write; what it would have done is counted.

``ShadowEnforcer`` stands where the ``Enforcer`` does. It reads each knob once, before the first plan that would write it, and from
then on takes every plan for carried out. What it cannot know is whether the kernel would have taken the values: plans are refused
only where a knob cannot even be read, and writes that may fail or take long, such as shrinking memory under use, are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parties.enforcer import Outcome
from parties.foreign import Drift
from parties.knob import VANISHED, Effect, KnobKinds, KnobRef, KnobWrite, slow_kinds
from parties.model import Decision, MoveStatus, Observation
from parties.record import Timing


@dataclass(slots=True)
class WouldHave:
    """What a shadow run would have done: writes by kind, plans refused and why, and writes whose end nobody can foretell."""

    writes: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, object]:
        """By kind of knob; what was refused by its cause."""
        return {
            "knob_writes": dict(sorted(self.writes.items())),
            "unknown_writes": dict(sorted(self.unknown.items())),
            "refused_plans": dict(sorted(self.refused.items())),
        }


class ShadowEnforcer:
    """Carries no plan out. It opens nothing, reads no clock, and calls no method of a knob but ``read`` and ``same``."""

    def __init__(self, kinds: KnobKinds) -> None:
        self._slow_kinds = slow_kinds(kinds)
        self._in_force: dict[KnobRef, str | None] = {}
        self.counted = WouldHave()

    def apply(self, plan: Iterable[KnobWrite], now_ns: int) -> Outcome:
        """Count what is not in force yet, and take it for in force; refuse where a knob cannot be read."""
        del now_ns
        writes = sorted(plan, key=lambda write: write.effect)
        for write in writes:
            if refusal := self._obstacle(write):
                self.counted.refused[refusal] += 1
                return Outcome(MoveStatus.REFUSED, refusal)
        for write in writes:
            self._count(write)
        return Outcome(MoveStatus.DONE)

    def apply_apart(self, writes: Sequence[KnobWrite], now_ns: int) -> Sequence[Outcome]:
        """Look at each write by itself."""
        return [self.apply([write], now_ns) for write in writes]

    def poll(self, now_ns: int) -> Sequence[tuple[int, Outcome]]:
        """Nothing is ever pending."""
        del now_ns
        return ()

    def drift(self, now_ns: int) -> Sequence[Drift]:
        """What others write is no concern of one who manages nothing."""
        del now_ns
        return ()

    def _obstacle(self, write: KnobWrite) -> str:
        """Why a knob cannot be written; empty if it is known or can be read."""
        ref = write.knob.ref
        if ref in self._in_force:
            return ""
        try:
            self._in_force[ref] = write.knob.read()
        except OSError as error:
            if error.errno not in VANISHED:
                return f"{ref}: cannot be read: {error.strerror or error}"
            return f"{ref}: vanished, so nothing is given to {write.holder}" if write.effect is Effect.GIVE else ""
        return ""

    def _count(self, write: KnobWrite) -> None:
        ref = write.knob.ref
        if ref not in self._in_force or write.knob.same(write.value, self._in_force[ref]):
            return  # gone, or in force already
        self._in_force[ref] = write.value
        self.counted.writes[ref.kind] += 1
        if write.slow or ref.kind in self._slow_kinds:
            self.counted.unknown[ref.kind] += 1


class ShadowReport:
    """What the policy would have moved, by resource, reason and holder; a listener of the loop."""

    def __init__(self) -> None:
        self._moves: dict[str, Counter[str]] = {name: Counter() for name in ("resource", "reason", "giver", "taker")}

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Take in one tick."""
        del observation, timing
        for move in decision.moves:
            words = {"resource": move.pool.resource.value, "reason": move.reason.value, "giver": move.giver, "taker": move.taker}
            for name, word in words.items():
                if word is not None:
                    self._moves[name][word] += 1

    def as_json(self, counted: WouldHave) -> dict[str, object]:
        """What would have been done, counts only."""
        moves = {f"moves_by_{name}": dict(sorted(counts.items())) for name, counts in self._moves.items()}
        return {**moves, **counted.as_json()}

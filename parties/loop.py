"""The loop: observe, decide, place, enforce, record, on an absolute schedule (section 4.3, every 500 ms).

The loop knows a platform and a policy by their interfaces, and whoever listens by ``Listener``. It keeps the schedule: tick n is
due n intervals after the first whatever happened before; ticks that could not be held in time are counted as missed and skipped,
never caught up in a burst. A service without processes is the loop's business, not the policy's (``parties.membership``).
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from parties.interfaces import Platform, Policy
from parties.membership import Membership
from parties.model import Decision, MoveOutcome, MoveStatus, Observation
from parties.record import Timing

PHASE_NS = 10_000_000
"""Ticks fall so long after the multiples of the interval, where the clients' windows end: time for the last ones to arrive."""

KEPT_TIMINGS = 100_000  # about 14 hours of 500 ms ticks; the report's percentiles are of the latest so many


class Listener(Protocol):
    """Whoever wants to hear of each tick: the record, the front."""

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """An interval has been decided and its moves handed to the platform."""


@dataclass(slots=True)
class Timings:
    """What the loop cost and how late it was."""

    ticks: int = 0
    missed: int = 0
    cpu_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_TIMINGS))
    lateness_ns: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_TIMINGS))

    def add(self, lateness_ns: int, cpu_ns: int) -> None:
        """Take in one tick."""
        self.ticks += 1
        self.cpu_ns.append(cpu_ns)
        self.lateness_ns.append(lateness_ns)


class Loop:
    """Runs a policy on a platform.

    ``cpu_ns`` reads the CPU time of the calling thread; it is measured, never decided by.
    """

    def __init__(  # noqa: PLR0913 - the parts of a loop, each given by name
        self,
        platform: Platform,
        policy: Policy,
        *,
        interval_ns: int,
        membership: Membership,
        listeners: tuple[Listener, ...] = (),
        phase_ns: int = PHASE_NS,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._platform = platform
        self._policy = policy
        self._interval_ns = interval_ns
        self._membership = membership
        self._listeners = listeners
        self._phase_ns = phase_ns
        self._cpu_ns = cpu_ns
        self._unseen: tuple[MoveOutcome, ...] = ()
        self.timings = Timings()

    def run(self, ticks: int | None = None) -> None:
        """Hold ticks until the platform is asked to stop, or so many of them."""
        tick = 0
        now_ns = self._platform.now_ns()
        due_ns = now_ns - now_ns % self._interval_ns + self._interval_ns + self._phase_ns
        while ticks is None or self.timings.ticks < ticks:
            if not self._platform.wait_until(due_ns):
                return
            tick += 1
            lateness_ns = self._platform.now_ns() - due_ns
            skipped = lateness_ns // self._interval_ns
            tick += skipped
            self.timings.missed += skipped
            self._tick(tick, lateness_ns)
            due_ns += (1 + skipped) * self._interval_ns

    def _tick(self, tick: int, lateness_ns: int) -> None:
        before_ns = self._cpu_ns()
        observation = self._with_unseen_outcomes(self._platform.observe(tick))
        decision = self._decide(observation)
        if decision.moves:
            self._platform.apply(decision.moves)
        cpu_ns = self._cpu_ns() - before_ns
        timing = Timing(lateness_ns, self.timings.missed, cpu_ns)
        for listener in self._listeners:
            listener.tick(observation, decision, timing)
        # What the listeners cost is the tick's cost too, but their own line of the record can only tell of what came before it.
        self.timings.add(lateness_ns, self._cpu_ns() - before_ns)

    def _decide(self, observation: Observation) -> Decision:
        if observation.partition.amounts and (decision := self._membership.decide(observation)) is not None:
            self._unseen = observation.outcomes
            return decision
        return self._policy.decide(observation)

    def _with_unseen_outcomes(self, observation: Observation) -> Observation:
        """What became of the policy's moves while the loop decided in its stead, so that it hears of every refusal."""
        if not self._unseen:
            return observation
        ended = tuple(outcome for outcome in self._unseen if outcome.status is not MoveStatus.PENDING)
        self._unseen = ()
        return dataclasses.replace(observation, outcomes=ended + observation.outcomes)

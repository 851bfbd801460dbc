"""The host platform: this machine's kernel, seen through monitors and changed through actuators.

What it adds to its parts: it waits (taking in latency messages meanwhile), joins what the monitors say into one observation, and
turns moves into plans of knob writes, one plan for each pool (docs/decisions/0002). The partition it reports is what was written
and read back, never what was wished (invariant 6). How the parts are made and joined is ``parties.assembly``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from parties.enforcer import Outcome
from parties.foreign import Drift, told
from parties.interfaces import Actuator, Finding, FollowsCores, UsageMonitor
from parties.knob import KnobRef, KnobWrite
from parties.model import (
    BEST_EFFORT,
    NS_PER_S,
    Holder,
    LatencyView,
    Move,
    MoveStatus,
    Node,
    Observation,
    Partition,
    PoolKey,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.move_ledger import MoveLedger, Plan, plans
from parties.placement import Placement, place
from parties.upkeep import Upkeep

LEAD_NS = 5_000_000  # latency is taken in so long before a tick, or in the middle of a shorter wait
LONGEST_UNREAD_NS = NS_PER_S // 2  # and not later than this, as what is not read fills the senders' buffers
T = TypeVar("T")
Use = tuple[Mapping[Holder, Usage], Mapping[Holder, bool], Mapping[Holder, bool | None]]
"""What each holder uses, whether it has a process, and whether it lives in memory."""

START_LIMIT_NS = 30 * NS_PER_S
POLL_AT_START_NS = NS_PER_S // 50


class StartError(Exception):
    """The first partition could not be put in force. The message says which knob and why; ``close`` puts everything back."""


class StoppedError(Exception):
    """Asked to end before the start was over: no failure. ``close`` puts everything back, or leaves what was left already."""


class LatencySource(Protocol):
    """The signal, as far as the platform uses it."""

    def views(self, now_ns: int) -> Mapping[str, LatencyView]:
        """What is to be said of each service at the end of this interval."""

    def note_change(self, service: str, now_ns: int) -> None:
        """A service's allocation changed: what was measured before it is of another allocation."""


class Classifier(Protocol):
    """Finds out which services live in memory (section 4.2: no disk traffic in the first second)."""

    def observe(self, now_ns: int, populated: Mapping[Holder, bool]) -> Mapping[Holder, bool | None]:
        """True or False once known, None before, for each service."""


class Enforces(Protocol):
    """Carries plans out, or in a shadow run only counts what it would have done (``parties.shadow``)."""

    def apply(self, plan: Iterable[KnobWrite], now_ns: int) -> Outcome:
        """Carry a plan out, take before give."""

    def apply_apart(self, writes: Sequence[KnobWrite], now_ns: int) -> Sequence[Outcome]:
        """Carry out each write as a plan by itself."""

    def poll(self, now_ns: int) -> Sequence[tuple[int, Outcome]]:
        """The pending plans that ended since the last call, by ticket."""

    def drift(self, now_ns: int) -> Sequence[Drift]:
        """What of the knobs under management is not as it should be."""


@runtime_checkable
class SharesCores(Protocol):
    """An actuator under which holders share CPUs, so that best-effort jobs have to keep out of the services' way."""

    best_effort_idle_class: bool

    def idle_class_writes(self) -> Sequence[KnobWrite]:
        """What puts the best-effort pool into the idle class."""

    def warnings(self) -> tuple[str, ...]:
        """Where that protects nobody."""


@runtime_checkable
class LooksOnce(Protocol):
    """An actuator whose knobs cost less to read together than one by one."""

    def one_look(self) -> contextlib.AbstractContextManager[None]:
        """Answer every read until its end from one look, as long as nothing is written."""


class Events(Protocol):
    """Where events go: record and front."""

    def __call__(self, level: str, text: str) -> None:
        """``level`` is info, warning or error."""


@dataclass(frozen=True, slots=True)
class Monitors:
    """What the host platform reads."""

    signal: LatencySource
    usage: UsageMonitor
    classifier: Classifier


class HostPlatform:
    """This machine as a platform. It owns none of its parts but the usage monitor; knobs are put back by ``parties.assembly``.

    ``selector`` has what is attended to as it comes. ``sources`` has what may wait (latency): it is looked at shortly before the
    tick, as one message by itself costs twice what it costs among others. ``alive`` is called with the time while a start waits for
    slow writes, which may be longer than a watchdog bears.
    """

    def __init__(  # noqa: PLR0913 - the parts of a machine, each given by name
        self,
        node: Node,
        services: Sequence[Service],
        *,
        actuators: Mapping[Resource, Actuator],
        enforcer: Enforces,
        monitors: Monitors,
        selector: selectors.BaseSelector,
        sources: selectors.BaseSelector,
        events: Events,
        upkeep: Upkeep,
        alive: Callable[[int], None] = lambda _now_ns: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.node = node
        self._services = {service.name: service for service in services}
        self._actuators = actuators
        self._followers = [actuator for actuator in actuators.values() if isinstance(actuator, FollowsCores)]
        self._looks_once = [actuator for actuator in actuators.values() if isinstance(actuator, LooksOnce)]
        self._enforcer = enforcer
        self._monitors = monitors
        self._selector = selector
        self._sources = sources
        self._events = events
        self._upkeep = upkeep
        self._alive = alive
        self._clock = clock
        self._stopping = False
        self._partition = Partition({})
        self._placement: Placement | None = None
        self._ledger = MoveLedger()
        self._said: dict[str, str] = {}

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self._clock()

    def stop(self) -> None:
        """Ask for an end: ``wait_until`` returns False from now on."""
        self._stopping = True

    def wait_until(self, deadline_ns: int) -> bool:
        """Take in what arrives until the deadline. Each reader does a bounded amount of work, so that none delays the tick."""
        now_ns = self._clock()
        last_look_ns = deadline_ns - min((deadline_ns - now_ns) // 2, LEAD_NS)
        while now_ns < last_look_ns and self._attend_until(min(last_look_ns, now_ns + LONGEST_UNREAD_NS)):
            self._take_in(deadline_ns)
            now_ns = self._clock()
        if self._attend_until(deadline_ns):
            return True
        self._take_in(deadline_ns)  # so that the last counters tell of all that was sent
        return False

    @property
    def placement(self) -> Placement | None:
        """What is in force, as read back; None as long as nothing is partitioned."""
        return self._placement

    def settle(self, limit_ns: int) -> None:
        """Wait for slow writes that are under way, so long at most: what they come to is then in force, or rolled back."""
        deadline_ns = self._clock() + limit_ns
        self._collect(self._clock())
        while self._ledger.pending and (left_ns := deadline_ns - self._clock()) > 0:
            for key, mask in self._selector.select(min(left_ns, POLL_AT_START_NS) / NS_PER_S):
                self._attend(key, mask)
            self._collect(self._clock())

    def start(
        self,
        partition: Partition | None,
        *,
        best_effort_idle_class: bool,
        sharing: Mapping[str, Holder],
        previous: Placement | None = None,
        rest: Sequence[KnobWrite] = (),
    ) -> None:
        """Put the first partition in force, or the idle class alone, or nothing. Raises StartError; after ``stop`` StoppedError.

        ``previous`` is what an earlier daemon left in force: places stay what they were as far as can be, and only what differs
        is written. ``rest`` keeps the rest of the machine off the managed CPUs; what of it is refused is told, and no more.
        """
        if sharing:
            raise StartError(
                f"the policy puts {', '.join(sharing)} into one holder with others, which is not done on a real machine yet; "
                "choose another policy, or try this one with 'parties simulate'"
            )
        placement = None
        if partition is not None:
            partition.check(self.node, self._services.values())
            placement = place(self.node, partition, previous)
        for plan in _plans_at_start(self._actuators, placement, rest, best_effort_idle_class=best_effort_idle_class):
            if plan.apart:
                self._apart(plan.writes, self._clock())
            else:
                self._carry_out_at_start(plan.what, plan.writes)
        cores: object = self._actuators.get(Resource.CORES)
        for warning in cores.warnings() if isinstance(cores, SharesCores) else ():
            self._events("warning", warning)
        if placement is None:
            return
        self._partition, self._placement = placement.partition, placement
        self._begin_upkeep()

    def observe(self, tick: int) -> Observation:
        """The interval that ends now: latency, use, the partition in force, and what became of earlier moves."""
        now_ns = self._clock()
        self._collect(now_ns)
        self._tend(now_ns)
        with contextlib.ExitStack() as looks:
            for actuator in self._looks_once:
                looks.enter_context(actuator.one_look())
            for drift in self._enforcer.drift(now_ns):
                self._events(*told(drift))
            usage, populated, in_memory = self._use(now_ns)
        views = self._views(now_ns)
        return Observation(
            now_ns=now_ns,
            tick=tick,
            services={
                name: ServiceObservation(
                    latency=views[name] if populated.get(name, True) else _absent(views[name]),
                    usage=usage.get(name, Usage()),
                    in_memory=service.in_memory if service.in_memory is not None else in_memory.get(name),
                )
                for name, service in self._services.items()
            },
            partition=self._partition,
            outcomes=self._ledger.outcomes(),
            best_effort=usage.get(BEST_EFFORT, Usage()),
            best_effort_present=populated.get(BEST_EFFORT, False),
        )

    def apply(self, moves: Sequence[Move]) -> None:
        """Place and enforce, one plan for each pool; what became of the moves is in the next observations."""
        now_ns = self._clock()
        for key, plan in plans(moves).items():
            self._apply_to_pool(key, plan, now_ns)

    def close(self) -> None:
        """Give up the monitors' descriptors."""
        self._monitors.usage.close()

    def _attend_until(self, deadline_ns: int) -> bool:
        """Wait, doing what cannot; False if asked to stop."""
        while not self._stopping:
            left_ns = deadline_ns - self._clock()
            if left_ns <= 0:
                return True
            for key, mask in self._selector.select(left_ns / NS_PER_S):
                self._attend(key, mask)
            if self._ledger.pending:  # the sooner a slow write counts as done, the more of the interval is of the new allocation
                self._collect(self._clock())
        return False

    def _take_in(self, deadline_ns: int) -> None:
        """Read what has come from the sources, but not beyond the deadline."""
        while self._clock() < deadline_ns and (ready := self._sources.select(0)):
            for key, mask in ready:
                self._attend(key, mask)

    def _attend(self, key: selectors.SelectorKey, mask: int) -> None:
        self._guarded("a message cannot be taken in", lambda: key.data(mask), None)

    def _use(self, now_ns: int) -> Use:
        """Use, presence and classification; nothing is known of them where the monitor fails."""
        monitors = self._monitors

        def read() -> Use:
            usage = monitors.usage.sample(now_ns)
            populated = monitors.usage.populated()
            return usage, populated, monitors.classifier.observe(now_ns, populated)

        unknown: Use = ({}, {BEST_EFFORT: True}, {})
        return self._guarded("use cannot be read", read, unknown)

    def _views(self, now_ns: int) -> Mapping[str, LatencyView]:
        """What the signal says; every service is stale, and so held, where it fails."""
        stale = dict.fromkeys(self._services, LatencyView(ServiceState.STALE))
        return self._guarded("latencies cannot be judged", lambda: self._monitors.signal.views(now_ns), stale)

    def _guarded(self, what: str, call: Callable[[], T], instead: T) -> T:
        """An unknown error in one monitor or actuator degrades that part and no other; the same one is told once."""
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other services' tick goes on
            text = f"{what}: {type(error).__name__}: {error}"
            if self._said.get(what) != text:
                self._said[what] = text
                self._events("warning", text)
            return instead
        self._said.pop(what, None)
        return result

    def _apply_to_pool(self, key: PoolKey, moves: Plan, now_ns: int) -> None:
        if self._ledger.busy(key):
            self._end(moves, MoveStatus.REFUSED, f"{key}: an earlier move is still under way", now_ns)
            return
        placement = place(self.node, self._partition.after(moves), self._placement)
        actuators = [self._actuators[key.resource], *(self._followers if key.resource is Resource.CORES else ())]
        before = self._placement
        writes = self._guarded(
            f"{key}: a move cannot be planned",
            lambda: [write for actuator in actuators for write in actuator.writes(placement, before)],
            None,
        )
        if writes is None:
            self._end(moves, MoveStatus.REFUSED, f"{key}: it cannot be planned", now_ns)
            return
        outcome = self._enforcer.apply(writes, now_ns)
        if outcome.status is MoveStatus.PENDING and outcome.ticket is not None:
            self._ledger.pending[outcome.ticket] = moves
            return
        if outcome.status is MoveStatus.DONE:
            self._partition, self._placement = placement.partition, placement
        self._end(moves, outcome.status, outcome.detail, now_ns)

    def _begin_upkeep(self) -> None:
        """Have every task done once before the loop begins. Raises StartError, StoppedError."""
        limit_ns = self._clock() + START_LIMIT_NS
        while not self._upkeep.begun:
            self._alive(self._clock())
            self._tend(self._clock())
            if self._clock() > limit_ns:
                raise StartError(f"upkeep: not done after {START_LIMIT_NS // NS_PER_S} s")
            if not self.wait_until(self._clock() + POLL_AT_START_NS):
                raise StoppedError

    def _tend(self, now_ns: int) -> None:
        """What the upkeep found: writes that nobody waits for, and words for the operator, each said once."""
        for finding in self._findings(now_ns):
            for text in finding.warnings:
                if text not in self._said:
                    self._said[text] = text
                    self._events("warning", text)
            if finding.apart:
                self._apart(finding.writes, now_ns)
            elif finding.writes:
                outcome = self._enforcer.apply(finding.writes, now_ns)
                if outcome.status is MoveStatus.REFUSED:
                    self._events("warning", f"refused: {outcome.detail}")

    def _apart(self, writes: Sequence[KnobWrite], now_ns: int) -> None:
        """Carry out each write by itself; of those that are refused the first is told, for there may be hundreds."""
        outcomes = self._enforcer.apply_apart(writes, now_ns) if writes else ()
        refused = [outcome.detail for outcome in outcomes if outcome.status is MoveStatus.REFUSED]
        if refused:
            others = f"; so are {len(refused) - 1} more of {len(writes)}" if len(refused) > 1 else ""
            self._events("warning", f"refused: {refused[0]}{others}")

    def _findings(self, now_ns: int) -> Sequence[Finding]:
        nothing: Sequence[Finding] = ()
        return self._guarded("upkeep cannot be judged", lambda: self._upkeep.tend(now_ns), nothing)

    def _collect(self, now_ns: int) -> None:
        for ticket, outcome in self._enforcer.poll(now_ns):
            moves = self._ledger.pending.pop(ticket, None)
            if moves is not None:
                if outcome.status is MoveStatus.DONE:  # placed anew, as other pools may have changed meanwhile
                    self._partition = self._partition.after(moves)
                    self._placement = place(self.node, self._partition, self._placement)
                self._end(moves, outcome.status, outcome.detail, now_ns)

    def _end(self, moves: Plan, status: MoveStatus, detail: str, now_ns: int) -> None:
        """Moves that are through, or were rolled back."""
        if status is MoveStatus.DONE:
            for holder in self._services.keys() & {holder for move in moves for holder in (move.giver, move.taker)}:
                self._monitors.signal.note_change(holder, now_ns)
        else:
            self._events("warning", f"refused: {detail}")
        self._ledger.end(moves, status, detail)

    def _carry_out_at_start(self, what: str, writes: Sequence[KnobWrite]) -> None:
        """Carry a plan out and wait for its slow writes. Raises StartError, StoppedError."""
        if self._stopping:
            raise StoppedError
        limit_ns = self._clock() + START_LIMIT_NS
        outcome = self._enforcer.apply(writes, self._clock())
        self._alive(self._clock())
        while outcome.status is MoveStatus.PENDING:
            self._alive(self._clock())
            if self._clock() > limit_ns:
                raise StartError(f"{what}: not in force after {START_LIMIT_NS // NS_PER_S} s")
            if not self.wait_until(self._clock() + POLL_AT_START_NS):
                raise StoppedError
            outcome = next((ended for ticket, ended in self._enforcer.poll(self._clock()) if ticket == outcome.ticket), outcome)
        if outcome.status is MoveStatus.REFUSED:
            raise StartError(f"{what}: {outcome.detail}")


def refs_at_start(
    node: Node,
    actuators: Mapping[Resource, Actuator],
    partition: Partition | None,
    previous: Placement | None,
    *,
    best_effort_idle_class: bool,
) -> frozenset[KnobRef]:
    """The knobs that ``HostPlatform.start`` with these arguments is about to write or to find as they should be. Writes nothing.

    Those of the rest of the machine, which that is given as they are, are not among them.
    """
    placement = None if partition is None else place(node, partition, previous)
    written = _plans_at_start(actuators, placement, (), best_effort_idle_class=best_effort_idle_class)
    return frozenset(write.knob.ref for plan in written for write in plan.writes)


class _PlanAtStart(NamedTuple):
    """A part of what a start writes; ``apart``: each write by itself, as what of it is refused is not missed."""

    what: str
    writes: Sequence[KnobWrite]
    apart: bool = False


def _plans_at_start(
    actuators: Mapping[Resource, Actuator], placement: Placement | None, rest: Sequence[KnobWrite], *, best_effort_idle_class: bool
) -> Iterator[_PlanAtStart]:
    """All that a start writes, in its order. A plan is made when its turn comes: it may hang on what those before it wrote."""
    cores: object = actuators.get(Resource.CORES)
    if best_effort_idle_class and isinstance(cores, SharesCores):
        cores.best_effort_idle_class = True
        yield _PlanAtStart("the idle class", cores.idle_class_writes())
    yield _PlanAtStart("the rest of the machine", rest, apart=True)
    if placement is not None:
        for resource, actuator in actuators.items():
            yield _PlanAtStart(resource.value, actuator.writes(placement, None))


def _absent(view: LatencyView) -> LatencyView:
    return dataclasses.replace(view, state=ServiceState.ABSENT, latency_ns=None, cautious_latency_ns=None)

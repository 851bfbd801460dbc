"""Enforce: carry out plans of knob writes so that conservation and undo hold at every moment (invariants 1, 3 and 6).

Within a plan, what shrinks a holder goes before what grows another; on the way back, what grew is shrunk before what shrank is
grown again. Every knob's value is journalled before it is first written and read back after every write. A write that may take
long is left to a process of its own: the rest of its plan waits, other plans go on.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parties.foreign import Contest, Drift, DriftState
from parties.in_force import Wanted
from parties.journal import JournalError
from parties.knob import (
    VANISHED,
    ChangesMore,
    Effect,
    Knob,
    KnobKinds,
    KnobRef,
    KnobWrite,
    Said,
    SaidByFiles,
    slow_kinds,
    still_said,
)
from parties.model import NS_PER_S, Holder, MoveStatus
from parties.settings import ForeignSettings
from parties.slow_writer import SlowResult


class WriteAhead(Protocol):
    """What the enforcer needs of the journal; every method raises JournalError."""

    def __contains__(self, ref: KnobRef) -> bool:
        """Whether the knob's earlier value is on disk."""

    def save(self, entries: Iterable[tuple[KnobRef, str | None]]) -> None:
        """Put the values on disk; what is there already stays."""

    def replace(self, ref: KnobRef, old: str | None) -> None:
        """Supersede the entry of a knob that was made anew."""

    def mark_yielded(self, ref: KnobRef) -> None:
        """Leave the knob to a foreign writer for good."""


class SlowExecutor(Protocol):
    """What the enforcer needs of the slow writer."""

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        """Queue a write; the ticket returns in a result."""

    def poll(self, now_ns: int) -> list[SlowResult]:
        """The writes that ended since the last call."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between repetitions of what failed: ``first_ns``, then twice as long each time up to ``longest_ns``."""

    first_ns: int = NS_PER_S
    longest_ns: int = 60 * NS_PER_S

    def after(self, last_ns: int) -> int:
        """The wait that follows one of ``last_ns``; 0 before the first."""
        return min(2 * last_ns, self.longest_ns) if last_ns else self.first_ns


_RULE = ForeignSettings()
_NO_KINDS: KnobKinds = {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan.

    DONE: every value is in force, as read back. REFUSED: rolled back, for the reason in ``detail``, except for the ``uncertain``
    knobs, whose roll-back failed and is being retried. PENDING: a slow write is under way, ``poll`` will tell by this ``ticket``.
    """

    status: MoveStatus
    detail: str = ""
    ticket: int | None = None
    uncertain: tuple[KnobRef, ...] = ()


@dataclass(slots=True)
class _State:
    """What is known of one knob. ``expected`` is what plans have asked for, None as long as no plan has come through."""

    knob: Knob
    holder: Holder
    contest: Contest
    files: SaidByFiles | None  # the knob, if it is one of those
    expected: str | None = None
    in_force: str | None = None  # as last read back
    # When they were last compared, there and the same; ``agreed_expected`` is None if they were not.
    agreed_expected: str | None = None
    agreed_found: str | None = None
    said: Said = ()  # what ``agreed_found`` was made of, as far as known
    gone: bool = False
    yielded: bool = False
    unreadable: bool = False
    last_wanted: Wanted | None = None

    def now_said(self) -> Said:
        """What the value was made of that was read last."""
        return self.files.said() if self.files is not None else ()

    def wanted(self, expected: str) -> Wanted:
        """The same object while it is the same, so that nobody has to compare what it says."""
        last = self.last_wanted
        if last is None or last.value != expected or last.holder != self.holder:
            last = self.last_wanted = Wanted(self.holder, expected)
        return last


@dataclass(frozen=True, slots=True)
class _Step:
    write: KnobWrite
    old: str | None


@dataclass(frozen=True, slots=True)
class _Refusal:
    value: str
    until_ns: int
    wait_ns: int
    detail: str


@dataclass(slots=True)
class _Run:
    """A plan on its way, or on its way back once ``failure`` says why. ``done`` are the steps still to be undone, oldest first."""

    ticket: int
    todo: deque[KnobWrite]
    refs: frozenset[KnobRef]
    before: dict[KnobRef, str | None]
    done: list[_Step] = field(default_factory=list)
    stuck: list[_Step] = field(default_factory=list)  # could not be undone this time, newest first
    current: _Step | None = None  # with the slow writer
    failure: str = ""
    setbacks: list[str] = field(default_factory=list)  # why steps are stuck
    silent: bool = False  # nobody waits for its outcome
    wait_ns: int = 0  # between attempts to roll back; 0 until one has failed
    due_ns: int | None = None  # when to try again


class Enforcer:
    """The only one that writes knobs. It opens nothing and reads no clock; nothing it does blocks.

    ``now_ns`` is the platform's monotonic clock throughout. ``backoff`` spaces both retries of failed roll-backs and repetitions of
    a refused write. ``kinds`` says which kinds are slow, so that every write of theirs goes to the slow writer, and whose they are.
    ``changes`` grows whenever what is ``wanted``, ``vanished`` or ``yielded`` may be another.
    """

    def __init__(
        self,
        journal: WriteAhead,
        slow_writer: SlowExecutor,
        *,
        backoff: Backoff = Backoff(),
        foreign_rule: ForeignSettings = _RULE,
        kinds: KnobKinds = _NO_KINDS,
    ) -> None:
        self._journal = journal
        self._slow_writer = slow_writer
        self._backoff = backoff
        self._foreign_rule = foreign_rule
        self._table: dict[KnobRef, _State] = {}
        self._runs: dict[int, _Run] = {}  # pending, or waiting for another attempt to roll back
        self._awaited: dict[int, _Run] = {}  # by the slow writer's ticket
        self._refusals: dict[KnobRef, _Refusal] = {}
        self._always_slow = slow_kinds(kinds)
        self._slow_kinds = self._always_slow | {name for name, kind in kinds.items() if kind.slow_to_shrink}
        self._kinds = kinds
        self._next_ticket = 1
        self.changes = 0

    # What is known

    @property
    def expected(self) -> dict[KnobRef, str]:
        """The values that plans have brought about and that should be in force; vanished and yielded knobs are left out."""
        return {
            ref: state.expected
            for ref, state in self._table.items()
            if state.expected is not None and not state.gone and not state.yielded
        }

    @property
    def wanted(self) -> dict[KnobRef, Wanted]:
        """The values that plans have brought about and for whom, those of vanished and yielded knobs included."""
        return {ref: state.wanted(state.expected) for ref, state in self._table.items() if state.expected is not None}

    @property
    def uncertain(self) -> frozenset[KnobRef]:
        """Knobs whose roll-back failed: until a retry succeeds no plan may touch them, so nothing more is granted there."""
        return frozenset(ref for run in self._runs.values() if run.wait_ns for ref in run.refs)

    @property
    def vanished(self) -> frozenset[KnobRef]:
        """Knobs whose group or device is gone."""
        return frozenset(ref for ref, state in self._table.items() if state.gone)

    @property
    def yielded(self) -> frozenset[KnobRef]:
        """Knobs left to a foreign writer."""
        return frozenset(ref for ref, state in self._table.items() if state.yielded)

    @property
    def contested(self) -> frozenset[KnobRef]:
        """Knobs that somebody else has written."""
        return frozenset(ref for ref, state in self._table.items() if state.yielded or state.contest.begun)

    # Plans

    def apply(self, plan: Iterable[KnobWrite], now_ns: int) -> Outcome:
        """Carry a plan out, take before give, skipping what is in force already.

        Shrinking a holder whose group has vanished counts as done (the value is written should it return); growing it is refused.
        """
        writes = sorted(plan, key=lambda write: write.effect)
        refusal = self._obstacle(writes, now_ns) or self._prepare(writes, now_ns)
        if refusal:
            return Outcome(MoveStatus.REFUSED, refusal)
        return self._start(writes, now_ns, silent=False)

    def apply_apart(self, writes: Sequence[KnobWrite], now_ns: int) -> list[Outcome]:
        """Carry out each write as a plan by itself; their values of before are put on disk together."""
        self._prepare([write for write in writes if not self._obstacle([write], now_ns)], now_ns)  # what fails, fails again below
        outcomes = [self.apply([write], now_ns) for write in writes]
        self._forget_passed(write.knob.ref for write in writes)
        return outcomes

    def poll(self, now_ns: int) -> list[tuple[int, Outcome]]:
        """Go on with what was pending: the plans that ended since the last call, by ticket. Retries failed roll-backs."""
        ended: list[tuple[int, Outcome]] = []
        for result in self._slow_writer.poll(now_ns):
            run = self._awaited.pop(result.ticket)
            self._take_result(run, result, now_ns)
            ended += self._report(run, now_ns)
        for run in [run for run in self._runs.values() if run.due_ns is not None and run.due_ns <= now_ns]:
            run.due_ns = None
            ended += self._report(run, now_ns)
        return ended

    def drift(self, now_ns: int) -> list[Drift]:
        """Read every knob under management and apply the rule for foreign writers; the events since the last call."""
        busy = self._under_way()
        events: list[Drift] = []
        for ref, state in self._table.items():
            expected = state.expected
            if expected is None or state.yielded or (busy and ref in busy):
                continue
            agreed = expected == state.agreed_expected and not state.gone and not state.unreadable
            if agreed and state.said and still_said(state.said):
                state.in_force = state.agreed_found
                continue  # nearly always: its files were read, and say what they said when it was last compared
            found, error = _look(state.knob)
            if agreed and error is None and found == state.agreed_found:
                state.in_force, state.said = found, state.now_said()
                continue  # still cheaper than to take both values apart again
            events += self._examine(state, expected, found, error, now_ns)
        self.changes += bool(events)
        return self._without_passed(events) if events else events

    def _without_passed(self, events: list[Drift]) -> list[Drift]:
        """The events but for those that tell of a thing's end where such things come and go; these knobs are forgotten."""
        passed = self._forget_passed(event.ref for event in events)
        return [event for event in events if event.ref not in passed]

    def _forget_passed(self, refs: Iterable[KnobRef]) -> set[KnobRef]:
        """Forget those that have vanished for good: nobody waits for the return of what comes and goes."""
        gone = {ref for ref in refs if ref in self._table and self._table[ref].gone} - self._under_way()
        passed = {ref for ref in gone if ref.kind in self._kinds and self._kinds[ref.kind].passing}
        for ref in passed:
            del self._table[ref]
            self._refusals.pop(ref, None)
        return passed

    def _under_way(self) -> set[KnobRef]:
        return {ref for run in self._runs.values() for ref in run.refs}

    def _obstacle(self, writes: Sequence[KnobWrite], now_ns: int) -> str:
        """Why the plan cannot even be begun; empty if it can."""
        for write in writes:
            ref = write.knob.ref
            for run in self._runs.values():
                if ref in run.refs:
                    under_way = "uncertain, its roll-back is being retried" if run.wait_ns else "being written"
                    return f"{ref}: {under_way} (ticket {run.ticket})"
            state = self._table.get(ref)
            if state is not None and state.yielded:
                return f"{ref}: left to a foreign writer"
            refused = self._refusals.get(ref)
            if refused is not None and refused.value == write.value and now_ns < refused.until_ns:
                return f"{refused.detail} (not repeated for another {(refused.until_ns - now_ns) / NS_PER_S:.1f} s)"
        return ""

    def _prepare(self, writes: Sequence[KnobWrite], now_ns: int) -> str:
        """Read what is not known, and journal it; why that failed, empty if it did not."""
        new: dict[KnobRef, str | None] = {}
        for write in writes:
            ref = write.knob.ref
            state = self._table.get(ref) or self._met(write)
            if (state.expected is None or state.gone or state.unreadable) and (cause := self._meet(state)):
                self._remember_refusal(write, cause, now_ns)
                return cause
            if state.gone and write.effect is Effect.GIVE:
                return f"{ref}: vanished, so nothing is given to {write.holder}"
            if not state.gone and ref not in self._journal:
                if isinstance(write.knob, ChangesMore) and (cause := self._look_at(write.knob.journalled_first(), new)):
                    return cause
                new[ref] = state.in_force
        try:
            self._journal.save(new.items())
        except JournalError as error:
            return str(error)
        return ""

    def _met(self, write: KnobWrite) -> _State:
        files = write.knob if isinstance(write.knob, SaidByFiles) else None  # asked once: it takes longer than a read
        state = self._table[write.knob.ref] = _State(write.knob, write.holder, Contest(self._foreign_rule), files)
        return state

    def _look_at(self, knobs: Iterable[Knob], new: dict[KnobRef, str | None]) -> str:
        """Read what is to be journalled before a knob; why that failed, empty if it did not."""
        for knob in knobs:
            if knob.ref not in self._journal and knob.ref not in new:
                new[knob.ref], error = _look(knob)
                if error is not None:
                    return f"{knob.ref}: cannot be read: {_words(error)}"
        return ""

    def _meet(self, state: _State) -> str:
        """Read a knob that is new, or back; why that failed, empty if it did not or if the knob is gone."""
        found, error = _look(state.knob)
        if error is not None:
            state.gone = error.errno in VANISHED
            return "" if state.gone else f"{state.knob.ref}: cannot be read: {_words(error)}"
        if state.gone:
            return self._welcome(state, found)
        state.in_force, state.unreadable = found, False
        return ""

    def _welcome(self, state: _State, found: str | None) -> str:
        """A vanished knob is there again; if its group was made anew, what it was has to be journalled anew."""
        ref = state.knob.ref
        if ref not in self._journal or state.expected is None or not state.knob.same(state.expected, found):
            try:
                self._journal.replace(ref, found)
            except JournalError as error:
                return str(error)
        state.gone, state.unreadable, state.in_force = False, False, found
        return ""

    def _start(self, writes: Sequence[KnobWrite], now_ns: int, *, silent: bool) -> Outcome:
        before = {write.knob.ref: self._table[write.knob.ref].expected for write in writes}
        run = _Run(self._next_ticket, deque(writes), frozenset(before), before)
        self._next_ticket += 1
        self._slow_kinds |= {write.knob.ref.kind for write in writes if write.slow}
        self._runs[run.ticket] = run
        outcome = self._go_on(run, now_ns)
        run.silent = silent or outcome is not None
        return outcome or Outcome(MoveStatus.PENDING, ticket=run.ticket)

    def _report(self, run: _Run, now_ns: int) -> list[tuple[int, Outcome]]:
        """Carry a plan on; its outcome, if it ended and somebody still waits for it."""
        outcome = self._go_on(run, now_ns)
        if outcome is None or run.silent:
            return []
        run.silent = True
        return [(run.ticket, outcome)]

    def _go_on(self, run: _Run, now_ns: int) -> Outcome | None:
        """Carry a plan on as far as it goes; its outcome if it ended."""
        if not run.failure and not self._forward(run, now_ns):
            return None
        if run.failure and not self._back(run, now_ns):
            return None
        return self._conclude(run, now_ns)

    def _forward(self, run: _Run, now_ns: int) -> bool:
        """Do the writes that are left; False if a slow one is under way."""
        while run.todo and not run.failure:
            write = run.todo.popleft()
            state = self._table[write.knob.ref]
            state.holder = write.holder
            if not state.gone and not write.knob.same(write.value, state.in_force):
                step = _Step(write, state.in_force)
                state.contest.wrote(now_ns)
                if write.slow or write.knob.ref.kind in self._always_slow:
                    self._hand_over(run, step, write.value, now_ns)
                    return False
                self._judge(run, step, *_put(write.knob, write.value), now_ns)
            elif state.gone and write.effect is Effect.GIVE:
                run.failure = f"{write.knob.ref}: vanished, so nothing is given to {write.holder}"
            else:
                state.expected = write.value
        return True

    def _judge(self, run: _Run, step: _Step, found: str | None, error: OSError | None, now_ns: int) -> None:
        """Take in what a write came to."""
        write, state = step.write, self._table[step.write.knob.ref]
        run.done.append(step)
        if error is None and write.knob.same(write.value, found):
            state.in_force, state.expected = found, write.value
            self._refusals.pop(write.knob.ref, None)
            return
        if self._is_gone(state) and write.effect is not Effect.GIVE:
            state.expected = write.value
            return
        cause = f"read back as {found!r}" if error is None else _words(error)
        run.failure = f"{write.knob.ref} = {write.value!r} for {write.holder}: {cause}"
        self._remember_refusal(write, run.failure, now_ns)

    def _back(self, run: _Run, now_ns: int) -> bool:
        """Undo, newest first, the steps that are left; False if a slow write is under way."""
        while run.done:
            step = run.done.pop()
            grown = any(stuck.write.effect is Effect.GIVE for stuck in run.stuck)
            if grown and step.write.effect is Effect.TAKE:
                run.stuck.append(step)  # what it gave away is still held by somebody else
            elif not self._is_back(step):
                if step.write.effect is not Effect.TAKE and step.write.knob.ref.kind in self._slow_kinds:  # shrinks: may be slow
                    self._hand_over(run, step, step.old, now_ns)
                    return False
                self._judge_back(run, step, *_put(step.write.knob, step.old))
        return True

    def _judge_back(self, run: _Run, step: _Step, found: str | None, error: OSError | None) -> None:
        """Take in what undoing a step came to."""
        state = self._table[step.write.knob.ref]
        if error is None and _matches(step.write.knob, step.old, found):
            state.in_force, state.unreadable = found, False
        elif not self._is_gone(state):
            run.stuck.append(step)
            cause = f"read back as {found!r}" if error is None else _words(error)
            run.setbacks.append(f"; {state.knob.ref} not brought back to {step.old!r}: {cause}")

    def _conclude(self, run: _Run, now_ns: int) -> Outcome:
        """The outcome of a plan that has gone as far as it can, forward or back."""
        self.changes += 1
        if not run.failure:
            del self._runs[run.ticket]
            return Outcome(MoveStatus.DONE, ticket=run.ticket)
        detail = run.failure + "".join(run.setbacks)
        if run.stuck:
            run.done, run.stuck, run.setbacks = run.stuck[::-1], [], []
            run.refs = frozenset(step.write.knob.ref for step in run.done)
            run.wait_ns = self._backoff.after(run.wait_ns)
            run.due_ns = now_ns + run.wait_ns
        else:
            del self._runs[run.ticket]
        for ref, expected in run.before.items():
            self._table[ref].expected = expected
        return Outcome(MoveStatus.REFUSED, detail, run.ticket, tuple(step.write.knob.ref for step in run.done))

    def _hand_over(self, run: _Run, step: _Step, value: str | None, now_ns: int) -> None:
        run.current = step
        self._awaited[self._slow_writer.submit(step.write.knob.ref, value, now_ns)] = run

    def _take_result(self, run: _Run, result: SlowResult, now_ns: int) -> None:
        step, run.current = run.current, None
        if step is None:
            raise RuntimeError(f"a result of the slow writer that nobody waits for: {result}")
        if run.failure:
            self._judge_back(run, step, result.found, result.error)
        else:
            self._judge(run, step, result.found, result.error, now_ns)

    def _is_back(self, step: _Step) -> bool:
        """Whether a step needs no undoing: the old value is in force, or the knob is gone."""
        state = self._table[step.write.knob.ref]
        return self._is_gone(state) or (not state.unreadable and _matches(step.write.knob, step.old, state.in_force))

    def _is_gone(self, state: _State) -> bool:
        """Read a knob after something went wrong with it; whether its group or device has vanished."""
        found, error = _look(state.knob)
        state.unreadable = error is not None
        state.gone = error is not None and error.errno in VANISHED
        state.in_force = found
        return state.gone

    def _remember_refusal(self, write: KnobWrite, detail: str, now_ns: int) -> None:
        last = self._refusals.get(write.knob.ref)
        wait_ns = self._backoff.after(last.wait_ns if last is not None and last.value == write.value else 0)
        self._refusals[write.knob.ref] = _Refusal(write.value, now_ns + wait_ns, wait_ns, detail)

    # Foreign writers

    def _examine(self, state: _State, expected: str, found: str | None, error: OSError | None, now_ns: int) -> list[Drift]:
        if error is not None:
            return self._examine_error(state, expected, error)
        state.unreadable = False
        if state.gone:
            return self._examine_returned(state, expected, found, now_ns)
        state.in_force = found
        if state.knob.same(expected, found):
            state.contest.settled()
            state.agreed_expected, state.agreed_found = expected, found
            state.said = state.now_said()
            return []
        state.agreed_expected = None
        return self._examine_foreign(state, expected, found, now_ns)

    def _examine_error(self, state: _State, expected: str, error: OSError) -> list[Drift]:
        """The knob cannot be read: say so once."""
        was_gone, was_unreadable = state.gone, state.unreadable
        state.gone, state.unreadable, state.in_force = error.errno in VANISHED, True, None
        if state.gone:
            state.contest.settled()
            return [] if was_gone else [self._event(state, expected, None, DriftState.VANISHED, _words(error))]
        return [] if was_unreadable else [self._event(state, expected, None, DriftState.UNREADABLE, _words(error))]

    def _examine_returned(self, state: _State, expected: str, found: str | None, now_ns: int) -> list[Drift]:
        """Its group is there again: what it was is journalled anew, and the expected value written."""
        cause = self._welcome(state, found)
        return [self._event(state, expected, found, DriftState.RETURNED, cause or self._reassert(state, expected, now_ns))]

    def _examine_foreign(self, state: _State, expected: str, found: str | None, now_ns: int) -> list[Drift]:
        """Somebody else wrote it: the rule says whether to wait, to re-assert or to yield."""
        news = state.contest.notice(now_ns)
        if state.contest.lost:
            state.yielded = True
            try:
                self._journal.mark_yielded(state.knob.ref)
            except JournalError as error:
                return [
                    self._event(state, expected, found, DriftState.YIELDED, f"a restore will overwrite it all the same: {error}")
                ]
            return [self._event(state, expected, found, DriftState.YIELDED)]
        if state.contest.due(now_ns):
            return [self._event(state, expected, found, DriftState.REASSERTED, self._reassert(state, expected, now_ns))]
        return [self._event(state, expected, found, DriftState.NOTICED)] if news else []

    def _reassert(self, state: _State, expected: str, now_ns: int) -> str:
        """Write the expected value again, as a plan of its own; why that failed, empty if it did not or is under way."""
        ref = state.knob.ref
        write = KnobWrite(state.knob, expected, state.holder, Effect.NEUTRAL, ref.kind in self._slow_kinds)
        return self._start([write], now_ns, silent=True).detail

    def _event(self, state: _State, expected: str, found: str | None, what: DriftState, detail: str = "") -> Drift:
        kind = self._kinds.get(state.knob.ref.kind)
        return Drift(state.knob.ref, state.holder, expected, found, what, detail, None if kind is None else kind.resource)


def _look(knob: Knob) -> tuple[str | None, OSError | None]:
    """Read a knob; an error is a value here, of whatever sort."""
    try:
        return knob.read(), None
    except Exception as error:  # noqa: BLE001 - an unknown error in one actuator must not leave a plan half done
        return None, _as_os_error(error)


def _put(knob: Knob, value: str | None) -> tuple[str | None, OSError | None]:
    """Write a knob, None meaning unset, and read it back."""
    try:
        if value is None:
            knob.restore(None)
        else:
            knob.write(value)
        return knob.read(), None
    except Exception as error:  # noqa: BLE001 - an unknown error in one actuator must not leave a plan half done
        return None, _as_os_error(error)


def _as_os_error(error: Exception) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EIO, f"{type(error).__name__}: {error}")


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _matches(knob: Knob, old: str | None, found: str | None) -> bool:
    return found is None if old is None else knob.same(old, found)

"""Fault injection for any kind of knob: every write of a plan fails once in every way, and the invariants are looked at each time.

A test gives a plan on knobs that it has made; each way of failing is one *fault point*. After each of them the sum of what was
given out may not have exceeded what there is, a refused plan has to be undone, and a restore by another set of knobs has to bring
back exactly what was there (design, section 4). ``COVERED`` counts the points by kind of knob, for the summary of a test run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parties.enforcer import Enforcer, Outcome
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import VANISHED, ChangesMore, Knob, KnobKind, KnobKinds, KnobRef, KnobWrite
from parties.model import NS_PER_S, MoveStatus
from parties.restore import restore
from parties.slow_writer import SlowResult

ERRNOS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)
HANG = errno.ETIMEDOUT
"""How a write that never ends looks to the enforcer, once the slow writer has killed the process that was doing it."""
COVERED: Counter[str] = Counter()
"""How many fault points of each kind of knob were covered in this process."""

_KILL = -1
_STOP = -2
"""A write of a fast kind that never ends: nobody in the process can help it, so the process is killed from outside."""

_ENDS = {_KILL: signal.SIGKILL, _STOP: signal.SIGSTOP}
_VIOLATED = 3
_LONG_ENOUGH_NS = 61 * NS_PER_S

MakePlan = Callable[[], Sequence[KnobWrite]]


@dataclass(slots=True)
class Injector:
    """Counts writes; the one of number ``index`` fails with ``fault``, having taken effect or not."""

    index: int | None = None
    fault: int = 0
    takes_effect: bool = False
    watch: Callable[[], None] = lambda: None
    count: int = 0
    violation: AssertionError | None = None  # kept, as the enforcer takes whatever a write raises for a refusal
    refs: list[KnobRef] = field(default_factory=list)  # of the writes so far

    def around(self, ref: KnobRef, do: Callable[[], None]) -> None:
        """Do a write, or fail."""
        index, self.count = self.count, self.count + 1
        self.refs.append(ref)
        struck = index == self.index
        if self.takes_effect or not struck:
            do()
        try:
            self.watch()
        except AssertionError as error:
            self.violation = self.violation or error
        if struck and self.fault in _ENDS:
            os._exit(_VIOLATED) if self.violation else os.kill(os.getpid(), _ENDS[self.fault])
        if struck:
            raise OSError(self.fault, f"{ref}: {os.strerror(self.fault)}")


class InjectedKnob:
    """A knob whose writes go through an injector."""

    def __init__(self, knob: Knob, injector: Injector) -> None:
        self._knob, self._injector = knob, injector
        self.ref = knob.ref
        if isinstance(knob, ChangesMore):
            self.journalled_first = knob.journalled_first

    def read(self) -> str | None:
        return self._knob.read()

    def write(self, value: str) -> None:
        self._injector.around(self.ref, lambda: self._knob.write(value))

    def same(self, wanted: str, found: str | None) -> bool:
        return self._knob.same(wanted, found)

    def restore(self, old: str | None) -> None:
        self._injector.around(self.ref, lambda: self._knob.restore(old))


class InlineSlowWriter:
    """Does slow writes when it is polled, in this process."""

    def __init__(self, knobs: Mapping[KnobRef, Knob]) -> None:
        self._knobs = knobs
        self._queue: list[tuple[int, KnobRef, str | None]] = []
        self._tickets = 0

    def submit(self, ref: KnobRef, value: str | None, _now_ns: int) -> int:
        self._tickets += 1
        self._queue.append((self._tickets, ref, value))
        return self._tickets

    def poll(self, _now_ns: int) -> list[SlowResult]:
        queue, self._queue = self._queue, []
        return [self._do(*request) for request in queue]

    def _do(self, ticket: int, ref: KnobRef, value: str | None) -> SlowResult:
        knob = self._knobs[ref]
        try:
            if value is None:
                knob.restore(None)
            else:
                knob.write(value)
            return SlowResult(ticket, found=knob.read())
        except OSError as error:
            return SlowResult(ticket, error=error)


@dataclass(frozen=True, slots=True)
class _Case:
    """What every fault point has in common."""

    make_plan: MakePlan
    kinds: KnobKinds
    directory: Path
    invariant: Callable[[], None]

    def run(self, injector: Injector) -> Outcome:
        """Carry the plan out to its end, with time for every retry."""
        injector.watch = self.invariant
        plan = [dataclasses.replace(write, knob=InjectedKnob(write.knob, injector)) for write in self.make_plan()]
        journal = Journal(self.directory, started_unix_ns=1)
        try:
            enforcer = Enforcer(journal, InlineSlowWriter({write.knob.ref: write.knob for write in plan}), kinds=self.kinds)
            outcome, now_ns = enforcer.apply(plan, 0), 0
            while outcome.status is MoveStatus.PENDING or enforcer.uncertain:
                now_ns += _LONG_ENOUGH_NS
                outcome = next((ended for _, ended in enforcer.poll(now_ns)), outcome)
            if outcome.status is MoveStatus.DONE:
                wrong = [write.knob.ref for write in _last(plan) if not write.knob.same(write.value, write.knob.read())]
                assert not wrong, f"said to be done, and is not: {wrong}"
        finally:
            journal.close()
        if injector.violation is not None:
            raise injector.violation
        return outcome

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.directory / JOURNAL_NAME

    def undo(self, what: str) -> None:
        """Restore as another process would, and nothing is left."""
        report = restore(self.journal, self.kinds)
        assert report.complete, f"{what}: {report}"
        shutil.rmtree(self.directory)


def fault_points(  # noqa: PLR0913 (what a test says of its knobs, each by name)
    make_plan: MakePlan,
    kinds: KnobKinds,
    directory: Path,
    *,
    invariant: Callable[[], None] = lambda: None,
    snapshot: Callable[[], object] | None = None,
    left_by_rolling_back: Callable[[], object] = lambda: None,
    kills: bool = True,
) -> int:
    """Fail every write of the plan in every way; the number of fault points. Raises AssertionError at the first that is not undone.

    ``make_plan`` gives the same plan each time; every value of it should differ from what is there. ``invariant`` is called at
    every moment between writes and asserts. ``snapshot`` gives what has to be the same afterwards, in addition to the plan's knobs.
    ``left_by_rolling_back`` gives what only a restore brings back.
    ``kills``: also SIGKILL, before and after each write, in a process of its own, and of fast kinds a hang that only SIGKILL ends;
    the knobs then have to be seen from outside that process.
    ``directory`` is for the journal and is removed.
    """
    refs = [write.knob.ref for write in make_plan()]

    def everything() -> object:
        values = {ref: kinds[ref.kind].make(ref.address).read() for ref in refs}  # as a new process would see them
        return values, None if snapshot is None else snapshot()

    before, left = everything(), left_by_rolling_back()
    case = _Case(make_plan, kinds, directory, invariant)
    clean = Injector()
    assert case.run(clean).status is MoveStatus.DONE, "the plan has to come through where nothing fails"
    assert everything() != before, "the plan has to change something"
    case.undo("without a fault")
    assert everything() == before, "without a fault"
    slow = {write.knob.ref for write in make_plan() if write.slow or kinds[write.knob.ref.kind].slow}
    points = 0
    for what, injector in injectors([ref in slow for ref in clean.refs], kills=kills):
        if not killed_in(lambda struck=injector: case.run(struck), injector, what):  # type: ignore[misc]
            outcome = case.run(injector)
            assert outcome.status is MoveStatus.REFUSED, f"{what}: {outcome}"
            assert everything() == before, f"{what}: the refused plan was not undone: {everything()}, before {before}"
        case.undo(what)
        assert everything() == before, f"{what}: restore left {everything()}, before {before}"
        assert left_by_rolling_back() == left, f"{what}: restore left {left_by_rolling_back()}, before {left}"
        points += 1
        COVERED[clean.refs[injector.index or 0].kind] += 1
    return points


def restore_points(
    make_plan: MakePlan, kinds: KnobKinds, directory: Path, *, snapshot: Callable[[], object], kills: bool = True
) -> int:
    """Fail every write of a restore in every way; the number of fault points. AssertionError where the next does not mend it.

    As ``fault_points``. An error that says that the knob has vanished is left out: then there is nothing to bring back.
    """
    before, case = snapshot(), _Case(make_plan, kinds, directory, lambda: None)
    clean, points = Injector(), 0
    _carried_out(case)
    assert restore(case.journal, _injected(kinds, clean)).complete
    for what, injector in injectors([True] * clean.count, kills=kills):
        if injector.fault in VANISHED or injector.fault == HANG:
            continue
        _carried_out(case)
        if not killed_in(lambda struck=injector: restore(case.journal, _injected(kinds, struck)), injector, what):  # type: ignore[misc]
            report = restore(case.journal, _injected(kinds, injector))
            assert report.complete == (not case.journal.exists()), f"{what}: {report}"
        if case.journal.exists():
            case.undo(what)
        assert snapshot() == before, f"{what}: restored again, there is {snapshot()}, before {before}"
        points += 1
        COVERED[clean.refs[injector.index or 0].kind] += 1
    return points


def _carried_out(case: _Case) -> None:
    assert case.run(Injector()).status is MoveStatus.DONE, "the plan has to come through where nothing fails"


def _injected(kinds: KnobKinds, injector: Injector) -> KnobKinds:
    """The kinds, with every write through the injector."""

    def wrapped(kind: KnobKind) -> KnobKind:
        return dataclasses.replace(kind, make=lambda address: InjectedKnob(kind.make(address), injector))

    return {name: wrapped(kind) for name, kind in kinds.items()}


def injectors(writes: Sequence[bool], *, kills: bool) -> Iterator[tuple[str, Injector]]:
    """One for each fault point, and what it does in words.

    ``writes`` says of each whether it is slow: only then does the enforcer learn that one hangs.
    """
    errors = {errno.errorcode[number]: number for number in ERRNOS}
    ends = {"SIGKILL": _KILL} if kills else {}
    for index, slow in enumerate(writes):
        hang = {"hang": HANG} if slow else {"hang": _STOP} if kills else {}
        for name, fault in (errors | hang | ends).items():
            for takes_effect in (False, True):
                when = "after" if takes_effect else "before"
                yield f"write {index}, {name} {when} it took effect", Injector(index, fault, takes_effect)


def killed_in(call: Callable[[], object], injector: Injector, what: str) -> bool:
    """Call in a process of its own, which does not survive it, if that is the injector's fault; else nothing is done."""
    if injector.fault not in _ENDS:
        return False
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            call()
        os._exit(1)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) != _VIOLATED, f"{what}: the invariant was violated before it"
    assert os.WIFSIGNALED(status), f"{what}: the process lived on: {status}"
    return True


def _last(plan: Sequence[KnobWrite]) -> list[KnobWrite]:
    """The last write of each knob, in the order in which plans are carried out."""
    return list({write.knob.ref: write for write in sorted(plan, key=lambda write: write.effect)}.values())

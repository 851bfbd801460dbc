"""Knobs with faults, and a daemon to be killed, for the tests of enforcing and undoing."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from parties.enforcer import Enforcer
from parties.journal import Journal
from parties.knob import Effect, Knob, KnobError, KnobKind, KnobRef, KnobWrite
from parties.slow_writer import SlowResult, SlowWriter

VANISH = -1
IGNORE = -2
FAULTS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO, VANISH, IGNORE)


class Board:
    """Knobs in memory. ``faults`` maps the number of a write (0, 1, ...) to (what happens, whether the value takes effect)."""

    def __init__(self, values: dict[str, str | None]) -> None:
        self.values = dict(values)
        self.faults: dict[int, tuple[int, bool]] = {}
        self.log: list[tuple[str, str | None]] = []
        self.watch: Callable[[], None] = lambda: None
        self.unreadable: set[str] = set()
        self.reads = 0

    def knob(self, name: str) -> BoardKnob:
        return BoardKnob(self, name)

    def kinds(self, *, persistent: bool = False) -> dict[str, KnobKind]:
        return {"board": KnobKind(lambda address: self.knob(address[0]), persistent=persistent)}

    def held(self) -> int:
        """The sum over all knobs, unset and vanished ones holding nothing."""
        return sum(int(value) for value in self.values.values() if value is not None)

    def put(self, name: str, value: str | None) -> None:
        fault, takes_effect = self.faults.get(len(self.log), (0, True))
        self.log.append((name, value))
        if name not in self.values:
            raise KnobError(errno.ENOENT, f"{name}: no such knob")
        if fault == VANISH:
            del self.values[name]
        elif takes_effect and fault != IGNORE:
            self.values[name] = value
        self.watch()
        if fault == VANISH:
            raise KnobError(errno.ENODEV, f"{name}: vanished")
        if fault > 0:
            raise KnobError(fault, os.strerror(fault))


class BoardKnob:
    """One of a board's knobs; ``same`` is as the kernel would have it: leading zeros do not count."""

    def __init__(self, board: Board, name: str) -> None:
        self._board, self._name = board, name

    @property
    def ref(self) -> KnobRef:
        return KnobRef("board", (self._name,))

    def read(self) -> str | None:
        self._board.reads += 1
        if self._name in self._board.unreadable:
            raise KnobError(errno.EIO, "cannot be read")
        try:
            return self._board.values[self._name]
        except KeyError:
            raise KnobError(errno.ENOENT, f"{self._name}: no such knob") from None

    def write(self, value: str) -> None:
        self._board.put(self._name, value)

    def same(self, wanted: str, found: str | None) -> bool:
        return found is not None and int(wanted) == int(found)

    def restore(self, old: str | None) -> None:
        self._board.put(self._name, old)


class FakeSlowWriter:
    """Does a board's slow writes when told to, in order; ``hold`` keeps them under way."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.queue: list[tuple[int, KnobRef, str | None]] = []
        self.hold = False
        self._tickets = 0

    def submit(self, ref: KnobRef, value: str | None, _now_ns: int) -> int:
        self._tickets += 1
        self.queue.append((self._tickets, ref, value))
        return self._tickets

    def poll(self, _now_ns: int) -> list[SlowResult]:
        results: list[SlowResult] = []
        while self.queue and not self.hold:
            ticket, ref, value = self.queue.pop(0)
            knob = self._board.knob(ref.address[0])
            try:
                knob.restore(value)
                results.append(SlowResult(ticket, found=knob.read()))
            except OSError as error:
                results.append(SlowResult(ticket, error=error))
        return results


class FileKnob:
    """A knob that is a file: ``(path,)``. No file: unset; no directory: vanished."""

    kind = "file"

    def __init__(self, address: tuple[str, ...]) -> None:
        self._path = Path(address[0])

    @property
    def ref(self) -> KnobRef:
        return KnobRef(self.kind, (str(self._path),))

    def read(self) -> str | None:
        if not self._path.parent.is_dir():
            raise KnobError(errno.ENOENT, f"{self._path.parent}: no such group")
        return self._path.read_text() if self._path.exists() else None

    def write(self, value: str) -> None:
        if not self._path.parent.is_dir():
            raise KnobError(errno.ENOENT, f"{self._path.parent}: no such group")
        self._path.write_text(value)

    def same(self, wanted: str, found: str | None) -> bool:
        return wanted == found

    def restore(self, old: str | None) -> None:
        if old is None:
            self._path.unlink(missing_ok=True)
        else:
            self.write(old)


class SlowFileKnob(FileKnob):
    """A file whose writing takes as long as the value says, in ms; "hang" never ends; "exit" ends the process."""

    kind = "slow-file"

    def write(self, value: str) -> None:
        if value == "exit":
            os._exit(3)
        time.sleep(1000 if value == "hang" else int(value) / 1000)
        super().write(value)


KINDS = {"file": KnobKind(FileKnob), "slow-file": KnobKind(SlowFileKnob)}


Draw = tuple[Knob, Callable[[random.Random], str]]


def move_at_random(state: Path, seed: int, draws: Sequence[Draw], slow: tuple[Draw, str] | None, moved: Connection) -> None:
    """Make random moves until killed, as the daemon does; ``moved`` is told once the first is through.

    ``draws`` gives the knobs and values for them; ``slow`` a knob for the slow writer, and where that finds its kinds.
    """
    rng = random.Random(seed)  # noqa: S311 - moves of a test
    writer = SlowWriter(slow[1]) if slow is not None else FakeSlowWriter(Board({}))
    enforcer = Enforcer(Journal(state, started_unix_ns=time.time_ns()), writer)
    for tick in itertools.count():
        plan = [KnobWrite(knob, draw(rng), "a", rng.choice(list(Effect))) for knob, draw in rng.sample(list(draws), 3)]
        if slow is not None and rng.random() < 1 / 3:
            knob, draw = slow[0]
            plan.append(KnobWrite(knob, draw(rng), "a", Effect.TAKE, slow=True))
        enforcer.apply(plan, time.monotonic_ns())
        if tick == 0:
            moved.send(True)
        enforcer.poll(time.monotonic_ns())
        enforcer.drift(time.monotonic_ns())


def killed_daemon(seed: int, arguments: Sequence[object], longest_s: float = 0.03) -> None:
    """Run ``move_at_random`` in a process of its own and kill it at a random moment; one in eight while it starts up."""
    from waiting import children, gone, until  # noqa: PLC0415 - the process for slow writes, which has this module, has not that one

    rng = random.Random(-seed)  # noqa: S311 - moments of a test
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=move_at_random, args=(*arguments, theirs))
    process.start()
    if seed % 8:
        ours.recv()
    time.sleep(rng.random() * longest_s)
    helpers = children(process.pid)
    process.kill()
    process.join()
    ours.close()
    theirs.close()
    for helper in helpers:  # the process for slow writes dies with its parent, but not before it
        until(lambda helper=helper: gone(helper), "the process for slow writes lives on")  # type: ignore[misc]

"""Fault injection at every write of random plans: conservation at every moment, and nothing that cannot be undone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, KnobWrite
from parties.model import NS_PER_S, MoveStatus
from parties.restore import Fate, restore

Board = Any  # of undo_kit, which only its fixture can import
TOTAL = 60
HOLDERS = ("a", "b", "c", "d", "e")


def split(rng: random.Random) -> dict[str, int]:
    """``TOTAL`` among the holders."""
    cuts = sorted(rng.randrange(TOTAL + 1) for _ in HOLDERS[1:])
    return {name: high - low for name, low, high in zip(HOLDERS, [0, *cuts], [*cuts, TOTAL], strict=True)}


def plan(board: Board, target: dict[str, int], rng: random.Random, *, slow: bool) -> list[KnobWrite]:
    """The writes that bring a split about, in any order."""
    writes = []
    for name, amount in target.items():
        have = int(board.values.get(name) or 0)
        effect = Effect.TAKE if amount < have else Effect.GIVE
        writes.append(KnobWrite(board.knob(name), str(amount), name, effect, slow and effect is Effect.TAKE))
    rng.shuffle(writes)
    return writes


class Trial:
    """One random plan on one board, with faults or without."""

    def __init__(self, kit: ModuleType, seed: int, state: Path) -> None:
        rng = random.Random(seed)  # noqa: S311 - plans of a test
        self.first = {name: str(amount) if amount else None for name, amount in split(rng).items()}
        self.board = kit.Board(self.first)
        self.target = split(rng)
        self.slow = kit.FakeSlowWriter(self.board)
        self.state = state
        self.enforcer = Enforcer(Journal(state, started_unix_ns=1), self.slow)
        self.plan = plan(self.board, self.target, rng, slow=seed % 3 == 0)
        self.most_held = 0
        self.board.watch = self.look

    def look(self) -> None:
        """Called at every moment between writes."""
        self.most_held = max(self.most_held, self.board.held())

    def run(self) -> MoveStatus:
        """Carry the plan out to its end, with time for every retry."""
        outcome, now_ns = self.enforcer.apply(self.plan, 0), 0
        while outcome.status is MoveStatus.PENDING or self.enforcer.uncertain:
            now_ns += 61 * NS_PER_S
            for _, outcome in self.enforcer.poll(now_ns):  # noqa: B007 - the last one counts
                pass
        return outcome.status

    def judge(self, status: MoveStatus) -> None:
        """The invariants that hold whatever went wrong."""
        there = set(self.board.values)
        assert self.most_held <= TOTAL, "more was given out than there is"
        wanted = {name: str(amount) for name, amount in self.target.items()} if status is MoveStatus.DONE else self.first
        for name in there:
            assert int(self.board.values[name] or 0) == int(wanted[name] or 0), f"{name} after {status}"
        if status is MoveStatus.REFUSED:
            assert all(self.board.values[name] == self.first[name] for name in there), "unset came back as something"
        if there == set(HOLDERS):
            assert self.board.held() == TOTAL, "something was lost"
        self.board.faults = {}
        report = restore(self.state / JOURNAL_NAME, self.board.kinds())
        assert report.complete
        assert {entry.ref.address[0] for entry in report.of(Fate.GONE)} == set(HOLDERS) - there
        assert {name: self.board.values[name] for name in there} == {name: self.first[name] for name in there}


def fault_plans(kit: ModuleType, writes: int) -> Iterator[dict[int, tuple[int, bool]]]:
    """Every fault at every write, with and without effect; and every pair of one fault here and a later one."""
    single = [(index, (fault, effect)) for index in range(writes) for fault in kit.FAULTS for effect in (False, True)]
    yield from ({index: fault} for index, fault in single)
    for (index, fault), later in itertools.product(single[::5], range(1, 4)):
        yield {index: fault, index + later: (5, bool(later % 2))}


@pytest.mark.usefixtures("without_fsync")
def test_every_write_can_fail(undo_kit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever write fails, however, also twice: the sum never exceeds the total, old values come back, restore is complete."""
    points = 0
    for seed in range(12):
        clean = Trial(undo_kit, seed, tmp_path / f"{seed}")
        assert clean.run() is MoveStatus.DONE
        writes = len(clean.board.log)
        clean.judge(MoveStatus.DONE)
        for faults in fault_plans(undo_kit, writes):
            trial = Trial(undo_kit, seed, tmp_path / f"{seed}-{points}")
            trial.board.faults = faults
            trial.judge(trial.run())
            points += 1
    with capsys.disabled():
        print(f"\n{points} fault points covered")  # noqa: T201 - the figure is wanted
    assert points > 1000


@pytest.mark.usefixtures("without_fsync")
def test_random_moves_with_random_faults(undo_kit: ModuleType, tmp_path: Path) -> None:
    """Long runs of plans with one write in six failing conserve the total throughout, and restore to the start."""
    for seed in range(30):
        rng = random.Random(seed)  # noqa: S311 - plans of a test
        trial = Trial(undo_kit, seed, tmp_path / str(seed))
        trial.board.faults = {n: (rng.choice((1, 5, 16, 22, 28)), rng.random() < 0.5) for n in range(2000) if rng.random() < 1 / 6}
        for tick in range(60):
            trial.enforcer.poll(tick * NS_PER_S)
            if not trial.enforcer.uncertain and not trial.slow.queue:
                trial.enforcer.apply(plan(trial.board, split(rng), rng, slow=rng.random() < 0.3), tick * NS_PER_S)
            trial.enforcer.drift(tick * NS_PER_S)
            assert trial.most_held <= TOTAL
        trial.board.faults = {}
        assert restore(tmp_path / str(seed) / JOURNAL_NAME, trial.board.kinds()).complete
        assert trial.board.values == trial.first

"""Fault injection at every write to cpufreq: a plan is through or taken back, and a restore brings back what was there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cpufreq_trees as trees
import pytest
from at_once import AtOnce

from actuators.cgroup.files import KeptFile
from actuators.frequency.actuator import FrequencyActuator, frequency_actuator
from actuators.registry import KINDS
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobError
from parties.model import IDLE, NS_PER_S, MoveStatus
from parties.placement import Placement
from parties.restore import Fate, restore
from parties.settings import FrequencySettings

pytestmark = pytest.mark.slow

MHZ = 1_000_000
FAULTS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)
SHAPES = ("acpi", "intel-active")
CPUS = {"a": [0, 1], "b": [2], IDLE: [3]}
LEVELS = {"a": 1500 * MHZ, "b": 1900 * MHZ}
STEPS: Mapping[str, Placement] = {
    "a step": trees.placement(CPUS, LEVELS | {"a": 1600 * MHZ}),
    "turbo and less": trees.placement(CPUS, {"a": 9_000 * MHZ, "b": 1200 * MHZ}),
    "a core changes hands": trees.placement({"a": [0], "b": [1, 2], IDLE: [3]}, LEVELS),
    "to and from idle": trees.placement({"a": [0, 3], "b": [2], IDLE: [1]}, LEVELS),
}


class Files:
    """Counts the writes of control files and makes one of them fail, with its effect or without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fault: tuple[int, int, bool] | None = None  # the number of the write, errno (0: none, and no effect), with effect
        write = KeptFile.write

        def counted(file: KeptFile, text: str, cause: str = "") -> None:
            number, self.count = self.count, self.count + 1
            if self.fault is None or self.fault[0] != number:
                write(file, text, cause)
                return
            _, code, takes_effect = self.fault
            if takes_effect:
                write(file, text, cause)
            if code:
                raise KnobError(code, f"{file.path}: {os.strerror(code)}")

        monkeypatch.setattr(KeptFile, "write", counted)


class Trial:
    """A machine, its actuator, and what enforces and undoes."""

    def __init__(self, root: Path, shape: str, files: Files) -> None:
        self.system = trees.make_tree(root, trees.SHAPES[shape])
        self.files = files
        self.first = self.settings()
        self.state = root / "state"
        self.enforcer = Enforcer(Journal(self.state, started_unix_ns=1), AtOnce())
        self.actuator: FrequencyActuator = frequency_actuator(FrequencySettings(), (trees.FOUR_CORES,), whole_cores=True, root=root)
        self.now_ns = 0
        self.start = self.fitting(trees.placement(CPUS, LEVELS))
        self.files.fault = None
        assert self.carry_out(self.start, None) is MoveStatus.DONE

    def fitting(self, placement: Placement) -> Placement:
        """The placement with levels that this machine has; more than it has is its turbo."""
        levels = self.actuator.pools()[0].levels
        held = {name: max(level for level in levels if level <= hz) for name, hz in placement.partition.amounts[trees.KEY].items()}
        return trees.placement(placement.cpus, held)

    def settings(self) -> dict[str, str]:
        """What every policy is set to; the speed counts under its governor only."""
        found = trees.contents(self.system)
        return {name: text for name, text in found.items() if not name.endswith("setspeed") or self._fixed(found, name)}

    @staticmethod
    def _fixed(found: Mapping[str, str], name: str) -> bool:
        return found[name.replace("setspeed", "governor")] == "userspace\n"

    def carry_out(self, placement: Placement, before: Placement | None) -> MoveStatus:
        """One plan to its end, with time for every retry."""
        outcome = self.enforcer.apply(self.actuator.writes(placement, before), self.now_ns)
        while outcome.status is MoveStatus.PENDING or self.enforcer.uncertain:
            self.now_ns += 61 * NS_PER_S
            for _, outcome in self.enforcer.poll(self.now_ns):  # noqa: B007 - the last one counts
                pass
        return outcome.status

    def undo(self) -> None:
        """Restore, and compare with the beginning."""
        self.files.fault = None
        report = restore(self.state / JOURNAL_NAME, KINDS)
        assert report.complete
        assert not report.of(Fate.GONE)
        assert self.settings() == self.first


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """The faults; thousands of journals in one test need no disk."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)
    return Files(monkeypatch)  # type: ignore[return-value]


def faults(writes: int) -> Iterator[tuple[int, int, bool]]:
    """Every fault at every write, with its effect and without; and a write that succeeds and does nothing."""
    for number in range(writes):
        yield from ((number, code, takes_effect) for code in FAULTS for takes_effect in (False, True))
        yield number, 0, False


def test_every_write_can_fail(tmp_path: Path, files: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: ANN401
    """Whichever write fails, however: all of the plan is in force or none of it, and a restore brings back the beginning."""
    points = 0
    for shape in SHAPES:
        for name, target in STEPS.items():
            clean = Trial(tmp_path / f"{shape}-{name}", shape, files)
            begun = files.count
            wanted = clean.fitting(target)
            assert clean.carry_out(wanted, clean.start) is MoveStatus.DONE
            writes, through = files.count - begun, clean.settings()
            clean.undo()
            for fault in faults(writes):
                trial = Trial(tmp_path / f"{points}", shape, files)
                before = trial.settings()
                files.fault = (files.count + fault[0], *fault[1:])
                status = trial.carry_out(trial.fitting(target), trial.start)
                assert trial.settings() == (through if status is MoveStatus.DONE else before), (name, fault, status)
                assert fault[1] != 0 or status is MoveStatus.REFUSED, "a write that did nothing was believed"
                trial.undo()
                points += 1
    with capsys.disabled():
        print(f"\n{points} fault points of cpufreq covered")  # noqa: T201 - the figure is wanted
    assert points > 250


def test_every_write_of_a_start_can_fail(tmp_path: Path, files: Any) -> None:  # noqa: ANN401
    """Taking the cores under management fails as a whole, whichever policy refuses."""
    for shape in SHAPES:
        begun = files.count
        Trial(tmp_path / shape, shape, files)
        for number, fault in enumerate(faults(files.count - begun)):
            trial = Trial(tmp_path / f"{shape}-{number}", shape, files)
            trial.undo()
            files.fault = (files.count + fault[0], *fault[1:])
            trial.enforcer = Enforcer(Journal(trial.state, started_unix_ns=1), AtOnce())
            status = trial.carry_out(trial.start, None)
            assert status is MoveStatus.DONE or trial.settings() == trial.first, fault
            trial.undo()


def test_every_write_of_a_restore_can_fail(tmp_path: Path, files: Any) -> None:  # noqa: ANN401
    """It is named and kept, and the next restore brings it back."""
    for shape in SHAPES:
        begun = files.count
        Trial(tmp_path / shape, shape, files).undo()
        for number, fault in enumerate(faults(files.count - begun)):
            trial = Trial(tmp_path / f"{shape}-{number}", shape, files)
            files.fault = (files.count + fault[0] // 2, *fault[1:])
            restore(trial.state / JOURNAL_NAME, KINDS)
            files.fault = None
            restore(trial.state / JOURNAL_NAME, KINDS)
            assert trial.settings() == trial.first, fault

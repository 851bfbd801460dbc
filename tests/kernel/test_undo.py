"""Undo on this machine's control groups: SIGKILL of the daemon at random moments, a full disk, a memory limit under use."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from waiting import LIMIT_S

from actuators.cgroup.group import FROZEN, IDLE_CLASS, THAWED, Controller, Direction
from actuators.cgroup.v1 import ControlGroupV1
from actuators.registry import KINDS
from parties.enforcer import Enforcer, Outcome
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, Knob, KnobWrite
from parties.model import MoveStatus
from parties.restore import restore
from parties.slow_writer import SlowWriter

pytestmark = pytest.mark.kernel

KILLS = 200
MIB = 1024**2
VALUES = {
    Controller.CPU: ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpu.idle"),
    Controller.CPUSET: ("cpuset.cpus", "cpuset.mems"),
    Controller.MEMORY: ("memory.limit_in_bytes", "memory.soft_limit_in_bytes"),
    Controller.DISK: ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"),
    Controller.FREEZER: ("freezer.state",),
}


@pytest.fixture
def undo_kit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The daemon to be killed (tests/parties/undo_kit.py)."""
    here = str(Path(__file__).parents[1] / "parties")
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", "")))))
    return importlib.import_module("undo_kit")


@pytest.fixture
def device() -> str:
    """A whole disk of this machine, as MAJ:MIN; only the tests' own groups are throttled on it."""
    for disk in sorted(Path("/sys/block").iterdir()):
        if (disk / "size").read_text().strip() != "0":
            return (disk / "dev").read_text().strip()
    pytest.skip("no disk to throttle")


def snapshot(groups: list[ControlGroupV1]) -> dict[str, str]:
    """Every value of the groups that could have been touched, as the kernel's files give it."""
    files = [group.directory(controller) / name for group in groups for controller, names in VALUES.items() for name in names]
    return {str(file): file.read_text() for file in files if file.exists()}


def draw_bandwidth(rng: random.Random) -> str:
    return rng.choice(("max 100000", f"{rng.randrange(1000, 10000)} 10000", f"{rng.randrange(1000, 50000)} 50000"))


def draw_class(rng: random.Random) -> str:
    return rng.choice((IDLE_CLASS, f"shares={rng.randrange(2, 5000)}"))


def draw_bytes(rng: random.Random) -> str:
    return str(rng.randrange(1, 1000) * MIB)


def draw_state(rng: random.Random) -> str:
    return rng.choice((FROZEN, THAWED))


def draws_of(group: ControlGroupV1, device: str) -> list[tuple[Knob, Callable[[random.Random], str]]]:
    return [
        (group.cpu_bandwidth, draw_bandwidth),
        (group.cpu_class, draw_class),
        (group.memory_limit, draw_bytes),
        (group.disk_throttle(device, Direction.READ), draw_bytes),
        (group.disk_throttle(device, Direction.WRITE), draw_bytes),
        (group.freezer, draw_state),
    ]


def test_sigkill_at_any_moment(
    undo_kit: ModuleType, cgroup_factory: Callable[[str], ControlGroupV1], device: str, tmp_path: Path
) -> None:
    """After each of 200 kills, restore brings back every value of every file, unset ones and weights included."""
    groups = [cgroup_factory("a"), cgroup_factory("b")]
    draws = [draw for group in groups for draw in draws_of(group, device)]
    changed = 0
    for seed in range(KILLS):
        rng = random.Random(seed)  # noqa: S311 - values of a test
        for knob, draw in draws:
            if rng.random() < 0.3:
                knob.write(draw(rng))
        before = snapshot(groups)
        state = tmp_path / str(seed)
        slow = ((groups[0].memory_limit, draw_bytes), "actuators.registry:KINDS") if seed % 5 == 1 else None
        undo_kit.killed_daemon(seed, (state, seed, draws[slow is not None :], slow), 0.6 if slow else 0.05)
        changed += snapshot(groups) != before
        report = restore(state / JOURNAL_NAME, KINDS)
        assert report.complete, report
        assert snapshot(groups) == before, f"seed {seed}"
    assert changed > KILLS // 2, "the kills came too early to prove anything"


@pytest.fixture
def slow_writer() -> Iterator[SlowWriter]:
    """The process for slow writes, with the kinds of this machine."""
    writer = SlowWriter()
    yield writer
    writer.close()


def wait_for(enforcer: Enforcer, outcome: Outcome) -> Outcome:
    deadline = time.monotonic() + LIMIT_S
    while outcome.status is MoveStatus.PENDING:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        for _, ended in enforcer.poll(time.monotonic_ns()):
            outcome = ended
    return outcome


def test_memory_under_use_is_not_taken(
    cgroup_factory: Callable[[str], ControlGroupV1],
    spawn: Callable[..., subprocess.Popen[bytes]],
    slow_writer: SlowWriter,
    tmp_path: Path,
) -> None:
    """Shrinking under what is in use is refused with the kernel's EBUSY, nothing is given, and no tick waits for it."""
    giver, taker = cgroup_factory("giver"), cgroup_factory("taker")
    process = spawn(
        giver, sys.executable, "-S", "-c", f"import time; b = bytearray({128 * MIB}); print(1, flush=True); time.sleep(600)"
    )
    assert process.stdout is not None
    process.stdout.readline()
    before = snapshot([giver, taker])
    enforcer = Enforcer(Journal(tmp_path, started_unix_ns=0), slow_writer)
    for to_giver, to_taker, status in ((512, 512, MoveStatus.DONE), (32, 992, MoveStatus.REFUSED), (256, 768, MoveStatus.DONE)):
        plan = [
            KnobWrite(taker.memory_limit, str(to_taker * MIB), "taker", Effect.GIVE),
            KnobWrite(giver.memory_limit, str(to_giver * MIB), "giver", Effect.TAKE, slow=True),
        ]
        pending = enforcer.apply(plan, time.monotonic_ns())
        assert pending.status is MoveStatus.PENDING
        held = taker.memory_limit.read()
        outcome = wait_for(enforcer, pending)
        assert outcome.status is status, outcome
        if status is MoveStatus.REFUSED:
            assert "Device or resource busy" in outcome.detail
            assert taker.memory_limit.read() == held
            assert giver.memory_limit.read() == str(512 * MIB)
    assert restore(tmp_path / JOURNAL_NAME, KINDS).complete
    assert snapshot([giver, taker]) == before


def test_full_disk_stops_the_writing(
    undo_kit: ModuleType, cgroup_factory: Callable[[str], ControlGroupV1], slow_writer: SlowWriter, tmp_path: Path
) -> None:
    """When the journal cannot grow the move is refused and the knob stays; what was journalled comes back."""
    small = tmp_path / "small"
    small.mkdir()
    group = cgroup_factory("a")
    before = snapshot([group])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(small)], check=True)
    others = undo_kit.Board({str(number): "0" for number in range(100)})
    try:
        journal = Journal(small / "state", started_unix_ns=0)
        enforcer = Enforcer(journal, slow_writer)
        assert enforcer.apply([KnobWrite(group.cpu_class, IDLE_CLASS, "a", Effect.TAKE)], 0).status is MoveStatus.DONE
        with pytest.raises(OSError, match="No space left"):
            (small / "filler").write_bytes(bytes(MIB))
        # The journal's last page has room for some more entries: fill it with those of other knobs.
        plans = ([KnobWrite(others.knob(name), "1", "a", Effect.GIVE)] for name in others.values)
        outcomes = [enforcer.apply(plan, 0) for plan in plans]
        assert "No space left on device; make room" in outcomes[-1].detail
        assert len(others.log) == [outcome.status for outcome in outcomes].count(MoveStatus.DONE) > 0
        refused = enforcer.apply([KnobWrite(group.memory_limit, str(MIB), "a", Effect.TAKE)], 0)
        assert refused.status is MoveStatus.REFUSED
        assert group.memory_limit.read() is None
        journal.close()
        assert restore(small / "state" / JOURNAL_NAME, {**KINDS, **others.kinds()}).complete
        assert snapshot([group]) == before
        assert set(others.values.values()) == {"0"}
    finally:
        subprocess.run(["umount", str(small)], check=True)

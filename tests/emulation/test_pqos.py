"""Cache ways by the real pqos on the emulated resctrl of two sockets. Its interface "os" stands for "msr", which needs hardware."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import children, gone, until

from actuators.cache.pqos import PqosActuator
from actuators.cache.pqos_knobs import LOOK
from actuators.registry import KINDS
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.model import (
    BEST_EFFORT,
    MILLICORES_PER_CORE,
    Core,
    Domain,
    MoveStatus,
    Node,
    Partition,
    Pool,
    PoolKey,
    Resource,
)
from parties.placement import Placement, place
from parties.restore import restore
from parties.settings import CacheSettings
from parties.slow_writer import SlowWriter
from tests.emulation.cpufreq import CpufreqOptions, mounted_cpufreq
from tests.emulation.fuse_tree import Mounted
from tests.emulation.namespace import Overlay
from tests.emulation.resctrl import ResctrlOptions, mounted_resctrl

pytestmark = [pytest.mark.emulation, pytest.mark.usefixtures("fuse", "pqos_command")]

DOMAINS = (Domain(0, (Core(0, (0, 4)), Core(1, (1, 5)))), Domain(1, (Core(2, (2, 6)), Core(3, (3, 7)))))
MANAGED = {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/jobs",)}
FAULTS = (errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENODEV, errno.ESRCH, errno.EPERM, errno.EIO)
FAIR = (1, 5, 4)
MOVED = (2, 6, 3)


class Stage:
    """The actuator with enforcer, journal and a real slow writer; ``go`` waits for slow writes to end."""

    def __init__(self, tmp_path: Path, resctrl: Mounted, command: Path) -> None:
        self.resctrl, self.state = resctrl, tmp_path / "state"
        self.snapshot = tmp_path / "pqos.json"
        self.actuator = PqosActuator(
            DOMAINS,
            MANAGED,
            settings=CacheSettings(),
            snapshot=self.snapshot,
            interface="os",
            command=str(command),
            homes={"a": 0, "b": 1},
        )
        pools = {pool.key: pool for pool in self.actuator.pools()}
        for domain in DOMAINS:
            key = PoolKey(Resource.CORES, domain.id)
            pools[key] = Pool(key, total=2 * MILLICORES_PER_CORE, step=MILLICORES_PER_CORE, floor=MILLICORES_PER_CORE)
        self.node = Node("n", DOMAINS, pools)
        self.slow = SlowWriter()
        self.enforcer = Enforcer(Journal(self.state, started_unix_ns=1), self.slow, kinds=KINDS)
        self.placement: Placement | None = None

    def go(self, amounts: tuple[int, int, int]) -> tuple[MoveStatus, str]:
        """Give "a" so many cores, "a" and the jobs so many ways in domain 0; "b" has domain 1."""
        cores, ways, jobs = amounts
        given = {
            PoolKey(Resource.CACHE, 0): {"a": ways, BEST_EFFORT: jobs},
            PoolKey(Resource.CACHE, 1): {"b": 9},
            PoolKey(Resource.CORES, 0): {"a": cores * MILLICORES_PER_CORE, BEST_EFFORT: (2 - cores) * MILLICORES_PER_CORE},
            PoolKey(Resource.CORES, 1): {"b": 2 * MILLICORES_PER_CORE},
        }
        placement = place(self.node, Partition(given), self.placement)
        outcome = self.enforcer.apply(self.actuator.writes(placement, self.placement), time.monotonic_ns())
        while outcome.status is MoveStatus.PENDING:
            time.sleep(0.002)
            for _, ended in self.enforcer.poll(time.monotonic_ns()):
                outcome = ended
        if outcome.status is MoveStatus.DONE:
            self.placement = placement
        return outcome.status, outcome.detail

    def look(self) -> None:
        """What upkeep does every few seconds."""
        (task,) = self.actuator.upkeep()
        KINDS[task.ref.kind].make(task.ref.address).write(LOOK)

    def groups(self) -> dict[str, tuple[str, list[int]]]:
        """Masks and CPUs of every class, as the emulated kernel has them."""
        state = self.resctrl.order("get_state")
        return {name: (group["schemata"].strip(), group["cpus"]) for name, group in state.items()}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    shape = CpufreqOptions(sockets=2, cores=2, threads=2)
    cache = ResctrlOptions(domains={0: [0, 1, 4, 5], 1: [2, 3, 6, 7]}, closids=4, shareable_bits=0x600)
    with mounted_cpufreq(tmp_path / "cpu", shape) as cpu, mounted_resctrl(tmp_path / "resctrl", cache) as resctrl:
        stage = Stage(tmp_path, resctrl, Overlay(resctrl.path, cpu.path).script(tmp_path / "bin", "pqos"))
        yield stage
        stage.slow.close()


def test_a_machine_is_divided_and_put_back(stage: Stage) -> None:
    """Through the slow writer's process: masks and CPUs as planned, moved, seen in the snapshot, and restored from the journal."""
    before = stage.groups()
    assert stage.go(FAIR) == (MoveStatus.DONE, "")
    names = {holder: f"COS{number}" for holder, number in stage.actuator._classes.items()}
    jobs = int(stage.groups()[names[BEST_EFFORT]][0][5:8], 16)
    assert (jobs.bit_count(), jobs & 0x600) == (4, 0)
    assert stage.groups()[names["a"]] == (f"L3:0={0x1FF & ~jobs:03x};1=600", [0, 4])
    assert stage.groups()[names["b"]] == ("L3:0=600;1=1ff", [2, 3, 6, 7])
    assert stage.groups()[""][0] == "L3:0=600;1=600"
    assert stage.go(MOVED) == (MoveStatus.DONE, "")
    assert stage.groups()[names["a"]][1] == [0, 1, 4, 5]
    assert stage.actuator.read_back()[PoolKey(Resource.CACHE, 0)] == {"a": 6, BEST_EFFORT: 3}
    assert restore(stage.state / JOURNAL_NAME, KINDS).complete
    assert stage.groups() == before


def test_a_foreign_change_is_noticed(stage: Stage) -> None:
    """What another program writes is drift as soon as the upkeep has looked."""
    stage.go(FAIR)
    number = stage.actuator._classes["b"]
    (stage.resctrl.path / f"COS{number}/schemata").write_text("L3:1=1\n")
    assert stage.enforcer.drift(time.monotonic_ns()) == []
    stage.look()
    (event,) = stage.enforcer.drift(time.monotonic_ns())
    assert event.ref.address[-2:] == ("1", str(number))


@pytest.mark.slow
@pytest.mark.parametrize("number", FAULTS)
def test_whatever_the_kernel_refuses_is_rolled_back(stage: Stage, number: int) -> None:
    """Each errno at the first mask and at the first CPU of a move: pqos fails, the move is refused, everything is as before."""
    stage.go(FAIR)
    before = stage.groups()
    for pattern in ("/COS*/schemata", "*/cpus"):
        stage.resctrl.fail(number, pattern)
        status, detail = stage.go(MOVED)
        assert status is MoveStatus.REFUSED, pattern
        assert "exit code 1" in detail
        assert stage.groups() == before


@pytest.mark.slow
def test_a_hanging_pqos_is_killed_and_rolled_back(stage: Stage) -> None:
    """The kernel does not come back: pqos is given up after its limit, the move refused. A write that still happens is noticed."""
    stage.go(FAIR)
    before = stage.groups()
    stage.resctrl.hang("/COS*/schemata")
    status, detail = stage.go(MOVED)
    assert (status, "no end after" in detail) == (MoveStatus.REFUSED, True)
    assert stage.groups() == before
    stage.resctrl.release()
    while stage.groups() == before:
        time.sleep(0.01)
    stage.look()
    assert [event.ref.kind for event in stage.enforcer.drift(time.monotonic_ns())] == ["pqos.mask"]


def test_a_mask_that_the_kernel_narrows_is_refused(stage: Stage) -> None:
    """The write succeeds and a narrower mask is in force: read back as it is, rolled back."""
    stage.go(FAIR)
    before = stage.groups()
    stage.resctrl.replace("L3:0=1;1=600\n", "/COS*/schemata")
    status, detail = stage.go(MOVED)
    assert (status, "read back as '1'" in detail) == (MoveStatus.REFUSED, True)
    assert stage.groups() == before


def test_a_kill_in_the_middle_is_restored(stage: Stage) -> None:
    """The slow writer is killed while a mask is being written: the restore brings everything back, believing no snapshot."""
    before = stage.groups()
    stage.go(FAIR)
    stage.resctrl.hang("/COS*/schemata")
    placement_writes = len(stage.resctrl.log())
    key = PoolKey(Resource.CACHE, 0)
    amounts = {**stage.placement.partition.amounts, key: {"a": 6, BEST_EFFORT: 3}} if stage.placement else {}
    placement = place(stage.node, Partition(amounts), stage.placement)
    assert stage.enforcer.apply(stage.actuator.writes(placement, stage.placement), time.monotonic_ns()).status is MoveStatus.PENDING
    while len(stage.resctrl.log()) == placement_writes:
        time.sleep(0.002)
    assert stage.slow.pid is not None
    (pqos,) = children(stage.slow.pid)
    os.kill(stage.slow.pid, signal.SIGKILL)
    stage.resctrl.release()  # pqos goes on without its parent
    until(lambda: gone(pqos), "pqos does not end")
    assert restore(stage.state / JOURNAL_NAME, KINDS).complete
    assert stage.groups() == before

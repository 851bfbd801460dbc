"""Runs in the guest: the rest of the machine kept on CPU 0 for real, by the keeper, the enforcer and the upkeep, and put back.

Units, kernel threads, interrupts and work queues are the guest's own; the agent's unit stands for a registered service.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actuators.cgroup.hierarchy import Hierarchies
from actuators.registry import KINDS
from actuators.rest.groups import confinable_v2
from actuators.rest.keeper import PERIOD_NS, RestKeeper
from monitors.rest import take_snapshot
from parties.enforcer import Enforcer
from parties.foreign import DriftState
from parties.journal import JOURNAL_NAME, Journal
from parties.model import MoveStatus
from parties.restore import Fate, restore
from parties.settings import RestSettings
from parties.slow_writer import SlowWriter
from parties.upkeep import Upkeep

from . import snapshot

REGISTERED = "/system.slice/agent.service"
LATE = "/system.slice/late.service"
GROUPS = Path("/sys/fs/cgroup")
WORK_QUEUES = Path("/sys/devices/virtual/workqueue/cpumask")
INTERRUPTS = Path("/proc/irq")
_LIMIT_S = 600.0
_LOOKS = 5
_PAUSE_S = 0.05


@dataclass
class Kept:
    """The rest, kept; what was refused and what was said."""

    enforcer: Enforcer
    upkeep: Upkeep
    refused: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    now_ns: int = field(default_factory=time.monotonic_ns)

    def look(self) -> None:
        """One more look at the machine, and wait until all that follows from it is done."""
        self.now_ns += PERIOD_NS
        deadline, looked, waiting = time.monotonic() + _LIMIT_S, 0, set[int]()
        while looked < 1 or waiting:
            for finding in self.upkeep.tend(self.now_ns):
                looked += 1
                self.warnings += finding.warnings
                for outcome in self.enforcer.apply_apart(finding.writes, self.now_ns):
                    self.refused += [outcome.detail] if outcome.status is MoveStatus.REFUSED else []
                    waiting |= {outcome.ticket} if outcome.status is MoveStatus.PENDING and outcome.ticket is not None else set()
            for ticket, outcome in self.enforcer.poll(self.now_ns):
                waiting -= {ticket}
                self.refused += [outcome.detail] if outcome.status is MoveStatus.REFUSED else []
            assert time.monotonic() < deadline, f"still under way: {waiting}"
            time.sleep(_PAUSE_S)

    def until_nothing_is(self, astray: Callable[[], Sequence[str]]) -> None:
        """Units and threads come at any time: what came after a look is dealt with by the next one."""
        for _ in range(_LOOKS):
            if not astray():
                return
            self.look()
        assert not (found := astray()), found


@contextlib.contextmanager
def kept(settings: RestSettings, state: str) -> Iterator[Kept]:
    """The rest on CPU 0 after a first look; nothing is put back at the end."""
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(contextlib.closing(Journal(Path(state), started_unix_ns=time.time_ns())))
        writers = [stack.enter_context(contextlib.closing(SlowWriter())) for _ in range(2)]
        keeper = RestKeeper(settings, (0,), Hierarchies.find(), [REGISTERED])
        enforcer = Enforcer(journal, writers[0], kinds=KINDS)
        made = Kept(enforcer, Upkeep(keeper.upkeep(), writers[1]))
        made.refused += [
            one.detail for one in enforcer.apply_apart(keeper.writes(), made.now_ns) if one.status is MoveStatus.REFUSED
        ]
        made.look()
        yield made


def check_units_are_confined_and_come_back() -> Mapping[str, object]:
    """Each unit but the registered one runs on CPU 0, also one started later, also after a reload; then all is as before."""
    before = snapshot.values()
    with tempfile.TemporaryDirectory() as state:
        with kept(RestSettings(processes=True), state) as rest:
            rest.until_nothing_is(_loose)
            assert len(os.sched_getaffinity(0)) > 1, "the registered service's own unit was confined"
            _run("systemd-run", "--unit=late", "--quiet", "sleep", "600")
            try:
                rest.look()
                assert LATE in confinable_v2(GROUPS, (REGISTERED,))
                assert _loose([LATE]) == []
                rest.until_nothing_is(_loose)
                confined = list(confinable_v2(GROUPS, (REGISTERED,)))
                _run("systemctl", "daemon-reload")
                assert _loose(confined) == []
                assert [drift for drift in rest.enforcer.drift(rest.now_ns) if drift.state is not DriftState.VANISHED] == []
            finally:
                _run("systemctl", "stop", "late")
            rest.look()
            assert ([text for text in rest.refused if not _of_a_unit_that_ended(text)], rest.warnings) == ([], [])
            units = len(rest.enforcer.wanted)
            assert [drift for drift in rest.enforcer.drift(rest.now_ns) if drift.state is not DriftState.VANISHED] == []
            assert not any("late.service" in str(ref) for ref in rest.enforcer.wanted), "the unit that ended is not forgotten"
        _assert_undone(state, before)
    return {"units": units}


def check_kernel_threads_are_moved_and_come_back() -> Mapping[str, object]:
    """Every movable kernel thread is on CPU 0, so are unbound work queues; then all is as before."""
    before = snapshot.values()
    with tempfile.TemporaryDirectory() as state:
        with kept(RestSettings(kernel_threads=True), state) as rest:
            rest.until_nothing_is(lambda: found if len(found := _elsewhere()) > len(set(rest.refused)) else [])
            assert int(WORK_QUEUES.read_text().replace(",", ""), 16) == 1
            rest.look()
            threads = len(rest.enforcer.wanted)
            assert threads > 1, "no kernel thread was moved"
        _assert_undone(state, before)
    return {"threads": threads, "refused": rest.refused[:3], "said": rest.warnings}


def check_interrupts_are_moved_and_come_back() -> Mapping[str, object]:
    """Every interrupt is on CPU 0 or said to stay, new ones will be; then all is as before."""
    before = snapshot.values()
    with tempfile.TemporaryDirectory() as state:
        with kept(RestSettings(interrupts=True), state) as rest:
            rest.look()
            wanted = [ref.address[1] for ref in rest.enforcer.wanted if ref.kind == "irq.affinity"]
            assert wanted, "no interrupt was moved"
            for number in wanted:
                assert (INTERRUPTS / number / "smp_affinity_list").read_text().strip() == "0", number
            assert int((INTERRUPTS / "default_smp_affinity").read_text().strip().replace(",", ""), 16) == 1
            assert bool(rest.refused) == bool(rest.warnings)
        _assert_undone(state, before)
    return {"moved": len(wanted), "refused": rest.refused, "said": rest.warnings}


def _loose(paths: Sequence[str] = ()) -> list[str]:
    """Those of the groups, or of all, that are not confined, and processes in them that run elsewhere."""
    groups = paths or list(confinable_v2(GROUPS, (REGISTERED,)))
    assert groups
    found = []
    for path in groups:
        group = GROUPS / path.strip("/")
        with contextlib.suppress(FileNotFoundError):  # it has ended
            found += [path] if (group / "cpuset.cpus").read_text().strip() != "0" else []
        found += [f"{path} {pid}" for pid in _processes(group) if _affinity(pid) not in ({0}, set())]
    return found


def _processes(group: Path) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):  # it ends just now
        for procs in group.rglob("cgroup.procs"):
            found |= {int(pid) for pid in procs.read_text().split()}
    return found


def _affinity(pid: int) -> set[int]:
    """Where a process may run; nowhere once it has ended."""
    try:
        return os.sched_getaffinity(pid)
    except ProcessLookupError:
        return set()


def _of_a_unit_that_ended(text: str) -> bool:
    units = re.findall(r"[\w@:.\\-]+\.(?:service|scope|slice)", text)
    there = {path.name for path in GROUPS.rglob("*.s*") if path.is_dir()}
    return bool(units) and not any(unit.rpartition(":")[2] in there for unit in units)


def _elsewhere() -> list[str]:
    """Movable kernel threads that may run elsewhere than on CPU 0."""
    return [
        f"{thread.name} ({thread.pid})"
        for thread in take_snapshot().processes.values()
        if thread.kernel_thread and not thread.fixed and not thread.name.startswith("irq/") and thread.allowed != {0}
    ]


def _assert_undone(state: str, before: Mapping[str, str]) -> None:
    report = restore(Path(state) / JOURNAL_NAME, KINDS)
    assert report.complete, report.of(Fate.FAILED)
    deadline = time.monotonic() + _LIMIT_S / 10
    while (found := snapshot.differences(before, snapshot.values())) and time.monotonic() < deadline:
        time.sleep(1)  # systemd writes some things after it has answered
    assert not found, "\n".join(found)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)

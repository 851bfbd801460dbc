"""Runs in the guest: the rest of the machine kept on CPU 0 for real, by the keeper, the enforcer and the upkeep, and put back.

Units, kernel threads, interrupts and work queues are the guest's own; the agent's unit stands for a registered service.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actuators.cgroup.hierarchy import Hierarchies
from actuators.registry import KINDS
from actuators.rest.groups import confinable_v2
from actuators.rest.keeper import PERIOD_NS, RestKeeper
from monitors.rest import take_snapshot
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.model import MoveStatus
from parties.restore import Fate, restore
from parties.settings import RestSettings
from parties.slow_writer import SlowWriter
from parties.upkeep import Upkeep

from . import snapshot

REGISTERED = "/system.slice/agent.service"
GROUPS = Path("/sys/fs/cgroup")
WORK_QUEUES = Path("/sys/devices/virtual/workqueue/cpumask")
INTERRUPTS = Path("/proc/irq")
_LIMIT_S = 90.0
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
            _assert_confined()
            assert len(os.sched_getaffinity(0)) > 1, "the registered service's own unit was confined"
            _run("systemd-run", "--unit=late", "--quiet", "sleep", "600")
            try:
                rest.look()
                _assert_confined()
                _run("systemctl", "daemon-reload")
                _assert_confined()
                assert rest.enforcer.drift(rest.now_ns) == []
            finally:
                _run("systemctl", "stop", "late")
            rest.look()
            assert (rest.refused, rest.warnings) == ([], [])
            units = len(rest.enforcer.wanted)
            assert rest.enforcer.drift(rest.now_ns) == []
            assert not any("late.service" in str(ref) for ref in rest.enforcer.wanted), "the unit that ended is not forgotten"
        _assert_undone(state, before)
    return {"units": units}


def check_kernel_threads_are_moved_and_come_back() -> Mapping[str, object]:
    """Every movable kernel thread is on CPU 0, so are unbound work queues; then all is as before."""
    before = snapshot.values()
    with tempfile.TemporaryDirectory() as state:
        with kept(RestSettings(kernel_threads=True), state) as rest:
            elsewhere = {
                f"{thread.name} ({thread.pid})"
                for thread in take_snapshot().processes.values()
                if thread.kernel_thread and not thread.fixed and not thread.name.startswith("irq/") and thread.allowed != {0}
            }
            assert len(elsewhere) <= len(rest.refused), elsewhere
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


def _assert_confined() -> None:
    groups = list(confinable_v2(GROUPS, (REGISTERED,)))
    assert groups
    for path in groups:
        group = GROUPS / path.strip("/")
        assert (group / "cpuset.cpus").read_text().strip() == "0", path
        for pid in {pid for procs in group.rglob("cgroup.procs") for pid in procs.read_text().split()}:
            with contextlib.suppress(ProcessLookupError):
                assert os.sched_getaffinity(int(pid)) == {0}, (path, pid)


def _assert_undone(state: str, before: Mapping[str, str]) -> None:
    report = restore(Path(state) / JOURNAL_NAME, KINDS)
    assert report.complete, report.of(Fate.FAILED)
    after = snapshot.values()
    passing = "affinity of kernel thread"  # some come and go by themselves
    places = [
        place
        for place in sorted({*before, *after})
        if before.get(place) != after.get(place) and not (place.startswith(passing) and (place not in before or place not in after))
    ]
    assert not places, "\n".join(f"{place}: {before.get(place)!r} before, {after.get(place)!r} after" for place in places)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)

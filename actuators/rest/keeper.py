"""Keeps the rest of the machine on the reserved CPUs: processes of no registered group, kernel threads, interrupts.

An operator asks for each by itself (``RestSettings``). The mechanism is the least that is complete:

| what | by |
|---|---|
| processes, v2 | ``cpuset.cpus`` of the largest groups that contain no registered one; of units through ``AllowedCPUs`` |
| processes, v1, and those in the root of v2 without systemd | the group ``parties-rest`` |
| kernel threads that can move | their affinity; unbound work queues by their common mask |
| interrupts | their affinity, and the default for new ones |

New ones appear all the time: a scan every five seconds, in the process for upkeep, tells of them. Each is a plan of its own, as
what one driver refuses is no reason to give up the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from actuators.cgroup.files import vanished
from actuators.cgroup.hierarchy import Hierarchies
from actuators.rest.affinity import InterruptAffinityKnob, MaskKnob, TaskAffinityKnob
from actuators.rest.groups import (
    ALL,
    GROUP,
    RestGroupKnob,
    RestListV1Knob,
    RestListV2Knob,
    RestMembersKnob,
    RestUnitKnob,
    unit_of,
)
from actuators.rest.kinds import NEW_INTERRUPTS, WORK_QUEUES
from actuators.rest.scan import MOST, Found, RestScanKnob, Scope
from actuators.systemd.bus import SystemdBus
from actuators.systemd.drop_ins import DropInKnob
from actuators.systemd.knobs import Unit
from monitors.writers import suspects
from parties.interfaces import Finding, UpkeepTask
from parties.knob import Effect, Knob, KnobRef, KnobWrite
from parties.model import NS_PER_S, RESERVED
from parties.settings import RestSettings
from parties.units import format_cpu_list

PERIOD_NS: Final = 5 * NS_PER_S
_MOST_NAMED: Final = 8
_BALANCER: Final = "irqbalance"
_PROCESSES: Final = frozenset({
    RestGroupKnob.KIND, RestListV1Knob.KIND, RestListV2Knob.KIND, RestUnitKnob.KIND, f"{DropInKnob.KIND}.rest",
})  # fmt: skip
_KERNEL_THREADS: Final = frozenset({TaskAffinityKnob.KIND, WORK_QUEUES})
_INTERRUPTS: Final = frozenset({InterruptAffinityKnob.KIND, NEW_INTERRUPTS})


class RestKeeper:
    """What keeps the rest off the managed CPUs. ``registered`` are the paths of every service's and job's control groups.

    ``root`` is the file system's. It writes nothing: ``writes`` is for the start, ``upkeep`` finds what is there and what comes.
    """

    def __init__(  # noqa: PLR0913 (what a machine is looked at through)
        self,
        settings: RestSettings,
        reserved_cpus: Iterable[int],
        hierarchies: Hierarchies,
        registered: Iterable[str],
        *,
        root: Path = Path("/"),
        bus: SystemdBus | None = None,
    ) -> None:
        self._settings = settings
        self._reserved = format_cpu_list(reserved_cpus)
        self._root = root
        self._proc = root / "proc"
        self._systemd = (root / "run/systemd/system").is_dir()
        self._bus = bus or SystemdBus(root)
        self._registered = tuple(sorted(registered))
        self._version = "1" if "cpuset" in hierarchies.v1 else "2"
        self._groups = hierarchies.v1.get("cpuset", hierarchies.v2) if settings.processes else None

    def warnings(self) -> tuple[str, ...]:
        """What stands against it, in an operator's words."""
        found = []
        running = suspects(self._proc, most=1000) if self._settings.interrupts else []
        balancers = [tool for tool in running if tool.startswith(f"{_BALANCER} ")]
        if balancers:
            found.append(
                f"{balancers[0]} moves interrupts as well; stop it, or give it IRQBALANCE_BANNED_CPULIST with the managed CPUs"
            )
        if self._settings.processes and self._groups is None:
            found.append("processes of the rest are not kept off the managed CPUs, as no cpuset hierarchy is mounted")
        return tuple(found)

    @staticmethod
    def knows(ref: KnobRef) -> bool:
        """Whether a knob is the rest's."""
        return ref.kind in _PROCESSES | _KERNEL_THREADS | _INTERRUPTS

    def asks(self, ref: KnobRef) -> bool:
        """Whether a knob is the rest's and what it does is asked for."""
        settings = self._settings
        return (
            (settings.processes and ref.kind in _PROCESSES)
            or (settings.kernel_threads and ref.kind in _KERNEL_THREADS)
            or (settings.interrupts and ref.kind in _INTERRUPTS)
        )

    def writes(self) -> Sequence[KnobWrite]:
        """What is known before anything was looked for. Each is to be a plan of its own."""
        return tuple(KnobWrite(knob, self._reserved, RESERVED, Effect.NEUTRAL) for knob in self._first())

    def upkeep(self) -> Sequence[UpkeepTask]:
        """The scan, and that the root's processes stay in their group."""
        tasks: list[UpkeepTask] = []
        scope = self._scope()
        if scope.proc or scope.interrupts or scope.groups:
            tasks.append(ScanTask(self, scope))
        if (group := self._own_group()) is not None:
            tasks.append(MembersTask(RestMembersKnob(group, self._proc).ref))
        return tasks

    def write_for(self, sort: str, thing: str) -> KnobWrite:
        """The write that keeps what the scan found where it should be."""
        return KnobWrite(self._knob(sort, thing), self._reserved, RESERVED, Effect.NEUTRAL)

    def _first(self) -> Iterator[Knob]:
        if (group := self._own_group()) is not None:
            yield RestGroupKnob(group)
        queues = self._root / "sys/devices/virtual/workqueue/cpumask"
        if self._settings.kernel_threads and queues.exists():
            yield MaskKnob(WORK_QUEUES, queues)
        new = self._proc / "irq/default_smp_affinity"
        if self._settings.interrupts and new.exists():
            yield MaskKnob(NEW_INTERRUPTS, new)

    def _own_group(self) -> Path | None:
        """The group for what is in the root; under systemd nothing is in the root of v2."""
        if self._groups is None or (self._version == "2" and self._systemd):
            return None
        return self._groups / GROUP

    def _scope(self) -> Scope:
        return Scope(
            reserved=self._reserved,
            proc=str(self._proc) if self._settings.kernel_threads else "",
            interrupts=str(self._proc / "irq") if self._settings.interrupts else "",
            groups=str(self._groups) if self._groups is not None else "",
            version=self._version,
            registered=self._registered,
        )

    def _knob(self, sort: str, thing: str) -> Knob:
        if sort == "threads":
            tid, start_ticks, _ = thing.split(" ", 2)
            return TaskAffinityKnob(int(tid), int(start_ticks), self._proc)
        if sort == "interrupts":
            return InterruptAffinityKnob(self._proc / "irq", thing)
        directory = (self._groups or Path("/")) / thing.strip("/")
        if self._version == "1":
            return RestListV1Knob(directory / "cpuset.cpus")
        unit = unit_of(thing) if self._systemd else None
        if unit is None:
            return RestListV2Knob(directory / "cpuset.cpus")
        return RestUnitKnob(Unit(unit, directory, self._bus, self._root), "cpuset.cpus")


class ScanTask:
    """Gives each thing that a scan finds one write; what is still loose in the scan after that stays, and is named."""

    value = ""
    period_ns = PERIOD_NS

    def __init__(self, keeper: RestKeeper, scope: Scope) -> None:
        self._keeper = keeper
        self._given: set[tuple[str, str]] = set()
        self._said: set[tuple[str, str]] = set()
        self.ref = RestScanKnob(scope).ref

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """The writes for what is new, and who stays where it should not be."""
        if error is not None or found is None:
            return Finding(warnings=(f"the rest of the machine cannot be looked at: {error}",))
        look = Found.parse(found)
        sorts = ("threads", "interrupts", "groups")
        loose = [(sort, thing) for sort in sorts for thing in getattr(look.loose, sort)]
        kept = [(sort, thing) for sort in sorts for thing in getattr(look.kept, sort)]
        stay = [one for one in loose if one in self._given]
        new = [one for one in (*loose, *kept) if one not in self._given]
        self._given = {*loose, *kept}
        return Finding(
            tuple(self._keeper.write_for(*one) for one in new),
            (*self._named(stay), *self._too_many(loose, sorts)),
            apart=True,
        )

    def _named(self, stay: Sequence[tuple[str, str]]) -> Iterator[str]:
        for sort, words in _WORDS.items():
            things = [thing for where, thing in stay if where == sort]
            if any((sort, thing) not in self._said for thing in things):
                self._said |= {(sort, thing) for thing in things}
                names = ", ".join(_name(sort, thing) for thing in things[:_MOST_NAMED])
                more = f" and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
                yield f"{len(things)} {words}: {names}{more}"

    def _too_many(self, loose: Sequence[tuple[str, str]], sorts: Sequence[str]) -> Iterator[str]:
        for sort in sorts:
            if sum(where == sort for where, _ in loose) >= MOST:
                yield f"of the {sort} of the rest only the first {MOST} are looked after"


_WORDS: Final = {
    "threads": "kernel threads could not be moved off the managed CPUs, or are moved back",
    "interrupts": "interrupts could not be moved off the managed CPUs, or are moved back; most drivers that do so spread theirs",
    "groups": "control groups of the rest could not be confined to the reserved CPUs, or are widened again",
}


def _name(sort: str, thing: str) -> str:
    return thing.split(" ", 2)[2] if sort == "threads" else thing


class MembersTask:
    """That the root's processes are in the group of the rest."""

    value = ALL
    period_ns = PERIOD_NS

    def __init__(self, ref: KnobRef) -> None:
        self.ref = ref

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """What could not be moved; without its group there is nothing to say, as that is the group's own knob's business."""
        if error is not None:
            return Finding() if vanished(error) else Finding(warnings=(f"processes of the rest: {error}",))
        if found in (None, ALL):
            return Finding()
        return Finding(warnings=("some processes of the root control group could not all be moved to the reserved CPUs yet",))

"""What runs on managed CPUs and belongs to no service or job, and what it costs: processes, kernel threads, interrupts.

Two snapshots of /proc, some time apart, are compared by functions that open nothing. What has gone since, what may not be read, and
what a kernel does not tell is left out: this looks, it does not judge.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parties.model import MILLICORES_PER_CORE, NS_PER_S
from parties.units import parse_cpu_list

_PF_KTHREAD = 0x0020_0000
_PF_NO_SETAFFINITY = 0x0400_0000
_FLAGS, _UTIME, _STIME, _START, _CPU = 6, 11, 12, 19, 36  # fields of /proc/PID/stat, counted from the state, which follows the name


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment.

    ``ticks`` is the CPU time of all its threads so far, ``start_ticks`` its start after boot; with ``pid`` it says whether it is
    still the same one. ``cpu`` is where its first thread ran last, ``allowed`` where that may run. ``fixed``: a kernel thread
    whose affinity cannot be changed (PF_NO_SETAFFINITY). ``groups`` are its control groups, one path for each hierarchy.
    """

    pid: int
    name: str
    start_ticks: int
    ticks: int
    cpu: int
    allowed: frozenset[int] = frozenset()
    kernel_thread: bool = False
    fixed: bool = False
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interrupt:
    """One line of /proc/interrupts: how often each CPU was interrupted so far.

    ``number`` is the interrupt's, or what the kernel calls one that is each CPU's own ("LOC"). ``allowed`` is where it may be
    delivered, ``effective`` where it is; both empty where that is not told or cannot be chosen.
    """

    number: str
    name: str
    counts: Mapping[int, int]
    allowed: frozenset[int] = frozenset()
    effective: frozenset[int] = frozenset()

    @property
    def of_device(self) -> bool:
        """Whether it comes from a device, so that it is delivered to some CPU and not to each its own."""
        return self.number.isdecimal()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine at one moment (CLOCK_MONOTONIC)."""

    at_ns: int
    processes: Mapping[int, Process] = field(default_factory=dict)
    interrupts: Mapping[str, Interrupt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """What a process took of the CPUs between two snapshots, in thousandths of one."""

    process: Process
    millicores: int


@dataclass(frozen=True, slots=True)
class InterruptLoad:
    """How often an interrupt came to the CPUs that were asked about."""

    interrupt: Interrupt
    per_s: int


@dataclass(frozen=True, slots=True)
class Rest:
    """What is outside of every registered group and may run on the CPUs that were asked about, the costliest first."""

    processes: tuple[ProcessLoad, ...] = ()
    kernel_threads: tuple[ProcessLoad, ...] = ()
    interrupts: tuple[InterruptLoad, ...] = ()

    @property
    def movable_kernel_threads(self) -> tuple[ProcessLoad, ...]:
        """Those whose affinity can be changed."""
        return tuple(load for load in self.kernel_threads if not load.process.fixed)


def take_snapshot(root: Path = Path("/"), clock: Callable[[], int] = time.monotonic_ns) -> Snapshot:
    """Look at ``root``/proc once. Costs about 0.1 ms for each process."""
    at_ns = clock()
    proc = root / "proc"
    processes = {process.pid: process for pid in _pids(proc) if (process := read_process(proc / pid)) is not None}
    return Snapshot(at_ns, processes, read_interrupts(root))


def read_process(directory: Path) -> Process | None:
    """The process of a directory of /proc; None if it has gone."""
    try:
        return parse_process(_text(directory / "stat"), _text(directory / "status"), _text(directory / "cgroup"))
    except (ValueError, IndexError):
        return None


def parse_process(stat: str, status: str = "", cgroup: str = "") -> Process:
    """A process from the three files. Raises ValueError, IndexError for a ``stat`` that is none."""
    head, _, tail = stat.rpartition(")")
    pid, _, name = head.partition("(")
    fields = tail.split()
    flags = int(fields[_FLAGS])
    return Process(
        pid=int(pid),
        name=name,
        start_ticks=int(fields[_START]),
        ticks=int(fields[_UTIME]) + int(fields[_STIME]),
        cpu=int(fields[_CPU]),
        allowed=_allowed(status),
        kernel_thread=bool(flags & _PF_KTHREAD),
        fixed=bool(flags & _PF_KTHREAD and flags & _PF_NO_SETAFFINITY),
        groups=tuple(dict.fromkeys(line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") > 1)),
    )


def read_interrupts(root: Path = Path("/")) -> dict[str, Interrupt]:
    """Every interrupt by its number, with its affinity."""
    found = parse_interrupts(_text(root / "proc/interrupts"))
    return {number: _with_affinity(interrupt, root / "proc/irq" / number) for number, interrupt in found.items()}


def parse_interrupts(text: str) -> dict[str, Interrupt]:
    """The lines of /proc/interrupts by number; the head names the online CPUs, which need not be 0 to n-1."""
    head, _, body = text.partition("\n")
    cpus = [int(word[3:]) for word in head.split() if word.startswith("CPU") and word[3:].isdecimal()]
    found = {}
    for line in body.splitlines():
        number, colon, rest = line.partition(":")
        words = rest.split()
        counts = [int(word) for word in words[: len(cpus)] if word.isdecimal()]
        if colon and len(counts) == len(cpus) and cpus:  # the sums ERR and MIS are of no CPU
            found[number.strip()] = Interrupt(number.strip(), " ".join(words[len(cpus) :]), dict(zip(cpus, counts, strict=True)))
    return found


def compare(
    before: Snapshot,
    after: Snapshot,
    cpus: Iterable[int],
    registered: Iterable[str] = (),
    *,
    ticks_per_s: int = os.sysconf("SC_CLK_TCK"),
) -> Rest:
    """What may run on ``cpus`` outside of the control groups ``registered`` (and below them), and what it took meanwhile."""
    asked = frozenset(cpus)
    elapsed_ns = max(1, after.at_ns - before.at_ns)
    paths = tuple("/" + path.strip("/") for path in registered)
    loads = [
        ProcessLoad(process, _ticks(before, process) * NS_PER_S * MILLICORES_PER_CORE // (ticks_per_s * elapsed_ns))
        for process in after.processes.values()
        if not process.allowed.isdisjoint(asked) and not _belongs(process, paths)
    ]
    loads.sort(key=lambda load: (-load.millicores, load.process.pid))
    interrupts = [
        InterruptLoad(interrupt, _count(before, interrupt, asked) * NS_PER_S // elapsed_ns)
        for interrupt in after.interrupts.values()
    ]
    interrupts.sort(key=lambda load: (-load.per_s, load.interrupt.number))
    return Rest(
        processes=tuple(load for load in loads if not load.process.kernel_thread),
        kernel_threads=tuple(load for load in loads if load.process.kernel_thread),
        interrupts=tuple(load for load in interrupts if load.per_s or not load.interrupt.effective.isdisjoint(asked)),
    )


def _belongs(process: Process, paths: tuple[str, ...]) -> bool:
    return any(group == path or group.startswith(f"{path}/") for group in process.groups for path in paths)


def _ticks(before: Snapshot, process: Process) -> int:
    """The CPU time since; all of it for a process that has come meanwhile."""
    earlier = before.processes.get(process.pid)
    if earlier is None or earlier.start_ticks != process.start_ticks:
        return process.ticks
    return max(0, process.ticks - earlier.ticks)


def _count(before: Snapshot, interrupt: Interrupt, cpus: frozenset[int]) -> int:
    earlier = before.interrupts.get(interrupt.number)
    counts = earlier.counts if earlier is not None else {}
    return sum(max(0, count - counts.get(cpu, 0)) for cpu, count in interrupt.counts.items() if cpu in cpus)


def _with_affinity(interrupt: Interrupt, directory: Path) -> Interrupt:
    if not interrupt.of_device:
        return interrupt
    allowed, effective = (_cpu_set(_text(directory / name)) for name in ("smp_affinity_list", "effective_affinity_list"))
    return Interrupt(interrupt.number, interrupt.name, interrupt.counts, allowed, effective or allowed)


def _allowed(status: str) -> frozenset[int]:
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _cpu_set(line.partition(":")[2])
    return frozenset()


def _cpu_set(text: str) -> frozenset[int]:
    try:
        return frozenset(parse_cpu_list(text.strip()))
    except ValueError:
        return frozenset()


def _pids(proc: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from sorted((name for name in os.listdir(proc) if name.isdecimal()), key=int)  # noqa: PTH208 (thousands of entries)


def _text(file: Path) -> str:
    """Empty where there is none, or where it may not be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""What each holder uses, from its control groups: CPU time, memory, disk traffic; network and pressure from readers that are given.

Memory in use is the *working set*: what is charged to the group less its inactive file pages, which the kernel drops first and
without harm. Memory slack in the paper's sense (section 4.2) is the limit less that; with all page cache counted as used, every
service that reads files would look saturated.

Disk traffic is counted by the block layer, which with control groups v1 on recent kernels begins to count a device when a limit is
first set on it, in any group. Until then, and where no disk is named, the storage traffic that the kernel accounts to processes
stands in for it (/proc/PID/io; it is rough: what a process did between the last sample and its end is added to its parent's
account, if at all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from actuators.cgroup.group import ControlGroup, GroupLayer
from actuators.holders import HolderGroups, ManagedGroups
from monitors.pressure import PressureMonitor, Waits
from monitors.resctrl import CacheUse
from parties.model import MILLICORES_PER_CORE, NS_PER_S, Holder, Usage
from parties.units import parse_cpu_list

NetworkReader = Callable[[int], Mapping[Holder, int]]
"""Bits/s of each holder since its last call, given the time in ns (``actuators.network.NetworkUsage.sample``)."""

FrequencyReader = Callable[[Iterable[int]], int | None]
"""What these CPUs run at in Hz, None where that is not known (``monitors.frequency.FrequencyMonitor.of``)."""

CacheReader = Callable[[], Mapping[Holder, CacheUse]]
"""Cache and memory bandwidth of each holder, as far as known (``monitors.resctrl.ResctrlMonitor.sample``)."""

_NO_WAITS = Waits()
_NO_CACHE = CacheUse()

WATCH_NS = NS_PER_S
"""How long a service's disk traffic is watched at its start (section 4.2)."""


class DiskCount(NamedTuple):
    """A running total of disk traffic, and who counts it: two totals compare only if the same does."""

    counted_by: str
    total_bytes: int


@dataclass(slots=True)
class _ProcessIo:
    """Storage traffic of a holder's processes, which outlives each of them."""

    seen: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def update(self, proc: Path, pids: frozenset[int]) -> int | None:
        """Bytes so far; None where the kernel does not account storage traffic."""
        now = {pid: done for pid in pids if (done := _process_io(proc / str(pid) / "io")) is not None}
        if pids and not now:
            return None
        self.total += sum(max(0, done - self.seen.get(pid, 0)) for pid, done in now.items())
        self.seen = now
        return self.total


@dataclass(slots=True)
class _Holder:
    """What is known of a holder from the samples so far."""

    at_ns: int = 0
    cpu_ns: int | None = None
    disk: DiskCount | None = None
    listed: tuple[tuple[int, ...], ...] = ()  # the processes of each group
    pids: frozenset[int] = frozenset()
    incarnation: int = 0
    confined: tuple[str | None, ...] | None = None  # to these CPUs, by group, and all of them together
    cpus: frozenset[int] = frozenset()
    process_io: _ProcessIo = field(default_factory=_ProcessIo)


class _Beside(NamedTuple):
    """What other readers say of a holder."""

    network: int | None
    waits: Waits
    cache: CacheUse


class GroupUsageMonitor:
    """Reads the groups of every holder, with kept descriptors.

    ``disk`` is the managed disk's number "MAJ:MIN". A holder whose groups are gone uses nothing that could be told: its Usage is
    empty. Raises SetupError for groups that overlap.
    """

    def __init__(  # noqa: PLR0913 (what it reads, each given by name)
        self,
        layer: GroupLayer,
        managed: ManagedGroups,
        *,
        disk: str | None = None,
        network: NetworkReader | None = None,
        frequency: FrequencyReader | None = None,
        pressure: PressureMonitor | None = None,
        cache: CacheReader | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._groups = HolderGroups(layer, managed, ())
        self._disk = disk
        self._network = network
        self._frequency = frequency
        self._pressure = pressure
        self._cache = cache
        self._proc = proc
        self._holders = {holder: _Holder() for holder in self._groups}

    def sample(self, now_ns: int) -> Mapping[Holder, Usage]:
        """Use since the last call; the first call gives memory only. A counter that fell (a group made anew) gives None once.

        Raises KnobError for a group that is there and cannot be read.
        """
        network = self._network(now_ns) if self._network is not None else {}
        waits = self._pressure.sample(now_ns) if self._pressure is not None else {}
        cache = self._cache() if self._cache is not None else {}
        return {
            holder: self._sample(
                holder,
                now_ns,
                _Beside(network.get(holder), waits.get(holder, _NO_WAITS), cache.get(holder, _NO_CACHE)),
            )
            for holder in self._holders
        }

    def populated(self) -> Mapping[Holder, bool]:
        """Whether a holder had any process at the last sample."""
        return {holder: bool(known.pids) for holder, known in self._holders.items()}

    def incarnation(self, holder: Holder) -> int:
        """How often the holder's processes were seen to be replaced, all of them at once: a restart."""
        return self._holders[holder].incarnation

    def disk_count(self, holder: Holder) -> DiskCount | None:
        """The holder's running total of disk traffic at the last sample; None where this machine cannot tell."""
        return self._holders[holder].disk

    def close(self) -> None:
        """Give up descriptors."""
        self._groups.close()
        if self._pressure is not None:
            self._pressure.close()

    def _sample(self, holder: Holder, now_ns: int, beside: _Beside) -> Usage:
        known = self._holders[holder]
        self._see_processes(holder, known)
        cpu_ns = _total(self._groups.read(holder, lambda group: group.cpu_usage_ns()))
        memory = _total(self._groups.read(holder, lambda group: group.memory_bytes()))
        disk = self._disk_count(holder, known)
        elapsed_ns = now_ns - known.at_ns
        usage = Usage(
            cpu_millicores=_rate(known.cpu_ns, cpu_ns, elapsed_ns, MILLICORES_PER_CORE),
            memory_bytes=memory,
            disk_bytes_per_s=_disk_rate(known.disk, disk, elapsed_ns),
            network_bits_per_s=beside.network,
            memory_bandwidth_bytes_per_s=beside.cache.memory_bandwidth_bytes_per_s,
            cache_bytes=beside.cache.cache_bytes,
            frequency_hz=self._frequency_of(holder, known),
            cpu_pressure=beside.waits.cpu,
            memory_pressure=beside.waits.memory,
            io_pressure=beside.waits.io,
        )
        known.at_ns, known.cpu_ns, known.disk = now_ns, cpu_ns, disk
        return usage

    def _frequency_of(self, holder: Holder, known: _Holder) -> int | None:
        """Of the CPUs that the holder's groups really have."""
        if self._frequency is None:
            return None
        found = self._groups.read(holder, lambda group: group.cpus_in_force())
        if found != known.confined:
            known.confined = found
            known.cpus = frozenset(cpu for cpus in found or () for cpu in parse_cpu_list(cpus or ""))
        return self._frequency(known.cpus)

    def _see_processes(self, holder: Holder, known: _Holder) -> None:
        listed = tuple([group.pids() for group in self._groups.of(holder)])
        if listed == known.listed:
            return
        known.listed = listed
        pids = frozenset(pid for group in listed for pid in group)
        if pids and known.pids.isdisjoint(pids):
            known.incarnation += 1
        known.pids = pids

    def _disk_count(self, holder: Holder, known: _Holder) -> DiskCount | None:
        if self._disk is not None:
            counted = _total(self._groups.read(holder, self._on_disk))
            if counted is not None:
                return DiskCount(self._disk, counted)
        done = known.process_io.update(self._proc, known.pids)
        return None if done is None else DiskCount("processes", done)

    def _on_disk(self, group: ControlGroup) -> int | None:
        return group.disk_bytes(self._disk) if self._disk is not None else None


@dataclass(slots=True)
class _Watch:
    """The first second of a service."""

    incarnation: int
    since_ns: int
    before: DiskCount | None
    verdict: bool | None = None


class InMemoryClassifier:
    """Finds out which services live in memory: no disk traffic at all in the first second of their life (section 4.2).

    Asked once per interval. A service that restarts is watched anew. Where disk traffic cannot be told, there is no verdict.
    """

    def __init__(
        self,
        disk_count: Callable[[Holder], DiskCount | None],
        incarnation: Callable[[Holder], int],
        *,
        watch_ns: int = WATCH_NS,
    ) -> None:
        self._disk_count = disk_count
        self._incarnation = incarnation
        self._watch_ns = watch_ns
        self._watches: dict[Holder, _Watch] = {}

    def observe(self, now_ns: int, populated: Mapping[Holder, bool]) -> Mapping[Holder, bool | None]:
        """For each holder True (lives in memory) or False once that is known, None before."""
        for holder, there in populated.items():
            if not there:
                self._watches.pop(holder, None)
        return {holder: self._observe(holder, now_ns) if there else None for holder, there in populated.items()}

    def _observe(self, holder: Holder, now_ns: int) -> bool | None:
        count, incarnation = self._disk_count(holder), self._incarnation(holder)
        watch = self._watches.get(holder)
        if watch is None or watch.incarnation != incarnation:
            watch = self._watches[holder] = _Watch(incarnation, now_ns, count)
        if watch.verdict is not None:
            return watch.verdict
        if watch.before is None or count is None or watch.before.counted_by != count.counted_by:
            watch.since_ns, watch.before = now_ns, count  # another counter: begin again with it
        elif count.total_bytes != watch.before.total_bytes:
            watch.verdict = False
        elif now_ns - watch.since_ns >= self._watch_ns:
            watch.verdict = True
        return watch.verdict


def _total(found: tuple[int | None, ...] | None) -> int | None:
    """The sum over a holder's groups; None if there is none or one of them cannot tell."""
    if found is None or None in found:
        return None
    return sum(value for value in found if value is not None)


def _rate(before: int | None, now: int | None, elapsed_ns: int, scale: int) -> int | None:
    """The growth per ns, times ``scale``."""
    if before is None or now is None or elapsed_ns <= 0 or now < before:
        return None
    return (now - before) * scale // elapsed_ns


def _disk_rate(before: DiskCount | None, now: DiskCount | None, elapsed_ns: int) -> int | None:
    if before is None or now is None or before.counted_by != now.counted_by:
        return None
    return _rate(before.total_bytes, now.total_bytes, elapsed_ns, NS_PER_S)


def _process_io(path: Path) -> int | None:
    """Bytes that a process had fetched from and sent to storage; None where it is gone or the kernel does not account it."""
    try:
        fields = dict(line.split(": ", 1) for line in path.read_text(encoding="ascii").splitlines())
        return int(fields["read_bytes"]) + int(fields["write_bytes"])
    except (OSError, KeyError, ValueError):
        return None

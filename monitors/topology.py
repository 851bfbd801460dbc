"""The shape of the machine: physical cores, L3 caches, NUMA nodes, sockets, from /sys.

A *domain* is what shares an L3 cache (a socket, where the kernel names no L3). Its id is the one that the kernel gives the cache;
ids need not be 0..n-1. PARTIES reserves cores for the system (section 5.1): reserved and managed CPUs are disjoint, and no physical
core is split between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from parties.model import Core, Domain
from parties.units import format_cpu_list, parse_cpu_list

_L3 = 3
T = TypeVar("T")


class TopologyError(Exception):
    """The machine's description cannot be read, or the CPUs asked for do not fit it: one message for the operator."""


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Where one online hardware thread is. ``l3`` is None where the kernel names no L3 cache."""

    cpu: int
    threads: tuple[int, ...]  # online hardware threads of its physical core, itself included
    socket: int
    l3: int | None
    numa: int

    @property
    def core(self) -> int:
        """The number of its physical core: the lowest of its threads."""
        return self.threads[0]


@dataclass(frozen=True, slots=True)
class Topology:
    """The online CPUs of a machine, ascending."""

    places: tuple[CpuPlace, ...]

    @classmethod
    def read(cls, root: Path = Path("/")) -> Topology:
        """Read ``root``/sys/devices/system. Raises TopologyError."""
        system = root / "sys/devices/system"
        online = frozenset(_cpus(system / "cpu/online"))
        if not online:
            raise TopologyError(f"{system / 'cpu/online'}: no CPU is online; is /sys mounted?")
        numa = _numa_nodes(system / "node")
        return cls(tuple(_place(system / f"cpu/cpu{cpu}", cpu, online, numa) for cpu in sorted(online)))

    @property
    def online(self) -> tuple[int, ...]:
        """The online CPUs."""
        return tuple(place.cpu for place in self.places)

    @property
    def cores(self) -> tuple[Core, ...]:
        """The physical cores; a core's id is its lowest CPU number."""
        return tuple(Core(place.core, place.threads) for place in self.places if place.cpu == place.core)

    @property
    def fingerprint(self) -> str:
        """A short hash of the online CPUs, their cores, sockets, L3 caches and NUMA nodes: two machines of one shape share it."""
        shape = [(place.cpu, place.threads, place.socket, place.l3, place.numa) for place in self.places]
        return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]

    @property
    def sockets(self) -> tuple[int, ...]:
        """The sockets' numbers."""
        return tuple(sorted({place.socket for place in self.places}))

    def numa_nodes(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """The NUMA nodes that these CPUs belong to."""
        wanted = frozenset(cpus)
        return tuple(sorted({place.numa for place in self.places if place.cpu in wanted}))

    def mems(self, domains: Iterable[Domain]) -> dict[int, tuple[int, ...]]:
        """The NUMA nodes of each domain's cores, by the domain's id."""
        return {domain.id: self.numa_nodes(domain.cpus) for domain in domains}

    def managed_domains(self, reserved: Iterable[int] = (), managed: Iterable[int] = ()) -> tuple[Domain, ...]:
        """The domains with their managed cores; ``managed`` empty means all that is online and not reserved.

        Domains without a managed core are left out. Raises TopologyError for CPUs that are on both sides or not online, for a core
        split between the sides, and where nothing is left to manage.
        """
        reserved_cpus, managed_cpus = frozenset(reserved), frozenset(managed)
        if both := reserved_cpus & managed_cpus:
            raise TopologyError(f"CPUs {_shown(both)} are reserved and managed; take them out of one")
        for name, cpus in (("reserved", reserved_cpus), ("managed", managed_cpus)):
            if offline := cpus - frozenset(self.online):
                raise TopologyError(f"{name} CPUs {_shown(offline)} are not online; online are {_shown(self.online)}")
        chosen = managed_cpus or frozenset(self.online) - reserved_cpus
        if not chosen:
            raise TopologyError("every online CPU is reserved; leave at least one to manage")
        for core in self.cores:
            self._check_whole(core, chosen)
        return self._domains(chosen)

    @staticmethod
    def _check_whole(core: Core, chosen: frozenset[int]) -> None:
        inside = chosen.intersection(core.cpus)
        outside = frozenset(core.cpus) - inside
        if inside and outside:
            raise TopologyError(
                f"CPUs {_shown(inside)} and {_shown(outside)} are hardware threads of one core, and only {_shown(inside)} would be "
                "managed; reserve or manage both"
            )

    def _domains(self, chosen: frozenset[int]) -> tuple[Domain, ...]:
        groups: dict[tuple[int, int], list[Core]] = {}
        for core in self.cores:
            place = next(place for place in self.places if place.cpu == core.id)
            if core.id in chosen:
                key = (0, place.l3) if place.l3 is not None else (1, place.socket)
                groups.setdefault(key, []).append(core)
        if len({kind for kind, _ in groups}) > 1:
            raise TopologyError("the kernel names an L3 cache for some of the managed cores only; manage those of one kind")
        return tuple(Domain(number, tuple(cores)) for (_, number), cores in sorted(groups.items()))


def _place(directory: Path, cpu: int, online: frozenset[int], numa: dict[int, int]) -> CpuPlace:
    topology = directory / "topology"
    siblings = topology / "core_cpus_list"
    if not siblings.exists():
        siblings = topology / "thread_siblings_list"  # its name before Linux 5.3
    threads = tuple(sorted(online.intersection(_cpus(siblings)) | {cpu})) if siblings.exists() else (cpu,)
    socket = _number(topology / "physical_package_id", 0)
    return CpuPlace(cpu, threads, max(socket, 0), _l3(directory / "cache"), numa.get(cpu, 0))


def _l3(cache: Path) -> int | None:
    """The id of a CPU's L3 cache; where a kernel gives caches no id, the lowest CPU that shares it stands for one."""
    for index in sorted(cache.glob("index*")):
        if _number(index / "level", 0) == _L3:
            if (index / "id").exists():
                return _number(index / "id", 0)
            shared = _cpus(index / "shared_cpu_list")
            return shared[0] if shared else None
    return None


def _numa_nodes(directory: Path) -> dict[int, int]:
    """The NUMA node of each CPU; empty on a kernel without NUMA, where everything is node 0."""
    return {cpu: int(node.name[4:]) for node in directory.glob("node[0-9]*") for cpu in _cpus(node / "cpulist")}


def _cpus(file: Path) -> tuple[int, ...]:
    return _read(file, parse_cpu_list)


def _number(file: Path, absent: int) -> int:
    return _read(file, int) if file.exists() else absent


def _read(file: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(file.read_text(encoding="ascii").strip())
    except OSError as error:
        raise TopologyError(f"{file}: cannot read the machine's shape: {error.strerror}") from error
    except ValueError as error:
        raise TopologyError(f"{file}: cannot read the machine's shape: {error}") from error


def _shown(cpus: Iterable[int]) -> str:
    return format_cpu_list(cpus)

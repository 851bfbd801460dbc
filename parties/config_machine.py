"""Whether a configuration fits this machine: control groups, CPUs, devices, permissions, directories.

Nothing is changed. What is found here can change by the next second, so that the control process still meets errors of its own;
this stage is there to name them all at once and early.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actuators.cgroup.group import ControlGroup, Controller
from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.layer import find_layer
from actuators.cgroup.naming import resolve
from actuators.cores import divides
from actuators.disk import find_disk
from actuators.systemd.layer import SystemdLayer
from monitors.topology import Topology, TopologyError
from parties import units
from parties.config import Configuration, Problem
from parties.config_checks import (
    divided_core_mistakes,
    divides_cores,
    floor_mistakes,
    members,
    shared_resources,
    surely_divides_cores,
)
from parties.config_schema import Mistake
from parties.homes import configured_home, need, too_narrow
from parties.makers import homes_of, pools_of_homes
from parties.model import BEST_EFFORT, Domain, Pool, Resource
from parties.settings import ControlSettings, CoreSettings
from parties.units import format_cpu_list, parse_cpu_list

_BYTES_PER_KIB = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the machine's files are, and who asks; tests put a tree of their own here."""

    root: Path = Path("/")
    user_id: int = -1  # -1: this process's own

    @property
    def is_root(self) -> bool:
        """Whether the user may write control groups."""
        return (os.geteuid() if self.user_id < 0 else self.user_id) == 0

    def online_cpus(self) -> tuple[int, ...]:
        """The CPUs that are online; empty if the machine does not say."""
        return parse_cpu_list(_text(self.root / "sys/devices/system/cpu/online"))

    def core_of(self, cpu: int) -> tuple[int, ...]:
        """The hardware threads of a CPU's physical core, itself included."""
        topology = self.root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")
        return parse_cpu_list(siblings) or (cpu,)

    def memory_bytes(self) -> int:
        """The machine's memory; 0 if it does not say."""
        for line in _text(self.root / "proc/meminfo").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * _BYTES_PER_KIB
        return 0


def check_machine(configuration: Configuration, machine: Machine | None = None) -> list[Problem]:
    """Every mistake: in what the machine is not as the configuration says, in the order of the file.

    What the machine cannot manage at all is no mistake: the daemon leaves it alone and says so, as ``parties.doctor.asked`` does.
    """
    machine = machine or Machine()
    checks: tuple[Callable[[ControlSettings, Machine], Iterator[Mistake]], ...] = (
        _permission,
        _groups,
        _cpus,
        _homes,
        _memory,
        _disk,
        _network,
        _directories,
    )
    found = [configuration.problem(mistake) for check in checks for mistake in check(configuration.settings, machine)]
    return sorted(found, key=lambda problem: problem.line or 0)


def managed_cpus(settings: ControlSettings, machine: Machine) -> tuple[int, ...]:
    """The CPUs under management: those named, else all that are online and not reserved."""
    cores = settings.node.cores
    if cores is None:
        return ()
    return cores.managed_cpus or tuple(sorted(set(machine.online_cpus()) - set(cores.reserved_cpus)))


def _permission(_: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    if not machine.is_root:
        yield Mistake((), "only root may change control groups; run parties as root, for example with sudo")


def _needs(settings: ControlSettings, machine: Machine) -> list[tuple[Controller, ...]]:
    """The control-group controllers that the resources' tables need, together for each."""
    needs: list[tuple[Controller, ...]] = []
    if settings.node.cores is not None:
        divided = divides_cores(settings, len({machine.core_of(cpu) for cpu in managed_cpus(settings, machine)}))
        freezer = (Controller.FREEZER,) if settings.best_effort else ()
        needs.append((*((Controller.CPU,) if divided else ()), Controller.CPUSET, *freezer))
    if settings.node.memory is not None:
        needs.append((Controller.MEMORY,))
    if settings.node.disk is not None:
        needs.append((Controller.DISK,))
    return needs


def _groups(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    try:
        layer = find_layer(Hierarchies.find(machine.root, settings.controllers), machine.root)
    except SetupError as error:
        yield Mistake(("controllers",), str(error))
        return
    wanted = {controller for needed in _needs(settings, machine) if not layer.lacks(needed) for controller in needed}
    names = resolve(settings, machine.root)
    if names.units:
        layer = SystemdLayer(layer, names.units, machine.root)
    for path, member in members(names.settings):
        for problem in names.problems:
            if problem.member == member.name:
                yield Mistake((*path, problem.key), problem.text)
        for name in member.cgroups:
            yield from _group((*path, "cgroups"), name, layer.group(name), sorted(wanted))


def _group(path: tuple[str | int, ...], name: str, group: ControlGroup, wanted: Sequence[Controller]) -> Iterator[Mistake]:
    if missing := sorted(group.missing(wanted)):
        listed = " ".join(missing)
        yield Mistake(path, f'control group "{name}" does not exist; start what makes it, or make it: mkdir -p {listed}')


def _cpus(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    cores, online = settings.node.cores, machine.online_cpus()
    if cores is None or not online:
        return
    for key, cpus in (("reserved", cores.reserved_cpus), ("managed", cores.managed_cpus)):
        if absent := set(cpus) - set(online):
            yield Mistake(
                ("node", "cores", key),
                f"CPU {format_cpu_list(absent)} is not online on this machine; online are {format_cpu_list(online)}",
            )
    managed = managed_cpus(settings, machine)
    if not managed:
        yield Mistake(("node", "cores", "reserved"), f"leaves no CPU to manage; online are {format_cpu_list(online)}")
        return
    whole = [core for core in {machine.core_of(cpu) for cpu in managed} if set(core) <= set(managed)]
    divided = divides_cores(settings, len(whole))
    if divided and not surely_divides_cores(settings):
        yield from divided_core_mistakes(settings, cores)
    yield from _split_cores(managed, machine)
    count = len(managed) if divided else len(whole)
    for shared in shared_resources(settings, managed_cores=count, divided=divided):
        if shared.resource is Resource.CORES:
            yield from floor_mistakes(settings, shared)


def _homes(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    cores = settings.node.cores or CoreSettings()
    try:
        domains = Topology.read(machine.root).managed_domains(cores.reserved_cpus, cores.managed_cpus)
    except TopologyError:
        return  # what is wrong with the CPUs is told by the others, or by the start
    bad = list(_bad_homes(settings, domains))
    yield from bad
    if not bad:
        homes = homes_of(settings, domains, root=machine.root)
        pools = _narrow_pools(settings, domains, homes, machine)
        yield from (Mistake(("node", resource), text) for resource, text in too_narrow(settings.services, homes, pools))


def _bad_homes(settings: ControlSettings, domains: Sequence[Domain]) -> Iterator[Mistake]:
    for index, service in enumerate(settings.services):
        try:
            if service.home is not None:
                configured_home(service, domains)
        except SetupError as error:
            yield Mistake(("service", index, "home"), str(error).partition(": ")[2])


def _narrow_pools(settings: ControlSettings, domains: Sequence[Domain], homes: Mapping[str, int], machine: Machine) -> list[Pool]:
    """The pools of the domains that may be too small for who lives there, without those of which more is told elsewhere.

    That is cores where they are too few on the whole machine (``_cpus``), and where none is handed out whole.
    """
    pools = pools_of_homes(settings, domains, machine.root)
    of_cores = [pool for pool in pools if pool.key.resource is Resource.CORES]
    holders = {service.name: ("/",) for service in settings.services} | {BEST_EFFORT: ("/",) if settings.best_effort else ()}
    too_few = of_cores and sum(need(service, of_cores[0]) for service in settings.services) > sum(pool.total for pool in of_cores)
    if too_few or divides(settings.node.cores or CoreSettings(), holders, domains, homes):
        return [pool for pool in pools if pool not in of_cores]
    return list(pools)


def _split_cores(managed: Sequence[int], machine: Machine) -> Iterator[Mistake]:
    for core in sorted({machine.core_of(cpu) for cpu in managed}):
        if outside := set(core) - set(managed):
            inside = set(core) & set(managed)
            yield Mistake(
                ("node", "cores", "managed"),
                f"CPU {format_cpu_list(inside)} shares a physical core with CPU {format_cpu_list(outside)}, which is not managed; "
                "manage both or neither",
            )


def _memory(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    memory, present = settings.node.memory, machine.memory_bytes()
    if memory is not None and present and memory.total_bytes > present:
        yield Mistake(
            ("node", "memory", "total"),
            f"{units.SIZE.format(memory.total_bytes)} is more than the machine has, {present // 2**20}MiB; "
            "leave some of that for the system",
        )


def _disk(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    if settings.node.disk is not None:
        try:
            find_disk(settings.node.disk.device, machine.root)
        except SetupError as error:
            yield Mistake(("node", "disk", "device"), str(error).removeprefix("disk: "))


def _network(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    network = settings.node.network
    if network is None:
        return
    if network.namespace:
        if not (machine.root / "run/netns" / network.namespace).exists():
            yield Mistake(
                ("node", "network", "namespace"), f'there is no network namespace "{network.namespace}"; see ip netns list'
            )
        return  # what is inside can be seen only from inside: the control process says so at its start
    devices = machine.root / "sys/class/net"
    if not (devices / network.device).exists():
        known = ", ".join(sorted(device.name for device in devices.iterdir())) if devices.is_dir() else "none"
        yield Mistake(("node", "network", "device"), f'there is no network device "{network.device}"; there are: {known}')


def _directories(settings: ControlSettings, machine: Machine) -> Iterator[Mistake]:
    record = [(("record",), str(Path(settings.record).parent))] if settings.record else []
    for path, name in [
        (("runtime_directory",), settings.runtime_directory),
        (("state_directory",), settings.state_directory),
        *record,
    ]:
        directory = machine.root / name.lstrip("/") if name.startswith("/") else Path(name)
        existing = next((place for place in (directory, *directory.parents) if place.exists()), Path("/"))
        if not existing.is_dir():
            yield Mistake(path, f"{existing} is not a directory")
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield Mistake(path, f"{existing} cannot be written; choose another directory, or run as root")


def _text(file: Path) -> str:
    """A small kernel file's text without its last newline; empty where there is none."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

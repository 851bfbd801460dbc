"""One actuator for each resource, made from settings: the decision what is managed and how.

The control process and ``parties doctor`` both decide by this, so that what one says is what the other does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from actuators.cache.actuator import cache_actuator, ways_to_hand_out
from actuators.cgroup.group import GroupLayer
from actuators.cores import cores_actuator, divides
from actuators.disk import DiskActuator
from actuators.frequency.actuator import frequency_actuator
from actuators.holders import ManagedGroups
from actuators.memory import MemoryActuator
from actuators.network.actuator import NetworkActuator
from monitors.topology import Topology
from parties.homes import choose_homes
from parties.interfaces import Actuator
from parties.knob import KnobRef
from parties.model import MILLICORES_PER_CORE, Domain, Holder, Pool, PoolKey, Resource
from parties.settings import ControlSettings, CoreDivision


@dataclass(frozen=True)
class Parts:
    """What actuators are made from.

    ``found`` are values of before an earlier daemon by knob, ``machine_bytes`` is the machine's memory (0: as the kernel says),
    ``root`` is where /proc, /sys and /dev are. ``only_ask``: nothing will be written, so that it need not be permitted.
    ``earlier_homes`` are the homes in force that an earlier daemon left, ``earlier_holders`` says whose each knob was that it left.
    """

    settings: ControlSettings
    layer: GroupLayer
    managed: ManagedGroups
    topology: Topology
    domains: tuple[Domain, ...]
    found: Mapping[KnobRef, str] = field(default_factory=dict)
    machine_bytes: int = 0
    root: Path = Path("/")
    only_ask: bool = False
    earlier_homes: Mapping[str, int] = field(default_factory=dict)
    earlier_holders: Mapping[KnobRef, Holder] = field(default_factory=dict)

    @cached_property
    def homes(self) -> dict[str, int]:
        """The home domain of each service. Raises SetupError for a configured one without managed cores."""
        return homes_of(self.settings, self.domains, self.earlier_homes, self.root)

    @property
    def whole_cores(self) -> bool:
        """Whether each holder has cores of its own."""
        cores = self.settings.node.cores
        return cores is not None and not divides(cores, self.managed, self.domains, self.homes)


def homes_of(
    settings: ControlSettings, domains: Sequence[Domain], earlier: Mapping[str, int] = MappingProxyType({}), root: Path = Path("/")
) -> dict[str, int]:
    """The home domain of each service: the one place that decides it. Raises SetupError (``parties.homes``)."""
    return choose_homes(settings.services, domains, pools_of_homes(settings, domains, root), earlier)


def pools_of_homes(settings: ControlSettings, domains: Sequence[Domain], root: Path = Path("/")) -> tuple[Pool, ...]:
    """What each domain has for those who live there, as far as it is known before there are actuators: whole cores, and ways.

    Classes of service (CLOSIDs) limit no domain: a holder has one on the whole machine, wherever it lives.
    """
    cores, cache = settings.node.cores, settings.node.cache
    whole = domains if cores is not None and cores.division is not CoreDivision.FRACTIONS else ()
    each = MILLICORES_PER_CORE
    in_cores = (Pool(PoolKey(Resource.CORES, domain.id), len(domain.cores) * each, step=each, floor=each) for domain in whole)
    return (*in_cores, *(ways_to_hand_out(cache, domains, root) if cache is not None else ()))


def make_actuators(parts: Parts) -> dict[Resource, Actuator]:
    """The actuator of each resource that is configured, or that at least can say why it is not managed.

    Raises SetupError, GroupMissingError.
    """
    made = {resource: make(parts) for resource, make in MAKERS.items()}
    return {resource: actuator for resource, actuator in made.items() if actuator is not None}


def _cache(parts: Parts) -> Actuator | None:
    settings = parts.settings.node.cache
    if settings is None:
        return None
    return cache_actuator(
        settings,
        parts.domains,
        layer=parts.layer,
        managed=parts.managed,
        homes=parts.homes,
        divides_cores=not parts.whole_cores,
        runtime=Path(parts.settings.runtime_directory),
        root=parts.root,
    )


def _cores(parts: Parts) -> Actuator | None:
    settings = parts.settings.node.cores
    if settings is None:
        return None
    mems = parts.topology.mems(parts.domains)
    return cores_actuator(parts.layer, parts.managed, settings, parts.domains, mems=mems, homes=parts.homes)


def _frequency(parts: Parts) -> Actuator | None:
    settings = parts.settings.node.frequency
    if settings is None:
        return None
    return frequency_actuator(
        settings,
        parts.domains,
        whole_cores=parts.whole_cores,
        root=parts.root,
        found=parts.found,
        only_ask=parts.only_ask,
    )


def _memory(parts: Parts) -> Actuator | None:
    settings = parts.settings.node.memory
    if settings is None:
        return None
    machine_bytes = parts.machine_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MemoryActuator(parts.layer, parts.managed, settings, parts.domains, machine_bytes=machine_bytes)


def _disk(parts: Parts) -> Actuator | None:
    settings = parts.settings.node.disk
    return None if settings is None else DiskActuator(parts.layer, parts.managed, settings, root=parts.root)


def _network(parts: Parts) -> Actuator | None:
    settings = parts.settings.node.network
    if settings is None:
        return None
    services, jobs = parts.settings.services, parts.settings.best_effort
    hierarchies = parts.layer.hierarchies
    return NetworkActuator(
        settings, services, jobs, v2_root=hierarchies.v2, net_cls=hierarchies.v1.get("net_cls"), earlier=parts.earlier_holders
    )


MAKERS: Mapping[Resource, Callable[[Parts], Actuator | None]] = {
    Resource.CACHE: _cache,
    Resource.CORES: _cores,
    Resource.FREQUENCY: _frequency,
    Resource.MEMORY: _memory,
    Resource.DISK: _disk,
    Resource.NETWORK: _network,
}
"""For each resource what makes its actuator: None where it is not configured."""

"""Homes: the domain that each service lives in.

A domain (an L3 cache, a socket) is a game of its own: those who live there divide its cores, ways and frequencies among themselves.
The whole machine is in use only where services are spread over its domains, and as a service that changes its domain starts over
with cold caches, far from its memory, who has a home keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from actuators.cgroup.hierarchy import SetupError
from parties.model import Domain, Pool, Resource
from parties.settings import ServiceSettings
from parties.units import format_cpu_list


def choose_homes(
    services: Sequence[ServiceSettings], domains: Sequence[Domain], pools: Sequence[Pool], earlier: Mapping[str, int]
) -> dict[str, int]:
    """The home domain of each service. Raises SetupError for a configured one without managed cores.

    1. A configured home stands.
    2. ``earlier``, the homes in force that an earlier daemon left, stand as long as there is room.
    3. Each other service, in the order of the configuration, goes where there are the fewest services for each managed core, itself
       included (the lowest id of several), among the domains with room for it; where none has room, among all.

    There is room where the ``pools`` of a domain, as far as they are known, can give everybody there what they need at the least.
    """
    lodgings = {domain.id: _Lodging(domain, pools) for domain in domains}
    homes: dict[str, int] = {}

    def move_in(service: ServiceSettings, home: int) -> None:
        homes[service.name] = home
        lodgings[home].take_in(service)

    for service in services:
        if service.home is not None:
            move_in(service, configured_home(service, domains))
    for service in services:
        kept = lodgings.get(earlier.get(service.name, -1))
        if service.name not in homes and kept is not None and kept.has_room(service):
            move_in(service, kept.domain.id)
    for service in services:
        if service.name not in homes:
            fitting = [lodging for lodging in lodgings.values() if lodging.has_room(service)]
            best = min(fitting or lodgings.values(), key=lambda lodging: (lodging.crowding, lodging.domain.id))
            move_in(service, best.domain.id)
    return {service.name: homes[service.name] for service in services}


def configured_home(service: ServiceSettings, domains: Sequence[Domain]) -> int:
    """The home that the configuration names. Raises SetupError for a domain without managed cores."""
    home = next((domain.id for domain in domains if domain.id == service.home), None)
    if home is None:
        known = ", ".join(f"{domain.id} (CPU {format_cpu_list(domain.cpus)})" for domain in domains)
        raise SetupError(f"{service.name}: domain {service.home} has no managed core; set home to one that has: {known}")
    return home


def need(service: ServiceSettings, pool: Pool) -> int:
    """What a service needs of a pool at the least: its minimum or the pool's floor, in whole steps."""
    return -(-max(pool.floor, _minimum(service, pool.key.resource)) // pool.step) * pool.step


def too_narrow(services: Sequence[ServiceSettings], homes: Mapping[str, int], pools: Iterable[Pool]) -> list[tuple[Resource, str]]:
    """The pools that cannot give those who live there what they need at the least, in words with what to do."""
    told = []
    for pool in pools:
        needs = {service.name: need(service, pool) for service in services if homes[service.name] == pool.key.domain}
        if sum(needs.values()) > pool.total:
            listed = ", ".join(f"{name} {amount}" for name, amount in needs.items())
            text = (
                f"domain {pool.key.domain} has {pool.total} {pool.key.resource.unit}, and the services that live there need "
                f"{sum(needs.values())} at least ({listed}); lower a minimum, or set home of one of them to another domain"
            )
            told.append((pool.key.resource, text))
    return told


def told_homes(homes: Mapping[str, int], domains: Sequence[Domain]) -> str:
    """Who lives where, in words; empty where there is one domain only."""
    if len(domains) == 1:
        return ""
    lodgers = {domain: [name for name, home in homes.items() if home == domain.id] for domain in domains}
    inhabited = [
        f"{domain.id} (CPU {format_cpu_list(domain.cpus)}): {', '.join(names)}" for domain, names in lodgers.items() if names
    ]
    empty = len(domains) - len(inhabited)
    others = f"; {empty} more {'domain has' if empty == 1 else 'domains have'} no service" if empty else ""
    return f"services live in domain {'; '.join(inhabited)}{others}"


class _Lodging:
    """A domain and those who live in it so far."""

    def __init__(self, domain: Domain, pools: Iterable[Pool]) -> None:
        self.domain = domain
        self._services = 0
        self._pools = [pool for pool in pools if pool.key.domain == domain.id]
        self._left = {pool.key: pool.total for pool in self._pools}

    @property
    def crowding(self) -> float:
        """Services for each managed core, once there is one more."""
        return (self._services + 1) / len(self.domain.cores)

    def has_room(self, service: ServiceSettings) -> bool:
        """Whether every pool still has what the service needs at the least."""
        return all(need(service, pool) <= self._left[pool.key] for pool in self._pools)

    def take_in(self, service: ServiceSettings) -> None:
        """Reckon with a service, whether there is room or not."""
        self._services += 1
        for pool in self._pools:
            self._left[pool.key] -= need(service, pool)


def _minimum(service: ServiceSettings, resource: Resource) -> int:
    return {Resource.CORES: service.minimum.cores_millicores, Resource.CACHE: service.minimum.cache_ways}.get(resource, 0)

"""Whole cores: the CPU set of each holder's groups (section 4.1), and the choice between whole cores and fractions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actuators import best_effort
from actuators.cgroup.group import ControlGroup, Controller, GroupLayer
from actuators.cgroup.v2_knobs import INHERITED
from actuators.cpu_bandwidth import CpuBandwidthActuator
from actuators.holders import HolderGroups, ManagedGroups
from parties.knob import Effect, KnobError, KnobWrite
from parties.model import BEST_EFFORT, MILLICORES_PER_CORE, Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CoreDivision, CoreSettings
from parties.units import format_cpu_list, parse_cpu_list

_NEEDS = (Controller.CPUSET,)


def divides(settings: CoreSettings, managed: ManagedGroups, domains: Sequence[Domain], homes: Mapping[Holder, int]) -> bool:
    """Whether cores are to be shared in fractions: as set, or because there is not one for each holder at home.

    ``homes`` gives each service's domain; one that is not in it is at home in the first.
    """
    if settings.division is not CoreDivision.AUTO:
        return settings.division is CoreDivision.FRACTIONS
    wanted = dict.fromkeys((domain.id for domain in domains), 0)
    for service in (holder for holder in managed if holder != BEST_EFFORT):
        wanted[homes.get(service, domains[0].id)] += 1
    jobs = 1 if managed.get(BEST_EFFORT) else 0
    short = any(len(domain.cores) < wanted[domain.id] for domain in domains)
    return short or sum(len(domain.cores) for domain in domains) < sum(wanted.values()) + jobs


def cores_actuator(  # noqa: PLR0913 (a choice between two constructors, with the arguments of both)
    layer: GroupLayer,
    managed: ManagedGroups,
    settings: CoreSettings,
    domains: Sequence[Domain],
    *,
    mems: Mapping[int, tuple[int, ...]],
    homes: Mapping[Holder, int] | None = None,
    best_effort_idle_class: bool = False,
) -> WholeCoresActuator | CpuBandwidthActuator:
    """The actuator that fits: whole cores, or fractions of them (``divides``).

    ``mems`` are the NUMA nodes of each domain, by its id. Raises SetupError, GroupMissingError.
    """
    if divides(settings, managed, domains, homes or {}):
        return CpuBandwidthActuator(layer, managed, settings, domains, mems, best_effort_idle_class=best_effort_idle_class)
    return WholeCoresActuator(layer, managed, domains, mems)


@dataclass(frozen=True, slots=True)
class _Jump:
    """A group whose new CPUs have nothing in common with its old ones."""

    group: ControlGroup
    holder: Holder
    old: frozenset[int]
    new: frozenset[int]


class WholeCoresActuator:
    """Hands out whole physical cores by CPU set, both hardware threads together.

    Between any two writes of a plan no two holders share a CPU: a set that loses and gains is first narrowed to what it keeps,
    then widened. The best-effort pool is frozen when it has no core, as a CPU set cannot be empty under processes; its stale set
    is then of no effect.
    """

    resource = Resource.CORES

    def __init__(
        self, layer: GroupLayer, managed: ManagedGroups, domains: Sequence[Domain], mems: Mapping[int, tuple[int, ...]]
    ) -> None:
        self._domains = tuple(domains)
        self._mems = mems
        needs = (*_NEEDS, Controller.FREEZER) if managed.get(BEST_EFFORT) else _NEEDS
        self._reason = layer.lacks(needs)
        self._groups = HolderGroups(layer, managed, () if self._reason else needs)
        self._reason = self._reason or self._groups.lacks()

    def pools(self) -> tuple[Pool, ...]:
        """A pool for each domain, in steps of one physical core."""
        return tuple(self._pool(domain) for domain in self._domains)

    def _pool(self, domain: Domain) -> Pool:
        key = PoolKey(Resource.CORES, domain.id)
        if self._reason:
            return Pool(key, managed=False, reason=self._reason)
        return Pool(key, total=len(domain.cores) * MILLICORES_PER_CORE, step=MILLICORES_PER_CORE, floor=MILLICORES_PER_CORE)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """CPU sets of every holder whose cores change; at the start of all, and their NUMA nodes as well.

        Raises KnobError at the start, where what is in force has to be read.
        """
        if self._reason:
            return ()
        plan: list[KnobWrite] = []
        jumps: list[_Jump] = []
        for holder in self._groups:
            new = frozenset(placement.cpus.get(holder, ()))
            old = None if before is None else frozenset(before.cpus.get(holder, ()))
            if new == old:
                continue
            if not new:
                plan += best_effort.freeze(self._groups) if holder == BEST_EFFORT else []
                plan += self._kept(holder) if before is None else []
                continue
            for group in self._groups.of(holder):
                plan += self._change(group, holder, self._in_force(group) if old is None else old, new, jumps)
            if holder == BEST_EFFORT and not old:
                plan += best_effort.thaw(self._groups)
        enabling = self._groups.enabling() if before is None else ()
        return [*enabling, *self._nodes(placement, before), *plan, *_in_order(jumps)]

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The cores in each holder's CPU sets, by domain; a core of which only some threads are in counts in part."""
        if self._reason:
            return {}
        amounts: dict[PoolKey, dict[Holder, int]] = {PoolKey(Resource.CORES, domain.id): {} for domain in self._domains}
        for holder in self._groups:
            found = self._groups.read(holder, self._in_force)
            if found is None:
                continue
            cpus = frozenset().union(*found)
            stopped = holder == BEST_EFFORT and best_effort.frozen(self._groups)
            for domain in self._domains:
                held = 0 if stopped else _millicores(domain, cpus)
                if held or stopped:
                    amounts[PoolKey(Resource.CORES, domain.id)][holder] = held
        return amounts

    def close(self) -> None:
        """Give up descriptors."""
        self._groups.close()

    def _change(
        self, group: ControlGroup, holder: Holder, old: frozenset[int], new: frozenset[int], jumps: list[_Jump]
    ) -> list[KnobWrite]:
        kept = old & new
        if not kept:
            jumps.append(_Jump(group, holder, old, new))
            return []
        plan = [KnobWrite(group.cpus, format_cpu_list(kept), holder, Effect.TAKE)] if kept != old else []
        if new != kept:
            plan.append(KnobWrite(group.cpus, format_cpu_list(new), holder, Effect.GIVE))
        return plan or [KnobWrite(group.cpus, format_cpu_list(new), holder, Effect.NEUTRAL)]  # at the start: watched from now on

    def _kept(self, holder: Holder) -> list[KnobWrite]:
        """The CPU sets of who has no cores at the start, as an earlier daemon left them, so that they stay under management."""
        plan = []
        for group in self._groups.of(holder):
            with contextlib.suppress(KnobError):  # vanished, most likely: then nothing is to be kept
                if (cpus := group.cpus.read()) not in (None, "", INHERITED):
                    plan.append(KnobWrite(group.cpus, str(cpus), holder, Effect.NEUTRAL))
        return plan

    def _nodes(self, placement: Placement, before: Placement | None) -> list[KnobWrite]:
        if before is not None:
            return []
        plan = []
        for holder in self._groups:
            cpus = set(placement.cpus.get(holder, ()))
            at_home = [domain for domain in self._domains if holder == BEST_EFFORT or cpus & set(domain.cpus)]
            nodes = {node for domain in at_home for node in self._mems[domain.id]}
            if nodes:
                plan += [KnobWrite(group.mems, format_cpu_list(nodes), holder, Effect.TAKE) for group in self._groups.of(holder)]
        return plan

    @staticmethod
    def _in_force(group: ControlGroup) -> frozenset[int]:
        return frozenset(parse_cpu_list(group.cpus_in_force() or ""))


def _in_order(jumps: list[_Jump]) -> list[KnobWrite]:
    """Neutral writes (after all that take, before all that give), each onto CPUs that nobody who has still to jump is on.

    Where they go round in a circle, which only a start from foreign CPU sets can bring, one of them shares for one write.
    """
    plan: list[KnobWrite] = []
    waiting = list(jumps)
    while waiting:
        free = (jump for jump in waiting if not any(jump.new & other.old for other in waiting if other.holder != jump.holder))
        jump = next(free, waiting[0])
        waiting.remove(jump)
        plan.append(KnobWrite(jump.group.cpus, format_cpu_list(jump.new), jump.holder, Effect.NEUTRAL))
    return plan


def _millicores(domain: Domain, cpus: frozenset[int]) -> int:
    return sum(MILLICORES_PER_CORE * len(cpus.intersection(core.cpus)) // len(core.cpus) for core in domain.cores)

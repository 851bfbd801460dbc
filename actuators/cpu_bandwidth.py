"""Cores in fractions: CPU time per period, where there are too few cores to give each holder whole ones.

A holder's amount in millicores is its quota: amount / 1000 of the period. All holders of the domain may run on all of its managed
CPUs, which the CPU set keeps them to. The best-effort pool runs in the idle class where the policy asks for it, and at zero it is
frozen.

The kernel takes no quota under 1 ms. A service never needs one, as its floor is checked (``pools``). A best-effort group does,
when the pool is down to a step or is divided among many groups: its period is then lengthened by a whole factor until the quota is
1 ms. The amount stays exact, and nobody waits for the tail latency of a best-effort job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from actuators import best_effort
from actuators.cgroup.group import ControlGroup, Controller, CpuBandwidth, GroupLayer
from actuators.cgroup.v1_knobs import LEAST_QUOTA_US, LONGEST_PERIOD_US
from actuators.holders import HolderGroups, ManagedGroups, effect, split
from parties.knob import Effect, KnobWrite
from parties.model import BEST_EFFORT, MILLICORES_PER_CORE, Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CoreSettings
from parties.units import format_cpu_list

_NS_PER_US = 1000
_MILLIONTHS = MILLICORES_PER_CORE * 1_000_000
_NEEDS = (Controller.CPU, Controller.CPUSET)


class CpuBandwidthActuator:
    """Divides the CPU time of one domain.

    ``mems`` are the NUMA nodes of each domain. ``best_effort_idle_class`` may be set until the first ``writes``.
    """

    resource = Resource.CORES

    def __init__(  # noqa: PLR0913 (what it divides, among whom, where, and how)
        self,
        layer: GroupLayer,
        managed: ManagedGroups,
        settings: CoreSettings,
        domains: Sequence[Domain],
        mems: Mapping[int, tuple[int, ...]],
        *,
        best_effort_idle_class: bool = False,
    ) -> None:
        self.best_effort_idle_class = best_effort_idle_class
        self._settings = settings
        self._period_us = settings.period_ns // _NS_PER_US
        self._domains = tuple(domains)
        self._key = PoolKey(Resource.CORES, self._domains[0].id)
        self._cpus = len(self._domains[0].cpus)
        self._mems = mems
        needs = (*_NEEDS, Controller.FREEZER) if managed.get(BEST_EFFORT) else _NEEDS
        widest = max((len(paths) for holder, paths in managed.items() if holder != BEST_EFFORT), default=1)
        self._reason = layer.lacks(needs) or self._unfit(widest, len(managed.get(BEST_EFFORT, ())) or 1)
        self._groups = HolderGroups(layer, managed, () if self._reason else needs)
        self._reason = self._reason or self._groups.lacks()

    def _unfit(self, widest: int, jobs: int) -> str:
        """Why these settings cannot be enforced; empty if they can.

        ``widest`` is the most groups that one service has, ``jobs`` the number of best-effort groups.
        """
        floor, step, period_us = self._settings.floor_millicores, self._settings.step_millicores, self._period_us
        if len(self._domains) != 1:
            return (
                f"cores can be divided in one domain, not in {len(self._domains)}; set division = whole or manage one domain's CPUs"
            )
        if not LEAST_QUOTA_US <= period_us <= LONGEST_PERIOD_US:
            return f"period of {period_us} us: the kernel takes {LEAST_QUOTA_US} us to {LONGEST_PERIOD_US} us"
        if step <= 0 or floor < step or floor % step or step > self._cpus * MILLICORES_PER_CORE:
            return f"floor of {floor} millicores and step of {step}: the floor has to be a positive multiple of the step"
        if step * period_us % MILLICORES_PER_CORE:
            return f"step of {step} millicores in a period of {period_us} us is not a whole number of microseconds"
        return self._too_small(widest, jobs)

    def _too_small(self, widest: int, jobs: int) -> str:
        least_us = self._settings.floor_millicores * self._period_us // MILLICORES_PER_CORE // widest
        if least_us < LEAST_QUOTA_US:
            shared = f", shared by {widest} groups of one service" if widest > 1 else ""
            return (
                f"floor of {self._settings.floor_millicores} millicores in a period of {self._period_us} us{shared}: a quota of "
                f"{least_us} us, and the kernel takes none under {LEAST_QUOTA_US} us; raise the floor or the period"
            )
        step_us = self._settings.step_millicores * self._period_us // MILLICORES_PER_CORE // jobs
        if self._bandwidth(step_us).period_us > LONGEST_PERIOD_US:
            return (
                f"step of {self._settings.step_millicores} millicores, shared by {jobs} best-effort groups: a quota under "
                f"{LEAST_QUOTA_US} us even in the longest period that the kernel takes, {LONGEST_PERIOD_US} us; raise the step"
            )
        return ""

    def pools(self) -> tuple[Pool, ...]:
        """One pool: 1000 millicores for each managed CPU (hardware thread)."""
        if self._reason:
            return (Pool(self._key, managed=False, reason=self._reason),)
        step = self._settings.step_millicores
        total = self._cpus * MILLICORES_PER_CORE // step * step
        return (Pool(self._key, total=total, step=step, floor=self._settings.floor_millicores),)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """Quotas of every holder whose amount changes; at the start of all, and CPU sets, nodes and the idle class as well.

        Raises KnobError at the start, where what is in force has to be read.
        """
        if self._reason:
            return ()
        plan: list[KnobWrite] = self._groups.enabling() if before is None else []
        if before is None and self.best_effort_idle_class:
            plan += best_effort.enter_idle_class(self._groups)
        for holder in self._groups:
            if before is None or placement.cpus.get(holder) != before.cpus.get(holder):
                plan += self._confine(holder, placement.cpus.get(holder, ()))
            new = placement.partition.amount(self._key, holder)
            old = None if before is None else before.partition.amount(self._key, holder)
            if new != old:
                plan += self._best_effort(new, old) if holder == BEST_EFFORT else self._quotas(holder, new, old)
        return plan

    def idle_class_writes(self) -> Sequence[KnobWrite]:
        """The writes that put the best-effort pool into the idle class, for a policy that partitions nothing."""
        return () if self._reason else (*self._groups.enabling(), *best_effort.enter_idle_class(self._groups))

    def warnings(self) -> tuple[str, ...]:
        """Where the idle class cannot do what it is there for."""
        return best_effort.unprotected(self._groups) if self.best_effort_idle_class else ()

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The quotas as millicores; without a quota a holder has all there is, frozen it has nothing. Raises KnobError."""
        if self._reason:
            return {}
        held: dict[Holder, int] = {}
        for holder in self._groups:
            found = self._groups.read(holder, self._millionths)
            if found is None:
                continue
            stopped = holder == BEST_EFFORT and best_effort.frozen(self._groups)
            held[holder] = 0 if stopped else min(round(Fraction(sum(found), 1_000_000)), self._cpus * MILLICORES_PER_CORE)
        return {self._key: held}

    def close(self) -> None:
        """Give up descriptors."""
        self._groups.close()

    def _confine(self, holder: Holder, cpus: tuple[int, ...]) -> list[KnobWrite]:
        if not cpus:
            return []
        plan = []
        for group in self._groups.of(holder):
            plan.append(KnobWrite(group.mems, format_cpu_list(self._mems[self._domains[0].id]), holder, Effect.NEUTRAL))
            plan.append(KnobWrite(group.cpus, format_cpu_list(cpus), holder, Effect.NEUTRAL))
        return plan

    def _best_effort(self, new: int, old: int | None) -> list[KnobWrite]:
        if new == 0:
            return best_effort.freeze(self._groups)
        if old == 0:  # frozen: the quota that it had is of no effect until it is thawed
            quotas = [KnobWrite(w.knob, w.value, w.holder, Effect.NEUTRAL) for w in self._quotas(BEST_EFFORT, new, old)]
            return quotas + best_effort.thaw(self._groups)
        return self._quotas(BEST_EFFORT, new, old) + (best_effort.thaw(self._groups) if old is None else [])

    def _quotas(self, holder: Holder, new: int, old: int | None) -> list[KnobWrite]:
        groups = self._groups.of(holder)
        if not groups:
            return []
        shares_us = split(new * self._period_us // MILLICORES_PER_CORE, len(groups))
        plan = []
        for group, share_us in zip(groups, shares_us, strict=True):
            change = effect(self._millionths(group), share_us * _MILLIONTHS // self._period_us) if old is None else effect(old, new)
            plan.append(KnobWrite(group.cpu_bandwidth, str(self._bandwidth(share_us)), holder, change))
        return plan

    def _bandwidth(self, share_us: int) -> CpuBandwidth:
        factor = max(1, -(-LEAST_QUOTA_US // max(1, share_us)))
        return CpuBandwidth(share_us * factor, self._period_us * factor)

    def _millionths(self, group: ControlGroup) -> int:
        """The quota in force in millionths of a millicore, so that the sum over groups does not lose fractions."""
        bandwidth = CpuBandwidth.parse(group.cpu_bandwidth.read() or str(CpuBandwidth(None)))
        if bandwidth.quota_us is None:
            return self._cpus * _MILLIONTHS
        return bandwidth.quota_us * _MILLIONTHS // bandwidth.period_us

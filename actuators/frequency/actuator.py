"""The actuator: who holds which cores, and at which level, becomes the setting of each cpufreq policy.

Frequency belongs to a holder's cores. A core that changes hands is set for its new holder in the same plan, before he gets it. A
policy whose CPUs belong to several holders runs at the highest level that one of them has. Cores that nobody holds, and those of a
holder that the pool does not name, are set as they were found: what is not given out is the operator's, and his governor saves more
on an idle core than a fixed frequency does. Reserved cores are in no placement and are never touched, unless they share a policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actuators.cgroup.files import vanished
from actuators.frequency.knobs import PERFORMANCE, ROUNDING_KHZ, USERSPACE, Cap, CapKnob, Setting, UserspaceKnob
from actuators.frequency.levels import CHOOSE_THEMSELVES, HZ_PER_KHZ, Plan, UnfitError, plan_levels
from actuators.frequency.policy import CpufreqPolicy, find_policies, why_not_managed
from actuators.frequency.speed import SpeedKnob, SpeedTask
from actuators.holders import effect
from parties.interfaces import UpkeepTask
from parties.knob import Effect, KnobError, KnobRef, KnobWrite
from parties.model import IDLE, Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import FrequencyMechanism, FrequencySettings
from parties.units import format_cpu_list

_QUICK = frozenset({USERSPACE, PERFORMANCE, "powersave"})
"""Governors that only set a frequency. To stop one that follows the load, the kernel waits for every CPU: too long for the tick."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of a policy, and for whom; None: what was found there."""

    khz: int | None
    holder: Holder


_NOBODY = _Asked(None, IDLE)


class _Clock:
    """One policy under management: from a level to the knob's value and back. ``keys`` gives the pool of each managed CPU."""

    def __init__(self, policy: CpufreqPolicy, plan: Plan, keys: Mapping[int, PoolKey]) -> None:
        self.policy = policy
        self.keys = {cpu: keys[cpu] for cpu in policy.cpus if cpu in keys}
        self.knob = (CapKnob if plan.mechanism is FrequencyMechanism.CAP else UserspaceKnob)(policy.directory)
        self._plan = plan

    def asked(self, owners: Mapping[int, Holder], placement: Placement) -> _Asked:
        """The highest level of those who have CPUs here."""
        best = _NOBODY
        for cpu, key in self.keys.items():
            holder = owners.get(cpu, IDLE)
            level_hz = placement.partition.amount(key, holder)
            if level_hz and level_hz // HZ_PER_KHZ > (best.khz or 0):
                best = _Asked(level_hz // HZ_PER_KHZ, holder)
        return best

    def value(self, khz: int) -> str:
        """What sets this level."""
        low, high = self.policy.widest_khz
        turbo = self._plan.turbo_khz is not None and khz >= self._plan.turbo_khz
        if isinstance(self.knob, CapKnob):
            return str(Cap(high if turbo else khz))
        if turbo and PERFORMANCE in self.policy.governors:
            return str(Setting(PERFORMANCE, None, low, high))
        return str(Setting(USERSPACE, high if turbo else khz, low, high))

    def level_khz(self, found: str) -> int:
        """The level that a value stands for; a frequency that is none where somebody else has set it."""
        if isinstance(self.knob, CapKnob):
            khz = Cap.parse(found).max_khz
        else:
            setting = Setting.parse(found)
            khz = setting.max_khz if setting.speed_khz is None else setting.speed_khz
        if self._plan.turbo_khz is not None and khz >= self.policy.widest_khz[1]:
            return self._plan.turbo_khz
        return next((level for level in self._plan.levels_khz if abs(level - khz) < ROUNDING_KHZ), khz)

    def problems(self) -> Iterator[str]:
        """Where it is managed, but not as it could be."""
        policy = self.policy
        if isinstance(self.knob, CapKnob) and policy.driver not in CHOOSE_THEMSELVES and USERSPACE not in policy.governors:
            yield (
                f"{policy.driver} could be set to fixed frequencies, but the kernel has no governor userspace loaded, so the "
                "highest one is capped instead; load the module cpufreq_userspace before the daemon starts"
            )
        if others := sorted(set(policy.cpus) - set(self.keys)):
            cpus = format_cpu_list(others)
            yield f"{policy.directory}: CPUs {cpus}, which are not managed, are on one clock with managed ones and change with them"

    def is_quick(self, found: str) -> bool:
        """Whether going from what was found to a level, or back, is quick."""
        return isinstance(self.knob, CapKnob) or Setting.parse(found).governor in _QUICK


class FrequencyActuator:
    """Sets the frequency of each holder's cores. Made by ``frequency_actuator``.

    ``clocks`` are the policies under management. ``found`` are values of before this daemon by knob, for a run that is resumed; the
    others are read at the first plan. ``problems``: where the frequency is managed, but not as it could be.
    """

    resource = Resource.FREQUENCY
    follows_cores = True

    def __init__(self, pools: Sequence[Pool], clocks: Sequence[_Clock], found: Mapping[KnobRef, str] | None = None) -> None:
        self._pools = tuple(pools)
        self._clocks = tuple(clocks)
        self.problems = tuple(dict.fromkeys(problem for clock in self._clocks for problem in clock.problems()))
        self._found = dict(found or {})
        self._owners: dict[int, Holder] = {}
        self._grounds: object = None  # what the last answer of ``_asked`` followed from, and the answer
        self._answer: Sequence[_Asked] = ()
        sensor = SpeedKnob([clock.policy.directory for clock in self._clocks])
        self._task = SpeedTask(sensor.ref, [clock.policy.cpus for clock in self._clocks])

    def pools(self) -> tuple[Pool, ...]:
        """A pool of levels for each domain; an unmanaged one carries the reason."""
        return self._pools

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:
        """The setting of every policy whose level or holder changes; at the start of all that are held. Raises KnobError then."""
        had: Sequence[_Asked | None] = [None] * len(self._clocks) if before is None else self._asked(before)
        plan = []
        for clock, old, new in zip(self._clocks, had, self._asked(placement), strict=True):
            if new != (old or _NOBODY):
                plan += self._change(clock, old, new)
        return plan

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """The level in force of each holder's cores, as last placed, by their policies; the lowest where they differ."""
        levels: dict[PoolKey, dict[Holder, int]] = {pool.key: {} for pool in self._pools if pool.managed}
        for clock in self._clocks:
            try:
                found = clock.knob.read()
            except KnobError as error:
                if not vanished(error):
                    raise
                continue
            for cpu, key in clock.keys.items():
                holder = self._owners.get(cpu, IDLE)
                if holder != IDLE and found is not None:
                    level_hz = clock.level_khz(found) * HZ_PER_KHZ
                    levels[key][holder] = min(level_hz, levels[key].get(holder, level_hz))
        return levels

    def upkeep(self) -> Sequence[UpkeepTask]:
        """Reading what the cores really run at, and telling where that is not what was asked for."""
        return (self._task,) if self._clocks else ()

    def speeds(self) -> Mapping[int, int]:
        """What each managed CPU ran at when last looked at, in Hz."""
        return self._task.hz

    def close(self) -> None:
        """Descriptors go with the knobs."""

    def _asked(self, placement: Placement) -> Sequence[_Asked]:
        """What is asked of each clock. What was placed last is nearly always what the next plan begins with."""
        amounts = placement.partition.amounts
        grounds = (placement.cpus, [amounts.get(pool.key) for pool in self._pools])
        if grounds != self._grounds:
            self._owners = _owners(placement)
            self._answer = [clock.asked(self._owners, placement) for clock in self._clocks]
            self._grounds = grounds
        return self._answer

    def _change(self, clock: _Clock, old: _Asked | None, new: _Asked) -> list[KnobWrite]:
        found = self._found_at(clock)
        value = found if new.khz is None else clock.value(new.khz)
        if value is None or (new.khz is None and found is None):
            return []  # its CPUs were offline at the start, so nothing was changed that could be given back
        steady = old is not None and old.khz is not None and new.khz is not None
        same_holder = steady and old is not None and old.holder == new.holder
        change = effect(old.khz or 0, new.khz or 0) if same_holder and old is not None else Effect.NEUTRAL
        slow = not steady and found is not None and not clock.is_quick(found)
        return [KnobWrite(clock.knob, value, new.holder, change, slow)]

    def _found_at(self, clock: _Clock) -> str | None:
        """The policy's setting of before this daemon; None if its CPUs are offline, so that there is none. Raises KnobError."""
        ref = clock.knob.ref
        if ref not in self._found:
            try:
                found = clock.knob.read()
            except KnobError as error:
                if not vanished(error):
                    raise
                return None
            if found is not None:
                self._found[ref] = found
        return self._found.get(ref)


def frequency_actuator(  # noqa: PLR0913 (what it is made from, each given by name)
    settings: FrequencySettings,
    domains: Sequence[Domain],
    *,
    whole_cores: bool,
    root: Path = Path("/"),
    found: Mapping[KnobRef, str] | None = None,
    only_ask: bool = False,
) -> FrequencyActuator:
    """The actuator for the policies of these domains' cores; each domain is managed, or its pool says why not.

    ``whole_cores``: whether each holder has cores of its own. ``root`` is where /sys is. ``found``: see ``FrequencyActuator``.
    ``only_ask``: whether this user may write does not matter, as nothing will be.
    """
    keys = {cpu: PoolKey(Resource.FREQUENCY, domain.id) for domain in domains for cpu in domain.cpus}
    policies = find_policies(keys, root) if whole_cores else ()
    pools: list[Pool] = []
    clocks: dict[Path, _Clock] = {}  # one policy may reach into two domains
    for domain in domains:
        key = PoolKey(Resource.FREQUENCY, domain.id)
        own = [policy for policy in policies if not set(domain.cpus).isdisjoint(policy.cpus)]
        try:
            _check(domain, own, root, whole_cores=whole_cores, only_ask=only_ask)
            plan = plan_levels(own, settings)
        except UnfitError as error:
            pools.append(Pool(key, managed=False, reason=str(error)))
            continue
        pools.append(Pool(key, levels=plan.levels_hz, turbo=plan.turbo))
        for policy in own:
            clocks.setdefault(policy.directory, _Clock(policy, plan, keys))
    return FrequencyActuator(pools, list(clocks.values()), found)


def _check(domain: Domain, policies: Sequence[CpufreqPolicy], root: Path, *, whole_cores: bool, only_ask: bool) -> None:
    """Raise UnfitError where the domain's frequency cannot be managed per holder."""
    if not whole_cores:
        raise UnfitError("a frequency belongs to whole cores, and here cores are shared in fractions or not managed")
    if reason := why_not_managed(domain.cpus, root):
        raise UnfitError(reason)
    for policy in policies:
        if len(domain.cores) > 1 and set(domain.cpus) <= set(policy.cpus):
            raise UnfitError(
                f"{policy.directory} sets one frequency for all managed cores of domain {domain.id}, so services cannot differ; "
                "look in the BIOS for per-core P-states (coordination HW instead of SW_ALL)"
            )
        if not only_ask and not os.access(policy.directory / "scaling_max_freq", os.W_OK):
            raise UnfitError(f"{policy.directory}/scaling_max_freq cannot be written; run as root, with /sys mounted for writing")


def _owners(placement: Placement) -> dict[int, Holder]:
    return {cpu: holder for holder, cpus in placement.cpus.items() for cpu in cpus}

"""By which mechanism frequency is set, and the levels of a pool (section 4.1: 1.2 to 2.2 GHz in steps of 100 MHz, and turbo).

*userspace* fixes a frequency; the governor "performance" is turbo. *cap* sets the highest frequency that the driver may choose, for
drivers that choose by themselves (intel_pstate and amd-pstate in active mode) and kernels without the userspace governor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from actuators.frequency.policy import CpufreqPolicy
from parties.settings import FrequencyMechanism, FrequencySettings

HZ_PER_KHZ = 1000
LEAST_STEP_KHZ = 25_000
"""The finest ratio of any processor's clock (AMD's); Intel's is 100 MHz."""

CHOOSE_THEMSELVES = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""Drivers whose hardware or own algorithm chooses the frequency, so that there are only limits to set."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the policies of a domain are managed: ``levels_khz`` ascending, the last of them turbo if ``turbo``."""

    mechanism: FrequencyMechanism
    levels_khz: tuple[int, ...]
    turbo: bool

    @property
    def levels_hz(self) -> tuple[int, ...]:
        """The pool's levels."""
        return tuple(khz * HZ_PER_KHZ for khz in self.levels_khz)

    @property
    def turbo_khz(self) -> int | None:
        """The level that means turbo."""
        return self.levels_khz[-1] if self.turbo else None


class UnfitError(Exception):
    """The policies cannot be managed as asked. The message is an operator's reason."""


def plan_levels(policies: Sequence[CpufreqPolicy], settings: FrequencySettings) -> Plan:
    """The mechanism and the levels for policies that are managed together. Raises UnfitError."""
    step_khz = settings.step_hz // HZ_PER_KHZ
    if step_khz < LEAST_STEP_KHZ:
        raise UnfitError(
            f"a step of {settings.step_hz} Hz is finer than any processor's clock; "
            f"set step_hz to {LEAST_STEP_KHZ * HZ_PER_KHZ} or more"
        )
    mechanism = _mechanism(policies, settings.mechanism)
    levels = _below_turbo(policies, step_khz)
    turbo = settings.turbo and all(policy.turbo for policy in policies)
    if turbo:
        # What every one of them can reach; a policy whose own turbo is higher is let go there all the same.
        levels += (min(policy.max_khz for policy in policies),)
    return Plan(mechanism, tuple(sorted(set(levels))), turbo)


def _mechanism(policies: Sequence[CpufreqPolicy], wanted: FrequencyMechanism) -> FrequencyMechanism:
    lacking = [policy for policy in policies if "userspace" not in policy.governors]
    if wanted is FrequencyMechanism.CAP or (wanted is FrequencyMechanism.AUTO and lacking):
        return FrequencyMechanism.CAP
    if not lacking:
        return FrequencyMechanism.USERSPACE
    first = lacking[0]
    if first.driver in CHOOSE_THEMSELVES:
        do = "set mechanism to auto or cap, or boot with intel_pstate=passive or amd_pstate=passive"
        raise UnfitError(f"the cpufreq driver {first.driver} chooses the frequency itself and has no userspace governor; {do}")
    raise UnfitError(
        f"{first.directory}: no userspace governor among {' '.join(first.governors) or 'none'}; "
        "load the module cpufreq_userspace, or set mechanism to auto or cap"
    )


def _below_turbo(policies: Sequence[CpufreqPolicy], step_khz: int) -> tuple[int, ...]:
    """From the base that all have downwards, in steps that the hardware has. Raises UnfitError where there are none."""
    low, high = max(policy.min_khz for policy in policies), min(policy.base_khz for policy in policies)
    tables = [frozenset(policy.table_khz) for policy in policies if policy.table_khz]
    if tables:
        offered: Iterable[int] = sorted(frozenset.intersection(*tables), reverse=True)
    else:
        offered = range(high, low - 1, -step_khz)
    levels: list[int] = []
    for khz in offered:
        if low <= khz <= high and khz > 0 and (not levels or levels[-1] - khz >= step_khz):
            levels.append(khz)
    if not levels:
        names = ", ".join(policy.directory.name for policy in policies)
        raise UnfitError(f"the cpufreq policies {names} have no frequency in common")
    return tuple(reversed(levels))

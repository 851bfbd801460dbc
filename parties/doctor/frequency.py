"""CPU frequency: the userspace governor, else a cap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actuators.cache.actuator import cpu_flags
from actuators.frequency.levels import CHOOSE_THEMSELVES, plan_levels
from actuators.frequency.policy import CpufreqPolicy, find_policies
from parties.doctor.examine import Specialist, amount, counted
from parties.doctor.model import Lack, Offer, Weight
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.model import Pool
from parties.settings import FrequencyMechanism, FrequencySettings

_TURBO_MARK_HZ = 1_000_000
_DECIMAL = ("Hz", "kHz", "MHz", "GHz")


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:  # noqa: ARG001 (of every specialist)
    """The levels and how they are set."""
    policies = find_policies(subject.cpus, subject.root)
    plan = plan_levels(policies, _settings(subject))
    drivers = ", ".join(sorted({policy.driver for policy in policies}))
    fixed = plan.mechanism is FrequencyMechanism.USERSPACE
    mechanism = "governor userspace, performance as turbo" if fixed else "scaling_max_freq as a cap"
    levels = next(pool.levels for pool in pools if pool.managed)
    turbo = plan.turbo and len(levels) > 1
    below = levels[:-1] if turbo else levels
    low, high = amount(below[0], 1000, _DECIMAL), amount(below[-1], 1000, _DECIMAL)
    top = "; no turbo"
    if turbo:  # acpi-cpufreq says only that there is turbo, by an entry of 1 MHz more
        told = levels[-1] - below[-1] > _TURBO_MARK_HZ
        top = f", and turbo to {amount(levels[-1], 1000, _DECIMAL)}" if told else ", and turbo"
    count = f"{len(below)} levels from {low} to {high}" if len(below) > 1 else f"one level, {low}"
    return Offer(f"{mechanism} ({drivers})", "Hz", f"{count}{top}; {counted(len(policies), 'clock')}")


def remedy(subject: Subject, reason: str) -> str:
    """What gives this machine frequency scaling."""
    if "cpufreq" in reason and "does not exist" in reason:
        if "hypervisor" in cpu_flags(subject.root):
            return "run on the machine itself: in a virtual machine the host decides on the frequency"
        return (
            "modprobe acpi-cpufreq; if that says 'No such device', let the system control the power states in the BIOS "
            "(power profile OS Control or Custom, SpeedStep or P-states on)"
        )
    if "userspace governor" in reason:
        return "modprobe cpufreq_userspace, boot with intel_pstate=passive or amd_pstate=passive, or leave mechanism at auto"
    if "one frequency for all" in reason:
        return "choose per-core P-states in the BIOS (coordination HW_ALL instead of SW_ALL)"
    if "whole cores" in reason:
        return 'set division = "whole" in [node.cores]'
    return ""


def can_be_fixed(subject: Subject) -> Iterator[Lack]:
    """Drivers that choose by themselves take a highest frequency, but not a frequency."""
    drivers = {policy.driver for policy in _policies(subject)} & set(CHOOSE_THEMSELVES)
    for driver in sorted(drivers):
        name = "amd_pstate" if driver.startswith("amd") else "intel_pstate"
        text = f"{driver} chooses the frequency itself, so it is capped and not fixed"
        yield Lack("frequency.only-capped", text, f"boot with {name}=passive on the kernel's command line", Weight.NOTE)


def has_turbo(subject: Subject) -> Iterator[Lack]:
    """The paper's top step is turbo."""
    if _settings(subject).turbo and any(policy.max_khz > policy.base_khz and not policy.turbo for policy in _policies(subject)):
        switch = "/sys/devices/system/cpu/cpufreq/boost"
        if subject.text("sys/devices/system/cpu/intel_pstate/no_turbo"):
            change = "echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo, or switch turbo on in the BIOS"
        else:
            change = f"echo 1 > {switch}, or switch turbo (core performance boost) on in the BIOS"
        yield Lack("frequency.no-turbo", "turbo is switched off, so the top step is missing", change)


SPECIALIST = Specialist(describe, remedy, (can_be_fixed, has_turbo))


def _settings(subject: Subject) -> FrequencySettings:
    return subject.settings.node.frequency or FrequencySettings()


def _policies(subject: Subject) -> tuple[CpufreqPolicy, ...]:
    return find_policies(subject.cpus, subject.root)

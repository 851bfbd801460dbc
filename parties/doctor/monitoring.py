"""What can be seen while running: pressure, cache occupancy, memory bandwidth; and what a look at a clock or a counter costs."""

from __future__ import annotations

from collections.abc import Iterator

from actuators.cache.actuator import cpu_flags, resctrl_mount
from monitors.resctrl import BANDWIDTH, OCCUPANCY, has_counters
from parties.doctor.examine import met
from parties.doctor.model import Lack, Section, Weight
from parties.doctor.subject import Subject
from parties.settings import CacheSettings

_COUNTS = frozenset({"cqm_occup_llc", "cqm_mbm_total"})
_FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"})
_STRICT_PARANOIA = 2
"""From this value of perf_event_paranoid on, an ordinary user may count nothing of the kernel."""


def examine(subject: Subject) -> Section:
    """Pressure stall information, LLC occupancy and memory bandwidth."""
    settings = subject.settings.node.cache or CacheSettings()
    mount = resctrl_mount(settings, subject.root)
    features = subject.text(str(mount / "info/L3_MON/mon_features")).split() if mount else []
    counts = mount is not None and has_counters(mount)
    facts = {
        "pressure": "per control group" if _has_pressure(subject) else "none",
        "cache_occupancy": "resctrl" if counts and OCCUPANCY in features else "none",
        "memory_bandwidth": "resctrl" if counts and BANDWIDTH in features else "none",
    }
    return Section("monitoring", facts, tuple(met(subject, (_pressure, _counters))))


def examine_clock(subject: Subject) -> Section:
    """The clock source, and who may count events."""
    clock = "sys/devices/system/clocksource/clocksource0"
    facts = {
        "source": subject.text(f"{clock}/current_clocksource") or "not known",
        "available": subject.text(f"{clock}/available_clocksource"),
        "perf_event_paranoid": subject.text("proc/sys/kernel/perf_event_paranoid") or "not known",
    }
    return Section("clock", facts, tuple(met(subject, (_clock, _counting))))


def _has_pressure(subject: Subject) -> bool:
    return bool(subject.text("proc/pressure/cpu")) and subject.has_v2_tree


def _pressure(subject: Subject) -> Iterator[Lack]:
    if not subject.text("proc/pressure/cpu"):
        text = "no pressure stall information: waiting for CPU, memory and disk is not seen"
        old = subject.older_than(4, 20)
        change = "boot Linux 4.20 or later" if old else "boot with psi=1 on the kernel's command line (CONFIG_PSI)"
        yield Lack("monitoring.no-pressure", text, change, Weight.NOTE)
    elif not subject.has_v2_tree:
        text = "pressure is told for the whole machine only: there is no control group v2 tree"
        yield Lack("monitoring.no-v2-tree", text, "mount -t cgroup2 none /sys/fs/cgroup/unified", Weight.NOTE)


def _counters(subject: Subject) -> Iterator[Lack]:
    flags = cpu_flags(subject.root)
    mount = resctrl_mount(subject.settings.node.cache or CacheSettings(), subject.root)
    if mount is not None and has_counters(mount):
        return
    if not flags & _COUNTS:
        text = "neither cache occupancy nor memory bandwidth of a service is seen: the processor does not count them"
        yield Lack("monitoring.no-counters", text, "", Weight.NOTE)
    elif "resctrl" not in subject.text("proc/filesystems").split():
        text = "neither cache occupancy nor memory bandwidth of a service is seen: the kernel has no resctrl"
        yield Lack("monitoring.no-resctrl", text, "boot Linux 4.14 or later, with CONFIG_X86_CPU_RESCTRL", Weight.NOTE)
    elif mount is None:
        text = "neither cache occupancy nor memory bandwidth of a service is seen: resctrl is not mounted"
        yield Lack("monitoring.not-mounted", text, "mount -t resctrl resctrl /sys/fs/resctrl", Weight.NOTE)
    else:
        text = "neither cache occupancy nor memory bandwidth of a service is seen: resctrl's monitoring is switched off"
        yield Lack("monitoring.switched-off", text, "boot with rdt=cmt,mbmtotal on the kernel's command line", Weight.NOTE)


def _clock(subject: Subject) -> Iterator[Lack]:
    clock = "sys/devices/system/clocksource/clocksource0"
    source, available = subject.text(f"{clock}/current_clocksource"), subject.text(f"{clock}/available_clocksource").split()
    if source and source not in _FAST_CLOCKS:
        text = f"the clock source is {source}: each look at the clock costs a microsecond or more, for services as well"
        if "tsc" in available:
            change = "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        else:
            change = "boot with tsc=reliable if the processor's clocks are synchronous; see the kernel log for why tsc was given up"
        yield Lack("clock.slow", text, change, Weight.NOTE)


def _counting(subject: Subject) -> Iterator[Lack]:
    paranoia = subject.text("proc/sys/kernel/perf_event_paranoid")
    if not subject.is_root and paranoia.lstrip("-").isdecimal() and int(paranoia) >= _STRICT_PARANOIA:
        text = f"perf_event_paranoid is {paranoia}: this user may not count events of the whole machine"
        yield Lack("clock.no-perf", text, "sysctl kernel.perf_event_paranoid=0, or run as root", Weight.NOTE)

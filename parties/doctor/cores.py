"""Cores: CPU sets, and CPU bandwidth where there are too few cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actuators.cgroup.group import Controller
from actuators.cpu_bandwidth import CpuBandwidthActuator
from parties.doctor import control_groups
from parties.doctor.examine import Specialist, counted
from parties.doctor.model import Lack, Offer, Weight
from parties.doctor.subject import Subject
from parties.homes import told_homes
from parties.interfaces import Actuator
from parties.model import MILLICORES_PER_CORE, Pool
from parties.units import format_cpu_list, parse_cpu_list

_KINDS_OF_CORE = ("cpu_core", "cpu_atom")


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:
    """How many cores there are to hand out, and how."""
    domains = subject.domains
    ids = f"{counted(len(domains), 'L3 domain')}, id {' '.join(str(domain.id) for domain in domains)}"
    if isinstance(actuator, CpuBandwidthActuator):
        version = control_groups.version_of(subject, Controller.CPU)
        pool = pools[0]
        return Offer(f"CPU bandwidth ({version})", "millicore", f"{pool.floor} to {pool.total} in steps of {pool.step}; {ids}")
    cores = [core for domain in domains for core in domain.cores]
    threads = " or ".join(str(count) for count in sorted({len(core.cpus) for core in cores}))
    total = sum(pool.total for pool in pools if pool.managed) // MILLICORES_PER_CORE
    version = control_groups.version_of(subject, Controller.CPUSET)
    plural = "" if threads == "1" else "s"
    homes = told_homes(subject.homes, domains) if subject.homes else ""
    text = f"{counted(total, 'core')} of {threads} hardware thread{plural} in {ids}"
    return Offer(f"CPU sets ({version})", "core", "; ".join(filter(None, (text, homes))))


def remedy(subject: Subject, reason: str) -> str:
    """Of control groups."""
    return control_groups.remedy(subject, reason)


def can_stop_jobs(subject: Subject) -> Iterator[Lack]:
    """Best-effort jobs are frozen when they have no core left."""
    if lack := subject.layer.lacks((Controller.FREEZER,)):
        yield Lack("cores.no-freezer", f"best-effort jobs cannot be stopped: {lack}", remedy(subject, lack))


def can_be_divided(subject: Subject) -> Iterator[Lack]:
    """Without CPU bandwidth there have to be as many cores as services."""
    if lack := subject.layer.lacks((Controller.CPU,)):
        text = f"a core cannot be shared in fractions, so there have to be as many as services: {lack}"
        yield Lack("cores.no-bandwidth", text, remedy(subject, lack))


def is_balanced(subject: Subject) -> Iterator[Lack]:
    """On isolated CPUs the kernel balances no load, so that the threads of a service may all stay on one."""
    isolated = set(parse_cpu_list(subject.text("sys/devices/system/cpu/isolated"))) & set(subject.cpus)
    if isolated:
        cpus = format_cpu_list(isolated)
        text = f"CPUs {cpus} are isolated: the kernel balances no load there, and threads of a service can pile up on one"
        yield Lack("cores.isolated", text, "remove isolcpus= from the kernel's command line, or reserve these CPUs")


def is_alike(subject: Subject) -> Iterator[Lack]:
    """A core is a unit of the resource only where each is as good as any other."""
    kinds = [set(parse_cpu_list(subject.text(f"sys/devices/{kind}/cpus"))) & set(subject.cpus) for kind in _KINDS_OF_CORE]
    if all(kinds):
        fast, slow = map(format_cpu_list, kinds)
        text = f"cores are of two kinds, CPUs {fast} and {slow}, and one counts as much as the other"
        yield Lack("cores.unequal", text, f'manage those of one kind: managed = "{fast}" in [node.cores]')


def has_enough(subject: Subject) -> Iterator[Lack]:
    """With few cores services share them in fractions, which protects them less."""
    count = sum(len(domain.cores) for domain in subject.domains)
    if subject.given is None and count < 3:  # noqa: PLR2004 (one reserved, and one for each of two services)
        text = f"{counted(count, 'core')}: with one reserved, two services have to share in fractions"
        yield Lack("cores.few", text, "", Weight.NOTE)


def has_roomy_homes(subject: Subject) -> Iterator[Lack]:
    """A service lives in one domain. Where each has a single core, as in virtual machines of many sockets, nothing can be moved."""
    count = len(subject.domains)
    if count > 1 and all(len(domain.cores) == 1 for domain in subject.domains):
        text = f"each of {count} L3 domains has one core, and a service lives in one: none can have more than a core"
        change = "on a virtual machine, give it one socket of several cores (QEMU: -smp 8,sockets=1,cores=8)"
        yield Lack("cores.narrow-domains", text, change)


SPECIALIST = Specialist(describe, remedy, (can_stop_jobs, can_be_divided, is_balanced, is_alike, has_enough, has_roomy_homes))

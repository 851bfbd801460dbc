"""The last-level cache: resctrl, else the command pqos."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from actuators.cache.actuator import can_allocate, cpu_flags, pqos_command, resctrl_mount, wants_pqos
from actuators.cache.cpuid import cpuid_file
from actuators.cache.resctrl import ResctrlTree, read_tree
from actuators.cache.resctrl_actuator import ResctrlActuator
from parties.doctor.examine import Specialist, amount, counted, examine_resource
from parties.doctor.model import Lack, Offer, ResourceReport, Weight
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.model import Pool, Resource
from parties.settings import CacheMechanism, CacheSettings
from parties.units import format_cpu_list

_FIRST_TO_SHOW = (4, 10)
"""The first Linux whose /proc/cpuinfo says that a processor can allocate cache."""

_REMEDIES = (
    ("resctrl, which is not mounted", "mount -t resctrl resctrl /sys/fs/resctrl"),
    ("is resctrl mounted there?", "mount -t resctrl resctrl /sys/fs/resctrl"),
    ("no L3 allocation", "boot with rdt=l3cat on the kernel's command line"),
    ("classes of service", "end the tools that hold classes, and remove what nobody needs: rmdir /sys/fs/resctrl/NAME, or pqos -R"),
    ("intel-cmt-cat", "apt-get install intel-cmt-cat && modprobe msr"),
    ("MSR", "modprobe msr"),
    ("fractions", 'set division = "whole" in [node.cores]'),
)
"""What to change, by words of the actuator's reason."""

_NONE_HERE = "none here: it takes a processor with Intel RDT or AMD QoS"
_BINARY = ("B", "KiB", "MiB", "GiB")


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:
    """How many ways of which size there are to hand out, in which domains."""
    managed = [pool for pool in pools if pool.managed]
    hand_out = " or ".join(str(total) for total in sorted({pool.total for pool in managed}))
    if not isinstance(actuator, ResctrlActuator):
        return Offer("pqos (MSRs)", "way", f"{hand_out} ways to hand out in {_domains(pools)}; each for whole cores")
    tree = read_tree(_mount(subject))
    ways = tree.cache.full.bit_count()
    size = _way_bytes(subject, ways)
    each = f" of {amount(size, 1024, _BINARY)}" if size else ""
    text = f"{ways} ways{each} in {_domains(pools)}, {hand_out} of them to hand out; {tree.cache.closids} classes{_shared(tree)}"
    return Offer(f"resctrl ({tree.mount})", "way", text)


def remedy(subject: Subject, reason: str) -> str:
    """What gives this machine cache allocation."""
    if "pqos" in reason and not subject.is_root:
        return "run parties doctor as root, which can ask pqos"
    known = next((change for words, change in _REMEDIES if words in reason), "")
    return known or _of_processor(subject)


def _of_processor(subject: Subject) -> str:
    flags = cpu_flags(subject.root)
    if not flags or can_allocate(subject.root):
        return ""
    if subject.older_than(*_FIRST_TO_SHOW) and "hypervisor" not in flags:
        return _before_it_is_shown(subject, flags)
    if "hypervisor" in flags:
        return "run on the machine itself: a virtual machine has no cache allocation unless its host passes it on"
    return _NONE_HERE


def _before_it_is_shown(subject: Subject, flags: Collection[str]) -> str:
    """Such a kernel says nothing of it, so that the processor has to be asked."""
    if cpuid_file(subject.root) is None:
        return (
            "modprobe cpuid, so that the processor can be asked, as this kernel does not say; or boot Linux 4.10, which has resctrl"
        )
    if not subject.is_root:
        return "run parties doctor as root, which can ask the processor"
    if "cqm" in flags:  # Haswell counts occupancy, and some of its models can allocate, which CPUID does not say
        return (
            "the processor says no, but a Haswell that can does not tell: apt-get install intel-cmt-cat && modprobe msr, and "
            'mechanism = "pqos" in [node.cache]'
        )
    return _NONE_HERE


def has_classes_for_all(subject: Subject) -> Iterator[Lack]:
    """Code and data prioritisation halves the number of classes."""
    mount = resctrl_mount(_settings(subject), subject.root)
    if mount is not None and len(read_tree(mount).cache.lines) > 1:
        text = "resctrl is mounted with code and data apart (CDP), which halves the number of classes"
        yield Lack("cache.cdp", text, "umount /sys/fs/resctrl && mount -t resctrl resctrl /sys/fs/resctrl", Weight.NOTE)


def examine(subject: Subject) -> ResourceReport:
    """The report. The command pqos of a machine that is not this one is never run."""
    if not _needs_pqos(subject) or subject.is_live:
        return examine_resource(subject, Resource.CACHE, SPECIALIST)
    lack = Lack("cache.unseen", "what pqos can do can be asked only on the machine itself", "run parties doctor there")
    return ResourceReport(Resource.CACHE, Offer("pqos (MSRs)", "way"), (lack,))


SPECIALIST = Specialist(describe, remedy, (has_classes_for_all,))


def _settings(subject: Subject) -> CacheSettings:
    return subject.settings.node.cache or CacheSettings()


def _needs_pqos(subject: Subject) -> bool:
    settings = _settings(subject)
    if not subject.asks(Resource.CACHE) or not pqos_command(subject.root):
        return False
    automatic = settings.mechanism is CacheMechanism.AUTO and resctrl_mount(settings, subject.root) is None
    return settings.mechanism is CacheMechanism.PQOS or (automatic and wants_pqos(subject.root))


def _mount(subject: Subject) -> Path:
    mount = resctrl_mount(_settings(subject), subject.root)
    if mount is None:
        raise ValueError("resctrl was unmounted meanwhile")
    return mount


def _domains(pools: Sequence[Pool]) -> str:
    ids = [str(pool.key.domain) for pool in pools if pool.managed]
    return f"{counted(len(ids), 'L3 domain')}, id {' '.join(ids)}"


def _way_bytes(subject: Subject, ways: int) -> int:
    """The size of one way; 0 where the machine does not say."""
    for cpu in subject.cpus[:1]:
        for index in range(8):
            cache = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
            size = subject.text(f"{cache}/size")
            if subject.text(f"{cache}/level") == "3" and size.endswith("K") and size[:-1].isdecimal():
                return int(size[:-1]) * 1024 // ways
    return 0


def _shared(tree: ResctrlTree) -> str:
    bits = [bit for bit in range(tree.cache.full.bit_length()) if tree.cache.shareable >> bit & 1]
    return f"; ways {format_cpu_list(bits)} are shared with devices" if bits else ""

"""Network: HTB, and by what traffic is recognised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from actuators.network.probe import KernelSupport
from parties.doctor import control_groups
from parties.doctor.examine import Specialist, amount, examine_resource, met
from parties.doctor.model import Lack, Offer, ResourceReport, Weight
from parties.doctor.subject import MISTAKES, Subject, said
from parties.interfaces import Actuator
from parties.model import Pool, Resource

_IN_BACKTICKS = re.compile("`(.+?)`")
_DECIMAL = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s")


def examine(subject: Subject) -> ResourceReport:
    """The report. A kernel that is not running here cannot be asked, and only what is known of it is said."""
    if subject.is_live or not subject.asks(Resource.NETWORK):
        return examine_resource(subject, Resource.NETWORK, SPECIALIST)
    offer = Offer()
    lacks: list[Lack] = []
    try:
        lacks += _unable(subject)
        if not lacks:
            offer = _offer(subject)
    except MISTAKES as error:
        lacks.append(Lack("network.unusable", said(error), control_groups.remedy(subject, said(error)), Weight.PREVENTS))
    return ResourceReport(Resource.NETWORK, offer, (*lacks, *met(subject, SPECIALIST.requirements)))


def _unable(subject: Subject) -> Iterator[Lack]:
    support = subject.traffic
    if support is None:
        text = "whether the kernel can shape traffic can be asked only on the machine itself"
        yield Lack("network.unseen", text, "run parties doctor there")
    elif support.htb:
        reason = f"this kernel has no HTB scheduler ({support.htb})"
        yield Lack("network.not-managed", reason, remedy(subject, reason), Weight.PREVENTS)


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:  # noqa: ARG001 (of every specialist)
    """The device, its rate and the step."""
    return _offer(subject)


def remedy(subject: Subject, reason: str) -> str:  # noqa: ARG001 (of every specialist)
    """What makes a device manageable."""
    if "HTB scheduler" in reason:
        return "modprobe sch_htb (CONFIG_NET_SCH_HTB)"
    if "earlier run" in reason:
        return "parties restore, unless a daemon is running"
    commands = _IN_BACKTICKS.findall(reason)
    return commands[-1] if commands else "choose another device, rate or step in [node.network]: see ip link"


def is_there(subject: Subject) -> Iterator[Lack]:
    """A machine may have no network device of its own."""
    if subject.given is None and subject.settings.node.network is None:
        yield Lack("network.none", "there is no network device in /sys/class/net", "", Weight.PREVENTS)


def recognises_groups(subject: Subject) -> Iterator[Lack]:
    """Whose packet it is is best told by the control group of its socket."""
    support = subject.traffic
    if support is None or support.htb or _told_by_group(subject, support):
        return
    if support.groups:
        text = f"the kernel cannot tell traffic apart by control group ({support.groups}), only by ports"
        yield Lack("network.no-bpf", text, "give each service its ports; or modprobe cls_bpf (CONFIG_NET_CLS_BPF)")
    else:
        text = "there is neither a control group v2 tree nor net_cls, so traffic is told apart by ports only"
        change = "give each service its ports; or mount -t cgroup -o net_cls net_cls /sys/fs/cgroup/net_cls"
        yield Lack("network.no-groups", text, change)


def recognises_ports(subject: Subject) -> Iterator[Lack]:
    """Where control groups do not tell, ports do."""
    support = subject.traffic
    if support is not None and support.ports and not support.htb:
        text = f"the kernel cannot tell traffic apart by port ({support.ports})"
        yield Lack("network.no-u32", text, "modprobe cls_u32 (CONFIG_NET_CLS_U32)", Weight.NOTE)


SPECIALIST = Specialist(describe, remedy, (is_there, recognises_groups, recognises_ports))


def _told_by_group(subject: Subject, support: KernelSupport) -> str:
    """How traffic is told apart by control group, in words; empty where it cannot be."""
    hierarchies = subject.layer.hierarchies
    if support.groups:
        return ""
    return "control group" if hierarchies.v2 is not None else "net_cls" if "net_cls" in hierarchies.v1 else ""


def _offer(subject: Subject) -> Offer:
    settings = subject.settings.node.network
    if settings is None:
        return Offer()
    rate, step = (amount(value, 1000, _DECIMAL) for value in (settings.rate_bits_per_s, settings.step_bits_per_s))
    where = f"{settings.device} in {settings.namespace}" if settings.namespace else settings.device
    support = subject.traffic or KernelSupport()
    told = filter(None, (_told_by_group(subject, support), "" if support.ports else "port"))
    mechanism = f"HTB, traffic told by {' or '.join(told) or 'nothing'}"
    return Offer(mechanism, "bit/s", f"{where}: {rate} in steps of {step}")

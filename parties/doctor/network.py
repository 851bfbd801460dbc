"""Network: HTB, and by what traffic is recognised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parties.doctor.examine import Specialist, amount, examine_resource, met
from parties.doctor.model import Lack, Offer, ResourceReport, Weight
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.model import Pool, Resource

_DECIMAL = ("bit/s", "kbit/s", "Mbit/s", "Gbit/s")


def examine(subject: Subject) -> ResourceReport:
    """The report. A kernel that is not running here cannot be asked, and only what is known of it is said."""
    if subject.is_live or not subject.asks(Resource.NETWORK):
        return examine_resource(subject, Resource.NETWORK, SPECIALIST)
    support, offer = subject.traffic, Offer()
    lacks: list[Lack] = []
    if support is None:
        text = "whether the kernel can shape traffic can be asked only on the machine itself"
        lacks.append(Lack("network.unseen", text, "run parties doctor there"))
    elif support.htb:
        reason = f"this kernel has no HTB scheduler ({support.htb})"
        lacks.append(Lack("network.not-managed", reason, remedy(subject, reason), Weight.PREVENTS))
    else:
        offer = _offer(subject)
    return ResourceReport(Resource.NETWORK, offer, (*lacks, *met(subject, SPECIALIST.requirements)))


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:  # noqa: ARG001 (of every specialist)
    """The device, its rate and the step."""
    return _offer(subject)


def remedy(subject: Subject, reason: str) -> str:  # noqa: ARG001 (of every specialist)
    """What makes a device manageable."""
    if "HTB" in reason:
        return "modprobe sch_htb (CONFIG_NET_SCH_HTB)"
    if "root qdisc" in reason:
        return reason.partition("remove it (`")[2].partition("`")[0] or "remove the root qdisc: tc qdisc del dev DEVICE root"
    if "earlier run" in reason:
        return "parties restore, unless a daemon is running"
    return "choose another device or step in [node.network]: see ip link" if reason else ""


def is_there(subject: Subject) -> Iterator[Lack]:
    """A machine may have no network device of its own."""
    if subject.given is None and subject.settings.node.network is None:
        yield Lack("network.none", "there is no network device in /sys/class/net", "", Weight.PREVENTS)


def recognises_groups(subject: Subject) -> Iterator[Lack]:
    """Whose packet it is is best told by the control group of its socket."""
    support = subject.traffic
    if support is None or support.htb:
        return
    if subject.layer.hierarchies.v2 is None:
        text = "there is no control group v2 tree, so traffic is told apart by ports only"
        yield Lack("network.no-v2-tree", text, "give each service its ports; or mount -t cgroup2 none /sys/fs/cgroup/unified")
    elif support.groups:
        text = f"the kernel cannot tell traffic apart by control group ({support.groups}), only by ports"
        yield Lack("network.no-bpf", text, "give each service its ports; or modprobe cls_bpf (CONFIG_NET_CLS_BPF)")


def recognises_ports(subject: Subject) -> Iterator[Lack]:
    """Where control groups do not tell, ports do."""
    support = subject.traffic
    if support is not None and support.ports and not support.htb:
        text = f"the kernel cannot tell traffic apart by port ({support.ports})"
        yield Lack("network.no-u32", text, "modprobe cls_u32 (CONFIG_NET_CLS_U32)", Weight.NOTE)


SPECIALIST = Specialist(describe, remedy, (is_there, recognises_groups, recognises_ports))


def _offer(subject: Subject) -> Offer:
    settings = subject.settings.node.network
    if settings is None:
        return Offer()
    rate, step = (amount(value, 1000, _DECIMAL) for value in (settings.rate_bits_per_s, settings.step_bits_per_s))
    where = f"{settings.device} in {settings.namespace}" if settings.namespace else settings.device
    return Offer("HTB", "bit/s", f"{where}: {rate} in steps of {step}")

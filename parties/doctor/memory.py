"""Memory: limits of control groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actuators.cgroup.group import Controller
from parties.doctor import control_groups
from parties.doctor.examine import Specialist, amount
from parties.doctor.model import Lack, Offer, Weight
from parties.doctor.subject import Subject
from parties.interfaces import Actuator
from parties.model import Pool

_DECIMAL = ("B", "kB", "MB", "GB", "TB")


def describe(subject: Subject, actuator: Actuator, pools: Sequence[Pool]) -> Offer:  # noqa: ARG001 (of every specialist)
    """How much there is to hand out."""
    v1 = Controller.MEMORY.value in subject.layer.hierarchies.v1
    knob = "memory.limit_in_bytes" if v1 else "memory.reclaim, memory.high, memory.max"
    pool = pools[0]
    text = f"{amount(pool.total, 1000, _DECIMAL)} in steps of {amount(pool.step, 1000, _DECIMAL)}"
    return Offer(f"{knob} ({control_groups.version_of(subject, Controller.MEMORY)})", "byte", text)


def remedy(subject: Subject, reason: str) -> str:
    """Of control groups, and of a total that does not fit."""
    return control_groups.remedy(subject, reason) or ("set a smaller total in [node.memory]" if "total of" in reason else "")


def can_reclaim(subject: Subject) -> Iterator[Lack]:
    """Without memory.reclaim a limit is lowered by throttling whoever is above it."""
    tree = subject.layer.hierarchies.v2
    on_v2 = tree is not None and Controller.MEMORY.value not in subject.layer.hierarchies.v1
    if tree is not None and on_v2 and not subject.layer.lacks((Controller.MEMORY,)) and not (tree / "memory.reclaim").exists():
        text = "the kernel has no memory.reclaim, so memory is taken by memory.high alone, which slows its owner down"
        yield Lack("memory.no-reclaim", text, "boot Linux 5.19 or later", Weight.NOTE)


SPECIALIST = Specialist(describe, remedy, (can_reclaim,))

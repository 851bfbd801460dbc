"""Control groups and systemd: which version has which controller, who owns the tree, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from actuators.cgroup.group import Controller
from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.naming import GroupNames
from parties.doctor.examine import met
from parties.doctor.model import Lack, Section
from parties.doctor.subject import Subject, said

_UNIFIED = "systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
_COMPLETE = (5, 2)
"""The first Linux whose v2 has all that is needed: CPU time since 4.15, CPU sets since 5.0, freezing since 5.2."""


def version_of(subject: Subject, controller: Controller) -> str:
    """Where a controller is, in words."""
    if controller.value in subject.layer.hierarchies.v1:
        return "control groups v1"
    return "control groups v2, systemd units through systemd" if _systemd_runs(subject) else "control groups v2"


def remedy(subject: Subject, reason: str) -> str:
    """What to change where a controller is missing: ``reason`` says which."""
    arguments = subject.kernel_arguments()
    if disabled := arguments.get("cgroup_disable", ""):
        return f"remove cgroup_disable={disabled} from the kernel's command line"
    if "do not exist" in reason:
        return "start the services, or make the groups: see parties check"
    if "control-group" not in reason:
        return ""
    if _systemd_runs(subject):
        return unified(subject)
    _, found, advice = reason.partition("for example: ")
    return advice if found else "mount -t cgroup2 none /sys/fs/cgroup"


def unified(subject: Subject) -> str:
    """How to have control groups v2 only."""
    if subject.older_than(*_COMPLETE):
        return f"boot Linux 5.2 or later, with {_UNIFIED}"
    if _systemd_runs(subject):
        return f"boot with {_UNIFIED}"
    return "unmount the v1 hierarchies, then mount -t cgroup2 none /sys/fs/cgroup"


def examine(subject: Subject) -> Section:
    """The section of the report."""
    try:
        hierarchies = subject.layer.hierarchies
    except SetupError as error:
        advice = "mount /proc" if "mounts" in said(error) else "mount -t cgroup2 none /sys/fs/cgroup"
        return Section("control_groups", {"version": "none"}, (Lack("control-groups.none", said(error), advice),))
    on_v1 = sorted(controller.value for controller in Controller if controller.value in hierarchies.v1)
    on_v2 = subject.text(str(hierarchies.v2 / "cgroup.controllers")).split() if hierarchies.v2 else []
    only = "v1" if on_v1 else "v2"
    facts = {
        "version": "hybrid" if on_v1 and hierarchies.v2 is not None else only,
        "v1": " ".join(on_v1),
        "v2": " ".join(on_v2),
        "service_manager": "systemd" if _systemd_runs(subject) else "another than systemd",
    }
    return Section("control_groups", facts, tuple(met(subject, (_owned_by_systemd, _are_there))))


def _owned_by_systemd(subject: Subject) -> Iterator[Lack]:
    """On v1 there is no way to set values through systemd, and a reload of it may undo them."""
    if _systemd_runs(subject) and subject.layer.hierarchies.v1:
        text = "systemd owns the tree, and with v1 values of its units are written beside it, so that daemon-reload may undo them"
        yield Lack("control-groups.v1-under-systemd", text, unified(subject))


def _are_there(subject: Subject) -> Iterator[Lack]:
    """Every unit and container that the configuration names."""
    for problem in subject.names.problems:
        text, _, change = str(problem).partition("; ")
        yield Lack("control-groups.not-found", text, change)


def _systemd_runs(subject: Subject) -> bool:
    return GroupNames(subject.root, Hierarchies()).systemd_runs

"""What the demo needs of the machine, asked for before anything is made; everything that is missing is told at once."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from workloads.load import GENERATOR
from workloads.machine import CONTROLLERS, CpuPlan, cgroup_mounts, cpu_plan

PROGRAMS = {"memcached": "memcached", "nginx": "nginx-light", "stress-ng": "stress-ng", "ip": "iproute2", "tc": "iproute2"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found."""

    mounts: dict[str, Path]
    cpus: CpuPlan


@dataclass(frozen=True, slots=True)
class Findings:
    """What preflight looks at; tests put their own in."""

    user_id: int
    mounts: dict[str, Path]
    cpus: CpuPlan | None
    absent_programs: tuple[str, ...]
    generator: Path = GENERATOR


def look() -> Findings:
    """Look at this machine."""
    search = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = tuple(name for name in PROGRAMS if shutil.which(name, path=search) is None)
    return Findings(os.geteuid(), cgroup_mounts(), cpu_plan(), absent)


def missing(found: Findings) -> tuple[str, ...]:
    """One message for each thing that is missing, each with what to do."""
    return (*indivisible(found), *not_installed(found))


def indivisible(found: Findings) -> tuple[str, ...]:
    """Why this user cannot divide this machine."""
    messages = []
    if found.user_id:
        messages.append("not root: control groups, network namespaces and traffic control need it; run the command with sudo")
    absent = [name for name in CONTROLLERS if name not in found.mounts]
    if absent:
        messages.append(
            f"no control groups (version 1) for {', '.join(absent)}: the daemon needs them to divide this machine; "
            f"mount them (mount -t cgroup -o {absent[0]} {absent[0]} /sys/fs/cgroup/{absent[0]}), in a container run it privileged"
        )
    if found.cpus is None:
        messages.append(
            "fewer than two physical cores that this process may use: one is for clients and controller, one is managed"
        )
    return tuple(messages)


def not_installed(found: Findings) -> tuple[str, ...]:
    """What has to be installed or built."""
    messages = []
    if found.absent_programs:
        packages = sorted({PROGRAMS[name] for name in found.absent_programs})
        messages.append(f"not installed: {', '.join(found.absent_programs)}; run: apt-get install {' '.join(packages)}")
    if not found.generator.exists():
        messages.append("the load generator is not built; run: make setup")
    return tuple(messages)

"""Other programs that set the same values: who is there, and what to do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from actuators.cache.actuator import resctrl_mount
from actuators.cache.resctrl import read_tree
from monitors.writers import SUSPECTS
from parties.doctor.model import Tool
from parties.doctor.subject import MISTAKES, Subject
from parties.lock import LOCK_NAME
from parties.settings import CacheSettings
from parties.units import parse_cpu_list
from parties.verify import running_daemon


class _Known(NamedTuple):
    why: str
    change: str


_FREQUENCY = "it sets CPU frequency limits and governors"
_CONTAINERS = "it sets CPU sets and limits of its containers"
_NAMED = "name containers as services (containers = [...]), and give them no --cpuset-cpus of their own"
_VIRTUAL = "it sets CPU sets of its virtual machines"
_KNOWN: Mapping[str, _Known] = {
    "irqbalance": _Known(
        "it moves interrupts to all CPUs, managed ones too",
        "set IRQBALANCE_BANNED_CPULIST to the managed CPUs in /etc/default/irqbalance, or systemctl stop irqbalance",
    ),
    "tuned": _Known("it sets governors, IRQ affinity and sysctl values", "tuned-adm off, or systemctl disable --now tuned"),
    "thermald": _Known(_FREQUENCY, "systemctl disable --now thermald, if the machine is cooled well enough"),
    "power-profiles-": _Known(_FREQUENCY, "systemctl disable --now power-profiles-daemon"),
    "cpufreqd": _Known(_FREQUENCY, "systemctl disable --now cpufreqd"),
    "tlp": _Known(_FREQUENCY, "systemctl disable --now tlp"),
    "auto-cpufreq": _Known(_FREQUENCY, "systemctl disable --now auto-cpufreq"),
    "numad": _Known("it moves processes and their memory between NUMA nodes", "systemctl disable --now numad"),
    "libvirtd": _Known(_VIRTUAL, "leave the managed CPUs out of machine.slice and of every <cputune>"),
    "virtqemud": _Known(_VIRTUAL, "leave the managed CPUs out of machine.slice and of every <cputune>"),
    "dockerd": _Known(_CONTAINERS, _NAMED),
    "containerd": _Known(_CONTAINERS, _NAMED),
    "crio": _Known(_CONTAINERS, _NAMED),
    "kubelet": _Known("it sets CPU sets and limits of pods", "keep its --reserved-cpus and the managed CPUs apart"),
    "koordlet": _Known("it sets CPU sets, limits and resctrl groups of pods", "do not run it on a node that parties manages"),
    "cgrulesengd": _Known("it moves processes between control groups", "leave the services out of /etc/cgrules.conf"),
    "rdtset": _Known("it sets cache masks", "end it"),
    "pqos": _Known("it sets cache masks", "end it; pqos -R clears what it has set"),
}
_OTHERS = frozenset({"parties", "NetworkManager", "oomd", "conmon", "podman"})
"""Suspects that are dealt with elsewhere, or that set nothing unless they are told to."""

_CONTAINER_GROUPS = (
    *("kubepods.slice", "kubepods", "docker/*", "system.slice/docker-*.scope", "machine.slice", "machine.slice/*"),
    *("lxc.payload.*", "lxc/*"),
)


def in_the_way(subject: Subject) -> tuple[Tool, ...]:
    """Every other tool that is found, each once."""
    looks: tuple[Callable[[Subject], Iterator[Tool]], ...] = (_daemon, _running, _static_kubelet, _resctrl_groups, _cpu_sets)
    found = [tool for look in looks for tool in look(subject)]
    return tuple({(tool.name, tool.seen): tool for tool in found}.values())


def _daemon(subject: Subject) -> Iterator[Tool]:
    """Another daemon of ours; a run for other resources in another runtime directory is not seen."""
    lock = subject.root / subject.settings.runtime_directory.lstrip("/") / LOCK_NAME
    pid = running_daemon(lock, proc=subject.root / "proc")
    if pid is not None:
        why = "it manages this machine at present, so that some of what is said here is about its own values"
        yield Tool("parties", f"process {pid}", why, "see parties verify for what it has set")


def _running(subject: Subject) -> Iterator[Tool]:
    with contextlib.suppress(OSError):
        for directory in sorted((subject.root / "proc").glob("[0-9]*"), key=lambda entry: int(entry.name)):
            name = subject.text(f"proc/{directory.name}/comm")
            if name in _KNOWN or (name in SUSPECTS and name not in _OTHERS):
                known = _KNOWN.get(
                    name, _Known("it may set the same values", "see its documentation for how to leave the managed CPUs out")
                )
                yield Tool(name, f"process {directory.name}", known.why, known.change)


def _static_kubelet(subject: Subject) -> Iterator[Tool]:
    file = "var/lib/kubelet/cpu_manager_state"
    with contextlib.suppress(ValueError):
        state = json.loads(subject.text(file) or "{}")
        if isinstance(state, dict) and state.get("policyName") == "static":
            yield Tool(
                "kubelet, static CPU policy",
                f"/{file}",
                "it hands out CPUs to pods for themselves alone, and writes their CPU sets again every few seconds",
                "set cpuManagerPolicy: none in the kubelet's configuration, remove that file, and restart the kubelet",
            )


def _resctrl_groups(subject: Subject) -> Iterator[Tool]:
    mount = resctrl_mount(subject.settings.node.cache or CacheSettings(), subject.root)
    if mount is None:
        return
    with contextlib.suppress(*MISTAKES):
        for group in read_tree(mount).foreign:
            place = mount / group.name
            change = f"end the tool that made it, then rmdir {_shown(subject, place)}"
            yield Tool("another user of resctrl", _shown(subject, place), "its group has a class of service and ways", change)


def _cpu_sets(subject: Subject) -> Iterator[Tool]:
    """Groups of container engines and virtual machines that are confined to CPUs."""
    with contextlib.suppress(*MISTAKES):
        hierarchies = subject.layer.hierarchies
        tree = hierarchies.v1.get("cpuset", hierarchies.v2)
        ours = {"/" + path.strip("/") for path in subject.registered}
        for place in [] if tree is None else [place for pattern in _CONTAINER_GROUPS for place in sorted(tree.glob(pattern))]:
            cpus = subject.text(str(place / "cpuset.cpus"))
            if _confines(subject, cpus) and tree is not None and f"/{place.relative_to(tree)}" not in ours:
                yield Tool(
                    "CPU set of a container or virtual machine",
                    _shown(subject, place),
                    f"it is confined to CPUs {cpus}, which are then in use by somebody else",
                    "reserve these CPUs (reserved in [node.cores]), or register the group as a service or job",
                )


def _confines(subject: Subject, cpus: str) -> bool:
    """Whether these are not all CPUs, which is what v1 says where nobody has chosen any."""
    online = subject.topology.online if subject.topology is not None else ()
    return bool(cpus) and not set(online) <= set(parse_cpu_list(cpus))


def _shown(subject: Subject, place: Path) -> str:
    return subject.plain(str(place))

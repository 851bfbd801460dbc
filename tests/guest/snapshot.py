"""Runs in the guest: every value that the daemon may change, so that before and after can be compared.

Counters and the like are left out, as is what belongs to the daemon's own unit and to the agent.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")
RESCTRL = Path("/sys/fs/resctrl")
SETTINGS = (
    *("cpu.idle", "cpu.max", "cpu.max.burst", "cpu.weight", "cpuset.cpus", "cpuset.cpus.partition", "cpuset.mems"),
    *("io.max", "io.weight", "memory.high", "memory.low", "memory.max", "memory.min", "memory.swap.max", "cgroup.freeze"),
)
CONTROLLERS = "cgroup.subtree_control"
UNSET = {
    "cpu.idle": "0",
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpu.weight": "100",
    "cpuset.cpus.partition": "member",
    "cpuset.cpus": "",
    "cpuset.mems": "",
    "io.max": "",
    "io.weight": "default 100",
    "cgroup.freeze": "0",
    "memory.high": "max",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.low": "0",
    "memory.min": "0",
}
"""A controller that was enabled for the daemon's sake may stay enabled: its files then say what holds without them."""

OWN = ("agent.service", "parties.service", "parties.slice", "load.service")
PF_NO_SETAFFINITY = 0x04000000
UNIT_PROPERTIES = (
    *("AllowedCPUs", "AllowedMemoryNodes", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec", "CPUWeight", "FreezerState", "MemoryHigh"),
    *("MemoryMax", "IOReadBandwidthMax", "IOWriteBandwidthMax", "DropInPaths"),
)
DROP_INS = ("/run/systemd/system.control", "/etc/systemd/system.control", "/run/systemd/system", "/etc/systemd/system")


def values() -> dict[str, str]:
    """The place of each value, and the value."""
    return dict([*_groups(), *_frequencies(), *_cache(), *_traffic(), *_interrupts(), *_kernel_threads(), *_units()])


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """In what two snapshots differ, one line each."""
    return [
        f"{place}: {before.get(place)!r} before, {after.get(place)!r} after"
        for place in sorted({*before, *after})
        if before.get(place) != after.get(place)
    ]


def controllers() -> dict[str, str]:
    """What each group gives its children; these may grow and stay so, since systemd decides on them."""
    return {str(file): _text(file) for file in CGROUPS.rglob(CONTROLLERS)}


def _groups() -> Iterator[tuple[str, str]]:
    for directory, _, names in os.walk(CGROUPS):
        if not any(f"/{own}" in directory for own in OWN):
            for name in SETTINGS:
                text = _text(Path(directory) / name) if name in names else ""
                if text != UNSET.get(name) and name in names:
                    yield f"{directory}/{name}", text


def _frequencies() -> Iterator[tuple[str, str]]:
    for policy in sorted(CPUFREQ.glob("policy*")):
        governor = _text(policy / "scaling_governor")
        names = ["scaling_min_freq", "scaling_max_freq", *(["scaling_setspeed"] if governor == "userspace" else [])]
        yield f"{policy}/scaling_governor", governor
        yield from ((f"{policy}/{name}", _text(policy / name)) for name in names)


def _cache() -> Iterator[tuple[str, str]]:
    if not (RESCTRL / "schemata").exists():
        return
    for group in [RESCTRL, *(path.parent for path in sorted(RESCTRL.glob("*/schemata")))]:
        yield from ((f"{group}/{name}", _text(group / name)) for name in ("schemata", "cpus", "mode"))


def _traffic() -> Iterator[tuple[str, str]]:
    for device in sorted(path.name for path in Path("/sys/class/net").iterdir()):
        for kind in ("qdisc", "class", "filter"):
            yield f"tc {kind} show dev {device}", _output("tc", kind, "show", "dev", device)


def _interrupts() -> Iterator[tuple[str, str]]:
    for file in [*Path("/proc/irq").glob("*/smp_affinity"), Path("/proc/irq/default_smp_affinity")]:
        yield str(file), _text(file)
    workqueues = Path("/sys/devices/virtual/workqueue")
    for file in [workqueues / "cpumask", *sorted(workqueues.glob("*/cpumask"))]:
        if file.exists():
            yield str(file), _text(file)


def _kernel_threads() -> Iterator[tuple[str, str]]:
    """Where kernel threads may run that may not run everywhere; threads come and go, and those that may are nobody's doing.

    Those that nobody can move are left out: the kernel moves them itself, as workers of queues.
    """
    everywhere = _text(Path("/sys/devices/system/cpu/online"))
    confined: dict[str, set[str]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        fields = dict(line.split(":\t", 1) for line in _text(status).splitlines() if ":\t" in line)
        if fields.get("PPid", "").strip() == "2":
            flags = _text(status.parent / "stat").rpartition(") ")[2].split()[6:7]
            if flags and not int(flags[0]) & PF_NO_SETAFFINITY and fields["Cpus_allowed_list"].strip() != everywhere:
                confined.setdefault(fields["Name"], set()).add(fields["Cpus_allowed_list"].strip())
    yield from ((f"affinity of kernel thread {name}", " and ".join(sorted(lists))) for name, lists in confined.items())


def _units() -> Iterator[tuple[str, str]]:
    for directory in DROP_INS:
        for file in sorted(Path(directory).rglob("*")):
            if file.is_file() and (directory.endswith("control") or ".d/" in str(file)) and "transient" not in str(file):
                yield str(file), _text(file)
            elif file.is_dir() and directory.endswith("control"):
                yield str(file), "directory"
    for unit in ("web.service", "store.service", "batch.service", "system.slice"):
        shown = _output("systemctl", "show", unit, *(f"--property={name}" for name in UNIT_PROPERTIES))
        yield from ((f"{unit} {line.partition('=')[0]}", line.partition("=")[2]) for line in shown.splitlines())


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def watch(files: list[str], until: str) -> dict[str, list[str]]:
    """Every different value that each file has until the file ``until`` exists, in the order of their first appearance."""
    seen: dict[str, list[str]] = {file: [] for file in files}
    while not Path(until).exists():
        for file, values in seen.items():
            text = _text(Path(file))
            if text not in values:
                values.append(text)
        time.sleep(0.02)
    return seen


def threads_of(unit: str) -> list[dict[str, str]]:
    """For each thread of a unit: the CPUs that it may run on, and its resctrl group."""
    group = CGROUPS / "system.slice" / unit
    found = []
    for tid in _text(group / "cgroup.threads").split():
        status = dict(line.split(":\t", 1) for line in _text(Path(f"/proc/{tid}/status")).splitlines() if ":\t" in line)
        resctrl = _text(Path(f"/proc/{tid}/cpu_resctrl_groups")).splitlines()
        found.append({"cpus": status.get("Cpus_allowed_list", ""), "resctrl": resctrl[0].removeprefix("res:") if resctrl else ""})
    return found


def pages_of(unit: str) -> dict[str, int]:
    """How many anonymous pages of a unit's processes lie on each NUMA node."""
    found: dict[str, int] = {}
    for pid in _text(CGROUPS / "system.slice" / unit / "cgroup.procs").split():
        for line in _text(Path(f"/proc/{pid}/numa_maps")).splitlines():
            words = line.split()
            if any(word.startswith("anon=") for word in words) and not any(word.startswith("file=") for word in words):
                for node, _, pages in (word.partition("=") for word in words if word[0] == "N" and "=" in word):
                    found[node.removeprefix("N")] = found.get(node.removeprefix("N"), 0) + int(pages)
    return found


def class_bytes(device: str) -> dict[str, int]:
    """How many bytes each HTB class of a device has sent."""
    found, name = {}, ""
    for line in _output("tc", "-s", "class", "show", "dev", device).splitlines():
        words = line.split()
        if words[:2] == ["class", "htb"]:
            name = words[2]
        elif words[:1] == ["Sent"]:
            found[name] = int(words[1])
    return found

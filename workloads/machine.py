"""What the harness has to know of the machine: which CPUs are for whom, where control groups are, what identifies it."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "freezer")


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """One physical core is the managed machine; clients, system and controller have the rest, as in the paper's section 5.1."""

    reserved: tuple[int, ...]
    managed: tuple[int, ...]  # the hardware threads that anything runs on: one, its siblings stay empty


def cpu_plan(cpus: set[int] | None = None, sysfs: Path = Path("/sys/devices/system/cpu")) -> CpuPlan | None:
    """The last CPU is managed, the others that share no core with it are reserved; None if that leaves either side empty."""
    usable = sorted(os.sched_getaffinity(0) if cpus is None else cpus)
    if len(usable) < 2:  # noqa: PLR2004 - one for each side
        return None
    managed = usable[-1]
    siblings = _cpu_list(sysfs / f"cpu{managed}" / "topology" / "thread_siblings_list") | {managed}
    reserved = tuple(cpu for cpu in usable if cpu not in siblings)
    return CpuPlan(reserved, (managed,)) if reserved else None


def cgroup_mounts(mounts: Path = Path("/proc/self/mounts")) -> dict[str, Path]:
    """Where each cgroup v1 controller that the harness needs is mounted; those that are not are left out."""
    found: dict[str, Path] = {}
    for line in mounts.read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        if kind == "cgroup":
            for option in options.split(","):
                if option in CONTROLLERS:
                    found.setdefault(option, Path(point))
    return found


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the kernel gives it."""
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """What the kernel's clock ticks say of some CPUs since boot; bursts shorter than a tick are seen only on average."""

    busy_ns: int
    stolen_ns: int  # by the hypervisor


def cpu_times(cpus: tuple[int, ...], stat: Path = Path("/proc/stat")) -> CpuTimes:
    """Time that anybody ran on the CPUs, and time that they were withheld."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    busy = stolen = 0
    for line in stat.read_text().splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, fields)
            busy += user + nice + system + irq + softirq
            stolen += steal
    return CpuTimes(busy * tick_ns, stolen * tick_ns)


def block_device(path: Path, sysfs: Path = Path("/sys/dev/block")) -> str | None:
    """``MAJOR:MINOR`` of the whole disk under a path; None where there is none (overlay, tmpfs, network)."""
    number = path.stat().st_dev
    directory = sysfs / f"{os.major(number)}:{os.minor(number)}"
    if not directory.exists():
        return None
    if (directory / "partition").exists():
        return (directory.resolve().parent / "dev").read_text().strip()
    return directory.name


def fingerprint(*facts: str) -> str:
    """A short key that changes when the machine or any of the facts does."""
    text = "\n".join((cpu_model(), platform.release(), str(os.cpu_count()), *facts))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_list(path: Path) -> set[int]:
    if not path.exists():
        return set()
    cpus: set[int] = set()
    for part in path.read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus

"""A machine of sixteen cores with way masks and cpufreq, for the controller's bench: ordinary files where this machine has nothing.

Six services need more whole cores than most machines have, and a virtual machine has neither resctrl nor cpufreq. So CPUs, their
frequency, CPU sets and resctrl are trees of files in memory: one write or read of a few bytes, as with the kernel's own, without
what the kernel does for it (``docs/benchmarks.md`` compares). Everything else is this machine's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from actuators.cache.resctrl import group_name
from parties.model import BEST_EFFORT

CPUS = 16
WAYS = 20
SHAREABLE = 0xC0000
_LEAST_KHZ, _MOST_KHZ, _TURBO_KHZ = 1_200_000, 2_200_000, 2_201_000
_FULL = (1 << WAYS) - 1
_BIND = 'mount --make-rprivate / && mount --bind "$1" /sys/devices/system/cpu && shift && exec "$@"'

Files = Mapping[str, str]


class FileMachine:
    """The trees. A context manager: they are gone afterwards."""

    def __init__(self, groups: Mapping[str, str]) -> None:
        """``groups`` are the paths of the holders' control groups, by holder."""
        self._directory = tempfile.TemporaryDirectory(prefix="parties-bench-", dir=in_memory())
        root = Path(self._directory.name)
        self.cpu, self.cpuset, self.resctrl, self.v2 = root / "cpu", root / "cpuset", root / "resctrl", root / "v2"
        _write(self.cpu, _cpu_files())
        for number in range(CPUS):
            (self.cpu / f"cpu{number}/cpufreq").symlink_to(f"../cpufreq/policy{number}")
        whole = {"cpuset.cpus": f"0-{CPUS - 1}", "cpuset.mems": "0", "tasks": "", "cgroup.procs": ""}
        for path in ("", *groups.values()):
            _write(self.cpuset / path.strip("/"), whole)
        _write(self.resctrl, _resctrl_files())
        _write(self.v2, _V2_FILES)
        for holder in groups:
            _write(self.resctrl / group_name(holder), _GROUP_FILES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()

    @property
    def wrapper(self) -> Sequence[str]:
        """The beginning of a command that sees these CPUs, in a mount namespace of its own."""
        return ("unshare", "--mount", "sh", "-c", _BIND, "sh", str(self.cpu))


def in_memory() -> Path | None:
    """Where files cost no disk, as in /run; None where there is no such place."""
    place = Path("/dev/shm")  # noqa: S108 - directories of their own are made in it
    return place if place.is_dir() else None


def holders(services: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
    """Control groups by holder; the last path is the best-effort job's."""
    return dict(zip((*services, BEST_EFFORT), paths, strict=True))


_GROUP_FILES: Files = {"schemata": f"    L3:0={_FULL:x}", "mode": "shareable", "tasks": ""}


_V2_FILES: Files = {
    "cpu.max": "max 100000",
    "cpu.weight": "100",
    "cpu.idle": "0",
    "memory.high": "max",
    "memory.max": "max",
    "memory.current": "0",
    "memory.stat": "anon 0",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
    "io.max": "8:0 rbps=1048576 wbps=max riops=max wiops=max",
}


def _resctrl_files() -> Files:
    info = {"cbm_mask": f"{_FULL:x}", "min_cbm_bits": "1", "num_closids": "16", "shareable_bits": f"{SHAREABLE:x}"}
    return {**_GROUP_FILES, "info/last_cmd_status": "ok", **{f"info/L3/{name}": text for name, text in info.items()}}


def _cpu_files() -> Files:
    listed = f"0-{CPUS - 1}"
    files = dict.fromkeys(("online", "possible", "present"), listed)
    table = " ".join(str(khz) for khz in (_TURBO_KHZ, *range(_MOST_KHZ, _LEAST_KHZ - 1, -100_000)))
    for number in range(CPUS):
        own = {
            "topology/core_id": str(number),
            "topology/physical_package_id": "0",
            "topology/core_cpus_list": str(number),
            "cache/index3/level": "3",
            "cache/index3/id": "0",
            "cache/index3/shared_cpu_list": listed,
        }
        files |= {f"cpu{number}/{name}": text for name, text in own.items()}
        files |= {f"cpufreq/policy{number}/{name}": text for name, text in _policy_files(number, table).items()}
    return files


def _policy_files(number: int, table: str) -> Files:
    return {
        "affected_cpus": str(number),
        "related_cpus": str(number),
        "bios_limit": str(_TURBO_KHZ),
        "cpuinfo_min_freq": str(_LEAST_KHZ),
        "cpuinfo_max_freq": str(_TURBO_KHZ),
        "scaling_available_frequencies": table,
        "scaling_available_governors": "userspace powersave performance",
        "scaling_cur_freq": str(_MOST_KHZ),
        "scaling_driver": "acpi-cpufreq",
        "scaling_governor": "userspace",
        "scaling_max_freq": str(_TURBO_KHZ),
        "scaling_min_freq": str(_LEAST_KHZ),
        "scaling_setspeed": str(_MOST_KHZ),
    }


def _write(directory: Path, files: Files) -> None:
    for name, text in files.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="ascii")

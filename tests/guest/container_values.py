"""Runs in the guest: what the groups of containers have, for comparison before and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .snapshot import values

_PLACES = ("/sys/fs/cgroup", "/run/systemd", "/etc/systemd")
_TRANSIENT = Path("/run/systemd/transient")
_FILES = (
    *("cpu.idle", "cpu.max", "cpuset.cpus", "cpuset.cpus.effective", "cpuset.mems"),
    *("io.max", "memory.max", "memory.swap.max"),
)
_LISTS = ("cpuset.cpus", "cpuset.mems")


def all_values(names: dict[str, str]) -> dict[str, str]:
    """Every value of control groups and every drop-in; ``names`` is what to call each identifier, which is drawn anew.

    A list of all that the group above has is as good as none, and all that the kernel takes under processes.
    """
    found = {place: text for place, text in (*values().items(), *_drop_ins()) if place.startswith(_PLACES)}
    kept = {place: text for place, text in found.items() if not (place.endswith(_LISTS) and text == _above(place))}
    for identifier, name in names.items():
        kept = {place.replace(identifier, name): text.replace(identifier, name) for place, text in kept.items()}
    return kept


def of_processes(pids: dict[str, int]) -> dict[str, dict[str, str]]:
    """The settings of the group that each process is in, its path as "group", and where the process may run."""
    return {name: _of_process(pid) for name, pid in pids.items()}


def _of_process(pid: int) -> dict[str, str]:
    group = Path(f"/sys/fs/cgroup{Path(f'/proc/{pid}/cgroup').read_text().strip().removeprefix('0::')}")
    group = group.parent if group.name == "container" else group  # crun makes a group inside the container's own
    found = {name: (group / name).read_text().strip() for name in _FILES}
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return {**found, "group": str(group), "Cpus_allowed_list": status["Cpus_allowed_list"]}


def _drop_ins() -> Iterator[tuple[str, str]]:
    for file in sorted(_TRANSIENT.glob("*.d/*")):
        yield str(file), file.read_text()


def _above(place: str) -> str:
    file = Path(place)
    return (file.parents[1] / f"{file.name}.effective").read_text().strip()

"""Fixture trees of control groups, v1 and v2, and a fake systemd: ordinary files where the kernel has its own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cpuid_kit import processor
from fake_cgroup2 import Cgroup2
from systemd_fixtures import root, systemd

from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import GroupLayerV1

__all__ = ["layer", "make_group", "processor", "root", "systemd", "v2"]

FILES = {
    "cpu": {
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.shares": "1024",
        "cpu.idle": "0",
        "cgroup.procs": "",
    },
    "cpuacct": {"cpuacct.usage": "0"},
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.usage_in_bytes": "5000000",
        "memory.stat": "cache 4000000\ntotal_inactive_file 1000000\ntotal_active_file 3000000",
    },
    "blkio": {
        "blkio.throttle.read_bps_device": "",
        "blkio.throttle.write_bps_device": "",
        "blkio.throttle.io_service_bytes_recursive": "Total 0",
    },
    "freezer": {"freezer.state": "THAWED"},
}


@pytest.fixture
def layer(tmp_path: Path) -> GroupLayerV1:
    """Every hierarchy, found by way of a mountinfo of its own."""
    lines = []
    for number, controller in enumerate(FILES):
        (tmp_path / "cg" / controller).mkdir(parents=True)
        lines.append(f"{number} 1 0:{number} / /cg/{controller} rw,relatime - cgroup cgroup rw,{controller}")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    return GroupLayerV1(Hierarchies.find(tmp_path))


@pytest.fixture
def make_group(layer: GroupLayerV1) -> Callable[[str], None]:
    """Makes a group in every hierarchy, as the kernel would set it up."""

    def make(path: str) -> None:
        for controller, files in FILES.items():
            directory = layer.hierarchies.v1[controller] / path.strip("/")
            directory.mkdir(parents=True)
            for name, value in files.items():
                (directory / name).write_text(value + "\n")

    return make


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroup2:
    """A v2 tree with a kernel's behaviour."""
    return Cgroup2(tmp_path / "v2", monkeypatch)

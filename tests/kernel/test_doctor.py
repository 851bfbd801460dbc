"""``parties doctor`` for a configuration on this machine's kernel: what it says is what a run does, and it changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1

pytestmark = pytest.mark.kernel

_CHANGEABLE = {
    Controller.CPU: ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    Controller.CPUSET: ("cpuset.cpus", "cpuset.mems"),
    Controller.MEMORY: ("memory.limit_in_bytes",),
    Controller.FREEZER: ("freezer.state",),
}


def _doctor(file: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-c", "from parties.cli import main; main()", "doctor", "--json", "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)


def _configuration(directory: Path, web: str, *tables: str) -> Path:
    file = directory / "parties.toml"
    places = f'version = 1\nruntime_directory = "{directory}/run"\nstate_directory = "{directory}/state"\n'
    cores = '[node.cores]\nmanaged = "0"\ndivision = "fractions"\n[node.memory]\ntotal = "2GB"\nstep = "100MB"\n'
    service = f'[[service]]\nname = "web"\ncgroup = "{web}"\ntarget = "10ms"\n'
    file.write_text(places + cores + "".join(tables) + service)
    return file


def test_doctor_judges_a_configuration_and_changes_nothing(cgroup_factory: Callable[[str], ControlGroupV1], tmp_path: Path) -> None:
    """All that is asked for is managed (0), until something is asked for that this machine has not (1); no value changes."""
    group = cgroup_factory("web")

    def values() -> list[str]:
        return [(group.directory(where) / name).read_text() for where, names in _CHANGEABLE.items() for name in names]

    before = values()
    code, said = _doctor(_configuration(tmp_path, group.path))
    assert (code, said["verdict"]) == (0, "managed")
    assert said["resources"]["cores"]["range"] == "100 to 1000 in steps of 50; 1 L3 domain, id 0"
    code, said = _doctor(_configuration(tmp_path, group.path, "[node.cache]\n"))
    assert (code, said["resources"]["cache"]["verdict"]) == (1, "not managed")
    assert values() == before
    assert [file.name for file in tmp_path.iterdir()] == ["parties.toml"]


def test_group_that_is_not_there(tmp_path: Path) -> None:
    """A service whose group does not exist is what stands against it, and is named."""
    code, said = _doctor(_configuration(tmp_path, "/parties-test-nowhere/web"))
    assert code == 1
    assert "/parties-test-nowhere/web" in json.dumps(said["resources"]["cores"]["missing"])

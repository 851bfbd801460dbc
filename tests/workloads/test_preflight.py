"""What the demo says before it makes anything."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from workloads import cli
from workloads.demo.preflight import Findings, missing
from workloads.machine import CONTROLLERS, CpuPlan, block_device, cgroup_mounts, cpu_plan

MOUNTS = {name: Path("/sys/fs/cgroup") / name for name in CONTROLLERS}


def findings(tmp_path: Path, **changes: object) -> Findings:
    """A machine that lacks nothing, but for the changes."""
    generator = tmp_path / "generator"
    generator.touch()
    whole: dict[str, object] = {
        "user_id": 0,
        "mounts": MOUNTS,
        "cpus": CpuPlan((0,), (1,)),
        "absent_programs": (),
        "generator": generator,
    }
    return Findings(**(whole | changes))  # type: ignore[arg-type]


def test_machine_that_has_everything(tmp_path: Path) -> None:
    """Nothing is missing where nothing is missing."""
    assert missing(findings(tmp_path)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"user_id": 1000}, ("not root", "sudo")),
        ({"mounts": {name: path for name, path in MOUNTS.items() if name not in ("cpu", "freezer")}}, ("cpu, freezer", "mount -t")),
        ({"cpus": None}, ("fewer than two physical cores",)),
        ({"absent_programs": ("nginx", "tc")}, ("nginx, tc", "apt-get install iproute2 nginx-light")),
        ({"generator": Path("/nowhere")}, ("not built", "make setup")),
    ],
)
def test_each_lack_has_a_message_that_says_what_to_do(tmp_path: Path, changes: dict[str, object], words: tuple[str, ...]) -> None:
    """One message for each thing that is missing, with its remedy."""
    (message,) = missing(findings(tmp_path, **changes))
    assert all(word in message for word in words)


def test_everything_missing_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages come together, on standard error, with exit code 2 and without a traceback; nothing is made."""
    bare = Findings(1000, {}, None, ("memcached",), Path("/nowhere"))
    monkeypatch.setattr(cli, "look", lambda: bare)
    done = CliRunner().invoke(cli.demo, ["--platform", "host", "--out", str(tmp_path / "results")])
    assert done.exit_code == 2
    assert done.stderr.count("demo: ") == 5
    assert "Traceback" not in done.output
    assert not (tmp_path / "results").exists()


def test_unknown_manager_is_refused() -> None:
    """A manager that does not exist is named, with those that do."""
    done = CliRunner().invoke(cli.demo, ["--platform", "host", "--managers", "equal,heracles"])
    assert done.exit_code == 2
    assert "heracles" in done.stderr
    assert "idle-only" in done.stderr


def test_demo_is_a_module_too() -> None:
    """``python -m workloads.demo --help`` describes the same command."""
    words = [sys.executable, "-m", "workloads.demo", "--help"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "--recalibrate" in done.stdout


def topology(root: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        directory = root / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(text + "\n")
    return root


def test_managed_core_is_the_last_and_its_sibling_stays_empty(tmp_path: Path) -> None:
    """Of four threads on two cores the last is managed, its sibling is left alone, and the other core is reserved."""
    sysfs = topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert cpu_plan({0, 1, 2, 3}, sysfs) == CpuPlan(reserved=(0, 2), managed=(3,))


def test_one_core_is_too_few(tmp_path: Path) -> None:
    """One CPU, or two threads of one core, cannot be divided into reserve and managed machine."""
    assert cpu_plan({0}, tmp_path) is None
    assert cpu_plan({0, 1}, topology(tmp_path, {0: "0-1", 1: "0-1"})) is None


def test_mounts_of_version_1_controllers_are_found(tmp_path: Path) -> None:
    """Joint and single mounts are told apart by their options; version 2 and others are left out."""
    table = tmp_path / "mounts"
    table.write_text(
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
        "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    )
    joint = Path("/sys/fs/cgroup/cpu,cpuacct")
    assert cgroup_mounts(table) == {"cpu": joint, "cpuacct": joint, "memory": Path("/sys/fs/cgroup/memory")}


def test_path_without_a_disk_has_no_device(tmp_path: Path) -> None:
    """Where a file system is on no block device, disk bandwidth is not managed."""
    assert block_device(tmp_path, tmp_path / "no-sysfs") is None

"""``parties run``, ``check`` and ``restore`` with the real control process on this machine's kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import LIMIT_S

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1

pytestmark = pytest.mark.kernel

FILES = (
    (Controller.CPU, ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "cpu.idle")),
    (Controller.CPUSET, ("cpuset.cpus", "cpuset.mems")),
    (Controller.MEMORY, ("memory.limit_in_bytes",)),
)


class Scene:
    """Two services and a best-effort job that sleep in groups of their own, and a configuration for them."""

    def __init__(self, groups: dict[str, ControlGroupV1], directory: Path) -> None:
        self._groups = groups
        self.started: list[subprocess.Popen[str]] = []
        self.file = directory / "parties.toml"
        members = "".join(
            f'[[{kind}]]\nname = "{name}"\ncgroup = "{groups[name].path}"\n' + ('target = "10ms"\n' if kind == "service" else "")
            for kind, name in (("service", "web"), ("service", "db"), ("best_effort", "batch"))
        )
        self.file.write_text(
            f'version = 1\nruntime_directory = "{directory}/run"\nstate_directory = "{directory}/state"\n'
            '[node.cores]\nmanaged = "0"\ndivision = "fractions"\n[node.memory]\ntotal = "2GB"\nstep = "100MB"\n' + members
        )
        self.before = self.values()

    def values(self) -> dict[str, str]:
        """Every value that a run may change."""
        return {
            f"{name} {file}": (group.directory(controller) / file).read_text()
            for name, group in self._groups.items()
            for controller, files in FILES
            for file in files
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """``parties`` with these words and the configuration."""
        code = "from parties.cli import main; main()"
        command = [sys.executable, "-c", code, *words, "-c", str(self.file)]
        self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return self.started[-1]


@pytest.fixture
def scene(
    cgroup_factory: Callable[[str], ControlGroupV1], spawn: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> Iterator[Scene]:
    """The scene, with a check that everything is as before at the end of the test."""
    groups = {name: cgroup_factory(name) for name in ("web", "db", "batch")}
    for group in groups.values():
        spawn(group, "sleep", "600")
    scene = Scene(groups, tmp_path)
    yield scene
    for process in scene.started:
        with process:
            process.kill()
    assert scene.values() == scene.before


def started(front: subprocess.Popen[str]) -> None:
    """Wait for the first tick."""
    assert front.stdout is not None
    for line in front.stdout:
        if line.startswith("tick "):
            return
    raise AssertionError(front.communicate()[1])


def children(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_check_run_and_stop(scene: Scene) -> None:
    """A good configuration passes the check, a run changes values, and Ctrl-C puts every one back."""
    code = "from parties.cli import main; main()"
    checked = subprocess.run([sys.executable, "-c", code, "check", str(scene.file)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    front = scene.start("run", "--no-live")
    started(front)
    changed = scene.values()
    assert changed["web cpu.cfs_quota_us"] != scene.before["web cpu.cfs_quota_us"]
    assert changed["db memory.limit_in_bytes"] != scene.before["db memory.limit_in_bytes"]
    front.send_signal(signal.SIGINT)
    out, err = front.communicate(timeout=LIMIT_S)
    assert (front.returncode, err) == (130, "")
    assert "everything was put back" in out


def test_the_front_restores_after_a_killed_control_process(scene: Scene) -> None:
    """SIGKILL of the control process: the front puts everything back and says so in one message."""
    front = scene.start("run", "--no-live")
    started(front)
    (control,) = children(front.pid)
    os.kill(control, signal.SIGKILL)
    _, err = front.communicate(timeout=LIMIT_S)
    assert front.returncode == 1
    assert err.startswith("parties: the control process was killed by SIGKILL; ")
    assert "put back" in err
    assert len(err.splitlines()) == 1


def test_restore_after_both_were_killed(scene: Scene) -> None:
    """SIGKILL of front and control process: ``parties restore`` says what it would do, then does it."""
    front = scene.start("run", "--no-live")
    started(front)
    (control,) = children(front.pid)
    pidfd = os.pidfd_open(control)
    front.send_signal(signal.SIGSTOP)  # it must not restore by itself before it is killed
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
    front.kill()
    front.communicate()
    changed = scene.values()
    out, _ = scene.start("restore", "--dry-run").communicate(timeout=LIMIT_S)
    assert "would be put back" in out
    assert scene.values() == changed != scene.before
    restore = scene.start("restore")
    out, err = restore.communicate(timeout=LIMIT_S)
    assert (restore.returncode, err) == (0, "")
    assert scene.values() == scene.before


def test_a_second_daemon_and_a_restore_are_refused(scene: Scene) -> None:
    """While one runs, another run and a restore on the same directories end with one message and code 2, and change nothing."""
    front = scene.start("run", "--no-live")
    started(front)
    changed = scene.values()
    for words in (["run", "--no-live"], ["restore"]):
        second = scene.start(*words)
        _, err = second.communicate(timeout=LIMIT_S)
        assert second.returncode == 2
        assert err.startswith(f"parties: {scene.file.parent}/run/lock: held by process ")
        assert len(err.splitlines()) == 1
    assert scene.values() == changed
    front.terminate()
    front.communicate(timeout=LIMIT_S)
    assert front.returncode == 0

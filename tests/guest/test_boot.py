"""The virtual machine itself: it comes up as the tests need it, carries out commands, and survives a reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from .image import GuestImage
from .machine import GuestError, GuestMachine

pytestmark = pytest.mark.guest


def test_systemd_runs_on_control_groups_v2_alone(guest: GuestMachine) -> None:
    """PID 1 is systemd, every controller that the daemon uses is in the one v2 hierarchy, and nothing has failed."""
    assert guest.output("systemctl", "is-system-running").strip() == "running"
    assert {"cpuset", "cpu", "io", "memory"} <= set(guest.read("/sys/fs/cgroup/cgroup.controllers").split())
    assert " cgroup " not in guest.read("/proc/mounts")


def test_commands_answer_with_exit_code_and_both_outputs(guest: GuestMachine) -> None:
    """Exit code, standard output and error come back apart, large ones whole; what is past its limit is killed and told apart."""
    answer = guest.run("sh", "-c", "cat; echo wrong >&2; exit 3", stdin="right" * 100_000)
    assert (answer.code, answer.out, answer.err) == (3, "right" * 100_000, "wrong\n")
    assert guest.run("sleep", "60", limit_s=0.5).code is None
    assert guest.run("no-such-command").code == 127
    with pytest.raises(GuestError, match="exit code 1"):
        guest.output("false")


def test_commands_run_side_by_side(guest: GuestMachine) -> None:
    """A command that waits does not hold up the next one."""
    waiting = guest.begin("sh", "-c", "while [ ! -e /run/go ]; do sleep 0.1; done; rm /run/go; echo gone")
    guest.output("touch", "/run/go")
    assert guest.wait(waiting).out == "gone\n"


def test_the_disk_survives_a_reset_and_memory_does_not(image: GuestImage, project_disk: Path, tmp_path: Path) -> None:
    """After a reset there is another boot id; what was synced is there, what was in /run is not; then it shuts down in order."""
    with GuestMachine(image, project_disk, tmp_path) as machine:
        before = machine.boot_id
        machine.shell("echo kept > /var/lib/kept; sync; echo lost > /run/lost")
        machine.reset()
        assert machine.boot_id != before
        assert machine.read("/proc/sys/kernel/random/boot_id").strip() == machine.boot_id
        assert machine.read("/var/lib/kept") == "kept\n"
        assert machine.run("cat", "/run/lost").code != 0
        machine.power_off()

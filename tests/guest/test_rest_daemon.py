"""The daemon asked to keep the rest of the machine on the reserved CPU: through a restart, and back after a stop and a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemon import AWAITED_S, START_LIMIT_S, Daemon
from .image import GuestImage
from .machine import GuestMachine, GuestOptions
from .scene import CONFIGURATION, Managed, configuration, set_up
from .snapshot import differences

pytestmark = pytest.mark.guest

REST = "\n[rest]\nprocesses = true\nkernel_threads = true\ninterrupts = true\n"
KINDS = {"rest.unit", "task.affinity", "workqueue.cpumask", "irq.affinity", "irq.default-affinity"}


class Story:
    """The scene with the rest kept, and what every value was before the daemon's first start."""

    def __init__(self, guest: GuestMachine) -> None:
        self.guest = guest
        set_up(guest, Managed())
        guest.write(CONFIGURATION, configuration(Managed()) + REST)
        self.daemon = Daemon(guest)
        self.daemon.install()
        self.before = guest.call("snapshot", "values")

    def assert_kept(self) -> None:
        """Every value is as wanted, of every kind, and what is not registered runs on CPU 0."""
        self.daemon.await_that(lambda: self._kinds() >= KINDS, f"knobs of every kind: {self._kinds()}", AWAITED_S)
        found = self.daemon.verify()
        verdicts = {knob["verdict"] for knob in found["knobs"]}
        assert verdicts <= {"in-force", "vanished", "undone"}, found  # undone: journalled, and refused by its driver
        assert self.guest.read("/sys/fs/cgroup/system.slice/load.service/cpuset.cpus").strip() == "0"
        assert self.guest.read("/sys/fs/cgroup/system.slice/web.service/cpuset.cpus").strip() != "0"

    def _kinds(self) -> set[str]:
        _, text = self.daemon.parties("verify", "-c", CONFIGURATION)
        return {kind for kind in KINDS if kind in text}

    def assert_all_is_as_before(self) -> None:
        """No value differs."""
        assert differences(self.before, self.guest.call("snapshot", "values")) == [], self.daemon.said()
        assert self.daemon.leftovers() == "", self.daemon.said()


@pytest.fixture(scope="module")
def story(image: GuestImage, project_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One machine for all of this."""
    with GuestMachine(image, project_disk, tmp_path_factory.mktemp("rest"), GuestOptions(frequency=True)) as guest:
        guest.until_up()
        yield Story(guest)


def test_the_rest_is_kept_through_a_restart_and_returns_after_a_stop(story: Story) -> None:
    """Kept after the start and after a restart, which leaves the values where they are; a stop leaves every value as before."""
    daemon = story.daemon
    daemon.start()
    story.assert_kept()
    story.guest.output("systemctl", "restart", "parties", limit_s=START_LIMIT_S)
    story.assert_kept()
    assert "values put back" not in daemon.said(10_000)
    daemon.stop()
    story.assert_all_is_as_before()


def test_the_rest_returns_after_a_crash(story: Story) -> None:
    """SIGKILL of the control process: everything is put back before the unit has ended."""
    daemon = story.daemon
    daemon.start()
    story.assert_kept()
    daemon.kill("KILL", daemon.control_pid)
    daemon.await_end()
    story.assert_all_is_as_before()
    daemon.forget_failure()

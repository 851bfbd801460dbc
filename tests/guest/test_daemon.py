"""The daemon on a real kernel of today, under systemd: all six resources enforced, kept, handed on, and put back whatever happens.

The tests are steps of one story on one machine, in this order; each leaves the daemon stopped or says that it goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemon import AWAITED_S, DROP_IN, START_LIMIT_S, Daemon, ManagedScene
from .image import GuestImage
from .machine import GuestMachine, GuestOptions
from .resctrl_trick import why_not
from .scene import CONFIGURATION, PREPARE, Managed, configuration
from .snapshot import differences

pytestmark = pytest.mark.guest

GROUPS = "/sys/fs/cgroup/system.slice"
STORE_CPUS = f"{GROUPS}/store.service/cpuset.cpus"
STORE_MEMORY = f"{GROUPS}/store.service/memory.max"
STORE_CLASS, WEB_CLASS = "7061:10", "7061:11"


class Story(ManagedScene):
    """The steps of one machine's life under the daemon."""

    def running(self) -> Daemon:
        """The daemon, started unless it is."""
        if self.guest.run("systemctl", "is-active", "parties").out.strip() != "active":
            self.daemon.start()
            self.daemon.await_moves({"memory"})
        return self.daemon

    def assert_all_is_as_before(self) -> None:
        """No value differs, and nothing but records is left."""
        assert differences(self.before, self.guest.call("snapshot", "values")) == [], self.daemon.said()
        assert self.daemon.leftovers() == "", self.daemon.said()

    @property
    def resources(self) -> set[str]:
        """What should be seen to move."""
        optional = {"frequency": self.managed.frequency, "cache": self.managed.cache}
        return {"cores", "memory", "disk", "network", *(name for name, there in optional.items() if there)}


@pytest.fixture(scope="module")
def story(image: GuestImage, project_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One machine for all of this."""
    cache = why_not(image.kernel_version) is None
    with GuestMachine(
        image, project_disk, tmp_path_factory.mktemp("managed"), GuestOptions(frequency=True, resctrl=cache)
    ) as guest:
        guest.until_up()
        guest.shell(PREPARE)
        yield Story(guest, Managed(frequency=True, cache=cache))


def test_every_resource_moves_and_the_kernel_has_what_is_wanted(story: Story) -> None:
    """Moves of every resource follow each other; each value read from the kernel is the one that the daemon wants."""
    daemon = story.running()
    daemon.await_moves(story.resources)
    found = daemon.verify()
    assert {knob["verdict"] for knob in found["knobs"]} == {"in-force"}, found
    kinds = {knob["kind"] for knob in found["knobs"]}
    assert {"tc-class", "cpufreq.userspace", "systemd.list", "systemd.memory"} <= kinds, kinds


def test_what_runs_in_a_unit_is_where_its_holder_is(story: Story) -> None:
    """No CPU belongs to two holders, each thread may run on its holder's CPUs only and is in its resctrl group."""
    story.running()
    guest = story.guest
    cpus = {unit: guest.call("snapshot", "threads_of", unit=f"{unit}.service") for unit in ("store", "web")}
    for unit, threads in cpus.items():
        effective = guest.read(f"{GROUPS}/{unit}.service/cpuset.cpus.effective").strip()
        assert {thread["cpus"] for thread in threads} == {effective}, unit
        if story.managed.cache:
            assert {thread["resctrl"] for thread in threads} == {f"parties-{unit}"}, unit
    allowed = [thread["cpus"] for threads in cpus.values() for thread in threads]
    assert not set(_cpus(allowed[0])) & set(_cpus(allowed[-1]))


def test_traffic_goes_through_its_services_class(story: Story) -> None:
    """What the store and the web server answer is counted by their own HTB classes."""

    def counted() -> bool:
        sent = story.guest.call("snapshot", "class_bytes", device="services0")
        return bool(sent[STORE_CLASS] > 1000 and sent[WEB_CLASS] > 1000)

    story.running().await_that(counted, "count of both classes over 1000 bytes", AWAITED_S)


def test_values_stay_over_daemon_reload_and_reexec(story: Story) -> None:
    """When systemd reads its files anew, or starts itself anew, no value changes, and the daemon sees no foreign writer."""
    daemon = story.running()
    for command in ("daemon-reload", "daemon-reexec"):
        story.guest.output("systemctl", command, limit_s=AWAITED_S)
        daemon.verify()
    assert "somebody else" not in daemon.said(10_000)


def test_a_reload_goes_on_from_what_is_in_force(story: Story) -> None:
    """SIGHUP with another target: a new control process, the same main process, and the values never go away."""
    daemon = story.running()
    main, control = daemon.main_pid, daemon.control_pid
    story.guest.write(CONFIGURATION, configuration(Managed(story.managed.frequency, story.managed.cache, store_target="5s")))
    seen = _watched(story, "reload")
    daemon.await_that(lambda: daemon.control_pid not in {0, control}, "new control process", AWAITED_S)
    assert daemon.main_pid == main
    assert "" not in seen[STORE_CPUS], seen
    assert "max" not in seen[STORE_MEMORY], seen
    daemon.verify()


def test_a_restart_goes_on_from_what_is_in_force(story: Story) -> None:
    """``systemctl restart``: the values are left as they are, and the next daemon takes them up."""
    daemon = story.running()
    main = daemon.main_pid
    story.guest.write(CONFIGURATION, configuration(story.managed))
    seen = _watched(story, "restart")
    assert daemon.main_pid != main
    assert "" not in seen[STORE_CPUS], seen
    assert "max" not in seen[STORE_MEMORY], seen
    daemon.verify()


def test_a_stop_puts_everything_back(story: Story) -> None:
    """An ordered stop leaves every value as it was before the first start."""
    story.running().stop()
    story.assert_all_is_as_before()


@pytest.mark.parametrize("signal", ["SEGV", "KILL"])
def test_a_control_process_that_dies_is_cleaned_up_after(story: Story, signal: str) -> None:
    """A crash of the control process: every value is put back before the unit has ended."""
    daemon = story.running()
    daemon.kill(signal, daemon.control_pid)
    daemon.await_end()
    story.assert_all_is_as_before()
    daemon.forget_failure()


def test_processes_that_are_all_killed_at_once_are_cleaned_up_after(story: Story) -> None:
    """SIGKILL of everything in the unit, so that nothing of the daemon can react: the command after the stop puts all back."""
    daemon = story.running()
    story.guest.output("systemctl", "kill", "--kill-whom=all", "-s", "KILL", "parties")
    daemon.await_end()
    story.assert_all_is_as_before()
    daemon.forget_failure()


def test_a_control_process_that_hangs_is_ended_by_the_watchdog(story: Story) -> None:
    """SIGSTOP: the watchdog hears nothing more and ends it, and every value is put back."""
    daemon = story.running()
    daemon.kill("STOP", daemon.control_pid)
    daemon.await_end()
    assert "watchdog" in story.guest.output("systemctl", "show", "parties", "-p", "Result", "--value")
    story.assert_all_is_as_before()
    daemon.forget_failure()


def test_an_upgrade_of_the_package_goes_on_from_what_is_in_force(story: Story) -> None:
    """Installing over a running daemon: the values are left, and the new daemon takes them up."""
    if not story.daemon.packaged:
        pytest.skip("no package was built: make deb")
    daemon = story.running()
    main = daemon.main_pid
    daemon.install()
    daemon.await_that(lambda: daemon.main_pid not in {0, main}, "new daemon", AWAITED_S)
    daemon.verify()


def test_removing_the_package_puts_everything_back(story: Story) -> None:
    """``apt remove`` of a running daemon: every value is as before; ``purge`` then leaves no file."""
    if not story.daemon.packaged:
        pytest.skip("no package was built: make deb")
    story.running()
    story.guest.output("dpkg", "--remove", "parties", limit_s=START_LIMIT_S)
    assert differences(story.before, story.guest.call("snapshot", "values")) == []
    story.guest.output("dpkg", "--purge", "parties", limit_s=START_LIMIT_S)
    left = story.guest.shell("find / -xdev -name '*parties*' -not -path '/opt/project*' -not -path '/proc/*' -not -path '/sys/*'")
    assert [line for line in left.splitlines() if not line.startswith((DROP_IN.rpartition("/")[0], "/var/log"))] == []


def _watched(story: Story, verb: str) -> dict[str, list[str]]:
    """``systemctl VERB parties``, and every value that two files of the store had meanwhile."""
    guest = story.guest
    guest.output("rm", "-f", "/run/watched")
    arguments = f'{{"files": ["{STORE_CPUS}", "{STORE_MEMORY}"], "until": "/run/watched"}}'
    watching = guest.begin("python3", "-m", "tests.guest.inside", "snapshot", "watch", arguments, limit_s=2 * START_LIMIT_S)
    guest.output("systemctl", verb, "parties", limit_s=START_LIMIT_S)
    guest.output("touch", "/run/watched")
    answer = guest.wait(watching, START_LIMIT_S)
    assert answer.code == 0, answer.err
    return {file: list(values) for file, values in json.loads(answer.out.splitlines()[-1]).items()}


def _cpus(text: str) -> list[int]:
    """The numbers of a list such as 0-3,8."""
    parts = (part.split("-") for part in text.split(",") if part)
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]

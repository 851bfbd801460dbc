"""Services without a home on a real kernel with two sockets, a NUMA node and an L3 cache each: spread, kept there, and put back.

The tests are steps of one story on one machine, in this order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from parties.units import parse_cpu_list

from .daemon import AWAITED_S, START_LIMIT_S, ManagedScene
from .image import GuestImage
from .machine import GuestMachine, GuestOptions
from .resctrl_trick import why_not
from .scene import CONFIGURATION, PREPARE, Managed, configuration
from .snapshot import differences

pytestmark = pytest.mark.guest

GROUPS = "/sys/fs/cgroup/system.slice"
SOCKETS = {0: frozenset({1, 2, 3}), 1: frozenset({4, 5, 6, 7})}  # CPU 0 is reserved
HOMES = {"quiet": 1, "store": 0, "web": 1}
"""By the fewest services for each managed core: 1/4 against 1/3, then 1/3 against 2/4, then 2/4 against 2/3."""

LATER_HOMES = {"late": 0, **HOMES}
"""With a fourth service, first in the file, which goes where there are 2 for 3 cores instead of 3 for 4."""

FRESH_HOMES = {"late": 1, "quiet": 0, "store": 1, "web": 0}
"""Where the same file would put them if nobody lived anywhere yet."""


BOTH = frozenset(SOCKETS)
WATCHED = "/run/watched"


class Story(ManagedScene):
    """The scene on two sockets, where every target is met with ease."""

    def configure(self, *silent: str, store_target: str = "10s") -> None:
        """Write the configuration with these silent services."""
        self.guest.write(CONFIGURATION, configuration(replace(self.managed, silent=silent, store_target=store_target)))

    def fresh_homes(self) -> dict[str, int]:
        """What ``parties check`` says."""
        code, text = self.daemon.parties("check", "--json", CONFIGURATION)
        assert code == 0, text
        return dict(json.loads(text)["homes"])

    def allowed(self, name: str, kind: str) -> frozenset[int]:
        """CPUs (``cpus``) or memory nodes (``mems``) of a unit; what is set must be what is in force."""
        file = f"{GROUPS}/{name}.service/cpuset.{kind}"
        wanted, effective = self.guest.read(file), self.guest.read(f"{file}.effective")
        assert wanted == effective, file
        return frozenset(parse_cpu_list(wanted.strip()))

    def assert_at_home(self, homes: Mapping[str, int]) -> None:
        """The kernel has CPUs and memory nodes of its home alone for each service; best effort may use both nodes."""
        for name, home in homes.items():
            assert self.allowed(name, "cpus") <= SOCKETS[home], name
            assert self.allowed(name, "mems") == {home}, name
        assert self.allowed("batch", "mems") == BOTH

    def moves(self) -> set[tuple[str, str, str]]:
        """Pool, giver and taker of every move in this boot."""
        return set(re.findall(r"tick \d+: (\w+(?:@\d+)?) \S+ (\S+) -> (\S+)", self.daemon.said(10_000)))

    def assert_none_crossed(self, homes: Mapping[str, int]) -> None:
        """Every move in a domain's pool was between those who live there."""
        for pool, *holders in self.moves():
            if "@" in pool:
                strangers = {name for name in holders if homes.get(name, int(pool[-1])) != int(pool[-1])}
                assert not strangers, (pool, holders)

    def watch(self, names: Iterable[str]) -> int:
        """Begin to watch the CPUs of services; the number of the command."""
        self.guest.output("rm", "-f", WATCHED)
        arguments = json.dumps({"files": [f"{GROUPS}/{name}.service/cpuset.cpus" for name in names], "until": WATCHED})
        return self.guest.begin("python3", "-m", "tests.guest.inside", "snapshot", "watch", arguments, limit_s=AWAITED_S)

    def watched(self, number: int) -> list[frozenset[int]]:
        """End the watch: all CPUs that each service ever had; there were some all the time."""
        self.guest.output("touch", WATCHED)
        answer = self.guest.wait(number, AWAITED_S)
        assert answer.code == 0, answer.err
        seen = json.loads(answer.out.splitlines()[-1])
        assert all(text[:1].isdecimal() for texts in seen.values() for text in texts), seen
        return [frozenset(cpu for text in texts for cpu in parse_cpu_list(text)) for texts in seen.values()]


@pytest.fixture(scope="module")
def story(image: GuestImage, project_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One machine for all of this."""
    cache = why_not(image.kernel_version) is None
    options = GuestOptions(cpus=8, sockets=2, frequency=True, resctrl=cache)
    with GuestMachine(image, project_disk, tmp_path_factory.mktemp("domains"), options) as guest:
        guest.until_up()
        guest.shell(PREPARE)
        yield Story(guest, Managed(frequency=True, cache=cache, disk=False, network=False, silent=("late", "quiet")))


def test_services_without_a_home_are_spread_over_both_sockets(story: Story) -> None:
    """``parties check`` tells the homes; each service's CPUs and memory are there, best effort has idle cores of both."""
    story.configure("quiet")
    assert story.fresh_homes() == HOMES
    story.daemon.start()
    story.daemon.verify()
    story.assert_at_home(HOMES)
    assert all(story.allowed("batch", "cpus") & cpus for cpus in SOCKETS.values())
    assert "services live in domain 0 (CPU 1-3): store; 1 (CPU 4-7): quiet, web" in story.daemon.said(10_000)


def test_memory_is_taken_from_the_home_alone(story: Story) -> None:
    """A service that starts while it is managed has every page of its own on its home's node, which is not the first one."""
    story.guest.output("systemctl", "restart", "quiet.service")
    pages = story.guest.call("snapshot", "pages_of", unit="quiet.service")
    assert set(pages) == {str(HOMES["quiet"])}, pages
    story.daemon.await_that(lambda: story.allowed("quiet", "cpus") <= SOCKETS[HOMES["quiet"]], "quiet service at home", AWAITED_S)


def test_a_reload_that_adds_a_service_moves_nobody_between_sockets(story: Story) -> None:
    """SIGHUP with one more service, before all others: a fresh start would spread them otherwise, and all stay at home."""
    daemon = story.daemon
    control = daemon.control_pid
    watching = story.watch(HOMES)
    story.configure("late", "quiet", store_target="1us")
    assert story.fresh_homes() == FRESH_HOMES
    story.guest.output("systemctl", "reload", "parties", limit_s=START_LIMIT_S)
    daemon.await_that(lambda: daemon.control_pid not in {0, control}, "new control process", AWAITED_S)
    for home, cpus in zip(HOMES.values(), story.watched(watching), strict=True):
        assert cpus
        assert cpus <= SOCKETS[home]
    story.assert_at_home(LATER_HOMES)


def test_a_violation_moves_a_core_within_its_socket_only(story: Story) -> None:
    """The store, whose target cannot be met, gets a core of its own socket; the other socket's CPUs stay there."""
    daemon = story.daemon
    watching = story.watch(LATER_HOMES)
    daemon.await_that(lambda: ("cores@0", "best-effort", "store") in story.moves(), "core for the store", AWAITED_S)
    for home, cpus in zip(LATER_HOMES.values(), story.watched(watching), strict=True):
        assert cpus <= SOCKETS[home]
    story.assert_none_crossed(LATER_HOMES)
    daemon.verify()
    story.assert_at_home(LATER_HOMES)
    assert len(story.allowed("store", "cpus")) > 1


def test_a_stop_puts_both_sockets_back(story: Story) -> None:
    """Every value of before the first start is there again."""
    story.daemon.stop()
    assert differences(story.before, story.guest.call("snapshot", "values")) == [], story.daemon.said()
    assert story.daemon.leftovers() == "", story.daemon.said()

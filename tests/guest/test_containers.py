"""Containers as Docker, Podman, containerd and LXC make them, managed by name.

The tests are steps of one story on one machine, in this order. Nothing is fetched: the root file systems are made there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from .daemon import Daemon
from .engines import DOCKER_ELSEWHERE, Box, Engines
from .image import GuestImage
from .machine import GuestMachine, GuestOptions
from .scene import CONFIGURATION, RUNTIME
from .snapshot import differences

pytestmark = pytest.mark.guest

CPUS = 6
GONE = "vanished, its control group or device is gone"
FAIR_MEMORY_BYTES = 200_000_000
FEED = "/run/latencies.json"
TARGET_NS = 10_000_000
VIOLATING_NS = 50_000_000
CONTENT_NS = int(0.87 * TARGET_NS)  # neither gives nor needs
BOXES = (
    Box("docker", "web", "--memory 300m --memory-swap 300m --cpuset-cpus 0-4 --cpu-shares 2048"),
    Box("podman", "store", "--memory 400m --cpus 4"),
    Box("containerd", "batch"),
    Box("containerd", "scoped", "--runc-systemd-cgroup --cgroup system.slice:ctr:scoped"),
    Box("lxc", "old"),
)
SCOPES = ("web", "store", "scoped")  # the others' groups are nobody's but the engine's
HOLDERS = {"web": "web", "store": "store", "batch": "best-effort", "scoped": "best-effort", "old": "best-effort"}
_NODE = """\
version = 1
interval = "500ms"
absent_grace = "20min"
[signal]
stale_after = "20s"
[node.cores]
reserved = "0"
{cores}
[node.memory]
total = "600MB"
step = "50MB"
[node.disk]
device = "/dev/vdc"
rate = "200MB/s"
"""
_JOBS = """\
[[best_effort]]
name = "batch"
containers = ["containerd:default/batch", "containerd:scoped"]
[[best_effort]]
name = "old"
container = "lxc:old"
"""


def _service(name: str, container: str, maximum: str) -> str:
    return (
        f'[[service]]\nname = "{name}"\ncontainer = "{container}"\ntarget = "10ms"\npercentile = 50\nin_memory = false\n'
        f"maximum = {{ {maximum} }}\n"
    )


def whole_cores(web: str, store: str = "podman:store") -> str:
    """Five cores: at first two for the web server, one for the store, two for the jobs, who keep one."""
    services = _service("web", web, 'cores = "3 cores", memory = "300MB"') + _service("store", store, 'cores = "1 cores"')
    return _NODE.format(cores='division = "whole"') + services + _JOBS


def fractions(web: str) -> str:
    """One core for all."""
    cores = 'managed = "1"\ndivision = "fractions"'
    return _NODE.format(cores=cores) + _service("web", web, 'cores = "700m", memory = "400MB"') + _JOBS


class Story:
    """The machine with every container, the daemon in place, and what every value was before its first start."""

    def __init__(self, guest: GuestMachine) -> None:
        self.guest = guest
        self.engines = Engines(guest)
        self.engines.prepare()
        self.engines.start_docker(driver="systemd", keeps_containers=True)
        self.daemon = Daemon(guest)
        self.daemon.install()  # before there are containers: its daemon-reload makes systemd give them swap again
        self.engines.run(*BOXES)
        sys.stderr.write(self.engines.versions())
        guest.write(CONFIGURATION, whole_cores("docker:web"))
        self.feed(web=VIOLATING_NS, store=CONTENT_NS)
        guest.output(
            *("systemd-run", "--quiet", "--unit=load", "--setenv=PYTHONPATH=/opt/project", "/usr/bin/python3"),
            *("/opt/project/tests/guest/feed.py", f"{RUNTIME}/histogram.sock", FEED),
        )
        self.before = self.values()

    def feed(self, **latencies_ns: int) -> None:
        """What the services are said to answer in from now on."""
        self.guest.write(f"{FEED}.new", json.dumps(latencies_ns))
        self.guest.output("mv", f"{FEED}.new", FEED)

    def values(self) -> dict[str, str]:
        """Every value, with names in place of what was drawn."""
        names = {self.engines.identifier(box.name): box.name for box in self.engines.boxes.values() if box.engine in DRAWING}
        return dict(self.guest.call("container_values", "all_values", names=names))

    def of(self, *names: str) -> dict[str, dict[str, str]]:
        """What the containers' own groups have."""
        return dict(self.guest.call("container_values", "of_processes", pids=self.engines.pids(*names)))

    def kinds(self) -> dict[str, set[str]]:
        """The kinds of knob of each group. All of them are in force."""
        found = self.daemon.verify()["knobs"]
        assert {knob["verdict"] for knob in found} == {"in-force"}, found
        kinds: dict[str, set[str]] = {}
        for knob in found:
            for part in knob["address"]:
                kinds.setdefault(part, set()).add(knob["kind"])
                kinds.setdefault(part.rpartition("/")[0], set()).add(knob["kind"])
        return kinds

    def running(self) -> Daemon:
        """The daemon, started unless it is, after its moves are over."""
        if self.guest.run("systemctl", "is-active", "parties").out.strip() != "active":
            self.daemon.start()
            self.daemon.await_moves({"cores", "memory"}, 300)
            self.feed(web=CONTENT_NS, store=CONTENT_NS)
        return self.daemon

    def assert_all_is_as_before(self) -> None:
        """No value differs, and nothing but records is left."""
        assert differences(self.before, self.values()) == [], self.daemon.said()
        assert self.daemon.leftovers() == "", self.daemon.said()


DRAWING = ("docker", "podman")


@pytest.fixture(scope="module")
def story(image: GuestImage, project_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One machine for all of this."""
    with GuestMachine(image, project_disk, tmp_path_factory.mktemp("containers"), GuestOptions(cpus=CPUS, frequency=True)) as guest:
        guest.until_up()
        yield Story(guest)


def test_a_container_that_cannot_be_found_is_told(story: Story) -> None:
    """Unknown with the nearest name, made but not started, of no engine: all in one message; the right names are good."""
    story.guest.output("docker", "create", "--name", "asleep", "--network", "none", "busybox", "/loop", limit_s=180)
    story.guest.write("/run/wrong.toml", whole_cores("docker:wbe", "docker:asleep").replace("lxc:old", "lxc:odl"))
    code, said = story.daemon.parties("check", "/run/wrong.toml")
    assert code == 2, said
    assert 'there is no container "docker:wbe"; did you mean "web"?' in said
    assert 'container "docker:asleep" is not running, so it has no control group; start it (see docker ps -a)' in said
    assert 'there is no container "lxc:odl"; did you mean "old"?' in said
    story.guest.output("docker", "rm", "asleep", limit_s=180)
    web, store = (story.engines.identifier(name) for name in ("web", "store"))
    story.guest.write("/run/right.toml", whole_cores(f"docker:{web[:12]}", f"podman:{store}"))
    code, said = story.daemon.parties("check", "/run/right.toml")
    assert code == 0, said


def test_moves_reach_the_containers_own_groups(story: Story) -> None:
    """Cores and memory of each engine's container are what the daemon wants, in the group that its first process is in."""
    story.running()
    found, kinds = story.of(*HOLDERS), story.kinds()
    for name, values in found.items():
        wanted = {f"{'systemd' if name in SCOPES else 'cgroup2'}.{kind}" for kind in ("list", "memory", "disk-throttle")}
        assert wanted <= kinds[values["group"]], name
        assert values["cpuset.cpus"] == values["cpuset.cpus.effective"] == values["Cpus_allowed_list"], name
        assert values["memory.max"] != "max", name
        assert "rbps=max" not in values["io.max"] != "", name
    cpus = {holder: _cpus(found[name]["cpuset.cpus"]) for name, holder in HOLDERS.items()}
    assert [len(cpus[holder]) for holder in ("web", "store", "best-effort")] == [3, 1, 1]
    assert sorted(cpu for held in cpus.values() for cpu in held) == [1, 2, 3, 4, 5], cpus
    assert len({found[name]["cpuset.cpus"] for name in ("batch", "scoped", "old")}) == 1
    assert int(found["web"]["memory.max"]) > FAIR_MEMORY_BYTES
    assert found["web"]["memory.swap.max"] == "0"  # Docker does not tell systemd


def test_daemon_reload_undoes_nothing(story: Story) -> None:
    """When systemd reads its files anew, neither the scopes' values nor those of the groups beside the slices change."""
    daemon = story.running()
    before = story.of(*HOLDERS)
    story.guest.output("systemctl", "daemon-reload", limit_s=120)
    daemon.verify()
    assert _managed(story.of(*HOLDERS)) == _managed(before)
    assert "somebody else" not in daemon.said(10_000)


def test_restarted_containers_are_taken_up_again(story: Story) -> None:
    """Their groups go and come under the same names: told as vanished, then in force again without anybody's doing."""
    daemon = story.running()
    before, pids = story.of(*HOLDERS), story.engines.pids(*HOLDERS)
    story.engines.restart(*HOLDERS)
    daemon.await_that(lambda: _managed(story.of(*HOLDERS)) == _managed(before), "values of the new groups", 120)
    assert not set(pids.values()) & set(story.engines.pids(*HOLDERS).values())
    for values in before.values():
        assert f"{PurePosixPath(values['group']).name}" in "".join(
            line for line in daemon.said(10_000).splitlines() if GONE in line
        )
    daemon.verify()


def test_engines_that_are_down_do_no_harm(story: Story) -> None:
    """Docker (with live-restore) and containerd are stopped: their containers go on, named and managed as before."""
    daemon = story.running()
    before, pids = story.of(*HOLDERS), story.engines.pids(*HOLDERS)
    story.engines.stop_docker()
    story.guest.output("systemctl", "stop", "containerd", limit_s=180)
    daemon.verify()
    code, said = daemon.parties("check", CONFIGURATION)
    assert code == 0, said
    story.guest.output("systemctl", "start", "docker", limit_s=180)
    story.engines.ask_anew()
    assert story.engines.pids(*HOLDERS) == pids
    assert _managed(story.of(*HOLDERS)) == _managed(before)


def test_a_container_made_anew_is_taken_up_at_a_reload(story: Story) -> None:
    """With another identifier it is another group: the service is absent and the new group left alone, until a reload finds it."""
    daemon = story.running()
    before = story.of("web")
    story.engines.remove("web")
    story.engines.run(BOXES[0])
    group = PurePosixPath(before["web"]["group"]).name
    daemon.await_that(lambda: daemon.said(40).count(group) > 0, "word of the group that is gone", 120)
    assert story.of("web")["web"]["cpuset.cpus"] == "0-4"
    story.guest.output("systemctl", "reload", "parties", limit_s=300)
    daemon.await_that(lambda: _managed(story.of("web")) == _managed(before), "values of the new container", 120)
    daemon.verify()


def test_a_stop_puts_everything_back(story: Story) -> None:
    """Every value of every container and each drop-in is as before the first start, what docker and podman were told included."""
    story.running().stop()
    story.assert_all_is_as_before()


def test_dockers_own_driver_in_fractions_of_a_core(story: Story) -> None:
    """Groups of the driver cgroupfs, data kept elsewhere; dockerd's end takes the container with it, and does no other harm."""
    engines = story.engines
    engines.remove("web", "store")
    engines.stop_docker()
    engines.start_docker(driver="cgroupfs", data=DOCKER_ELSEWHERE)
    engines.run(Box("docker", "plain"))
    story.guest.write(CONFIGURATION, fractions(f"docker:{engines.identifier('plain')}"))
    story.feed(web=VIOLATING_NS)
    story.guest.output("systemctl", "restart", "load")
    story.before = story.values()
    daemon = story.running()
    found = story.of("plain", "batch", "scoped", "old")
    assert "cgroup2.cpu-bandwidth" in story.kinds()[found["plain"]["group"]]
    assert {values["cpuset.cpus"] for values in found.values()} == {"1"}
    assert "max" not in {values[file].split()[0] for values in found.values() for file in ("cpu.max", "memory.max")}, found
    assert [found[name]["cpu.idle"] for name in found] == ["0", "1", "1", "1"]
    engines.stop_docker()
    daemon.await_that(lambda: GONE in daemon.said(40), "word of the group that is gone", 120)
    engines.forget("plain")
    daemon.stop()
    story.assert_all_is_as_before()


def _managed(found: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    files = ("cpuset.cpus", "cpuset.mems", "memory.max", "Cpus_allowed_list")
    return {name: {file: values[file] for file in files} for name, values in found.items()}


def _cpus(text: str) -> list[int]:
    ranges = (part.split("-") for part in text.split(",") if part)
    return [cpu for first, *last in ranges for cpu in range(int(first), int((last or [first])[0]) + 1)]

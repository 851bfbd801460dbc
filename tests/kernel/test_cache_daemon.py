"""The daemon with cache ways on an emulated resctrl: moves reach it, threads follow, and every end puts the tree back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_kit import CONTENT_NS, VIOLATING_NS, Daemon, Feeder, Site, at_rest

from actuators.cache.resctrl_actuator import thread_directory
from actuators.cache.tasks import threads_below
from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1
from actuators.registry import KINDS
from parties.restore import restore
from parties.settings import CacheSettings, ControlSettings
from tests.emulation.fuse_tree import Mounted, why_not
from tests.emulation.resctrl import ResctrlOptions, mounted_resctrl

pytestmark = [pytest.mark.kernel, pytest.mark.emulation]

MakeFeeder = Callable[..., Feeder]
FULL = (1 << 18) - 1


@pytest.fixture
def resctrl(tmp_path: Path) -> Iterator[Mounted]:
    """A machine of 20 ways, two of them shared with devices."""
    if reason := why_not():
        pytest.skip(reason)
    with mounted_resctrl(tmp_path / "resctrl", ResctrlOptions(ways=20, shareable_bits=0xC0000, monitoring=True)) as mounted:
        yield mounted


@pytest.fixture
def settings(site: Site, resctrl: Mounted) -> ControlSettings:
    """The site's, with cache ways."""
    return replace(site.settings, node=replace(site.settings.node, cache=CacheSettings(mount=str(resctrl.path))))


def masks(resctrl: Mounted) -> dict[str, int]:
    """The ways of each group of ours, all at one moment."""
    groups = resctrl.order("get_state").items()
    return {name: int(group["schemata"].partition("=")[2], 16) for name, group in groups if name.startswith("parties-")}


def state(resctrl: Mounted) -> object:
    """Every group with its masks."""
    return {name: group["schemata"] for name, group in resctrl.order("get_state").items()}


def ways_of(tick: dict[str, dict[str, dict[str, dict[str, int]]]], service: str) -> int:
    return tick["services"][service]["amounts"]["cache"]


def threads_in(resctrl: Mounted, group: str, wanted: str) -> bool:
    """Whether a thread joins the group within two minutes."""
    for _ in range(1200):
        if wanted in (resctrl.path / group / "tasks").read_text().split():
            return True
        time.sleep(0.1)
    return False


THREADS = (
    "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(600,)).start()\nprint('go', flush=True)"
)


def test_threads_of_real_control_groups(
    cgroup_factory: Callable[[str], ControlGroupV1], spawn: Callable[..., subprocess.Popen[bytes]], layer: GroupLayerV1
) -> None:
    """Every thread of a process, and what is in a group below; the place is found by the group's path."""
    group, below = cgroup_factory("web"), cgroup_factory("web/below")
    many, one = spawn(group, sys.executable, "-c", THREADS), spawn(below, "sleep", "600")
    assert many.stdout is not None
    many.stdout.readline()
    threads = {int(task.name) for task in Path(f"/proc/{many.pid}/task").iterdir()}
    assert len(threads) == 4
    assert threads_below(thread_directory(layer.hierarchies, group.path)) == threads | {one.pid}


def test_ways_follow_the_policy_and_come_back(
    site: Site, settings: ControlSettings, resctrl: Mounted, feeder: MakeFeeder, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """What a service gains the others lose, each way has one holder, threads are in their groups; stopped, all is as before."""
    before = state(resctrl)
    with Daemon(settings) as daemon:
        daemon.started()
        feeder("web", VIOLATING_NS)
        feeder("store")
        first = ways_of(daemon.tick(), "web")
        tick = daemon.tick(lambda tick: ways_of(tick, "web") > first + 1)
        held = masks(resctrl)
        assert held["parties-web"].bit_count() >= ways_of(tick, "web")
        assert sum(held.values()) <= FULL
        assert sum(map(int.bit_count, held.values())) == sum(held.values()).bit_count()
        assert threads_in(resctrl, "parties-web", str(site.processes["web"].pid))
        late = spawn(site.store, "sleep", "600")
        assert threads_in(resctrl, "parties-store", str(late.pid))
        resctrl.order("set_counter", group="parties-web", domain=0, event="llc_occupancy", value="4096")
        daemon.tick(lambda tick: tick["services"]["web"]["usage"].get("cache_bytes") == 4096)
        report = daemon.stop()
    assert report["moves"]["cache"] >= 2
    assert state(resctrl) == before
    assert not daemon.journal.exists()


@pytest.mark.parametrize("moment_s", [0.0, 0.15, 0.3, 0.6])
def test_killed_and_restored(settings: ControlSettings, resctrl: Mounted, feeder: MakeFeeder, moment_s: float) -> None:
    """SIGKILL while moves are made: restore leaves the tree as it was before the daemon."""
    before = state(resctrl)
    feeder("web", VIOLATING_NS)
    with Daemon(settings) as daemon:
        daemon.started()
        time.sleep(moment_s)
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait()
        assert state(resctrl) != before
        assert restore(daemon.journal, KINDS).complete
    assert state(resctrl) == before


def test_a_leftover_of_an_unknown_run_is_removed(settings: ControlSettings, resctrl: Mounted) -> None:
    """It holds a class of service that nobody would ever give back; the daemon says that it went."""
    (resctrl.path / "parties-ghost").mkdir()
    with Daemon(settings) as daemon:
        daemon.event("parties-ghost: left by an earlier run, removed")
        daemon.started()
        assert not (resctrl.path / "parties-ghost").exists()
        daemon.stop()


def test_too_few_classes_of_service(settings: ControlSettings, resctrl: Mounted) -> None:
    """The daemon runs without cache, and says who holds the classes."""
    for number in range(14):
        (resctrl.path / f"vm-{number}").mkdir()
    before = state(resctrl)
    with Daemon(settings) as daemon:
        started = daemon.until(lambda message: message["type"] == "started")
        assert "others hold vm-0 (0 threads), vm-1" in str([*daemon.messages, started])
        assert "cache" not in daemon.tick()["services"]["web"]["amounts"]
        daemon.stop()
    assert state(resctrl) == before


def written(resctrl: Mounted) -> list[str]:
    """Every path that was made, removed or written so far."""
    return [step["path"] for step in resctrl.log()]


def test_a_restart_moves_no_line_out_of_the_cache(settings: ControlSettings, resctrl: Mounted, feeder: MakeFeeder) -> None:
    """Groups and masks that were left in force are not even written again; the end brings back what was before the first."""
    before = state(resctrl)
    feeds = feeder("web", VIOLATING_NS), feeder("store", CONTENT_NS)
    with Daemon(settings) as daemon:
        first = ways_of(daemon.started().tick(), "web")
        daemon.tick(lambda tick: ways_of(tick, "web") > first + 1)
        at_rest(daemon.tick, *feeds)
        assert daemon.stop(signal.SIGUSR1)["left_in_force"] is True
    in_force = state(resctrl)
    assert in_force != before
    done = len(written(resctrl))
    with Daemon(settings) as daemon:
        tick = daemon.started().tick()
        assert ways_of(tick, "web") == masks(resctrl)["parties-web"].bit_count()
        assert state(resctrl) == in_force
        assert written(resctrl)[done:] == []
        daemon.stop()
    assert state(resctrl) == before


def test_a_shadow_writes_nothing(settings: ControlSettings, resctrl: Mounted, feeder: MakeFeeder) -> None:
    """It decides on ways as if they moved, and even a leftover stays where it is."""
    (resctrl.path / "parties-ghost").mkdir()
    before, done = state(resctrl), len(written(resctrl))
    with Daemon(settings, flags=["--shadow"]) as daemon:
        daemon.started()
        feeder("web", VIOLATING_NS)
        feeder("store")
        first = ways_of(daemon.tick(), "web")
        daemon.tick(lambda tick: ways_of(tick, "web") > first + 1)
        daemon.stop()
    assert written(resctrl)[done:] == []
    assert state(resctrl) == before

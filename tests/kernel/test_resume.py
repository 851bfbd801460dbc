"""Restart and reload on real control groups: what stays in force is not even written again, and nothing is ever lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_kit import CONTENT_NS, TOUCHED, VIOLATING_NS, Daemon, Feeder, Site, at_rest, cores_of
from waiting import LIMIT_S
from write_watch import WriteWatch

from actuators.cgroup.v1 import ControlGroupV1
from actuators.registry import KINDS
from parties.in_force import IN_FORCE_NAME, read_in_force
from parties.model import BEST_EFFORT, PoolKey, Resource
from parties.restore import restore
from parties.resume import RESUME_NAME
from parties.settings import (
    MS,
    Amounts,
    ControlSettings,
    CoreSettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
    ServiceSettings,
)

pytestmark = pytest.mark.kernel

HOLD_200_MIB = "import time; held = bytearray(b'x') * (200 << 20); print('held', flush=True); time.sleep(600)"
MakeFeeder = Callable[..., Feeder]
Spawn = Callable[..., subprocess.Popen[bytes]]
CORES = PoolKey(Resource.CORES, 0)


def files_of(*groups: ControlGroupV1) -> list[Path]:
    """Every file that the daemon may write in these groups."""
    return [group.directory(controller) / name for group in groups for controller, names in TOUCHED.items() for name in names]


@pytest.fixture
def watch(site: Site) -> Iterator[WriteWatch]:
    with WriteWatch(files_of(*site.groups)) as watching:
        yield watching


def runtime(settings: ControlSettings) -> Path:
    return Path(settings.runtime_directory)


def left_by(settings: ControlSettings, feeder: MakeFeeder) -> dict[str, int]:
    """Run until the services hold amounts that are no fair shares, and leave them in force; the cores of each."""
    feeds = feeder("web", VIOLATING_NS), feeder("store", CONTENT_NS)
    with Daemon(settings) as daemon:
        daemon.started().tick(lambda tick: cores_of(tick, "web") >= 500)
        tick = at_rest(daemon.tick, *feeds)
        report = daemon.stop(signal.SIGUSR1)
    assert report["left_in_force"] is True
    assert (runtime(settings) / RESUME_NAME).exists()
    for feed in feeds:
        feed.close()
    held = read_in_force(runtime(settings) / IN_FORCE_NAME).partition.amounts[CORES]
    assert held["web"] == cores_of(tick, "web")
    return dict(held)


def test_a_restart_writes_nothing_and_goes_on_with_the_same_amounts(site: Site, feeder: MakeFeeder, watch: WriteWatch) -> None:
    """Not one file of any group is written by the second start; its end brings back what was before the first."""
    before = site.values()
    held = left_by(site.settings, feeder)
    in_force = site.values()
    assert in_force != before
    watch.written()
    with Daemon(site.settings) as daemon:
        tick = daemon.started().tick()
        assert {name: cores_of(tick, name) for name in ("web", "store", BEST_EFFORT)} == {
            name: held[name] for name in ("web", "store", BEST_EFFORT)
        }
        assert watch.written() == set()
        assert site.values() == in_force
        assert not (runtime(site.settings) / RESUME_NAME).exists()
        assert daemon.stop()["left_in_force"] is False
    assert site.values() == before
    assert not daemon.journal.exists()


def test_another_target_and_interval_are_taken_without_a_write(site: Site, feeder: MakeFeeder, watch: WriteWatch) -> None:
    """What changes only in the controller's head changes nothing in the kernel, and is in effect."""
    held = left_by(site.settings, feeder)
    web, store = site.settings.services
    settings = replace(site.settings, interval_ns=200 * MS, services=(replace(web, target_ns=77 * MS), store))
    watch.written()
    with Daemon(settings) as daemon:
        tick = daemon.started().tick()
        assert tick["services"]["web"]["target_ns"] == 77 * MS
        assert cores_of(tick, "web") == held["web"]
        assert watch.written() == set()
        daemon.stop()


def test_an_added_service_takes_from_idle_and_jobs_and_the_others_are_not_written(
    site: Site, feeder: MakeFeeder, cgroup_factory: Callable[[str], ControlGroupV1], spawn: Spawn, watch: WriteWatch
) -> None:
    """The newcomer gets its floor; services that were there before hold what they held, and no file of theirs is written."""
    before = site.values()
    held = left_by(site.settings, feeder)
    cache = cgroup_factory("cache")
    spawn(cache, "sleep", "600")
    new = ServiceSettings("cache", 10 * MS, (cache.path,))
    watch.written()
    with Daemon(replace(site.settings, services=(*site.settings.services, new))) as daemon:
        tick = daemon.started().tick()
        assert cores_of(tick, "cache") == 100
        assert {name: cores_of(tick, name) for name in ("web", "store")} == {name: held[name] for name in ("web", "store")}
        assert watch.written() <= set(files_of(site.job))
        daemon.stop()
    assert site.values() == before


def test_a_removed_service_is_put_back_and_the_others_are_not_written(site: Site, feeder: MakeFeeder, watch: WriteWatch) -> None:
    """What it held goes to the jobs, its values are as before the first start at once, the other service keeps its own."""
    before = site.values()
    held = left_by(site.settings, feeder)
    own = {str(file) for file in files_of(site.store)}
    watch.written()
    with Daemon(replace(site.settings, services=site.settings.services[:1])) as daemon:
        tick = daemon.started().tick()
        assert cores_of(tick, "web") == held["web"]
        assert cores_of(tick, BEST_EFFORT) == held[BEST_EFFORT] + held["store"]
        assert watch.written().isdisjoint(files_of(site.web))
        assert {name: value for name, value in site.values().items() if name in own} == {
            name: value for name, value in before.items() if name in own
        }
        assert site.store.path not in daemon.journal.read_text()
        daemon.stop()
    assert site.values() == before


def test_a_resource_that_is_not_managed_any_more_is_put_back(site: Site, feeder: MakeFeeder) -> None:
    """Memory leaves the configuration: its limits are as before while cores stay in force."""
    before = site.values()
    held = left_by(site.settings, feeder)
    with Daemon(replace(site.settings, node=NodeSettings(cores=site.settings.node.cores))) as daemon:
        tick = daemon.started().tick()
        assert cores_of(tick, "web") == held["web"]
        limits = {name: value for name, value in site.values().items() if "memory." in name}
        assert limits == {name: value for name, value in before.items() if "memory." in name}
        daemon.stop()
    assert site.values() == before


@pytest.mark.parametrize(("policy", "names"), [("unmanaged", set()), ("idle-only", {"cpu.idle", "cpu.shares"})])
def test_a_policy_that_partitions_nothing_leaves_nothing_in_force(
    site: Site, feeder: MakeFeeder, policy: str, names: set[str]
) -> None:
    """Going on with it brings back every limit at once, but for what it wants itself."""
    before = site.values()
    left_by(site.settings, feeder)
    with Daemon(replace(site.settings, policy=policy)) as daemon:
        daemon.started().tick()
        changed = {Path(name).name for name, value in site.values().items() if value != before[name]}
        assert changed <= names
        daemon.stop()
    assert site.values() == before


def test_a_pool_with_other_steps_starts_afresh(site: Site, feeder: MakeFeeder) -> None:
    """Amounts that are no steps any more cannot be gone on with: a fair split of that pool, straight from what was in force."""
    left_by(site.settings, feeder)
    cores = site.settings.node.cores
    assert isinstance(cores, CoreSettings)
    node = replace(site.settings.node, cores=replace(cores, step_millicores=250, floor_millicores=250))
    with Daemon(replace(site.settings, node=node)) as daemon:
        tick = daemon.started().tick()
        assert sorted(cores_of(tick, name) for name in ("web", "store", BEST_EFFORT)) == [250, 250, 500]
        daemon.stop()


def test_what_was_left_for_nobody_is_put_back_by_a_restore(site: Site, feeder: MakeFeeder) -> None:
    """Values that were left on purpose are in the journal like any others."""
    before = site.values()
    left_by(site.settings, feeder)
    assert restore(Path(site.settings.state_directory) / "journal.jsonl", KINDS).complete
    assert site.values() == before


def test_what_cannot_be_left_is_put_back(site: Site) -> None:
    """The mark cannot be written: the operator is told, and the end is an ordinary one."""
    before = site.values()
    with Daemon(site.settings) as daemon:
        daemon.started().tick()
        (runtime(site.settings) / f"{RESUME_NAME}.new").mkdir()
        daemon.process.send_signal(signal.SIGUSR1)
        assert "nothing can be left in force, everything is put back" in daemon.event("Is a directory")
        report = daemon.until(lambda message: message["type"] == "stopped")["report"]
        assert report["left_in_force"] is False
        assert daemon.process.wait(timeout=LIMIT_S) == 0
    assert site.values() == before
    assert not daemon.journal.exists()


@pytest.mark.parametrize("damage", ["{", '{"version":99}'])
def test_a_damaged_mark_means_a_fresh_start(site: Site, feeder: MakeFeeder, damage: str) -> None:
    """What cannot be gone on with is put back first, with a word of why."""
    left_by(site.settings, feeder)
    (runtime(site.settings) / RESUME_NAME).write_text(damage)
    with Daemon(site.settings) as daemon:
        daemon.event("cannot be gone on with")
        daemon.event("values put back")
        tick = daemon.started().tick()
        assert max(cores_of(tick, name) for name in ("web", "store", BEST_EFFORT)) <= 350
        daemon.stop()


def test_a_mistake_hands_back_what_was_left_only_where_another_start_follows(site: Site, feeder: MakeFeeder) -> None:
    """With --hand-back the next start goes on from there; without it everything is as before."""
    before = site.values()
    left_by(site.settings, feeder)
    in_force = site.values()
    wrong = replace(site.settings, services=(*site.settings.services, ServiceSettings("ghost", 1, ("/parties-test-no-such",))))
    with Daemon(wrong, flags=["--hand-back"]) as daemon:
        assert daemon.process.wait(timeout=LIMIT_S) == 2
    assert site.values() == in_force
    assert (runtime(site.settings) / RESUME_NAME).exists()
    with Daemon(wrong) as daemon:
        assert daemon.process.wait(timeout=LIMIT_S) == 2
    assert site.values() == before
    assert not (runtime(site.settings) / RESUME_NAME).exists()


def test_limits_that_no_policy_can_keep_hand_back_too(site: Site, feeder: MakeFeeder) -> None:
    """A mistake that only the policy finds, after the machine was looked at, is handed back as well."""
    left_by(site.settings, feeder)
    in_force = site.values()
    web, store = site.settings.services
    greedy = replace(site.settings, services=(replace(web, minimum=Amounts(cores_millicores=5000)), store))
    with Daemon(greedy, flags=["--hand-back"]) as daemon:
        assert daemon.process.wait(timeout=LIMIT_S) == 2
    assert site.values() == in_force
    with Daemon(site.settings) as daemon:
        daemon.started().stop()


def test_sigkill_in_the_middle_of_a_reload_leaves_a_journal_that_brings_back_everything(
    site: Site, feeder: MakeFeeder, tmp_path: Path
) -> None:
    """At 12 seeded moments of leaving and of going on with a service less: after restore every value is as before."""
    rng = random.Random(11)  # noqa: S311 - the moments have to repeat
    before = site.values()
    for number in range(12):
        settings = replace(site.settings, interval_ns=50 * MS, state_directory=str(tmp_path / f"state{number}"))
        feed = feeder("web", VIOLATING_NS)
        with Daemon(settings) as daemon:
            daemon.started().tick(lambda tick: bool(tick["moves"]))
            daemon.process.send_signal(signal.SIGUSR1)
            if number % 3 == 0:
                time.sleep(rng.uniform(0, 0.1))
                daemon.process.kill()
            daemon.process.wait(timeout=LIMIT_S)
        assert site.values() != before
        if number % 3:
            with Daemon(replace(settings, services=settings.services[:1])) as second:
                time.sleep(rng.uniform(0.1, 0.6))
                second.process.kill()
                second.process.wait()
        feed.close()
        report = restore(daemon.journal, KINDS)
        (runtime(settings) / RESUME_NAME).unlink(missing_ok=True)
        assert report.complete, report
        assert site.values() == before, f"after {report}"


@pytest.fixture
def device() -> Iterator[tuple[str, str]]:
    """A network namespace of the test's own with a device to shape: their names."""
    namespace = f"presume-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        subprocess.run(["ip", "-n", namespace, "link", "add", "shaped", "type", "veth", "peer", "name", "other"], check=True)
        subprocess.run(["ip", "-n", namespace, "link", "set", "shaped", "up"], check=True)
        yield namespace, "shaped"
    finally:
        subprocess.run(["ip", "netns", "del", namespace], check=True)


def classes(namespace: str, name: str) -> list[str]:
    """The traffic classes with their rates, without counters."""
    shown = subprocess.run(["tc", "-n", namespace, "class", "show", "dev", name], check=True, capture_output=True, text=True).stdout
    return sorted(shown.splitlines())


def test_traffic_classes_stay_unless_the_services_change(site: Site, device: tuple[str, str]) -> None:
    """The same services go on with the classes as they are; with one less only its own goes, and the others hold what they held."""
    before = classes(*device)
    network = NetworkSettings(device[1], 10**9, device[0], 10**8)
    web, store = (replace(service, ports=(8000 + n,)) for n, service in enumerate(site.settings.services))
    settings = replace(site.settings, services=(web, store), node=replace(site.settings.node, network=network))
    with Daemon(settings) as daemon:
        held = daemon.started().tick(
            lambda tick: "network_bits_per_s" in tick["services"]["web"]["usage"] and not tick["moves"]
        )  # each got its headroom, as far as there is any
        assert daemon.stop(signal.SIGUSR1)["left_in_force"] is True
    made = classes(*device)
    assert len(made) > len(before)
    with Daemon(settings) as daemon:
        tick = daemon.started().tick()
        assert tick["services"]["store"]["amounts"]["network"] == held["services"]["store"]["amounts"]["network"]
        assert classes(*device) == made
        daemon.stop(signal.SIGUSR1)
    with Daemon(replace(settings, services=(store,))) as daemon:
        tick = daemon.started().tick()
        assert tick["services"]["store"]["amounts"]["network"] == held["services"]["store"]["amounts"]["network"]
        assert len(classes(*device)) == len(made) - 1
        daemon.stop()
    assert classes(*device) == before


def test_a_start_that_fails_after_it_went_on_puts_everything_back(site: Site, feeder: MakeFeeder, spawn: Spawn) -> None:
    """A first value that the kernel refuses (EBUSY) is no mistake to hand back: what was begun is undone, to the very beginning."""
    before = site.values()
    left_by(site.settings, feeder)
    process = spawn(site.job, sys.executable, "-c", HOLD_200_MIB)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    node = replace(site.settings.node, memory=MemorySettings(192 << 20, 64 << 20))
    with Daemon(replace(site.settings, node=node), flags=["--hand-back"]) as daemon:
        _, message = daemon.process.communicate(timeout=LIMIT_S)
        assert daemon.process.returncode == 1, message
    assert "Device or resource busy" in message
    assert site.values() == before
    assert not (runtime(site.settings) / RESUME_NAME).exists()

"""Beside a real daemon: verify, who is named as a foreign writer, and what its exit policy leaves behind."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from daemon_kit import CONTENT_NS, Daemon, Feeder, Site
from waiting import children, until

from actuators.cgroup.group import Controller
from parties.cli import main
from parties.settings import ExitPolicy, ExitSettings, ForeignAction, ForeignSettings

pytestmark = pytest.mark.kernel

MakeFeeder = Callable[..., Feeder]


def call(site: Site, command: str, *words: str) -> Result:
    """A subcommand on the daemon's directories."""
    directories = ["--state-directory", site.settings.state_directory, "--runtime-directory", site.settings.runtime_directory]
    return CliRunner().invoke(main, [command, *directories, *words])


def verdicts(site: Site) -> tuple[int, dict[str, int]]:
    result = call(site, "verify", "--json")
    told: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, {verdict: count for verdict, count in told["counts"].items() if count}


def test_verify_beside_a_daemon_and_after_it(site: Site, feeder: MakeFeeder) -> None:
    """All in force, then one that differs; killed: what is left over, by number; restored: nothing."""
    before = site.values()
    feeder("web", CONTENT_NS)
    with Daemon(site.settings) as daemon:
        daemon.started().tick()
        code, counts = verdicts(site)
        assert (code, list(counts)) == (0, ["in-force"])
        (site.web.directory(Controller.CPU) / "cpu.cfs_quota_us").write_text("7777")
        code, after = verdicts(site)
        daemon.process.kill()
        daemon.process.wait()
    assert (code, after) in ((1, {"in-force": counts["in-force"] - 1, "differs": 1}), (0, counts))  # it mends it after a second
    code, counts = verdicts(site)
    assert code == 1
    assert counts["left-over"] >= 3
    assert "put back" in call(site, "restore", "--at-exit").output
    assert verdicts(site) == (0, {})
    assert site.values() == before


def watches(pid: int, directory: Path) -> bool:
    """Whether a process is told by fanotify(7) of writes in a directory."""
    mark = f"fanotify ino:{directory.stat().st_ino:x} "
    try:
        return any(mark in file.read_text() for file in Path(f"/proc/{pid}/fdinfo").iterdir())
    except OSError:  # a descriptor was closed meanwhile
        return False


def test_the_writer_is_named(site: Site, feeder: MakeFeeder) -> None:
    """A shell that changes a value is named with its number, although it has long ended when the daemon notices."""
    feeder("web", CONTENT_NS)
    quota = site.web.directory(Controller.CPU) / "cpu.cfs_quota_us"
    with Daemon(site.settings) as daemon:
        daemon.started().tick()
        until(lambda: any(watches(helper, quota.parent) for helper in children(daemon.process.pid)), "nobody watches")
        shell = subprocess.Popen(["sh", "-c", f"echo 7777 > {quota}"])
        shell.wait()
        named = daemon.event("written by")
        assert named.startswith("cgroup1.cpu-bandwidth:")
        assert f"process {shell.pid}" in named
        daemon.stop()


def test_yielding_at_once_in_the_configuration(site: Site, feeder: MakeFeeder) -> None:
    """The operator is told whose moves are refused from now on; the value stays, also at the end."""
    feeder("web", CONTENT_NS)
    quota = site.web.directory(Controller.CPU) / "cpu.cfs_quota_us"
    settings = replace(site.settings, foreign=ForeignSettings(action=ForeignAction.YIELD))
    with Daemon(settings) as daemon:
        daemon.started().tick()
        quota.write_text("7777")
        assert "moves of cores that need it are refused" in daemon.event("left to them from now on")
        assert verdicts(site)[1]["yielded"] == 1
        daemon.stop()
    assert quota.read_text().strip() == "7777"


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_exit_policy_of_a_daemon(site: Site, feeder: MakeFeeder, ending: str) -> None:
    """Stopped in order or killed: memory is held, cores are made safe, the rest is back; a restore by hand undoes that too."""
    before = site.values()
    feeder("web", CONTENT_NS)
    settings = replace(site.settings, exit=ExitSettings(memory=ExitPolicy.HOLD, cores=ExitPolicy.SAFE))
    with Daemon(settings) as daemon:
        daemon.started().tick()
        during = site.values()
        if ending == "stop":
            daemon.stop()
        else:
            daemon.process.kill()
            daemon.process.wait()
            assert call(site, "restore", "--at-exit").exit_code == 0
    after = site.values()
    memory = {path for path in before if "memory" in path}
    quotas = {path for path in before if path.endswith("cpu.cfs_quota_us")}
    assert (
        {path: after[path] for path in memory} == {path: during[path] for path in memory} != {path: before[path] for path in memory}
    )
    assert {after[path].strip() for path in quotas} == {"-1"}
    code, counts = verdicts(site)
    assert (code, set(counts) - {"undone"}) == (0, {"held", "safe"})
    assert call(site, "restore").exit_code == 0
    assert site.values() == before


def test_the_next_start_goes_on_with_what_it_manages_and_puts_back_the_rest(site: Site, feeder: MakeFeeder) -> None:
    """Held memory: a run that manages memory takes it over, one that does not puts it back; in the end all is as before."""
    before = site.values()
    feeder("web", CONTENT_NS)
    held = replace(site.settings, exit=ExitSettings(memory=ExitPolicy.HOLD))
    with Daemon(held) as daemon:
        daemon.started().tick()
        daemon.stop()
    with Daemon(held) as daemon:
        assert daemon.event("values are as the exit policy of an earlier run left them")
        daemon.started().tick()
        daemon.stop()
    after = site.values()
    assert {path for path in before if after[path] != before[path]} == {path for path in before if "memory" in path}
    without_memory = replace(site.settings, node=replace(site.settings.node, memory=None))
    with Daemon(without_memory) as daemon:
        assert daemon.event("values put back that are not managed any more")
        daemon.started().tick()
        during = site.values()
        daemon.stop()
    assert {path: during[path] for path in before if "memory" in path} == {
        path: before[path] for path in before if "memory" in path
    }
    assert site.values() == before

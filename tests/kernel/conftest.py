"""Control groups and processes of the tests' own, on this machine's kernel; nothing of them is left afterwards."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_kit import Feeder, Site, settings_for
from waiting import remove_group

from actuators.cgroup.group import Controller
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1

SHARES = 20 * 1024
_numbers = itertools.count()
_NOT_ENTERED = 99
_JOIN = f'while [ "$1" != -- ]; do echo $$ > "$1" || exit {_NOT_ENTERED}; shift; done; shift; exec "$@"'


@pytest.fixture(scope="session")
def layer() -> GroupLayerV1:
    """This machine's v1 hierarchies; skips without root or without one of them."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make control groups")
    layer = GroupLayerV1(Hierarchies.find())
    if reason := layer.lacks(Controller):
        pytest.skip(reason)
    return layer


@pytest.fixture
def cgroup_factory(layer: GroupLayerV1) -> Iterator[Callable[[str], ControlGroupV1]]:
    """Makes groups, in every v1 hierarchy, below one of a name that nobody else has; cpuset is set up as in the parent.

    ``cgroup_factory("web")`` gives /parties-test-PID-N/web. At the end what runs in them is killed and they are removed. They
    have together more CPU shares than what else runs on the machine, so that its load does not decide a test.
    """
    base = f"parties-test-{os.getpid()}-{next(_numbers)}"
    mounts = [layer.hierarchies.mount_point(controller.value) for controller in Controller]

    def make(name: str = "") -> ControlGroupV1:
        for mount in mounts:
            place = mount / base
            for part in ("", *name.split("/")):
                place = place / part if part else place
                if not place.is_dir():
                    place.mkdir()
                    _set_up_cpuset(place)
        return layer.group(f"{base}/{name}")

    try:
        make("")
        (layer.hierarchies.mount_point("cpu") / base / "cpu.shares").write_text(str(SHARES))
        yield make
    finally:
        _remove_all([mount / base for mount in mounts])


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a program in a group: ``spawn(group, "dd", ...)``. It is in every hierarchy before its first instruction.

    Short programs may have ended by the time that they are handed out.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(group: ControlGroupV1, *command: str) -> subprocess.Popen[bytes]:
        files = [str(group.directory(controller) / "cgroup.procs") for controller in Controller]
        process = subprocess.Popen(["sh", "-c", _JOIN, "sh", *files, "--", *command], stdout=subprocess.PIPE)
        started.append(process)
        while str(process.pid) not in Path(files[-1]).read_text().split() and process.poll() is None:
            time.sleep(0.001)
        assert process.returncode != _NOT_ENTERED, f"could not enter {group.path}"
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):  # frozen: it dies when its group is thawed
                process.communicate(timeout=1)


@pytest.fixture
def burner(spawn: Callable[..., subprocess.Popen[bytes]]) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts a process that takes all the CPU time it gets: ``burner(group)``, ``burner(group, 2)`` with that many processes."""

    def start(group: ControlGroupV1, processes: int = 1) -> subprocess.Popen[bytes]:
        for _ in range(processes - 1):
            spawn(group, sys.executable, "-S", "-c", "while True: pass")
        return spawn(group, sys.executable, "-S", "-c", "while True: pass")

    return start


def _set_up_cpuset(place: Path) -> None:
    for name in ("cpuset.mems", "cpuset.cpus"):
        if (place / name).exists():
            (place / name).write_text((place.parent / name).read_text())


def _remove_all(bases: list[Path]) -> None:
    """Thaw, kill what is left by pid, and remove the groups, the lowest first."""
    directories = [directory for base in bases for directory in sorted(base.glob("**/"), reverse=True) if base.is_dir()]
    for directory in directories:
        if (directory / "freezer.state").exists():
            (directory / "freezer.state").write_text("THAWED")
        for pid in (directory / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    for directory in directories:
        remove_group(directory)


@pytest.fixture
def site(cgroup_factory: Callable[[str], ControlGroupV1], spawn: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> Site:
    web, store, job = (cgroup_factory(name) for name in ("web", "store", "job"))
    processes = {name: spawn(group, "sleep", "600") for name, group in (("web", web), ("store", store), ("job", job))}
    # Not the kernel's defaults, so that what was put back cannot be mistaken for what was reset.
    (job.directory(Controller.CPU) / "cpu.shares").write_text("517")
    (web.directory(Controller.MEMORY) / "memory.limit_in_bytes").write_text(str(5 << 30))
    (store.directory(Controller.CPU) / "cpu.cfs_period_us").write_text("50000")
    (store.directory(Controller.CPU) / "cpu.cfs_quota_us").write_text("45000")
    return Site(web, store, job, settings_for({"web": web, "store": store}, job, tmp_path), processes)


@pytest.fixture
def feeder(site: Site) -> Iterator[Callable[..., Feeder]]:
    """Begins to report for a service: ``feeder("web")``, ``feeder("web", latency_ns)``."""
    made: list[Feeder] = []

    def make(*arguments: object) -> Feeder:
        made.append(Feeder(Path(site.settings.runtime_directory) / "histogram.sock", *arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()

"""What this machine's v2 tree can do without controllers: freezing, processes, CPU time, pressure; refusals of the rest."""

import contextlib
import errno
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import remove_group, until

from actuators.cgroup.group import ENABLED, Controller
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.layer import find_layer
from actuators.cgroup.v1 import GroupLayerV1
from actuators.cgroup.v2 import ControlGroupV2, GroupLayerV2
from actuators.registry import KINDS
from monitors.pressure import PressureMonitor, read_pressure
from monitors.usage import GroupUsageMonitor
from parties.knob import KnobError

pytestmark = pytest.mark.kernel

BURN = "while True: pass"
_numbers = itertools.count()
Spawn = Callable[..., subprocess.Popen[bytes]]
Make = Callable[[str], ControlGroupV2]


@pytest.fixture(scope="module")
def tree() -> GroupLayerV2:
    """This machine's v2 tree."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make control groups")
    hierarchies = Hierarchies.find()
    if hierarchies.v2 is None:
        pytest.skip("no v2 tree is mounted")
    return GroupLayerV2(hierarchies)


@pytest.fixture
def make(tree: GroupLayerV2) -> Iterator[Make]:
    """Makes groups below one of a name that nobody else has; what runs in them is killed and they are removed."""
    assert tree.hierarchies.v2 is not None
    base = tree.hierarchies.v2 / f"parties-test2-{os.getpid()}-{next(_numbers)}"

    def group(name: str) -> ControlGroupV2:
        (base / name).mkdir(parents=True, exist_ok=True)
        return tree.group(f"{base.name}/{name}")

    group("")
    try:
        yield group
    finally:
        (base / "cgroup.kill").write_text("1")
        for place in (*sorted((path for path in base.rglob("*") if path.is_dir()), reverse=True), base):
            remove_group(place)


@pytest.fixture
def start() -> Iterator[Spawn]:
    """Starts a Python program in a group."""
    started = []

    def run(group: ControlGroupV2, code: str, cpu: str = "") -> subprocess.Popen[bytes]:
        join = (
            f'echo $$ > {group.directory(Controller.CPU)}/cgroup.procs || exit 99; exec {"taskset -c " + cpu if cpu else ""} "$@"'
        )
        process = subprocess.Popen(["sh", "-c", join, "sh", sys.executable, "-S", "-c", code])
        started.append(process)
        until(lambda: process.pid in group.pids())
        return process

    yield run
    for process in started:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # frozen: it dies with its group
            process.wait(timeout=1)


def test_frozen_is_stopped_and_thawed_goes_on(make: Make, start: Spawn) -> None:
    """CPU time, counted without any controller, stands still, also in a group below; the kind found again thaws it."""
    above, group = make("a"), make("a/b")
    start(group, BURN)
    until(lambda: (above.cpu_usage_ns() or 0) > 0)
    above.freezer.write("FROZEN")
    until(lambda: "frozen 1" in (group.directory(Controller.FREEZER) / "cgroup.events").read_text())
    stopped = above.cpu_usage_ns()
    time.sleep(0.2)
    assert above.cpu_usage_ns() == stopped
    with pytest.raises(KnobError, match=r"cannot set 'THAWED': .*/a above it is frozen"):
        group.freezer.write("THAWED")
    KINDS[above.freezer.ref.kind].make(above.freezer.ref.address).restore("THAWED")
    until(lambda: (above.cpu_usage_ns() or 0) > (stopped or 0))


def test_processes_below_a_group_are_its_own_and_the_group_can_vanish(make: Make, start: Spawn) -> None:
    """As they come and go, in a group below a domain and below a threaded one; of a group that is gone there are none."""
    group, inner = make("a"), make("a/inner")
    process = start(inner, "import time; time.sleep(600)")
    assert group.pids() == (process.pid,)
    threaded = make("a/inner/threaded")
    (threaded.directory(Controller.CPU) / "cgroup.type").write_text("threaded")
    with pytest.raises(OSError, match="Operation not supported"):
        (threaded.directory(Controller.CPU) / "cgroup.procs").read_text()
    assert group.pids() == (process.pid,)
    process.kill()
    process.wait()
    until(lambda: group.pids() == ())
    gone = make("b")
    assert gone.cpu_usage_ns() == 0
    gone.directory(Controller.CPU).rmdir()
    assert gone.pids() == ()
    with pytest.raises(KnobError) as caught:
        gone.cpu_usage_ns()
    assert caught.value.errno == errno.ENODEV


def test_without_controllers_every_other_knob_is_unset_and_refuses(tree: GroupLayerV2, make: Make) -> None:
    """They are bound to v1 here: the message says so, and none of it looks like a group that vanished."""
    group = make("a")
    if not tree.lacks([Controller.MEMORY]):
        pytest.skip("this machine has the memory controller in v2; the guest's checks are the fuller ones")
    assert "held by a v1 hierarchy?" in tree.lacks([Controller.MEMORY])
    assert (group.memory_limit.read(), group.cpus.read(), group.cpu_bandwidth.read()) == (None, "inherited", None)
    assert (group.memory_bytes(), group.disk_bytes("8:0")) == (None, None)
    with pytest.raises(KnobError, match="the memory controller is not enabled in this group") as caught:
        group.memory_limit.write("4096000")
    assert caught.value.errno == errno.EOPNOTSUPP
    above = next(knob for knob in group.enabling([Controller.MEMORY]) if "parties-test2" in knob.ref.address[0])
    with pytest.raises(KnobError, match="has no such controller itself") as caught:
        above.write(ENABLED)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_this_machine_s_layer_is_of_the_version_that_has_the_controllers() -> None:
    """With every controller in v1 it is v1, whatever else is mounted."""
    hierarchies = Hierarchies.find()
    if not all(need.value in hierarchies.v1 for need in Controller):
        pytest.skip("this machine has not every controller in v1")
    assert isinstance(find_layer(hierarchies), GroupLayerV1)


def test_waiting_for_a_cpu_is_seen_in_use(tree: GroupLayerV2, make: Make, start: Spawn) -> None:
    """Two processes on one CPU wait for it; the usage monitor tells, and what has no process tells nothing."""
    crowd, empty = make("crowd"), make("empty")
    if not read_pressure(crowd.directory(Controller.CPU)):
        pytest.skip("this kernel keeps no pressure stall information")
    managed = {"crowd": (crowd.path,), "empty": (empty.path,)}
    monitor = GroupUsageMonitor(tree, managed, pressure=PressureMonitor(tree.hierarchies.v2, managed))
    for _ in range(2):
        start(crowd, BURN, cpu="0")
    first = monitor.sample(time.monotonic_ns())
    assert first["crowd"].cpu_pressure is None
    time.sleep(1)
    usage = monitor.sample(time.monotonic_ns())
    monitor.close()
    assert usage["crowd"].cpu_pressure is not None
    assert usage["crowd"].cpu_pressure > 0.2
    assert usage["crowd"].cpu_millicores is not None
    assert usage["crowd"].cpu_millicores > 0
    assert usage["empty"].cpu_pressure is None
    pressure = read_pressure(Path(crowd.directory(Controller.CPU)))
    assert pressure["cpu"].some.total_ns > 0
    assert set(pressure) == {"cpu", "memory", "io"}

"""Disk throttles, enforced by this machine's kernel on a loop device of the test's own."""

import itertools
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import LIMIT_S, ahead_of_others, until

from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1
from actuators.disk import TRICKLE_BYTES_PER_S, DiskActuator, find_disk, measure_rate
from parties.model import BEST_EFFORT, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import DiskSettings

pytestmark = pytest.mark.kernel

Factory = Callable[[str], ControlGroupV1]
Spawn = Callable[..., subprocess.Popen[bytes]]
KEY = PoolKey(Resource.DISK)
MB = 1_000_000
BLOCK_BYTES = 1 << 20
_C = {**os.environ, "LC_ALL": "C"}


@pytest.fixture
def loop_device(layer: GroupLayerV1, tmp_path: Path) -> Iterator[str]:
    """A block device over a file of 64 MiB."""
    if shutil.which("losetup") is None:
        pytest.skip("needs losetup (Debian package mount)")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(
        ["losetup", "--find", "--show", "--direct-io=on", str(image)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    yield device
    subprocess.run(["losetup", "--detach", device], check=True)


def placement(**amounts: int) -> Placement:
    """Disk bandwidth by holder, ``best_effort`` by keyword."""
    return Placement(Partition({KEY: {BEST_EFFORT if name == "best_effort" else name: n for name, n in amounts.items()}}), {}, {})


def put_in_force(actuator: DiskActuator, wanted: Placement, before: Placement | None) -> None:
    """Write and read back."""
    for write in sorted(actuator.writes(wanted, before), key=lambda write: write.effect):
        write.knob.write(write.value)
        assert write.knob.same(write.value, write.knob.read())


def reader(spawn: Spawn, group: ControlGroupV1, device: str, megabytes: int) -> subprocess.Popen[bytes]:
    """A reader in the group, past the page cache."""
    return spawn(group, "dd", f"if={device}", "of=/dev/null", "bs=500k", f"count={2 * megabytes}", "iflag=direct", "status=none")


def test_throttles_hold_and_change_while_running(
    layer: GroupLayerV1, cgroup_factory: Factory, spawn: Spawn, loop_device: str
) -> None:
    """Of two readers the one with 5 MB/s gets no more than that, the other a multiple; at 40 MB/s it feels the change at work."""
    group, other = cgroup_factory("a"), cgroup_factory("b")
    actuator = DiskActuator(
        layer,
        {"a": (group.path,), "b": (other.path,)},
        DiskSettings(loop_device, rate_bytes_per_s=80 * MB, step_bytes_per_s=5 * MB),
    )
    slow, fast = placement(a=5 * MB, b=75 * MB), placement(a=40 * MB, b=40 * MB)
    put_in_force(actuator, slow, None)
    assert actuator.read_back() == {KEY: {"a": 5 * MB, "b": 75 * MB}}
    begin = time.monotonic()
    process = reader(spawn, group, loop_device, 60)
    assert reader(spawn, other, loop_device, 40).wait(LIMIT_S) == 0
    other_rate = 40 * MB / (time.monotonic() - begin)
    until(lambda: (group.disk_bytes(actuator.disk.number) or 0) >= 5 * MB)
    done = group.disk_bytes(actuator.disk.number) or 0
    slow_rate = done / (time.monotonic() - begin)
    assert slow_rate < 8 * MB
    assert other_rate > 2 * slow_rate
    put_in_force(actuator, fast, slow)
    assert actuator.read_back() == {KEY: {"a": 40 * MB, "b": 40 * MB}}
    begin = time.monotonic()
    assert process.wait(LIMIT_S) == 0
    left = (group.disk_bytes(actuator.disk.number) or 0) - done
    assert left > 30 * MB
    assert left / (time.monotonic() - begin) > 10 * MB


def test_writes_are_throttled_too(layer: GroupLayerV1, cgroup_factory: Factory, spawn: Spawn, loop_device: str) -> None:
    """8 MB written past the page cache at 5 MB/s."""
    group = cgroup_factory("a")
    actuator = DiskActuator(
        layer, {"a": (group.path,)}, DiskSettings(loop_device, rate_bytes_per_s=50 * MB, step_bytes_per_s=5 * MB)
    )
    put_in_force(actuator, placement(a=5 * MB, idle=45 * MB), None)
    begin = time.monotonic()
    process = spawn(group, "dd", "if=/dev/zero", f"of={loop_device}", "bs=524288", "count=16", "oflag=direct", "status=none")
    assert process.wait(LIMIT_S) == 0
    assert 8 * MB / (time.monotonic() - begin) < 8 * MB


def test_best_effort_at_zero_trickles_and_reads_back_as_zero(
    layer: GroupLayerV1, cgroup_factory: Factory, loop_device: str
) -> None:
    """The kernel takes 0 for no limit; a pool without disk bandwidth must not be the one without a throttle."""
    group, job = cgroup_factory("a"), cgroup_factory("be")
    managed = {"a": (group.path,), BEST_EFFORT: (job.path,)}
    actuator = DiskActuator(layer, managed, DiskSettings(loop_device, rate_bytes_per_s=50 * MB))
    (pool,) = actuator.pools()
    assert (pool.total, pool.step, pool.floor) == (50 * MB, 2_500_000, 2_500_000)
    put_in_force(actuator, placement(a=50 * MB, best_effort=0), None)
    assert actuator.read_back() == {KEY: {"a": 50 * MB, BEST_EFFORT: 0}}
    assert {write.value for write in actuator.writes(placement(a=50 * MB, best_effort=0), None) if write.holder == BEST_EFFORT} == {
        str(TRICKLE_BYTES_PER_S)
    }


def test_a_rate_is_measured_by_reading(loop_device: str, tmp_path: Path) -> None:
    """The figure is mostly what a plain reader gets, within a factor of four, and nothing is written."""
    content = (tmp_path / "image").read_bytes()
    ratios = []
    with ahead_of_others():
        for _ in range(5):
            rate = measure_rate(Path(loop_device), 100_000_000)
            ratios.append(rate / plain_rate(loop_device))
    assert 0.25 < statistics.median(ratios) < 4
    assert (tmp_path / "image").read_bytes() == content


def plain_rate(device: str) -> float:
    """Bytes/s as dd has them."""
    dd = subprocess.run(["dd", f"if={device}", "of=/dev/null", "bs=1M", "iflag=direct"], capture_output=True, check=True, env=_C)
    return (64 << 20) / float(dd.stderr.decode().split(" s, ")[0].rsplit(", ", 1)[1])


def test_a_rate_is_measured_for_no_longer_than_asked(loop_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on by a millisecond whenever it is looked at: so many reads, and the device begins anew at its end."""
    clock = itertools.count(0, 1_000_000)
    monkeypatch.setattr("time.monotonic_ns", lambda: next(clock))
    assert measure_rate(Path(loop_device), 100_000_000) == BLOCK_BYTES * 1000
    assert next(clock) == 101 * 1_000_000


def test_a_disk_is_found_by_node_and_by_number(loop_device: str) -> None:
    """/dev/loopN and MAJ:MIN are the same disk."""
    number = find_disk(loop_device).number
    status = Path(loop_device).stat()
    assert number == f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    assert find_disk(number).node == Path(loop_device)

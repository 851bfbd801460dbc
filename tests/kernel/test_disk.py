"""Disk throttles, enforced by this machine's kernel on a loop device of the test's own."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


def seconds_to_read(spawn: Spawn, group: ControlGroupV1, device: str, megabytes: int) -> float:
    """How long a reader in the group takes, past the page cache."""
    begin = time.monotonic()
    process = spawn(
        group, "dd", f"if={device}", "of=/dev/null", "bs=512000", f"count={2 * megabytes}", "iflag=direct", "status=none"
    )
    assert process.wait(60) == 0
    return time.monotonic() - begin


def test_throttles_hold_and_change_while_running(
    layer: GroupLayerV1, cgroup_factory: Factory, spawn: Spawn, loop_device: str
) -> None:
    """10 MB at 5 MB/s take about two seconds, at 40 MB/s about a quarter; a reader already at work feels the change."""
    group, other = cgroup_factory("a"), cgroup_factory("b")
    actuator = DiskActuator(
        layer,
        {"a": (group.path,), "b": (other.path,)},
        DiskSettings(loop_device, rate_bytes_per_s=80 * MB, step_bytes_per_s=5 * MB),
    )
    slow, fast = placement(a=5 * MB, b=75 * MB), placement(a=40 * MB, b=40 * MB)
    put_in_force(actuator, slow, None)
    assert actuator.read_back() == {KEY: {"a": 5 * MB, "b": 75 * MB}}
    slow_s, other_s = seconds_to_read(spawn, group, loop_device, 8), seconds_to_read(spawn, other, loop_device, 8)
    assert 1 < slow_s < 3
    assert slow_s > 3 * other_s
    begin = time.monotonic()
    process = spawn(group, "dd", f"if={loop_device}", "of=/dev/null", "bs=512000", "count=40", "iflag=direct", "status=none")
    time.sleep(0.5)
    put_in_force(actuator, fast, slow)
    assert actuator.read_back() == {KEY: {"a": 40 * MB, "b": 40 * MB}}
    assert process.wait(60) == 0
    assert time.monotonic() - begin < 3  # 20 MB: 4 s without the change
    assert (group.disk_bytes(actuator.disk.number) or 0) >= 28 * MB


def test_writes_are_throttled_too(layer: GroupLayerV1, cgroup_factory: Factory, spawn: Spawn, loop_device: str) -> None:
    """8 MB written past the page cache at 5 MB/s."""
    group = cgroup_factory("a")
    actuator = DiskActuator(
        layer, {"a": (group.path,)}, DiskSettings(loop_device, rate_bytes_per_s=50 * MB, step_bytes_per_s=5 * MB)
    )
    put_in_force(actuator, placement(a=5 * MB, idle=45 * MB), None)
    begin = time.monotonic()
    process = spawn(group, "dd", "if=/dev/zero", f"of={loop_device}", "bs=524288", "count=16", "oflag=direct", "status=none")
    assert process.wait(60) == 0
    assert 1 < time.monotonic() - begin < 3


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
    """The figure is what a plain reader gets, within a factor of four, and nothing is written."""
    content = (tmp_path / "image").read_bytes()
    begin = time.monotonic()
    rate = measure_rate(Path(loop_device), 200_000_000)
    assert time.monotonic() - begin < 2
    plain = subprocess.run(["dd", f"if={loop_device}", "of=/dev/null", "bs=1M", "iflag=direct"], capture_output=True, check=True)
    seconds = float(plain.stderr.decode().split(" s, ")[0].rsplit(", ", 1)[1])
    assert 0.25 < rate / ((64 << 20) / seconds) < 4
    assert (tmp_path / "image").read_bytes() == content


def test_a_disk_is_found_by_node_and_by_number(loop_device: str) -> None:
    """/dev/loopN and MAJ:MIN are the same disk."""
    number = find_disk(loop_device).number
    status = Path(loop_device).stat()
    assert number == f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    assert find_disk(number).node == Path(loop_device)

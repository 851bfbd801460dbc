"""Disk: finding the device, and throttles that come back as amounts."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.v1 import GroupLayerV1
from actuators.disk import TRICKLE_BYTES_PER_S, DiskActuator, find_disk, measure_rate
from parties.knob import Effect
from parties.model import BEST_EFFORT, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import DiskSettings

MakeGroup = Callable[[str], None]
MB = 1_000_000
KEY = PoolKey(Resource.DISK)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with a disk 8:0, its partition 8:1, and a disk with a slash in its name."""
    for name, number, partition in (("sda", "8:0", None), ("sda/sda1", "8:1", "1"), ("cciss!c0d0", "104:0", None)):
        directory = tmp_path / "sys/devices/virtual/block" / name
        directory.mkdir(parents=True)
        (directory / "dev").write_text(number + "\n")
        if partition:
            (directory / "partition").write_text(partition + "\n")
        (tmp_path / "sys/dev/block").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/dev/block" / number).symlink_to(directory)
    return tmp_path


def placement(**amounts: int) -> Placement:
    """Disk bandwidth by holder, ``best_effort`` by keyword."""
    return Placement(Partition({KEY: {BEST_EFFORT if name == "best_effort" else name: n for name, n in amounts.items()}}), {}, {})


@pytest.mark.parametrize(
    ("device", "number", "node"), [("8:0", "8:0", "sda"), ("8:1", "8:0", "sda"), ("104:0", "104:0", "cciss/c0d0")]
)
def test_a_partition_stands_for_its_disk(root: Path, device: str, number: str, node: str) -> None:
    """The kernel throttles whole disks only; names with a slash are written with ! in /sys."""
    disk = find_disk(device, root)
    assert disk.number == number
    assert disk.node == root / "dev" / node


def test_what_is_no_disk_is_refused(root: Path) -> None:
    """A missing node, an ordinary file, and a number without a device: each with what to do."""
    (root / "dev").mkdir()
    (root / "dev/file").write_text("")
    for device, message in (
        ("/dev/nope", "nope: No such file or directory; name a disk such as /dev/sda, see lsblk"),
        ("/dev/file", "file is not a block device; name a disk"),
        ("9:99", r"9:99 \(9:99\) is not a block device of this machine"),
        ("8:x", "8:x: No such file or directory"),
    ):
        with pytest.raises(SetupError, match=message):
            find_disk(device, root)


def test_a_rate_that_cannot_be_measured_asks_for_one(tmp_path: Path) -> None:
    """A missing or an empty device ends in a message, not in a division by zero or an endless read."""
    with pytest.raises(SetupError, match=r"cannot read .*: No such file or directory; set rate"):
        measure_rate(tmp_path / "nope")
    (tmp_path / "empty").write_text("")
    try:
        os.close(os.open(tmp_path / "empty", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the temporary file system knows no O_DIRECT")
    with pytest.raises(SetupError, match=r"empty: No data available; set rate"):
        measure_rate(tmp_path / "empty")


def actuator(layer: GroupLayerV1, root: Path, **managed: tuple[str, ...]) -> DiskActuator:
    """An actuator over 8:0 with 200 MB/s."""
    holders = {BEST_EFFORT if name == "best_effort" else name: paths for name, paths in managed.items()}
    return DiskActuator(layer, holders, DiskSettings("8:0", rate_bytes_per_s=200 * MB), root=root)


def test_both_directions_are_throttled_and_shares_add_up(layer: GroupLayerV1, make_group: MakeGroup, root: Path) -> None:
    """Two groups of one service get half each; what is read back is the amount."""
    for path in ("/a", "/b", "/c"):
        make_group(path)
    disk = actuator(layer, root, web=("/a", "/b"), db=("/c",))
    (pool,) = disk.pools()
    assert (pool.total, pool.step) == (200 * MB, 10 * MB)
    for write in disk.writes(placement(web=30 * MB + 1, db=170 * MB), None):
        write.knob.write(write.value)
    for name in ("read", "write"):
        files = [layer.hierarchies.v1["blkio"] / path / f"blkio.throttle.{name}_bps_device" for path in "abc"]
        assert [file.read_text() for file in files] == ["8:0 15000001\n", "8:0 15000000\n", "8:0 170000000\n"]
    assert disk.read_back() == {KEY: {"web": 30 * MB + 1, "db": 170 * MB}}


def test_a_pool_at_zero_keeps_a_trickle_that_counts_as_nothing(layer: GroupLayerV1, make_group: MakeGroup, root: Path) -> None:
    """0 would mean no limit; and no throttle at all is everything, not nothing."""
    for path in ("/a", "/x", "/y"):
        make_group(path)
    disk = actuator(layer, root, a=("/a",), best_effort=("/x", "/y"))
    assert disk.read_back() == {KEY: {"a": 200 * MB, BEST_EFFORT: 200 * MB}}
    plan = disk.writes(placement(a=200 * MB, best_effort=0), placement(a=190 * MB, best_effort=10 * MB))
    assert {(write.holder, write.value, write.effect) for write in plan} == {
        ("a", "200000000", Effect.GIVE),
        (BEST_EFFORT, str(TRICKLE_BYTES_PER_S), Effect.TAKE),
    }
    for write in plan:
        write.knob.write(write.value)
    assert disk.read_back() == {KEY: {"a": 200 * MB, BEST_EFFORT: 0}}


def test_the_tighter_direction_counts(layer: GroupLayerV1, make_group: MakeGroup, root: Path) -> None:
    """Somebody throttled writes only: the holder has that, not the larger of both."""
    make_group("/a")
    (layer.hierarchies.v1["blkio"] / "a/blkio.throttle.write_bps_device").write_text("8:0 7000\n")
    assert actuator(layer, root, a=("/a",)).read_back() == {KEY: {"a": 7000}}


@pytest.mark.parametrize(("rate", "step"), [(200 * MB, 300 * MB), (200 * MB, 65_536), (1000, 0)])
def test_steps_that_cannot_be_enforced_are_refused(
    layer: GroupLayerV1, make_group: MakeGroup, root: Path, rate: int, step: int
) -> None:
    """A step over the rate leaves no pool; one as small as the trickle could not be told from zero."""
    make_group("/a")
    with pytest.raises(SetupError, match=r"a step has to be \d+ or more, within the rate"):
        DiskActuator(layer, {"a": ("/a",)}, DiskSettings("8:0", rate, step), root=root)


def test_without_the_controller_the_disk_is_not_managed(root: Path) -> None:
    """The pool is there with the reason, nothing is written, and no rate is measured."""
    disk = DiskActuator(GroupLayerV1(Hierarchies()), {"a": ("/a",)}, DiskSettings("8:0"), root=root)
    (pool,) = disk.pools()
    assert not pool.managed
    assert "no control-group v1 hierarchy for blkio" in pool.reason
    assert not disk.writes(placement(a=MB), None)
    assert disk.read_back() == {}

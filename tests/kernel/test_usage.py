"""Use as this machine's kernel counts it."""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from waiting import until

from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1
from monitors.usage import DiskCount, GroupUsageMonitor, InMemoryClassifier
from parties.model import BEST_EFFORT

pytestmark = pytest.mark.kernel

Factory = Callable[[str], ControlGroupV1]
Spawn = Callable[..., subprocess.Popen[bytes]]


def test_cpu_use_is_what_the_quota_leaves(layer: GroupLayerV1, cgroup_factory: Factory, burner: Spawn) -> None:
    """A burner under 20 % of a core uses about 200 millicores, an empty group none; who has processes is told."""
    group, empty = cgroup_factory("a"), cgroup_factory("b")
    group.cpu_bandwidth.write("2000 10000")
    burner(group)
    monitor = GroupUsageMonitor(layer, {"a": (group.path,), "b": (empty.path,), BEST_EFFORT: ()})
    monitor.sample(time.monotonic_ns())
    begun_ns = group.cpu_usage_ns() or 0
    until(lambda: (group.cpu_usage_ns() or 0) >= begun_ns + 150_000_000)
    sample = monitor.sample(time.monotonic_ns())
    assert 50 < (sample["a"].cpu_millicores or 0) < 300
    assert sample["b"].cpu_millicores == 0
    assert monitor.populated() == {"a": True, "b": False, BEST_EFFORT: False}


def test_memory_in_use_counts_data_and_not_what_the_kernel_would_drop(
    layer: GroupLayerV1, cgroup_factory: Factory, spawn: Spawn, tmp_path: Path
) -> None:
    """100 MB of data are in use; 100 MB of a file read once are charged to the group as well, and are not."""
    group = cgroup_factory("a")
    file = tmp_path / "file"
    file.write_bytes(bytes(100_000_000))
    subprocess.run(["sync", str(file)], check=True)
    subprocess.run(["dd", f"if={file}", "iflag=nocache", "count=0", "status=none"], check=True)
    code = "import sys, time\ndata = b'x' * 100_000_000\nopen(sys.argv[1], 'rb').read()\nprint(flush=True)\ntime.sleep(600)"
    process = spawn(group, sys.executable, "-S", "-c", code, str(file))
    assert process.stdout is not None
    process.stdout.readline()
    monitor = GroupUsageMonitor(layer, {"a": (group.path,)})
    assert 100_000_000 < (monitor.sample(0)["a"].memory_bytes or 0) < 150_000_000
    file.unlink()


def test_a_service_that_reads_its_disk_is_not_in_memory_and_one_that_computes_is(
    layer: GroupLayerV1, cgroup_factory: Factory, spawn: Spawn, burner: Spawn, tmp_path: Path
) -> None:
    """Two services watched for a second of their own time, by whatever this kernel counts."""
    reader, computer = cgroup_factory("a"), cgroup_factory("b")
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    subprocess.run(["sync", str(file)], check=True)
    monitor = GroupUsageMonitor(layer, {"a": (reader.path,), "b": (computer.path,)})
    classifier = InMemoryClassifier(monitor.disk_count, monitor.incarnation)
    burner(computer)
    spawn(reader, "sh", "-c", f"while :; do dd if={file} of=/dev/null bs=64k iflag=direct status=none; sleep 0.05; done")
    verdicts = []

    def has_read(before: DiskCount | None) -> bool:
        monitor.sample(0)
        return before is None or monitor.disk_count("a") != before

    for tick in range(4):
        monitor.sample(tick * 500_000_000)
        verdicts.append(classifier.observe(tick * 500_000_000, monitor.populated()))
        if verdicts[-1]["a"] is None:
            until(partial(has_read, monitor.disk_count("a")))
    assert verdicts[0] == {"a": None, "b": None}
    assert verdicts[-1]["b"] is True
    if monitor.disk_count("a") is None:
        pytest.skip("this kernel counts neither the device nor the processes' traffic")
    assert verdicts[-1]["a"] is False

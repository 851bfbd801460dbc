"""Use per holder on a fixture tree, and what lives in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v1 import GroupLayerV1
from monitors.resctrl import CacheUse
from monitors.usage import DiskCount, GroupUsageMonitor, InMemoryClassifier
from parties.model import BEST_EFFORT, NS_PER_S, Usage

HALF_S = NS_PER_S // 2
CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio")
SetUse = Callable[..., None]


@pytest.fixture
def layer(tmp_path: Path) -> GroupLayerV1:
    """Hierarchies in a directory."""
    return GroupLayerV1(Hierarchies({name: tmp_path / name for name in CONTROLLERS}))


@pytest.fixture
def use(layer: GroupLayerV1) -> SetUse:
    """Sets a group's counters, making it first."""

    def put(  # noqa: PLR0913 (a group has that many counters)
        path: str, *, cpu_ns: int = 0, charged: int = 0, inactive: int = 0, disk: int | None = None, pids: str = ""
    ) -> None:
        lines = [f"8:0 Read {disk - 1}", "8:0 Write 1", f"8:0 Total {disk}"] if disk is not None else []
        files = {
            "cpu/cgroup.procs": pids,
            "cpuacct/cpuacct.usage": cpu_ns,
            "memory/memory.usage_in_bytes": charged,
            "memory/memory.stat": f"cache 5\ninactive_file 7\ntotal_cache 9\ntotal_inactive_file {inactive}\ntotal_unevictable 0",
            "blkio/blkio.throttle.io_service_bytes_recursive": "\n".join(["8:16 Total 99999", *lines, "Total 99999"]),
        }
        for name, value in files.items():
            controller, _, file = name.partition("/")
            directory = layer.hierarchies.v1[controller] / path.strip("/")
            directory.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(f"{value}\n")

    return put


def test_rates_are_per_interval_and_the_first_call_gives_memory_only(layer: GroupLayerV1, use: SetUse) -> None:
    """Half a core for half a second, 3 MB of disk traffic in it, the working set without inactive file pages."""
    use("/a", cpu_ns=10**9, charged=50_000, inactive=20_000, disk=1_000_000, pids="7")
    monitor = GroupUsageMonitor(layer, {"a": ("/a",)}, disk="8:0")
    assert monitor.sample(0) == {"a": Usage(memory_bytes=30_000)}
    use("/a", cpu_ns=10**9 + HALF_S // 2, charged=60_000, inactive=20_000, disk=4_000_000, pids="7")
    assert monitor.sample(HALF_S) == {"a": Usage(cpu_millicores=500, memory_bytes=40_000, disk_bytes_per_s=6_000_000)}
    assert monitor.sample(2 * HALF_S) == {"a": Usage(cpu_millicores=0, memory_bytes=40_000, disk_bytes_per_s=0)}


def test_the_frequency_is_of_the_cpus_that_a_group_has_now(layer: GroupLayerV1, use: SetUse, tmp_path: Path) -> None:
    """Of others as soon as it has others, and of none once it is gone."""
    layer = GroupLayerV1(Hierarchies({**layer.hierarchies.v1, "cpuset": tmp_path / "cpuset"}))
    use("/a", pids="7")
    file = tmp_path / "cpuset/a/cpuset.cpus"
    file.parent.mkdir(parents=True)
    monitor = GroupUsageMonitor(layer, {"a": ("/a",)}, frequency=lambda cpus: sum(cpus) * 100 or None)
    for tick, (cpus, hz) in enumerate([("1-2", 300), ("1-2", 300), ("4", 400), ("", None)]):
        file.write_text(f"{cpus}\n")
        assert monitor.sample(tick)["a"].frequency_hz == hz
    file.write_text("4\n")
    assert monitor.sample(9)["a"].frequency_hz == 400
    monitor.close()
    file.unlink()
    assert monitor.sample(10)["a"].frequency_hz is None


def test_cache_and_memory_bandwidth_are_joined(layer: GroupLayerV1, use: SetUse) -> None:
    """From the reader that is given, for those that it knows; nothing is made up for the others."""
    use("/a")
    use("/b")
    known = {"a": CacheUse(cache_bytes=1 << 20, memory_bandwidth_bytes_per_s=7_000)}
    sample = GroupUsageMonitor(layer, {"a": ("/a",), "b": ("/b",)}, cache=lambda: known).sample(0)
    assert (sample["a"].cache_bytes, sample["a"].memory_bandwidth_bytes_per_s) == (1 << 20, 7_000)
    assert (sample["b"].cache_bytes, sample["b"].memory_bandwidth_bytes_per_s) == (None, None)


def test_several_groups_and_the_network_are_joined(layer: GroupLayerV1, use: SetUse) -> None:
    """The best-effort pool is the sum of its jobs; network comes from the reader that is given, with the sample's time."""
    asked: list[int] = []

    def network(now_ns: int) -> dict[str, int]:
        asked.append(now_ns)
        return {"a": 777}

    for path in ("/a", "/x", "/y"):
        use(path, charged=1000, disk=5)
    monitor = GroupUsageMonitor(layer, {"a": ("/a",), BEST_EFFORT: ("/x", "/y")}, disk="8:0", network=network)
    monitor.sample(0)
    use("/x", cpu_ns=NS_PER_S // 4, charged=1000, disk=5)
    use("/y", cpu_ns=NS_PER_S // 2, charged=3000, disk=15)
    sample = monitor.sample(NS_PER_S)
    assert sample["a"] == Usage(0, 1000, 0, 777)
    assert sample[BEST_EFFORT] == Usage(750, 4000, 10, None)
    assert asked == [0, NS_PER_S]


def test_a_counter_that_fell_gives_no_rate_once(layer: GroupLayerV1, use: SetUse) -> None:
    """A group made anew starts at zero; a negative rate, or a huge one, is never reported."""
    use("/a", cpu_ns=10**9, disk=100)
    monitor = GroupUsageMonitor(layer, {"a": ("/a",)}, disk="8:0")
    monitor.sample(0)
    use("/a", cpu_ns=10**6, disk=10)
    assert monitor.sample(NS_PER_S) == {"a": Usage(memory_bytes=0)}
    use("/a", cpu_ns=2 * 10**6, disk=20)
    assert monitor.sample(2 * NS_PER_S) == {"a": Usage(cpu_millicores=1, memory_bytes=0, disk_bytes_per_s=10)}


def test_a_vanished_holder_uses_nothing_that_could_be_told(layer: GroupLayerV1, use: SetUse) -> None:
    """Absent is not zero: every field is None, and the others are still read. A pool without groups is the same."""
    use("/a", charged=1000)
    monitor = GroupUsageMonitor(layer, {"a": ("/a",), "gone": ("/gone",), BEST_EFFORT: ()})
    sample = monitor.sample(0)
    assert sample["gone"] == sample[BEST_EFFORT] == Usage()
    assert sample["a"].memory_bytes == 1000
    assert monitor.populated() == {"a": False, "gone": False, BEST_EFFORT: False}


def test_a_machine_without_a_controller_tells_what_it_can(tmp_path: Path, use: SetUse) -> None:
    """No cpuacct: no CPU use, but memory."""
    use("/a", charged=1000)
    bare = GroupLayerV1(Hierarchies({"memory": tmp_path / "memory"}))
    monitor = GroupUsageMonitor(bare, {"a": ("/a",)}, disk="8:0", proc=tmp_path)
    monitor.sample(0)
    sample = monitor.sample(NS_PER_S)["a"]
    assert (sample.cpu_millicores, sample.memory_bytes) == (None, 1000)


def test_a_restart_is_seen_when_no_process_is_left_of_the_old_ones(layer: GroupLayerV1, use: SetUse) -> None:
    """A worker that is replaced is no restart; all of them at once are, also within one interval."""
    use("/a")
    monitor = GroupUsageMonitor(layer, {"a": ("/a",)})
    seen = []
    for pids in ("", "7\n8", "8\n9", "9", "10\n11", "", "10"):
        use("/a", pids=pids)
        monitor.sample(0)
        seen.append((monitor.populated()["a"], monitor.incarnation("a")))
    assert seen == [(False, 0), (True, 1), (True, 1), (True, 1), (True, 2), (False, 2), (True, 3)]


def test_processes_stand_in_for_a_device_that_is_not_counted(layer: GroupLayerV1, use: SetUse, tmp_path: Path) -> None:
    """Until the kernel counts the device, /proc/PID/io does; a process that ends takes nothing back; then the device takes over."""

    def process(pid: int, read: int, written: int) -> None:
        (tmp_path / f"proc/{pid}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"proc/{pid}/io").write_text(
            f"rchar: 1\nread_bytes: {read}\nwrite_bytes: {written}\ncancelled_write_bytes: 0\n"
        )

    process(7, 500, 100)
    use("/a", pids="7")
    monitor = GroupUsageMonitor(layer, {"a": ("/a",)}, disk="8:0", proc=tmp_path / "proc")
    monitor.sample(0)
    process(7, 700, 150)
    process(8, 50, 0)
    use("/a", pids="7\n8")
    assert monitor.sample(NS_PER_S)["a"].disk_bytes_per_s == 300
    process(8, 60, 0)
    use("/a", pids="8")
    assert monitor.sample(2 * NS_PER_S)["a"].disk_bytes_per_s == 10
    use("/a", pids="8", disk=5000)
    assert monitor.sample(3 * NS_PER_S)["a"].disk_bytes_per_s is None  # two counts that do not compare
    use("/a", pids="8", disk=5007)
    assert monitor.sample(4 * NS_PER_S)["a"].disk_bytes_per_s == 7


class Service:
    """What the classifier is told of one service."""

    def __init__(self) -> None:
        self.count: DiskCount | None = DiskCount("8:0", 1000)
        self.incarnation = 1
        self.classifier = InMemoryClassifier(lambda _: self.count, lambda _: self.incarnation)

    def observe(self, now_ns: int, *, there: bool = True) -> bool | None:
        """One interval."""
        return self.classifier.observe(now_ns, {"a": there})["a"]

    def traffic(self, size: int) -> None:
        """Disk traffic of so many bytes."""
        assert self.count is not None
        self.count = DiskCount(self.count.counted_by, self.count.total_bytes + size)


def test_no_disk_traffic_in_the_first_second_means_in_memory() -> None:
    """None until a second has passed, then True; traffic later does not change it (section 4.2)."""
    service = Service()
    assert [service.observe(tick * HALF_S) for tick in range(4)] == [None, None, True, True]
    service.traffic(10**9)
    assert service.observe(4 * HALF_S) is True


def test_any_disk_traffic_in_the_first_second_means_not_in_memory() -> None:
    """One byte is enough, and the verdict need not wait."""
    service = Service()
    assert service.observe(0) is None
    service.traffic(1)
    assert service.observe(HALF_S) is False
    assert service.observe(10 * HALF_S) is False


def test_a_restart_is_watched_anew() -> None:
    """By new processes within an interval, and by having been away."""
    service = Service()
    service.observe(0)
    assert service.observe(NS_PER_S) is True
    service.incarnation = 2
    assert service.observe(3 * HALF_S) is None
    service.traffic(5)
    assert service.observe(4 * HALF_S) is False
    assert service.observe(5 * HALF_S, there=False) is None
    assert [service.observe(tick * HALF_S) for tick in (6, 7, 8)] == [None, None, True]


def test_without_a_count_there_is_no_verdict_and_the_second_begins_with_it() -> None:
    """Unknown is not in-memory; a count by another source is no traffic."""
    service = Service()
    service.count = None
    assert [service.observe(tick * HALF_S) for tick in range(4)] == [None] * 4
    service.count = DiskCount("processes", 50)
    assert service.observe(4 * HALF_S) is None
    service.count = DiskCount("8:0", 7000)
    assert [service.observe(tick * HALF_S) for tick in (5, 6, 7)] == [None, None, True]

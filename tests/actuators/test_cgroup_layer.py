"""The choice between v1 and v2, controllers that have to be enabled first, and all of it under one journal."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from fake_cgroup2 import Cgroup2

from actuators.cgroup.group import ENABLED, Controller, Direction
from actuators.cgroup.hierarchy import ControllerMissingError, GroupMissingError, Hierarchies
from actuators.cgroup.layer import MixedLayer, find_layer
from actuators.cgroup.v1 import GroupLayerV1
from actuators.cgroup.v2 import GroupLayerV2
from actuators.cgroup.v2_subtree import SubtreeControlKnob
from actuators.cores import WholeCoresActuator
from actuators.cpu_bandwidth import CpuBandwidthActuator
from actuators.disk import DiskActuator
from actuators.holders import ManagedGroups
from actuators.memory import MemoryActuator
from actuators.registry import KINDS
from parties.enforcer import Enforcer
from parties.interfaces import Actuator
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobError, KnobRef
from parties.model import BEST_EFFORT, Core, Domain, MoveStatus, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.restore import Fate, restore
from parties.settings import CoreSettings, DiskSettings, MemorySettings
from parties.slow_writer import SlowResult

MB = 1_000_000
DOMAIN = Domain(0, tuple(Core(number, (number,)) for number in range(4)))
MANAGED: ManagedGroups = {"web": ("/rack/web",), BEST_EFFORT: ("/rack/batch",)}
CORES, MEMORY, DISK = PoolKey(Resource.CORES, 0), PoolKey(Resource.MEMORY, 0), PoolKey(Resource.DISK)


def v1_mounts(root: Path, *controllers: str) -> dict[str, Path]:
    """v1 hierarchies in a directory."""
    mounts = {controller: root / "v1" / controller for controller in controllers}
    for mount in mounts.values():
        mount.mkdir(parents=True)
    return mounts


def test_each_controller_is_taken_from_the_version_that_has_it(v2: Cgroup2, tmp_path: Path) -> None:
    """Mounted as v1 is v1, whatever the tree says; knobs and counters of one group come from both."""
    mounts = v1_mounts(tmp_path, "cpu", "cpuset", "freezer")
    (mounts["cpu"] / "rack/web").mkdir(parents=True)
    (mounts["cpu"] / "rack/web/cgroup.procs").write_text("7\n")
    place = v2.make("/rack/web", "memory", "io")
    v2.use(place, 5000)
    layer = find_layer(Hierarchies(mounts, v2.tree), v2.root)
    assert isinstance(layer, MixedLayer)
    group = layer.group("/rack/web")
    on_v1 = (group.cpus, group.mems, group.cpu_bandwidth, group.cpu_class, group.freezer)
    on_v2 = (group.memory_limit, group.disk_throttle("8:0", Direction.READ))
    assert {knob.ref.kind.partition(".")[0] for knob in on_v1} == {"cgroup1"}
    assert {knob.ref.kind.partition(".")[0] for knob in on_v2} == {"cgroup2"}
    assert (group.memory_bytes(), group.cpu_usage_ns(), group.disk_bytes("8:0"), group.pids()) == (5000, 0, 0, (7,))
    assert group.missing([Controller.CPU, Controller.CPUSET, Controller.MEMORY]) == (str(mounts["cpuset"] / "rack/web"),)
    assert [knob.ref.kind for knob in group.enabling([Controller.CPU, Controller.MEMORY])] == ["cgroup2.subtree-control.memory"] * 2
    assert layer.lacks(Controller) == ""


def test_one_version_alone_needs_no_mixture(v2: Cgroup2, tmp_path: Path) -> None:
    """All of v1 (with a tree without controllers beside it, as on this machine), or no v1 at all."""
    every = v1_mounts(tmp_path, *(controller.value for controller in Controller))
    assert isinstance(find_layer(Hierarchies(every, v2.tree)), GroupLayerV1)
    assert isinstance(find_layer(Hierarchies({}, None)), GroupLayerV1)
    assert isinstance(find_layer(v2.hierarchies, v2.root), GroupLayerV2)
    assert isinstance(find_layer(Hierarchies({"net_cls": tmp_path}, v2.tree)), GroupLayerV2)
    with pytest.raises(ControllerMissingError, match="mount -t cgroup2"):
        GroupLayerV2(Hierarchies())


def test_what_neither_version_has_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On v2 alone and on a mixture; freezing and counting CPU time every tree can."""
    v2 = Cgroup2(tmp_path / "tree", monkeypatch, controllers=("cpu", "memory"))
    layer = find_layer(v2.hierarchies, v2.root)
    assert layer.lacks([Controller.CPU, Controller.MEMORY, Controller.FREEZER, Controller.CPUACCT]) == ""
    assert "no control-group controller cpuset, io in" in layer.lacks(Controller)
    assert "(found: cpu, memory); is it switched off by cgroup_disable=" in layer.lacks(Controller)
    mixed = find_layer(Hierarchies(v1_mounts(tmp_path, "cpuset"), v2.tree), v2.root)
    assert mixed.lacks([Controller.CPUSET, Controller.MEMORY]) == ""
    assert "for blkio in either version" in mixed.lacks(Controller)
    assert "mount -t cgroup -o blkio blkio" in mixed.lacks(Controller)


def test_a_missing_group_is_named(v2: Cgroup2) -> None:
    """As on v1: before anything is written."""
    v2.make("/rack/web")
    with pytest.raises(GroupMissingError, match=r"best-effort: .*/sys/fs/cgroup/rack/batch; start what makes them"):
        MemoryActuator(find_layer(v2.hierarchies, v2.root), MANAGED, MemorySettings(900 * MB, 100 * MB), (DOMAIN,))


class SlowAtOnce:
    """Does slow writes on the spot."""

    def __init__(self) -> None:
        self.results: list[SlowResult] = []

    def submit(self, ref: KnobRef, value: str | None, _now_ns: int) -> int:
        knob = KINDS[ref.kind].make(ref.address)
        try:
            knob.restore(None) if value is None else knob.write(value)
            self.results.append(SlowResult(len(self.results), found=knob.read()))
        except OSError as error:
            self.results.append(SlowResult(len(self.results), error=error))
        self.waiting = self.results[-1:]
        return self.results[-1].ticket

    def poll(self, _now_ns: int) -> list[SlowResult]:
        waiting, self.waiting = self.waiting, []
        return waiting


def actuators_of(v2: Cgroup2, root: Path) -> list[Actuator]:
    """Every resource that is a control group's."""
    for number in ("8:0",):
        (root / "sys/dev/block" / number).mkdir(parents=True, exist_ok=True)
    layer = find_layer(v2.hierarchies, v2.root)
    return [
        WholeCoresActuator(layer, MANAGED, (DOMAIN,), {0: (0,)}),
        CpuBandwidthActuator(layer, MANAGED, CoreSettings(), (DOMAIN,), {0: (0,)}, best_effort_idle_class=True),
        MemoryActuator(layer, MANAGED, MemorySettings(900 * MB, 100 * MB), (DOMAIN,)),
        DiskActuator(layer, MANAGED, DiskSettings("8:0", 100 * MB, 10 * MB), root=root),
    ]


def placement(share: int) -> Placement:
    """``share`` of four parts for the service, the rest for the pool."""
    cpus = {"web": tuple(range(share)), BEST_EFFORT: tuple(range(share, 4))}
    pools = {CORES: 1000, MEMORY: 100 * MB, DISK: 10 * MB}
    amounts = {key: {"web": share * step, BEST_EFFORT: (4 - share) * step} for key, step in pools.items()}
    return Placement(Partition(amounts), cpus, {})


@pytest.mark.parametrize("enabled", [(), ("memory",), ("cpu", "cpuset", "memory", "io")])
def test_a_run_enables_what_it_needs_and_a_restore_brings_the_tree_back(
    v2: Cgroup2, tmp_path: Path, enabled: tuple[str, ...]
) -> None:
    """Four resources, a start and two moves, through the enforcer and its journal; then every file is as before."""
    for path in ("/rack/web", "/rack/batch"):
        v2.make(path, *enabled)
    before = v2.snapshot()
    state = tmp_path / "state"
    slow = SlowAtOnce()
    enforcer = Enforcer(Journal(state, started_unix_ns=time.time_ns()), slow)
    for actuator in actuators_of(v2, tmp_path):
        in_force: Placement | None = None
        for share in (2, 3, 1):
            outcome = enforcer.apply(actuator.writes(placement(share), in_force), 0)
            while outcome.status is MoveStatus.PENDING:
                ended = enforcer.poll(0)
                outcome = ended[0][1] if ended else outcome
            assert outcome.status is MoveStatus.DONE, outcome.detail
            in_force = placement(share)
        ((_, held),) = actuator.read_back().items()
        assert held["web"] * 3 == held[BEST_EFFORT]
    assert not enforcer.drift(0)
    report = restore(state / JOURNAL_NAME, KINDS)
    assert report.complete, report.of(Fate.FAILED)
    assert not report.of(Fate.GONE)
    assert v2.snapshot() == before


def test_a_path_that_systemd_owns_is_left_alone_unless_it_was_delegated(v2: Cgroup2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd takes back what is changed in its part of the tree; below a unit with Delegate= the tree is the unit's."""
    (v2.root / "run/systemd/system").mkdir(parents=True)
    v2.make("/rack.slice/unit/web")
    layer = find_layer(v2.hierarchies, v2.root)
    managed: ManagedGroups = {"web": ("/rack.slice/unit/web",)}
    actuator = MemoryActuator(layer, managed, MemorySettings(900 * MB, 100 * MB), (DOMAIN,))
    (pool,) = actuator.pools()
    assert not pool.managed
    assert "web has no memory controller: " in pool.reason
    assert "/sys/fs/cgroup/cgroup.subtree_control does not name it, and that part of the tree is systemd's" in pool.reason
    assert "set Delegate=memory" in pool.reason
    assert not actuator.writes(placement(2), None)
    unit = v2.tree / "rack.slice/unit"

    def delegated(path: Path, name: str) -> bytes:
        if (path, name) == (unit, "user.delegate"):
            return b"1"
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))

    monkeypatch.setattr("os.getxattr", delegated)
    group = layer.group("/rack.slice/unit/web")
    assert "cgroup/cgroup.subtree_control does not name it" in group.lacks([Controller.MEMORY])  # the way there is systemd's still
    v2.make("/rack.slice/unit", "memory")
    assert group.lacks([Controller.MEMORY]) == ""
    assert [knob.ref.address for knob in group.enabling([Controller.MEMORY])] == [(str(unit), "memory")]


@pytest.mark.parametrize(
    ("path", "number", "message"),
    [
        ("/rack", 0, r"has no such controller itself: echo \+memory > .*/cgroup/cgroup.subtree_control"),
        ("/rack", errno.EBUSY, "has processes of its own, which have to be in groups below it"),
        ("/rack", errno.EOPNOTSUPP, "the group is threaded, see .*/rack/cgroup.type"),
        ("/rack", errno.EINVAL, "no such controller; for cpu: real-time processes"),
        ("/rack", errno.EPERM, "Operation not permitted"),
    ],
)
def test_why_a_controller_cannot_be_enabled_is_told(v2: Cgroup2, path: str, number: int, message: str) -> None:
    """Each of the kernel's reasons in an operator's words; none of them looks like a group that vanished."""
    v2.make("/rack/web")
    v2.faults = {0: number} if number else {}
    with pytest.raises(KnobError, match=message) as caught:
        SubtreeControlKnob(v2.tree / path.strip("/"), "memory").write(ENABLED)
    assert caught.value.errno == (number or errno.EOPNOTSUPP)


def test_processes_in_the_group_above_are_told_by_the_kernel_s_rule(v2: Cgroup2) -> None:
    """No internal processes; and a controller that a group below passes on cannot be disabled before that one."""
    v2.make("/rack/web/inner")
    v2.put(v2.tree / "rack", "cgroup.procs", "7")
    knobs = [SubtreeControlKnob(place, "memory") for place in (v2.tree, v2.tree / "rack")]
    knobs[0].write(ENABLED)
    with pytest.raises(KnobError, match="has processes of its own"):
        knobs[1].write(ENABLED)
    v2.put(v2.tree / "rack", "cgroup.procs", "")
    knobs[1].write(ENABLED)
    with pytest.raises(KnobError, match="a group below passes the controller on"):
        knobs[0].restore(None)
    with pytest.raises(KnobError, match="cannot set 'off'"):
        knobs[0].write("off")
    for knob in reversed(knobs):
        knob.restore(None)
    assert [knob.read() for knob in knobs] == [None, None]

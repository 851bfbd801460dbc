"""Cores, enforced by this machine's kernel: ratios of CPU time, with room for a noisy neighbour."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from waiting import remove_group, until

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1
from actuators.cores import WholeCoresActuator
from actuators.cpu_bandwidth import CpuBandwidthActuator
from monitors.topology import Topology
from parties.knob import KnobError, KnobWrite
from parties.model import BEST_EFFORT, IDLE, Core, Domain, Holder, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CoreSettings

pytestmark = pytest.mark.kernel

Factory = Callable[[str], ControlGroupV1]
Burner = Callable[..., subprocess.Popen[bytes]]
KEY = PoolKey(Resource.CORES, 0)
STOPPED_NS = 5_000_000  # what it takes to stop
CPU = Topology.read().online[-1]
DOMAIN = Domain(0, (Core(CPU, (CPU,)),))


def placement(cpus: Sequence[int] = (CPU,), **millicores: int) -> Placement:
    """All holders on the same CPUs; ``best_effort`` by keyword."""
    amounts = {BEST_EFFORT if name == "best_effort" else name: amount for name, amount in millicores.items()}
    return Placement(Partition({KEY: amounts}), dict.fromkeys(amounts, tuple(cpus)), {})


def carry_out(writes: Sequence[KnobWrite]) -> None:
    """As the loop does: take before give, nothing believed that is not read back."""
    for write in sorted(writes, key=lambda write: write.effect):
        write.knob.write(write.value)
        assert write.knob.same(write.value, write.knob.read()), write


def cpu_time_ns(groups: Mapping[Holder, ControlGroupV1], seconds: float) -> dict[Holder, int]:
    """The CPU time that each group uses from now on."""
    before = {holder: group.cpu_usage_ns() or 0 for holder, group in groups.items()}
    time.sleep(seconds)
    return {holder: (group.cpu_usage_ns() or 0) - before[holder] for holder, group in groups.items()}


def shares_of_a_cpu(groups: Mapping[Holder, ControlGroupV1], seconds: float) -> dict[Holder, float]:
    """How much of a CPU each group uses from now on, over what turns out to be the time."""
    begin_ns = time.monotonic_ns()
    used = cpu_time_ns(groups, seconds)
    elapsed_ns = time.monotonic_ns() - begin_ns
    return {holder: used_ns / elapsed_ns for holder, used_ns in used.items()}


def wait_for_use(group: ControlGroupV1, used_ns: int) -> None:
    """Until the group has used so much more CPU time."""
    enough = (group.cpu_usage_ns() or 0) + used_ns
    until(lambda: (group.cpu_usage_ns() or 0) >= enough, "it does not run")


@pytest.fixture
def groups(cgroup_factory: Factory) -> dict[Holder, ControlGroupV1]:
    """A group for each of two services and the best-effort pool, side by side."""
    return {"a": cgroup_factory("a"), "b": cgroup_factory("b"), BEST_EFFORT: cgroup_factory("be")}


@pytest.fixture
def divided(layer: GroupLayerV1, groups: dict[Holder, ControlGroupV1]) -> Iterator[CpuBandwidthActuator]:
    """One CPU divided among them."""
    managed = {holder: (group.path,) for holder, group in groups.items()}
    actuator = CpuBandwidthActuator(layer, managed, CoreSettings(), (DOMAIN,), {0: Topology.read().numa_nodes((CPU,))})
    yield actuator
    actuator.close()


def test_quotas_divide_a_core_and_changes_take_effect_at_once(
    groups: dict[Holder, ControlGroupV1], divided: CpuBandwidthActuator, burner: Burner
) -> None:
    """100 against 300 millicores is CPU time of about 1 to 3; after the opposite is written, 3 to 1.

    Little enough that neighbours on the CPU do not keep either from its quota.
    """
    for holder in ("a", "b"):
        burner(groups[holder])
    first = placement(a=100, b=300, best_effort=0, idle=600)
    carry_out(divided.writes(first, None))
    assert divided.read_back() == {KEY: {"a": 100, "b": 300, BEST_EFFORT: 0}}
    used = cpu_time_ns(groups, 1.5)
    assert 2 < used["b"] / used["a"] < 4.5
    second = placement(a=300, b=100, best_effort=0, idle=600)
    carry_out(divided.writes(second, first))
    used = cpu_time_ns(groups, 1.5)
    assert 2 < used["a"] / used["b"] < 4.5


def test_best_effort_jobs_are_frozen_at_zero_and_thawed_above(
    groups: dict[Holder, ControlGroupV1], divided: CpuBandwidthActuator, burner: Burner
) -> None:
    """No CPU time at all at zero; at 50 millicores, whose quota would be under the kernel's least, about a twentieth of a core."""
    burner(groups[BEST_EFFORT])
    states = [placement(a=300, b=300, best_effort=amount, idle=400 - amount) for amount in (400, 0, 50)]
    carry_out(divided.writes(states[0], None))
    wait_for_use(groups[BEST_EFFORT], 50_000_000)
    carry_out(divided.writes(states[1], states[0]))
    assert divided.read_back()[KEY][BEST_EFFORT] == 0
    assert cpu_time_ns(groups, 0.5)[BEST_EFFORT] < STOPPED_NS
    carry_out(divided.writes(states[2], states[1]))
    assert divided.read_back()[KEY][BEST_EFFORT] == 50
    assert (groups[BEST_EFFORT].directory(Controller.CPU) / "cpu.cfs_period_us").read_text() == "20000\n"
    assert 0.01 < shares_of_a_cpu(groups, 2)[BEST_EFFORT] < 0.1


def test_the_idle_class_keeps_best_effort_jobs_out_of_the_way(
    groups: dict[Holder, ControlGroupV1], divided: CpuBandwidthActuator, burner: Burner
) -> None:
    """Under the same quota on one CPU, a service gets nearly all of it beside an idle-class job, and half beside an equal one."""
    burner(groups["a"])
    burner(groups[BEST_EFFORT])
    both = placement(a=1000, b=100, best_effort=1000)
    carry_out(divided.writes(both, None))
    equal = cpu_time_ns(groups, 1)
    assert 0.5 < equal["a"] / equal[BEST_EFFORT] < 2
    assert divided.warnings() == ()
    carry_out(divided.idle_class_writes())
    idle = cpu_time_ns(groups, 1)
    assert idle["a"] > 5 * idle[BEST_EFFORT]


def test_freezing_does_not_wait_for_starved_jobs(
    groups: dict[Holder, ControlGroupV1], divided: CpuBandwidthActuator, burner: Burner
) -> None:
    """Idle-class jobs beside busy services take a second to report that they stopped; they stop at once all the same."""
    burner(groups["a"], 3)
    burner(groups[BEST_EFFORT], 4)
    before = placement(a=1000, b=100, best_effort=1000)
    divided.best_effort_idle_class = True
    carry_out(divided.writes(before, None))
    time.sleep(0.3)
    carry_out(divided.writes(placement(a=1000, b=100, best_effort=0), before))
    state = (groups[BEST_EFFORT].directory(Controller.FREEZER) / "freezer.state").read_text()
    assert divided.read_back()[KEY][BEST_EFFORT] == 0
    assert cpu_time_ns(groups, 0.5)[BEST_EFFORT] < STOPPED_NS, state


def test_the_idle_class_is_part_of_the_start_when_asked_for(
    groups: dict[Holder, ControlGroupV1], divided: CpuBandwidthActuator
) -> None:
    """And only then: a policy that does not ask for it leaves the class alone."""
    start = placement(a=300, b=300, best_effort=400)
    carry_out(divided.writes(start, None))
    assert groups[BEST_EFFORT].cpu_class.read() == "shares=1024"
    divided.best_effort_idle_class = True
    carry_out(divided.writes(start, None))
    assert groups[BEST_EFFORT].cpu_class.read() == "idle=1"
    assert groups["a"].cpu_class.read() == "shares=1024"


def test_several_groups_of_one_holder_share_its_amount(layer: GroupLayerV1, cgroup_factory: Factory, burner: Burner) -> None:
    """Two groups of one service together use what the service holds, and read back exactly that."""
    groups = {"a": cgroup_factory("a"), "b": cgroup_factory("b")}
    actuator = CpuBandwidthActuator(
        layer, {"web": (groups["a"].path, groups["b"].path)}, CoreSettings(floor_millicores=200), (DOMAIN,), {0: (0,)}
    )
    for group in groups.values():
        burner(group)
    carry_out(actuator.writes(placement(web=450, idle=550), None))
    assert actuator.read_back() == {KEY: {"web": 450}}
    used = shares_of_a_cpu(groups, 1.5)
    assert 0.2 < sum(used.values()) < 0.55
    assert 0.6 < used["a"] / used["b"] < 1.7


def test_a_quota_over_that_of_the_group_above_is_refused_with_the_reason(layer: GroupLayerV1, cgroup_factory: Factory) -> None:
    """Somebody limited the parent; the service cannot be given more, and the message says where to look."""
    parent = cgroup_factory("slice")
    parent.cpu_bandwidth.write("20000 100000")
    group = cgroup_factory("slice/web")
    actuator = CpuBandwidthActuator(layer, {"web": (group.path,)}, CoreSettings(), (DOMAIN,), {0: (0,)})
    with pytest.raises(
        KnobError, match=r"slice/web/cpu.cfs_quota_us: cannot set '5000 10000': Invalid argument \(does a group above"
    ) as caught:
        carry_out(actuator.writes(placement(web=500, idle=500), None))
    assert caught.value.errno == errno.EINVAL


@pytest.fixture
def two_cores() -> tuple[Domain, ...]:
    """Two CPUs as two cores."""
    online = Topology.read().online
    if len(online) < 2:
        pytest.skip("needs two CPUs")
    return (Domain(0, tuple(Core(cpu, (cpu,)) for cpu in online[-2:])),)


def test_whole_cores_move_between_holders_without_ever_being_shared(
    layer: GroupLayerV1, groups: dict[Holder, ControlGroupV1], burner: Burner, two_cores: tuple[Domain, ...]
) -> None:
    """A service takes the best-effort pool's only core and gives it back: affinity follows, the pool stands still meanwhile."""
    first, second = two_cores[0].cpus
    del groups["b"]
    actuator = WholeCoresActuator(layer, {holder: (group.path,) for holder, group in groups.items()}, two_cores, {0: (0,)})
    processes = {holder: burner(group) for holder, group in groups.items()}
    apart = Placement(Partition({KEY: {"a": 1000, BEST_EFFORT: 1000}}), {"a": (first,), BEST_EFFORT: (second,)}, {})
    taken = Placement(Partition({KEY: {"a": 2000, BEST_EFFORT: 0}}), {"a": (first, second), BEST_EFFORT: ()}, {})
    carry_out(actuator.writes(apart, None))
    assert actuator.read_back() == {KEY: {"a": 1000, BEST_EFFORT: 1000}}
    assert {holder: os.sched_getaffinity(process.pid) for holder, process in processes.items()} == {
        "a": {first},
        BEST_EFFORT: {second},
    }
    carry_out(actuator.writes(taken, apart))
    assert actuator.read_back() == {KEY: {"a": 2000, BEST_EFFORT: 0}}
    assert os.sched_getaffinity(processes["a"].pid) == {first, second}
    assert cpu_time_ns(groups, 0.3)[BEST_EFFORT] < STOPPED_NS
    carry_out(actuator.writes(apart, taken))
    assert actuator.read_back() == {KEY: {"a": 1000, BEST_EFFORT: 1000}}
    wait_for_use(groups[BEST_EFFORT], 1)


def test_a_vanished_holder_is_left_out(
    layer: GroupLayerV1, groups: dict[Holder, ControlGroupV1], divided: CpuBandwidthActuator, burner: Burner
) -> None:
    """A service that goes takes its groups with it; the others are still read."""
    process = burner(groups["a"])
    carry_out(divided.writes(placement(a=300, b=300, best_effort=400), None))
    process.send_signal(signal.SIGKILL)
    process.wait()
    for controller in (Controller.CPU, Controller.CPUSET):
        remove_group(groups["a"].directory(controller))
    assert divided.read_back() == {KEY: {"b": 300, BEST_EFFORT: 400}}
    assert IDLE not in divided.read_back()[KEY]

"""Memory limits, enforced by this machine's kernel."""

import errno
import subprocess
import sys
from collections.abc import Callable

import pytest

from actuators.cgroup.group import Controller
from actuators.cgroup.v1 import ControlGroupV1, GroupLayerV1
from actuators.memory import MemoryActuator
from parties.knob import Effect, KnobError
from parties.model import BEST_EFFORT, Core, Domain, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import MemorySettings

pytestmark = pytest.mark.kernel

Factory = Callable[[str], ControlGroupV1]
MB = 1_000_000
KEY = PoolKey(Resource.MEMORY, 0)
DOMAINS = (Domain(0, (Core(0, (0,)),)),)
HOLD = """
import sys, time
data = b"x" * int(sys.argv[1])
print(flush=True)
time.sleep(600)
"""


def placement(**amounts: int) -> Placement:
    """Memory by holder, ``best_effort`` by keyword."""
    return Placement(Partition({KEY: {BEST_EFFORT if name == "best_effort" else name: n for name, n in amounts.items()}}), {}, {})


@pytest.fixture
def holder_of_memory(spawn: Callable[..., subprocess.Popen[bytes]]) -> Callable[[ControlGroupV1, int], subprocess.Popen[bytes]]:
    """Starts a process that holds so many bytes, and waits until it does."""

    def start(group: ControlGroupV1, size: int) -> subprocess.Popen[bytes]:
        process = spawn(group, sys.executable, "-S", "-c", HOLD, str(size))
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        return process

    return start


def test_shrinking_under_use_is_refused_and_nobody_dies(
    layer: GroupLayerV1, cgroup_factory: Factory, holder_of_memory: Callable[[ControlGroupV1, int], subprocess.Popen[bytes]]
) -> None:
    """EBUSY with what is in use in the message; the limit and the process stay. Growing and shrinking above the use is well."""
    group = cgroup_factory("a")
    actuator = MemoryActuator(layer, {"a": (group.path,)}, MemorySettings(2000 * MB, 50 * MB), DOMAINS)
    roomy, grown, tight = placement(a=300 * MB), placement(a=400 * MB), placement(a=50 * MB)
    for write in actuator.writes(roomy, None):
        assert (write.effect, write.slow) == (Effect.TAKE, True)
        write.knob.write(write.value)
    process = holder_of_memory(group, 150 * MB)
    for write in actuator.writes(grown, roomy):
        assert (write.effect, write.slow) == (Effect.GIVE, False)
        write.knob.write(write.value)
    (shrink,) = actuator.writes(tight, grown)
    assert (shrink.effect, shrink.slow) == (Effect.TAKE, True)
    with pytest.raises(
        KnobError,
        match=r"a/memory.limit_in_bytes: cannot set '\d+': Device or resource busy \(more than that is in use: 1[5-9]\d{7}",
    ) as caught:
        shrink.knob.write(shrink.value)
    assert caught.value.errno == errno.EBUSY
    assert actuator.read_back() == {KEY: {"a": 400 * MB}}
    assert process.poll() is None
    assert (group.memory_bytes() or 0) > 150 * MB


def test_a_limit_is_kept_by_reclaim(
    layer: GroupLayerV1,
    cgroup_factory: Factory,
    spawn: Callable[..., subprocess.Popen[bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A process that writes a file of three times its limit goes on, and the group never uses more than the limit."""
    group = cgroup_factory("a")
    actuator = MemoryActuator(layer, {"a": (group.path,)}, MemorySettings(1000 * MB, 50 * MB), DOMAINS)
    for write in actuator.writes(placement(a=50 * MB), None):
        write.knob.write(write.value)
    file = tmp_path_factory.mktemp("memory") / "file"
    process = spawn(group, "dd", "if=/dev/zero", f"of={file}", "bs=1M", "count=150", "status=none")
    assert process.wait(60) == 0
    file.unlink()
    assert int((group.directory(Controller.MEMORY) / "memory.max_usage_in_bytes").read_text()) <= 50 * MB


def test_several_groups_share_and_nothing_is_lost_to_pages(layer: GroupLayerV1, cgroup_factory: Factory) -> None:
    """1 GB is no whole number of pages, and less so a third of it: what is read back is what was written."""
    paths = tuple(cgroup_factory(name).path for name in "abc")
    job = cgroup_factory("be").path
    actuator = MemoryActuator(layer, {"web": paths, BEST_EFFORT: (job,)}, MemorySettings(8000 * MB, 1000 * MB), DOMAINS)
    assert actuator.read_back() == {KEY: {"web": 8000 * MB, BEST_EFFORT: 8000 * MB}}  # no limits yet
    for amount in (1000 * MB, 7000 * MB):
        for write in actuator.writes(placement(web=amount, best_effort=8000 * MB - amount), None):
            write.knob.write(write.value)
            assert write.knob.same(write.value, write.knob.read())
        assert actuator.read_back() == {KEY: {"web": amount, BEST_EFFORT: 8000 * MB - amount}}

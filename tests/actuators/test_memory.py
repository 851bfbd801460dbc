"""Memory: limits, their rounding, and what is slow."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.cgroup.group import Controller
from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.v1 import GroupLayerV1
from actuators.memory import MemoryActuator
from parties.knob import Effect
from parties.model import BEST_EFFORT, Core, Domain, Partition, PoolKey, Resource
from parties.placement import Placement
from parties.settings import MemorySettings

MakeGroup = Callable[[str], None]
GB = 1_000_000_000
KEY = PoolKey(Resource.MEMORY, 0)
DOMAIN = Domain(0, (Core(0, (0,)),))


def placement(**amounts: int) -> Placement:
    """Memory by holder, ``best_effort`` by keyword."""
    return Placement(Partition({KEY: {BEST_EFFORT if name == "best_effort" else name: n for name, n in amounts.items()}}), {}, {})


def test_lowering_takes_slowly_and_raising_gives_at_once(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Reclaim can take long, so lowering goes to the slow writer; whoever keeps his amount is not written."""
    for path in ("/a", "/b", "/be"):
        make_group(path)
    actuator = MemoryActuator(layer, {"a": ("/a",), "b": ("/b",), BEST_EFFORT: ("/be",)}, MemorySettings(9 * GB), (DOMAIN,))
    plan = actuator.writes(placement(a=4 * GB, b=3 * GB, best_effort=2 * GB), placement(a=3 * GB, b=3 * GB, best_effort=3 * GB))
    assert {(write.holder, write.effect, write.slow) for write in plan} == {
        ("a", Effect.GIVE, False),
        (BEST_EFFORT, Effect.TAKE, True),
    }


def test_a_start_compares_with_the_limit_in_force(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """From no limit every amount is a lowering; from a lower one a raise."""
    for path in ("/a", "/b"):
        make_group(path)
    layer.group("/b").memory_limit.write(str(GB // 2))
    actuator = MemoryActuator(layer, {"a": ("/a",), "b": ("/b",)}, MemorySettings(9 * GB), (DOMAIN,))
    plan = actuator.writes(placement(a=4 * GB, b=5 * GB), None)
    assert [(write.holder, write.effect, write.slow) for write in plan] == [("a", Effect.TAKE, True), ("b", Effect.GIVE, False)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(1, 40), st.sampled_from([GB, 4096, 1_048_576, 999_999_937]), st.integers(1, 4))
def test_amounts_read_back_as_written(layer: GroupLayerV1, make_group: MakeGroup, steps: int, step: int, groups: int) -> None:
    """Whatever the kernel's pages take off, for any step and number of groups; the sum never exceeds the amount."""
    paths = tuple(f"/a{number}" for number in range(groups))
    for path in paths:
        if layer.group(path).missing([Controller.MEMORY]):
            make_group(path)
    actuator = MemoryActuator(layer, {"a": paths}, MemorySettings(40 * step, step), (DOMAIN,))
    for write in actuator.writes(placement(a=steps * step), None):
        write.knob.write(write.value)
    limits = [int(layer.group(path).memory_limit.read() or 0) for path in paths]
    assert all(limit % 4096 == 0 for limit in limits)
    assert sum(limits) <= steps * step
    assert actuator.read_back() == {KEY: {"a": steps * step}}


def test_a_foreign_limit_is_seen_as_it_is(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """Not rounded to a step that nobody wrote; none at all is everything."""
    for path in ("/a", "/b"):
        make_group(path)
    layer.group("/a").memory_limit.write("123457536")
    actuator = MemoryActuator(layer, {"a": ("/a",), "b": ("/b",)}, MemorySettings(9 * GB), (DOMAIN,))
    assert actuator.read_back() == {KEY: {"a": 123457536, "b": 9 * GB}}


def test_the_total_is_cut_to_whole_steps(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """What is over belongs to nobody's partition. With several domains the pool is the node's."""
    make_group("/a")
    (pool,) = MemoryActuator(layer, {"a": ("/a",)}, MemorySettings(9 * GB + 5, GB), (DOMAIN,)).pools()
    assert (pool.key, pool.total, pool.step, pool.floor, pool.best_effort_floor) == (KEY, 9 * GB, GB, GB, 0)
    (pool,) = MemoryActuator(layer, {"a": ("/a",)}, MemorySettings(9 * GB), (DOMAIN, Domain(1, ()))).pools()
    assert pool.key == PoolKey(Resource.MEMORY)


def test_what_best_effort_keeps_is_whole_steps(layer: GroupLayerV1, make_group: MakeGroup) -> None:
    """An amount between two steps is the larger of them."""
    make_group("/a")
    for asked, kept in ((1, GB), (GB, GB), (GB + 1, 2 * GB)):
        (pool,) = MemoryActuator(layer, {"a": ("/a",)}, MemorySettings(9 * GB, GB, asked), (DOMAIN,)).pools()
        assert pool.best_effort_floor == kept


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (MemorySettings(GB - 1), "under a step of 1000000000"),
        (MemorySettings(GB, 0), "set a smaller, positive step"),
        (MemorySettings(9 * GB), "the machine has 8000000000"),
        (MemorySettings(8 * GB, GB, 8 * GB + 1), "best-effort jobs are to keep 8000000001 bytes of 8000000000; lower"),
    ],
)
def test_totals_that_cannot_be_are_refused(layer: GroupLayerV1, memory: MemorySettings, message: str) -> None:
    """An operator's mistake, told before anything is written."""
    with pytest.raises(SetupError, match=message):
        MemoryActuator(layer, {}, memory, (DOMAIN,), machine_bytes=8 * GB)


def test_without_the_controller_memory_is_not_managed() -> None:
    """The pool is there with the reason, and nothing is written."""
    actuator = MemoryActuator(GroupLayerV1(Hierarchies()), {"a": ("/a",)}, MemorySettings(9 * GB), (DOMAIN,))
    (pool,) = actuator.pools()
    assert not pool.managed
    assert "no control-group v1 hierarchy for memory" in pool.reason
    assert not actuator.writes(placement(a=GB), None)
    assert actuator.read_back() == {}

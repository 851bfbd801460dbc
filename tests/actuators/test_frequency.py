"""CPU frequency: what machines have, the levels that follow, and what a placement makes of each policy."""

from pathlib import Path

import cpufreq_trees as trees
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actuators.frequency.actuator import FrequencyActuator, frequency_actuator
from actuators.frequency.policy import find_policies
from parties.knob import Effect, KnobRef
from parties.model import BEST_EFFORT, IDLE, PoolKey, Resource
from parties.placement import Placement
from parties.settings import FrequencyMechanism, FrequencySettings

MHZ = 1_000_000
AUTO = FrequencySettings()
WIDE = "1200000 2201000"


def actuator(root: Path, shape: str = "acpi", wanted: FrequencySettings = AUTO) -> FrequencyActuator:
    """The actuator of a machine with four cores, each with a policy of its own."""
    trees.make_tree(root, trees.SHAPES[shape])
    return frequency_actuator(wanted, (trees.FOUR_CORES,), whole_cores=True, root=root)


def levels_mhz(made: FrequencyActuator) -> list[int]:
    """The levels of the only pool."""
    (pool,) = made.pools()
    assert pool.managed, pool.reason
    return [level // MHZ for level in pool.levels]


def values(made: FrequencyActuator, *arguments: object) -> dict[str, str]:
    """What is written to each policy."""
    return {Path(write.knob.ref.address[0]).name: write.value for write in made.writes(*arguments)}  # type: ignore[arg-type]


# What a machine has


@pytest.mark.parametrize(
    ("shape", "mechanism", "levels"),
    [
        ("acpi", "userspace", [*range(1200, 2201, 100), 2201]),
        ("acpi-cppc", "userspace", [*range(1200, 2201, 100), 3600]),
        ("acpi-coarse", "userspace", [1200, 1300, 1500, 1700, 1900, 2100, 2200]),
        ("acpi-fine", "userspace", [1000, 1100, 1200, 1300]),
        ("acpi-no-userspace", "cap", [*range(1200, 2201, 100), 2201]),
        ("intel-active", "cap", [*range(800, 2001, 100), 3500]),
        ("intel-no-turbo", "cap", [*range(800, 2001, 100)]),
        ("intel-passive", "userspace", [*range(800, 2001, 100), 3500]),
        ("intel-passive-no-base", "userspace", [*range(1200, 2601, 100)]),
        ("amd-active", "cap", [*range(450, 2451, 100), 3700]),
        ("amd-passive", "userspace", [*range(450, 2451, 100), 3700]),
        ("amd-guided", "cap", [*range(450, 2451, 100), 3700]),
        ("amd-boost-off", "userspace", [*range(450, 2451, 100)]),
    ],
)
def test_levels_are_those_of_the_hardware(tmp_path: Path, shape: str, mechanism: str, levels: list[int]) -> None:
    """In steps from base downwards, or as the driver's table has them; turbo on top where it is there and switched on."""
    made = actuator(tmp_path, shape)
    assert levels_mhz(made) == levels
    (write, *_) = made.writes(trees.placement({"a": [0]}, {"a": levels[0] * MHZ}), None)
    assert write.knob.ref.kind == f"cpufreq.{mechanism}"


def test_turbo_and_step_are_as_set(tmp_path: Path) -> None:
    """Without turbo the last level is base; a step of 200 MHz halves the levels."""
    made = actuator(tmp_path, "intel-passive", FrequencySettings(step_hz=200 * MHZ, turbo=False))
    assert levels_mhz(made) == list(range(800, 2001, 200))
    assert {pool.nominal_level for pool in made.pools()} == {2000 * MHZ}


def test_without_turbo_limits_end_at_base(tmp_path: Path) -> None:
    """The kernel lets no limit above base pass while turbo is switched off, and would not read back a higher one."""
    made = actuator(tmp_path, "amd-boost-off")
    assert values(made, trees.placement({"a": [0]}, {"a": 2450 * MHZ}), None) == {"policy0": "userspace 2450000 400000 2450000"}


def test_a_set_mechanism_is_taken(tmp_path: Path) -> None:
    """A cap where the driver would take a frequency as well."""
    made = actuator(tmp_path, "acpi", FrequencySettings(FrequencyMechanism.CAP))
    assert values(made, trees.placement({"a": [0, 1]}, {"a": 2201 * MHZ}), None) == {"policy0": "2201000", "policy1": "2201000"}
    assert levels_mhz(made)[-1] == 2201


@pytest.mark.parametrize(
    ("shape", "wanted", "words"),
    [
        ("intel-active", FrequencySettings(FrequencyMechanism.USERSPACE), "boot with intel_pstate=passive"),
        ("acpi-no-userspace", FrequencySettings(FrequencyMechanism.USERSPACE), "load the module cpufreq_userspace"),
        ("acpi", FrequencySettings(step_hz=1 * MHZ), "set step_hz to 25000000 or more"),
    ],
)
def test_what_cannot_be_done_is_told(tmp_path: Path, shape: str, wanted: FrequencySettings, words: str) -> None:
    """An unmanaged pool says what is in the way and what to do; nothing is planned."""
    made = actuator(tmp_path, shape, wanted)
    (pool,) = made.pools()
    assert not pool.managed
    assert words in pool.reason
    assert made.writes(trees.placement({"a": [0]}, {"a": 1200 * MHZ}), None) == []
    assert made.upkeep() == ()


def test_fractions_of_cores_have_no_frequency(tmp_path: Path) -> None:
    """A frequency belongs to whole cores."""
    trees.make_tree(tmp_path, trees.SHAPES["acpi"])
    (pool,) = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=False, root=tmp_path).pools()
    assert "whole cores" in pool.reason


def test_a_kernel_without_cpufreq_is_told(tmp_path: Path) -> None:
    """No directory at all."""
    (pool,) = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path).pools()
    assert "the kernel has no cpufreq" in pool.reason


def test_a_kernel_without_a_driver_is_told(tmp_path: Path) -> None:
    """An empty directory, as in most virtual machines; also where only one of the managed CPUs has no driver."""
    trees.make_tree(tmp_path / "a", None)
    (pool,) = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path / "a").pools()
    assert "no driver is active" in pool.reason
    trees.make_tree(tmp_path / "b", trees.SHAPES["acpi"], [(0,), (1,), (2,)])
    (pool,) = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path / "b").pools()
    assert "cpu3/cpufreq does not exist" in pool.reason


def test_one_policy_for_all_cores_is_told(tmp_path: Path) -> None:
    """Services could not differ; with a single core, or with threads of one core in one policy, they can."""
    trees.make_tree(tmp_path, trees.SHAPES["acpi"], [(0, 1, 2, 3)])
    pools = {
        cores: frequency_actuator(AUTO, (trees.domain_of(*cores),), whole_cores=True, root=tmp_path).pools()[0]
        for cores in (((0,), (1,), (2,), (3,)), ((0, 1), (2, 3)), ((0, 1),))
    }
    assert [pool.managed for pool in pools.values()] == [False, False, True]
    assert "services cannot differ" in pools[((0, 1), (2, 3))].reason


def test_each_domain_is_judged_by_itself(tmp_path: Path) -> None:
    """One socket with a shared policy is not managed, the other is."""
    trees.make_tree(tmp_path, trees.SHAPES["acpi"], [(0, 1), (2,), (3,)])
    domains = (trees.domain_of((0,), (1,)), trees.domain_of((2,), (3,), number=7))
    made = frequency_actuator(AUTO, domains, whole_cores=True, root=tmp_path)
    assert [(pool.key.domain, pool.managed) for pool in made.pools()] == [(0, False), (7, True)]
    key = PoolKey(Resource.FREQUENCY, 7)
    assert values(made, trees.placement({"a": [0, 2]}, {"a": 1500 * MHZ}, key), None) == {"policy2": f"userspace 1500000 {WIDE}"}


def test_what_could_be_better_is_told(tmp_path: Path) -> None:
    """A governor that is not loaded, once for all policies; CPUs beside the managed ones on their clock. Else nothing."""
    (told,) = actuator(tmp_path / "a", "acpi-no-userspace").problems
    assert "load the module cpufreq_userspace" in told
    assert actuator(tmp_path / "b", "intel-active").problems == ()
    trees.make_tree(tmp_path / "c", trees.SHAPES["acpi"], [(0, 3), (1,), (2,)])
    made = frequency_actuator(AUTO, (trees.domain_of((0,), (1,), (2,)),), whole_cores=True, root=tmp_path / "c")
    (told,) = made.problems
    assert "policy0: CPUs 3, which are not managed" in told


def test_cores_that_differ_share_what_all_have(tmp_path: Path) -> None:
    """Base is the lowest of all, turbo what each has of its own."""
    system = trees.make_tree(tmp_path, trees.SHAPES["intel-passive"])
    (system / "cpufreq/policy1/cpuinfo_max_freq").write_text("3800000\n")
    (system / "cpufreq/policy2/base_frequency").write_text("1800000\n")
    made = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path)
    assert levels_mhz(made)[-2:] == [1800, 3500]
    turbo = values(made, trees.placement({"a": [0, 1]}, {"a": 3500 * MHZ}), None)
    assert turbo == {"policy0": "performance - 800000 3500000", "policy1": "performance - 800000 3800000"}


def test_a_machine_that_says_nothing_useful_has_no_levels(tmp_path: Path) -> None:
    """Limits that cannot be read, tables without a common entry: a reason, and no error."""
    system = trees.make_tree(tmp_path, trees.SHAPES["acpi"])
    (system / "cpufreq/policy1/scaling_available_frequencies").write_text("999000\n")
    (pool,) = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path).pools()
    assert "no frequency in common" in pool.reason
    for name in ("scaling_available_frequencies", "cpuinfo_max_freq", "cpuinfo_min_freq"):
        (system / f"cpufreq/policy0/{name}").write_text("<unknown>\n")
    assert find_policies([0], tmp_path)[0].max_khz == 0
    (pool,) = frequency_actuator(AUTO, (trees.domain_of((0,)),), whole_cores=True, root=tmp_path).pools()
    assert not pool.managed


# What a placement makes of it


def test_a_start_sets_the_cores_of_every_holder(tmp_path: Path) -> None:
    """A fixed frequency below turbo, the performance governor as turbo; idle cores stay as they are."""
    made = actuator(tmp_path)
    where = trees.placement({"a": [0], BEST_EFFORT: [1], IDLE: [2]}, {"a": 2201 * MHZ, BEST_EFFORT: 1500 * MHZ})
    assert values(made, where, None) == {"policy0": f"performance - {WIDE}", "policy1": f"userspace 1500000 {WIDE}"}


def test_a_step_writes_the_cores_of_its_holder_only(tmp_path: Path) -> None:
    """Up gives, down takes; both are quick."""
    made = actuator(tmp_path)
    cpus = {"a": [0, 1], "b": [2]}
    before = trees.placement(cpus, {"a": 1500 * MHZ, "b": 1500 * MHZ})
    made.writes(before, None)
    up = made.writes(trees.placement(cpus, {"a": 1600 * MHZ, "b": 1500 * MHZ}), before)
    assert [(write.holder, write.effect, write.slow) for write in up] == [("a", Effect.GIVE, False)] * 2
    down = made.writes(trees.placement(cpus, {"a": 1500 * MHZ, "b": 1400 * MHZ}), before)
    assert [(write.value, write.effect) for write in down] == [(f"userspace 1400000 {WIDE}", Effect.TAKE)]


def test_a_core_that_changes_hands_is_set_for_its_new_holder(tmp_path: Path) -> None:
    """In the plan that moves the core, whether or not any level changes."""
    made = actuator(tmp_path)
    levels = {"a": 1500 * MHZ, "b": 1900 * MHZ}
    before = trees.placement({"a": [0, 1], "b": [2]}, levels)
    made.writes(before, None)
    (write,) = made.writes(trees.placement({"a": [0], "b": [1, 2]}, levels), before)
    assert (write.value, write.holder, write.effect) == (f"userspace 1900000 {WIDE}", "b", Effect.NEUTRAL)
    assert made.follows_cores


PLACEMENTS = st.builds(
    lambda shares, levels: trees.placement(
        {holder: [cpu for cpu, owner in enumerate(shares) if owner == holder] for holder in "ab"},
        {holder: level * 100 * MHZ for holder, level in zip("ab", levels, strict=True)},
    ),
    st.tuples(st.sampled_from("ab"), st.sampled_from("ab"), st.sampled_from("ab")),
    st.tuples(st.sampled_from([14, 15]), st.sampled_from([14, 16])),
)


@given(PLACEMENTS, st.lists(st.tuples(PLACEMENTS, st.booleans()), max_size=5))
def test_what_is_remembered_of_the_last_plan_does_not_show(
    tmp_path_factory: pytest.TempPathFactory, first: Placement, steps: list[tuple[Placement, bool]]
) -> None:
    """Also where a plan was refused, so that the next one begins with the placement before it, or another pool moved between."""
    root = tmp_path_factory.mktemp("tree")
    made, before = actuator(root), first
    made.writes(first, None)
    for after, done in steps:
        fresh = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=root)
        same = Placement(before.partition, dict(before.cpus), before.way_masks)
        plans = [one.writes(after, at) for one, at in ((made, before), (fresh, same))]
        told = [[(write.knob.ref, write.value, write.holder, write.effect, write.slow) for write in plan] for plan in plans]
        assert told[0] == told[1]
        before = after if done else before


def test_a_core_that_nobody_holds_is_as_it_was_found(tmp_path: Path) -> None:
    """Given up, it gets governor and limits back, off the tick, as that governor is slow to stop; so does one that is not named."""
    made = actuator(tmp_path)
    before = trees.placement({"a": [0, 1]}, {"a": 1500 * MHZ})
    for write in made.writes(before, None):
        assert write.slow  # from schedutil
        write.knob.write(write.value)
    (idle,) = made.writes(trees.placement({"a": [0], IDLE: [1]}, {"a": 1500 * MHZ}), before)
    assert (idle.value, idle.holder, idle.effect, idle.slow) == (f"schedutil - {WIDE}", IDLE, Effect.NEUTRAL, True)
    (unnamed,) = made.writes(trees.placement({"a": [0], BEST_EFFORT: [1]}, {"a": 1500 * MHZ}), before)
    assert unnamed.value == f"schedutil - {WIDE}"


def test_a_resumed_run_knows_what_was_found_before_it(tmp_path: Path) -> None:
    """What is in force is the earlier run's; idle cores get what the journal has."""
    system = trees.make_tree(tmp_path, trees.SHAPES["acpi"])
    ref = KnobRef("cpufreq.userspace", (str(system / "cpufreq/policy0"),))
    (system / "cpufreq/policy0/scaling_governor").write_text("performance\n")
    made = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path, found={ref: f"ondemand - {WIDE}"})
    before = trees.placement({"a": [0, 1]}, {"a": 1500 * MHZ})
    made.writes(before, None)
    assert values(made, trees.placement({"a": [1], IDLE: [0]}, {"a": 1500 * MHZ}), before) == {"policy0": f"ondemand - {WIDE}"}


def test_a_policy_of_several_runs_at_the_highest_level(tmp_path: Path) -> None:
    """Two cores on one clock: whoever wants more gets it, and the other as well."""
    trees.make_tree(tmp_path, trees.SHAPES["acpi"], [(0, 1), (2, 3)])
    assert [policy.cpus for policy in find_policies([3, 1, 2, 0], tmp_path)] == [(0, 1), (2, 3)]
    made = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=tmp_path)
    cpus = {"a": [0], "b": [1], "c": [2, 3]}
    before = trees.placement(cpus, {"a": 1500 * MHZ, "b": 1900 * MHZ, "c": 1200 * MHZ})
    plan = {write.holder: write.value for write in made.writes(before, None)}
    assert plan == {"b": f"userspace 1900000 {WIDE}", "c": f"userspace 1200000 {WIDE}"}
    lower = trees.placement(cpus, {"a": 1500 * MHZ, "b": 1300 * MHZ, "c": 1200 * MHZ})
    assert values(made, lower, before) == {"policy0": f"userspace 1500000 {WIDE}"}


def test_a_pool_that_is_not_partitioned_is_left_alone(tmp_path: Path) -> None:
    """Nobody is named, so nothing is written."""
    made = actuator(tmp_path)
    assert made.writes(trees.placement({"a": [0, 1]}, {}), None) == []


def test_an_offline_core_is_no_obstacle_to_a_start(tmp_path: Path) -> None:
    """Its policy is gone: the plan says so to the enforcer, and nothing is given back that was not found."""
    made = actuator(tmp_path)
    for file in (tmp_path / "sys/devices/system/cpu/cpufreq/policy1").iterdir():
        file.unlink()
    before = trees.placement({"a": [0, 1]}, {"a": 1500 * MHZ})
    assert set(values(made, before, None)) == {"policy0", "policy1"}
    assert values(made, trees.placement({"a": [0], IDLE: [1]}, {"a": 1500 * MHZ}), before) == {}
    assert made.read_back() == {trees.KEY: {"a": 2201 * MHZ}}


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(sorted(trees.SHAPES)), st.data())
def test_every_level_reads_back_as_written(tmp_path: Path, shape: str, data: st.DataObject) -> None:
    """For any machine and any level: what is written comes back as that level, and restoring brings back the tree as it was."""
    root = tmp_path / shape
    if not root.exists():
        trees.make_tree(root, trees.SHAPES[shape])
    system = root / "sys/devices/system/cpu"
    first = trees.contents(system)
    made = frequency_actuator(AUTO, (trees.FOUR_CORES,), whole_cores=True, root=root)
    (pool,) = made.pools()
    level = st.sampled_from(pool.levels)
    levels = {"a": data.draw(level), "b": data.draw(level), BEST_EFFORT: data.draw(level)}
    olds = {}
    for write in made.writes(trees.placement({"a": [0, 1], "b": [2], BEST_EFFORT: [3]}, levels), None):
        olds[write.knob.ref] = write.knob, write.knob.read()
        write.knob.write(write.value)
        assert write.knob.same(write.value, write.knob.read())
    assert made.read_back() == {pool.key: levels}
    for knob, old in olds.values():
        knob.restore(old)
    now = trees.contents(system)
    assert {name: now[name] for name in now if not name.endswith("setspeed")} == {
        name: first[name] for name in first if not name.endswith("setspeed")
    }


def test_values_of_others_are_read_back_as_they_are(tmp_path: Path) -> None:
    """A foreign frequency is no level; of several cores the lowest counts."""
    made = actuator(tmp_path, "intel-active")
    made.writes(trees.placement({"a": [0, 1]}, {"a": 1500 * MHZ}), None)
    (tmp_path / "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq").write_text("1234567\n")
    assert made.read_back() == {trees.KEY: {"a": 1_234_567_000}}

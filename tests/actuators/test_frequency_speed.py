"""What the cores really run at: the reading, and when a policy is said not to follow."""

import os
from pathlib import Path

import cpufreq_trees as trees
import pytest

from actuators.frequency.actuator import frequency_actuator
from actuators.frequency.speed import IN_A_ROW, KINDS, PERIOD_NS, Reading, SpeedKnob, SpeedTask, parse_readings
from monitors.frequency import FrequencyMonitor
from parties.interfaces import NeedsUpkeep
from parties.model import NS_PER_S
from parties.settings import FrequencySettings

FIXED, FREE = True, False


@pytest.mark.parametrize(
    ("reading", "follows"),
    [
        (Reading(1_500_000, 0, 1_500_000, FIXED), True),
        (Reading(1_590_000, 0, 1_500_000, FIXED), True),
        (Reading(1_410_000, 0, 1_500_000, FIXED), True),
        (Reading(2_200_000, 0, 1_500_000, FIXED), False),
        (Reading(1_200_000, 0, 1_500_000, FIXED), False),
        (Reading(800_000, 0, 1_500_000, FREE), True),
        (Reading(2_200_000, 0, 1_500_000, FREE), False),
        # A driver that gives back what was asked for: its register decides, and nothing does where there is none.
        (Reading(1_500_000, 2_200_000, 1_500_000, FIXED), False),
        (Reading(1_500_000, 1_500_000, 1_500_000, FIXED), True),
        # A tenth of a high frequency is more than the step.
        (Reading(3_300_000, 0, 3_500_000, FIXED), True),
        (Reading(900_000, 0, 800_000, FIXED), True),
    ],
)
def test_what_counts_as_following(*, reading: Reading, follows: bool) -> None:
    """Within the step or a tenth of what was asked for; slower than a cap is well."""
    assert reading.follows is follows


def task(*directories: str) -> SpeedTask:
    """A task over policies with two CPUs each."""
    return SpeedTask(SpeedKnob([Path(name) for name in directories]).ref, [(2 * n, 2 * n + 1) for n in range(len(directories))])


def test_one_reading_is_never_acted_on() -> None:
    """Only so many in a row are told, once; a good one begins the count anew."""
    looking = task("/p0", "/p1")
    off, on = "9\n2200000 0 1500000 1\n1500000 0 1500000 1", "9\n1500000 0 1500000 1\n-"
    said = [len(looking.judge(text, None).warnings) for text in [off] * (IN_A_ROW - 1) + [on] + [off] * (IN_A_ROW + 3)]
    assert said == [0] * (IN_A_ROW - 1) + [0] + [0] * (IN_A_ROW - 1) + [1] + [0] * 3
    assert looking.judge(on, None).writes == ()


def test_a_slow_reading_is_done_less_often() -> None:
    """Some machines need 20 ms for each core; the process that reads has other things to look after."""
    looking = task("/p0")
    looking.judge("100000000\n1500000 0 1500000 1", None)
    assert looking.period_ns == PERIOD_NS
    looking.judge("2500000000\n1500000 0 1500000 1", None)
    assert looking.period_ns == 50 * NS_PER_S


def test_the_warning_names_policy_and_frequencies() -> None:
    """What was asked for, what was found, what may be the reason."""
    looking = task("/p0")
    (warning,) = [text for _ in range(IN_A_ROW) for text in looking.judge("9\n3000000 0 1500000 0", None).warnings]
    assert "/p0: asked for 1500000 kHz at most, the cores run at 3000000 kHz" in warning
    assert "thermal" in warning


def test_a_failed_reading_is_told_and_nothing_is_known() -> None:
    """The last speeds are not taken for new ones."""
    looking = task("/p0")
    looking.judge("9\n1500000 0 1500000 1", None)
    assert looking.hz == {0: 1_500_000_000, 1: 1_500_000_000}
    assert "cannot be read" in looking.judge(None, OSError(5, "bad")).warnings[0]
    assert looking.hz == {}


def test_a_machine_is_read_by_its_kind(tmp_path: Path) -> None:
    """Another process makes the sensor from its address; a policy that is gone is a gap, not an error."""
    system = trees.make_tree(tmp_path, trees.SHAPES["acpi"])
    (system / "cpufreq/policy0/scaling_governor").write_text("userspace\n")
    (system / "cpufreq/policy0/scaling_setspeed").write_text("1500000\n")
    (system / "cpufreq/policy0/cpuinfo_cur_freq").write_text("1600000\n")
    (system / "cpufreq/policy1/cpuinfo_cur_freq").write_text("<unknown>\n")
    (system / "cpufreq/policy2/scaling_cur_freq").unlink()
    (system / "cpufreq/policy3/scaling_cur_freq").write_text("<unknown>\n")
    made = frequency_actuator(FrequencySettings(), (trees.FOUR_CORES,), whole_cores=True, root=tmp_path)
    assert isinstance(made, NeedsUpkeep)
    (looking,) = made.upkeep()
    sensor = KINDS[looking.ref.kind].make(looking.ref.address)
    before = trees.contents(system)
    sensor.write(looking.value)
    found = sensor.read()
    assert found is not None
    took, lines = found.split("\n", 1)
    assert int(took) > 0
    assert lines == "1200000 1600000 1500000 1\n1200000 0 2201000 0\n-\n-"
    assert parse_readings(found)[1][2:] == (None, None)
    assert sensor.same("", found)
    sensor.restore("")
    assert trees.contents(system) == before
    looking.judge(found, None)
    assert made.speeds() == {0: 1_200_000_000, 1: 1_200_000_000}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_only_root_may_read_is_left_out(tmp_path: Path) -> None:
    """The register, for a daemon without the right."""
    system = trees.make_tree(tmp_path, trees.SHAPES["acpi"])
    (system / "cpufreq/policy0/cpuinfo_cur_freq").write_text("1600000\n")
    (system / "cpufreq/policy0/cpuinfo_cur_freq").chmod(0)
    assert (SpeedKnob([system / "cpufreq/policy0"]).read() or "").endswith("\n1200000 0 2201000 0")


def test_a_holder_s_frequency_is_the_mean_of_its_cores() -> None:
    """Cores that are not known do not count; of none nothing is known."""
    monitor = FrequencyMonitor(lambda: {0: 1_000_000_000, 1: 2_000_000_000})
    assert monitor.of([0, 1, 7]) == 1_500_000_000
    assert monitor.of([1]) == 2_000_000_000
    assert monitor.of([7]) is None
    assert monitor.of([]) is None

"""Frequency: what a machine has, told as it is."""

from pathlib import Path

from actuators.frequency import FrequencyActuator, why_not_managed
from parties.model import Core, Domain, Partition, Resource
from parties.placement import Placement


def test_a_kernel_without_cpufreq_is_told(tmp_path: Path) -> None:
    """No directory at all."""
    assert "the kernel has no cpufreq" in why_not_managed((0, 1), tmp_path)


def test_a_kernel_without_a_driver_is_told(tmp_path: Path) -> None:
    """An empty directory, as in most virtual machines."""
    (tmp_path / "sys/devices/system/cpu/cpufreq").mkdir(parents=True)
    assert "no driver is active" in why_not_managed((0, 1), tmp_path)


def test_a_driver_is_named_and_not_claimed_to_be_missing(tmp_path: Path) -> None:
    """Driver and governors of the managed CPUs; the reason is this version, not the machine."""
    directory = tmp_path / "sys/devices/system/cpu/cpu1/cpufreq"
    directory.mkdir(parents=True)
    (directory / "scaling_driver").write_text("acpi-cpufreq\n")
    (directory / "scaling_available_governors").write_text("performance userspace\n")
    reason = why_not_managed((1,), tmp_path)
    assert reason == (
        "cpufreq driver acpi-cpufreq with governors performance, userspace found; managing it is not part of this version"
    )
    assert "no frequency scaling" in why_not_managed((0,), tmp_path)


def test_nothing_is_managed_and_every_domain_says_why(tmp_path: Path) -> None:
    """A pool for each domain with the reason; no writes, no amounts."""
    actuator = FrequencyActuator((Domain(0, (Core(0, (0,)),)), Domain(3, (Core(1, (1,)),))), root=tmp_path)
    assert [(pool.key.resource, pool.key.domain, pool.managed, bool(pool.reason)) for pool in actuator.pools()] == [
        (Resource.FREQUENCY, 0, False, True),
        (Resource.FREQUENCY, 3, False, True),
    ]
    assert not actuator.writes(Placement(Partition({}), {}, {}), None)
    assert actuator.read_back() == {}

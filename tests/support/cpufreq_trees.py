"""Fixture trees of /sys/devices/system/cpu with cpufreq: ordinary files where the kernel has its own, of machines as they are.

The shapes are those of drivers/cpufreq in Linux 6.1: which files a driver has, and what stands in them after boot. What the kernel
does with a write is in ``tests/emulation/cpufreq.py``; here a write is simply what is read afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parties.model import Core, Domain, Holder, Partition, PoolKey, Resource
from parties.placement import Placement

KEY = PoolKey(Resource.FREQUENCY, 0)
ALL_GOVERNORS = "conservative ondemand userspace powersave performance schedutil"
OWN_GOVERNORS = "performance powersave"
UNSUPPORTED = "<unsupported>"


@dataclass(frozen=True)
class Shape:
    """A machine: the files of each policy beside the common ones, and files of the whole machine by their path below ``cpu``."""

    driver: str
    low_khz: int
    high_khz: int
    governors: str = ALL_GOVERNORS
    governor: str = "schedutil"
    files: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    cpu_files: Mapping[str, str] = field(default_factory=dict)  # of each CPU


_TABLE = " ".join(str(khz) for khz in (2_201_000, *range(2_200_000, 1_199_999, -100_000)))
SHAPES: Mapping[str, Shape] = {
    # The paper's: Xeon E5-2699 v4 on acpi-cpufreq; the topmost entry of the table is turbo.
    "acpi": Shape("acpi-cpufreq", 1_200_000, 2_201_000, files={"scaling_available_frequencies": _TABLE, "bios_limit": "2201000"}),
    # The same on kernels that know the highest boost from CPPC.
    "acpi-cppc": Shape(
        "acpi-cpufreq", 1_200_000, 3_600_000, files={"scaling_available_frequencies": _TABLE, "bios_limit": "2201000"}
    ),
    # What QEMU is given, see the tests with a guest: uneven steps, no turbo.
    "acpi-coarse": Shape(
        "acpi-cpufreq",
        1_200_000,
        2_200_000,
        files={"scaling_available_frequencies": "2200000 2100000 1900000 1700000 1500000 1300000 1200000"},
    ),
    "acpi-fine": Shape(
        "acpi-cpufreq",
        1_000_000,
        1_300_000,
        files={"scaling_available_frequencies": "1300000 1250000 1200000 1150000 1100000 1050000 1000000"},
    ),
    "acpi-no-userspace": Shape(
        "acpi-cpufreq", 1_200_000, 2_201_000, "performance schedutil", files={"scaling_available_frequencies": _TABLE}
    ),
    "intel-active": Shape(
        "intel_pstate",
        800_000,
        3_500_000,
        OWN_GOVERNORS,
        "powersave",
        {"base_frequency": "2000000"},
        {"intel_pstate/no_turbo": "0", "intel_pstate/status": "active"},
    ),
    "intel-no-turbo": Shape(
        "intel_pstate",
        800_000,
        3_500_000,
        OWN_GOVERNORS,
        "powersave",
        {"base_frequency": "2000000"},
        {"intel_pstate/no_turbo": "1", "intel_pstate/status": "active"},
    ),
    "intel-passive": Shape(
        "intel_cpufreq",
        800_000,
        3_500_000,
        files={"base_frequency": "2000000"},
        machine={"intel_pstate/no_turbo": "0", "intel_pstate/status": "passive"},
    ),
    # Without HWP nothing tells where turbo begins.
    "intel-passive-no-base": Shape("intel_cpufreq", 1_200_000, 2_600_000, machine={"intel_pstate/no_turbo": "0"}),
    "amd-active": Shape(
        "amd-pstate-epp",
        400_000,
        3_700_000,
        OWN_GOVERNORS,
        "powersave",
        machine={"amd_pstate/status": "active"},
        cpu_files={"acpi_cppc/nominal_freq": "2450"},
    ),
    "amd-passive": Shape(
        "amd-pstate", 400_000, 3_700_000, machine={"amd_pstate/status": "passive"}, cpu_files={"acpi_cppc/nominal_freq": "2450"}
    ),
    "amd-guided": Shape(
        "amd-pstate",
        400_000,
        3_700_000,
        "performance schedutil",
        machine={"amd_pstate/status": "guided", "cpufreq/boost": "1"},
        cpu_files={"acpi_cppc/nominal_freq": "2450"},
    ),
    "amd-boost-off": Shape(
        "amd-pstate",
        400_000,
        3_700_000,
        machine={"amd_pstate/status": "passive", "cpufreq/boost": "0"},
        cpu_files={"acpi_cppc/nominal_freq": "2450"},
    ),
}


def make_tree(root: Path, shape: Shape | None, policies: Sequence[Sequence[int]] = ((0,), (1,), (2,), (3,))) -> Path:
    """A tree below ``root`` with these frequency domains; no shape: cpufreq without a driver. The directory of the CPUs."""
    system = root / "sys/devices/system/cpu"
    (system / "cpufreq").mkdir(parents=True)
    if shape is None:
        return system
    for cpus in policies:
        directory = system / f"cpufreq/policy{min(cpus)}"
        _write(directory, _policy_files(shape, cpus))
        for cpu in cpus:
            _write(system / f"cpu{cpu}", shape.cpu_files)
            (system / f"cpu{cpu}").mkdir(exist_ok=True)
            (system / f"cpu{cpu}/cpufreq").symlink_to(f"../cpufreq/policy{min(cpus)}")
    _write(system, shape.machine)
    return system


def _policy_files(shape: Shape, cpus: Sequence[int]) -> dict[str, str]:
    listed = " ".join(map(str, cpus))
    table = shape.files.get("scaling_available_frequencies", "").split()
    return {
        "affected_cpus": listed,
        "related_cpus": listed,
        "cpuinfo_min_freq": str(shape.low_khz),
        "cpuinfo_max_freq": str(shape.high_khz),
        "scaling_available_governors": shape.governors,
        "scaling_cur_freq": str(shape.low_khz),
        "scaling_driver": shape.driver,
        "scaling_governor": shape.governor,
        "scaling_max_freq": table[0] if table else str(shape.high_khz),
        "scaling_min_freq": str(shape.low_khz),
        "scaling_setspeed": UNSUPPORTED,
        **shape.files,
    }


def _write(directory: Path, files: Mapping[str, str]) -> None:
    for name, value in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(value + "\n")


def contents(system: Path) -> dict[str, str]:
    """Every file of a tree with its text, to be compared."""
    return {str(file.relative_to(system)): file.read_text() for file in sorted(system.rglob("*")) if file.is_file()}


def domain_of(*cores: Sequence[int], number: int = 0) -> Domain:
    """A domain with these physical cores, each given by its CPUs."""
    return Domain(number, tuple(Core(min(cpus), tuple(cpus)) for cpus in cores))


FOUR_CORES = domain_of((0,), (1,), (2,), (3,))


def placement(cpus: Mapping[Holder, Sequence[int]], levels_hz: Mapping[Holder, int], key: PoolKey = KEY) -> Placement:
    """Who has which CPUs, and who runs at which level."""
    return Placement(Partition({key: dict(levels_hz)}), {holder: tuple(share) for holder, share in cpus.items()}, {})

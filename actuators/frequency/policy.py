"""What cpufreq has on this machine: its policies, each a set of CPUs that share one frequency.

Frequencies are in kHz here, as cpufreq has them. *Base* is the highest frequency without turbo. The machine tells it in different
places: ``base_frequency`` (intel_pstate and intel_cpufreq with HWP); the table of acpi-cpufreq, whose topmost entry stands for
turbo where it is 1 MHz above the next (2201000 over 2200000); CPPC's nominal frequency (amd-pstate, cppc_cpufreq); the firmware's
limit. Where none does, the hardware maximum counts as base, and there is no turbo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from actuators.frequency import cpupower

SYSTEM = Path("sys/devices/system/cpu")
_TURBO_MARK_KHZ = 1000  # what acpi-cpufreq's entry for turbo is above the entry for base
_KHZ_PER_MHZ = 1000


@dataclass(frozen=True, slots=True)
class CpufreqPolicy:
    """One policy. ``table_khz`` is ascending and empty where the driver takes any frequency; ``turbo``: it has it, switched on."""

    directory: Path
    cpus: tuple[int, ...]
    driver: str
    governors: tuple[str, ...]
    table_khz: tuple[int, ...]
    min_khz: int
    max_khz: int
    base_khz: int
    turbo: bool

    @property
    def widest_khz(self) -> tuple[int, int]:
        """The widest limits that can be in force: of the table, if there is one; without turbo not above base."""
        return widest(self.table_khz, self.min_khz, self.max_khz if self.turbo else self.base_khz)


class _Source(Protocol):
    """Where the policies are described: cpupower's library or the kernel's files."""

    def driver(self, cpu: int) -> str: ...
    def governors(self, cpu: int) -> tuple[str, ...]: ...
    def frequencies(self, cpu: int) -> tuple[int, ...]: ...
    def affected(self, cpu: int) -> tuple[int, ...]: ...
    def hardware_limits(self, cpu: int) -> tuple[int, int]: ...


class CpufreqFiles:
    """The same answers as the library's, from the files below ``root``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._system = root / SYSTEM

    def driver(self, cpu: int) -> str:
        """The scaling driver; empty where there is none."""
        return self._text(cpu, "scaling_driver")

    def governors(self, cpu: int) -> tuple[str, ...]:
        """The governors that the kernel has loaded for this CPU."""
        return tuple(self._text(cpu, "scaling_available_governors").split())

    def frequencies(self, cpu: int) -> tuple[int, ...]:
        """The frequencies of the driver's table in kHz, ascending."""
        return frequencies_in_table(self._system / f"cpu{cpu}/cpufreq")

    def affected(self, cpu: int) -> tuple[int, ...]:
        """The online CPUs that share this one's policy."""
        return tuple(sorted(_numbers(self._text(cpu, "affected_cpus"))))

    def hardware_limits(self, cpu: int) -> tuple[int, int]:
        """The lowest and the highest frequency of the hardware in kHz; zeros where it does not tell."""
        return number(self._file(cpu, "cpuinfo_min_freq")), number(self._file(cpu, "cpuinfo_max_freq"))

    def _text(self, cpu: int, name: str) -> str:
        return text(self._file(cpu, name))

    def _file(self, cpu: int, name: str) -> Path:
        return self._system / f"cpu{cpu}/cpufreq/{name}"


def find_policies(cpus: Iterable[int], root: Path = Path("/")) -> tuple[CpufreqPolicy, ...]:
    """The policies of these CPUs, in the order of their first CPU; a CPU that has none is in none of them."""
    library = cpupower.load() if root == Path("/") else None
    source: _Source = library or CpufreqFiles(root)
    found: list[CpufreqPolicy] = []
    seen: set[int] = set()
    for cpu in sorted(cpus):
        if cpu in seen or not source.driver(cpu):
            continue
        policy = _describe(cpu, source, root / SYSTEM)
        seen.update(policy.cpus)
        found.append(policy)
    return tuple(found)


def _describe(cpu: int, source: _Source, system: Path) -> CpufreqPolicy:
    directory = (system / f"cpu{cpu}/cpufreq").resolve()
    table = source.frequencies(cpu)
    low, high = source.hardware_limits(cpu)
    low, high = low or min(table, default=0), high or max(table, default=0)
    base = min(_base_khz(directory, system / f"cpu{cpu}", table) or high, high)
    return CpufreqPolicy(
        directory=directory,
        cpus=source.affected(cpu) or (cpu,),
        driver=source.driver(cpu),
        governors=source.governors(cpu),
        table_khz=table,
        min_khz=low,
        max_khz=high,
        base_khz=base,
        turbo=high > base and turbo_on(directory, system),
    )


def _base_khz(directory: Path, cpu: Path, table: tuple[int, ...]) -> int:
    """The highest frequency without turbo; 0 where the machine does not tell."""
    if stated := number(directory / "base_frequency"):
        return stated
    if table:
        marked = len(table) > 1 and table[-1] - table[-2] == _TURBO_MARK_KHZ
        return table[-2] if marked else table[-1]
    return number(cpu / "acpi_cppc/nominal_freq") * _KHZ_PER_MHZ or number(directory / "bios_limit")


def widest(table_khz: tuple[int, ...], low_khz: int, high_khz: int) -> tuple[int, int]:
    """The limits that the kernel makes of these: it rounds them into the driver's table, which is ascending, or empty."""
    fitting = [khz for khz in table_khz if low_khz <= khz <= high_khz]
    return (fitting[0], fitting[-1]) if fitting else (low_khz, high_khz)


def turbo_on(directory: Path, system: Path) -> bool:
    """Whether every switch for turbo that there is stands on: intel_pstate's, the machine's, the policy's."""
    return all(_turbo_switches(directory, system))


def _turbo_switches(directory: Path, system: Path) -> Iterator[bool]:
    if off := text(system / "intel_pstate/no_turbo"):
        yield off == "0"
    for file in (system / "cpufreq/boost", directory / "boost"):
        if on := text(file):
            yield on != "0"


def why_not_managed(cpus: Iterable[int], root: Path = Path("/")) -> str:
    """Why the frequency of these CPUs cannot be set, as far as the machine is the reason; empty if each has a policy."""
    system = root / SYSTEM
    lacking = [cpu for cpu in sorted(cpus) if not text(system / f"cpu{cpu}/cpufreq/scaling_driver")]
    if not lacking:
        return ""
    if (system / "cpufreq").is_dir():
        why = "the kernel has cpufreq but no driver is active (none fits, as in most virtual machines, or the firmware forbids it)"
    else:
        why = "the kernel has no cpufreq (CONFIG_CPU_FREQ)"
    return f"no frequency scaling: {system}/cpu{lacking[0]}/cpufreq does not exist; {why}"


def frequencies_in_table(directory: Path) -> tuple[int, ...]:
    """The driver's table in kHz, ascending; empty where it takes any frequency."""
    return tuple(sorted(_numbers(text(directory / "scaling_available_frequencies"))))


def text(file: Path) -> str:
    """Empty where there is none: a machine that does not tell has not got it."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def number(file: Path) -> int:
    """The number in a file; 0 where there is none."""
    return next(iter(_numbers(text(file))), 0)


def _numbers(listed: str) -> tuple[int, ...]:
    """The numbers of a list; "<unsupported>" and the like are none."""
    return tuple(int(word) for word in listed.split() if word.isdecimal())

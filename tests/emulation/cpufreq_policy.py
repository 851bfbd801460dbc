"""A model of one cpufreq policy: what the kernel's core and its drivers make of what is written (drivers/cpufreq, Linux 6.1)."""

from __future__ import annotations

import errno
import re
import time
from dataclasses import dataclass, field

from tests.emulation.kernel_text import refusal

STEP_KHZ = 100_000
UNSUPPORTED = "<unsupported>"
GOVERNORS = ("conservative", "ondemand", "userspace", "powersave", "performance", "schedutil")
_OWN_POLICY = frozenset({"intel_pstate", "amd-pstate-epp"})  # drivers that choose the frequency themselves
_PREFERENCES = ("default", "performance", "balance_performance", "balance_power", "power")


@dataclass(frozen=True)
class CpufreqOptions:
    """The machine that is emulated. Frequencies are in kHz, as in the files.

    CPUs are numbered as Linux does: first one thread of every core, socket by socket, then the second threads.
    """

    driver: str = "acpi-cpufreq"  # or intel_pstate, intel_cpufreq, amd-pstate-epp, amd-pstate; empty: no driver at all
    governors: list[str] = field(default_factory=lambda: list(GOVERNORS))
    governor: str = ""  # in force at the start; empty: schedutil, or powersave where the driver chooses
    min_khz: int = 1_200_000
    base_khz: int = 2_200_000
    turbo_khz: int = 3_000_000
    turbo_barred: bool = False  # by the firmware
    policies: list[list[int]] | None = None  # frequency domains; None: one for each CPU
    sockets: int = 1
    cores: int = 2  # of each socket
    threads: int = 1
    l3_ids: list[int] | None = None  # of each socket; None: 0, 1, ...
    settle_ms: int = 0  # limits take effect that long after the write has returned
    measured_per_mille: int = 1000  # what scaling_cur_freq says of the frequency asked for


@dataclass
class Turbo:
    """Whether turbo is on; one for the machine."""

    on: bool = True


class Policy:
    """One frequency domain. ``write`` and ``read`` take the names of its files."""

    def __init__(self, options: CpufreqOptions, driver: str, cpus: list[int], turbo: Turbo) -> None:
        self.driver = driver
        self.cpus = cpus
        self._options = options
        self._turbo = turbo
        self.chooses = driver in _OWN_POLICY
        self._table = self._frequencies() if driver == "acpi-cpufreq" else []
        self._floor = options.min_khz
        self._ceiling = self._table[0] if self._table else options.turbo_khz
        self.governor = options.governor or ("powersave" if self.chooses else "schedutil")
        if self.chooses and self.governor not in {"performance", "powersave"}:
            self.governor = "powersave"
        self._asked = [self._floor, self._ceiling]
        self._limits = [self._floor, self._ceiling]
        self._pending: tuple[float, list[int]] | None = None
        self._setspeed = self._ceiling
        self._preference = "balance_performance"
        self.max_perf_pct = 100

    def _frequencies(self) -> list[int]:
        """Of acpi-cpufreq: turbo is the pseudo-frequency one MHz above the highest real one."""
        real = list(range(self._options.base_khz, self._options.min_khz - 1, -STEP_KHZ))
        return [self._options.base_khz + 1000, *real] if self._options.turbo_khz > self._options.base_khz else real

    # Files

    def modes(self) -> dict[str, int]:
        """The files and their permissions."""
        both = dict.fromkeys(("scaling_governor", "scaling_max_freq", "scaling_min_freq", "scaling_setspeed"), 0o644)
        own = {
            "affected_cpus", "related_cpus", "cpuinfo_max_freq", "cpuinfo_min_freq", "cpuinfo_transition_latency",
            "scaling_available_governors", "scaling_cur_freq", "scaling_driver",
        }  # fmt: skip
        if self._table:
            own |= {"scaling_available_frequencies", "bios_limit", "freqdomain_cpus"}
            both["cpuinfo_cur_freq"] = 0o400
        elif self.driver in {"intel_pstate", "intel_cpufreq"}:
            own |= {"base_frequency", "energy_performance_available_preferences"}
            both["energy_performance_preference"] = 0o644
        else:
            own |= {"amd_pstate_highest_perf", "amd_pstate_lowest_nonlinear_freq", "amd_pstate_max_freq"}
            if self.chooses:
                own.add("energy_performance_available_preferences")
                both["energy_performance_preference"] = 0o644
        return both | dict.fromkeys(own, 0o444)

    def read(self, name: str) -> str:
        """The text of a file."""
        self._settle()
        cpus = " ".join(map(str, self.cpus))
        khz = {
            "cpuinfo_max_freq": self._ceiling, "cpuinfo_min_freq": self._floor, "bios_limit": self._ceiling,
            "scaling_max_freq": self._limits[1], "scaling_min_freq": self._limits[0], "cpuinfo_cur_freq": self._target(),
            "scaling_cur_freq": self._measured(), "base_frequency": self._options.base_khz,
            "amd_pstate_max_freq": self._ceiling, "amd_pstate_lowest_nonlinear_freq": self._floor + 2 * STEP_KHZ,
        }  # fmt: skip
        if name in khz:
            return f"{khz[name]}\n"
        return {
            "affected_cpus": cpus, "related_cpus": cpus, "freqdomain_cpus": cpus, "cpuinfo_transition_latency": "10000",
            "scaling_available_governors": self._governors(), "scaling_driver": self.driver, "scaling_governor": self.governor,
            "scaling_available_frequencies": " ".join(map(str, self._table)) + " ",
            "scaling_setspeed": str(self._target()) if self.governor == "userspace" else UNSUPPORTED,
            "amd_pstate_highest_perf": "166", "energy_performance_available_preferences": " ".join(_PREFERENCES) + " ",
            "energy_performance_preference": "performance" if self._performs() else self._preference,
        }[name] + "\n"  # fmt: skip

    def write(self, name: str, text: str) -> None:
        """One write of a file."""
        self._settle()
        if name == "scaling_governor":
            self._set_governor(text)
        elif name == "scaling_setspeed":
            if self.governor != "userspace":
                raise refusal(errno.EINVAL)
            self._setspeed = number(text)
        elif name in {"scaling_min_freq", "scaling_max_freq"}:
            self._asked[name == "scaling_max_freq"] = number(text)
            self.update()
        elif name == "energy_performance_preference":
            self._prefer(text.strip())

    # What the kernel makes of it

    def update(self) -> None:
        """Let the limits asked for take effect, as far as hardware and firmware have them."""
        due = time.monotonic() + self._options.settle_ms / 1000
        self._pending = due, self._resolved()
        self._settle()

    def _settle(self) -> None:
        if self._pending is not None and time.monotonic() >= self._pending[0]:
            self._limits, self._pending = self._pending[1], None

    def _resolved(self) -> list[int]:
        top = self._ceiling if self._table or self._turbo.on else self._options.base_khz
        low, high = (min(max(khz, self._floor), top) for khz in self._asked)
        low = min(low, high)
        if self._table:  # to the table's steps: the lower limit upwards, the upper one downwards
            if not any(low <= khz <= high for khz in self._table):
                high = min(khz for khz in self._table if khz > high)
            low = min(khz for khz in self._table if khz >= low)
            high = max(khz for khz in self._table if khz <= high)
        return [low, high]

    def _target(self) -> int:
        """The frequency asked of the hardware. Who follows the load has a busy machine."""
        low, high = self._limits
        if self.governor == "powersave" and not self.chooses:
            return low
        if self.governor != "userspace":
            return high
        wanted = min(max(self._setspeed, low), high)
        if self._table:  # the lowest step that is not below, within the limits
            return min((khz for khz in self._table if wanted <= khz <= high), default=high)
        return min(-(-wanted // STEP_KHZ) * STEP_KHZ, high)

    def _measured(self) -> int:
        khz = self._target()
        if self._table and khz > self._options.base_khz:
            khz = self._options.turbo_khz if self._turbo.on else self._options.base_khz
        elif not self._table:
            khz = min(khz, self._ceiling * self.max_perf_pct // 100)
        return khz * self._options.measured_per_mille // 1000

    def _governors(self) -> str:
        if self.chooses:
            return "performance powersave"
        return " ".join(self._options.governors) + " "

    def _set_governor(self, text: str) -> None:
        words = text.split()
        name = words[0][:15].lower() if words else ""  # names are compared without case
        if name not in self._governors().split():
            raise refusal(errno.EINVAL)
        if name == "userspace" and self.governor != "userspace":
            self._setspeed = self._target()
        self.governor = name

    def _performs(self) -> bool:
        return self.chooses and self.governor == "performance"

    def _prefer(self, preference: str) -> None:
        if preference not in _PREFERENCES:
            raise refusal(errno.EINVAL)
        if self._performs() and preference != "performance":
            raise refusal(errno.EBUSY)
        self._preference = "balance_performance" if preference == "default" else preference


def number(text: str) -> int:
    """A decimal number as ``sscanf`` takes it: what follows it is passed over, and it wraps. EINVAL where there is none."""
    match = re.match(r"\s*\+?(\d+)", text)
    if match is None:
        raise refusal(errno.EINVAL)
    return int(match[1]) % (1 << 32)

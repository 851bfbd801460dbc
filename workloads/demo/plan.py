"""What the demo plays: its times, its loads, and the part of the machine that it has managed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parties.settings import (
    GIB,
    BestEffortSettings,
    ControlSettings,
    CoreDivision,
    CoreSettings,
    DiskSettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
    PartiesSettings,
    ServiceSettings,
)
from workloads.load import Profile
from workloads.sandbox import Group, Sandbox
from workloads.services import Memcached, Nginx, ServiceProgram, StressNg

MS = 1_000_000
INTERVAL_NS = 500 * MS
AFTER_NS = 20_000 * MS  # violations are also counted from here on, when a controller has had time to settle
PERIOD_NS = 10 * MS  # of CPU bandwidth control
STEP_MILLICORES = 100  # with less, each step of a ramp is a violation that the next step has to cure
FLOOR_MILLICORES = 200
MANAGED_MILLICORES = 1000
SCAN_MILLICORES = MANAGED_MILLICORES - FLOOR_MILLICORES  # the most that a service can ever hold beside another one
# The paper's 1 GB is of a machine with 120 GB and services of up to 18; these use a few MB.
MEMORY_BYTES = 3 * GIB
MEMORY_STEP_BYTES = GIB // 4
MEMORY_SLACK_BYTES = GIB // 8
DISK_BYTES_PER_S = 600_000_000  # a twentieth is the default step
MANAGERS = ("unmanaged", "idle-only", "equal", "parties")

MEMCACHED = Memcached()
NGINX = Nginx()
STRESS = StressNg()
PROGRAMS: tuple[ServiceProgram, ...] = (MEMCACHED, NGINX)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The load over time, in seconds: low, up, high, down, low again."""

    settle_s: float  # a controller finds its allocation; what is violated later is also counted apart
    quiet_s: float  # the low load goes on
    rise_s: float
    high_s: float
    fall_s: float
    low_s: float

    @property
    def length_s(self) -> float:
        """How long a manager is tried."""
        return self.settle_s + self.quiet_s + self.rise_s + self.high_s + self.fall_s + self.low_s

    @property
    def intervals(self) -> int:
        """How many intervals that is."""
        return int(self.length_s * 1e9) // INTERVAL_NS


FULL = Timeline(settle_s=20, quiet_s=3, rise_s=16, high_s=12, fall_s=5, low_s=14)
QUICK = Timeline(settle_s=7, quiet_s=0, rise_s=7, high_s=5, fall_s=2, low_s=4)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A service's target and maximum load on this machine."""

    target_ns: int
    max_load_rps: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One demo: loads are fractions of each service's maximum load."""

    timeline: Timeline = FULL
    seed: int = 1
    managers: tuple[str, ...] = MANAGERS
    quick: bool = False
    ramp_low: float = 0.10  # memcached
    ramp_high: float = 0.75
    hold: float = 0.15  # nginx

    def profiles(self, calibrations: dict[str, Calibration]) -> dict[str, Profile]:
        """The load of each service: one ramps, the other holds."""
        line = self.timeline
        low, high = (share * calibrations[MEMCACHED.name].max_load_rps for share in (self.ramp_low, self.ramp_high))
        held = self.hold * calibrations[NGINX.name].max_load_rps
        up_s = line.settle_s + line.quiet_s
        top_s = up_s + line.rise_s
        down_s = top_s + line.high_s
        ramp = [(0.0, low), (up_s, low), (top_s, high), (down_s, high), (down_s + line.fall_s, low), (line.length_s, low)]
        return {MEMCACHED.name: ramp, NGINX.name: [(0.0, held), (line.length_s, held)]}


def control_settings(  # noqa: PLR0913 - what a run of the daemon depends on
    policy: str,
    *,
    plan: Plan,
    box: Sandbox,
    groups: dict[str, Group],
    calibrations: dict[str, Calibration],
    device: str | None,
    record: Path,
) -> ControlSettings:
    """The daemon's settings: the same for every manager but for the policy's name."""
    return ControlSettings(
        services=tuple(
            ServiceSettings(
                name=program.name,
                cgroups=(groups[program.name].path,),
                target_ns=calibrations[program.name].target_ns,
                ports=(program.port,),
            )
            for program in PROGRAMS
        ),
        best_effort=(BestEffortSettings(name=STRESS.name, cgroups=(groups[STRESS.name].path,)),),
        node=NodeSettings(
            name="demo",
            cores=CoreSettings(
                reserved_cpus=box.cpus.reserved,
                managed_cpus=box.cpus.managed,
                division=CoreDivision.FRACTIONS,
                step_millicores=STEP_MILLICORES,
                floor_millicores=FLOOR_MILLICORES,
                period_ns=PERIOD_NS,
            ),
            memory=MemorySettings(total_bytes=MEMORY_BYTES, step_bytes=MEMORY_STEP_BYTES),
            disk=DiskSettings(device=device, rate_bytes_per_s=DISK_BYTES_PER_S) if device else None,
            network=NetworkSettings(
                device=box.server_device,
                rate_bits_per_s=5_000_000_000,
                namespace=box.server_namespace,
                step_bits_per_s=500_000_000,
            ),
        ),
        interval_ns=INTERVAL_NS,
        policy=policy,
        seed=plan.seed,
        parties=PartiesSettings(memory_slack_bytes=MEMORY_SLACK_BYTES),
        runtime_directory=str(box.directory / "run"),
        state_directory=str(box.directory / "state"),
        record=str(record),
    )

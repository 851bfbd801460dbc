"""What actuators and monitors may ask of a control group, in terms that v1 and v2 share.

Values are in one form for both versions, so that an actuator need not know which it has:

====================  ======================================  =========================  ==================================
knob                  value                                   v1                         v2
====================  ======================================  =========================  ==================================
``cpus``, ``mems``    ``"0-1,4"``                             cpuset.cpus, .mems         the same names
``cpu_bandwidth``     ``"QUOTA_US PERIOD_US"``, ``"max ..."``  cfs_quota_us, _period_us   cpu.max, one file
``cpu_class``         ``"idle=1"``; ``"shares=N"`` on v1,      cpu.idle, cpu.shares       cpu.idle, cpu.weight
                      ``"weight=N"`` on v2
``memory_limit``      bytes, None where unset;                memory.limit_in_bytes      memory.high and memory.max
                      ``MemoryLimit`` where two differ
``disk_throttle``     bytes/s, None where unset               blkio.throttle, a file     io.max: a key of the device's line
                                                              for each direction
``freezer``           ``"FROZEN"`` or ``"THAWED"``            freezer.state              cgroup.freeze, cgroup.events
====================  ======================================  =========================  ==================================

On v2 a value of None also stands for the kernel's default, and for a controller that is not enabled in the group; of ``cpus`` and
``mems`` that is "inherited".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from actuators.cgroup.hierarchy import Hierarchies
from parties.knob import Knob

FROZEN = "FROZEN"
THAWED = "THAWED"
IDLE_CLASS = "idle=1"
ENABLED = "enabled"
DEFAULT_PERIOD_US = 100_000


class Direction(enum.StrEnum):
    """Of disk traffic."""

    READ = "read"
    WRITE = "write"


class Controller(enum.StrEnum):
    """What a group must be able to do; v1 has a hierarchy for each, v2 a controller or the tree itself."""

    CPU = "cpu"
    CPUACCT = "cpuacct"
    CPUSET = "cpuset"
    MEMORY = "memory"
    DISK = "blkio"
    FREEZER = "freezer"


@dataclass(frozen=True, slots=True)
class CpuBandwidth:
    """CPU time per period for all CPUs together; ``quota_us`` is None where it is not limited."""

    quota_us: int | None
    period_us: int = DEFAULT_PERIOD_US

    def __str__(self) -> str:
        return f"{'max' if self.quota_us is None else self.quota_us} {self.period_us}"

    @classmethod
    def parse(cls, text: str) -> CpuBandwidth:
        """The inverse of ``str``. Raises ValueError."""
        quota, period = text.split()
        return cls(None if quota == "max" else int(quota), int(period))


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Both limits of v2 in bytes, None where unset; v1 has ``maximum`` alone, which is then ``high`` as well."""

    high: int | None = None
    maximum: int | None = None

    @property
    def least(self) -> int | None:
        """What the group may use; None without limits."""
        return min((limit for limit in (self.high, self.maximum) if limit is not None), default=None)

    def __str__(self) -> str:
        if self.high == self.maximum and self.high is not None:
            return str(self.high)
        return " ".join(f"{name}={'max' if n is None else n}" for name, n in (("high", self.high), ("max", self.maximum)))

    @classmethod
    def parse(cls, text: str | None) -> MemoryLimit:
        """The inverse of ``str``; None stands for no limits. Raises ValueError."""
        if text is None:
            return cls()
        if not text.startswith("high="):
            return cls(int(text), int(text))
        high, maximum = (part.partition("=")[2] for part in text.split())
        return cls(*(None if number == "max" else int(number) for number in (high, maximum)))


class ControlGroup(Protocol):
    """One control group. Knobs and readers keep descriptors and raise KnobError; readers give None where the kernel cannot tell."""

    @property
    def path(self) -> str:
        """The path below the mount point, "/web/nginx"."""

    def missing(self, needs: Iterable[Controller]) -> tuple[str, ...]:
        """The directories that should be there for ``needs`` and are not."""

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Why the group, though it exists, cannot do ``needs`` even after ``enabling``, and what to do; empty if it can."""

    def enabling(self, needs: Iterable[Controller]) -> tuple[Knob, ...]:
        """What has to be at ``ENABLED`` for ``needs`` to be done, in this order; it may be already."""

    @property
    def cpus(self) -> Knob:
        """The CPUs that its processes may run on."""

    @property
    def mems(self) -> Knob:
        """The NUMA nodes that its processes may allocate from."""

    @property
    def cpu_bandwidth(self) -> Knob:
        """CPU time per period."""

    @property
    def cpu_class(self) -> Knob:
        """Its standing among its siblings where CPUs are shared."""

    @property
    def memory_limit(self) -> Knob:
        """The limit of memory, page cache included."""

    def disk_throttle(self, device: str, direction: Direction) -> Knob:
        """The limit of one whole disk's traffic; ``device`` is "MAJ:MIN"."""

    @property
    def freezer(self) -> Knob:
        """Whether its processes run at all."""

    def cpus_in_force(self) -> str | None:
        """The CPUs that its processes really may run on, also where nobody has set any; None where there are none."""

    def pids(self) -> tuple[int, ...]:
        """Its processes, those of groups below it included; none where it is gone."""

    def cpu_usage_ns(self) -> int | None:
        """CPU time used so far."""

    def memory_bytes(self) -> int | None:
        """The working set: what is charged to it, less the page cache that the kernel would drop first (inactive file pages)."""

    def disk_bytes(self, device: str) -> int | None:
        """Bytes read and written so far on one whole disk ("MAJ:MIN"); None while the kernel does not count them."""

    def close(self) -> None:
        """Give up descriptors. Writes nothing."""


class GroupLayer(Protocol):
    """One version of control groups on one machine, or both."""

    @property
    def hierarchies(self) -> Hierarchies:
        """Where they are mounted."""

    def lacks(self, needs: Iterable[Controller]) -> str:
        """Why ``needs`` cannot be had here, and what to do; empty if they can."""

    def group(self, path: str) -> ControlGroup:
        """The group of that path, whether it exists or not."""

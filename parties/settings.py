"""What the control process is told: plain values with their defaults, no file format.

The file format is derived from these classes (``parties.config``): a field's unit suffix is how its TOML value is read, so that
``interval_ns`` is written ``interval = "500ms"``. A new setting is one new field here, with its meaning in a comment.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

MS = 1_000_000
GIB = 1024**3
HISTOGRAM_SOCKET = "histogram.sock"


class CoreDivision(enum.StrEnum):
    """How cores are handed out."""

    AUTO = "auto"  # whole cores where there is one for each holder, else fractions
    WHOLE = "whole"  # cpuset, whole physical cores
    FRACTIONS = "fractions"  # CPU bandwidth of shared cores


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """The signal between histogram socket and policy. Each part can be switched off; ``raw`` switches off all four."""

    raw: bool = False  # the paper's letter: the interval's percentile, whatever its samples
    window: bool = True  # grow the window until the percentile is supported
    bounds: bool = True  # judge downsizing by the upper confidence bound
    vote: bool = True  # majority over sub-intervals, as in the authors' script
    stalled: bool = True  # tell stalled and failing apart from slow
    sub_intervals: int = 5  # per interval
    longest_window_ns: int = 10_000 * MS  # the growing window's limit
    confidence: float = 0.95  # of the bounds, two-sided
    stale_after_ns: int = 1_000 * MS  # no message for so long (and at least two intervals): stale
    failing_error_rate: float = 0.1  # this fraction of failed answers: failing


@dataclass(frozen=True, slots=True)
class PartiesSettings:
    """The constants of the paper, sections 4.2 and 4.3."""

    upsize_slack: float = 0.05  # below: the service is in (near) violation
    downsize_slack: float = 0.20  # above: the service has something to give
    downsize_block_ns: int = 30_000 * MS  # after a reverted downsize
    migrate_after_ns: int = 60_000 * MS  # without an allocation that meets every target
    memory_slack_bytes: int = 1_000_000_000  # "almost saturated" below it; in-memory services keep it
    network_headroom_low_bits_per_s: int = 500_000_000
    network_headroom_high_bits_per_s: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Cores: CPUs by number, divided or whole."""

    reserved_cpus: tuple[int, ...] = ()  # for system, interrupts, clients and the controller
    managed_cpus: tuple[int, ...] = ()  # empty: all but the reserved ones
    division: CoreDivision = CoreDivision.AUTO
    step_millicores: int = 50  # of divided cores; whole ones move as 1000
    floor_millicores: int = 100  # the least that a service keeps of divided cores
    period_ns: int = 10 * MS  # of CPU bandwidth control; step and floor are fractions of it


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Memory: the amount under management and its step."""

    total_bytes: int
    step_bytes: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DiskSettings:
    """Disk bandwidth of one device."""

    device: str  # "/dev/sda" or "8:0"
    rate_bytes_per_s: int = 0  # 0: measured at the start by reading the device
    step_bytes_per_s: int = 0  # 0: a twentieth of the rate


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Egress bandwidth of one network device."""

    device: str
    rate_bits_per_s: int
    namespace: str = ""  # a network namespace by name; empty: the daemon's own
    step_bits_per_s: int = 500_000_000


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What is managed; a resource without a table here is not."""

    name: str = "host"
    cores: CoreSettings | None = None
    memory: MemorySettings | None = None
    disk: DiskSettings | None = None
    network: NetworkSettings | None = None


@dataclass(frozen=True, slots=True)
class Amounts:
    """Limits of one holder, each in its resource's unit; 0 means no limit."""

    cores_millicores: int = 0
    cache_ways: int = 0
    frequency_hz: int = 0
    memory_bytes: int = 0
    disk_bytes_per_s: int = 0
    network_bits_per_s: int = 0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """A latency-critical service: where its processes are, its QoS target, and what it must or may hold."""

    name: str
    cgroups: tuple[str, ...]  # paths below each controller's mount point, "/web/nginx"
    target_ns: int
    percentile: float = 99.0
    home: int = 0  # domain
    ports: tuple[int, ...] = ()  # where traffic cannot be classified by control group
    stateless: bool = False
    in_memory: bool | None = None  # None: found out at the start
    minimum: Amounts = field(default_factory=Amounts)
    maximum: Amounts = field(default_factory=Amounts)
    peak_load_rps: float = 0.0  # the largest load it is meant for, for policies that ask (Heracles); 0: not known


@dataclass(frozen=True, slots=True)
class BestEffortSettings:
    """A best-effort job."""

    name: str
    cgroups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Everything that the control process needs."""

    services: tuple[ServiceSettings, ...]
    best_effort: tuple[BestEffortSettings, ...] = ()
    node: NodeSettings = field(default_factory=NodeSettings)
    interval_ns: int = 500 * MS
    policy: str = "parties"
    seed: int = 1
    parties: PartiesSettings = field(default_factory=PartiesSettings)
    signal: SignalSettings = field(default_factory=SignalSettings)
    absent_grace_ns: int = 10_000 * MS  # a service without processes for so long gives its resources back
    runtime_directory: str = "/run/parties"  # sockets and lock
    state_directory: str = "/var/lib/parties"  # journal and records
    record: str = ""  # file; empty: a new one in the state directory's "records"
    controllers: Mapping[str, str] = field(default_factory=dict)  # controller -> mount point; empty: found in /proc

    @property
    def histogram_socket(self) -> str:
        """Where clients report latencies."""
        return f"{self.runtime_directory}/{HISTOGRAM_SOCKET}"

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


class CacheMechanism(enum.StrEnum):
    """How LLC ways are set."""

    AUTO = "auto"  # resctrl where the kernel has it, else pqos
    RESCTRL = "resctrl"  # the kernel's file system
    PQOS = "pqos"  # the command of intel-cmt-cat


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """LLC ways of each L3 domain."""

    mechanism: CacheMechanism = CacheMechanism.AUTO
    reserved_ways: int = 0  # for all that belongs to no holder; 0: the shareable ways, else as few as the machine allows
    mount: str = ""  # where resctrl is mounted; empty: found in /proc


class FrequencyMechanism(enum.StrEnum):
    """How CPU frequency is set."""

    AUTO = "auto"  # the userspace governor where the driver has one, else a cap
    USERSPACE = "userspace"  # a fixed frequency; the performance governor as turbo (section 4.1)
    CAP = "cap"  # scaling_max_freq, for drivers that choose the frequency themselves


@dataclass(frozen=True, slots=True)
class FrequencySettings:
    """CPU frequency of each holder's cores."""

    mechanism: FrequencyMechanism = FrequencyMechanism.AUTO
    step_hz: int = 100 * MS
    turbo: bool = True  # whether turbo is the top step


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Memory: the amount under management and its step."""

    total_bytes: int
    step_bytes: int = 1_000_000_000
    best_effort_minimum_bytes: int = 0  # the least that the best-effort jobs keep together; 0: they may lose all of it


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
    parent: str = ""  # a class of somebody's qdisc to hang below, "1:30"; empty: the root, else the default class of an HTB


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What is managed; a resource without a table here is not."""

    name: str = "host"
    cores: CoreSettings | None = None
    cache: CacheSettings | None = None
    frequency: FrequencySettings | None = None
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
    target_ns: int
    cgroups: tuple[str, ...] = ()  # paths below each controller's mount point, "/web/nginx"
    units: tuple[str, ...] = ()  # of systemd, "nginx.service"
    containers: tuple[str, ...] = ()  # "docker:NAME", "containerd:NAME", "lxc:NAME", "podman:NAME"
    percentile: float = 99.0
    home: int | None = None  # domain; None: services are spread over those with managed cores (parties.homes)
    ports: tuple[int, ...] = ()  # where traffic cannot be classified by control group
    stateless: bool = False
    in_memory: bool | None = None  # None: found out at the start
    minimum: Amounts = field(default_factory=Amounts)
    maximum: Amounts = field(default_factory=Amounts)
    peak_load_rps: float = 0.0  # the largest load it is meant for, for policies that ask (Heracles); 0: not known


@dataclass(frozen=True, slots=True)
class BestEffortSettings:
    """A best-effort job: control groups, units and containers as of a service."""

    name: str
    cgroups: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestSettings:
    """What belongs to no service and no job: which of it is kept off the managed CPUs, on the reserved ones."""

    processes: bool = False  # in systemd's slices (v2) or the root of cpuset (v1)
    kernel_threads: bool = False  # those that can move, and unbound work queues
    interrupts: bool = False


class ExitPolicy(enum.StrEnum):
    """What becomes of a resource's values when the daemon ends."""

    RESTORE = "restore"  # as they were before it
    HOLD = "hold"  # as they are, until "parties restore" or the next start
    SAFE = "safe"  # what suits a machine without it: no limits, all CPUs, all ways, full frequency


@dataclass(frozen=True, slots=True)
class ExitSettings:
    """The exit policy of each resource, and of the rest of the machine."""

    cores: ExitPolicy = ExitPolicy.RESTORE
    cache: ExitPolicy = ExitPolicy.RESTORE
    frequency: ExitPolicy = ExitPolicy.RESTORE
    memory: ExitPolicy = ExitPolicy.RESTORE
    disk: ExitPolicy = ExitPolicy.RESTORE
    network: ExitPolicy = ExitPolicy.RESTORE
    rest: ExitPolicy = ExitPolicy.RESTORE


class ForeignAction(enum.StrEnum):
    """What is done about a value that somebody else wrote."""

    REASSERT = "reassert"  # written again with back-off a few times, then yielded
    YIELD = "yield"  # left to them at once


@dataclass(frozen=True, slots=True)
class ForeignSettings:
    """The rule for foreign writers (``parties.foreign``)."""

    action: ForeignAction = ForeignAction.REASSERT
    first_ns: int = 1_000 * MS  # until the first re-assertion; twice as long each time
    most: int = 3  # re-assertions within the window; after them the knob is yielded
    window_ns: int = 60_000 * MS


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
    rest: RestSettings = field(default_factory=RestSettings)
    exit: ExitSettings = field(default_factory=ExitSettings)
    foreign: ForeignSettings = field(default_factory=ForeignSettings)
    absent_grace_ns: int = 10_000 * MS  # a service without processes for so long gives its resources back
    runtime_directory: str = "/run/parties"  # sockets and lock
    state_directory: str = "/var/lib/parties"  # journal and records
    record: str = ""  # file; empty: a new one in the state directory's "records"
    controllers: Mapping[str, str] = field(default_factory=dict)  # controller -> mount point; empty: found in /proc

    @property
    def histogram_socket(self) -> str:
        """Where clients report latencies."""
        return f"{self.runtime_directory}/{HISTOGRAM_SOCKET}"

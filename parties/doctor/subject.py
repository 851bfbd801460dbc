"""What is examined: the machine below one root, and the settings that it is examined for.

Nothing is written to the machine. On another root than "/" nothing is executed and no kernel is asked, so that a copy of a
machine's files can be examined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from actuators.cache.resctrl import ResctrlError
from actuators.cgroup.group import GroupLayer
from actuators.cgroup.hierarchy import Hierarchies, SetupError
from actuators.cgroup.layer import find_layer
from actuators.cgroup.naming import Resolved, resolve
from actuators.disk import find_disk
from actuators.frequency.levels import UnfitError
from actuators.network.probe import KernelSupport, kernel_support
from actuators.systemd.layer import SystemdLayer
from monitors.topology import Topology, TopologyError
from parties.config_machine import Machine
from parties.interfaces import Actuator
from parties.knob import KnobError
from parties.makers import MAKERS, Parts, homes_of
from parties.model import BEST_EFFORT, Domain, Resource
from parties.settings import (
    CacheSettings,
    ControlSettings,
    CoreSettings,
    DiskSettings,
    FrequencySettings,
    MemorySettings,
    NetworkSettings,
    NodeSettings,
)

SUPPOSED_DISK_BYTES_PER_S = 1_000_000_000
"""Where no rate is set: the doctor does not measure, as that keeps the disk busy for a second. The paper's disk."""

_SUPPOSED_NETWORK_BITS_PER_S = 10_000_000_000
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "nbd", "fd")
_ETHERNET = "1"
_SPOKEN_STEP_BYTES = 1_000_000_000
_LEAST_STEP_BYTES = 1 << 20


@dataclass(frozen=True)
class Subject:
    """The machine below ``root``, for ``given`` settings; without any it is examined for all that can be managed.

    ``live``: whether that machine is this one, so that its kernel and its commands can be asked; None: where the root is "/".
    ``user_id``: who asks, -1 for this process's own user. ``wait`` passes the time between the two looks at what runs. ``support``
    is what a kernel that cannot be asked has for shaping traffic; None where nobody knows.
    """

    root: Path = Path("/")
    given: ControlSettings | None = None
    user_id: int = -1
    live: bool | None = None
    wait: Callable[[], None] = lambda: time.sleep(1.0)
    support: KernelSupport | None = None

    @property
    def is_live(self) -> bool:
        """Whether the machine is this one."""
        return self.root == Path("/") if self.live is None else self.live

    @property
    def is_root(self) -> bool:
        """Whether whoever asks may see everything."""
        return self.machine.is_root

    @property
    def machine(self) -> Machine:
        """What other checks look at."""
        return Machine(self.root, self.user_id)

    @cached_property
    def topology(self) -> Topology | None:
        """The shape of the machine; None where it cannot be read (``domains`` raises why)."""
        with contextlib.suppress(TopologyError):
            return Topology.read(self.root)
        return None

    @cached_property
    def settings(self) -> ControlSettings:
        """Those given, else settings that ask for every resource of this machine and name no service."""
        if self.given is not None:
            return self.given
        disk, network = self.disks(), self.networks()
        memory = self.machine.memory_bytes()
        return ControlSettings(
            services=(),
            node=NodeSettings(
                cores=CoreSettings(),
                cache=CacheSettings(),
                frequency=FrequencySettings(),
                memory=MemorySettings(memory, min(_SPOKEN_STEP_BYTES, max(memory // 20, _LEAST_STEP_BYTES))),
                disk=DiskSettings(disk[0]) if disk else None,
                network=NetworkSettings(network[0], self._speed(network[0])) if network else None,
            ),
        )

    @cached_property
    def names(self) -> Resolved:
        """The settings with every unit's and container's control groups filled in. Raises SetupError."""
        return resolve(self.settings, self.root)

    @cached_property
    def layer(self) -> GroupLayer:
        """The control groups, by the same choice as the daemon's. Raises SetupError."""
        layer = find_layer(Hierarchies.find(self.root, self.settings.controllers), self.root)
        return SystemdLayer(layer, self.names.units, self.root) if self.names.units else layer

    @property
    def has_v2_tree(self) -> bool:
        """Whether there is a v2 tree at all, with controllers or without."""
        with contextlib.suppress(*MISTAKES):
            return self.layer.hierarchies.v2 is not None
        return False

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """The managed cores. Raises TopologyError."""
        cores = self.settings.node.cores or CoreSettings()
        return Topology.read(self.root).managed_domains(cores.reserved_cpus, cores.managed_cpus)

    @cached_property
    def homes(self) -> dict[str, int]:
        """The domain that each service would live in after a fresh start. Raises TopologyError, SetupError."""
        return homes_of(self.settings, self.domains, root=self.root)

    @property
    def cpus(self) -> tuple[int, ...]:
        """The managed CPUs; every one that is online where those asked for do not fit."""
        with contextlib.suppress(TopologyError):
            return tuple(sorted(cpu for domain in self.domains for cpu in domain.cpus))
        return self.topology.online if self.topology is not None else ()

    @cached_property
    def traffic(self) -> KernelSupport | None:
        """What the kernel has for shaping traffic."""
        return kernel_support() if self.is_live else self.support

    @cached_property
    def registered(self) -> tuple[str, ...]:
        """The paths of every registered control group, as far as they can be found."""
        with contextlib.suppress(*MISTAKES):
            settings = self.names.settings
            services = [path for service in settings.services for path in service.cgroups]
            return (*services, *(path for job in settings.best_effort for path in job.cgroups))
        return ()

    def asks(self, resource: Resource) -> bool:
        """Whether the settings given ask for it; without any each is asked for."""
        return self.given is None or getattr(self.given.node, resource.value) is not None

    @contextlib.contextmanager
    def actuator(self, resource: Resource) -> Iterator[Actuator | None]:
        """The daemon's own actuator of a resource, made to be asked and then thrown away; None where it is not configured.

        Raises SetupError, TopologyError, KnobError.
        """
        with tempfile.TemporaryDirectory(prefix="parties-doctor-") as scratch:
            made = MAKERS[resource](self._parts(Path(scratch)))
            try:
                yield made
            finally:
                if made is not None:
                    made.close()

    def text(self, path: str) -> str:
        """A small file, below the root unless its path begins there, without blanks around it; empty where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except (OSError, ValueError):  # a path made of what another file says may be none at all
            return ""

    def older_than(self, major: int, minor: int) -> bool:
        """Whether the kernel is older than that release; one that does not say is not."""
        found = re.match(r"(\d+)\.(\d+)", self.text("proc/sys/kernel/osrelease"))
        return found is not None and (int(found[1]), int(found[2])) < (major, minor)

    def plain(self, text: str) -> str:
        """A message with paths as they are on the machine itself."""
        return text if self.root == Path("/") else text.replace(f"{self.root}/", "/")

    def kernel_arguments(self) -> dict[str, str]:
        """The kernel's command line by name; "" for what has no value."""
        return {name: value for name, _, value in (word.partition("=") for word in self.text("proc/cmdline").split())}

    def disks(self) -> list[str]:
        """The machine's disks by number ("8:0"), the largest first."""
        found = []
        for directory in _listed(self.root / "sys/block"):
            number, size = self.text(f"sys/block/{directory}/dev"), self.text(f"sys/block/{directory}/size")
            if number and size.isdecimal() and int(size) and not directory.startswith(_NOT_DISKS):
                with contextlib.suppress(*MISTAKES):
                    found.append((-int(size), find_disk(number, self.root).number))
        return [number for _, number in sorted(found)]

    def networks(self) -> list[str]:
        """The machine's network devices, those that are up and fast first."""
        devices = _listed(self.root / "sys/class/net")
        wires = [device for device in devices if self.text(f"sys/class/net/{device}/type") == _ETHERNET]
        return sorted(
            wires, key=lambda device: (self.text(f"sys/class/net/{device}/operstate") != "up", -self._speed(device), device)
        )

    def _speed(self, device: str) -> int:
        megabits = self.text(f"sys/class/net/{device}/speed")
        return int(megabits) * 1_000_000 if megabits.isdecimal() and int(megabits) else _SUPPOSED_NETWORK_BITS_PER_S

    def _parts(self, scratch: Path) -> Parts:
        """What the daemon would make its actuators from, but for what would write or keep a disk busy."""
        settings = self.names.settings
        with contextlib.suppress(OSError):  # what pqos was last seen to have set tells a running daemon's classes from others'
            shutil.copy(self.root / settings.runtime_directory.lstrip("/") / "pqos.json", scratch)
        disk = settings.node.disk
        if disk is not None and not disk.rate_bytes_per_s:
            disk = dataclasses.replace(disk, rate_bytes_per_s=SUPPOSED_DISK_BYTES_PER_S)
        settings = dataclasses.replace(settings, runtime_directory=str(scratch), node=dataclasses.replace(settings.node, disk=disk))
        topology = Topology.read(self.root)
        managed = {service.name: service.cgroups for service in settings.services} | {
            BEST_EFFORT: tuple(path for job in settings.best_effort for path in job.cgroups)
        }
        return Parts(
            settings,
            self.layer,
            managed,
            topology,
            self.domains,
            machine_bytes=self.machine.memory_bytes(),
            root=self.root,
            only_ask=not self.is_root,
        )


MISTAKES = (SetupError, TopologyError, ResctrlError, UnfitError, KnobError, OSError, ValueError)
"""What the parts of a machine that is not as it should be may raise, each with a message for the operator."""


def said(error: BaseException) -> str:
    """The message of an error for the operator."""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror or error}"
    return str(error)


def _listed(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 (names are all that is asked for)
    except OSError:
        return []

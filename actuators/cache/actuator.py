"""LLC ways: the choice of a mechanism for this machine, and the pools that say why there is none (section 4.1).

Where the kernel has resctrl it is used; where it has not and the processor can all the same, the command pqos of intel-cmt-cat.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from actuators.cache.cpuid import l3_allocation
from actuators.cache.masks import LayoutError
from actuators.cache.pqos import PqosActuator
from actuators.cache.resctrl import ResctrlError, read_tree
from actuators.cache.resctrl_actuator import ResctrlActuator, domain_layout
from actuators.cgroup.group import GroupLayer
from actuators.holders import ManagedGroups
from parties.interfaces import Actuator
from parties.knob import KnobWrite
from parties.model import Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement
from parties.settings import CacheMechanism, CacheSettings

_FLAGS = frozenset({"cat_l3", "rdt_a"})
_MOUNT_ADVICE = "mount -t resctrl resctrl /sys/fs/resctrl"
_PQOS_ADVICE = "apt-get install intel-cmt-cat, whose command pqos can do without it"
_RUNTIME = Path("/run/parties")
_SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UnmanagedCache:
    """Offers one unmanaged pool for each domain, with the reason."""

    resource = Resource.CACHE

    def __init__(self, domains: Sequence[Domain], reason: str) -> None:
        self._domains = tuple(domains)
        self._reason = reason

    def pools(self) -> tuple[Pool, ...]:
        """Unmanaged pools that carry the reason."""
        return tuple(Pool(PoolKey(Resource.CACHE, domain.id), managed=False, reason=self._reason) for domain in self._domains)

    def writes(self, placement: Placement, before: Placement | None) -> Sequence[KnobWrite]:  # noqa: ARG002 (the interface's)
        """None: nothing is managed."""
        return ()

    def read_back(self) -> Mapping[PoolKey, Mapping[Holder, int]]:
        """Nothing: nothing is managed."""
        return {}

    def close(self) -> None:
        """There is nothing to give up."""


def cache_actuator(  # noqa: PLR0913 (a choice between constructors, with the arguments of all)
    settings: CacheSettings,
    domains: Sequence[Domain],
    *,
    layer: GroupLayer,
    managed: ManagedGroups,
    homes: Mapping[Holder, int] | None = None,
    divides_cores: bool = False,
    runtime: Path = _RUNTIME,
    root: Path = Path("/"),
) -> Actuator:
    """The actuator that fits this machine and the settings; one without managed pools where none does.

    ``homes`` gives each service's domain; one that is not in it is at home in the first. ``divides_cores``: cores are handed out in
    fractions, which leaves pqos nothing to go by. ``runtime`` is a directory for what pqos saw last, ``root`` where /proc, /sys and
    the commands are. Nothing is written to the machine; where pqos is chosen it is run to find out what there is.
    """
    mount = resctrl_mount(settings, root)
    if settings.mechanism is CacheMechanism.PQOS or (mount is None and settings.mechanism is CacheMechanism.AUTO):
        command = pqos_command(root)
        if command and (settings.mechanism is CacheMechanism.PQOS or wants_pqos(root)):
            snapshot = runtime / "pqos.json"
            return PqosActuator(
                domains,
                managed,
                settings=settings,
                snapshot=snapshot,
                command=command,
                homes=homes,
                divides_cores=divides_cores,
                root=root,
            )
        lacks_pqos = settings.mechanism is CacheMechanism.PQOS and not command
        return UnmanagedCache(domains, f"there is no command pqos: {_PQOS_ADVICE}" if lacks_pqos else why_not_managed(root))
    if mount is None:
        return UnmanagedCache(domains, why_not_managed(root))
    try:
        tree = read_tree(mount)
    except ResctrlError as error:
        return UnmanagedCache(domains, str(error))
    return ResctrlActuator(tree, settings, domains, layer=layer, managed=managed, homes=homes or {})


def ways_to_hand_out(settings: CacheSettings, domains: Sequence[Domain], root: Path = Path("/")) -> tuple[Pool, ...]:
    """The pools of ways as resctrl would have them; none where the kernel has none or they cannot be read. Runs no pqos."""
    mount = resctrl_mount(settings, root) if settings.mechanism is not CacheMechanism.PQOS else None
    if mount is None:
        return ()
    pools = []
    with contextlib.suppress(ResctrlError):  # told by the actuator
        tree = read_tree(mount)
        for domain in (domain for domain in domains if domain.id in tree.masks):
            with contextlib.suppress(LayoutError):
                layout = domain_layout(tree, domain.id, settings.reserved_ways)
                pools.append(Pool(PoolKey(Resource.CACHE, domain.id), total=layout.ways, step=1, floor=layout.least))
    return tuple(pools)


def resctrl_mount(settings: CacheSettings, root: Path = Path("/")) -> Path | None:
    """Where resctrl is mounted: as set, or as the kernel says; None where it is not."""
    if settings.mount:
        return Path(settings.mount)
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        if filesystem.startswith("resctrl "):
            return root / mount.split()[4].lstrip("/")
    return None


def wants_pqos(root: Path = Path("/")) -> bool:
    """Whether the processor can partition its L3 cache and the kernel cannot."""
    return not _kernel_has_resctrl(root) and bool(can_allocate(root))


def can_allocate(root: Path = Path("/")) -> str:
    """How the processor says that its L3 cache can be partitioned, in words; empty where it does not.

    The processor itself is asked only where the kernel shows nothing and has no resctrl, as one from before 4.10.
    """
    if flags := cpu_flags(root) & _FLAGS:
        return ", ".join(sorted(flags))
    found = None if _kernel_has_resctrl(root) else l3_allocation(root)
    return f"CPUID: {found.ways} ways, classes 0 to {found.classes - 1}" if found is not None else ""


def pqos_command(root: Path = Path("/")) -> str:
    """The command pqos where commands usually are, below ``root``; empty where it is not installed."""
    places = (root / directory.lstrip("/") / "pqos" for directory in _SEARCHED.split(":"))
    return next((str(place) for place in places if os.access(place, os.X_OK)), "")


def why_not_managed(root: Path = Path("/")) -> str:
    """What this machine has for partitioning its last-level cache where resctrl is not mounted, and what to do."""
    if _kernel_has_resctrl(root):
        return f"the kernel has resctrl, which is not mounted: {_MOUNT_ADVICE}"
    if said := can_allocate(root):
        has = f"the processor can partition its L3 cache ({said})"
        lacks = f"the kernel has no resctrl: it is not in {root / 'proc/filesystems'} (CONFIG_X86_CPU_RESCTRL)"
        return f"{has}, but {lacks}" + ("" if pqos_command(root) else f"; {_PQOS_ADVICE}")
    return (
        f"no cache allocation: {root / 'proc/cpuinfo'} shows neither cat_l3 nor rdt_a (the processor lacks it, or a virtual "
        f"machine hides it), and {root / 'proc/filesystems'} has no resctrl"
    )


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """What the processor says of itself."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _kernel_has_resctrl(root: Path) -> bool:
    return "resctrl" in _text(root / "proc/filesystems").split()


def _text(file: Path) -> str:
    """Empty where there is none: a machine that does not tell has not got it."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""

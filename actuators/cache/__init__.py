"""LLC ways: what this machine has for them, and why they are not managed.

This version reports; it sets no way mask. What it reports is what it finds: the file system resctrl, the processor's own statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from parties.knob import KnobWrite
from parties.model import Domain, Holder, Pool, PoolKey, Resource
from parties.placement import Placement

_FLAGS = frozenset({"cat_l3", "rdt_a"})


class CacheActuator:
    """Offers one unmanaged pool for each domain, with the reason. ``root`` is where /proc and /sys are."""

    resource = Resource.CACHE

    def __init__(self, domains: Sequence[Domain], *, root: Path = Path("/")) -> None:
        self._domains = tuple(domains)
        self._reason = why_not_managed(root)

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


def why_not_managed(root: Path = Path("/")) -> str:
    """What this machine has for partitioning its last-level cache, and why it is not used."""
    mounted = _resctrl_mount(root)
    if mounted is not None:
        return f"resctrl is mounted at {mounted}; managing it is not part of this version"
    if "resctrl" in _words(root / "proc/filesystems"):
        return "the kernel has resctrl, which is not mounted; managing it is not part of this version"
    flags = _cpu_flags(root) & _FLAGS
    if flags:
        has = f"the processor can partition its L3 cache ({', '.join(sorted(flags))})"
        return f"{has}, but the kernel has no resctrl: it is not in {root / 'proc/filesystems'} (CONFIG_X86_CPU_RESCTRL)"
    return (
        f"no cache allocation: {root / 'proc/cpuinfo'} shows neither cat_l3 nor rdt_a (the processor lacks it, or a virtual "
        f"machine hides it), and {root / 'proc/filesystems'} has no resctrl"
    )


def _resctrl_mount(root: Path) -> str | None:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        if filesystem.startswith("resctrl "):
            return mount.split()[4]
    return None


def _cpu_flags(root: Path) -> frozenset[str]:
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _words(file: Path) -> frozenset[str]:
    return frozenset(_text(file).split())


def _text(file: Path) -> str:
    """Empty where there is none: a machine that does not tell has not got it."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""

"""Cache: what a machine has, told as it is."""

from pathlib import Path

import pytest

from actuators.cache import CacheActuator, why_not_managed
from parties.model import Core, Domain, Partition, Resource
from parties.placement import Placement

DOMAINS = (Domain(0, (Core(0, (0,)),)), Domain(3, (Core(1, (1,)),)))
MOUNT = "40 31 0:37 / /sys/fs/resctrl rw,relatime - resctrl resctrl rw\n"


def machine(root: Path, *, flags: str = "fpu sse2", filesystems: str = "nodev\tsysfs\n", mounts: str = "") -> Path:
    """A root with what the kernel says of cache allocation."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: a\nflags\t\t: {flags}\nbugs\t\t:\n")
    (root / "proc/filesystems").write_text(filesystems)
    (root / "proc/self/mountinfo").write_text(mounts)
    return root


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, "shows neither cat_l3 nor rdt_a"),
        ({"flags": "fpu cat_l3 rdt_a"}, "can partition its L3 cache (cat_l3, rdt_a), but the kernel has no resctrl"),
        (
            {"filesystems": "nodev\tresctrl\n"},
            "the kernel has resctrl, which is not mounted; managing it is not part of this version",
        ),
        ({"filesystems": "nodev\tresctrl\n", "mounts": MOUNT}, "resctrl is mounted at /sys/fs/resctrl; managing it is not part"),
    ],
)
def test_the_reason_says_what_was_found(tmp_path: Path, found: dict[str, str], reason: str) -> None:
    """Four machines, four reasons; never one that claims the machine lacks what this version does not use."""
    assert reason in why_not_managed(machine(tmp_path, **found))


def test_nothing_is_managed_and_every_domain_says_why(tmp_path: Path) -> None:
    """A pool for each domain with the reason; no writes, no amounts."""
    actuator = CacheActuator(DOMAINS, root=machine(tmp_path))
    assert [(pool.key.resource, pool.key.domain, pool.managed) for pool in actuator.pools()] == [
        (Resource.CACHE, 0, False),
        (Resource.CACHE, 3, False),
    ]
    assert all(pool.reason for pool in actuator.pools())
    assert not actuator.writes(Placement(Partition({}), {}, {}), None)
    assert actuator.read_back() == {}

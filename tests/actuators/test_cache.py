"""Cache: which mechanism a machine has, or why none."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cpuid_kit import BROADWELL, WITHOUT, Answers
from resctrl_trees import TreeOptions, make_tree

from actuators.cache.actuator import cache_actuator, resctrl_mount, why_not_managed
from actuators.cgroup.v1 import GroupLayerV1
from parties.model import Core, Domain, Partition, Resource
from parties.placement import Placement
from parties.settings import CacheMechanism, CacheSettings

DOMAINS = (Domain(0, (Core(0, (0,)),)), Domain(3, (Core(1, (1,)),)))
MOUNT = "40 31 0:37 / /sys/fs/resctrl rw,relatime - resctrl resctrl rw\n"


def machine(root: Path, *, flags: str = "fpu sse2", filesystems: str = "nodev\tsysfs\n", mounts: str = "") -> Path:
    """A root with what the kernel says of cache allocation."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nmodel name\t: a\nflags\t\t: {flags}\nbugs\t\t:\n")
    (root / "proc/filesystems").write_text(filesystems)
    (root / "proc/self/mountinfo").write_text(mounts)
    return root


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, "shows neither cat_l3 nor rdt_a"),
        ({"flags": "fpu cat_l3 rdt_a"}, "can partition its L3 cache (cat_l3, rdt_a), but the kernel has no resctrl"),
        ({"filesystems": "nodev\tresctrl\n"}, "not mounted: mount -t resctrl resctrl /sys/fs/resctrl"),
    ],
)
def test_the_reason_says_what_was_found(tmp_path: Path, found: dict[str, str], reason: str) -> None:
    """Three machines without it, three reasons that say what to do where something can be done."""
    assert reason in why_not_managed(machine(tmp_path, **found))


def test_nothing_is_managed_and_every_domain_says_why(tmp_path: Path, layer: GroupLayerV1) -> None:
    """A pool for each domain with the reason; no writes, no amounts."""
    actuator = cache_actuator(CacheSettings(), DOMAINS, layer=layer, managed={"a": ("/a",)}, root=machine(tmp_path / "root"))
    assert [(pool.key.resource, pool.key.domain, pool.managed) for pool in actuator.pools()] == [
        (Resource.CACHE, 0, False),
        (Resource.CACHE, 3, False),
    ]
    assert all("neither cat_l3 nor rdt_a" in pool.reason for pool in actuator.pools())
    assert not actuator.writes(Placement(Partition({}), {}, {}), None)
    assert actuator.read_back() == {}


def test_resctrl_is_found_where_the_kernel_says(tmp_path: Path, layer: GroupLayerV1) -> None:
    """By its line in mountinfo, below the root that was given."""
    root = machine(tmp_path / "root", filesystems="nodev\tresctrl\n", mounts=MOUNT)
    make_tree(root / "sys/fs/resctrl", TreeOptions(domains=(0, 3)))
    actuator = cache_actuator(CacheSettings(), DOMAINS, layer=layer, managed={"a": ("/a",)}, root=root)
    assert [(pool.managed, pool.total) for pool in actuator.pools()] == [(True, 18), (True, 18)]


def test_a_mount_point_can_be_given(tmp_path: Path) -> None:
    """The setting wins over what the kernel says."""
    root = machine(tmp_path / "root", mounts=MOUNT)
    assert resctrl_mount(CacheSettings(mount="/elsewhere"), root) == Path("/elsewhere")
    assert resctrl_mount(CacheSettings(), root) == root / "sys/fs/resctrl"
    assert resctrl_mount(CacheSettings(), machine(tmp_path / "other")) is None


def test_a_mount_point_that_is_none_says_what_to_do(tmp_path: Path, layer: GroupLayerV1) -> None:
    """A directory without resctrl in it gives a reason, not an error."""
    settings = CacheSettings(mount=str(tmp_path / "none"))
    actuator = cache_actuator(settings, DOMAINS, layer=layer, managed={"a": ("/a",)}, root=machine(tmp_path / "root"))
    assert {pool.managed for pool in actuator.pools()} == {False}
    assert "is resctrl mounted there?" in actuator.pools()[0].reason


def install_pqos(root: Path) -> None:
    """A command that only says that it was run."""
    (root / "usr/sbin").mkdir(parents=True)
    (root / "usr/sbin/pqos").write_text("#!/bin/sh\necho was run: $* >&2\nexit 1\n")
    (root / "usr/sbin/pqos").chmod(0o755)


def reason_of(root: Path, layer: GroupLayerV1, mechanism: CacheMechanism = CacheMechanism.AUTO, *, divides: bool = False) -> str:
    """Why the cache of this machine is not managed; empty if it is."""
    actuator = cache_actuator(
        CacheSettings(mechanism),
        DOMAINS,
        layer=layer,
        managed={"a": ("/a",)},
        divides_cores=divides,
        runtime=root,
        root=root,
    )
    return actuator.pools()[0].reason


def test_pqos_where_the_kernel_has_no_resctrl(tmp_path: Path, layer: GroupLayerV1) -> None:
    """The processor can and the command is there: it is run. Without the command the reason says how to get it."""
    root = machine(tmp_path / "root", flags="fpu cat_l3")
    assert "apt-get install intel-cmt-cat" in reason_of(root, layer)
    install_pqos(root)
    assert "was run" in reason_of(root, layer)
    assert "whole cores" in reason_of(root, layer, divides=True)
    assert "the kernel has no resctrl" in reason_of(root, layer, CacheMechanism.RESCTRL)


def test_pqos_is_not_run_where_it_is_not_needed(tmp_path: Path, layer: GroupLayerV1) -> None:
    """A processor that cannot, and a kernel whose resctrl only has to be mounted."""
    plain = machine(tmp_path / "plain")
    install_pqos(plain)
    assert "neither cat_l3 nor rdt_a" in reason_of(plain, layer)
    unmounted = machine(tmp_path / "unmounted", flags="cat_l3", filesystems="nodev\tresctrl\n")
    install_pqos(unmounted)
    assert "not mounted" in reason_of(unmounted, layer)


def test_pqos_where_only_the_processor_says_that_it_can(
    tmp_path: Path, layer: GroupLayerV1, processor: Callable[[Path, Answers], object]
) -> None:
    """A kernel from before 4.10 shows no flag: CPUID does, and pqos is run by itself; without the command the reason says so."""
    root = machine(tmp_path / "root")
    processor(root, BROADWELL)
    assert "can partition its L3 cache (CPUID: 20 ways, classes 0 to 15), but" in reason_of(root, layer)
    assert "apt-get install intel-cmt-cat" in reason_of(root, layer)
    install_pqos(root)
    assert "was run" in reason_of(root, layer)


def test_pqos_is_not_run_where_the_processor_says_that_it_cannot(
    tmp_path: Path, layer: GroupLayerV1, processor: Callable[[Path, Answers], object]
) -> None:
    """Monitoring alone partitions nothing."""
    root = machine(tmp_path / "root")
    processor(root, WITHOUT)
    install_pqos(root)
    assert "neither cat_l3 nor rdt_a" in reason_of(root, layer)


@pytest.mark.parametrize("known", [{"flags": "fpu cat_l3"}, {"filesystems": "nodev\tresctrl\n"}], ids=["flag", "resctrl"])
def test_the_processor_is_not_asked_where_the_kernel_says_enough(
    tmp_path: Path, layer: GroupLayerV1, processor: Callable[[Path, Answers], list[tuple[int, int]]], known: dict[str, str]
) -> None:
    """A flag, or resctrl in the kernel, answers it."""
    root = machine(tmp_path / "root", **known)
    asked = processor(root, BROADWELL)
    assert reason_of(root, layer)
    assert asked == []


def test_pqos_can_be_forced(tmp_path: Path, layer: GroupLayerV1) -> None:
    """Where resctrl is mounted and pqos is wanted, resctrl is left alone."""
    root = machine(tmp_path / "root", mounts=MOUNT)
    make_tree(root / "sys/fs/resctrl", TreeOptions(domains=(0, 3)))
    assert reason_of(root, layer) == ""
    assert "there is no command pqos" in reason_of(root, layer, CacheMechanism.PQOS)
    install_pqos(root)
    assert "was run" in reason_of(root, layer, CacheMechanism.PQOS)

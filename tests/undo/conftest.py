"""Control groups of the tests' own, as those of the kernel's tests."""

from tests.kernel.conftest import cgroup_factory, layer, spawn

__all__ = ["cgroup_factory", "layer", "spawn"]

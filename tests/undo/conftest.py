"""Control groups as in the tests of kernel and actuators."""

from __future__ import annotations

from tests.actuators.conftest import v2
from tests.kernel.conftest import cgroup_factory, layer, spawn

__all__ = ["cgroup_factory", "layer", "spawn", "v2"]

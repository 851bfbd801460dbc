"""Control groups as in the tests of kernel and actuators, and a fake systemd."""

from __future__ import annotations

from systemd_fixtures import root, systemd

from tests.actuators.conftest import v2
from tests.kernel.conftest import cgroup_factory, layer, spawn

__all__ = ["cgroup_factory", "layer", "root", "spawn", "systemd", "v2"]

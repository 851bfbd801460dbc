"""Control groups v2 on a kernel that has every controller there: each of the guest's checks is a test."""

from __future__ import annotations

import inspect

import pytest

from . import checks_cgroup2
from .machine import GuestMachine

pytestmark = pytest.mark.guest

CHECKS = {name: check for name, check in vars(checks_cgroup2).items() if name.startswith("check_")}
SCRATCH = "/dev/vdc"
LIMIT_S = 900.0


@pytest.mark.parametrize("name", CHECKS)
def test_control_groups_v2(guest: GuestMachine, name: str) -> None:
    """What the check's own line says."""
    arguments = {"base": f"/parties-{name.replace('_', '-')}", "device": SCRATCH}
    taken = inspect.signature(CHECKS[name]).parameters
    guest.call("checks_cgroup2", name, LIMIT_S, **{key: value for key, value in arguments.items() if key in taken})

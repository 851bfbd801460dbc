"""Units and scopes as the real systemd keeps them: each of the guest's checks is a test."""

from __future__ import annotations

import inspect

import pytest

from . import checks_systemd
from .machine import GuestMachine

pytestmark = pytest.mark.guest

CHECKS = {
    name: check
    for name, check in vars(checks_systemd).items()
    if name.startswith("check_") and check is not checks_systemd.check_all
}
LIMIT_S = 900.0


@pytest.mark.parametrize("name", CHECKS)
def test_systemd(guest: GuestMachine, name: str) -> None:
    """What the check's own line says."""
    arguments = {"device": "/dev/vdc"} if "device" in inspect.signature(CHECKS[name]).parameters else {}
    guest.call("checks_systemd", name, LIMIT_S, **arguments)

"""Queueing disciplines that the host's kernel lacks: each of the guest's checks is a test."""

from __future__ import annotations

import pytest

from . import checks_network
from .machine import GuestMachine

pytestmark = pytest.mark.guest

CHECKS = [name for name in vars(checks_network) if name.startswith("check_")]
LIMIT_S = 900.0


@pytest.mark.parametrize("name", CHECKS)
def test_network(guest: GuestMachine, name: str) -> None:
    """What the check's own line says."""
    guest.call("checks_network", name, LIMIT_S)

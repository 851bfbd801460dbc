"""The rest of the machine kept on the reserved CPU under systemd and a kernel of today: each of the guest's checks is a test."""

from __future__ import annotations

import json
import sys

import pytest

from . import checks_rest
from .machine import GuestMachine

pytestmark = pytest.mark.guest

CHECKS = [name for name in vars(checks_rest) if name.startswith("check_")]
LIMIT_S = 1800.0


@pytest.mark.parametrize("name", CHECKS)
def test_the_rest_of_the_machine(guest: GuestMachine, name: str) -> None:
    """What the check's own line says; what it counted is told."""
    sys.stderr.write(f"{name}: {json.dumps(guest.call('checks_rest', name, LIMIT_S))}\n")

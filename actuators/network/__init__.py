"""The network actuator: egress bandwidth per service by HTB classes, over route netlink."""

from actuators.network.actuator import POOL, NetworkActuator, NetworkUsage
from actuators.network.knobs import KINDS

__all__ = ["KINDS", "POOL", "NetworkActuator", "NetworkUsage"]

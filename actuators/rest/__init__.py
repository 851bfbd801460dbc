"""The rest of the machine: what belongs to no service and no job is kept off the managed CPUs, on the reserved ones."""

from actuators.rest.keeper import RestKeeper
from actuators.rest.kinds import KINDS

__all__ = ["KINDS", "RestKeeper"]

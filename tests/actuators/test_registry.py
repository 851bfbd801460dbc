"""The registry of knob kinds."""

from actuators.cgroup import v1_knobs
from actuators.network import knobs as network_knobs
from actuators.registry import KINDS


def test_every_module_s_kinds_are_known_under_one_name() -> None:
    """No kind hides another's: the journal would put one value back into the wrong place."""
    assert set(KINDS) == set(v1_knobs.KINDS) | set(network_knobs.KINDS)
    assert len(KINDS) == len(v1_knobs.KINDS) + len(network_knobs.KINDS)

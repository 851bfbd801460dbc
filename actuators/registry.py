"""Every kind of knob there is, so that a journal's references can be turned back into knobs by another process."""

from __future__ import annotations

from actuators.cache import knobs as cache_knobs
from actuators.cache import pqos_knobs
from actuators.cache import tasks as cache_tasks
from actuators.cgroup import v1_knobs, v2_knobs
from actuators.frequency import knobs as frequency_knobs
from actuators.frequency import speed
from actuators.network import knobs as network_knobs
from actuators.rest import kinds as rest_kinds
from actuators.systemd import knobs as systemd_knobs
from monitors import resctrl as resctrl_monitor
from monitors import writers
from parties.knob import KnobKinds

KINDS: KnobKinds = {
    **v1_knobs.KINDS,
    **v2_knobs.KINDS,
    **network_knobs.KINDS,
    **cache_knobs.KINDS,
    **cache_tasks.KINDS,
    **pqos_knobs.KINDS,
    **resctrl_monitor.KINDS,
    **frequency_knobs.KINDS,
    **speed.KINDS,
    **systemd_knobs.KINDS,
    **rest_kinds.KINDS,
    **writers.KINDS,
}
"""A module that has kinds of its own adds them here. No kind may be in two modules (tested)."""

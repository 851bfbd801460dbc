"""What one write of each kind of knob costs here, and one read of it, as the controller does them: by a kept descriptor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from actuators.cgroup.group import DEFAULT_PERIOD_US, FROZEN, IDLE_CLASS, THAWED, ControlGroup, Direction
from actuators.network.actuator import DEVICE_CLASS, FIRST_SERVICE_CLASS, REST_CLASS, htb_class
from actuators.network.knobs import ClassKnob, Device, QdiscKnob
from actuators.network.tc import handle_text
from parties.knob import Knob
from parties.report import percentile

MIB = 1 << 20
_SAMPLES = 1000
_FREEZER_SAMPLES = 100  # each waits for its process to stop


@dataclass(frozen=True, slots=True)
class KnobCost:
    """Wall-clock times in ns of one kind of knob."""

    kind: str
    samples: int
    write_p50_ns: int
    write_p99_ns: int
    read_p50_ns: int
    read_p99_ns: int

    def as_json(self) -> dict[str, object]:
        """By field name."""
        return asdict(self)


def group_costs(group: ControlGroup, disk: str | None, cpus: str) -> Iterator[KnobCost]:
    """The knobs of a control group in which a process sleeps; afterwards they are as they were.

    ``disk`` is "MAJ:MIN" or None, ``cpus`` the list that the group may have.
    """
    whole = 1_000_000 * MIB
    yield _measured("CPU bandwidth", group.cpu_bandwidth, f"50000 {DEFAULT_PERIOD_US}", f"60000 {DEFAULT_PERIOD_US}")
    yield _measured("CPU class", group.cpu_class, IDLE_CLASS, "shares=1024")
    if "-" in cpus or "," in cpus:
        yield _measured("CPU set", group.cpus, cpus, cpus.replace("-", ",").split(",")[0])
    yield _measured("memory limit", group.memory_limit, str(whole), str(whole + MIB))
    if disk is not None:
        yield _measured("disk throttle", group.disk_throttle(disk, Direction.READ), str(1000 * MIB), str(2000 * MIB))
    yield _measured("freezer", group.freezer, FROZEN, THAWED, samples=_FREEZER_SAMPLES)


def network_costs(name: str, namespace: str) -> Iterator[KnobCost]:
    """A class of HTB on a device of the bench's own; the qdisc is removed again."""
    device = Device(name, namespace)
    qdisc = QdiscKnob(device)
    rate = 125 * MIB
    with contextlib.closing(device):
        qdisc.write(f"default {handle_text(REST_CLASS)}")
        try:
            ClassKnob(device, DEVICE_CLASS).write(htb_class(DEVICE_CLASS & 0xFFFF0000, rate, rate, 0).text())
            values = (htb_class(DEVICE_CLASS, part, part, 0).text() for part in (rate // 2, rate // 4))
            yield _measured("network class", ClassKnob(device, FIRST_SERVICE_CLASS), *values)
        finally:
            qdisc.restore(None)


def _measured(kind: str, knob: Knob, one: str, other: str, *, samples: int = _SAMPLES) -> KnobCost:
    before = knob.read()
    writes: list[int] = []
    reads: list[int] = []
    try:
        for number in range(samples):
            value = one if number % 2 else other
            writes.append(_timed(lambda value=value: knob.write(value)))  # type: ignore[misc]  # the value of this turn
            reads.append(_timed(knob.read))
    finally:
        knob.restore(before)
    return KnobCost(kind, samples, percentile(writes, 50), percentile(writes, 99), percentile(reads, 50), percentile(reads, 99))


def _timed(action: Callable[[], object]) -> int:
    before_ns = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - before_ns

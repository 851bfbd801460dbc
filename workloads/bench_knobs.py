"""What one write of each kind of knob costs here, and one read of it, as the controller does them: by a kept descriptor."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from actuators.cache.knobs import MaskKnob, SchemataFile
from actuators.cgroup import v2_knobs
from actuators.cgroup.group import DEFAULT_PERIOD_US, FROZEN, IDLE_CLASS, THAWED, ControlGroup, Direction
from actuators.cgroup.v2_memory import MemoryKnob
from actuators.frequency.knobs import Cap, CapKnob, Setting, UserspaceKnob
from actuators.network.actuator import DEVICE_CLASS, FIRST_SERVICE_CLASS, REST_CLASS, htb_class
from actuators.network.device import Device
from actuators.network.knobs import ClassKnob, QdiscKnob
from actuators.network.tc import handle_text
from parties.knob import Knob
from parties.report import percentile
from workloads.bench_machine import FileMachine

MIB = 1 << 20
_SAMPLES = 1000
_FREEZER_SAMPLES = 100  # a process that has to be scheduled to stop


@dataclass(frozen=True, slots=True)
class KnobCost:
    """Wall-clock times in ns of one kind of knob."""

    kind: str
    on: str  # "kernel", or "files" where this machine has no such thing
    samples: int
    write_p50_ns: int
    write_p99_ns: int
    read_p50_ns: int
    read_p99_ns: int
    both_p50_ns: int  # a write with its read-back, as the enforcer does it
    both_p99_ns: int

    def as_json(self) -> dict[str, object]:
        """By field name."""
        return asdict(self)


def cpu_set_cost(group: ControlGroup, cpus: Sequence[int]) -> KnobCost:
    """Between all of these CPUs and the first of them; the group above has to have them all."""
    return _measured("CPU set", group.cpus, ",".join(map(str, cpus)), str(cpus[0]))


def group_costs(group: ControlGroup, disk: str | None) -> Iterator[KnobCost]:
    """The knobs of a control group in which a process sleeps; afterwards they are as they were.

    ``disk`` is "MAJ:MIN" or None.
    """
    whole = 1_000_000 * MIB
    yield _measured("CPU bandwidth", group.cpu_bandwidth, f"50000 {DEFAULT_PERIOD_US}", f"60000 {DEFAULT_PERIOD_US}")
    yield _measured("CPU class", group.cpu_class, IDLE_CLASS, "shares=1024")
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


def file_costs(machine: FileMachine) -> Iterator[KnobCost]:
    """What this machine does not have, on files: the controller's own part of the cost."""
    mask = MaskKnob(SchemataFile(machine.resctrl, ""), 0)
    yield _measured("cache mask", mask, "ff", "ffff", on="files")
    policy = machine.cpu / "cpufreq/policy1"
    settings = (str(Setting("userspace", khz, 1_200_000, 2_201_000)) for khz in (1_500_000, 1_600_000))
    yield _measured("frequency, userspace governor", UserspaceKnob(policy), *settings, on="files")
    yield _measured("frequency, cap", CapKnob(policy), str(Cap(1_500_000)), str(Cap(1_600_000)), on="files")
    yield from _v2_costs(machine.v2)


def _v2_costs(group: Path) -> Iterator[KnobCost]:
    bandwidths = f"50000 {DEFAULT_PERIOD_US}", f"60000 {DEFAULT_PERIOD_US}"
    yield _measured("v2 CPU bandwidth", v2_knobs.CpuBandwidthKnob(group), *bandwidths, on="files")
    yield _measured("v2 CPU class", v2_knobs.CpuClassKnob(group), "weight=50", "weight=60", on="files")
    yield _measured("v2 memory limit", MemoryKnob(group), str(1000 * MIB), str(2000 * MIB), on="files")
    yield _measured("v2 disk throttle", v2_knobs.DiskThrottleKnob(group, "8:0", "rbps"), str(MIB), str(2 * MIB), on="files")


def _measured(  # noqa: PLR0913 (what is measured, and where)
    kind: str, knob: Knob, one: str, other: str, *, samples: int = _SAMPLES, on: str = "kernel"
) -> KnobCost:
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
    both = [write + read for write, read in zip(writes, reads, strict=True)]
    return KnobCost(kind, on, samples, *(percentile(times, part) for times in (writes, reads, both) for part in (50, 99)))


def _timed(action: Callable[[], object]) -> int:
    before_ns = time.perf_counter_ns()
    action()
    return time.perf_counter_ns() - before_ns

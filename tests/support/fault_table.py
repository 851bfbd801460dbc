"""Which test fails every write of which kind of knob. A kind that is in neither table fails tests/undo/test_fault_points.py.

A test that is named here and covers no fault point of its kind fails (tests/conftest.py).
"""

from __future__ import annotations

from collections.abc import Mapping

_V1 = "tests/kernel/test_fault_points.py::test_control_groups"
_TC = "tests/kernel/test_fault_points.py::test_traffic_control"
_V2 = "tests/actuators/test_fault_points.py::test_control_groups_v2"
_PASSED_ON = "tests/actuators/test_fault_points.py::test_enabling_controllers"
_FREQUENCY = "tests/actuators/test_fault_points.py::test_cpu_frequency"
_RESCTRL = "tests/emulation/test_cache_resctrl.py::test_every_write_fails_in_every_way"
_TASKS = "tests/undo/test_fault_points.py::test_threads_in_resctrl"
_PQOS = "tests/undo/test_fault_points.py::test_pqos"
_UNITS = "tests/undo/test_fault_points.py::test_units"
_DROP_INS = "tests/undo/test_fault_points.py::test_restoring_units"
_REST = "tests/undo/test_fault_points_rest.py::test_threads_and_interrupts"
_ROOT = "tests/undo/test_fault_points_rest.py::test_the_roots_processes"

DRIVEN: Mapping[str, str] = {
    "cgroup1.cpu-bandwidth": _V1,
    "cgroup1.cpu-class": _V1,
    "cgroup1.disk-throttle": _V1,
    "cgroup1.freezer": _V1,
    "cgroup1.list": _V1,
    "cgroup1.memory-limit": _V1,
    "cgroup2.cpu-bandwidth": _V2,
    "cgroup2.cpu-class": _V2,
    "cgroup2.disk-throttle": _V2,
    "cgroup2.freezer": _V2,
    "cgroup2.list": _V2,
    "cgroup2.memory": _V2,
    "cgroup2.subtree-control.cpu": _PASSED_ON,
    "cgroup2.subtree-control.cpuset": _PASSED_ON,
    "cgroup2.subtree-control.io": _PASSED_ON,
    "cgroup2.subtree-control.memory": _PASSED_ON,
    "cpufreq.cap": f"{_FREQUENCY}[acpi-no-userspace]",
    "cpufreq.userspace": f"{_FREQUENCY}[acpi]",
    "irq.affinity": _REST,
    "irq.default-affinity": _REST,
    "net-cls.classid": "tests/undo/test_fault_points.py::test_net_cls",
    "pqos.cpu": _PQOS,
    "pqos.mask": _PQOS,
    "resctrl.group": _RESCTRL,
    "resctrl.mask": _RESCTRL,
    "resctrl.tasks": _TASKS,
    "rest.group": _ROOT,
    "rest.list-v1": _REST,
    "rest.list-v2": "tests/undo/test_fault_points_rest.py::test_groups_v2",
    "rest.members": _ROOT,
    "rest.unit": _UNITS,
    "systemd.beside": _DROP_INS,
    "systemd.cpu-bandwidth": _UNITS,
    "systemd.cpu-class": _UNITS,
    "systemd.disk-throttle": _UNITS,
    "systemd.drop-in.cores": _DROP_INS,
    "systemd.drop-in.disk": _DROP_INS,
    "systemd.drop-in.memory": _DROP_INS,
    "systemd.drop-in.rest": _DROP_INS,
    "systemd.list": _UNITS,
    "systemd.memory": _UNITS,
    "systemd.reload": _DROP_INS,
    "task.affinity": _REST,
    "tc-class": _TC,
    "tc-filter": _TC,
    "tc-qdisc": _TC,
    "workqueue.cpumask": _REST,
}
"""By kind."""

WRITES_NOTHING: Mapping[str, str] = {
    "cpufreq.speed": "a sensor: reads the frequency that there is",
    "foreign-writers": "a sensor: takes in what fanotify tells",
    "pqos.look": "a sensor: has pqos show what is in force",
    "resctrl.counters": "a sensor: reads what monitoring counts",
    "rest.scan": "a sensor: looks for what is on the managed CPUs",
}
"""Kinds that an upkeep task sets to be read again, with what they do instead of changing a value."""


def expected_of(node: str) -> frozenset[str]:
    """The kinds that this test has to cover."""
    return frozenset(kind for kind, test in DRIVEN.items() if test == node)


def summary(points: Mapping[str, int]) -> str:
    """One line for the end of a test run."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(points.items()))
    return f"fault points: {sum(points.values())} ({kinds})"

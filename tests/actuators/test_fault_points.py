"""Every write fails in every way, on trees that behave like the kernel's: control groups v2 and CPU frequency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cpufreq_trees
import pytest
from fake_cgroup2 import Cgroup2
from fault_kit import fault_points

from actuators.cgroup import v2_knobs
from actuators.cgroup.group import ENABLED, FROZEN, IDLE_CLASS, Controller, Direction
from actuators.cgroup.v2 import GroupLayerV2
from actuators.frequency import knobs as frequency_knobs
from actuators.frequency.knobs import Cap, CapKnob, Setting, UserspaceKnob
from parties.knob import Effect, KnobWrite

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_fsync")]


def test_control_groups_v2(v2: Cgroup2, tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """Every kind of version 2 but enabling controllers; unset values come back unset, in every file of the tree."""
    v2.make("/rack/web", "cpu", "cpuset", "memory", "io")
    v2.make("/rack/job", "cpu", "cpuset", "memory", "io")
    layer = GroupLayerV2(v2.hierarchies, v2.root)
    web, job = layer.group("/rack/web"), layer.group("/rack/job")
    job.memory_limit.write("700000000")

    def plan() -> list[KnobWrite]:
        return [
            KnobWrite(web.cpus, "0-1", "web", Effect.TAKE),
            KnobWrite(job.memory_limit, "500000000", "job", Effect.TAKE, slow=True),
            KnobWrite(job.disk_throttle("8:0", Direction.READ), "1000000", "job", Effect.TAKE),
            KnobWrite(job.cpu_class, IDLE_CLASS, "job", Effect.TAKE),
            KnobWrite(job.freezer, FROZEN, "job", Effect.TAKE),
            KnobWrite(web.cpu_bandwidth, "20000 100000", "web", Effect.NEUTRAL),
            KnobWrite(web.memory_limit, "900000000", "web", Effect.GIVE),
        ]

    points = fault_points(plan, v2_knobs.KINDS, tmp_path / "state")
    said(points, "control groups v2")
    assert points == 7 * 9 * 2


def test_enabling_controllers(v2: Cgroup2, tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """What a group passes on to those below is what it was, whatever fails."""
    v2.make("/rack/web")
    layer = GroupLayerV2(v2.hierarchies, v2.root)
    before = v2.snapshot()

    def plan() -> list[KnobWrite]:
        enabling = layer.group("/rack/web").enabling((Controller.CPU, Controller.CPUSET, Controller.MEMORY, Controller.DISK))
        return [KnobWrite(knob, ENABLED, "web", Effect.NEUTRAL) for knob in enabling]

    points = fault_points(plan, v2_knobs.KINDS, tmp_path / "state")
    said(points, "what control groups pass on")
    assert points >= 18 * len(plan())
    assert v2.snapshot() == before


@pytest.mark.parametrize("shape", ["acpi", "acpi-no-userspace"])
def test_cpu_frequency(shape: str, tmp_path: Path, said: Callable[[int, str], None]) -> None:
    """Governor, speed and limits of two policies, or caps: every file of the tree is as before."""
    system = cpufreq_trees.make_tree(tmp_path / "root", cpufreq_trees.SHAPES[shape])
    directories = [system / f"cpufreq/policy{number}" for number in (0, 1)]

    def plan() -> list[KnobWrite]:
        if shape == "acpi":
            setting = str(Setting("userspace", 1_500_000, 1_200_000, 2_200_000))
            return [KnobWrite(UserspaceKnob(directory), setting, "web", Effect.NEUTRAL) for directory in directories]
        return [KnobWrite(CapKnob(directory), str(Cap(1_500_000)), "web", Effect.NEUTRAL) for directory in directories]

    def files() -> dict[str, str]:  # but for what only a driver takes back when its governor changes
        return {name: text for name, text in cpufreq_trees.contents(system).items() if not name.endswith("scaling_setspeed")}

    points = fault_points(plan, frequency_knobs.KINDS, tmp_path / "state", snapshot=files)
    said(points, f"CPU frequency ({shape})")
    assert points == 2 * 9 * 2

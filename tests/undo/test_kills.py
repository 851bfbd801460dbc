"""SIGKILL of a daemon with all six resources at 200 moments: after each restore every value is what it was before the daemon."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actuators.cgroup.v1 import ControlGroupV1
from tests.emulation.cpufreq import CpufreqOptions, mounted_cpufreq
from tests.emulation.fuse_tree import why_not
from tests.emulation.namespace import Overlay
from tests.emulation.resctrl import ResctrlOptions, mounted_resctrl
from tests.undo.killing import MOMENTS, Scene, kill_and_restore

pytestmark = [pytest.mark.kernel, pytest.mark.emulation, pytest.mark.slow]

POINTS = int(os.environ.get("PARTIES_KILLS", "210"))


@pytest.fixture
def scene(
    cgroup_factory: Callable[[str], ControlGroupV1], spawn: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> Iterator[Scene]:
    """Two groups with a sleeping process each, a network namespace, and the emulated trees of a machine of two cores."""
    if reason := why_not():
        pytest.skip(reason)
    web, job = cgroup_factory("web"), cgroup_factory("job")
    pids = tuple(spawn(group, "sleep", "3600").pid for group in (web, job))
    namespace = f"parties-kills-{os.getpid()}"
    cache = ResctrlOptions(ways=20, shareable_bits=0xC0000, domains={0: [0, 1]}, monitoring=True)
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    try:
        subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
        with (
            mounted_cpufreq(tmp_path / "cpu", CpufreqOptions()) as cpufreq,
            mounted_resctrl(tmp_path / "resctrl", cache) as resctrl,
        ):
            (resctrl.path / "somebody").mkdir()
            yield Scene(web, job, pids, resctrl, cpufreq, namespace, _disk(), tmp_path)
    finally:
        subprocess.run(["ip", "netns", "delete", namespace], check=True)


def _disk() -> str:
    """A whole disk of this machine, as MAJ:MIN; only the tests' own groups are throttled on it."""
    for disk in sorted(Path("/sys/block").iterdir()):
        if (disk / "size").read_text().strip() != "0":
            return (disk / "dev").read_text().strip()
    pytest.skip("no disk to throttle")


def test_all_resources_at_any_moment(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Control groups, traffic control, cache and frequency come back, whatever the daemon, its helpers or a restore were at."""
    points = Overlay(cpu=scene.cpufreq.path).call(kill_and_restore, scene, range(POINTS))
    differences = [f"seed {point.seed}, {point.moment}: {text}" for point in points for text in point.differences]
    moments = Counter(point.moment for point in points)
    kills, moves = sum(point.kills for point in points), sum(point.moves for point in points)
    with capsys.disabled():
        told = ", ".join(f"{moment} {count}" for moment, count in moments.items())
        print(f"\n{len(points)} points ({told}), {kills} kills, {moves} moves, {len(differences)} differences after restore")  # noqa: T201
    assert not differences, "\n".join(differences)
    assert moments.keys() == MOMENTS.keys()
    assert sum(point.changed for point in points) > len(points) // 2, "the kills came too early, or too late, to prove anything"

"""Traffic told by net_cls: the controller is mounted in a mount namespace that ends with the test's own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_kit import Wire, wired
from waiting import LIMIT_S

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount net_cls and to make network namespaces"),
]

_NOT_MOUNTED = 77
OWN_GROUP = f"/parties-marks-{os.getpid()}"  # the hierarchy is one for all mounts
PRELUDE = """
import contextlib, subprocess, sys
from pathlib import Path
from network_kit import RATE, STEP, Wire, carry_out, placement, receive_from, service, start
from waiting import remove_group
from actuators.network import KINDS, NetworkActuator
from parties.settings import NetworkSettings

server, client, mounted, OWN = sys.argv[1:]
wire, root = Wire(server, client), Path(mounted)
if subprocess.run(["mount", "-t", "cgroup", "-o", "net_cls", "none", mounted]).returncode:
    sys.exit(77)
made = [root / OWN.strip("/") / name for name in ("", "a", "a/child", "b", "c")]
NUMBER = "net_cls.classid"

def number(group):
    return int((group / NUMBER).read_text())

def actuator(*services):
    return NetworkActuator(NetworkSettings("srv", RATE, server, STEP), services, net_cls=root)

try:
    for group in made:
        group.mkdir()
    _, a, child, b, c = made
{body}
finally:
    for group in reversed(made):
        if group.exists():
            remove_group(group)
    subprocess.run(["umount", mounted])
"""


@pytest.fixture
def wire() -> Iterator[Wire]:
    """The two namespaces."""
    with wired() as made:
        yield made


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Where net_cls is mounted, for the test's own process only."""
    place = tmp_path / "net_cls"
    place.mkdir()
    yield place
    assert str(place) not in Path("/proc/self/mounts").read_text()
    assert list(place.iterdir()) == []


def alone(wire: Wire, mounted: Path, body: str) -> None:
    """Run it in a mount namespace of its own."""
    program = PRELUDE.replace("{body}", textwrap.indent(textwrap.dedent(body), "    "))
    wire_and_place = (wire.server, wire.client, str(mounted))
    path = os.pathsep.join((str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])))
    done = subprocess.run(
        ("unshare", "--mount", "--propagation", "private", sys.executable, "-c", program, *wire_and_place, OWN_GROUP),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=5 * LIMIT_S,
    )
    if done.returncode == _NOT_MOUNTED:
        pytest.skip(f"net_cls cannot be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_traffic_is_classified_by_net_cls_and_the_marks_go_again(wire: Wire, mounted: Path) -> None:
    """Traffic of a group that was there before and of one below it is held to the rate, an outsider's is not; undo is complete."""
    alone(
        wire,
        mounted,
        """
        before = wire.tc()
        with contextlib.closing(actuator(service("a", None, f"{OWN}/a"))) as of:
            journal = start(of, placement(a=50))
            assert of.problems == (), of.problems
            assert number(a) == number(child) == 0x70610010
            inside, outside = receive_from(wire, child, 8001), receive_from(wire, root, 8002)
        assert 30 < inside < 65, inside
        assert outside > 2 * inside, (inside, outside)
        for ref, old in reversed(journal):
            KINDS[ref.kind].make(ref.address).restore(old)
        assert number(a) == number(child) == 0
        assert wire.tc() == before
        """,
    )


def test_marks_that_somebody_set_are_used_as_they_are(wire: Wire, mounted: Path) -> None:
    """A number that is there already is not written, and tells its holder's traffic; one that two services share is a problem."""
    alone(
        wire,
        mounted,
        """
        (b / NUMBER).write_text("77")
        with contextlib.closing(actuator(service("a", None, f"{OWN}/a"), service("b", None, f"{OWN}/b"))) as of:
            journal = start(of, placement(a=200, b=50))
            assert "net-cls.classid" in {ref.kind for ref, _ in journal}
            assert [ref.address for ref, _ in journal if str(b) in str(ref)] == []
            assert number(b) == 77
            inside = receive_from(wire, b, 8001)
            assert 30 < inside < 65, inside
        for ref, old in reversed(journal):
            KINDS[ref.kind].make(ref.address).restore(old)
        (c / NUMBER).write_text("77")
        with contextlib.closing(actuator(service("b", None, f"{OWN}/b"), service("c", None, f"{OWN}/c"))) as of:
            of.pools()
            assert "has the number 77 of service b" in of.problems[0], of.problems
        """,
    )


def test_a_group_that_was_made_anew_is_marked_anew(wire: Wire, mounted: Path) -> None:
    """A service that is started again has a new group without a mark; the next plan sets it."""
    alone(
        wire,
        mounted,
        """
        with contextlib.closing(actuator(service("a", None, f"{OWN}/c"))) as of:
            journal = start(of, placement(a=50))
            c.rmdir()
            c.mkdir()
            assert number(c) == 0
            carry_out(list(of.writes(placement(a=60), placement(a=50))))
            assert number(c) == 0x70610010
        for ref, old in reversed(journal):
            KINDS[ref.kind].make(ref.address).restore(old)
        """,
    )

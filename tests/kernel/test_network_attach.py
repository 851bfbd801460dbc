"""Our classes on devices that are not bare: below somebody's classes, on multi-queue devices, and what of it comes back."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_kit import fault_points
from waiting import LIMIT_S

from actuators.network import KINDS, POOL, NetworkActuator, actuator
from actuators.network.netlink import RouteSocket
from actuators.network.tc import TrafficControl
from parties.knob import KnobRef
from parties.model import IDLE, Partition
from parties.placement import Placement
from parties.settings import NetworkSettings, ServiceSettings

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make network namespaces"),
]

MBIT = 1_000_000
RATE, STEP = 400 * MBIT, 10 * MBIT
_numbers = itertools.count()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace of the test's own."""
    name = f"pnet-a-{os.getpid()}-{next(_numbers)}"
    run("ip", "netns", "add", name)
    try:
        yield name
    finally:
        subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False, timeout=LIMIT_S)


@pytest.fixture
def device(namespace: str) -> str:
    """A device in it that shapes nothing by itself."""
    run("ip", "-n", namespace, "link", "add", "srv", "type", "veth", "peer", "name", "cli")
    run("ip", "-n", namespace, "link", "set", "srv", "up")
    return namespace


@pytest.fixture
def queues(namespace: str) -> str:
    """A device of that name with two queues, each with a queueing discipline of the kernel's."""
    run("ip", "-n", namespace, "link", "add", "srv", "numtxqueues", "2", "type", "ifb")
    run("ip", "-n", namespace, "link", "set", "srv", "up")
    assert "qdisc mq 0: root" in shown(namespace)
    return namespace


def tc(namespace: str, *words: str) -> None:
    run("tc", "-n", namespace, *words)


def shown(namespace: str) -> str:
    """Everything that tc shows of the device, in detail."""
    text = "\n".join(run("tc", "-d", "-n", namespace, kind, "show", "dev", "srv") for kind in ("qdisc", "class", "filter"))
    return re.sub(r"direct_packets_stat \d+", "", text)


def shaped(namespace: str, *, parent: str = "", rate: int = RATE) -> NetworkActuator:
    settings = NetworkSettings("srv", rate, namespace, STEP, parent)
    return NetworkActuator(settings, [ServiceSettings("a", 1_000_000, ("/none/a",), ports=(7001,))])


def carried_out(of: NetworkActuator) -> list[tuple[KnobRef, str | None]]:
    assert of.pools()[0].managed, of.pools()[0].reason
    held = Placement(Partition({POOL: {"a": 50 * MBIT, IDLE: 350 * MBIT}}), {}, {})
    journal = []
    for write in of.writes(held, None):
        journal.append((write.knob.ref, write.knob.read()))
        write.knob.write(write.value)
        assert write.knob.same(write.value, write.knob.read()), write.knob.ref
    assert of.read_back()[POOL]["a"] == 50 * MBIT
    return journal


def undone(journal: list[tuple[KnobRef, str | None]]) -> None:
    for ref, old in reversed(journal):
        KINDS[ref.kind].make(ref.address).restore(old)


def somebodys_htb(namespace: str, *, default: str = "30", ceil: str = "1gbit") -> None:
    """A root with two leaf classes, 1:20 and 1:30."""
    tc(namespace, "qdisc", "add", "dev", "srv", "root", "handle", "1:", "htb", "default", default)
    tc(namespace, "class", "add", "dev", "srv", "parent", "1:", "classid", "1:1", "htb", "rate", "1gbit", "quantum", "60000")
    for leaf in ("1:20", "1:30"):
        words = ("rate", "500mbit", "ceil", ceil, "quantum", "60000")
        tc(namespace, "class", "add", "dev", "srv", "parent", "1:1", "classid", leaf, "htb", *words)


@pytest.mark.parametrize(("parent", "place"), [("", "1:30"), ("1:20", "1:20")])
def test_ours_hangs_below_a_free_leaf_and_leaves_no_trace(device: str, parent: str, place: str) -> None:
    """The default class, or the one that was asked for; it is said, resumed, and nothing of theirs changes by it."""
    somebodys_htb(device)
    before = shown(device)
    with contextlib.closing(shaped(device, parent=parent)) as of:
        journal = carried_out(of)
        assert f"qdisc htb 7061: parent {place}" in shown(device)
        assert any(f"hang below class {place} of the htb" in problem for problem in of.problems)
        assert journal[0][0].kind == "tc-qdisc"
    with contextlib.closing(shaped(device, parent=parent)) as again:
        assert again.pools()[0].managed
        first = next(iter(again.writes(Placement(Partition({POOL: {"a": 50 * MBIT}}), {}, {}), None)))
        assert first.knob.same(first.value, first.knob.read())
    undone(journal)
    assert shown(device) == before
    undone(journal)
    assert shown(device) == before


def test_a_fresh_process_finds_ours_below_theirs(device: str) -> None:
    """The journal's reference says nothing of the place; it is found all the same."""
    somebodys_htb(device)
    before = shown(device)
    with contextlib.closing(shaped(device)) as of:
        journal = carried_out(of)
    listed = json.dumps([[ref.kind, ref.address, old] for ref, old in reversed(journal)])
    program = (
        "import json, sys; from actuators.network import KINDS\n"
        "for kind, address, old in json.loads(sys.argv[1]): KINDS[kind].make(tuple(address)).restore(old)"
    )
    run(sys.executable, "-W", "error", "-c", program, listed)
    assert shown(device) == before


def test_theirs_may_go_with_ours_below_it(device: str) -> None:
    """Whoever removes his root removes ours: our knobs read as not there, and there is nothing to bring back."""
    somebodys_htb(device)
    with contextlib.closing(shaped(device)) as of:
        journal = carried_out(of)
        tc(device, "qdisc", "del", "dev", "srv", "root")
        assert {KINDS[ref.kind].make(ref.address).read() for ref, _ in journal} == {None}
    before = shown(device)
    undone(journal)
    assert shown(device) == before


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        ("1:40", "without a class 1:40"),
        ("2:1", "without a class 2:1"),
        ("1:1", "class 1:1 has classes below it"),
        ("1:20", "class 1:20 has a qdisc of its own already, pfifo 20:"),
        ("x", "name a leaf class"),
    ],
)
def test_a_class_that_is_not_free_is_refused(device: str, parent: str, words: str) -> None:
    """Not there, no leaf, taken, or no class at all: one sentence, and nothing is written."""
    somebodys_htb(device)
    tc(device, "qdisc", "add", "dev", "srv", "parent", "1:20", "handle", "20:", "pfifo")
    before = shown(device)
    with contextlib.closing(shaped(device, parent=parent)) as of:
        assert words in of.pools()[0].reason
    assert shown(device) == before


def test_a_root_without_a_default_class_wants_one_named(device: str) -> None:
    """What goes past all of its classes could not be shaped."""
    somebodys_htb(device, default="0")
    with contextlib.closing(shaped(device)) as of:
        assert 'name a leaf class of it that our classes may hang below, `parent = "1:30"`' in of.pools()[0].reason


def test_a_class_that_never_gets_our_rate_is_refused(device: str) -> None:
    """What is handed out has to be there."""
    somebodys_htb(device, ceil="500mbit")
    with contextlib.closing(shaped(device, rate=600 * MBIT)) as of:
        assert "class 1:30 never gets more than 500000000 bit/s" in of.pools()[0].reason


def test_a_class_that_was_named_where_there_is_none_is_refused(device: str) -> None:
    """A bare device has no classes."""
    with contextlib.closing(shaped(device, parent="1:30")) as of:
        assert "has no qdisc with a class 1:30" in of.pools()[0].reason


def test_the_kernel_s_own_queues_come_back(queues: str) -> None:
    """A multi-queue device as the kernel set it up is nobody's: one root for all queues, and then mq and each leaf again."""
    before = shown(queues)
    assert before.count("qdisc pfifo_fast 0: parent :") == 2
    with contextlib.closing(shaped(queues)) as of:
        journal = carried_out(of)
        assert "qdisc htb 7061: root" in shown(queues)
        assert "mq" not in shown(queues)
    undone(journal)
    assert shown(queues) == before


def test_somebody_s_multi_queue_root_is_refused(queues: str) -> None:
    """Each queue has its own leaf; a rate cannot be shared by them."""
    tc(queues, "qdisc", "replace", "dev", "srv", "root", "handle", "9:", "mq")
    before = shown(queues)
    with contextlib.closing(shaped(queues)) as of:
        assert "root qdisc mq handle 9:" in of.pools()[0].reason
        assert "a service's rate cannot be shared by them" in of.pools()[0].reason
    assert shown(queues) == before


def test_what_the_kernel_would_not_bring_back_is_refused(queues: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default was changed since the device was set up: another discipline would stand there afterwards."""
    monkeypatch.setattr(actuator, "default_kind", lambda: "fq_codel")
    before = shown(queues)
    with contextlib.closing(shaped(queues)) as of:
        assert "has the qdisc pfifo_fast, and the kernel would bring back fq_codel" in of.pools()[0].reason
    assert shown(queues) == before


@pytest.mark.parametrize("kind", [("tbf", "rate", "100mbit", "burst", "20kb", "latency", "50ms"), ("bfifo", "limit", "12345")])
def test_somebody_s_root_with_its_parameters_is_refused(device: str, kind: tuple[str, ...]) -> None:
    """Nothing of what was set up is ever replaced, so nothing of it has to come back."""
    tc(device, "qdisc", "add", "dev", "srv", "root", *kind)
    before = shown(device)
    with contextlib.closing(shaped(device)) as of:
        assert f"already has a root qdisc {kind[0]}" in of.pools()[0].reason
    assert shown(device) == before


def test_ours_is_looked_for_where_it_is(device: str) -> None:
    """The kernel answers for one place at a time, and tells a wrong one from the right one."""
    somebodys_htb(device)
    with contextlib.closing(shaped(device)) as of, contextlib.closing(RouteSocket(device)) as route:
        carried_out(of)
        control = TrafficControl(route, route.interface_index("srv"))
        assert control.qdisc(0x70610000, 0x00010030) is not None
        assert control.qdisc(0x70610000, 0x00010020) is None
        assert control.qdisc(0x70610000, 0xFFFFFFFF) is None
        assert control.qdisc(0x70610000, 0x00050001) is None


@pytest.mark.slow
def test_fault_points_below_somebody_s_class(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every write fails in every way, and what tc shows is as before each time."""
    monkeypatch.setattr("os.fsync", lambda _fd: None)
    somebodys_htb(device)
    held = Placement(Partition({POOL: {"a": 50 * MBIT, IDLE: 350 * MBIT}}), {}, {})
    with contextlib.closing(shaped(device)) as of:
        assert of.pools()[0].managed
        points = fault_points(lambda: of.writes(held, None), KINDS, tmp_path / "state", snapshot=lambda: shown(device))
    with capsys.disabled():
        print(f"\n{points} fault points covered below somebody's class")  # noqa: T201 - the figure is wanted

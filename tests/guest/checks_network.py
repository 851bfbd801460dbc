"""Runs in the guest: our classes below somebody's prio, and in the place of the kernel's fq_codel; the host has neither."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator

from actuators.network import KINDS, POOL, NetworkActuator
from parties.knob import KnobRef
from parties.model import IDLE, Partition
from parties.placement import Placement
from parties.settings import NetworkSettings, ServiceSettings

NAMESPACE = "parties-network"
MBIT = 1_000_000
RATE = 400 * MBIT


def check_a_band_of_prio_is_as_before() -> None:
    """Ours hangs below the band that was named, and what tc shows is the same afterwards."""
    with _device("type", "veth", "peer", "name", "cli"):
        _tc("qdisc", "add", "dev", "srv", "root", "handle", "1:", "prio", "bands", "3")
        before = _shown()
        with contextlib.closing(_actuator("1:3")) as of:
            journal = _carried_out(of)
            assert "qdisc htb 7061: parent 1:3" in _shown(), _shown()
        _undone(journal)
        assert _shown() == before, (before, _shown())
        with contextlib.closing(_actuator()) as of:
            assert "name a leaf class" in of.pools()[0].reason, of.pools()


def check_the_kernel_s_default_comes_back_on_every_queue() -> dict[str, str]:
    """A device with two queues gets mq and each leaf back, of the default that systemd has set."""
    with _device("numtxqueues", "2", "type", "ifb"):
        before = _shown()
        assert "qdisc mq 0: root" in before, before
        with contextlib.closing(_actuator()) as of:
            journal = _carried_out(of)
            assert "qdisc htb 7061: root" in _shown(), _shown()
        _undone(journal)
        assert _shown() == before, (before, _shown())
    return {"before": before.strip()}


def check_somebody_s_fq_is_refused() -> None:
    """With the parameters that it was given."""
    with _device("type", "veth", "peer", "name", "cli"):
        _tc("qdisc", "add", "dev", "srv", "root", "fq", "maxrate", "100mbit")
        before = _shown()
        with contextlib.closing(_actuator()) as of:
            assert "already has a root qdisc fq" in of.pools()[0].reason, of.pools()
        assert _shown() == before


@contextlib.contextmanager
def _device(*kind: str) -> Iterator[None]:
    _run("ip", "netns", "add", NAMESPACE)
    try:
        _run("ip", "-n", NAMESPACE, "link", "add", "srv", *kind)
        _run("ip", "-n", NAMESPACE, "link", "set", "srv", "up")
        yield
    finally:
        _run("ip", "netns", "del", NAMESPACE)


def _actuator(parent: str = "") -> NetworkActuator:
    settings = NetworkSettings("srv", RATE, NAMESPACE, 10 * MBIT, parent)
    return NetworkActuator(settings, [ServiceSettings("a", 1_000_000, ("/none/a",), ports=(7001,))])


def _carried_out(of: NetworkActuator) -> list[tuple[KnobRef, str | None]]:
    assert of.pools()[0].managed, of.pools()[0].reason
    journal = []
    for write in of.writes(Placement(Partition({POOL: {"a": 50 * MBIT, IDLE: 350 * MBIT}}), {}, {}), None):
        journal.append((write.knob.ref, write.knob.read()))
        write.knob.write(write.value)
        assert write.knob.same(write.value, write.knob.read()), write.knob.ref
    return journal


def _undone(journal: list[tuple[KnobRef, str | None]]) -> None:
    for ref, old in reversed(journal):
        KINDS[ref.kind].make(ref.address).restore(old)


def _shown() -> str:
    text = "\n".join(_tc("-d", kind, "show", "dev", "srv") for kind in ("qdisc", "class", "filter"))
    return re.sub(r"direct_packets_stat \d+", "", text)


def _tc(*words: str) -> str:
    return _run("tc", "-n", NAMESPACE, *words)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert not done.returncode, f"{command}: {done.stderr}"
    return done.stdout

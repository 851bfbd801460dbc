"""Two network namespaces joined by a veth pair, plans carried out on one end of it, and traffic through it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waiting import LIMIT_S, ahead_of_others, until

from actuators.network import POOL, NetworkActuator, netlink
from parties.knob import KnobRef, KnobWrite
from parties.model import BEST_EFFORT, IDLE, Partition
from parties.placement import Placement
from parties.settings import BestEffortSettings, NetworkSettings, ServiceSettings

MBIT = 1_000_000
RATE = 400 * MBIT
STEP = 10 * MBIT
SERVER_ADDRESS = {socket.AF_INET: "10.213.7.1", socket.AF_INET6: "fd13:7::1"}
CLIENT_ADDRESS = {socket.AF_INET: "10.213.7.2", socket.AF_INET6: "fd13:7::2"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Wire:
    """A server and a client namespace; the server's device is ``srv``."""

    server: str
    client: str

    def tc(self) -> str:
        """Everything that tc shows of the server's device."""
        shown = [run("tc", "-n", self.server, kind, "show", "dev", "srv") for kind in ("qdisc", "class", "filter")]
        return re.sub(r"direct_packets_stat \d+", "", "\n".join(shown))  # a counter

    def actuator(
        self, *names: str, ports: bool = True, jobs: Sequence[BestEffortSettings] = (), v2_root: Path | None = None
    ) -> NetworkActuator:
        """An actuator with services of these names on ports 7001, 7002, ..."""
        services = [service(name, 7001 + n if ports else None) for n, name in enumerate(names)]
        settings = NetworkSettings("srv", RATE, self.server, STEP)
        return NetworkActuator(settings, services, jobs, v2_root=v2_root)


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def service(name: str, port: int | None = None, *cgroups: str) -> ServiceSettings:
    return ServiceSettings(name, 1_000_000, cgroups or (f"/none/{name}",), ports=() if port is None else (port,))


def placement(**amounts: int) -> Placement:
    """Amounts in Mbit/s; what is over is idle."""
    held = {name.replace("best_effort", BEST_EFFORT): amount * MBIT for name, amount in amounts.items()}
    held[IDLE] = RATE - sum(held.values())
    return Placement(Partition({POOL: held}), {}, {})


@contextlib.contextmanager
def wired() -> Iterator[Wire]:
    """The two namespaces; gone afterwards, whatever happened."""
    unique = f"{os.getpid()}-{next(_numbers)}"
    made = Wire(f"pnet-s-{unique}", f"pnet-c-{unique}")
    try:
        for name in (made.server, made.client):
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "srv", "netns", made.server, "type", "veth", "peer", "name", "cli", "netns", made.client)
        ends = ((made.server, "srv", SERVER_ADDRESS), (made.client, "cli", CLIENT_ADDRESS))
        for name, device, addresses in ends:
            run("ip", "-n", name, "addr", "add", f"{addresses[socket.AF_INET]}/24", "dev", device)
            run("ip", "-n", name, "addr", "add", f"{addresses[socket.AF_INET6]}/64", "dev", device, "nodad")
            run("ip", "-n", name, "link", "set", device, "up")
        yield made
    finally:
        for name in (made.server, made.client):
            subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False, timeout=LIMIT_S)


def carry_out(writes: list[KnobWrite] | tuple[KnobWrite, ...]) -> list[tuple[KnobRef, str | None]]:
    """What the loop does with a plan; returns the journal, oldest first."""
    journal = []
    for write in sorted(writes, key=lambda one: one.effect):
        found = write.knob.read()
        if write.knob.same(write.value, found):
            continue
        journal.append((write.knob.ref, found))
        write.knob.write(write.value)
        assert write.knob.same(write.value, write.knob.read()), write.knob.ref
    return journal


def in_namespace(name: str, function: Callable[[], socket.socket]) -> socket.socket:
    """A socket belongs to the namespace where it was made."""
    return netlink._in_namespace(name, function)


def listener(name: str, family: socket.AddressFamily, port: int) -> socket.socket:
    def make() -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((SERVER_ADDRESS[family], port))
        made.listen()
        return made

    return in_namespace(name, make)


@contextlib.contextmanager
def connections(wire: Wire, *ports: int, family: socket.AddressFamily = socket.AF_INET) -> Iterator[dict[int, list[socket.socket]]]:
    """By server port: the server's end and the client's end of a connection."""
    with contextlib.ExitStack() as stack:
        pairs = {}
        for port in ports:
            listening = stack.enter_context(listener(wire.server, family, port))
            client = stack.enter_context(in_namespace(wire.client, lambda: socket.socket(family, socket.SOCK_STREAM)))
            client.settimeout(LIMIT_S)
            client.connect((SERVER_ADDRESS[family], port))
            listening.settimeout(LIMIT_S)
            accepted = stack.enter_context(listening.accept()[0])
            pairs[port] = [accepted, client]
        yield pairs


def blast(pairs: dict[int, list[socket.socket]], seconds: float, skip: float = 0.3) -> dict[int, float]:
    """Every server sends as fast as it is let; Mbit/s that arrive at each client after the first moments."""
    with ahead_of_others():
        return _blast(pairs, seconds, skip)


def _blast(pairs: dict[int, list[socket.socket]], seconds: float, skip: float) -> dict[int, float]:
    block = bytes(65536)
    arrived = dict.fromkeys(pairs, 0)
    ends = {end.fileno(): (port, end, kind) for port, both in pairs.items() for kind, end in enumerate(both)}
    poll = select.epoll()
    for number, (_port, end, kind) in ends.items():
        end.setblocking(False)
        poll.register(number, select.EPOLLIN if kind else select.EPOLLOUT)
    began = time.monotonic()
    counted_from = began + skip
    while (now := time.monotonic()) < began + seconds:
        for number, _events in poll.poll(0.1):
            port, end, kind = ends[number]
            with contextlib.suppress(BlockingIOError):
                if kind:
                    got = len(end.recv(1 << 18))
                    arrived[port] += got if now >= counted_from else 0
                else:
                    end.send(block)
    counted_s = time.monotonic() - counted_from
    poll.close()
    return {port: count * 8 / counted_s / MBIT for port, count in arrived.items()}


def drained(wire: Wire) -> None:
    """Wait until the server's device has sent all that was given to it."""
    until(lambda: set(re.findall(r"backlog (\w+) ", run("tc", "-s", "-n", wire.server, "qdisc", "show", "dev", "srv"))) == {"0b"})


def start(actuator: NetworkActuator, held: Placement) -> list[tuple[KnobRef, str | None]]:
    assert actuator.pools()[0].managed, actuator.pools()[0].reason
    return carry_out(list(actuator.writes(held, None)))


SENDER = """
import os, socket, sys, time
group, address, port = sys.argv[1:]
open(group + "/cgroup.procs", "w").write(str(os.getpid()))
out = socket.create_connection((address, int(port)), timeout=120)
block = bytes(65536)
until = time.monotonic() + 1.5
sent = 0
while time.monotonic() < until and sent < 200_000_000:
    sent += out.send(block)
"""


def receive_from(wire: Wire, group: Path, port: int) -> float:
    """Mbit/s that a process of the group, sending from an ephemeral port of the server namespace, gets through."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.bind((CLIENT_ADDRESS[socket.AF_INET], port))
        made.listen()
        return made

    enter = ("nsenter", f"--net=/run/netns/{wire.server}")  # "ip netns exec" would hide the control groups
    command = (*enter, sys.executable, "-c", SENDER, str(group), CLIENT_ADDRESS[socket.AF_INET], str(port))
    with ahead_of_others(), in_namespace(wire.client, make) as listening, subprocess.Popen(command) as sender:
        listening.settimeout(LIMIT_S)
        with listening.accept()[0] as accepted:
            accepted.settimeout(LIMIT_S)
            began = time.monotonic()
            total = 0
            while got := accepted.recv(1 << 18):
                total += len(got)
            took = time.monotonic() - began
        assert sender.wait(LIMIT_S) == 0
    return total * 8 / took / MBIT

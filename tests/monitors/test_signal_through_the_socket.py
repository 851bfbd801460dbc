"""From an application's client through the socket to the view, on one clock moved by hand."""

import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitors.histogram_socket import HistogramSocket
from monitors.signal import Signal
from parties.client import HistogramClient, Request
from parties.model import LatencyView, QosTarget, ServiceState
from parties.settings import SignalSettings

MS = 1_000_000


class Machine:
    """A daemon's way in for one service, and its clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ns = 100_000 * MS
        self.signal = Signal({"search": QosTarget(10 * MS)}, SignalSettings(), 500 * MS)
        self.selector = selectors.DefaultSelector()
        self.socket = HistogramSocket(
            path, ["search"], self.signal.feed, interval_ns=500 * MS, sub_interval_ns=100 * MS, now_ns=lambda: self.now_ns
        )
        self.socket.attach(self.selector)
        self.clients: list[HistogramClient] = []

    def client(self, name: str) -> HistogramClient:
        made = HistogramClient(self.path, "search", name, background=False, now_ns=lambda: self.now_ns)
        self.clients.append(made)
        return made

    def interval(self, requests: int = 0, service_ns: int = MS) -> LatencyView:
        """Five sub-intervals, each with so many requests by each client, and the view after them."""
        for _ in range(5):
            for client in self.clients:
                for _ in range(requests):
                    client.record(service_ns)
            self.now_ns += 100 * MS
            for client in self.clients:
                client.flush()
            while ready := self.selector.select(0):
                for key, mask in ready:
                    key.data(mask)
        return self.signal.views(self.now_ns + 5 * MS)["search"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A daemon's way in in a directory of its own."""
    made = Machine(tmp_path / "s")
    yield made
    for client in made.clients:
        client.close()
    made.socket.close()
    made.selector.close()


def test_two_clients_are_one_service(machine: Machine) -> None:
    """Their samples are merged, idle and busy intervals told apart."""
    machine.client("a")
    machine.client("b")
    assert machine.interval().state is ServiceState.IDLE
    view = machine.interval(requests=100, service_ns=3 * MS)
    assert (view.state, view.completed) == (ServiceState.OK, 1000)
    assert view.latency_ns == pytest.approx(3 * MS, rel=0.01)


def test_a_service_that_hangs_is_stalled_until_it_answers(machine: Machine) -> None:
    """Requests go out and nothing comes back: the worst state once they are old, gone with the answers."""
    client = machine.client("a")
    machine.interval(requests=100)
    waiting: list[Request] = [client.request() for _ in range(20)]
    view = machine.interval()
    assert (view.state, view.outstanding) == (ServiceState.STALLED, 20)
    assert machine.interval().latency_ns == 1000 * MS
    for request in waiting:
        request.completed()
    view = machine.interval(requests=100)
    assert (view.state, view.outstanding) == (ServiceState.OK, 0)
    assert view.latency_ns is not None
    assert machine.interval(requests=100).state is ServiceState.OK


def test_a_client_that_stops_sending_turns_the_service_stale(machine: Machine) -> None:
    """And one that comes back under its name, its sequence begun anew, is believed again."""
    machine.client("a")
    assert machine.interval(requests=100).state is ServiceState.OK
    machine.clients.pop().close()
    states = [machine.interval().state for _ in range(3)]
    assert states == [ServiceState.OK, ServiceState.STALE, ServiceState.STALE]
    machine.client("a")
    assert machine.interval(requests=100).state is ServiceState.OK
    assert machine.socket.counters()["restarts"] == 1
    assert machine.socket.counters()["dropped"] == 0

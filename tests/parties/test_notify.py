"""What the service manager hears, on a real datagram socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from parties.model import NS_PER_S, Decision, Observation, Partition, Reason
from parties.notify import Heartbeat, Notifier, StatusLine
from parties.record import Timing

MS = 1_000_000


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as link:
        link.bind(str(tmp_path / "notify"))
        yield link


def notifier(manager: socket.socket, **variables: str) -> Notifier:
    name = manager.getsockname()
    return Notifier({"NOTIFY_SOCKET": name if isinstance(name, str) else "@" + name[1:].decode(), **variables})


def heard(manager: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def tick(slacks: Mapping[str, float | None], moves: int = 0) -> dict[str, Any]:
    return {"type": "tick", "moves": [{}] * moves, "services": {name: {"slack": slack} for name, slack in slacks.items()}}


def test_each_state_is_one_datagram(manager: socket.socket) -> None:
    """The lines are those of sd_notify(3); a reload carries the time at which it began, and a status is one line."""
    told = notifier(manager)
    told.ready()
    told.reloading(5_000_900)
    told.stopping()
    told.status("two\nlines")
    assert heard(manager) == ["READY=1", "RELOADING=1\nMONOTONIC_USEC=5000", "STOPPING=1", "STATUS=two lines"]


def test_an_abstract_socket_is_reached() -> None:
    """A name that begins with @ is in the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind("")  # the kernel chooses an abstract name
        notifier(manager).ready()
        assert heard(manager) == ["READY=1"]


def test_a_busy_service_manager_is_waited_for_where_it_matters(manager: socket.socket) -> None:
    """With its queue full a sign of life is lost at once, and "ready" arrives as soon as there is room again."""
    told = notifier(manager, WATCHDOG_USEC="1000")
    for number in range(10_000):
        told.alive(number * MS)
    reader = threading.Timer(0.05, lambda: manager.recv(4096))
    reader.start()
    told.ready()
    reader.join()
    messages = heard(manager)
    assert messages[-1] == "READY=1"
    assert len(messages) < 9_999


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_USEC": "1000"}])
def test_nobody_who_listens_costs_nothing(variables: dict[str, str]) -> None:
    """Without a service manager, and with one that went away, nothing is raised."""
    told = Notifier(variables)
    told.ready()
    told.alive(0)
    assert told.connected == bool(variables.get("NOTIFY_SOCKET"))


def test_signs_of_life_come_in_time_and_not_with_every_tick(manager: socket.socket) -> None:
    """With a limit of 2 s and ticks of 100 ms: one in 500 ms, the first at once; never more than half the limit apart."""
    beat = Heartbeat(notifier(manager, WATCHDOG_USEC="2000000"))
    decision, timing = Decision((), Reason.HOLD_TARGETS_MET), Timing(0, 0, 0)
    counts = []
    for number in range(21):
        beat.tick(Observation(7 + number * 100 * MS, number, {}, Partition({})), decision, timing)
        counts.append(len(heard(manager)))
    assert counts == [1, 0, 0, 0, 0] * 4 + [1]


@pytest.mark.parametrize("limit", [None, "", "0", "soon", "-5"])
def test_without_a_watchdog_there_are_no_signs_of_life(manager: socket.socket, limit: str | None) -> None:
    """No limit, or none that is a number: silence."""
    told = notifier(manager, **({} if limit is None else {"WATCHDOG_USEC": limit}))
    told.alive(0)
    assert (told.watchdog_ns, heard(manager)) == (0, [])


def test_the_status_tells_services_targets_and_moves_when_it_is_news(manager: socket.socket) -> None:
    """Services not judged are on no target; it is said once a second at most, with what has come together meanwhile."""
    line = StatusLine(notifier(manager))
    line.update({"type": "event", "text": "x"}, 0)
    line.update(tick({"a": 0.1, "b": -0.5, "c": None}, moves=2), 0)
    line.update(tick({"a": 0.1, "b": -0.5, "c": None}, moves=1), NS_PER_S // 2)
    line.update(tick({"a": 0.1, "b": -0.5, "c": None}), 2 * NS_PER_S)
    line.update(tick({"a": 0.1, "b": -0.5, "c": None}), 4 * NS_PER_S)
    line.note = "the last reload was refused"
    line.update(tick({"a": 0.0}), 6 * NS_PER_S)
    assert heard(manager) == [
        "STATUS=3 services, 1 of 2 judged on target, 2 moves",
        "STATUS=3 services, 1 of 2 judged on target, 3 moves",
        "STATUS=1 service, 1 of 1 judged on target, 3 moves; the last reload was refused",
    ]

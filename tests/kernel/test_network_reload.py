"""Traffic classes at a reload: what stays is not touched, and at no point is there anything that could not be undone."""

from __future__ import annotations

import contextlib
import errno
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_kit import Daemon, Site
from fault_kit import COVERED, ERRNOS
from network_kit import CLIENT_ADDRESS, MBIT, RATE, SERVER_ADDRESS, STEP, Wire, in_namespace, placement, run, service, wired

from actuators.cgroup.v1 import ControlGroupV1
from actuators.network import KINDS, NetworkActuator
from actuators.network.actuator import REST_CLASS
from actuators.network.device import Device
from actuators.network.filters import FilterKnob, parse_filters
from actuators.network.tc import (
    RTM_DELTCLASS,
    RTM_GETQDISC,
    RTM_GETTCLASS,
    RTM_NEWTCLASS,
    TrafficControl,
    handle_text,
    parse_handle,
)
from parties.enforcer import Enforcer
from parties.in_force import read_in_force
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import KnobKinds, KnobRef
from parties.model import Holder, MoveStatus, PoolKey, Resource
from parties.restore import restore
from parties.settings import MS, ControlSettings, NetworkSettings, ServiceSettings
from parties.slow_writer import SlowResult

pytestmark = pytest.mark.kernel

Layout = Mapping[str, tuple[int, ...]]
"""Services and their ports."""

HALF: Layout = {"a": (7001,), "b": (7002, 7003)}
CHANGES: Mapping[str, Layout] = {
    "one-less": {"b": (7002, 7003)},
    "one-more": {"new": (7004,), "a": (7001,), "b": (7002, 7003)},
    "renamed": {"a": (7001,), "c": (7002, 7003)},
    "other-ports": {"a": (7001, 7005), "b": (7003,)},
    "ports-change-hands": {"a": (7003,), "b": (7001, 7002)},
    "another-order": {"b": (7002, 7003), "a": (7001,)},
    "no-ports-left": {"a": (), "b": ()},
    "everybody-else": {"x": (7002,), "y": (7009,), "z": (7001,)},
}


class Killed(BaseException):
    """In the place of SIGKILL: nobody handles it, and nothing is done after it."""


class NothingSlow:
    """A slow writer that is never needed."""

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        raise AssertionError(ref, value, now_ns)

    def poll(self, _now_ns: int) -> list[SlowResult]:
        return []


class Daemons:
    """Daemons that follow each other on one device, as far as traffic control is concerned."""

    def __init__(self, wire: Wire, directory: Path) -> None:
        self.wire = wire
        self.directory = directory
        self.earlier: dict[KnobRef, Holder] = {}

    def start(self, layout: Layout) -> MoveStatus:
        """Put back what is of nobody any more, and put the layout in force."""
        services = [replace(service(name), ports=ports) for name, ports in layout.items()]
        settings = NetworkSettings("srv", RATE, self.wire.server, STEP)
        with contextlib.closing(NetworkActuator(settings, services, earlier=self.earlier)) as actuator:
            (pool,) = actuator.pools()
            assert pool.managed, pool.reason
            writes = actuator.writes(placement(**dict.fromkeys(layout, 20 * (1 + len(layout)))), None)
            kept = {write.knob.ref for write in writes}
            assert restore(self.directory / JOURNAL_NAME, KINDS, only=lambda ref: ref not in kept).complete
            with contextlib.closing(Journal(self.directory, started_unix_ns=1)) as journal:
                enforcer = Enforcer(journal, NothingSlow(), kinds=KINDS)
                status = enforcer.apply(writes, 1).status
                self.earlier = {ref: wanted.holder for ref, wanted in enforcer.wanted.items()} or self.earlier
                return status

    def end(self, kinds: KnobKinds = KINDS) -> None:
        assert restore(self.directory / JOURNAL_NAME, kinds).complete

    def class_of(self, name: str) -> str:
        (ref,) = [ref for ref, holder in self.earlier.items() if holder == name and ref.kind == "tc-class"]
        return ref.address[2]

    def filters(self) -> dict[str, set[str]]:
        """The filters of each class, with their handles."""
        shown = run("tc", "-n", self.wire.server, "filter", "show", "dev", "srv")
        found: dict[str, set[str]] = {}
        for line in shown.splitlines():
            if flow := re.search(r"fh (\S+) .*flowid (\S+)", line):
                found.setdefault(flow[2], set()).add(f"{line.split(' u32')[0]} {flow[1]}")
        return found


@pytest.fixture
def wire() -> Iterator[Wire]:
    with wired() as made:
        yield made


@pytest.fixture
def daemons(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemons:
    monkeypatch.setattr("os.fsync", lambda _fd: None)
    return Daemons(wire, tmp_path)


def ports_shown(daemons: Daemons) -> dict[str, int]:
    """How many filters each service has: two for each port, one for either version of the protocol."""
    counts = {class_id: len(filters) for class_id, filters in daemons.filters().items()}
    return {holder: counts.get(ref.address[2], 0) for ref, holder in daemons.earlier.items() if ref.kind == "tc-class"}


@pytest.mark.parametrize("change", CHANGES)
def test_what_stays_keeps_its_class_and_its_filters(daemons: Daemons, change: str) -> None:
    """The same class id and the same handles; whoever left is gone, the new ones are there, and undo is complete."""
    before, layout = daemons.wire.tc(), CHANGES[change]
    assert daemons.start(HALF) is MoveStatus.DONE
    held = {name: daemons.class_of(name) for name in HALF}
    filters = daemons.filters()
    assert daemons.start(layout) is MoveStatus.DONE
    for name in layout.keys() & HALF:
        assert daemons.class_of(name) == held[name]
        if layout[name] == HALF[name]:
            assert daemons.filters()[held[name]] == filters[held[name]]
    assert not {daemons.class_of(name) for name in layout.keys() - HALF} & set(held.values())
    assert {name: count for name, count in ports_shown(daemons).items() if name in layout} == {
        name: 2 * len(ports) for name, ports in layout.items()
    }
    shown = run("tc", "-n", daemons.wire.server, "class", "show", "dev", "srv")
    assert len(shown.splitlines()) == 3 + len(layout)
    daemons.end()
    assert daemons.wire.tc() == before


def test_random_daemons_one_after_another(daemons: Daemons) -> None:
    """Over 40 seeded changes of services and ports nobody who stays is renumbered, and the last end brings back the first."""
    rng = random.Random(3)  # noqa: S311 - the changes have to repeat
    before = daemons.wire.tc()
    classes: dict[str, str] = {}
    for _ in range(40):
        ports = rng.sample(range(7000, 7012), 12)
        layout = {name: tuple(ports.pop() for _ in range(rng.randrange(3))) for name in rng.sample("abcdef", rng.randrange(1, 5))}
        assert daemons.start(layout) is MoveStatus.DONE
        for name in layout.keys() & classes:
            assert daemons.class_of(name) == classes[name]
        classes = {name: daemons.class_of(name) for name in layout}
        assert len(set(classes.values())) == len(layout)
        shown = {name: count for name, count in ports_shown(daemons).items() if name in layout}
        assert shown == {name: 2 * len(ports) for name, ports in layout.items()}
    daemons.end()
    assert daemons.wire.tc() == before


class Faults:
    """Counts what is sent to change something; that of number ``index`` fails, having taken effect or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.index: int | None = None
        self.error: BaseException = Killed()
        self.takes_effect = False
        self.count = 0
        self.kinds: list[str] = []  # of knob, by request
        self.watch: Callable[[], None] = lambda: None
        send = TrafficControl._send

        def struck(control: TrafficControl, kind: int, *rest: object) -> list[bytes]:
            if kind in {RTM_GETQDISC, RTM_GETTCLASS}:
                return send(control, kind, *rest)  # type: ignore[arg-type]
            index, self.count = self.count, self.count + 1
            self.kinds.append("tc-class" if kind in {RTM_NEWTCLASS, RTM_DELTCLASS} else "tc-filter")
            if index == self.index and not self.takes_effect:
                raise self.error
            answer = send(control, kind, *rest)  # type: ignore[arg-type]
            self.watch()
            if index == self.index:
                raise self.error
            return answer

        monkeypatch.setattr(TrafficControl, "_send", struck)

    def strike(self, index: int | None, error: BaseException | None = None, *, takes_effect: bool = False) -> None:
        self.index, self.takes_effect, self.count = index, takes_effect, 0
        self.kinds.clear()
        self.error = error or Killed()


@pytest.mark.parametrize("change", CHANGES)
def test_after_every_request_of_a_reload_traffic_of_who_stays_has_its_class(
    daemons: Daemons, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Each port that somebody who stays had and somebody who stays has now is always told, and always to a class that there is."""
    layout, faults, looks = CHANGES[change], Faults(monkeypatch), list[int]()
    assert daemons.start(HALF) is MoveStatus.DONE
    stay = layout.keys() & HALF
    ports = {port for name in stay for port in HALF[name]} & {port for name in stay for port in layout[name]}
    device = Device("srv", daemons.wire.server)
    knob = FilterKnob(device)

    def watch() -> None:
        _, rules, _ = parse_filters((knob.read() or "").partition(" but for IPv6")[0])
        assert ports <= {rule.port for rule in rules}
        assert {rule.class_id for rule in rules} <= device.classes().keys()
        looks.append(1)

    faults.watch = watch
    with contextlib.closing(device):
        assert daemons.start(layout) is MoveStatus.DONE
    assert looks
    faults.watch = lambda: None
    daemons.end()


def test_every_request_of_a_reload_fails_in_every_way(daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two requests, SIGKILL or an error: what is in the journal brings back the device as it was."""
    before, layout = daemons.wire.tc(), {"b": (7003, 7004), "c": (7001,)}
    faults = Faults(monkeypatch)
    assert daemons.start(HALF) is MoveStatus.DONE
    faults.strike(None)
    assert daemons.start(layout) is MoveStatus.DONE
    requests, kinds = faults.count, tuple(faults.kinds)
    assert requests > 10
    daemons.end()
    points = 0
    for index in range(requests):
        for error, effect in [(code, effect) for code in (*ERRNOS, 0) for effect in (False, True)]:
            faults.strike(None)
            daemons.earlier = {}
            assert daemons.start(HALF) is MoveStatus.DONE
            faults.strike(index, OSError(error, "injected") if error else None, takes_effect=effect)
            with contextlib.suppress(Killed, AssertionError):  # an error may keep what left from being put back
                daemons.start(layout)
            assert faults.count > index
            faults.strike(None)
            daemons.end()
            assert daemons.wire.tc() == before, f"request {index}: {errno.errorcode.get(error, 'SIGKILL')} {effect}"
            COVERED[kinds[index]] += 1
            points += 1
    assert points == 16 * requests
    assert set(kinds) == {"tc-class", "tc-filter"}


def test_a_reload_that_was_interrupted_is_taken_up_by_the_next(daemons: Daemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at any request and left as it is, the next daemon puts its own layout in force; the end brings back the first."""
    before, layout = daemons.wire.tc(), {"b": (7003, 7004), "c": (7001,)}
    faults = Faults(monkeypatch)
    for index in range(12):
        faults.strike(None)
        daemons.earlier = {}
        assert daemons.start(HALF) is MoveStatus.DONE
        faults.strike(index)
        with contextlib.suppress(Killed):
            daemons.start(layout)
        faults.strike(None)
        following: Layout = [layout, HALF, {"d": (7003,), "a": (7002,)}][index % 3]
        assert daemons.start(following) is MoveStatus.DONE
        shown = {name: count for name, count in ports_shown(daemons).items() if name in following}
        assert shown == {name: 2 * len(ports) for name, ports in following.items()}
        daemons.end()
        assert daemons.wire.tc() == before


def test_filters_that_somebody_damaged_are_made_whole(daemons: Daemons) -> None:
    """A link or a rule less, a foreign filter more: the next daemon's write puts it right, and undo is complete."""
    before = daemons.wire.tc()
    tc = ("tc", "-n", daemons.wire.server, "filter")
    where = ("dev", "srv", "parent", "7061:")
    for damage in (
        ("del", *where, "protocol", "ip", "prio", "2", "handle", "800::800", "u32"),
        ("del", *where, "protocol", "ipv6", "prio", "3"),
        ("add", *where, "protocol", "ip", "prio", "9", "u32", "match", "ip", "sport", "1", "0xffff", "flowid", "7061:10"),
    ):
        daemons.earlier = {}
        assert daemons.start(HALF) is MoveStatus.DONE
        whole = daemons.filters().keys()
        run(*tc, *damage)
        assert daemons.start(HALF) is MoveStatus.DONE
        assert ports_shown(daemons)["b"] == 4
        assert daemons.filters().keys() == whole
        daemons.end()
        assert daemons.wire.tc() == before


# With traffic


class Traffic:
    """A service that sends without a pause, and somebody who watches the counters of the device."""

    PACKET_BYTES = 1400

    def __init__(self, wire: Wire, port: int, class_id: int) -> None:
        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((SERVER_ADDRESS[socket.AF_INET], port))
            return made

        self._socket = in_namespace(wire.server, make)
        self._device = Device("srv", wire.server)
        self._class_id = class_id
        self._end = threading.Event()
        self.trouble: list[str] = []
        self.looks = 0
        self.sent_bytes, self.rest_bytes = self._counters()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._watch)]
        for thread in self._threads:
            thread.start()

    def _counters(self) -> tuple[int, int]:
        found = self._device.classes()
        return found[self._class_id].sent_bytes, found[REST_CLASS].sent_bytes

    def _send(self) -> None:
        while not self._end.wait(0.0005):
            self._socket.sendto(bytes(self.PACKET_BYTES), (CLIENT_ADDRESS[socket.AF_INET], 9))

    def _watch(self) -> None:
        last, first_rest = self.sent_bytes, self.rest_bytes
        while not self._end.wait(0.002):
            try:
                now, rest = self._counters()
            except (KeyError, OSError) as error:
                self.trouble.append(f"no such class: {error!r}")
                continue
            if now < last:
                self.trouble.append(f"a counter fell from {last} to {now}")
            if rest - first_rest >= self.PACKET_BYTES:
                self.trouble.append(f"{rest - first_rest} bytes went to the rest")
                first_rest = rest
            last, self.looks = now, self.looks + 1
        self.sent_bytes = last

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()
        self._device.close()


@pytest.fixture
def quiet(wire: Wire) -> Wire:
    """Nothing but what a test sends goes through the device."""
    for name in (wire.server, wire.client):
        run("ip", "netns", "exec", name, "sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
    link = run("ip", "-n", wire.client, "link", "show", "dev", "cli")
    (address,) = re.findall(r"link/ether (\S+)", link)
    run("ip", "-n", wire.server, "neigh", "replace", CLIENT_ADDRESS[socket.AF_INET], "lladdr", address, "dev", "srv")
    return wire


def class_id_of(settings: ControlSettings, name: str) -> int:
    wanted = read_in_force(Path(settings.runtime_directory) / "in-force.json").wanted
    (found,) = [ref.address[2] for ref, one in wanted.items() if one.holder == name and ref.kind == "tc-class"]
    return parse_handle(found)


def test_a_service_that_stays_never_notices_a_reload(
    site: Site, quiet: Wire, cgroup_factory: Callable[[str], ControlGroupV1], spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """It sends through six reloads of services and ports: its counter never falls, and not one packet of it goes to the rest."""
    before = quiet.tc()
    spawn(cgroup_factory("cache"), "sleep", "600")
    web, store = (replace(one, ports=(8000 + n,)) for n, one in enumerate(site.settings.services))
    cache = ServiceSettings("cache", 10 * MS, (cgroup_factory("cache").path,), ports=(8002,))
    node = replace(site.settings.node, network=NetworkSettings("srv", RATE, quiet.server, STEP))
    settings = replace(site.settings, services=(web, store), node=node)
    sequence: Sequence[tuple[ServiceSettings, ...]] = (
        (cache, store),
        (store,),
        (replace(store, ports=(8001, 8005)), web),
        (replace(web, name="renamed"), store),
        (store, replace(cache, ports=(8000,))),
        (web, store),
    )
    with Daemon(settings) as daemon:
        daemon.started().tick()
        class_id = class_id_of(settings, "store")
        daemon.stop(signal.SIGUSR1)
    with contextlib.closing(Traffic(quiet, 8001, class_id)) as traffic:
        for services in sequence:
            with Daemon(replace(settings, services=services)) as daemon:
                tick = daemon.started().tick()
                assert tick["services"].keys() == {one.name for one in services}
                assert class_id_of(settings, "store") == class_id, handle_text(class_id)
                seen = traffic.looks
                while traffic.looks < seen + 20:
                    time.sleep(0.01)
                assert not [message for message in daemon.messages if "anew in another place" in str(message.get("text"))]
                report = daemon.stop(signal.SIGUSR1)
                assert report["left_in_force"] is True
    assert traffic.trouble == []
    assert traffic.sent_bytes > 100 * Traffic.PACKET_BYTES
    with Daemon(settings) as daemon:
        daemon.started().stop()
    assert quiet.tc() == before


def test_another_place_is_made_anew_and_said(site: Site, quiet: Wire) -> None:
    """Classes cannot move to another device: they are made there, the first is as before at once, and so are both at the end."""

    def shown(device: str) -> str:
        return run("tc", "-n", quiet.server, "class", "show", "dev", device)

    before = quiet.tc()
    node = replace(site.settings.node, network=NetworkSettings("srv", RATE, quiet.server, STEP))
    settings = replace(site.settings, node=node)
    with Daemon(settings) as daemon:
        daemon.started().stop(signal.SIGUSR1)
    assert len(shown("srv").splitlines()) == 5
    moved = replace(node, network=NetworkSettings("lo", RATE, quiet.server, STEP))
    with Daemon(replace(settings, node=moved)) as daemon:
        daemon.event("the traffic classes are made anew in another place; for a moment traffic is not shaped")
        daemon.started()
        assert quiet.tc() == before
        assert len(shown("lo").splitlines()) == 5
        daemon.stop()
    assert quiet.tc() == before
    assert shown("lo") == ""


def test_another_rate_is_taken_in_place(site: Site, quiet: Wire) -> None:
    """The device's class has the new rate, and the counters of the others go on."""
    node = replace(site.settings.node, network=NetworkSettings("srv", RATE, quiet.server, STEP))
    settings = replace(site.settings, node=node, services=tuple(replace(one, ports=(8001,)) for one in site.settings.services[:1]))
    with Daemon(settings) as daemon:
        daemon.started().tick()
        class_id = class_id_of(settings, "web")
        daemon.stop(signal.SIGUSR1)
    with contextlib.closing(Traffic(quiet, 8001, class_id)) as traffic:
        while traffic.looks < 20:
            time.sleep(0.01)
        faster = replace(settings, node=replace(node, network=NetworkSettings("srv", 2 * RATE, quiet.server, STEP)))
        with Daemon(faster) as daemon:
            tick = daemon.started().tick()
            assert tick["services"]["web"]["amounts"][PoolKey(Resource.NETWORK).resource.value] > 0
            shown = run("tc", "-n", quiet.server, "class", "show", "dev", "srv", "classid", "7061:1")
            assert f"rate {2 * RATE // MBIT}Mbit" in shown
            daemon.stop(signal.SIGUSR1)
    assert traffic.trouble == []
    with Daemon(settings) as daemon:
        daemon.started().stop()

"""The network actuator on this kernel: two namespaces of the test's own, joined by a veth pair."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_kit import (
    CLIENT_ADDRESS,
    MBIT,
    RATE,
    SERVER_ADDRESS,
    STEP,
    Wire,
    _numbers,
    blast,
    carry_out,
    connections,
    drained,
    in_namespace,
    placement,
    receive_from,
    run,
    service,
    start,
    wired,
)
from waiting import remove_group, until

from actuators.network import KINDS, POOL, NetworkActuator
from actuators.network.actuator import DEVICE_CLASS, LEAST_BYTES_PER_S
from actuators.network.device import Device
from actuators.network.knobs import ClassKnob
from actuators.network.netlink import RouteSocket
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, KnobError, KnobRef
from parties.model import BEST_EFFORT, IDLE, MoveStatus, Partition, Resource
from parties.placement import Placement
from parties.restore import Fate, restore
from parties.settings import BestEffortSettings, NetworkSettings
from parties.slow_writer import SlowResult

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make network namespaces"),
]


@pytest.fixture
def wire() -> Iterator[Wire]:
    """The two namespaces."""
    with wired() as made:
        yield made


def test_throughput_follows_the_class_rates(wire: Wire) -> None:
    """Two services with 50 and 150 Mbit/s get about that, in a ratio of 3, and usage sees it."""
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        start(actuator, placement(a=50, b=150))
        usage = actuator.usage()
        with connections(wire, 7001, 7002) as pairs:
            assert usage.sample(time.monotonic_ns()) == {}
            got = blast(pairs, 1.8)
            seen = usage.sample(time.monotonic_ns())
    assert 2.4 < got[7002] / got[7001] < 3.7
    assert 0.7 < got[7001] / 50 < 1.15
    assert 2.2 < seen["b"] / seen["a"] < 4
    assert seen[BEST_EFFORT] == 0


def test_ipv6_is_classified_too(wire: Wire) -> None:
    """IPv6 replies from a service's port are held to its rate."""
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        start(actuator, placement(a=50, b=150))
        with connections(wire, 7001, 7002, family=socket.AF_INET6) as pairs:
            got = blast(pairs, 1.5)
    assert 2.4 < got[7002] / got[7001] < 3.7
    assert got[7001] < 65


@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param(socket.AF_INET, b"", id="ipv4"),
        pytest.param(socket.AF_INET, b"\x01" * 8, id="ipv4-options"),
        pytest.param(socket.AF_INET6, b"", id="ipv6"),
    ],
)
def test_udp_is_classified_whatever_the_header_length(wire: Wire, family: socket.AddressFamily, options: bytes) -> None:
    """Datagrams from a service's port count in its class, also behind IPv4 options; those from another port do not."""
    with contextlib.closing(wire.actuator("a", "b")) as actuator, contextlib.ExitStack() as stack:
        start(actuator, placement(a=50, b=50))
        stack.enter_context(connections(wire, 9998, family=family))  # the ends know each other's hardware addresses from here on
        usage = actuator.usage()
        usage.sample(0)
        for port, datagrams in ((7001, 20), (7003, 40)):
            sender = stack.enter_context(in_namespace(wire.server, lambda: socket.socket(family, socket.SOCK_DGRAM)))
            sender.bind((SERVER_ADDRESS[family], port))
            if options:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, options)
            for _ in range(datagrams):
                sender.sendto(bytes(1000), (CLIENT_ADDRESS[family], 9))
        drained(wire)
        seen = usage.sample(1_000_000_000)
    assert 20 * 8000 < seen["a"] < 22 * 9000
    assert seen["b"] == 0


def test_only_the_first_fragment_is_recognised_by_port(wire: Wire) -> None:
    """Later fragments carry no port: their payload is not taken for one, and they go to the rest."""
    with contextlib.closing(wire.actuator("a")) as actuator, contextlib.ExitStack() as stack:
        start(actuator, placement(a=50))
        stack.enter_context(connections(wire, 9998))  # the ends know each other's hardware addresses from here on
        usage = actuator.usage()
        usage.sample(0)
        with in_namespace(wire.server, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            sender.bind((SERVER_ADDRESS[socket.AF_INET], 7001))
            sender.sendto((7001).to_bytes(2, "big") * 10_000, (CLIENT_ADDRESS[socket.AF_INET], 9))
        drained(wire)
        seen = usage.sample(1_000_000_000)
    assert 1400 * 8 < seen["a"] < 1600 * 8


def test_a_live_change_takes_effect_on_running_connections(wire: Wire) -> None:
    """Moving 100 Mbit/s from one to the other turns the ratio round, and the shrinking write comes first."""
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        first, second = placement(a=50, b=150), placement(a=150, b=50)
        start(actuator, first)
        with connections(wire, 7001, 7002) as pairs:
            before = blast(pairs, 1.2)
            moves = actuator.writes(second, first)
            carry_out(list(moves))
            after = blast(pairs, 1.2)
        assert [write.effect for write in sorted(moves, key=lambda one: one.effect)] == [Effect.TAKE, Effect.GIVE]
        assert actuator.read_back() == {POOL: {"a": 150 * MBIT, "b": 50 * MBIT, BEST_EFFORT: 0}}
    assert before[7002] > 2 * before[7001]
    assert after[7001] > 2 * after[7002]


def test_the_rest_uses_what_is_idle_and_takes_nothing_from_a_service(wire: Wire) -> None:
    """Unclassified traffic gets far more than its own 1 Mbit/s beside a service that fully uses its rate and keeps it."""
    with contextlib.closing(wire.actuator("a")) as actuator:
        start(actuator, placement(a=100))
        with connections(wire, 7001, 9999) as pairs:
            got = blast(pairs, 1.5)
    assert got[9999] > 100
    assert 75 < got[7001] < 115


def test_best_effort_with_nothing_keeps_a_trickle_and_reads_back_as_nothing(wire: Wire) -> None:
    """HTB knows no rate of 0; what stands for it is read back as 0 and not as an amount."""
    with contextlib.closing(wire.actuator("a")) as actuator:
        first, second = placement(a=100, best_effort=50), placement(a=100)
        start(actuator, first)
        assert actuator.read_back()[POOL][BEST_EFFORT] == 50 * MBIT
        carry_out(list(actuator.writes(second, first)))
        assert actuator.read_back()[POOL][BEST_EFFORT] == 0
        assert f"rate {LEAST_BYTES_PER_S * 8 // MBIT}Mbit" in wire.tc()


def test_undo_newest_first_brings_back_exactly_what_tc_showed(wire: Wire) -> None:
    """The kernel's default qdisc is back, with no class and no filter left."""
    before = wire.tc()
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        journal = start(actuator, placement(a=50, b=150, best_effort=20))
        assert len(journal) == 7
        assert "htb 7061:" in wire.tc()
        for ref, old in reversed(journal):
            knob = KINDS[ref.kind].make(ref.address)
            assert not knob.same("", knob.read())
            knob.restore(old)
            assert knob.read() is None
    assert wire.tc() == before


def test_undo_in_any_order_and_twice_is_harmless(wire: Wire) -> None:
    """Oldest first removes all with the qdisc; the others find their work done, a second time too."""
    before = wire.tc()
    with contextlib.closing(wire.actuator("a")) as actuator:
        journal = start(actuator, placement(a=50))
    for _time in range(2):
        for ref, old in journal:
            KINDS[ref.kind].make(ref.address).restore(old)
    assert wire.tc() == before


def test_a_fresh_process_restores_from_the_journal_alone(wire: Wire) -> None:
    """Kind and address are enough for a process that knows nothing else."""
    before = wire.tc()
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        journal = start(actuator, placement(a=50, b=150))
    listed = json.dumps([[ref.kind, ref.address, old] for ref, old in reversed(journal)])
    program = (
        "import json, sys; from actuators.network import KINDS\n"
        "for kind, address, old in json.loads(sys.argv[1]): KINDS[kind].make(tuple(address)).restore(old)"
    )
    run(sys.executable, "-W", "error", "-c", program, listed)
    assert wire.tc() == before


class NothingSlow:
    """A slow writer that is never needed: no network knob is slow."""

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:
        raise AssertionError(ref, value, now_ns)

    def poll(self, now_ns: int) -> list[SlowResult]:
        assert now_ns
        return []


def test_enforcer_journal_and_restore_agree_with_the_knobs(wire: Wire, tmp_path: Path) -> None:
    """A whole life: start, move, no drift, an end without farewell, restore; tc shows what it showed before."""
    before = wire.tc()
    first, second = placement(a=50, b=150), placement(a=60, b=140)
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        enforcer = Enforcer(Journal(tmp_path, started_unix_ns=1), NothingSlow())
        assert actuator.pools()[0].managed
        assert enforcer.apply(actuator.writes(first, None), 1).status is MoveStatus.DONE
        assert enforcer.apply(actuator.writes(second, first), 2).status is MoveStatus.DONE
        assert enforcer.drift(3) == []
        assert actuator.read_back()[POOL] == {"a": 60 * MBIT, "b": 140 * MBIT, BEST_EFFORT: 0}
    report = restore(tmp_path / JOURNAL_NAME, KINDS)
    assert report.complete
    assert len(report.of(Fate.RESTORED)) == 7
    assert wire.tc() == before


@pytest.mark.parametrize("kind", [("tbf", "rate", "100mbit", "burst", "20kb", "latency", "50ms"), ("htb",), ("pfifo",)])
def test_a_root_qdisc_of_somebody_else_is_refused_and_left_alone(wire: Wire, kind: tuple[str, ...]) -> None:
    """Not managed, the reason names device, qdisc and handle; nothing is written, and restoring removes nothing of theirs."""
    run("tc", "-n", wire.server, "qdisc", "add", "dev", "srv", "root", "handle", "5:", *kind)
    before = wire.tc()
    with contextlib.closing(wire.actuator("a")) as actuator:
        (pool,) = actuator.pools()
        assert not pool.managed
        assert f"already has a root qdisc {kind[0]} handle 5:" in pool.reason
        assert "srv" in pool.reason
        assert actuator.writes(placement(a=50), None) == ()
        assert actuator.read_back() == {}
        assert actuator.usage().sample(1) == {}
    for ref in (("tc-filter", "7061:"), ("tc-class", "7061:10"), ("tc-qdisc", "7061:")):
        KINDS[ref[0]].make((wire.server, "srv", ref[1])).restore(None)
    assert wire.tc() == before


def test_a_foreign_root_that_came_after_the_check_is_not_replaced(wire: Wire) -> None:
    """The write itself fails with EEXIST; theirs stays."""
    with contextlib.closing(wire.actuator("a")) as actuator:
        assert actuator.pools()[0].managed
        writes = actuator.writes(placement(a=50), None)
        run("tc", "-n", wire.server, "qdisc", "add", "dev", "srv", "root", "handle", "5:", "pfifo")
        with pytest.raises(KnobError, match="set qdisc 7061: htb on srv in network namespace") as caught:
            writes[0].knob.write(writes[0].value)
    assert caught.value.errno == errno.EEXIST
    assert "pfifo 5: root" in wire.tc()


def test_restore_after_the_namespace_is_gone_says_that_it_is_gone(wire: Wire) -> None:
    """ENOENT for every knob, also for one whose process still holds a socket; ENODEV where only the device went."""
    with contextlib.closing(wire.actuator("a")) as actuator:
        journal = start(actuator, placement(a=50))
        run("ip", "-n", wire.server, "link", "del", "srv")
        for ref, _old in journal:
            with pytest.raises(KnobError, match="No such device") as caught:
                KINDS[ref.kind].make(ref.address).restore(None)
            assert caught.value.errno == errno.ENODEV
        assert actuator.read_back() == {POOL: {}}
        run("ip", "netns", "del", wire.server)
        for ref, _old in journal:
            with pytest.raises(KnobError, match=r"network namespace /run/netns/\S+ does not exist") as caught:
                KINDS[ref.kind].make(ref.address).restore(None)
            assert caught.value.errno == errno.ENOENT


def test_an_earlier_run_of_the_same_configuration_is_resumed(wire: Wire) -> None:
    """After a crash without restore the layout is taken over: no write, no jolt."""
    with contextlib.closing(wire.actuator("a", "b")) as crashed:
        start(crashed, placement(a=50, b=150))
    shown = wire.tc()
    with contextlib.closing(wire.actuator("a", "b")) as actuator:
        assert start(actuator, placement(a=50, b=150)) == []
        assert wire.tc() == shown
        journal = start(actuator, placement(a=60, b=140))
        assert [ref.address[2] for ref, _old in journal] == ["7061:11", "7061:10"]


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        pytest.param((("a", "b"), False), (("a",), False), id="a-service-less"),
        pytest.param((("a",), True), (("a",), False), id="other-ports"),
    ],
)
def test_an_earlier_run_of_another_configuration_wants_a_restore_first(
    wire: Wire, earlier: tuple[tuple[str, ...], bool], now: tuple[tuple[str, ...], bool]
) -> None:
    """A class or a filter of a service that is no longer like that would hold bandwidth for nobody."""
    with contextlib.closing(wire.actuator(*earlier[0], ports=earlier[1])) as crashed:
        start(crashed, placement(**dict.fromkeys(earlier[0], 50)))
    with contextlib.closing(wire.actuator(*now[0], ports=now[1])) as actuator:
        (pool,) = actuator.pools()
    assert not pool.managed
    assert "run `parties restore`" in pool.reason


def test_a_class_that_somebody_removed_is_left_out_and_its_write_makes_it_anew(wire: Wire) -> None:
    """Read back says what is, usage skips the counter that fell, and the knob reads None."""
    with contextlib.closing(wire.actuator("a", ports=False)) as actuator:
        start(actuator, placement(a=50))
        usage = actuator.usage()
        usage.sample(1)
        run("tc", "-n", wire.server, "class", "del", "dev", "srv", "classid", "7061:10")
        assert "a" not in actuator.read_back()[POOL]
        assert "a" not in usage.sample(2)
        carry_out(list(actuator.writes(placement(a=60), placement(a=50))))
        assert actuator.read_back()[POOL]["a"] == 60 * MBIT


def test_rates_above_four_gigabytes_per_second_are_exact(wire: Wire) -> None:
    """Such a rate needs the 64-bit attribute; what is read back is what was written."""
    settings = NetworkSettings("srv", 100_000 * MBIT, wire.server, 500 * MBIT)
    with contextlib.closing(NetworkActuator(settings, [service("a", 7001)])) as actuator:
        held = Placement(Partition({POOL: {"a": 99_500 * MBIT, IDLE: 500 * MBIT}}), {}, {})
        start(actuator, held)
        assert actuator.read_back()[POOL]["a"] == 99_500 * MBIT
    assert "rate 99500Mbit ceil 99500Mbit" in wire.tc()


def test_a_value_that_the_kernel_refuses_is_one_sentence_with_its_words(wire: Wire) -> None:
    """EINVAL for a rate of 0, EBUSY with the kernel's explanation for a class with others below it."""
    with contextlib.closing(wire.actuator("a")) as actuator:
        start(actuator, placement(a=50))
        knob = ClassKnob(Device("srv", wire.server, keep=False), 0x70610010)
        value = knob.read()
        assert value is not None
        with pytest.raises(
            KnobError, match=r"set class 7061:10 to 0 bit/s on srv in network namespace .*Invalid argument"
        ) as caught:
            knob.write(
                " ".join(
                    "0" if before == "rate" else word for before, word in zip(["", *value.split()], value.split(), strict=False)
                )
            )
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(KnobError, match="HTB class in use") as caught:
            ClassKnob(Device("srv", wire.server, keep=False), DEVICE_CLASS).restore(None)
        assert caught.value.errno == errno.EBUSY


def test_a_missing_device_or_namespace_is_not_managed_and_says_so(wire: Wire) -> None:
    """One sentence, no traceback."""
    for device, namespace, words in (("none0", wire.server, "none0"), ("srv", "pnet-none", "/run/netns/pnet-none does not exist")):
        with contextlib.closing(NetworkActuator(NetworkSettings(device, RATE, namespace, STEP), [service("a", 7001)])) as actuator:
            (pool,) = actuator.pools()
        assert not pool.managed
        assert words in pool.reason


def test_the_callers_own_namespace_is_never_left(wire: Wire) -> None:
    """Opening a socket elsewhere leaves the caller where it was, and no thread stays behind in the other namespace."""
    own = Path("/proc/thread-self/ns/net").readlink()
    with contextlib.closing(RouteSocket(wire.server)) as route:
        route.interface_index("srv")
        assert Path("/proc/thread-self/ns/net").readlink() == own
        until(lambda: namespaces() == {own}, "a thread stays elsewhere")  # the kernel may take a moment to end it


def namespaces() -> set[Path]:
    """The network namespaces of this process's threads."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found.add((task / "ns/net").readlink())
    return found


def v2_root() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    return None


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A cgroup v2 group of the test's own with a child: its tree's root and its path."""
    root = v2_root()
    if root is None:
        pytest.skip("no cgroup v2 tree is mounted, so there is no group to classify by")
    path = f"/pnet-{os.getpid()}-{next(_numbers)}"
    made = root / path.strip("/")
    (made / "child").mkdir(parents=True)
    try:
        yield root, path
    finally:
        remove_group(made / "child")
        remove_group(made)


def test_traffic_is_classified_by_control_group(wire: Wire, group: tuple[Path, str]) -> None:
    """A child group's traffic from an ephemeral port is held to its service's rate; an outsider's is not; undo is complete."""
    root, path = group
    before = wire.tc()
    services = [service("a", None, path)]
    settings = NetworkSettings("srv", RATE, wire.server, STEP)
    with contextlib.closing(NetworkActuator(settings, services, v2_root=root)) as actuator:
        journal = start(actuator, placement(a=50))
        assert actuator.problems == ()
        inside = receive_from(wire, root / path.strip("/") / "child", 8001)
        outside = receive_from(wire, root, 8002)
    assert 30 < inside < 65
    assert outside > 2 * inside
    for ref, old in reversed(journal):
        KINDS[ref.kind].make(ref.address).restore(old)
    assert wire.tc() == before


def test_a_group_that_was_made_anew_gets_its_filter_anew(wire: Wire, group: tuple[Path, str]) -> None:
    """A restarted service's group has another id; the next plan rewrites the filters, once."""
    root, path = group
    jobs = [BestEffortSettings("job", (f"{path}/child",))]
    with contextlib.closing(wire.actuator("a", jobs=jobs, v2_root=root)) as actuator:
        first, second, third = placement(a=50), placement(a=60), placement(a=70)
        start(actuator, first)
        child = root / path.strip("/") / "child"
        child.rmdir()
        child.mkdir()
        assert [ref.kind for ref, _old in carry_out(list(actuator.writes(second, first)))] == ["tc-filter", "tc-class"]
        assert [write.knob.ref.kind for write in actuator.writes(third, second)] == ["tc-class"]


def test_the_pool_is_the_rate_in_whole_steps(wire: Wire) -> None:
    """What does not fill a step belongs to nobody's partition."""
    settings = NetworkSettings("srv", 1_234_567_891, wire.server, 100 * MBIT)
    with contextlib.closing(NetworkActuator(settings, [service("a", 7001)])) as actuator:
        (pool,) = actuator.pools()
    assert (pool.key.resource, pool.total, pool.step, pool.floor) == (Resource.NETWORK, 1_200 * MBIT, 100 * MBIT, 100 * MBIT)

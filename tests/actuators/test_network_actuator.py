"""Planning of the network actuator, its amounts and its rules, without a kernel."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.network import KINDS, POOL, NetworkActuator, NetworkUsage, actuator, probe
from actuators.network.actuator import amount_bits_per_s, htb_class, rate_bytes_per_s
from actuators.network.classify import Recognised, classify, service
from actuators.network.device import HANDLE, Device
from actuators.network.filters import FilterKnob, filter_text, parse_filters
from actuators.network.netlink import NetlinkError, RouteSocket
from actuators.network.probe import KernelSupport
from actuators.network.tc import ClassIdRule, ClassState, GroupRule, HtbClass, PortRule, Qdisc, TrafficControl
from parties.knob import Effect, KnobError, KnobRef
from parties.model import BEST_EFFORT, IDLE, NS_PER_S, RESERVED, Partition, Pool
from parties.placement import Placement
from parties.settings import BestEffortSettings, NetworkSettings, ServiceSettings

MBIT = 1_000_000
WEB = ServiceSettings("web", 1_000_000, ("/apps/web",), ports=(80, 443))
KV = ServiceSettings("kv", 1_000_000, ("/apps/kv",), ports=(11211,))


class FakeControl:
    """A device's traffic control as far as planning asks it."""

    def __init__(self) -> None:
        self.found: dict[int, ClassState] = {}
        self.roots: list[Qdisc] = [Qdisc("noqueue", 0, 0xFFFFFFFF)]
        self.packed_filters: list[bytes] = []

    def classes(self) -> Mapping[int, ClassState]:
        return self.found

    def qdiscs(self) -> list[Qdisc]:
        return self.roots

    def filters(self, parent: int) -> list[bytes]:
        assert parent == HANDLE
        return self.packed_filters

    def hold(self, class_id: int, bits_per_s: int, sent_bytes: int = 0) -> None:
        rate = rate_bytes_per_s(bits_per_s)
        self.found[class_id] = ClassState(htb_class(HANDLE | 1, rate, rate, 0), sent_bytes)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> FakeControl:
    """In the place of every device's traffic control; the kernel has everything."""
    made = FakeControl()

    @contextmanager
    def reach(_device: Device, doing: str) -> Iterator[FakeControl]:
        assert doing
        yield made

    monkeypatch.setattr(Device, "control", reach)
    monkeypatch.setattr(actuator, "kernel_support", KernelSupport)
    return made


def network(rate: int = 1_000 * MBIT, step: int = 100 * MBIT) -> NetworkActuator:
    return NetworkActuator(NetworkSettings("eth0", rate, "", step), [WEB, KV], [BestEffortSettings("batch", ("/batch",))])


def placement(**amounts: int) -> Placement:
    held = {name.replace("_", "-"): amount * MBIT for name, amount in amounts.items()}
    return Placement(Partition({POOL: {**held, IDLE: 1_000 * MBIT - sum(held.values())}}), {}, {})


def test_the_first_plan_makes_parents_before_children_and_filters_last(control: FakeControl) -> None:
    """All of one effect, so that a plan sorted by effect keeps the order."""
    writes = network().writes(placement(web=400, kv=300, best_effort=100), None)
    assert [str(write.knob.ref) for write in writes] == [
        "tc-qdisc::eth0:7061:",
        "tc-class::eth0:7061:1",
        "tc-class::eth0:7061:3",
        "tc-class::eth0:7061:10",
        "tc-class::eth0:7061:11",
        "tc-class::eth0:7061:2",
        "tc-filter::eth0:7061:",
    ]
    assert {write.effect for write in writes} == {Effect.NEUTRAL}
    assert [write.holder for write in writes] == [RESERVED, RESERVED, RESERVED, "web", "kv", BEST_EFFORT, RESERVED]
    assert not any(write.slow for write in writes)


def test_rate_and_ceil_of_a_service_are_what_it_holds(control: FakeControl) -> None:
    """A partition: nobody but the rest borrows, and the rest's own rate is small."""
    writes = network().writes(placement(web=400, kv=300), None)
    classes = {write.knob.ref.address[2]: HtbClass.parse(write.value) for write in writes if write.knob.ref.kind == "tc-class"}
    assert [(one.rate_bytes_per_s, one.ceil_bytes_per_s) for one in classes.values()] == [
        (125_000_000, 125_000_000),
        (125_000, 125_000_000),
        (50_000_000, 50_000_000),
        (37_500_000, 37_500_000),
        (125_000, 125_000),
    ]
    assert all(one.quantum_bytes == 60_000 for one in classes.values())
    assert classes["7061:10"].priority < classes["7061:3"].priority < classes["7061:2"].priority


def test_over_an_earlier_layout_the_shrinking_classes_take_and_the_growing_give(control: FakeControl) -> None:
    """Resuming with other amounts is a move like any other."""
    for class_id, held in ((HANDLE | 0x10, 500 * MBIT), (HANDLE | 0x11, 100 * MBIT), (HANDLE | 2, 0)):
        control.hold(class_id, held)
    effects = {write.holder: write.effect for write in network().writes(placement(web=400, kv=300), None)}
    assert effects == {RESERVED: Effect.NEUTRAL, "web": Effect.TAKE, "kv": Effect.GIVE, BEST_EFFORT: Effect.NEUTRAL}


def test_a_move_writes_the_two_holders_alone_and_says_who_gives(control: FakeControl) -> None:
    """100 Mbit/s from web to kv; the rest and best-effort jobs are not touched."""
    writes = network().writes(placement(web=300, kv=400), placement(web=400, kv=300))
    assert [(write.holder, write.effect) for write in writes] == [("web", Effect.TAKE), ("kv", Effect.GIVE)]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2)), min_size=2, max_size=6))
def test_classes_never_add_up_to_more_than_the_device(steps: list[tuple[int, int, int]]) -> None:
    """Over any walk of placements, after every single write in the order of effects, idle being the difference."""
    made = network()
    made._pool = Pool(POOL, 1_000 * MBIT, 100 * MBIT, 100 * MBIT)
    made._filters = filter_text((), made._classification().ports)
    first, *others = [placement(web=100 * web, kv=100 * kv, best_effort=100 * jobs) for web, kv, jobs in steps]
    rates = {holder: first.partition.amount(POOL, holder) for holder in ("web", "kv", BEST_EFFORT)}
    before = first
    for after in others:
        most = max(sum(one.partition.amount(POOL, holder) for holder in rates) for one in (before, after))
        for write in sorted(made.writes(after, before), key=lambda one: one.effect):
            rates[write.holder] = amount_bits_per_s(HtbClass.parse(write.value).rate_bytes_per_s)
            assert sum(rates.values()) <= most
        before = after


def test_read_back_is_the_inverse_and_leaves_out_what_vanished(control: FakeControl) -> None:
    """The class of kv is gone; best-effort jobs hold nothing."""
    made = network()
    made.pools()
    control.hold(HANDLE | 0x10, 400 * MBIT)
    control.hold(HANDLE | 2, 0)
    control.hold(0x00010010, 900 * MBIT)  # somebody else's
    assert made.read_back() == {POOL: {"web": 400 * MBIT, BEST_EFFORT: 0}}


@given(st.integers(125_001, 2**40))
def test_amounts_and_rates_are_exact_inverses(rate: int) -> None:
    """No amount is rounded, and none but 0 is read back as 0."""
    assert rate_bytes_per_s(amount_bits_per_s(rate)) == rate
    assert amount_bits_per_s(rate_bytes_per_s(0)) == 0


@pytest.mark.parametrize("amount", [1, 8, 1_000_000, 2_000_001])
def test_an_amount_that_would_be_read_back_as_another_is_refused(amount: int) -> None:
    """Not whole bytes, or not above what stands for 0."""
    with pytest.raises(ValueError, match="no amount of network bandwidth"):
        rate_bytes_per_s(amount)


@pytest.mark.parametrize(
    ("rate", "step", "words"),
    [
        (1_000 * MBIT, 100 * MBIT + 4, "not a multiple of 8"),
        (1_000 * MBIT, MBIT, "above 1000000"),
        (1_000 * MBIT, 0, "not a multiple of 8 above"),
        (100 * MBIT, 80 * MBIT, "less than one step of 80000000 bit/s for each service"),
    ],
)
def test_a_step_that_cannot_work_is_not_managed_and_says_what_to_do(control: FakeControl, rate: int, step: int, words: str) -> None:
    """Refused before anything is asked of the kernel."""
    (pool,) = network(rate, step).pools()
    assert not pool.managed
    assert words in pool.reason
    assert "choose" in pool.reason


def test_a_foreign_qdisc_anywhere_on_the_device_is_respected(control: FakeControl) -> None:
    """Below the kernel's own mq too; ingress does not concern egress."""
    control.roots = [Qdisc("mq", 0, 0xFFFFFFFF), Qdisc("ingress", 0xFFFF0000, 0xFFFFFFF1)]
    assert network().pools()[0].managed
    control.roots.append(Qdisc("fq", 0x80010000, 0x00000001))
    assert "already has a root qdisc fq handle 8001:" in network().pools()[0].reason


def test_a_kernel_without_htb_is_said(control: FakeControl, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's own words."""
    missing = "No such file or directory: Specified qdisc kind is unknown"
    monkeypatch.setattr(actuator, "kernel_support", lambda: KernelSupport(missing, missing, missing))
    (pool,) = network().pools()
    assert not pool.managed
    assert "Specified qdisc kind is unknown" in pool.reason


def test_without_u32_ports_recognise_nothing_and_every_service_is_a_problem(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool stays managed; the traffic of each is said to be untold."""
    monkeypatch.setattr(actuator, "kernel_support", lambda: KernelSupport(ports="no u32"))
    made = network()
    assert made.pools()[0].managed
    assert len(made.problems) == 3
    assert [write.knob.ref.kind for write in made.writes(placement(web=100, kv=100), None)].count("tc-filter") == 0


def test_a_probe_that_may_not_be_made_takes_the_kernel_to_be_able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hardened unit forbids new namespaces; the first write tells then."""

    def forbidden() -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(RouteSocket, "in_new_namespace", forbidden)
    assert probe.kernel_support() == KernelSupport()


def test_usage_is_bits_per_second_between_two_calls(control: FakeControl) -> None:
    """A counter that fell, a class that is new and one that is gone yield nothing rather than nonsense."""
    usage = NetworkUsage(Device("eth0"), {"steady": 1, "remade": 2, "new": 3, "gone": 4})
    for class_id, sent in ((1, 5_000), (2, 9_000), (4, 1)):
        control.hold(class_id, 8 * MBIT, sent)
    assert usage.sample(NS_PER_S) == {}
    del control.found[4]
    for class_id, sent in ((1, 6_000), (2, 100), (3, 100)):
        control.hold(class_id, 8 * MBIT, sent)
    assert usage.sample(NS_PER_S + NS_PER_S // 2) == {"steady": 16_000}
    assert usage.sample(NS_PER_S + NS_PER_S // 2) == {}
    control.hold(2, 8 * MBIT, 200)
    assert usage.sample(2 * NS_PER_S)["remade"] == 1_600


def test_who_stays_keeps_the_class_that_an_earlier_daemon_gave_and_nobody_gets_another_s() -> None:
    """By name, on this device alone; who is new gets the first number that was not in use, whoever has left."""

    def held(device: str, number: str) -> KnobRef:
        return KnobRef("tc-class", ("", device, f"7061:{number}"))

    earlier = {
        held("eth0", "1"): RESERVED,
        held("eth0", "2"): BEST_EFFORT,
        held("eth0", "10"): "left",
        held("eth0", "12"): "kv",
        held("eth1", "20"): "web",
        KnobRef("tc-filter", ("", "eth0", "7061:")): RESERVED,
        KnobRef("cpus", ("/apps/web",)): "web",
    }
    settings = NetworkSettings("eth0", 1_000 * MBIT, "", 100 * MBIT)
    third = ServiceSettings("third", 1_000_000)
    made = NetworkActuator(settings, [WEB, KV, third], earlier=earlier)
    assert made.classes == {"web": HANDLE | 0x11, "kv": HANDLE | 0x12, "third": HANDLE | 0x13, BEST_EFFORT: HANDLE | 2}
    assert NetworkActuator(settings, [WEB, KV]).classes == {"web": HANDLE | 0x10, "kv": HANDLE | 0x11, BEST_EFFORT: HANDLE | 2}


def test_a_mark_of_a_class_of_ours_that_is_no_more_is_written_anew(tmp_path: Path) -> None:
    """An earlier daemon gave it to whoever had the group then; a number of somebody else's is taken as it is."""
    for group, number in (("web", HANDLE | 0x10), ("kv", 5)):
        (tmp_path / "apps" / group).mkdir(parents=True)
        (tmp_path / "apps" / group / "net_cls.classid").write_text(f"{number}\n")
    found = classify([service(WEB), service(KV)], {"web": HANDLE | 0x12, "kv": HANDLE | 0x13}, None, tmp_path)
    assert found.class_ids == {ClassIdRule(HANDLE | 0x12, HANDLE | 0x12), ClassIdRule(5, HANDLE | 0x13)}
    assert [(mark.number, mark.holder, mark.there) for mark in found.marks] == [(HANDLE | 0x12, "web", False)]


def test_rules_come_from_ports_and_from_groups_that_exist(tmp_path: Path) -> None:
    """Depth and inode of the group; a service has both kinds where both can be had."""
    (tmp_path / "apps/web").mkdir(parents=True)
    found = classify([service(WEB), service(KV)], {"web": 1, "kv": 2}, tmp_path)
    assert found.ports == {PortRule(80, 1), PortRule(443, 1), PortRule(11211, 2)}
    assert found.groups == {GroupRule(2, (tmp_path / "apps/web").stat().st_ino, 1)}
    assert found.problems == ()


def test_traffic_that_cannot_be_told_is_a_problem_in_one_sentence(tmp_path: Path) -> None:
    """A service without ports or group, a best-effort job without a group, and a port that two services claim."""
    silent = Recognised("service mute", "mute", ("/mute",))
    jobs = Recognised("best-effort job batch", BEST_EFFORT, ("/batch",))
    twin = Recognised("service twin", "twin", (), (80,))
    found = classify([silent, jobs, service(WEB), twin], {"mute": 1, BEST_EFFORT: 2, "web": 3, "twin": 4}, tmp_path)
    mute, batch, port = found.problems
    assert "service mute: its network traffic cannot be told from the rest" in mute
    assert f"no group /mute below {tmp_path}" in mute
    assert "give its ports" in mute
    assert "give its ports" not in batch
    assert port == "service twin: port 80 is service web's already; it stays there"
    assert PortRule(80, 3) in found.ports
    assert "no cgroup v2 tree is mounted" in classify([silent], {"mute": 1}, None).problems[0]


@given(
    st.frozensets(st.builds(GroupRule, st.integers(1, 9), st.integers(1, 2**64 - 1), st.integers(1, 2**32 - 1))),
    st.frozensets(st.builds(PortRule, st.integers(1, 65535), st.integers(1, 2**32 - 1))),
    st.frozensets(st.builds(ClassIdRule, st.integers(1, 2**32 - 1), st.integers(1, 2**32 - 1))),
)
def test_filter_rules_survive_the_journal(
    groups: frozenset[GroupRule], ports: frozenset[PortRule], class_ids: frozenset[ClassIdRule]
) -> None:
    """Text and back; the same rules give the same text."""
    text = filter_text(groups, ports, class_ids)
    read_groups, read_ports, read_class_ids = parse_filters(text)
    assert (frozenset(read_groups), frozenset(read_ports), frozenset(read_class_ids)) == (groups, ports, class_ids)
    assert filter_text(read_groups, read_ports, read_class_ids) == text


def test_filters_that_somebody_changed_do_not_pass_for_ours(control: FakeControl) -> None:
    """No rules read as None; text that names no rule is refused."""
    assert FilterKnob(Device("eth0")).read() is None
    with pytest.raises(ValueError, match="not a filter rule"):
        parse_filters("mark=5>7061:10")


@pytest.mark.parametrize(
    "ref",
    [
        KnobRef("tc-qdisc", ("ns", "eth0", "7061:")),
        KnobRef("tc-class", ("ns", "eth0", "7061:1f")),
        KnobRef("tc-filter", ("", "eth0", "7061:")),
    ],
)
def test_a_reference_leads_back_to_its_knob(ref: KnobRef) -> None:
    """Kind and address are all that a later process has."""
    assert KINDS[ref.kind].make(ref.address).ref == ref


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EPERM, "CAP_NET_ADMIN"),
        (errno.ENODEV, "ip link"),
        (errno.EEXIST, "somebody's own qdisc"),
        (errno.EINVAL, "does not take these values"),
        (errno.EIO, "kernel log"),
    ],
)
def test_every_refusal_says_what_where_and_what_to_do(monkeypatch: pytest.MonkeyPatch, code: int, advice: str) -> None:
    """One sentence, the kernel's code kept."""

    def refuse(_control: TrafficControl, *_given: object) -> None:
        raise NetlinkError(code, "the kernel's words")

    device = Device("eth0", "blue")
    monkeypatch.setattr(device, "_open", lambda: TrafficControl.__new__(TrafficControl))
    monkeypatch.setattr(TrafficControl, "set_class", refuse)
    monkeypatch.setattr("actuators.network.knobs._device", lambda _address: device)
    knob = KINDS["tc-class"].make(("blue", "eth0", "7061:10"))
    with pytest.raises(KnobError) as caught:
        knob.write(htb_class(HANDLE | 1, 125_001, 125_001, 0).text())
    assert caught.value.errno == code
    assert str(caught.value.strerror).startswith(
        "set class 7061:10 to 1000008 bit/s on eth0 in network namespace blue: the kernel's"
    )
    assert advice in str(caught.value.strerror)


def test_a_kernel_that_lacks_htb_is_not_mistaken_for_a_vanished_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOENT there would count as "nothing to do"."""

    def unknown(_control: TrafficControl, *_given: object) -> None:
        raise NetlinkError(errno.ENOENT, "Specified qdisc kind is unknown")

    device = Device("eth0")
    monkeypatch.setattr(device, "_open", lambda: TrafficControl.__new__(TrafficControl))
    monkeypatch.setattr(TrafficControl, "add_htb", unknown)
    monkeypatch.setattr("actuators.network.knobs._device", lambda _address: device)
    with pytest.raises(KnobError, match="no HTB scheduler") as caught:
        KINDS["tc-qdisc"].make(("", "eth0", "7061:")).write("default 7061:3")
    assert caught.value.errno == errno.EOPNOTSUPP

"""The live view shows what the control process says, on any terminal, and plain lines where there is none."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from parties.front import FrontFeed, tick_message
from parties.live import LiveView, PlainView, Recent, amount_text, latency_text, render, trend
from parties.model import (
    BEST_EFFORT,
    IDLE,
    Decision,
    Domain,
    LatencyView,
    Move,
    MoveOutcome,
    MoveStatus,
    Node,
    Observation,
    Partition,
    Pool,
    PoolKey,
    QosTarget,
    Reason,
    Resource,
    Service,
    ServiceObservation,
    ServiceState,
    Usage,
)
from parties.record import Timing

MS = 1_000_000
CORES, MEMORY = PoolKey(Resource.CORES, 0), PoolKey(Resource.MEMORY, 0)
NODE = Node("test", (), {CORES: Pool(CORES, 1000, 50, 100), MEMORY: Pool(MEMORY, 4 * 10**9, 10**9, 10**9)})
SERVICES = {name: Service(name, QosTarget(10 * MS)) for name in ("memcached", "nginx", "a-service-with-a-long-name")}
MOVE = Move(2, CORES, IDLE, "nginx", 50, Reason.UPSIZE_FROM_IDLE)


def tick(
    number: int, latencies_ms: Mapping[str, float | None], *, moves: tuple[Move, ...] = (), outcomes: tuple[MoveOutcome, ...] = ()
) -> dict[str, Any]:
    """A message as the control process sends it."""
    seen = {
        name: ServiceObservation(
            LatencyView(
                ServiceState.STALLED if latency is None else ServiceState.OK,
                None if latency is None else int(latency * MS),
                load_rps=8000.0,
                unsent=0 if latency is not None else 12,
            ),
            Usage(cpu_millicores=250, memory_bytes=512_000_000),
        )
        for name, latency in latencies_ms.items()
    }
    held = {"memcached": 300, "nginx": 400, BEST_EFFORT: 200, IDLE: 100}
    memory = {"memcached": 10**9, "nginx": 2 * 10**9, BEST_EFFORT: 10**9, IDLE: 0}
    observation = Observation(number * 500 * MS, number, seen, Partition({CORES: held, MEMORY: memory}), outcomes)
    slack = {name: float("-inf") if latency is None else (10 - latency) / 10 for name, latency in latencies_ms.items()}
    decision = Decision(moves, moves[0].reason if moves else Reason.HOLD_TARGETS_MET, "nginx" if moves else None, slack)
    message = tick_message(NODE, SERVICES, observation, decision, Timing(300_000, 1, 600_000))
    return dict(message)


def picture(recent: Recent, width: int, **options: Any) -> str:  # noqa: ANN401 - of rich's console
    """What a terminal of that width shows, without colours."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(render(recent, width=width, **options))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def recent() -> Recent:
    """Some ticks with a move, its outcome and an event."""
    recent = Recent()
    recent.add({"type": "started", "policy": "parties", "record": "/r", "interval_ns": 500 * MS})
    for number in range(1, 70):
        moves = (MOVE,) if number == 2 else ()
        outcomes = (MoveOutcome(MOVE, MoveStatus.DONE),) if number == 3 else ()
        recent.add(tick(number, {"memcached": 5.0, "nginx": 12.0 if number % 2 else None}, moves=moves, outcomes=outcomes))
    recent.add({"type": "event", "level": "warning", "text": "cores: [/web] was written by someone else"})
    return recent


def test_shows_everything_of_a_tick(recent: Recent) -> None:
    """State, latency and target, slack, load, amounts with use, moves with outcome and reason, events, the tick's own figures."""
    lines = picture(recent, 120).splitlines()
    text = "\n".join(lines)
    assert "parties  tick 69  hold-targets-met  late 0.3ms  missed 1  tick CPU 0.6ms" in lines[0]
    (memcached,) = (line for line in lines if line.startswith("memcached") and "ok" in line)
    assert "5ms/10ms" in memcached
    assert "+0.50" in memcached
    assert memcached.rstrip().endswith("8000")
    (held,) = (line for line in lines if line.startswith("nginx") and "(" in line)
    assert "0.40 (0.25)" in held
    assert "2GB (512M)" in held
    assert "2 cores@0 0.05 idle → nginx  upsize-from-idle  done" in text
    assert "warning: cores: [/web] was written by someone else" in text
    assert any(line.startswith("idle") and "0.10" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_fits_the_terminal(recent: Recent, width: int) -> None:
    """No line is wider than the terminal, and at 80 columns no figure is cut."""
    text = picture(recent, width)
    assert max(len(line) for line in text.splitlines()) <= width
    if width >= 80:
        assert "…" not in text


@pytest.mark.parametrize(("domains", "homes"), [((0, 22), {"memcached": 22, "nginx": 0}), ((0,), {})])
def test_the_start_tells_homes_where_there_are_several(domains: tuple[int, ...], homes: dict[str, int]) -> None:
    """The first message names each service's domain; where there is one only, there is nothing to tell."""
    node = Node("n", tuple(Domain(number, ()) for number in domains), {})
    services = {name: replace(SERVICES[name], home=homes.get(name, 0)) for name in ("memcached", "nginx")}
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        FrontFeed(near).started(node, services, {"policy": "parties"})
        assert json.loads(far.recv(1 << 16)) == {"version": 1, "type": "started", "policy": "parties", "homes": homes}


def test_homes_are_shown_where_there_are_several(recent: Recent) -> None:
    """Each service's domain stands beside its name, also in eighty columns; without homes there is no such column."""
    assert " home " not in picture(recent, 80)
    recent.started = {**recent.started, "homes": {"memcached": 0, "nginx": 22}}
    lines = picture(recent, 80).splitlines()
    assert [line.split()[:2] for line in lines if "10ms" in line] == [["memcached", "0"], ["nginx", "22"]]
    assert all("…" not in line for line in lines)


def test_four_resources_fit_eighty_columns() -> None:
    """Cores, memory, disk and network of a service, amounts and use, stand in one line of a small terminal."""
    message = tick(1, {"nginx": 8.0})
    service = message["services"]["nginx"]
    service["amounts"] = {"cores": 1450, "memory": 128_500_000_000, "disk": 475_000_000, "network": 9_500_000_000}
    service["usage"] = {
        "cpu_millicores": 1440,
        "memory_bytes": 127_000_000_000,
        "disk_bytes_per_s": 10**8,
        "network_bits_per_s": 10**8,
    }
    recent = Recent()
    recent.add(message)
    (line,) = (line for line in picture(recent, 80).splitlines() if line.startswith("nginx") and "(" in line)
    assert [cell.strip() for cell in line.split("  ")[-4:]] == ["1.45 (1.44)", "128GB (127G)", "475MB/s (100M)", "9.5Gb/s (100M)"]


def test_a_full_cpu_stands_out_and_many_fit(recent: Recent) -> None:
    """The machine's line tells every CPU's load, the full one by colour, within eighty columns."""
    last = {
        **recent.ticks[-1],
        "machine": {"cpu_percent": [12.0, 99.0], "memory_available_bytes": 3 << 30, "memory_total_bytes": 1 << 34},
    }
    recent.ticks[-1] = last
    console = Console(width=80, file=StringIO(), force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(render(recent, width=80))
    text = capture.get()
    assert "0:12%" in text
    assert "\x1b[1;31m1:99%" in text
    assert "memory 3.22GB free of 17.2GB" in text
    last["machine"]["cpu_percent"] = [50.0] * 64
    assert max(map(len, picture(recent, 80).splitlines())) <= 80


def test_a_stalled_service_says_so() -> None:
    """A service without a value shows its state, no latency, and what was not sent."""
    recent = Recent()
    recent.add(tick(1, {"nginx": None}))
    (line,) = (line for line in picture(recent, 80).splitlines() if "stalled" in line)
    assert "-/10ms" in line
    assert "8000 -12" in line


def test_ascii_terminals_get_ascii(recent: Recent) -> None:
    """Where the terminal's encoding has no bars and arrows, none are sent."""
    assert picture(recent, 80, ascii_only=True).isascii()
    assert not picture(recent, 80).isascii()


def test_the_trend_tells_over_from_within() -> None:
    """Bars rise with the latency; over target they are higher and red; no value is a blank."""
    text = trend([0.0, 0.5, 1.0, 1.01, 9.0, None])
    bars = "▁▂▃▄▅▆▇█"
    heights = [bars.index(bar) for bar in text.plain[:5]]
    assert heights == sorted(heights)
    assert heights[2] < heights[3] < heights[4] == 7
    assert text.plain[5] == " "
    assert [span.style for span in text.spans] == ["green", "green", "yellow", "red", "red"]


def test_notices_leave_and_warnings_stay() -> None:
    """What is only for information leaves the picture after a while; long texts take one line."""
    recent = Recent()
    recent.add({"type": "event", "level": "info", "text": "cache: not managed here " + "x" * 100})
    recent.add({"type": "event", "level": "warning", "text": "a knob changed"})
    recent.add(tick(1, {"nginx": 8.0}))
    assert "info: cache" in picture(recent, 80)
    assert len([line for line in picture(recent, 80).splitlines() if "x" * 20 in line]) == 1
    assert picture(recent, 80, ascii_only=True).isascii()
    recent.add(tick(30, {"nginx": 8.0}))
    assert "info: cache" not in picture(recent, 80)
    assert "warning: a knob changed" in picture(recent, 80)


def test_the_trend_is_the_last_sixty_ticks(recent: Recent) -> None:
    """Older ticks leave the picture."""
    assert [message["tick"] for message in recent.ticks] == list(range(10, 70))


def test_before_the_first_tick() -> None:
    """There is a picture before anything was heard, and unknown kinds of message do no harm."""
    recent = Recent()
    recent.add({"type": "something-new"})
    recent.add({"type": "event", "level": "info", "text": "cache: not managed here"})
    assert picture(recent, 80).splitlines() == ["parties: starting", "info: cache: not managed here"]


def test_a_migration_is_asked_for_in_words() -> None:
    """The request to move a service elsewhere stands out."""
    recent = Recent()
    recent.add(tick(1, {"nginx": 12.0}) | {"migration": "nginx"})
    assert "no allocation meets every target: move nginx to another machine" in picture(recent, 80)


@pytest.mark.parametrize("no_color", [True, False])
def test_live_view_redraws_and_respects_no_color(monkeypatch: pytest.MonkeyPatch, *, no_color: bool) -> None:
    """On a terminal each tick is drawn; with NO_COLOR no colour is sent."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    console = Console(file=file, width=100, height=40, force_terminal=True, color_system="standard", legacy_windows=False)
    with LiveView(console) as view:
        view.update(tick(1, {"nginx": 12.0}))
        view.update(tick(2, {"nginx": 8.0}))
    assert "tick 1 " in file.getvalue()
    assert "tick 2 " in file.getvalue()
    assert ("\x1b[31m" in file.getvalue()) != no_color


def test_a_shadow_run_says_what_it_would_do() -> None:
    """On the table and in plain lines: nothing is written, and no move is said to be done."""
    messages = [
        {"type": "started", "policy": "parties", "record": "r", "shadow": True},
        tick(2, {"nginx": 12.0}, moves=(MOVE,)),
        tick(3, {"nginx": 12.0}, outcomes=(MoveOutcome(MOVE, MoveStatus.DONE),)),
    ]
    recent, lines = Recent(), list[str]()
    plain = PlainView(lines.append, now_ns=lambda: 0)
    for message in messages:
        recent.add(message)
        plain.update(message)
    shown = picture(recent, 100)
    assert "shadow run: nothing is written" in shown
    assert "would move cores@0 0.05 idle" in shown
    assert "done" not in shown
    assert lines[0] == "started: policy parties, record r; shadow run: nothing is written"
    assert lines[1].startswith("tick 2: would move cores@0 0.05 idle -> nginx")


def test_plain_lines_for_moves_events_and_every_so_often() -> None:
    """Without a terminal: one line for each move and event, services once in a while, nothing in between."""
    lines: list[str] = []
    clock = iter([0, 5 * 10**8, 10**9, 20 * 10**9])
    view = PlainView(lines.append, every_ns=10 * 10**9, now_ns=lambda: next(clock))
    view.update({"type": "started", "policy": "parties", "record": "/r.jsonl"})
    view.update(tick(1, {"nginx": 8.0}))
    view.update(tick(2, {"nginx": 12.0}, moves=(MOVE,)))
    view.update(tick(3, {"nginx": 12.0}))
    view.update({"type": "event", "level": "warning", "text": "a knob changed"})
    view.update(tick(40, {"nginx": None}))
    assert lines == [
        "started: policy parties, record /r.jsonl",
        "tick 1: nginx ok 8ms/10ms slack +0.20 8000/s (hold-targets-met)",
        "tick 2: cores@0 0.05 idle -> nginx  upsize-from-idle",
        "warning: a knob changed",
        "tick 40: nginx stalled -/10ms 8000/s (hold-targets-met)",
    ]


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cores", 1000, "1"),
        ("cores", 250, "0.25"),
        ("cache", 11, "11"),
        ("frequency", 2_200_000_000, "2.2GHz"),
        ("memory", 1_500_000_000, "1.5GB"),
        ("disk", 0, "0B/s"),
        ("network", 500_000_000, "500Mb/s"),
    ],
)
def test_amounts_are_short(resource: str, value: int, text: str) -> None:
    """Amounts take few characters, each with its unit where one is needed."""
    assert amount_text(resource, value) == text


def test_latencies_are_short() -> None:
    """Latencies are in the unit that a person would take."""
    assert [latency_text(value) for value in (None, 600_000, 12_345_678, 2_500_000_000)] == ["-", "600us", "12.3ms", "2.5s"]

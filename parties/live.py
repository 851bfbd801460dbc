"""What a run looks like while it runs: a live table on a terminal, plain lines elsewhere.

Both take the messages that the control process sends (``parties.front``). The picture is a pure function of what was seen lately:
``render(recent)``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from parties.model import NS_PER_S, Resource

Message = Mapping[str, Any]

TREND_TICKS = 60
SHOWN_MOVES = 5
SHOWN_EVENTS = 3
INFO_TICKS = 20
"""An event that is no warning leaves the picture after so many ticks."""

MOST_CPUS = 12  # in one line; an operator of more looks elsewhere
FULL_CPU_PERCENT = 95

PLAIN_EVERY_NS = 10 * NS_PER_S

_SHADOW = "shadow run: nothing is written"

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.,-=+*#"
_ON_TARGET_BAR = 3  # the bar of a latency just within the target
_NARROW_TREND = 24
_WIDE = 110
_LOW_SLACK, _HIGH_SLACK = 0.05, 0.20  # as in section 4.2 of the paper, for colours only
_STATE_STYLES = {
    "ok": "green",
    "idle": "dim",
    "absent": "dim",
    "few-samples": "cyan",
    "stale": "yellow",
    "stalled": "bold red",
    "failing": "bold red",
}
_USAGE_FIELDS = {
    "cores": "cpu_millicores",
    "memory": "memory_bytes",
    "disk": "disk_bytes_per_s",
    "network": "network_bits_per_s",
}
_EVENT_STYLES = {"warning": "yellow", "error": "bold red"}


@dataclass(frozen=True, slots=True)
class SeenMove:
    """A move and what became of it so far."""

    tick: int
    move: Message
    status: str = "pending"


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event and the tick that it came after."""

    tick: int
    level: str
    text: str


@dataclass(slots=True)
class Recent:
    """The last ticks, moves and events of a run."""

    ticks: deque[Message] = field(default_factory=lambda: deque(maxlen=TREND_TICKS))
    moves: deque[SeenMove] = field(default_factory=lambda: deque(maxlen=SHOWN_MOVES))
    events: deque[SeenEvent] = field(default_factory=lambda: deque(maxlen=SHOWN_EVENTS))
    started: Message = field(default_factory=dict)

    def add(self, message: Message) -> None:
        """Take in one message of the control process; kinds that are not known are left out."""
        kind = message.get("type")
        if kind == "tick":
            self.ticks.append(message)
            self._settle(message.get("outcomes", ()))
            self.moves.extend(SeenMove(message["tick"], move) for move in message["moves"])
        elif kind == "event":
            tick = self.ticks[-1]["tick"] if self.ticks else 0
            self.events.append(SeenEvent(tick, message["level"], message["text"]))
        elif kind == "started":
            self.started = message

    def _settle(self, outcomes: Iterable[Message]) -> None:
        statuses = {(outcome["tick"], outcome["pool"]): outcome["status"] for outcome in outcomes}
        for index, seen in enumerate(self.moves):
            status = statuses.get((seen.tick, seen.move["pool"]), seen.status)
            self.moves[index] = SeenMove(seen.tick, seen.move, status)


def render(recent: Recent, *, width: int = 80, ascii_only: bool = False) -> RenderableType:
    """The picture of a run; nothing but its arguments goes into it."""
    if not recent.ticks:
        return Group(Text("parties: starting", style="bold"), *_event_lines(recent.events, ascii_only=ascii_only))
    last = recent.ticks[-1]
    return Group(
        _header(last, recent.started),
        *_machine_line(last),
        _services_table(recent, width=width, ascii_only=ascii_only),
        _allocation_table(last),
        *_move_lines(recent.moves, ascii_only=ascii_only, shadow=bool(recent.started.get("shadow"))),
        *_event_lines(
            (event for event in recent.events if event.level != "info" or last["tick"] - event.tick <= INFO_TICKS),
            ascii_only=ascii_only,
        ),
    )


class LiveView:
    """The live table. ``update`` takes every message; between ``__enter__`` and ``__exit__`` the picture follows."""

    def __init__(self, console: Console) -> None:
        self.recent = Recent()
        self._console = console
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)

    def update(self, message: Message) -> None:
        """Take in a message and draw."""
        self.recent.add(message)
        self._live.refresh()

    def _render(self) -> RenderableType:
        return render(self.recent, width=self._console.width, ascii_only=self._console.options.ascii_only)

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


class PlainView:
    """One line for each move and event, and one for all services every so often: for logs and pipes."""

    def __init__(
        self, write: Callable[[str], object], *, every_ns: int = PLAIN_EVERY_NS, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._write = write
        self._every_ns = every_ns
        self._now_ns = now_ns
        self._due_ns: int | None = None
        self._shadow = False

    def update(self, message: Message) -> None:
        """Take in a message and write what it is worth."""
        kind = message.get("type")
        if kind == "started":
            self._shadow = bool(message.get("shadow"))
            shadow = f"; {_SHADOW}" if self._shadow else ""
            self._write(f"started: policy {message.get('policy')}, record {message.get('record')}{shadow}")
        elif kind == "event":
            self._write(f"{message['level']}: {message['text']}")
        elif kind == "tick":
            for move in message["moves"]:
                self._write(f"tick {message['tick']}: {_move_text(move, '->', shadow=self._shadow)}")
            self._services(message)

    def _services(self, tick: Message) -> None:
        now_ns = self._now_ns()
        if self._due_ns is None or now_ns >= self._due_ns:
            self._due_ns = now_ns + self._every_ns
            services = "; ".join(_plain_service(name, service) for name, service in tick["services"].items())
            self._write(f"tick {tick['tick']}: {services} ({_reason(tick)})")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def amount_text(resource: str, value: int, *, unit: bool = True) -> str:
    """An amount in few characters, rounded, with or without the unit after its prefix: for eyes, not for files."""
    if resource == Resource.CORES:
        return f"{value / 1000:.2f}".removesuffix(".00")
    if resource == Resource.CACHE:
        return str(value)
    suffix = {"frequency": "Hz", "memory": "B", "disk": "B/s", "network": "b/s"}.get(resource, "") if unit else ""
    for factor, prefix in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{prefix}{suffix}"
    return f"{value}{suffix}"


def latency_text(latency_ns: int | None) -> str:
    """A latency in seconds, milliseconds or microseconds, rounded."""
    if latency_ns is None:
        return "-"
    if latency_ns >= NS_PER_S:
        return f"{latency_ns / NS_PER_S:.3g}s"
    return f"{latency_ns / 1e6:.3g}ms" if latency_ns >= 10**6 else f"{latency_ns / 1e3:.0f}us"


def trend(ratios: Iterable[float | None], *, ascii_only: bool = False) -> Text:
    """A bar for each tick's latency over target: red where it is over, a blank where there was no value."""
    bars = _ASCII_BARS if ascii_only else _BARS
    text = Text()
    for ratio in ratios:
        if ratio is None:
            text.append(" ")
        elif ratio <= 1:
            text.append(bars[int(ratio * _ON_TARGET_BAR)], "green" if 1 - ratio > _HIGH_SLACK else "yellow")
        else:
            text.append(bars[min(len(bars) - 1, _ON_TARGET_BAR + 1 + int((ratio - 1) * 2))], "red")
    return text


def _header(tick: Message, started: Message) -> Text:
    parts = [
        f"tick {tick['tick']}",
        _reason(tick),
        f"late {tick['lateness_ns'] / 1e6:.1f}ms",
        f"missed {tick['missed']}",
        f"tick CPU {tick['tick_cpu_ns'] / 1e6:.1f}ms",
    ]
    text = Text.assemble((str(started.get("policy", "")), "bold"), "  ", "  ".join(parts))
    if started.get("shadow"):
        text.append(f"\n{_SHADOW}", "bold yellow")
    if tick.get("migration"):
        text.append(f"\nno allocation meets every target: move {tick['migration']} to another machine", "bold red")
    return text


def _machine_line(tick: Message) -> list[Text]:
    """The load of each CPU, managed or not: a full reserved one is why a controller is late."""
    machine = tick.get("machine")
    if machine is None:
        return []
    line = Text().append("cpu ", style="dim")
    for number, percent in enumerate(machine["cpu_percent"][:MOST_CPUS]):
        line.append(f"{number}:{percent:.0f}% ", style="bold red" if percent >= FULL_CPU_PERCENT else "")
    free, total = (amount_text(Resource.MEMORY, machine[name]) for name in ("memory_available_bytes", "memory_total_bytes"))
    return [line.append(f"memory {free} free of {total}", style="dim")]


def _reason(tick: Message) -> str:
    subject = tick.get("subject")
    return f"{tick['reason']} ({subject})" if subject else str(tick["reason"])


def _services_table(recent: Recent, *, width: int, ascii_only: bool) -> Table:
    table = _table()
    homes = recent.started.get("homes")
    table.add_column("service", no_wrap=True, max_width=20)
    if homes:
        table.add_column("home", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("latency/target", justify="right", no_wrap=True)
    table.add_column("trend", no_wrap=True)
    table.add_column("slack", justify="right", no_wrap=True)
    table.add_column("load/s", justify="right", no_wrap=True)
    ticks = list(recent.ticks)[-(TREND_TICKS if width >= _WIDE else _NARROW_TREND) :]
    for name, service in recent.ticks[-1]["services"].items():
        ratios = [_ratio(tick["services"].get(name, {})) for tick in ticks]
        slack = service["slack"]
        unsent = f" -{service['unsent']}" if service["unsent"] else ""
        table.add_row(
            name,
            *([str(homes.get(name, ""))] if homes else []),
            Text(service["state"], _STATE_STYLES.get(service["state"], "")),
            Text(f"{latency_text(service['latency_ns'])}/{latency_text(service['target_ns'])}", _slack_style(slack)),
            trend(ratios, ascii_only=ascii_only),
            Text("-" if slack is None else f"{slack:+.2f}", _slack_style(slack)),
            Text.assemble(f"{service['load_rps']:.0f}", (unsent, "red")),
        )
    return table


def _allocation_table(tick: Message) -> Table:
    holders = {**tick["services"], "best-effort": tick["best_effort"], "idle": tick["idle"]}
    resources = [resource.value for resource in Resource if any(resource in holder["amounts"] for holder in holders.values())]
    table = _table()
    table.add_column("holds (uses)", no_wrap=True, max_width=20)
    for resource in resources:
        table.add_column(resource, justify="right", no_wrap=True)
    for name, holder in holders.items():
        style = "dim" if name == "idle" or holder.get("present") is False else ""
        table.add_row(name, *(_held(resource, holder) for resource in resources), style=style)
    return table


def _held(resource: str, holder: Message) -> str:
    amount = holder["amounts"].get(resource)
    used = holder.get("usage", {}).get(_USAGE_FIELDS.get(resource, ""))
    text = "-" if amount is None else amount_text(resource, amount)
    return text if used is None else f"{text} ({amount_text(resource, used, unit=False)})"


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def _move_lines(moves: Iterable[SeenMove], *, ascii_only: bool, shadow: bool) -> list[Text]:
    arrow = "->" if ascii_only else "→"
    return [
        Text.assemble(
            (f"{seen.tick:>6} ", "dim"),
            _move_text(seen.move, arrow, shadow=shadow),
            ("" if shadow and seen.status == "done" else f"  {seen.status}", _status_style(seen.status)),
        )
        for seen in moves
    ]


def _event_lines(events: Iterable[SeenEvent], *, ascii_only: bool) -> list[Text]:
    overflow: Literal["crop", "ellipsis"] = "crop" if ascii_only else "ellipsis"
    return [
        Text(f"{event.level}: {event.text}", _EVENT_STYLES.get(event.level, "dim"), no_wrap=True, overflow=overflow)
        for event in events
    ]


def _move_text(move: Message, arrow: str, *, shadow: bool) -> str:
    resource = move["pool"].partition("@")[0]
    giver, taker = move["giver"] or "-", move["taker"] or "-"
    would = "would move " if shadow else ""
    return f"{would}{move['pool']} {amount_text(resource, move['amount'])} {giver} {arrow} {taker}  {move['reason']}"


def _plain_service(name: str, service: Message) -> str:
    slack = "" if service["slack"] is None else f" slack {service['slack']:+.2f}"
    latency = f"{latency_text(service['latency_ns'])}/{latency_text(service['target_ns'])}"
    return f"{name} {service['state']} {latency}{slack} {service['load_rps']:.0f}/s"


def _ratio(service: Message) -> float | None:
    latency_ns = service.get("latency_ns")
    return None if latency_ns is None else float(latency_ns / service["target_ns"])


def _slack_style(slack: float | None) -> str:
    if slack is None:
        return "dim"
    if slack < 0:
        return "red"
    return "yellow" if slack < _LOW_SLACK else "green"


def _status_style(status: str) -> str:
    return {"refused": "red", "pending": "yellow"}.get(status, "dim")

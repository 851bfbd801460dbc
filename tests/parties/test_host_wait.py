"""How the host platform waits: what may wait is read together, shortly before the tick, and never beyond it."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from parties.host import LEAD_NS, LONGEST_UNREAD_NS, HostPlatform
from parties.model import NS_PER_S, Node
from parties.upkeep import Upkeep

MS = 1_000_000


class Clock:
    """Time that passes only where somebody sleeps or works."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Urgent:
    """The selector that is slept on; ``at`` is what happens at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.at: dict[int, Callable[[], None]] = {}

    def select(self, timeout_s: float) -> list[tuple[Any, int]]:
        until_ns = self._clock.now_ns + round(timeout_s * NS_PER_S)
        due_ns = min((at_ns for at_ns in self.at if at_ns <= until_ns), default=None)
        self._clock.now_ns = until_ns if due_ns is None else due_ns
        if due_ns is None:
            return []
        do = self.at.pop(due_ns)
        return [(SimpleNamespace(data=lambda _mask: do()), 1)]


class Sources:
    """What may wait: each read costs ``cost_ns``, and ``waiting`` reads are to be done."""

    def __init__(self, clock: Clock, waiting: int, cost_ns: int = 1000) -> None:
        self._clock = clock
        self._cost_ns = cost_ns
        self.waiting = waiting
        self.read_at: list[int] = []

    def select(self, timeout_s: float) -> list[tuple[Any, int]]:
        assert timeout_s == 0
        return [(SimpleNamespace(data=self._read), 1)] if self.waiting else []

    def _read(self, _mask: int) -> None:
        self.read_at.append(self._clock.now_ns)
        self._clock.now_ns += self._cost_ns
        self.waiting -= 1


def platform(clock: Clock, urgent: Urgent, sources: Sources) -> HostPlatform:
    nothing = cast("Any", SimpleNamespace())
    return HostPlatform(
        Node("n", (), {}),
        (),
        actuators={},
        enforcer=nothing,
        monitors=nothing,
        selector=cast("selectors.BaseSelector", urgent),
        sources=cast("selectors.BaseSelector", sources),
        events=lambda *_: None,
        upkeep=Upkeep((), nothing),
        clock=clock,
    )


def test_what_may_wait_is_read_together_shortly_before_the_tick() -> None:
    """All of it in one go, and early enough for the tick to be punctual."""
    clock = Clock()
    sources = Sources(clock, waiting=30)
    assert platform(clock, Urgent(clock), sources).wait_until(500 * MS)
    assert sources.waiting == 0
    assert sources.read_at[0] == 500 * MS - LEAD_NS
    assert clock.now_ns == 500 * MS


def test_in_a_long_interval_nothing_waits_longer_than_senders_buffers_allow() -> None:
    """What is sent meanwhile is read at least every half second."""
    clock = Clock()
    sources = Sources(clock, waiting=1)
    assert platform(clock, Urgent(clock), sources).wait_until(2 * NS_PER_S)
    assert sources.read_at == [LONGEST_UNREAD_NS]


def test_in_a_short_wait_it_is_read_in_the_middle() -> None:
    """The lead is never more than half of what there is."""
    clock = Clock()
    sources = Sources(clock, waiting=1)
    assert platform(clock, Urgent(clock), sources).wait_until(4 * MS)
    assert sources.read_at == [2 * MS]


def test_sources_that_never_run_dry_do_not_delay_the_tick() -> None:
    """Reading ends at the deadline; at most the piece of work that was begun before is late."""
    clock = Clock()
    sources = Sources(clock, waiting=10**6, cost_ns=MS)
    assert platform(clock, Urgent(clock), sources).wait_until(500 * MS)
    assert clock.now_ns <= 501 * MS
    assert sources.waiting > 0


def test_a_tick_that_is_due_already_is_not_waited_for() -> None:
    """No sleep and no reading when it is late anyway."""
    clock = Clock()
    clock.now_ns = 600 * MS
    sources = Sources(clock, waiting=5)
    assert platform(clock, Urgent(clock), sources).wait_until(500 * MS)
    assert clock.now_ns == 600 * MS


def test_what_is_urgent_is_done_at_once_and_a_stop_ends_the_wait() -> None:
    """A stop in mid-interval ends it then and there, after a last look at what was sent."""
    clock = Clock()
    urgent, sources = Urgent(clock), Sources(clock, waiting=3)
    host = platform(clock, urgent, sources)
    urgent.at = {100 * MS: lambda: None, 200 * MS: host.stop}
    assert not host.wait_until(500 * MS)
    assert sources.read_at[0] == 200 * MS
    assert sources.waiting == 0
    assert clock.now_ns < 201 * MS

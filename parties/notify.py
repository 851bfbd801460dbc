"""What the service manager is told (sd_notify): that we are ready, alive, reloading or stopping, and how it goes.

One datagram of lines on the socket that ``NOTIFY_SOCKET`` names, an abstract one too; without it everything here does nothing. The
control process says that it is ready and, from its tick, that it is alive: one that hangs is ended by the watchdog, and its values
are put back. It is not the main process, so that the unit needs ``NotifyAccess=all``. Nothing here raises. Signs of life and the
status never wait either, and one that cannot be sent is lost; for the others a busy service manager is waited for, a second at
most, and never from the tick.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from parties.model import NS_PER_S, Decision, Observation
from parties.record import Timing

_NS_PER_US = 1000
STATUS_EVERY_NS = NS_PER_S
PATIENCE_S = 1.0


class Notifier:
    """Talks to the service manager that ``environment`` tells of. ``watchdog_ns`` is how long it bears silence; 0: for ever."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        limit_us = environment.get("WATCHDOG_USEC", "")
        self.watchdog_ns = int(limit_us) * _NS_PER_US if self._address and limit_us.isdecimal() else 0
        self._alive_ns: int | None = None

    @property
    def connected(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self._address)

    def ready(self) -> None:
        """What was started, or reloaded, is in force."""
        self._send("READY=1", patience_s=PATIENCE_S)

    def reloading(self, now_ns: int) -> None:
        """The configuration is being changed; ``now_ns`` is CLOCK_MONOTONIC. ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_ns // _NS_PER_US}", patience_s=PATIENCE_S)

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1", patience_s=PATIENCE_S)

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={' '.join(text.split())}")

    def alive(self, now_ns: int) -> None:
        """We do not hang. Sent four times within the limit at most, so that every tick may call it."""
        if self.watchdog_ns and (self._alive_ns is None or now_ns - self._alive_ns >= self.watchdog_ns // 4):
            self._alive_ns = now_ns
            self._send("WATCHDOG=1")

    def _send(self, *lines: str, patience_s: float = 0.0) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
            link.settimeout(patience_s)
            link.sendto("\n".join(lines).encode(), self._address)


class Heartbeat:
    """A listener of the loop: each tick is a sign of life."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def tick(self, observation: Observation, decision: Decision, timing: Timing) -> None:
        """Tell of one tick."""
        del decision, timing
        self._notifier.alive(observation.now_ns)


class StatusLine:
    """Keeps ``systemctl status`` up to date from the control process's messages: services, targets met, moves, and a ``note``."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._moves = 0
        self._due_ns = 0
        self._said = ""
        self.note = ""

    def update(self, message: Mapping[str, Any], now_ns: int | None = None) -> None:
        """Take in a message (``parties.front``); what it comes to is said once a second at most, and only if it is news."""
        if not self._notifier.connected or message.get("type") != "tick":
            return
        self._moves += len(message["moves"])
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        text = self._text(message)
        if text != self._said and now_ns >= self._due_ns:
            self._said, self._due_ns = text, now_ns + STATUS_EVERY_NS
            self._notifier.status(text)

    def _text(self, tick: Mapping[str, Any]) -> str:
        services = tick["services"].values()
        judged = [service for service in services if service["slack"] is not None]
        met = sum(service["slack"] >= 0 for service in judged)
        count = len(tick["services"])
        text = f"{count} service{'' if count == 1 else 's'}, {met} of {len(judged)} judged on target, {self._moves} moves"
        return f"{text}; {self.note}" if self.note else text

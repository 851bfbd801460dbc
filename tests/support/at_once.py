"""A slow writer without a process of its own: for tests that are about the writes and not about who does them."""

from __future__ import annotations

from actuators.registry import KINDS
from parties.knob import KnobRef
from parties.slow_writer import SlowResult


class AtOnce:
    """Does slow writes by the knobs' kinds, as the process for them does, at the next poll."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, KnobRef, str | None]] = []
        self._tickets = 0

    def submit(self, ref: KnobRef, value: str | None, now_ns: int) -> int:  # noqa: ARG002 (the interface's)
        self._tickets += 1
        self._queue.append((self._tickets, ref, value))
        return self._tickets

    def poll(self, now_ns: int) -> list[SlowResult]:  # noqa: ARG002 (the interface's)
        queue, self._queue = self._queue, []
        return [self._do(*entry) for entry in queue]

    @staticmethod
    def _do(ticket: int, ref: KnobRef, value: str | None) -> SlowResult:
        knob = KINDS[ref.kind].make(ref.address)
        try:
            knob.restore(value)
            return SlowResult(ticket, found=knob.read())
        except OSError as error:
            return SlowResult(ticket, error=error)

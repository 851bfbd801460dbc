"""Signals that wake a selector, for processes that sleep in one."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterable, Iterator


@contextlib.contextmanager
def waking(numbers: Iterable[signal.Signals], handler: Callable[[int], None]) -> Iterator[socket.socket]:
    """``handler`` gets each of the signals meanwhile, and the socket becomes readable: register it, and read it empty.

    For the main thread. Afterwards the handlers are what they were.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    before = {number: signal.signal(number, lambda received, _frame: handler(received)) for number in numbers}
    wake_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(wake_fd)
        for number, earlier in before.items():
            signal.signal(number, earlier)
        ours.close()
        theirs.close()

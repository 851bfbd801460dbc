"""Signals: held back until somebody can act on them, and then waking a selector, for processes that sleep in one.

A signal whose default is death must not come to a process that has begun something and cannot put it back yet. So whoever starts
a process that will heed signals starts it with these held (the mask is inherited), and it lets them through once it listens.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

HEEDED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP})
"""What a daemon acts on in its own time, and what must therefore never end it."""


@dataclass(slots=True)
class EndAsked:
    """Whether a process was asked to end, and whether it is to leave everything in force for the one that follows.

    A stop is never taken back, so that a wish to leave is heeded only where there was none.
    """

    ending: bool = False
    leaving: bool = False

    def stop(self) -> None:
        """End, with everything put back."""
        self.ending, self.leaving = True, False

    def leave(self) -> None:
        """End, with everything left as it is."""
        if not self.ending:
            self.ending = self.leaving = True


def hold() -> None:
    """Hold signals back until ``waking`` lets them through; after it they are held again, to the end of the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold signals back meanwhile: around the start of a process, which inherits it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def waking(numbers: Iterable[signal.Signals], handler: Callable[[int], None]) -> Iterator[socket.socket]:
    """``handler`` gets each of the signals meanwhile, and the socket becomes readable: register it, and read it empty.

    What was held back comes now. For the main thread. Afterwards mask and handlers are what they were.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    numbers = tuple(numbers)
    before = {number: signal.signal(number, lambda received, _frame: handler(received)) for number in numbers}
    wake_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield ours
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.set_wakeup_fd(wake_fd)
        for number, earlier in before.items():
            signal.signal(number, earlier)
        ours.close()
        theirs.close()

"""Signals are held back until they can be acted on, and a stop is never taken back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from parties.signals import HEEDED, EndAsked, held, waking

HELD_UP = """
import os, signal, sys
from parties.signals import HEEDED, hold, waking
hold()
for number in HEEDED:
    os.kill(os.getpid(), number)
came = []
with waking(HEEDED, came.append) as wake:
    assert sorted(came) == sorted(HEEDED), came
    assert len(wake.recv(64)) == len(HEEDED)
for number in HEEDED:
    os.kill(os.getpid(), number)
sys.exit(7)
"""


def test_what_was_held_back_comes_once_somebody_listens_and_never_after() -> None:
    """Each of them, at once; what comes after the end is held again, so that the exit code stays what it was to be."""
    assert subprocess.run([sys.executable, "-c", HELD_UP], check=False, timeout=20).returncode == 7


def test_signals_are_held_back_for_a_while() -> None:
    """What comes meanwhile is delivered afterwards, and the mask is as before."""
    came: list[int] = []
    with waking([signal.SIGUSR1], came.append):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with held():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert came == []
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= HEEDED
        assert came == [signal.SIGUSR1]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize(
    ("wishes", "leaving"), [("s", False), ("l", True), ("ll", True), ("ls", False), ("sl", False), ("lsl", False)]
)
def test_a_stop_counts_more_than_a_wish_to_leave(wishes: str, *, leaving: bool) -> None:
    """In whatever order they come."""
    asked = EndAsked()
    for wish in wishes:
        (asked.stop if wish == "s" else asked.leave)()
    assert asked.ending
    assert asked.leaving is leaving

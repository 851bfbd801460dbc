"""Waiting for what happens by itself, and measuring, on a machine that others keep busy."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LIMIT_S = 120.0
"""For whatever is waited for: no test is about how quick a busy machine is."""

_PAUSE_S = 0.005


def until(condition: Callable[[], bool], trouble: str = "waited in vain", limit_s: float = LIMIT_S) -> None:
    """Wait until the condition holds. Fails the test if it does not in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, trouble
        time.sleep(_PAUSE_S)


def children(pid: int | None) -> list[int]:
    """The processes that the main thread of a process has started and that are not yet gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def remove_group(directory: Path) -> None:
    """Remove a control group whose last process may still be on its way out."""
    until(lambda: _removed(directory), f"{directory} cannot be removed")


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return not directory.exists()
    return True


@contextlib.contextmanager
def ahead_of_others() -> Iterator[None]:
    """This thread, and the threads and processes that it starts meanwhile, run before whatever else wants the CPUs.

    For clients whose own speed would else decide what is measured. Without the permission everything is as before.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, *before)

"""Starts a program inside its control groups and network namespace, before it opens a socket or allocates a page.

Run as a script by a bare interpreter: ``launch.py SPECIFICATION PROGRAM ARGUMENT...``. The specification is JSON: ``groups``
(directories, joined in order; the first is the run's kill group), ``namespace`` (a file to enter, or null), ``cpus``, ``priority``
(nice) and ``real_time`` (the lowest real-time priority, where allowed). If a group is gone, the run is being cleaned up, and the
program is not started.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys

CLONE_NEWNET = 0x40000000


def enter_namespace(handle: int) -> None:
    """Move the calling thread into the network namespace of an open descriptor (``os.setns`` of Python 3.12). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def main(arguments: list[str]) -> None:
    """Join, enter, pin, and become the program."""
    specification = json.loads(arguments[0])
    for directory in specification["groups"]:
        with open(os.path.join(directory, "cgroup.procs"), "w") as procs:  # noqa: PTH118, PTH123 - pathlib triples the start
            procs.write(str(os.getpid()))
    if specification["namespace"]:
        handle = os.open(specification["namespace"], os.O_RDONLY | os.O_CLOEXEC)
        enter_namespace(handle)
    os.sched_setaffinity(0, specification["cpus"])
    os.setpriority(os.PRIO_PROCESS, 0, specification["priority"])
    if specification["real_time"]:
        with contextlib.suppress(OSError):  # where it may not, the nice value has to do
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    os.execvp(arguments[1], arguments[1:])  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        raise SystemExit(f"launch: {error}") from error

"""The processes of a control group and of those below it, in either version."""

from __future__ import annotations

import errno
import os

from actuators.cgroup.files import vanished
from parties.knob import KnobError

_CHUNK_BYTES = 65536
_LINKS_OF_A_LEAF = 2  # a directory has one more for each directory in it


def processes(directory: str) -> tuple[int, ...] | None:
    """The processes of a group and of those below it, in order; None where it is gone. Raises KnobError."""
    found = _procs(directory)
    return None if found is None else tuple(sorted((*found, *_procs_below(directory))))


def read_ids(path: str) -> list[int] | None:
    """The numbers in a list of processes or threads; None where its group is gone. Raises KnobError.

    Opened anew each time: a kept descriptor goes on giving the list of its first read as long as it is read once a second.
    """
    text = b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while chunk := os.read(fd, _CHUNK_BYTES):
                text += chunk
        finally:
            os.close(fd)
    except OSError as error:
        if vanished(error):
            return None
        if error.errno == errno.EOPNOTSUPP:  # a threaded group (v2): its processes are listed by the group that they belong to
            return []
        raise KnobError(error.errno, f"{path}: cannot read: {error.strerror}") from error
    return [int(number) for number in text.split()]


def _procs(directory: str) -> list[int] | None:
    """The processes of one group itself; None where it is gone."""
    return read_ids(f"{directory}/cgroup.procs")


def _procs_below(directory: str) -> list[int]:
    """The processes of all groups below one."""
    try:
        if os.stat(directory).st_nlink <= _LINKS_OF_A_LEAF:  # noqa: PTH116 (a Path costs three times the call)
            return []
    except FileNotFoundError:
        return []
    return [pid for place, _, _ in os.walk(directory) if place != directory for pid in _procs(place) or ()]

"""The processes of a control group and of those below it, in either version."""

from __future__ import annotations

import errno
import os

from actuators.cgroup.files import SURELY_LAST_BYTES, vanished
from parties.knob import KnobError

_CHUNK_BYTES = 65536
_LINKS_OF_A_LEAF = 2  # a directory has one more for each directory in it


class ProcessList:
    """The processes of one group and of those below it; the numbers are told apart again only when the kernel lists others."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = f"{directory}/cgroup.procs"
        self._text = b""
        self._own: tuple[int, ...] = ()

    def read(self) -> tuple[int, ...] | None:
        """In order; None where the group is gone. The same object while they are the same. Raises KnobError."""
        text = _read(self._path)
        if text is None:
            return None
        if text != self._text:
            self._text, self._own = text, tuple(sorted(map(int, text.split())))
        below = _procs_below(self._directory)
        return tuple(sorted((*self._own, *below))) if below else self._own


def processes(directory: str) -> tuple[int, ...] | None:
    """What a ``ProcessList`` reads, of a group that is looked at once."""
    return ProcessList(directory).read()


def read_ids(path: str) -> list[int] | None:
    """The numbers in a list of processes or threads; None where its group is gone. Raises KnobError."""
    text = _read(path)
    return None if text is None else [int(number) for number in text.split()]


def _read(path: str) -> bytes | None:
    """A list's text; None where its group is gone.

    Opened anew each time: a kept descriptor goes on giving the list of its first read as long as it is read once a second.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = chunk = os.read(fd, _CHUNK_BYTES)
            while len(chunk) >= SURELY_LAST_BYTES and (chunk := os.read(fd, _CHUNK_BYTES)):
                text += chunk
        finally:
            os.close(fd)
    except OSError as error:
        if vanished(error):
            return None
        if error.errno == errno.EOPNOTSUPP:  # a threaded group (v2): its processes are listed by the group that they belong to
            return b""
        raise KnobError(error.errno, f"{path}: cannot read: {error.strerror}") from error
    return text


def _procs_below(directory: str) -> list[int]:
    """The processes of all groups below one."""
    try:
        if os.stat(directory).st_nlink <= _LINKS_OF_A_LEAF:  # noqa: PTH116 (a Path costs three times the call)
            return []
    except FileNotFoundError:
        return []
    return [pid for place, _, _ in os.walk(directory) if place != directory for pid in read_ids(f"{place}/cgroup.procs") or ()]

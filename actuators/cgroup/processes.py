"""The processes of a control group and of those below it, in either version."""

from __future__ import annotations

import errno
import os

from actuators.cgroup.files import SURELY_LAST_BYTES, vanished
from parties.knob import KnobError

_PROCS = "cgroup.procs"
_CHUNK_BYTES = 65536
_LINKS_OF_A_LEAF = 2  # a directory has one more for each directory in it


class ProcessList:
    """The processes of one group and of those below it; the numbers are told apart again only when the kernel lists others.

    Its directory is kept open, as looking up the whole path costs more than reading the list.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._fd = -1
        self._text = b""
        self._own: tuple[int, ...] = ()

    def __del__(self) -> None:
        self._close()

    def read(self) -> tuple[int, ...] | None:
        """In order; None where the group is gone. The same object while they are the same. Raises KnobError."""
        text = self._list()
        if text is None:
            return None
        if text != self._text:
            self._text, self._own = text, tuple(sorted(map(int, text.split())))
        if os.fstat(self._fd).st_nlink <= _LINKS_OF_A_LEAF:
            return self._own
        return tuple(sorted((*self._own, *_procs_below(self._directory))))

    def _list(self) -> bytes | None:
        if self._fd >= 0:
            text = _read(_PROCS, self._directory, self._fd)
            if text is not None:
                return text
            self._close()  # gone, but there may be one made anew
        try:
            self._fd = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if vanished(error):
                return None
            raise KnobError(error.errno, f"{self._directory}: cannot open: {error.strerror}") from error
        return _read(_PROCS, self._directory, self._fd)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def processes(directory: str) -> tuple[int, ...] | None:
    """What a ``ProcessList`` reads, of a group that is looked at once."""
    return ProcessList(directory).read()


def read_ids(path: str) -> list[int] | None:
    """The numbers in a list of processes or threads; None where its group is gone. Raises KnobError."""
    text = _read(path)
    return None if text is None else [int(number) for number in text.split()]


def _read(path: str, place: str = "", directory: int | None = None) -> bytes | None:
    """A list's text; None where its group is gone. ``directory`` is what ``path`` is below, open, and ``place`` its name.

    Opened anew each time: a kept descriptor goes on giving the list of its first read as long as it is read once a second.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
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
        raise KnobError(error.errno, f"{os.path.join(place, path)}: cannot read: {error.strerror}") from error  # noqa: PTH118
    return text


def _procs_below(directory: str) -> list[int]:
    """The processes of all groups below one."""
    return [pid for place, _, _ in os.walk(directory) if place != directory for pid in read_ids(f"{place}/{_PROCS}") or ()]

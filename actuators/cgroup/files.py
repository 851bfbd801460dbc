"""Kernel files with a kept descriptor: one pread or pwrite (about 1 us) instead of open, write and close (13 us)."""

from __future__ import annotations

import os
from pathlib import Path

from parties.knob import VANISHED, KnobError, Said

_CHUNK_BYTES = 65536
SURELY_LAST_BYTES = 2048
"""The kernel fills a page with whole lines before it stops in mid-file: a shorter piece is the last, and needs no second call."""


def vanished(error: OSError) -> bool:
    """Whether the error says that the group is no longer there: ENOENT by path, ENODEV by a kept descriptor."""
    return error.errno in VANISHED


def line_after(text: bytes, begin: bytes) -> bytes | None:
    """The rest of the line that begins so; None if there is none."""
    if text.startswith(begin):
        start = len(begin)
    else:
        found = text.find(b"\n" + begin)
        if found < 0:
            return None
        start = found + 1 + len(begin)
    end = text.find(b"\n", start)
    return text[start:end] if end >= 0 else text[start:]


def figure(stat: bytes, name: bytes) -> int:
    """One figure of a "name value" file, such as memory.stat; 0 where it is not there."""
    return int(line_after(stat, name + b" ") or 0)


def bare(error: OSError) -> OSError:
    """The kernel's own words again, for a message of another level."""
    return OSError(error.errno, os.strerror(error.errno or 0))


class KeptFile:
    """One control file, opened at the first use.

    Every method raises KnobError with the kernel's errno and the path. Once the group was removed, the kept descriptor gives
    ENODEV; the use after that opens the path again, where there may be a group made anew. So whoever looks at every interval sees
    that its values are those of another group, which a file that silently reopens would hide.
    """

    def __init__(self, path: Path, *, writable: bool = True, readable: bool = True) -> None:
        self.path = path
        self._flags = (os.O_RDONLY if not writable else os.O_RDWR if readable else os.O_WRONLY) | os.O_CLOEXEC
        self._fd = -1
        self._ordinary = False

    def __del__(self) -> None:
        self.close()

    def read(self) -> str:
        """The whole text."""
        return self.raw().decode()

    def raw(self) -> bytes:
        """The whole text as it comes."""
        try:
            fd = self._fd if self._fd >= 0 else self._open()
            text = os.pread(fd, _CHUNK_BYTES, 0)
            return text if len(text) < SURELY_LAST_BYTES else self._with_rest(fd, text)
        except OSError as error:
            self._forget_if(error)
            raise KnobError(error.errno, f"{self.path}: cannot read: {error.strerror}") from error

    def says(self, text: bytes) -> bool:
        """Whether it says just this; of no use for a long text. Raises OSError as the kernel does, also where it was never read."""
        return os.pread(self._fd, len(text) + 1, 0) == text

    def write(self, text: str, cause: str = "") -> None:
        """Write one line; ``cause`` is added to the message of a refusal."""
        try:
            self._write_all(self._open(), text.encode() + b"\n")
        except OSError as error:
            self._forget_if(error)
            raise self.refused(error, text, cause) from error

    def refused(self, error: OSError, text: str, cause: str = "") -> KnobError:
        """The error of a refused write, in one message."""
        return KnobError(error.errno, f"{self.path}: cannot set {text!r}: {error.strerror}{f' ({cause})' if cause else ''}")

    def close(self) -> None:
        """Give up the descriptor; the next use opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _forget_if(self, error: OSError) -> None:
        if vanished(error):
            self.close()

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, self._flags)
            # A control file has size 0. In a fixture tree it is an ordinary file, whose old text must go before the new is written.
            self._ordinary = os.fstat(self._fd).st_size > 0
        return self._fd

    @staticmethod
    def _with_rest(fd: int, text: bytes) -> bytes:
        while chunk := os.pread(fd, _CHUNK_BYTES, len(text)):
            text += chunk
            if len(chunk) < SURELY_LAST_BYTES:
                break
        return text

    def _write_all(self, fd: int, data: bytes) -> None:
        if self._ordinary:
            os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)


Seen = tuple[tuple[KeptFile, bytes | None], ...]
"""Kept files and what each said; None for one that is not there, as its controller is not enabled."""


def text_of(seen: tuple[KeptFile, bytes | None]) -> str:
    """What a file said, as text; empty for one that is not there."""
    return (seen[1] or b"").decode()


def is_set(seen: tuple[KeptFile, bytes | None]) -> bool:
    """Whether a file says 1."""
    return int(seen[1] or 0) == 1


class FileKnob:
    """A knob whose value is nothing but what some kept files say: the same bytes, the same value.

    Reading takes apart what differs from the last time only, and whoever wants to know no more than whether anything changed asks
    the files themselves (``parties.knob.SaidByFiles``): nearly all that a look at a knob cost was spent on what had not changed.
    """

    _seen: Seen = ()
    _value: str | None = None

    def look(self) -> Seen:
        """What the files say now, those alone that matter for the value; never nothing. Raises KnobError."""
        raise NotImplementedError

    def parse(self, seen: Seen) -> str | None:
        """The value that this stands for, which depends on nothing else. What it raises, ``read`` raises."""
        raise NotImplementedError

    def read(self) -> str | None:
        """The value in force."""
        seen = self.look()
        if seen != self._seen:
            self._value = self.parse(seen)
            self._seen = seen
        return self._value

    def said(self) -> Said:
        """What the value was made of that ``read`` gave last; nothing where other bytes are not all that can change it."""
        said = tuple((file, text) for file, text in self._seen if text is not None and len(text) < SURELY_LAST_BYTES)
        return said if len(said) == len(self._seen) else ()

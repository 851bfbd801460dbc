"""Kernel files with a kept descriptor: one pread or pwrite (about 1 us) instead of open, write and close (13 us)."""

from __future__ import annotations

import os
from pathlib import Path

from parties.knob import VANISHED, KnobError

_CHUNK_BYTES = 65536
_SURELY_LAST_BYTES = 2048
"""The kernel fills a page with whole lines before it stops in mid-file: a shorter piece is the last, and needs no second call."""


def vanished(error: OSError) -> bool:
    """Whether the error says that the group is no longer there: ENOENT by path, ENODEV by a kept descriptor."""
    return error.errno in VANISHED


class KeptFile:
    """One control file. Opened at the first use, reopened once when the group was removed and made again under the same path.

    Every method raises KnobError with the kernel's errno and the path.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self.path = path
        self._flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        self._fd = -1
        self._ordinary = False

    def __del__(self) -> None:
        self.close()

    def read(self) -> str:
        """The whole text."""
        try:
            return self._read()
        except OSError as error:
            raise KnobError(error.errno, f"{self.path}: cannot read: {error.strerror}") from error

    def write(self, text: str, cause: str = "") -> None:
        """Write one line; ``cause`` is added to the message of a refusal."""
        try:
            self._write(text.encode() + b"\n")
        except OSError as error:
            raise self.refused(error, text, cause) from error

    def refused(self, error: OSError, text: str, cause: str = "") -> KnobError:
        """The error of a refused write, in one message."""
        return KnobError(error.errno, f"{self.path}: cannot set {text!r}: {error.strerror}{f' ({cause})' if cause else ''}")

    def close(self) -> None:
        """Give up the descriptor; the next use opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        if self._fd < 0:
            self._fd = os.open(self.path, self._flags)
            # A control file has size 0. In a fixture tree it is an ordinary file, whose old text must go before the new is written.
            self._ordinary = os.fstat(self._fd).st_size > 0
        return self._fd

    def _read(self) -> str:
        kept = self._fd >= 0
        try:
            return self._read_all(self._open())
        except OSError as error:
            if not kept or not vanished(error):
                raise
        self.close()
        return self._read_all(self._open())

    def _write(self, data: bytes) -> None:
        kept = self._fd >= 0
        try:
            self._write_all(self._open(), data)
        except OSError as error:
            if not kept or not vanished(error):
                raise
        else:
            return
        self.close()
        self._write_all(self._open(), data)

    @staticmethod
    def _read_all(fd: int) -> str:
        text = b""
        while chunk := os.pread(fd, _CHUNK_BYTES, len(text)):
            text += chunk
            if len(chunk) < _SURELY_LAST_BYTES:
                break
        return text.decode()

    def _write_all(self, fd: int, data: bytes) -> None:
        if self._ordinary:
            os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)

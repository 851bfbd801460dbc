"""Sees every write to files of the kernel while a test runs, whoever makes it and even if it changes nothing (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_IN_MODIFY = 0x2
_HEADER = struct.Struct("iIII")


class WriteWatch:
    """Watches files until closed; those that do not exist are left out."""

    def __init__(self, files: Iterable[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._files: dict[int, Path] = {}
        for file in files:
            watch = libc.inotify_add_watch(self._fd, os.fsencode(file), _IN_MODIFY)
            if watch >= 0:
                self._files[watch] = file
        assert self._files, "nothing to watch"

    def written(self) -> set[Path]:
        """The files that were written since the last call."""
        found: set[Path] = set()
        while True:
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                return found
            offset = 0
            while offset < len(data):
                watch, _, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size + length
                found.add(self._files[watch])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

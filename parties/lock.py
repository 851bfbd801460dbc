"""The lock on a runtime directory: one daemon each, and no restore while one runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

LOCK_NAME = "lock"
_LOOK_AGAIN_S = 0.05


class LockError(Exception):
    """The runtime directory cannot be had; the message says who has it, or what is wrong with it, and what to do."""


class LockHeldError(LockError):
    """Somebody has it: a daemon, or a restore."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path, self.owner = path, owner
        super().__init__(
            f"{path}: held by {owner}; there is one daemon per runtime directory: stop it, or choose another directory"
        )


class RuntimeLock:
    """Holds ``directory``/lock by flock(2) until closed, the process's number written into it.

    The kernel gives the lock up when its holder dies, however it dies, so nothing stale can stand in the way. Raises LockError
    if another process still has it after ``patience_ns``, or the directory does not allow it.
    """

    def __init__(self, directory: Path, *, patience_ns: int = 0) -> None:
        self._path = directory / LOCK_NAME
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise LockError(f"{self._path}: {error.strerror}; choose a runtime directory that can be written") from error
        try:
            self._take(time.monotonic_ns() + patience_ns)
        except OSError as error:
            owner = self._owner()
            os.close(self._fd)
            raise LockHeldError(self._path, owner) from error
        with contextlib.suppress(OSError):  # a full disk spoils the message for the second one, not the lock
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _take(self, deadline_ns: int) -> None:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic_ns() >= deadline_ns:
                    raise
                time.sleep(_LOOK_AGAIN_S)
            else:
                return

    def _owner(self) -> str:
        text = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
        return f"process {text}" if text.isdigit() else "another process"

    def close(self) -> None:
        """Give the lock up. The file stays: removing it would let two processes lock two files of one name."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

"""FUSE's side of an emulated tree. Only the child process that serves one imports this."""

# ruff: noqa: ARG002 (the signatures are FUSE's)

from __future__ import annotations

import errno
import os
import stat
import time

import mfusepy

from tests.emulation.fuse_tree import Faulty
from tests.emulation.kernel_text import refusal

_PAGE_BYTES = 4096


class Operations(mfusepy.Operations):  # type: ignore[misc]
    """What the kernel asks. Files have no size of their own and are never made: so are sysfs and kernfs."""

    use_ns = True

    def __init__(self, faulty: Faulty) -> None:
        self._faulty = faulty

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Type and permissions."""
        mode = self._faulty.run("mode", path)
        directory = stat.S_ISDIR(mode)
        now = time.time_ns()
        times = {"st_atime": now, "st_mtime": now, "st_ctime": now}
        return {"st_mode": mode, "st_nlink": 2 if directory else 1, "st_size": 0 if directory else _PAGE_BYTES, **times}

    def readdir(self, path: str, fh: int) -> list[str]:
        """The names in a directory."""
        return [".", "..", *self._faulty.run("names", path)]

    def readlink(self, path: str) -> str:
        """Where a symbolic link points to."""
        return str(self._faulty.run("target", path))

    def open(self, path: str, flags: int) -> int:
        """Root as well may not write what is read-only, or read what is write-only."""
        mode = self._faulty.run("mode", path)
        access = flags & os.O_ACCMODE
        if (access != os.O_RDONLY and not mode & 0o222) or (access != os.O_WRONLY and not mode & 0o444):
            raise refusal(errno.EACCES)
        return 0

    def create(self, path: str, mode: int, fi: object = None) -> int:
        """No file can be made."""
        raise refusal(errno.EACCES)

    def unlink(self, path: str) -> None:
        """No file can be removed."""
        raise refusal(errno.EPERM)

    def rename(self, old: str, new: str, *rest: object) -> None:
        """Nothing can be renamed."""
        raise refusal(errno.EPERM)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Of no effect."""
        return 0

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        """A part of the text. A file without a path is one whose directory was removed since it was opened."""
        if path is None:
            raise refusal(errno.ENODEV)
        return str(self._faulty.run("read", path) or "").encode()[offset : offset + size]

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        """One write is one command; the kernel takes a page at most."""
        if path is None:
            raise refusal(errno.ENODEV)
        if len(data) > _PAGE_BYTES:
            raise refusal(errno.E2BIG)
        self._faulty.run("write", path, data.decode(errors="surrogateescape"))
        return len(data)

    def mkdir(self, path: str, mode: int) -> int:
        """Make a directory."""
        self._faulty.run("mkdir", path)
        return 0

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        self._faulty.run("rmdir", path)


def mount_and_serve(faulty: Faulty, mount: str, name: str) -> None:
    """Serve until unmounted. Nothing is cached by the kernel, so that what changes is seen at once."""
    uncached = {"entry_timeout": 0, "attr_timeout": 0, "negative_timeout": 0}
    options = {"direct_io": True, "allow_other": True, "fsname": name, "subtype": name}
    mfusepy.FUSE(Operations(faulty), mount, foreground=True, **options, **uncached)

"""Emulated trees in the places where the real tools look for them, in a private mount namespace that ends with its process.

``Overlay(resctrl=..., cpu=...).run("pqos", "-s")`` runs a command, ``.call(function, ...)`` a Python function. Nobody else sees
the mounts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_CLONE_NEWNS = 0x20000
_LIMIT_S = 300
_MOUNTS = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run/lock
if [ -n "$1" ]; then
    mount -t tmpfs tmpfs "$3"
    mkdir "$3/cgroup"
    mount --rbind /sys/fs/cgroup "$3/cgroup"
    mount -t tmpfs tmpfs /sys/fs
    mkdir /sys/fs/cgroup /sys/fs/resctrl
    mount --rbind "$3/cgroup" /sys/fs/cgroup
    mount --bind "$1" /sys/fs/resctrl
    { cat /proc/filesystems; printf 'nodev\\tresctrl\\n'; } > "$3/filesystems"
    mount --bind "$3/filesystems" /proc/filesystems
fi
if [ -n "$2" ]; then
    mount --bind "$2" /sys/devices/system/cpu
fi
"""


class CallError(Exception):
    """The function raised; the message is its traceback."""


@dataclass(frozen=True)
class Overlay:
    """What is put where: an emulated resctrl at /sys/fs/resctrl, emulated CPUs at /sys/devices/system/cpu. None: left as it is."""

    resctrl: Path | None = None
    cpu: Path | None = None

    def run(self, *command: str, limit_s: float = _LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run a command there and wait for it. Raises subprocess.TimeoutExpired."""
        with _scratch() as scratch:
            script = f'{_MOUNTS}\nshift 3\nexec "$@"'
            arguments = ["unshare", "--mount", "sh", "-c", script, "sh", *self._places(scratch), *command]
            return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=limit_s)

    def script(self, directory: Path, command: str) -> Path:
        """An executable file that runs a command there with whatever arguments it is given, for programs that start it."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "mounts").write_text(f'{_MOUNTS}\nshift 3\nexec "$@"')
        (directory / "scratch").mkdir()
        places = " ".join(f"'{place}'" for place in self._places(str(directory / "scratch")))
        file = directory / command
        file.write_text(f"#!/bin/sh\nexec unshare --mount sh '{directory / 'mounts'}' {places} {command} \"$@\"\n")
        file.chmod(0o755)
        return file

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a forked process there; its result comes back pickled. Raises CallError if it raises."""
        reading, writing = os.pipe()
        with _scratch() as scratch:
            child = os.fork()
            if child == 0:
                os.close(reading)
                self._child(writing, scratch, function, arguments)
            os.close(writing)
            with open(reading, "rb") as pipe:  # noqa: PTH123 (a descriptor)
                data = pipe.read()
            os.waitpid(child, 0)
        if not data:
            raise CallError("the process ended without a result")
        good, result = pickle.loads(data)  # noqa: S301 (our own process wrote it)
        if not good:
            raise CallError(result)
        found: T = result
        return found

    def _places(self, scratch: str) -> list[str]:
        return [str(self.resctrl or ""), str(self.cpu or ""), scratch]

    def _child(self, writing: int, scratch: str, function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        """Never returns: the test runner must not go on in this process."""
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
                raise OSError(ctypes.get_errno(), "unshare")  # noqa: TRY301 (reported as any other)
            subprocess.run(["sh", "-c", _MOUNTS, "sh", *self._places(scratch)], check=True)
            answer = (True, function(*arguments))
        except BaseException:  # noqa: BLE001 - reported to the test
            answer = (False, traceback.format_exc())
        with open(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        sys.stdout.flush()
        os._exit(0)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    """A directory to mount things in.

    Outside of the namespace it stays empty, and nowhere is it emptied by force: inside, the machine's control groups are below it.
    """
    directory = tempfile.mkdtemp(prefix="parties-overlay-")
    try:
        yield directory
    finally:
        os.rmdir(directory)  # noqa: PTH106 (only if it is empty)

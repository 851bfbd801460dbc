"""What the emulated file trees have in common: a model behind FUSE in a child process, and faults that a test orders.

A tree answers with the kernel's own errors (OSError). Here it is mounted, its operations are noted, and a test can make it
misbehave through the ``Mounted`` handle.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
_MESSAGE_BYTES = 1 << 20
_MOUNT_LIMIT_S = 120.0


class Tree(Protocol):
    """An emulated file tree. Paths begin with a slash; every method raises OSError as the kernel would."""

    def mode(self, path: str) -> int:
        """The file's type and permissions, as in ``st_mode``. ENOENT where there is none."""

    def names(self, path: str) -> Sequence[str]:
        """The names in a directory."""

    def target(self, path: str) -> str:
        """Where a symbolic link points to."""

    def read(self, path: str) -> str:
        """The whole text of a file."""

    def write(self, path: str, text: str) -> None:
        """One write of a file."""

    def mkdir(self, path: str) -> None:
        """Make a directory."""

    def rmdir(self, path: str) -> None:
        """Remove a directory."""


class FixedTree:
    """What a tree refuses unless it says otherwise."""

    def target(self, path: str) -> str:
        """No symbolic links."""
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    def mkdir(self, path: str) -> None:
        """No directories can be made."""
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)

    def rmdir(self, path: str) -> None:
        """No directories can be removed."""
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)


@dataclass(slots=True)
class Fault:
    """What happens instead of the next ``count`` operations ``op`` on paths that match (-1: of all that come).

    ``what``: "errno" (fails with ``number``), "ignore" (succeeds and does nothing), "hang" (until released), "replace" (the text is
    replaced by ``text``, for values that are taken but changed).
    """

    what: str
    pattern: str
    op: str = "write"
    number: int = errno.EIO
    count: int = 1
    text: str = ""


@dataclass(slots=True)
class Faults:
    """The faults that a test ordered, and what was done so far."""

    ordered: list[Fault] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def next_for(self, op: str, path: str) -> Fault | None:
        """The fault that this operation meets."""
        for fault in self.ordered:
            if fault.op == op and fault.count and fnmatch.fnmatchcase(path, fault.pattern):
                fault.count -= fault.count > 0
                return fault
        return None

    def check_there(self, path: str, number: int) -> None:
        """Raise where the path or something above it vanished."""
        for pattern in self.gone:
            if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*"):
                raise OSError(number, os.strerror(number), path)


class Faulty:
    """A tree under faults. One operation at a time, but for those that hang."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.faults = Faults()
        self.lock = threading.RLock()

    def run(self, op: str, path: str, text: str | None = None) -> Any:  # noqa: ANN401 (what the operation gives)
        """Carry out one operation of a client, or what was ordered instead."""
        entry: dict[str, Any] = {"op": op, "path": path, "text": text, "errno": 0}
        with self.lock:
            if op in {"write", "mkdir", "rmdir"}:
                self.faults.log.append(entry)
            fault = self.faults.next_for(op, path)
        try:
            if fault is not None and fault.what == "hang":
                self.faults.release.wait()
            with self.lock:
                return self._do(op, path, text, fault)
        except OSError as error:
            entry["errno"] = error.errno
            raise

    def _do(self, op: str, path: str, text: str | None, fault: Fault | None) -> Any:  # noqa: ANN401
        self.faults.check_there(path, errno.ENODEV if op in {"read", "write"} else errno.ENOENT)
        if fault is not None and fault.what == "errno":
            raise OSError(fault.number, os.strerror(fault.number), path)
        if fault is not None and fault.what == "ignore":
            return None
        if fault is not None and fault.what == "replace":
            text = fault.text
        if op == "write":
            return self.tree.write(path, text or "")
        return getattr(self.tree, op)(path)

    def order(self, request: dict[str, Any]) -> Any:  # noqa: ANN401 (what the order gives)
        """Carry out an order of the test: a fault, or a method of the tree itself that begins with ``set_`` or ``get_``."""
        do, arguments = request["do"], request["arguments"]
        if do == "release":
            self.faults.release.set()
            return None
        with self.lock:
            if do == "fault":
                self.faults.ordered.append(Fault(**arguments))
            elif do == "vanish":
                self.faults.gone.append(arguments["pattern"])
            elif do == "clear":
                self.faults.ordered.clear()
                self.faults.gone.clear()
                self.faults.release.set()
                self.faults.release = threading.Event()
            elif do == "log":
                return self.faults.log
            elif do == "count":
                return len(self.faults.log)
            elif do.startswith(("set_", "get_")):
                return getattr(self.tree, do)(**arguments)
            else:
                raise ValueError(do)
        return None


def serve(tree: Tree, mount: str, control_fd: int, *, name: str) -> None:
    """Mount and serve until unmounted; orders come over the socket. The child process's main function."""
    from tests.emulation.fuse_operations import mount_and_serve  # noqa: PLC0415 (only the child needs FUSE)

    faulty = Faulty(tree)
    threading.Thread(target=_take_orders, args=(socket.socket(fileno=control_fd), faulty, mount), daemon=True).start()
    mount_and_serve(faulty, mount, name)


def _take_orders(control: socket.socket, faulty: Faulty, mount: str) -> None:
    while data := control.recv(_MESSAGE_BYTES):
        try:
            answer = {"result": faulty.order(json.loads(data))}
        except Exception as error:  # noqa: BLE001 - the test sees it
            answer = {"error": repr(error)}
        control.send(json.dumps(answer).encode())
    subprocess.run(["umount", "-l", mount], check=False)  # the test is gone without having unmounted
    os._exit(0)


class Mounted:
    """A tree that is mounted: where, by which process, and how to make it misbehave."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.path = path
        self._process = process
        self._control = control

    @property
    def pid(self) -> int:
        """The process that serves the tree."""
        return self._process.pid

    def fail(self, number: int, pattern: str = "*", *, op: str = "write", count: int = 1) -> None:
        """The next ``count`` operations (-1: all) on paths that match fail with an errno. Paths begin with a slash."""
        self.order("fault", what="errno", pattern=pattern, op=op, number=number, count=count)

    def ignore(self, pattern: str = "*", *, count: int = -1) -> None:
        """Writes succeed and do nothing."""
        self.order("fault", what="ignore", pattern=pattern, count=count)

    def replace(self, text: str, pattern: str = "*", *, count: int = 1) -> None:
        """The next writes succeed, but it is ``text`` that takes effect."""
        self.order("fault", what="replace", pattern=pattern, text=text, count=count)

    def hang(self, pattern: str = "*", *, op: str = "write", count: int = 1) -> None:
        """The next operations hang until ``release`` or the end."""
        self.order("fault", what="hang", pattern=pattern, op=op, count=count)

    def release(self) -> None:
        """Let what hangs, and will hang, go on."""
        self.order("release")

    def vanish(self, pattern: str = "*") -> None:
        """What matches is no longer there: ENOENT by path, ENODEV by a descriptor that is still open."""
        self.order("vanish", pattern=pattern)

    def clear(self) -> None:
        """Forget every fault ordered; what vanished is there again, what hangs goes on, and what will be told to hang does."""
        self.order("clear")

    def log(self) -> list[dict[str, Any]]:
        """Every write, mkdir and rmdir so far: op, path, text, errno (0: it succeeded)."""
        return list(self.order("log"))

    def count(self) -> int:
        """How long ``log`` is; after thousands of operations it is too long for one message."""
        return int(self.order("count"))

    def order(self, do: str, **arguments: object) -> Any:  # noqa: ANN401 (what the order gives)
        """Send one order; the ``set_`` and ``get_`` methods of a tree are orders as well."""
        self._control.send(json.dumps({"do": do, "arguments": arguments}).encode())
        answer = json.loads(self._control.recv(_MESSAGE_BYTES))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def unmount(self) -> None:
        """Take the mount away at once, also under operations that hang; they fail."""
        subprocess.run(["umount", "-l", str(self.path)], check=False, stderr=subprocess.DEVNULL)
        self._process.kill()
        self._process.wait()
        self._control.close()


def why_not() -> str:
    """Why no tree can be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root to mount an emulated tree"
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse: the kernel has no FUSE"
    try:
        import mfusepy  # noqa: F401, PLC0415 (raises OSError where libfuse is missing)
    except (ImportError, OSError) as error:
        return f"mfusepy cannot be used ({error}): pip install mfusepy, apt-get install fuse3"
    return ""


@contextlib.contextmanager
def mounted(module: str, options: dict[str, Any], mount: Path) -> Iterator[Mounted]:
    """Serve the tree of ``module`` (run with ``-m``: mount point, control descriptor, options as JSON) at ``mount``.

    Raises RuntimeError where the child ends before it has mounted. It is always unmounted.
    """
    mount.mkdir(parents=True, exist_ok=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_MOUNT_LIMIT_S)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(mount), str(theirs.fileno()), json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the test, which then unmounts
        )
    handle = Mounted(mount, process, ours)
    try:
        _await_mount(mount, process)
        yield handle
    finally:
        handle.unmount()


def _await_mount(mount: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _MOUNT_LIMIT_S
    while not os.path.ismount(mount):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{mount}: the emulated tree was not mounted (exit code {process.poll()})")
        time.sleep(0.01)

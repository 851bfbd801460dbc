"""Who writes the kernel's control files besides us (invariant 6: a foreign writer is named where possible).

fanotify(7) tells of each write to a file of control groups or sysfs by which process it was (Linux 5.1 for control groups; it needs
CAP_SYS_ADMIN). This runs in the process for upkeep: a thread there takes the events in at once, as many a writer ends a moment
later. Where the kernel refuses fanotify, or what was changed is no file, there is only a guess: tools that are running and known to
write such things.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from parties.knob import KnobKind, KnobKinds, KnobRef, Sensor

KIND = "foreign-writers"

_FAN_CLOEXEC, _FAN_MODIFY, _FAN_MARK_ADD, _FAN_EVENT_ON_CHILD = 0x1, 0x2, 0x1, 0x0800_0000
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
_BUFFER_BYTES = 1 << 14
_MOST_SEEN = 256
"""Writes that are remembered until they are asked for; whoever writes more often than that is among the last ones too."""

SUSPECTS = frozenset({
    "kubelet", "dockerd", "containerd", "crio", "podman", "conmon", "lxcfs", "lxc-monitord", "lxd", "incusd", "libvirtd",
    "virtqemud", "irqbalance", "tuned", "thermald", "power-profiles-", "cpufreqd", "tlp", "auto-cpufreq", "koordlet", "crane-agent",
    "intel-rdt", "rdtset", "pqos", "cgrulesengd", "oomd", "NetworkManager", "parties",
})  # fmt: skip
"""Tools that write control groups, CPU frequency, interrupts or traffic control, by the 15 characters that the kernel keeps."""


def suspects(proc: Path = Path("/proc"), *, most: int = 5) -> list[str]:
    """The known tools that are running, with their processes; this process and its parent are none."""
    found = []
    ours = {os.getpid(), os.getppid()}
    for entry in sorted(proc.glob("[0-9]*"), key=lambda entry: int(entry.name)):
        with contextlib.suppress(OSError):
            name = (entry / "comm").read_text().strip()
            if name in SUSPECTS and int(entry.name) not in ours:
                found.append(f"{name} (process {entry.name})")
    return found[:most]


def described(pid: int, proc: Path = Path("/proc")) -> str:
    """A process in words: its name, its number and its unit."""
    try:
        name = (proc / f"{pid}/comm").read_text().strip()
        groups = (proc / f"{pid}/cgroup").read_text()
    except OSError:
        return f"process {pid}, which has ended"
    units = [part for line in groups.splitlines() for part in line.split("/") if part.endswith((".service", ".scope"))]
    return f"{name} (process {pid}{f' of {units[-1]}' if units else ''})"


class WriteWatch:
    """Notes who writes files of some directories. Raises OSError where the kernel does not tell.

    ``ours`` are processes whose writes are no news, and neither are those of their children. Of a process that ended before its
    write was taken in, neither name nor parent can be told: it is noted by its number.
    """

    def __init__(self, ours: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._ours = frozenset(ours)
        self._proc = proc
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.fanotify_mark.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p]
        self._fd = self._libc.fanotify_init(_FAN_CLOEXEC, os.O_RDONLY | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), f"fanotify: {os.strerror(ctypes.get_errno())}")
        self._seen: dict[str, str] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._take_in, daemon=True).start()

    def watch(self, directories: Iterable[str]) -> None:
        """Watch these too; one that does not exist is left out. To watch one again is cheap, and it may have been made anew."""
        mask = _FAN_MODIFY | _FAN_EVENT_ON_CHILD
        for directory in directories:
            self._libc.fanotify_mark(self._fd, _FAN_MARK_ADD, mask, _AT_FDCWD, os.fsencode(directory))

    def seen(self) -> dict[str, str]:
        """Who wrote which file last, in words, since the last call."""
        with self._lock:
            seen, self._seen = self._seen, {}
        return seen

    def _take_in(self) -> None:
        while True:
            for path, pid in _events(os.read(self._fd, _BUFFER_BYTES)):
                if pid not in self._ours and _parent(pid, self._proc) not in self._ours:
                    who = described(pid, self._proc)
                    with self._lock:
                        self._seen.pop(path, None)
                        self._seen[path] = who
                        while len(self._seen) > _MOST_SEEN:
                            del self._seen[next(iter(self._seen))]


def _events(data: bytes) -> Iterator[tuple[str, int]]:
    """File and process of each event; the descriptors that come with them are closed."""
    while len(data) >= _EVENT.size:
        length, _version, _reserved, _metadata, _mask, fd, pid = _EVENT.unpack_from(data)
        data = data[length:]
        if fd >= 0:  # else the queue has overflowed
            try:
                path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - for every write of anybody
            finally:
                os.close(fd)
            yield path, pid


def _parent(pid: int, proc: Path) -> int:
    try:
        return int((proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


class WritersKnob(Sensor):
    """What the process for upkeep is asked: its value is which directories to watch; what is read is who wrote there.

    Written: ``{"directories": [...], "guess": false}``; with ``guess`` the running suspects are named too. Read: ``{"seen": {file:
    who}, "suspects": [...], "exact": true}``, ``exact`` being whether the kernel tells of every write. It is never journalled.
    """

    def __init__(self, address: tuple[str, ...] = ()) -> None:
        self.ref = KnobRef(KIND, address)
        self._watch: WriteWatch | None = None
        self._refused = False
        self._guess = False

    def read(self) -> str | None:
        """What was seen since the last read."""
        seen = {} if self._watch is None else self._watch.seen()
        return json.dumps({"seen": seen, "suspects": suspects() if self._guess else [], "exact": self._watch is not None})

    def write(self, value: str) -> None:
        """Watch these directories."""
        asked = json.loads(value)
        self._guess = bool(asked["guess"])
        if self._watch is None and not self._refused:
            try:
                self._watch = WriteWatch((os.getpid(), os.getppid()))
            except OSError as error:
                self._refused = True
                if error.errno in {errno.EMFILE, errno.ENOMEM}:
                    raise
        if self._watch is not None:
            self._watch.watch(asked["directories"])


KINDS: KnobKinds = {KIND: KnobKind(WritersKnob, slow=True)}

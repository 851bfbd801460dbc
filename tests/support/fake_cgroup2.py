"""A v2 tree of ordinary files with a kernel's behaviour where that matters: what a write refuses, and what it changes elsewhere."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actuators.cgroup.files import KeptFile
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.v2_memory import MemoryKnob, ShrinkRule
from parties.knob import KnobError
from parties.units import format_cpu_list, parse_cpu_list

CPUS = range(4)
PAGE_BYTES = 4096
CORE = {"cgroup.procs": "", "cgroup.freeze": "0", "cgroup.events": "populated 0\nfrozen 0", "cpu.stat": "usage_usec 0\nuser_usec 0"}
OF_CONTROLLER = {
    "cpu": {"cpu.max": "max 100000", "cpu.weight": "100", "cpu.idle": "0"},
    "cpuset": {"cpuset.cpus": "", "cpuset.cpus.effective": "0-3", "cpuset.mems": "", "cpuset.mems.effective": "0"},
    "memory": {
        "memory.high": "max",
        "memory.max": "max",
        "memory.current": "0",
        "memory.stat": "anon 0\nfile 0\ninactive_file 0",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0",
        "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0",
        "memory.reclaim": "",
    },
    "io": {"io.max": "", "io.stat": ""},
}


class Cgroup2:
    """The tree below ``root``/sys/fs/cgroup, with the kernel's side of every write through ``KeptFile``.

    ``faults`` maps the number of a write (from 0) to the errno that it fails with. ``log`` has every write, ``(path, text)``.
    ``unreclaimable`` bytes stay whatever is asked. ``after_write`` is called after each one, for what others do meanwhile. The
    clock that memory knobs look at is ``now_ns``; they sleep by moving it, and ``while_asleep`` is called then.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, controllers: tuple[str, ...] = tuple(OF_CONTROLLER)) -> None:
        self.root = root
        self.tree = root / "sys/fs/cgroup"
        self.faults: dict[int, int] = {}
        self.log: list[tuple[str, str]] = []
        self.unreclaimable = 0
        self.after_write: Callable[[str, str], None] = lambda _name, _text: None
        self.while_asleep: Callable[[], None] = lambda: None
        self.now_ns = 0
        self._write_plain = KeptFile._write_all
        self._read_plain = KeptFile.raw
        self.tree.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
        self.put(self.tree, "cgroup.controllers", " ".join(controllers))
        self.put(self.tree, "cgroup.subtree_control", "")
        self.put(self.tree, "cpuset.cpus.effective", format_cpu_list(CPUS))
        clockwork = {"rule": ShrinkRule(), "clock": self._clock, "sleep": self._sleep}
        monkeypatch.setattr(MemoryKnob.__init__, "__kwdefaults__", clockwork)
        monkeypatch.setattr(KeptFile, "_write_all", lambda file, fd, data: self._write(file, fd, data))  # noqa: PLW0108 (binds the file)
        monkeypatch.setattr(KeptFile, "raw", lambda file: self._read(file))  # noqa: PLW0108 (the same)

    @property
    def hierarchies(self) -> Hierarchies:
        return Hierarchies.find(self.root)

    def make(self, path: str, *enabled: str, pids: str = "") -> Path:
        """A group with everything above it; ``enabled`` controllers are passed on all the way."""
        place = self.tree
        for part in path.strip("/").split("/"):
            for name in enabled:
                self._enable(place, name)
            place /= part
            if not place.is_dir():
                place.mkdir()
                for name, text in CORE.items():
                    self.put(place, name, text)
                self.put(place, "cgroup.subtree_control", "")
                self._inherit(place)
        self.put(place, "cgroup.procs", pids)
        if pids:
            self.put(place, "cgroup.events", "populated 1\nfrozen 0")
        return place

    def use(self, place: Path, in_use: int) -> None:
        """Memory that the group uses."""
        self.put(place, "memory.current", str(in_use))

    def bump(self, place: Path, name: str, count: int = 1) -> None:
        """Count an event of memory.events."""
        lines = [line.split() for line in self.text(place, "memory.events").splitlines()]
        self.put(place, "memory.events", "\n".join(f"{key} {int(n) + (count if key == name else 0)}" for key, n in lines))

    def stall(self, place: Path, total_ns: int, avg10: float = 0.0) -> None:
        """Memory pressure so far, and of the last ten seconds in percent."""
        line = f"avg10={avg10:.2f} avg60=0.00 avg300=0.00 total={total_ns // 1000}"
        self.put(place, "memory.pressure", f"some {line}\nfull {line}")

    def snapshot(self) -> dict[str, str]:
        """Every file, which restore has to bring back."""
        return {str(path.relative_to(self.tree)): path.read_text() for path in sorted(self.tree.rglob("*")) if path.is_file()}

    @staticmethod
    def text(place: Path, name: str) -> str:
        return (place / name).read_text().strip()

    @staticmethod
    def put(place: Path, name: str, text: str) -> None:
        (place / name).write_text(text + "\n")

    def _clock(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def _sleep(self, duration_ns: int) -> None:
        self.now_ns += duration_ns
        self.while_asleep()

    def _read(self, file: KeptFile) -> bytes:
        if file._fd >= 0 and not file.path.exists():  # the kernel's answer from a descriptor that outlived its group
            file.close()
            raise KnobError(errno.ENODEV, f"{file.path}: cannot read: {os.strerror(errno.ENODEV)}")
        return self._read_plain(file)

    def _write(self, file: KeptFile, fd: int, data: bytes) -> None:
        number, text = len(self.log), data.decode().strip()
        self.log.append((str(file.path.relative_to(self.tree)), text))
        if number in self.faults:
            raise OSError(self.faults[number], os.strerror(self.faults[number]))
        handler = {
            "cgroup.subtree_control": self._subtree_control,
            "cpuset.cpus": self._cpus,
            "cpu.max": self._bandwidth,
            "cpu.weight": self._weight,
            "cpu.idle": self._idle,
            "memory.high": self._high,
            "memory.max": self._max,
            "memory.reclaim": self._reclaim,
            "io.max": self._io,
        }.get(file.path.name)
        if handler is None:
            file._ordinary = True
            self._write_plain(file, fd, data)
        else:
            handler(file.path.parent, text)
        self.after_write(file.path.name, text)

    def _subtree_control(self, place: Path, word: str) -> None:
        sign, name = word[0], word[1:]
        on = self.text(place, "cgroup.subtree_control").split()
        if sign == "-":
            below = [child for child in place.iterdir() if child.is_dir() and name in self.text(child, "cgroup.subtree_control")]
            _refuse(errno.EBUSY, bool(below))
            self.put(place, "cgroup.subtree_control", " ".join(other for other in on if other != name))
            for child in place.iterdir():
                for file in OF_CONTROLLER[name] if child.is_dir() else ():
                    (child / file).unlink(missing_ok=True)
                if child.is_dir():
                    self._inherit(child)
            return
        _refuse(errno.ENOENT, name not in self.text(place, "cgroup.controllers").split())
        _refuse(errno.EBUSY, place != self.tree and bool(self.text(place, "cgroup.procs")))
        self._enable(place, name)

    def _enable(self, place: Path, name: str) -> None:
        on = self.text(place, "cgroup.subtree_control").split()
        if name not in on:
            self.put(place, "cgroup.subtree_control", " ".join(sorted([*on, name])))
        for child in place.iterdir():
            if child.is_dir():
                self._inherit(child)

    def _inherit(self, place: Path) -> None:
        enabled = self.text(place.parent, "cgroup.subtree_control").split()
        self.put(place, "cgroup.controllers", " ".join(enabled))
        for controller in enabled:
            for name, text in OF_CONTROLLER[controller].items():
                if not (place / name).exists():
                    self.put(place, name, text)

    def _cpus(self, place: Path, text: str) -> None:
        cpus = parse_cpu_list(text)
        _refuse(errno.ERANGE, any(cpu > 127 for cpu in cpus))
        _refuse(errno.ENOSPC, not cpus and bool(self.text(place, "cpuset.cpus")) and bool(self.text(place, "cgroup.procs")))
        self.put(place, "cpuset.cpus", format_cpu_list(cpus))
        for group in (place, *(child for child in sorted(place.rglob("*")) if child.is_dir())):
            if (group / "cpuset.cpus").exists():
                above = parse_cpu_list(self.text(group.parent, "cpuset.cpus.effective"))
                asked = parse_cpu_list(self.text(group, "cpuset.cpus"))
                self.put(group, "cpuset.cpus.effective", format_cpu_list(set(asked) & set(above) or above))

    def _bandwidth(self, place: Path, text: str) -> None:
        quota, period = text.split()
        _refuse(errno.EINVAL, quota != "max" and int(quota) < 1000)
        _refuse(errno.EINVAL, not 1000 <= int(period) <= 1_000_000)
        self.put(place, "cpu.max", text)

    def _weight(self, place: Path, text: str) -> None:
        _refuse(errno.EINVAL, self.text(place, "cpu.idle") == "1" if (place / "cpu.idle").exists() else False)
        _refuse(errno.ERANGE, not 1 <= int(text) <= 10_000)
        self.put(place, "cpu.weight", text)

    def _idle(self, place: Path, text: str) -> None:
        if self.text(place, "cpu.idle") != text:
            self.put(place, "cpu.weight", "0" if text == "1" else "100")
        self.put(place, "cpu.idle", text)

    def _shrink(self, place: Path, limit: int) -> None:
        in_use = int(self.text(place, "memory.current"))
        self.use(place, max(min(in_use, limit), min(in_use, self.unreclaimable)))

    def _high(self, place: Path, text: str) -> None:
        self.put(place, "memory.high", _rounded(text))
        if text != "max":
            self._shrink(place, int(text))

    def _max(self, place: Path, text: str) -> None:
        self.put(place, "memory.max", _rounded(text))
        if text != "max":
            self._shrink(place, int(text))
            if int(self.text(place, "memory.current")) > int(text):
                self.bump(place, "oom")
                self.bump(place, "oom_kill")

    def _reclaim(self, place: Path, text: str) -> None:
        before = int(self.text(place, "memory.current"))
        self._shrink(place, before - int(text))
        _refuse(errno.EAGAIN, before - int(self.text(place, "memory.current")) < int(text))

    def _io(self, place: Path, text: str) -> None:
        device, *settings = text.split()
        _refuse(errno.ENODEV, device not in ("8:0", "8:16"))
        lines = {line.split()[0]: line.split()[1:] for line in self.text(place, "io.max").splitlines()}
        keys = dict(field.split("=") for field in lines.get(device, ["rbps=max", "wbps=max", "riops=max", "wiops=max"]))
        for setting in settings:
            key, value = setting.split("=")
            _refuse(errno.EINVAL, key not in keys or value == "0")
            keys[key] = value
        lines[device] = [f"{key}={value}" for key, value in keys.items()]
        limited = {name: fields for name, fields in lines.items() if any(not field.endswith("=max") for field in fields)}
        self.put(place, "io.max", "\n".join(f"{name} {' '.join(fields)}" for name, fields in limited.items()))


def remove(place: Path) -> None:
    """The group goes, with all below it."""
    shutil.rmtree(place)


def _rounded(text: str) -> str:
    return text if text == "max" else str(int(text) // PAGE_BYTES * PAGE_BYTES)


def _refuse(number: int, when: bool) -> None:  # noqa: FBT001 (reads as a sentence)
    if when:
        raise OSError(number, os.strerror(number))

"""Runs in the guest: control groups v2 as the kernel enforces them. Each check makes groups below a directory, and removes them.

``base`` is a path below the v2 mount that does not exist yet, "/checks"; controllers are enabled for it from the root down, which
systemd takes back at its next reload. Enforcement is asserted as a ratio, since the guest's clock is slow and uneven.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actuators.cgroup.group import ENABLED, IDLE_CLASS, Controller, Direction
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.layer import find_layer
from actuators.cgroup.v2 import ControlGroupV2, GroupLayerV2
from actuators.disk import find_disk
from actuators.registry import KINDS
from monitors.pressure import PressureMonitor
from parties.enforcer import Enforcer
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, Knob, KnobError, KnobWrite
from parties.model import MoveStatus
from parties.restore import restore
from parties.slow_writer import SlowWriter

MIB = 1 << 20
CONTROLLERS = ("cpu", "cpuset", "io", "memory")
_NO_SYSTEMD = Path("/nonexistent")  # a file system root in which systemd does not own the tree
_BURN = "while True: pass"
_HOLD = """
import sys, time
held = bytearray(int(sys.argv[1]))
held[::4096] = b"x" * len(held[::4096])
print(".", flush=True)
time.sleep(600)
"""
_READ_AGAIN = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
for turn in range(10**9):
    sum(mapped[at] for at in range(0, len(mapped), 4096))
    if turn == 0:
        print(".", flush=True)
"""


@dataclass
class Scene:
    """Groups of a check's own, and the programs in them."""

    layer: GroupLayerV2
    base: str
    enabled: bool = True
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def tree(self) -> Path:
        """The v2 mount."""
        assert self.layer.hierarchies.v2 is not None
        return self.layer.hierarchies.v2

    def group(self, name: str) -> ControlGroupV2:
        """A group that is made if need be."""
        group = self.layer.group(f"{self.base}/{name}")
        (self.tree / group.path[1:]).mkdir(parents=True, exist_ok=True)
        if self.enabled:
            for knob in group.enabling(Controller):
                knob.write(ENABLED)
        return group

    def place(self, group: ControlGroupV2) -> Path:
        """Its directory."""
        return self.tree / group.path[1:]

    def run(self, group: ControlGroupV2, code: str, *arguments: str, ready: bool = False) -> subprocess.Popen[bytes]:
        """A Python program in the group; ``ready`` waits until it prints a line."""
        join = f'echo $$ > {self.place(group)}/cgroup.procs; exec {sys.executable} -S -c "$@"'
        process = subprocess.Popen(["sh", "-c", join, "sh", code, *arguments], stdout=subprocess.PIPE)
        self.running.append(process)
        if ready:
            assert process.stdout is not None
            assert process.stdout.readline() == b".\n"
        else:
            _until(lambda: process.pid in group.pids() or process.poll() is not None, "the program is not in its group")
        return process

    def close(self) -> None:
        """Kill what runs, and remove the groups."""
        top = self.tree / self.base.strip("/")
        (top / "cgroup.kill").write_text("1")
        for process in self.running:
            process.wait()
        for place in (*sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True), top):
            _until(lambda place=place: _removed(place), f"{place} cannot be removed")


@contextlib.contextmanager
def scene(base: str, *, enabled: bool = True) -> Iterator[Scene]:
    """The groups of one check."""
    made = Scene(GroupLayerV2(Hierarchies.find(), _NO_SYSTEMD), base, enabled)
    made.group("")
    try:
        yield made
    finally:
        made.close()


def check_the_layer_is_v2(base: str) -> Mapping[str, object]:
    """A machine without v1 gets the plain v2 layer, which lacks nothing here."""
    layer = find_layer(Hierarchies.find())
    assert isinstance(layer, GroupLayerV2), layer
    assert layer.lacks(Controller) == "", layer.lacks(Controller)
    return {"base": base, "systemd owns the tree": bool(layer.group("/system.slice/x").lacks([Controller.CPUSET]))}


def check_cpus_are_pinned_and_change_live(base: str) -> None:
    """The affinity of a running process follows cpuset.cpus; what the group above does not have is refused and taken back."""
    with scene(base) as s:
        group, above = s.group("rack/web"), s.group("rack")
        burner = s.run(group, _BURN)
        for cpus in ("2", "3", "1-2"):
            group.cpus.write(cpus)
            assert group.cpus.read() == cpus
            assert _field(burner.pid, "Cpus_allowed_list") == cpus
        above.cpus.write("1-2")
        try:
            group.cpus.write("2-3")
        except KnobError as error:
            assert "only 2" in str(error), error  # noqa: PT017 (no pytest in the guest)
        else:
            raise AssertionError("CPUs that the group above has not were taken")
        assert group.cpus.read() == "1-2"
        above.cpus.write("2")
        assert group.cpus.read() == "1-2 in force: 2"
        assert group.cpus_in_force() == "2"
        group.cpus.restore("inherited")  # which the kernel does not let be empty under a process
        assert group.cpus.same("inherited", group.cpus.read())
        assert _field(burner.pid, "Cpus_allowed_list") == "2"


def check_bandwidth_is_enforced(base: str) -> Mapping[str, float]:
    """A quarter of a CPU gives a quarter of the time, changed while the process runs."""
    with scene(base) as s:
        group = s.group("web")
        s.run(group, _BURN)
        whole = _cpu_share(group)
        group.cpu_bandwidth.write("25000 100000")
        quarter = _cpu_share(group)
        assert 2 < whole / quarter < 8, (whole, quarter)
        return {"whole": whole, "quarter": quarter}


def check_the_idle_class_gives_way(base: str) -> Mapping[str, float]:
    """On one CPU a job in the idle class gets next to nothing beside a service, and its weight comes back.

    With that weight it would get three times as much as the service. What a vCPU waits is accounted to whoever is on it.
    """
    with scene(base) as s:
        web, job = s.group("web"), s.group("job")
        for group in (web, job):
            group.cpus.write("1")
            s.run(group, _BURN)
        job.cpu_class.write("weight=300")
        before = job.cpu_class.read()
        job.cpu_class.write(IDLE_CLASS)
        used = {group.path: group.cpu_usage_ns() or 0 for group in (web, job)}
        time.sleep(3)
        gained = {group.path: (group.cpu_usage_ns() or 0) - used[group.path] for group in (web, job)}
        assert gained[web.path] > 3 * gained[job.path], gained
        job.cpu_class.restore(before)
        assert job.cpu_class.read() == before
        assert (s.place(job) / "cpu.weight").read_text() == "300\n"
        return {"web per job": gained[web.path] / max(1, gained[job.path])}


def check_memory_in_use_is_not_taken(base: str) -> Mapping[str, str]:
    """A limit under what cannot be reclaimed is refused with the figures: nobody is killed, and both limits are as before."""
    with scene(base) as s:
        group = s.group("web")
        group.memory_limit.write(str(300 * MIB))
        before = group.memory_limit.read()
        holder = s.run(group, _HOLD, str(120 * MIB), ready=True)
        message = _refused(group.memory_limit, str(60 * MIB))
        assert "cannot reclaim that much" in message, message
        assert group.memory_limit.read() == before
        assert holder.poll() is None
        assert _events(s, group)["oom_kill"] == 0
        return {"message": message}


def check_page_cache_is_taken(base: str) -> Mapping[str, int]:
    """What the kernel can drop is no obstacle; use is under the limit afterwards, and raising and unsetting bring all back."""
    with scene(base) as s, tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        group = s.group("web")
        copy = "import sys; open(sys.argv[1], 'wb').write(bytes(100 << 20)); print('.', flush=True); __import__('time').sleep(600)"
        s.run(group, copy, f"{directory}/file", ready=True)
        os.sync()
        in_use = int((s.place(group) / "memory.current").read_text())
        assert in_use > 90 * MIB, in_use
        group.memory_limit.write(str(50 * MIB))
        left = int((s.place(group) / "memory.current").read_text())
        assert left <= 50 * MIB
        assert group.memory_limit.read() == str(50 * MIB)
        group.memory_limit.write(str(80 * MIB))
        group.memory_limit.restore(None)
        assert (s.place(group) / "memory.max").read_text() == (s.place(group) / "memory.high").read_text() == "max\n"
        assert _events(s, group)["oom_kill"] == 0
        return {"in use before": in_use, "after": left}


def check_a_shrink_that_hurts_is_taken_back(base: str) -> Mapping[str, str]:
    """A service that reads its file again and again waits for memory once it no longer fits: refused, alive, limits as before."""
    with scene(base) as s, tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        group = s.group("web")
        file = Path(directory) / "file"
        file.write_bytes(os.urandom(MIB) * 100)
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        group.memory_limit.write(str(300 * MIB))
        before = group.memory_limit.read()
        reader = s.run(group, _READ_AGAIN, str(file), ready=True)
        message = _refused(group.memory_limit, str(60 * MIB))
        assert group.memory_limit.read() == before
        assert reader.poll() is None
        assert _events(s, group)["oom_kill"] == 0
        return {"message": message}


def check_disk_is_throttled(base: str, device: str) -> Mapping[str, float]:
    """Reading past the cache takes several times as long at 1 MiB/s, and another key of the device's line stays."""
    with scene(base) as s:
        group, number = s.group("web"), find_disk(device).number
        (s.place(group) / "io.max").write_text(f"{number} wiops=9000")
        line = (s.place(group) / "io.max").read_text()
        free_s = _read_s(s, group, device)
        throttle = group.disk_throttle(number, Direction.READ)
        throttle.write(str(MIB))
        counted = group.disk_bytes(number) or 0
        slow_s = _read_s(s, group, device)
        assert slow_s > 3 * free_s, (free_s, slow_s)
        assert (group.disk_bytes(number) or 0) - counted >= 8 * MIB
        assert "wiops=9000" in (s.place(group) / "io.max").read_text()
        throttle.restore(None)
        assert (s.place(group) / "io.max").read_text() == line
        return {"free": free_s, "throttled": slow_s}


def check_frozen_is_stopped(base: str) -> None:
    """A frozen group uses no time, also one below it, which cannot be thawed alone; thawed, both go on."""
    with scene(base) as s:
        above, group = s.group("batch"), s.group("batch/job")
        s.run(group, _BURN)
        above.freezer.write("FROZEN")
        _until(lambda: "frozen 1" in (s.place(group) / "cgroup.events").read_text(), "the group does not freeze")
        assert _cpu_share(group) < 0.01
        assert "above it is frozen" in _refused(group.freezer, "THAWED")
        above.freezer.write("THAWED")
        assert _cpu_share(group) > 0.05


def check_controllers_are_enabled_and_disabled_again(base: str) -> None:
    """On the way to a group that has none; not over a group with processes; disabled newest first, nothing is left."""
    with scene(base, enabled=False) as s:
        group = s.group("rack/web")
        before = _subtrees(s)
        assert (group.memory_limit.read(), group.cpus.read(), group.cpu_class.read()) == (None, "inherited", None)
        knobs = [(knob, knob.read()) for knob in group.enabling(Controller)]
        for knob, _ in knobs:
            knob.write(ENABLED)
        group.memory_limit.write(str(64 * MIB))
        assert group.memory_limit.read() == str(64 * MIB)
        busy = s.group("rack/busy")
        s.run(busy, _BURN)
        deeper = s.group("rack/busy/deeper")
        refusing = deeper.enabling([Controller.MEMORY])[-1]
        assert "has processes of its own" in _refused(refusing, ENABLED)
        group.memory_limit.restore(None)
        for knob, old in reversed(knobs):
            if knob.read() != old:
                knob.restore(old)
        assert {path: text for path, text in _subtrees(s).items() if path in before} == before
        assert group.memory_limit.read() is None


def check_restore_brings_every_file_back(base: str, device: str) -> Mapping[str, int]:
    """Every knob through the enforcer, its journal and the slow writer; after a restore every file that can be set is as before."""
    with scene(base, enabled=False) as s, tempfile.TemporaryDirectory() as directory:
        group, number = s.group("rack/web"), find_disk(device).number
        before, root = _files(s), _subtrees(s)
        values: list[tuple[Knob, str]] = [(knob, ENABLED) for knob in group.enabling(Controller)]
        values += [(group.cpus, "1-2"), (group.mems, "0"), (group.cpu_bandwidth, "5000 10000"), (group.cpu_class, IDLE_CLASS)]
        values += [(group.disk_throttle(number, direction), str(MIB)) for direction in Direction]
        values += [(group.memory_limit, str(64 * MIB)), (group.freezer, "FROZEN")]
        writer = SlowWriter()
        try:
            enforcer = Enforcer(Journal(Path(directory), started_unix_ns=time.time_ns()), writer)
            plan = [KnobWrite(knob, value, "web", Effect.TAKE, slow=knob.ref.kind[-6:] == "memory") for knob, value in values]
            outcome = enforcer.apply(plan, time.monotonic_ns())
            while outcome.status is MoveStatus.PENDING:
                time.sleep(0.05)
                outcome = next((ended for _, ended in enforcer.poll(time.monotonic_ns())), outcome)
            assert outcome.status is MoveStatus.DONE, outcome
            assert not enforcer.drift(time.monotonic_ns())
        finally:
            writer.close()
        report = restore(Path(directory) / JOURNAL_NAME, KINDS)
        assert report.complete, report
        assert _files(s) == before
        assert _subtrees(s) == root
        return {"knobs": len(values)}


def check_waiting_for_a_cpu_is_seen(base: str) -> Mapping[str, float]:
    """Two processes on one CPU wait for it much of the time; a group without processes tells nothing."""
    with scene(base) as s:
        web, empty = s.group("web"), s.group("empty")
        web.cpus.write("1")
        monitor = PressureMonitor(s.tree, {"web": (web.path,), "empty": (empty.path,)})
        s.run(web, _BURN)
        s.run(web, _BURN)
        monitor.sample(time.monotonic_ns())
        time.sleep(3)
        waits = monitor.sample(time.monotonic_ns())
        monitor.close()
        assert waits["empty"].cpu is None, waits
        assert waits["web"].cpu is not None
        assert waits["web"].cpu > 0.2, waits
        return {"web": waits["web"].cpu}


def _cpu_share(group: ControlGroupV2, seconds: float = 2) -> float:
    """CPUs used over some time."""
    used, begun = group.cpu_usage_ns() or 0, time.monotonic()
    time.sleep(seconds)
    return ((group.cpu_usage_ns() or 0) - used) / 1e9 / (time.monotonic() - begun)


def _read_s(s: Scene, group: ControlGroupV2, device: str) -> float:
    """How long dd takes to read 8 MiB of a disk past the cache, by its own account."""
    read = f"import os; os.dup2(1, 2); os.execvp('dd', ['dd', 'if={device}', 'of=/dev/null', 'bs=1M', 'count=8', 'iflag=direct'])"
    told, _ = s.run(group, read).communicate()
    return float(told.decode().split(" s, ")[0].rsplit(", ", 1)[1])


def _refused(knob: Knob, value: str) -> str:
    """The message of a write that is refused as something in use."""
    try:
        knob.write(value)
    except KnobError as error:
        assert error.errno == errno.EBUSY, error  # noqa: PT017 (no pytest in the guest)
        return str(error)
    raise AssertionError(f"{knob.ref} took {value}")


def _events(s: Scene, group: ControlGroupV2) -> dict[str, int]:
    lines = (s.place(group) / "memory.events").read_text().splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def _field(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))


def _subtrees(s: Scene) -> dict[str, str]:
    """What every group from the root to the lowest passes on."""
    top = s.tree / s.base.strip("/")
    places = (s.tree, top, *(path for path in sorted(top.rglob("*")) if path.is_dir()))
    return {str(place): (place / "cgroup.subtree_control").read_text() for place in places}


def _files(s: Scene) -> dict[str, str]:
    """Every value of the groups that can be set."""
    found = {}
    for file in sorted((s.tree / s.base.strip("/")).rglob("*")):
        counts = file.name.endswith(("procs", "threads", "pressure", "peak")) or file.name == "memory.reclaim"
        if file.is_file() and file.stat().st_mode & 0o600 == 0o600 and not counts:
            found[str(file)] = file.read_text()
    return found


def _removed(place: Path) -> bool:
    try:
        place.rmdir()
    except OSError:
        return False  # a process is still on its way out
    return True


def _until(condition: object, trouble: str, limit_s: float = 200) -> None:
    """Wait until it holds."""
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, trouble
        time.sleep(0.02)

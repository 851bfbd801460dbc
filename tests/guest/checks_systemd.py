"""Runs in the guest: units and scopes as the real systemd keeps them. Each check makes units of its own, and removes them.

Through the enforcer, its journal, the slow writer's process and restore, as in the daemon. ``device`` is a whole disk, "/dev/vdc".
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from actuators.cgroup.group import FROZEN, IDLE_CLASS, THAWED, Direction
from actuators.cgroup.hierarchy import Hierarchies
from actuators.cgroup.layer import find_layer
from actuators.cgroup.naming import GroupNames, resolve
from actuators.disk import find_disk
from actuators.registry import KINDS
from actuators.systemd.layer import SystemdLayer
from parties.enforcer import Enforcer
from parties.foreign import DriftState
from parties.journal import JOURNAL_NAME, Journal
from parties.knob import Effect, Knob, KnobWrite
from parties.model import MoveStatus
from parties.restore import restore
from parties.settings import ControlSettings, ServiceSettings
from parties.slow_writer import SlowWriter

MIB = 1 << 20
TREE = Path("/sys/fs/cgroup")
UNIT_FILES = Path("/run/systemd/system")
DROP_INS = (Path("/run/systemd/system.control"), Path("/run/systemd/transient"))
WEB, JOB = "check-web.service", "check-job.service"
_SETTINGS = (
    "cpuset.cpus",
    "cpuset.mems",
    "cpu.max",
    "cpu.weight",
    "cpu.idle",
    "memory.high",
    "memory.max",
    "io.max",
    "cgroup.freeze",
)


class Scene:
    """Two running units, and a daemon's way to their knobs."""

    def __init__(self, directory: Path, units: Mapping[str, str]) -> None:
        self.directory, self.units = directory, units
        hierarchies = Hierarchies.find()
        names = GroupNames(Path("/"), hierarchies)
        self.paths = {unit: names.of_unit(unit)[0] for unit in units}
        assert all(self.paths.values()), f"not found: {self.paths}"
        self.layer = SystemdLayer(find_layer(hierarchies), names.units_among(self.paths.values()))
        self.writer = SlowWriter()
        self.enforcer = Enforcer(Journal(directory, started_unix_ns=time.time_ns()), self.writer, kinds=KINDS)
        self.web, self.job = (self.layer.group(self.paths[unit]) for unit in list(units)[:2])

    def apply(self, *values: tuple[Knob, str]) -> None:
        """A plan, to its end."""
        plan = [KnobWrite(knob, value, "web", Effect.NEUTRAL) for knob, value in values]
        outcome = self.enforcer.apply(plan, time.monotonic_ns())
        while outcome.status is MoveStatus.PENDING:
            time.sleep(0.01)
            outcome = next((ended for _, ended in self.enforcer.poll(time.monotonic_ns())), outcome)
        assert outcome.status is MoveStatus.DONE, outcome

    def everything(self, device: str) -> list[tuple[Knob, str]]:
        """Every kind of knob, on both units."""
        number = find_disk(device).number
        return [
            (self.web.mems, "0"),
            (self.web.cpus, "1-2"),
            (self.job.cpus, "3"),
            (self.web.cpu_bandwidth, "5000 10000"),
            (self.job.cpu_class, IDLE_CLASS),
            (self.web.memory_limit, str(256 * MIB)),
            *((self.job.disk_throttle(number, direction), str(MIB)) for direction in Direction),
            (self.job.freezer, FROZEN),
        ]

    def restored(self) -> None:
        """All is put back, and nothing was left out."""
        report = restore(self.directory / JOURNAL_NAME, KINDS)
        assert report.complete, report

    def state(self) -> dict[str, str]:
        """Every setting of both units, which controllers are passed on, and every runtime drop-in.

        A CPU list of all that the slice has is as good as none: the kernel empties none under processes. The root's own
        cgroup.subtree_control is left out: systemd may keep a controller enabled there that no slice passes on any more.
        """
        groups = [TREE / path.strip("/") for path in self.paths.values()]
        files = [group / name for group in groups for name in _SETTINGS]
        files += [place / "cgroup.subtree_control" for place in {group.parent for group in groups}]
        files += [file for place in DROP_INS for file in place.rglob("*") if file.is_file()]
        found = {str(file): " ".join(sorted(file.read_text().split())) for file in files if file.exists()}
        return {
            name: "" if name.rpartition("/")[2].startswith("cpuset.") and text == _all(name) else text
            for name, text in found.items()
        }


@contextlib.contextmanager
def scene(*, settings: str = "", transient: bool = False) -> Iterator[Scene]:
    """Start the units, and remove them afterwards with whatever a failed check left."""
    units = {"check-web.scope": "", "check-job.scope": ""} if transient else {WEB: settings, JOB: ""}
    try:
        for unit, extra in units.items():
            if transient:
                subprocess.Popen(["systemd-run", "--quiet", "--scope", "--collect", f"--unit={unit}", "sleep", "600"])
            else:
                (UNIT_FILES / unit).write_text(f"[Service]\nExecStart=/bin/sleep infinity\n{extra}\n")
        if not transient:
            _systemctl("daemon-reload")
            _systemctl("start", *units)
        _until(lambda: all(_systemctl("is-active", unit, check=False) == "active" for unit in units), "the units do not start")
        with tempfile.TemporaryDirectory() as directory:
            s = Scene(Path(directory), units)
            try:
                yield s
            finally:
                s.writer.close()
                restore(s.directory / JOURNAL_NAME, KINDS)
    finally:
        _systemctl("stop", *units, check=False)
        for unit in units:
            (UNIT_FILES / unit).unlink(missing_ok=True)
            for place in (*DROP_INS, UNIT_FILES):
                for file in (place / f"{unit}.d").glob("*"):
                    file.unlink()
                with contextlib.suppress(OSError):
                    (place / f"{unit}.d").rmdir()
        _systemctl("daemon-reload")


def check_units_are_found_by_name() -> dict[str, str]:
    """A unit that runs by its name, with or without its ending; a wrong one with the nearest name."""
    with scene() as s:
        resolved = resolve(ControlSettings((ServiceSettings("web", 1, units=("check-web", "chekc-job")),)))
        assert resolved.settings.services[0].cgroups == (s.paths[WEB],)
        assert resolved.units == {s.paths[WEB]: WEB}
        (problem,) = resolved.problems
        assert f'did you mean "{JOB}"' in problem.text
        return dict(s.paths)


def check_properties_are_in_force(device: str) -> None:
    """Every kind arrives in the kernel, and the process runs where it is told to."""
    with scene() as s:
        values = s.everything(device)
        s.apply(*values)
        assert all(knob.same(value, knob.read()) for knob, value in values)
        pid = s.web.pids()[0]
        assert os.sched_getaffinity(pid) == {1, 2}
        assert _systemctl("show", WEB, "--property=AllowedCPUs", "--value") == "1-2"


def check_reload_and_reexec_undo_nothing(device: str) -> None:
    """daemon-reload twice and daemon-reexec once: every value is as written, the freezer too, and the slow writer goes on."""
    with scene() as s:
        values = s.everything(device)
        s.apply(*values)
        for command in ("daemon-reload", "daemon-reexec", "daemon-reload"):
            _systemctl(command)
            _systemctl("is-active", WEB)
            time.sleep(0.5)  # what a reload changes is written after it has answered
            assert s.enforcer.drift(time.monotonic_ns()) == [], command
        s.apply((s.web.cpus, "0-1"), (s.job.freezer, THAWED))


def check_undo_leaves_nothing(device: str) -> dict[str, int | str]:
    """Values, passed-on controllers and drop-ins are as before; a further daemon-reload changes nothing more."""
    with scene() as s:
        before = s.state()
        s.apply(*s.everything(device))
        changed = s.state()
        assert changed != before
        s.restored()
        _until(lambda: s.state() == before, lambda: f"differs: {set(s.state().items()) ^ set(before.items())}")
        _systemctl("daemon-reload")
        time.sleep(0.5)
        assert s.state() == before
        assert _systemctl("show", WEB, "--property=NeedDaemonReload", "--value") == "no"
        passed_on = (TREE / "cgroup.subtree_control").read_text().strip()
        return {"files that had changed": len(set(changed.items()) ^ set(before.items())), "the root passes on": passed_on}


def check_undo_keeps_what_others_have_set(device: str) -> None:
    """A unit's own limits come back from its file, and a property that somebody had set at run time with its drop-in."""
    with scene(settings="CPUQuota=40%\nMemoryMax=900M") as s:
        _systemctl("set-property", "--runtime", WEB, "AllowedCPUs=0,3", "CPUWeight=77")
        before = s.state()
        s.apply(*s.everything(device), (s.web.cpu_class, "weight=300"))
        s.restored()
        _until(lambda: s.state() == before, lambda: f"differs: {set(s.state().items()) ^ set(before.items())}")
        assert (TREE / s.paths[WEB].strip("/") / "cpu.max").read_text().split() == ["40000", "100000"]


def check_a_restart_during_a_move(device: str) -> None:
    """The unit's group goes and comes; its values are in force from the first moment, and all is undone."""
    with scene() as s:
        before = s.state()
        s.apply(*s.everything(device))
        _systemctl("stop", WEB)
        assert {drift.state for drift in s.enforcer.drift(time.monotonic_ns())} == {DriftState.VANISHED}
        _systemctl("start", WEB)
        assert (TREE / s.paths[WEB].strip("/") / "cpuset.cpus").read_text().strip() == "1-2"
        assert {drift.state for drift in s.enforcer.drift(time.monotonic_ns())} == {DriftState.RETURNED}
        s.apply((s.web.cpus, "0-1"))
        s.restored()
        _until(lambda: s.state() == before, lambda: f"differs: {set(s.state().items()) ^ set(before.items())}")


def check_a_frozen_unit_can_be_stopped_and_started() -> None:
    """Written directly, the freezer neither hinders systemd nor outlives a restart."""
    with scene() as s:
        s.apply((s.job.freezer, FROZEN))
        _systemctl("restart", JOB)
        assert (TREE / s.paths[JOB].strip("/") / "cgroup.freeze").read_text().strip() == "0"


def check_scopes_of_containers() -> None:
    """A transient scope, as Docker makes, is a unit as well; its drop-ins are elsewhere, and go with it."""
    with scene(transient=True) as s:
        before = s.state()
        s.apply((s.web.cpus, "1"), (s.job.cpus, "2"))
        assert list((DROP_INS[1] / "check-web.scope.d").glob("50-*.conf"))
        _systemctl("daemon-reload")
        time.sleep(0.5)
        assert s.enforcer.drift(time.monotonic_ns()) == []
        s.restored()
        _until(lambda: s.state() == before, lambda: f"differs: {set(s.state().items()) ^ set(before.items())}")
        s.apply((s.web.cpus, "1"))
        _systemctl("stop", "check-web.scope")
        _until(lambda: not (DROP_INS[1] / "check-web.scope.d").exists(), "the scope's drop-ins outlive it")


def check_a_later_drop_in_is_named_and_written_over() -> dict[str, str]:
    """override.conf sorts after our drop-ins and wins at a reload: told beforehand, noticed, and written again."""
    with scene() as s:
        place = UNIT_FILES / f"{WEB}.d"
        place.mkdir()
        (place / "override.conf").write_text("[Service]\nCPUQuota=60%\n")
        (warning,) = s.layer.warnings()
        s.apply((s.web.cpu_bandwidth, "30000 100000"))
        _systemctl("daemon-reload")
        _until(lambda: s.web.cpu_bandwidth.read() != "30000 100000", "override.conf does not win")
        now_ns = time.monotonic_ns()
        assert [drift.state for drift in s.enforcer.drift(now_ns)] == [DriftState.NOTICED]
        assert [drift.state for drift in s.enforcer.drift(now_ns + 2 * 10**9)] == [DriftState.REASSERTED]
        _until(
            lambda: s.enforcer.poll(time.monotonic_ns()) is not None and s.web.cpu_bandwidth.read() == "30000 100000", "not back"
        )
        return {"warning": warning}


def check_a_cpu_list_that_systemd_forgets_is_emptied() -> None:
    """While another unit keeps the controller enabled, an emptied list would stay in the kernel."""
    with scene() as s:
        s.apply((s.web.cpus, "1"), (s.job.cpus, "2"))
        s.web.cpus.restore(None)
        assert s.web.cpus.same("inherited", s.web.cpus.read())
        assert os.sched_getaffinity(s.web.pids()[0]) == os.sched_getaffinity(1)


def check_what_a_write_costs() -> dict[str, float]:
    """Milliseconds of a property write with its read-back in the guest, for the order of magnitude."""
    with scene() as s:
        s.apply((s.web.cpus, "1"))
        knob, took_ms = s.web.cpus, []
        for number in range(100):
            begun = time.perf_counter()
            knob.write(str(number % 3))
            took_ms.append((time.perf_counter() - begun) * 1000)
        return {"median_ms": round(statistics.median(took_ms), 2), "p99_ms": round(sorted(took_ms)[98], 2)}


def _all(name: str) -> str:
    """What the group above has in force of a list."""
    file = Path(name)
    return (file.parents[1] / f"{file.name}.effective").read_text().strip()


def _systemctl(*words: str, check: bool = True, limit_s: float = 300) -> str:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=limit_s, check=False)
    assert not check or done.returncode == 0, f"systemctl {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


def _until(condition: object, trouble: object, limit_s: float = 200) -> None:
    """Wait until it holds; ``trouble`` is what to say otherwise, or how to find out."""
    assert callable(condition)
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, trouble() if callable(trouble) else trouble
        time.sleep(0.05)


CHECKS = tuple(name for name in sorted(globals()) if name.startswith("check_"))


def check_all(device: str, only: str = "") -> dict[str, str]:
    """Every check in a row; what each came to, by name."""
    came_to = {}
    for name in CHECKS:
        check = globals()[name]
        if only not in name:
            continue
        arguments = {"device": device} if "device" in check.__code__.co_varnames[: check.__code__.co_argcount] else {}
        try:
            came_to[name] = f"ok {check(**arguments) or ''}".strip()
        except Exception as error:  # noqa: BLE001 (the others are still worth a look)
            came_to[name] = f"FAILED {type(error).__name__}: {error}"
    return came_to

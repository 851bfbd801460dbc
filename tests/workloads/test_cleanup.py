"""The manifest, and that runs leave nothing behind however they end. Kernel tests: own groups, namespaces and processes only."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from waiting import LIMIT_S, gone

from workloads.cleanup import clean, members, send_signal
from workloads.machine import cgroup_mounts, cpu_plan
from workloads.manifest import Kind, Manifest, ProcessId
from workloads.sandbox import PREFIX, Sandbox, SandboxError, living, sweep

SEED = 7
KILLED_AT = 12  # moments

# A run like the demo's: it makes a sandbox, groups and processes, some of which have children and ignore SIGTERM, one of which is
# frozen. Its daemon writes down whether the load was still there when it was stopped.
RUN = """
import sys, time
from pathlib import Path
from workloads.machine import cgroup_mounts, cpu_plan
from workloads.sandbox import Sandbox
STUBBORN = "trap '' TERM; (sleep 1000 & sleep 1000 & wait) & while :; do sleep 1; done"
with Sandbox(cache=Path(sys.argv[1]), mounts=cgroup_mounts(), cpus=cpu_plan()) as box:
    print(box.run, flush=True)
    for name in ("memcached", "nginx", "best-effort"):
        group = box.group(name)
        box.spawn(name, ["sh", "-c", STUBBORN], group=group, namespace=box.server_namespace)
    load = box.spawn("load", ["sleep", "1000"], namespace=box.client_namespace)
    time.sleep(0.3)
    group.write("freezer", "freezer.state", "FROZEN")
    restore = f"sleep 0.5; grep -q sleep /proc/{load.popen.pid}/cmdline && touch {sys.argv[1]}/stopped-first; exit 0"
    daemon = box.spawn("daemon", ["sh", "-c", f"trap '{restore}' TERM; touch trapped; while :; do sleep 0.05; done"])
    box.declare_daemon(daemon)
    while not (box.directory / "trapped").exists():
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(1000)
"""


def wait_until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def traces(run: str) -> list[str]:
    """Everything on the machine that carries the run's name."""
    name = f"{PREFIX}{run}"
    found = [str(path) for root in cgroup_mounts().values() for path in root.glob(f"{name}*")]
    for directory in (Path("/run/netns"), Path(tempfile.gettempdir())):
        found += [str(path) for path in directory.glob(f"{name}*")]
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and directory.name != str(os.getpid()) and not gone(int(directory.name)):
            try:
                words = (directory / "cmdline").read_bytes().decode(errors="replace")
                groups = (directory / "cgroup").read_text()
            except OSError:
                continue
            if name in words or name in groups:
                found.append(f"process {directory.name}: {words}")
    links = subprocess.run(["ip", "-br", "link"], check=True, capture_output=True, text=True).stdout
    return found + [line for line in links.splitlines() if run in line]


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    """Starts the run above in a process of its own."""

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", RUN, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )

    return started


def stuck(notes: tuple[str, ...]) -> list[str]:
    """Notes of what could not be removed; those on other runs on the same machine are left out."""
    return [note for note in notes if "cannot be removed" in note]


def nothing_left(run: str) -> bool:
    return not traces(run)


def over(cache: Path) -> bool:
    """Whether the janitor has done its work, or never came to be because the run had only just begun."""
    manifests = [Manifest(path) for path in cache.glob("*.manifest")]
    return all(manifest.orphaned() and not manifest.names(Kind.JANITOR) for manifest in manifests)


def run_name(cache: Path) -> str | None:
    """The run's name, from its manifest; None if there is none."""
    names = [path.stem.removeprefix(PREFIX) for path in cache.glob("*.manifest")]
    return names[0] if names else None


def test_manifest_gives_back_what_was_written(tmp_path: Path) -> None:
    """Entries come back in order, and a line cut short by a crash is left out."""
    manifest = Manifest(tmp_path / "m")
    manifest.add(Kind.GROUP, "/a")
    manifest.add(Kind.NAMESPACE, "b")
    with manifest.path.open("a") as file:
        file.write('{"kind": "group", "na')
    assert [(entry.kind, entry.name) for entry in manifest.entries()] == [(Kind.GROUP, "/a"), (Kind.NAMESPACE, "b")]
    assert manifest.names(Kind.GROUP) == ("/a",)


def test_process_is_not_mistaken_for_a_later_one_with_its_number() -> None:
    """A signal goes to the process that was meant, and to nobody once that one has gone."""
    with subprocess.Popen(["sleep", "100"]) as child:
        meant = ProcessId.of(child.pid)
        assert meant is not None
        other = ProcessId(child.pid, meant.start_ticks - 1)
        assert not send_signal(other, signal.SIGKILL)
        assert child.poll() is None
        assert send_signal(ProcessId.parse(str(meant)), signal.SIGKILL)
        assert child.wait(LIMIT_S) == -signal.SIGKILL
    assert not meant.alive()
    assert not send_signal(meant, signal.SIGKILL)


def test_manifest_of_a_living_run_is_no_orphan(tmp_path: Path) -> None:
    """A run's leftovers are touched only when both it and its janitor have gone."""
    manifest = Manifest(tmp_path / "m")
    manifest.add(Kind.PARENT, "1999999:1")
    manifest.add(Kind.JANITOR, str(ProcessId.of(os.getpid())))
    assert not manifest.orphaned()
    manifest.path.rename(tmp_path / f"{PREFIX}abc.manifest")
    assert living(tmp_path) == (f"{PREFIX}abc",)
    assert stuck(sweep(tmp_path, {})) == []
    assert living(tmp_path) == (f"{PREFIX}abc",)
    manifest.add(Kind.PARENT, "1999999:1")
    assert manifest.orphaned()


def test_what_is_gone_already_is_no_problem(tmp_path: Path) -> None:
    """Cleaning a manifest whose things were never made, or were removed, succeeds and forgets it."""
    manifest = Manifest(tmp_path / "m")
    for kind in (Kind.KILL_GROUP, Kind.GROUP, Kind.DIRECTORY):
        manifest.add(kind, str(tmp_path / "nothing"))
    manifest.add(Kind.NAMESPACE, f"{PREFIX}nothing")
    assert clean(manifest) == ()
    assert not manifest.path.exists()


def test_what_cannot_be_removed_is_named_and_remembered(tmp_path: Path) -> None:
    """A directory that is not a control group cannot be removed as one while it has files; the manifest stays."""
    manifest = Manifest(tmp_path / "m")
    stuck = tmp_path / "stuck"
    stuck.mkdir()
    (stuck / "file").touch()
    manifest.add(Kind.GROUP, str(stuck))
    (problem,) = clean(manifest)
    assert "stuck" in problem
    assert manifest.path.exists()


@pytest.mark.kernel
class TestKernel:
    """With real groups, namespaces and processes."""

    def test_sandbox_removes_itself(self, tmp_path: Path) -> None:
        """Processes in groups, on the managed CPU and in the namespace, stubborn ones too, are gone afterwards; so is all else."""
        cpus = cpu_plan()
        assert cpus is not None
        with Sandbox(cache=tmp_path, mounts=cgroup_mounts(), cpus=cpus) as box:
            group = box.group("service")
            words = ["sh", "-c", "trap '' TERM; echo up; cat /proc/self/cgroup; ls /sys/class/net; while :; do sleep 1; done"]
            child = box.spawn("service", words, group=group, namespace=box.server_namespace)
            assert wait_until(lambda: "up" in child.log_tail(100))
            assert child.popen.pid in members(group.directories["freezer"])
            assert all(f":{group.path}\n" in Path(f"/proc/{child.popen.pid}/cgroup").read_text() for _ in (1,))
            assert os.sched_getaffinity(child.popen.pid) == set(cpus.managed)
            assert traces(box.run)
        assert traces(box.run) == []
        assert list(tmp_path.glob("*.manifest")) == []

    def test_sandbox_that_cannot_be_made_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failure half-way through making it is reported, and what was made is removed."""
        cpus = cpu_plan()
        assert cpus is not None
        box = Sandbox(cache=tmp_path, mounts=cgroup_mounts(), cpus=cpus)
        monkeypatch.setattr(box, "client_device", "a-name-too-long-for-a-device")
        with pytest.raises(SandboxError, match="ip link add"), box:
            pass
        assert traces(box.run) == []

    def test_sigkill_at_any_moment_leaves_nothing(self, start: Callable[[], subprocess.Popen[str]], tmp_path: Path) -> None:
        """Killed at seeded moments while it makes things, and once when all is made, a run leaves no trace after its janitor."""
        rng = random.Random(SEED)  # noqa: S311 - wants a seed
        for moment in range(KILLED_AT):
            process = start()
            assert process.stdout is not None
            if moment == KILLED_AT - 1:
                assert process.stdout.readline() != ""
                assert process.stdout.readline() == "ready\n"
            else:
                assert wait_until(lambda: bool(list(tmp_path.glob("*.manifest"))))
                time.sleep(rng.uniform(0, 0.3))
            run = run_name(tmp_path)
            assert run is not None
            process.kill()
            process.wait()
            assert wait_until(lambda: over(tmp_path)), f"moment {moment}: {traces(run)}"
            assert stuck(sweep(tmp_path, {})) == []  # of a run that had made nothing yet there is only the manifest
            # A program that was being started when the run ended finds its group gone, and ends by itself; a janitor that was being
            # started writes itself into the manifest once more, and takes it away.
            assert wait_until(partial(nothing_left, run)), f"moment {moment}: {traces(run)}"
            assert wait_until(lambda: not list(tmp_path.glob("*.manifest")))
            process.stdout.close()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_daemon_is_stopped_first_and_gracefully(
        self, start: Callable[[], subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
    ) -> None:
        """When the run ends, its daemon gets SIGTERM and time to put things back before anything else is touched."""
        process = start()
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.wait()
        assert wait_until(lambda: not list(tmp_path.glob("*.manifest")))
        assert wait_until(partial(nothing_left, run)), traces(run)
        assert (tmp_path / "stopped-first").exists()
        process.stdout.close()

    def test_leftovers_of_a_run_whose_janitor_died_too_are_swept(
        self, start: Callable[[], subprocess.Popen[str]], tmp_path: Path
    ) -> None:
        """The next run finds the manifest, and removes what it names; a directory of its prefix without one is only named."""
        process = start()
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        assert process.stdout.readline() == "ready\n"
        (manifest,) = (Manifest(path) for path in tmp_path.glob("*.manifest"))
        (janitor,) = (ProcessId.parse(text) for text in manifest.names(Kind.JANITOR))
        assert send_signal(janitor, signal.SIGKILL)
        process.kill()
        process.wait()
        assert wait_until(manifest.orphaned)
        assert traces(run)
        stranger = Path(tempfile.gettempdir(), f"{PREFIX}stranger-{os.getpid()}")
        stranger.mkdir()
        try:
            notes = sweep(tmp_path, cgroup_mounts())
        finally:
            stranger.rmdir()
        assert traces(run) == []
        assert [note for note in notes if str(stranger) in note and "left alone" in note]
        assert not manifest.path.exists()
        process.stdout.close()


def test_launch_gives_up_when_the_run_is_being_cleaned(tmp_path: Path) -> None:
    """A program whose kill group has gone is not started."""
    specification = {"groups": [str(tmp_path / "gone")], "namespace": None, "cpus": [0], "priority": 0, "real_time": False}
    script = Path(__file__).parents[2] / "workloads" / "launch.py"
    words = [sys.executable, "-I", "-S", str(script), json.dumps(specification), "touch", str(tmp_path / "started")]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "launch: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()

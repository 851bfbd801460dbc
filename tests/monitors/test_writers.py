"""Who writes the kernel's files besides us: the exact answer of the kernel, and the guess where it gives none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import until

from monitors.writers import KIND, WritersKnob, WriteWatch, described, suspects


def process(proc: Path, pid: int, comm: str, cgroup: str = "0::/\n") -> None:
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    (directory / "comm").write_text(comm + "\n")
    (directory / "cgroup").write_text(cgroup)


def test_suspects_are_known_tools_by_number(tmp_path: Path) -> None:
    """Known ones only, in the order of their numbers, at most as many as asked for; we are none; what is no process is left out."""
    for pid, comm in ((300, "kubelet"), (20, "irqbalance"), (100, "bash"), (1000, "tuned"), (os.getpid(), "parties")):
        process(tmp_path, pid, comm)
    (tmp_path / "5").mkdir()
    (tmp_path / "meminfo").write_text("")
    assert suspects(tmp_path) == ["irqbalance (process 20)", "kubelet (process 300)", "tuned (process 1000)"]
    assert suspects(tmp_path, most=1) == ["irqbalance (process 20)"]


def test_a_process_in_words(tmp_path: Path) -> None:
    """Name, number and unit, on v1 and v2; one that has ended still has its number."""
    process(tmp_path, 1, "systemd")
    process(tmp_path, 7, "kubelet", "0::/system.slice/kubelet.service\n")
    process(tmp_path, 8, "bash", "12:cpu:/\n1:name=systemd:/user.slice/user-0.slice/session-3.scope\n")
    assert described(1, tmp_path) == "systemd (process 1)"
    assert described(7, tmp_path) == "kubelet (process 7 of kubelet.service)"
    assert described(8, tmp_path) == "bash (process 8 of session-3.scope)"
    assert described(9, tmp_path) == "process 9, which has ended"


def test_without_fanotify_there_is_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel refuses, nothing fails: it is said that the answer is not exact, and suspects come when asked for."""

    def refused(*_args: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("monitors.writers.WriteWatch", refused)
    monkeypatch.setattr("monitors.writers.suspects", lambda: ["tuned (process 9)"])
    knob = WritersKnob()
    knob.write('{"directories": ["/tmp"], "guess": true}')
    assert json.loads(knob.read() or "") == {"seen": {}, "suspects": ["tuned (process 9)"], "exact": False}
    knob.write('{"directories": [], "guess": false}')
    assert json.loads(knob.read() or "")["suspects"] == []


def write_from_another_process(file: Path) -> int:
    """A process that is no child of ours writes the file and stays until it is killed, ten minutes at most."""
    program = (
        "import os, sys, time\nif os.fork():\n    os._exit(0)\nopen(sys.argv[1], 'w').write('9')\n"
        "print(os.getpid(), flush=True)\ntime.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-S", "-c", program, str(file)], stdout=subprocess.PIPE, text=True)
    child.wait()
    assert child.stdout is not None
    return int(child.stdout.readline())


def seen_within(watch: WriteWatch, seconds: float = 120) -> dict[str, str]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if seen := watch.seen():
            return seen
        time.sleep(0.005)
    return {}


@pytest.mark.kernel
def test_the_kernel_names_the_writer(tmp_path: Path) -> None:
    """Another process is named for the file it wrote, once; our own writes and our children's are not; new directories count."""
    if os.geteuid() != 0:
        pytest.skip("fanotify needs root")
    ours = tmp_path / "ours"
    ours.mkdir()
    watch = WriteWatch((os.getpid(),))
    watch.watch([str(ours), str(tmp_path / "none")])
    (ours / "mine").write_text("1")
    # The child is there until its write has been judged: whose child a process was cannot be told once it has ended.
    with subprocess.Popen(["sh", "-c", f"echo 1 > {ours}/child; read _"], stdin=subprocess.PIPE):
        until(lambda: (ours / "child").exists() and (ours / "child").read_text() != "")
        pid = write_from_another_process(ours / "knob")
        seen = seen_within(watch)
    assert list(seen) == [str(ours / "knob")]
    assert f"(process {pid}" in seen[str(ours / "knob")]
    assert watch.seen() == {}
    os.kill(pid, 9)
    (tmp_path / "other").mkdir()
    watch.watch([str(tmp_path / "other")])
    os.kill(write_from_another_process(tmp_path / "other/knob"), 9)
    assert list(seen_within(watch)) == [str(tmp_path / "other/knob")]


def test_kind_is_found_by_its_name() -> None:
    """The process for upkeep makes it from its reference."""
    assert WritersKnob().ref.kind == KIND

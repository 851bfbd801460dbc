"""The real demo, ended early. Kernel tests: root, memcached, nginx, stress-ng, the load generator."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from waiting import gone, until

from workloads.demo.experiment import CACHE
from workloads.demo.preflight import look, missing
from workloads.sandbox import PREFIX

ROOT = Path(__file__).parents[2]
SEED = 3

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def runs() -> set[str]:
    """The names of the demo's runs that this tree knows of."""
    return {path.stem for path in CACHE.glob(f"{PREFIX}*.manifest")}


def made(run: str) -> set[str]:
    """Control groups, namespaces, temporary directories and processes that carry the run's name."""
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{run}*")}
    namespaces = {path.name for path in Path("/run/netns").glob(f"{run}*")}
    files = {path.name for path in Path(tempfile.gettempdir()).glob(f"{run}*")}
    processes = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and directory.name != str(os.getpid()):
            try:
                if f"/{run}" in (directory / "cgroup").read_text() and not gone(int(directory.name)):
                    processes.add(directory.name)
            except OSError:
                continue
    return {*groups, *namespaces, *files, *processes}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_ended_early_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """At a seeded moment of calibration or of a manager's turn, by Ctrl-C, SIGTERM or SIGKILL: everything is as before."""
    if lacks := missing(look()):
        pytest.skip(lacks[0])
    before = runs()
    rng = random.Random(SEED + number)  # noqa: S311 - wants a seed
    words = [sys.executable, "-m", "workloads.demo", "--quick", "--managers", "parties", "--out", str(tmp_path / "results")]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    try:
        until(lambda: bool(runs() - before) or process.poll() is not None)
        (run,) = runs() - before  # others, of other trees, may be under way
        time.sleep(rng.uniform(1, 8))
        assert made(run)
    finally:
        process.send_signal(number)
        output = process.stdout.read().decode()
        status = process.wait()
        process.stdout.close()
    assert status == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[number], output
    assert "Traceback" not in output
    until(lambda: made(run) == set(), f"{run} is not cleaned up")

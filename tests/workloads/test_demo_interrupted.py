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

from workloads.demo.preflight import look, missing
from workloads.sandbox import PREFIX

ROOT = Path(__file__).parents[2]
SEED = 3
CLEAN_LIMIT_S = 40.0

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def made() -> set[str]:
    """Control groups, namespaces, temporary directories and processes that carry the demo's name."""
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{PREFIX}*")}
    namespaces = {path.name for path in Path("/run/netns").glob(f"{PREFIX}*")}
    files = {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}
    processes = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and directory.name != str(os.getpid()):
            try:
                if f"/{PREFIX}" in (directory / "cgroup").read_text():
                    processes.add(directory.name)
            except OSError:
                continue
    return {*groups, *namespaces, *files, *processes}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_ended_early_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """At a seeded moment of calibration or of a manager's turn, by Ctrl-C, SIGTERM or SIGKILL: everything is as before."""
    if lacks := missing(look()):
        pytest.skip(lacks[0])
    before = made()  # another run may be under way
    rng = random.Random(SEED + number)  # noqa: S311 - wants a seed
    words = [sys.executable, "-m", "workloads.demo", "--quick", "--managers", "parties", "--out", str(tmp_path / "results")]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()  # it has begun
        time.sleep(rng.uniform(1, 8))
        assert made() - before
    finally:
        process.send_signal(number)
        output = process.stdout.read().decode()
        status = process.wait()
        process.stdout.close()
    assert status == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[number], output
    assert "Traceback" not in output
    deadline = time.monotonic() + CLEAN_LIMIT_S
    while made() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert made() - before == set()

"""One daemon per runtime directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parties.lock import LockError, RuntimeLock
from parties.model import NS_PER_S


def test_second_one_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """The message names the file, the process that has it, and what to do; after it is closed the lock can be had."""
    with RuntimeLock(tmp_path / "run"), pytest.raises(LockError, match=rf"run/lock: held by process {os.getpid()};.*stop it"):
        RuntimeLock(tmp_path / "run")
    RuntimeLock(tmp_path / "run").close()


def test_lock_goes_with_its_holder(tmp_path: Path) -> None:
    """A holder killed by SIGKILL leaves nothing stale behind."""
    program = (
        "import sys; from pathlib import Path; from parties.lock import RuntimeLock\n"
        "lock = RuntimeLock(Path(sys.argv[1])); print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LockError, match=f"process {holder.pid};"):
            RuntimeLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    RuntimeLock(tmp_path).close()


def test_directory_that_cannot_be_had(tmp_path: Path) -> None:
    """One message, no traceback of the kernel's making."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LockError, match="choose a runtime directory"):
        RuntimeLock(tmp_path / "file")


def test_patience_outlasts_a_holder_that_is_about_to_end(tmp_path: Path) -> None:
    """Who has patience gets the lock as soon as its holder gives it up, and not before."""
    program = (
        "import sys; from pathlib import Path; from parties.lock import RuntimeLock\n"
        "lock = RuntimeLock(Path(sys.argv[1])); print(1, flush=True); input(); lock.close(); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(LockError, match=f"process {holder.pid};"):
            RuntimeLock(tmp_path, patience_ns=1)
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        RuntimeLock(tmp_path, patience_ns=60 * NS_PER_S).close()
        assert holder.poll() is None
        holder.stdin.write(b"\n")

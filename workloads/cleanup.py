"""Removes everything that a run made, in the order that leaves nothing dangling.

First the controller, gracefully, so that it puts back what it changed; then every process; then groups, namespaces, files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from workloads.manifest import Kind, Manifest, ProcessId

DAEMON_STOP_S = 10.0
PROCESS_STOP_S = 2.0
KILL_S = 10.0
POLL_S = 0.02


def clean(manifest: Manifest) -> tuple[str, ...]:
    """Remove what the manifest names and then the manifest; what could not be removed is named, and the manifest stays."""
    for text in manifest.names(Kind.DAEMON):
        _stop_gracefully(ProcessId.parse(text), DAEMON_STOP_S)
    for name in manifest.names(Kind.KILL_GROUP):
        _kill_members(Path(name))
    problems = [
        *_attempt(_remove_group, manifest.names(Kind.KILL_GROUP)),  # first: from now on nothing of the run can start
        *_attempt(_remove_group, manifest.names(Kind.GROUP)),
        *_attempt(_remove_namespace, manifest.names(Kind.NAMESPACE)),
        *_attempt(_remove_directory, manifest.names(Kind.DIRECTORY)),
    ]
    if not problems:
        manifest.remove()
    return tuple(problems)


def members(group: Path) -> tuple[int, ...]:
    """The processes of a group and of every group below it; empty if it is gone."""
    found: list[int] = []
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            found += [int(line) for line in (Path(directory) / "cgroup.procs").read_text().split()]
    return tuple(found)


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signal exactly this process, never one that has inherited its number; whether it was there."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not process.alive():
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _attempt(remove: Callable[[str], None], names: tuple[str, ...]) -> Iterator[str]:
    for name in reversed(names):
        try:
            remove(name)
        except (OSError, subprocess.SubprocessError) as error:
            yield f"{name}: {error}"


def _wait(done: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _stop_gracefully(process: ProcessId, limit_s: float) -> None:
    if send_signal(process, signal.SIGTERM):
        _wait(lambda: not process.alive(), limit_s)


def _signal_members(group: Path, number: signal.Signals) -> None:
    for pid in members(group):
        process = ProcessId.of(pid)
        if process is not None and pid in members(group):  # still the one that is in the group
            send_signal(process, number)


def _kill_members(group: Path) -> None:
    """End every process of the group: politely, then not. A frozen group is thawed, or the signal would wait for ever."""
    for directory, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            (Path(directory) / "freezer.state").write_text("THAWED")
    _signal_members(group, signal.SIGTERM)
    _wait(lambda: not members(group), PROCESS_STOP_S)
    deadline = time.monotonic() + KILL_S
    while members(group) and time.monotonic() < deadline:
        _signal_members(group, signal.SIGKILL)
        time.sleep(POLL_S)


def _remove_group(name: str) -> None:
    """Remove a group from its leaves upwards; the kernel may need a moment after the last process has gone."""
    for directory, _, _ in os.walk(name, topdown=False):
        path = Path(directory)
        last: list[OSError] = []

        def gone(path: Path = path, last: list[OSError] = last) -> bool:
            try:
                path.rmdir()
            except FileNotFoundError:
                return True
            except OSError as error:
                last[:] = [error]
                _signal_members(path, signal.SIGKILL)  # one that was being started when the run ended
                return False
            return True

        if not _wait(gone, PROCESS_STOP_S):
            raise last[0]


def _remove_namespace(name: str) -> None:
    if Path("/run/netns", name).exists():
        subprocess.run(["ip", "netns", "delete", name], check=True, capture_output=True, timeout=10)


def _remove_directory(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(name)

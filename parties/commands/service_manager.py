"""What the front asks systemd: whether the stop that it was asked for is the first half of a restart.

Then the values stay in force for the daemon that follows. Only the queued job tells the two apart: both begin with SIGTERM.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

LIMIT_S = 2.0
"""How long the answer may take; without one the stop is a stop, and everything is put back."""

Ask = Callable[[str], str]


def own_unit(environment: Mapping[str, str] = os.environ, cgroup: Path = Path("/proc/self/cgroup")) -> str:
    """The unit that we are the service of, as the control group tells; "" where no service manager started us."""
    if "INVOCATION_ID" not in environment or "NOTIFY_SOCKET" not in environment:
        return ""
    try:
        lines = cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" or controllers == "name=systemd":
            services = [part for part in path.split("/") if part.endswith(".service")]
            if services:
                return services[-1]
    return ""


def restart_is_queued(unit: str, ask: Ask | None = None) -> bool:
    """Whether the unit is being stopped in order to be started again."""
    if not unit:
        return False
    for line in (ask or _queued_jobs)(unit).splitlines():
        words = line.split()  # number, unit, type, state
        if len(words) >= 4 and words[1] == unit:  # noqa: PLR2004 - the four columns
            return words[2] in {"restart", "start"}
    return False


def _queued_jobs(unit: str) -> str:
    command = ["systemctl", "list-jobs", "--no-legend", "--no-pager", "--full", unit]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)  # noqa: S603 - no user's text
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout

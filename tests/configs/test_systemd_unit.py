"""The unit files are what systemd takes, closed as far as the daemon's work allows, and say what the daemon is told."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from parties.settings import ControlSettings

UNITS = Path(__file__).parents[2] / "configs/systemd"
SERVICE = UNITS / "parties.service"
MOST_EXPOSED = 4.0

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def settings(file: Path) -> dict[str, str]:
    lines = (line for line in file.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


@needs_analyze
def test_systemd_takes_the_units_without_a_word(tmp_path: Path) -> None:
    """systemd-analyze verify prints nothing: its exit code is 0 also for keys that it does not know."""
    for file in UNITS.iterdir():
        (tmp_path / file.name).write_text(file.read_text().replace("/usr/bin/parties", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", *tmp_path.iterdir()], capture_output=True, text=True, check=False)
    words = [line for line in (done.stdout + done.stderr).splitlines() if "parties" in line or "resctrl" in line]
    assert words == []


@needs_analyze
def test_the_service_is_not_exposed() -> None:
    """The overall exposure level is 4.0 or lower."""
    command = ["systemd-analyze", "security", "--no-pager", "--offline=true", str(SERVICE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (level,) = re.findall(r"Overall exposure level for parties\.service: ([0-9.]+)", done.stdout)
    assert float(level) <= MOST_EXPOSED


def test_what_the_daemon_relies_on_is_said() -> None:
    """Notification by a child, the watchdog, restore after any end, and a runtime directory that outlives a restart."""
    service = settings(SERVICE)
    expected = {
        "Type": "notify",
        "NotifyAccess": "all",
        "ExecReload": "/bin/kill -HUP $MAINPID",
        "ExecStopPost": "/usr/bin/parties restore --at-exit",
        "RuntimeDirectory": "parties",
        "RuntimeDirectoryPreserve": "restart",
        "StateDirectory": "parties",
        "RestartPreventExitStatus": "2",
    }
    assert {key: service.get(key) for key in expected} == expected
    assert "WatchdogSec" in service
    assert service["ExecStart"].startswith("/usr/bin/parties run -c /etc/parties/parties.toml")


def test_the_directories_are_the_daemons_own() -> None:
    """What the unit makes is where the daemon looks by default."""
    defaults, service = ControlSettings(()), settings(SERVICE)
    assert defaults.runtime_directory == f"/run/{service['RuntimeDirectory']}"
    assert defaults.state_directory == f"/var/lib/{service['StateDirectory']}"

"""What the front finds out from systemd about a stop that it was asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from parties.commands.service_manager import own_unit, restart_is_queued

STARTED_BY_SYSTEMD = {"INVOCATION_ID": "0123", "NOTIFY_SOCKET": "/run/systemd/notify"}


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/parties.service\n", "parties.service"),
        (
            "12:cpu,cpuacct:/\n1:name=systemd:/system.slice/parties@a.service\n0::/system.slice/parties@a.service\n",
            "parties@a.service",
        ),
        ("3:cpu:/web.service\n1:name=systemd:/system.slice/parties.service/inner\n", "parties.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", ""),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/parties.service\n", "parties.service"),
        ("", ""),
    ],
)
def test_the_unit_is_where_we_run(tmp_path: Path, text: str, unit: str) -> None:
    """The innermost service of the unified or of systemd's own hierarchy; no other controller counts."""
    file = tmp_path / "cgroup"
    file.write_text(text)
    assert own_unit(STARTED_BY_SYSTEMD, file) == unit


@pytest.mark.parametrize("missing", list(STARTED_BY_SYSTEMD))
def test_a_run_by_hand_has_no_unit(tmp_path: Path, missing: str) -> None:
    """A terminal may itself be in a service, such as a user's manager: that is not ours."""
    file = tmp_path / "cgroup"
    file.write_text("0::/system.slice/getty@tty1.service\n")
    environment = {name: value for name, value in STARTED_BY_SYSTEMD.items() if name != missing}
    assert own_unit(environment, file) == ""
    assert own_unit(STARTED_BY_SYSTEMD, tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("jobs", "restarting"),
    [
        ("  812 parties.service restart running\n", True),
        ("812 parties.service start waiting\n", True),
        ("812 parties.service stop running\n", False),
        ("812 other.service restart running\n", False),
        ("", False),
        ("No jobs running.\n", False),
    ],
)
def test_the_queued_job_tells_a_restart_from_a_stop(jobs: str, *, restarting: bool) -> None:
    """As systemctl list-jobs prints them."""
    asked: list[str] = []

    def ask(unit: str) -> str:
        asked.append(unit)
        return jobs

    assert restart_is_queued("parties.service", ask) is restarting
    assert asked == ["parties.service"]
    assert restart_is_queued("", ask) is False


@pytest.mark.parametrize(
    ("script", "restarting"),
    [
        ("echo 7 parties.service restart running", True),
        ("sleep 60", False),
        ("echo 7 parties.service restart running; exit 1", True),
        (None, False),
    ],
    ids=["answers", "hangs", "fails", "missing"],
)
def test_systemctl_has_a_time_limit_and_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, *, restarting: bool
) -> None:
    """Without an answer the stop is a stop: everything is put back."""
    if script is not None:
        program = tmp_path / "systemctl"
        program.write_text(f"#!/bin/sh\nexec /bin/sh -c '{script}'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{'/usr/bin:/bin' if script else ''}")
    monkeypatch.setattr("parties.commands.service_manager.LIMIT_S", 0.2 if script == "sleep 60" else 120.0)
    assert restart_is_queued("parties.service") is restarting

"""The daemon in the guest: put there by the package where one was built, else from the sources, and run by systemd."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .machine import GuestMachine
from .project_disk import REPOSITORY
from .scene import CONFIGURATION, RUNTIME, STATE, Managed, set_up

PACKAGE = "/opt/project/packages/parties.deb"
UNIT_FILE = REPOSITORY / "configs/systemd/parties.service"
COMMAND = """\
#!/bin/sh
PYTHONPATH=/opt/project exec /usr/bin/python3 -c 'from parties.cli import main; main()' "$@"
"""
DROP_IN = "/etc/systemd/system/parties.service.d/guest.conf"
_SOURCES = "[Service]\nEnvironment=PYTHONPATH=/opt/project\n"
_ONCE = "[Service]\nRestart=no\nWatchdogSec=60\nTimeoutStartSec=900\nTimeoutStopSec=900\n"  # a slow machine
START_LIMIT_S = 900.0
AWAITED_S = 600.0


class Daemon:
    """The unit parties.service. It is not started again by systemd after a failure, so that what a failure leaves can be seen."""

    def __init__(self, guest: GuestMachine) -> None:
        self._guest = guest

    @property
    def packaged(self) -> bool:
        """Whether a package was built."""
        return self._guest.run("test", "-e", PACKAGE).code == 0

    def install(self) -> None:
        """By the package, or as the package would. The operator's configuration is there already and is kept."""
        guest = self._guest
        if self.packaged:
            guest.output("dpkg", "--force-confold", "-i", PACKAGE, limit_s=START_LIMIT_S)
            guest.write(DROP_IN, _ONCE)
        else:
            guest.write("/usr/bin/parties", COMMAND)
            guest.output("chmod", "755", "/usr/bin/parties")
            guest.write("/etc/systemd/system/parties.service", UNIT_FILE.read_text())
            guest.write(DROP_IN, _ONCE + _SOURCES)
        guest.output("systemctl", "daemon-reload")

    def parties(self, *words: str) -> tuple[int | None, str]:
        """Exit code and output of the command."""
        answer = self._guest.run("parties", *words, limit_s=START_LIMIT_S)
        return answer.code, answer.out + answer.err

    # Its life

    def start(self) -> None:
        """Start it and wait until it is ready. A start that fails tells what the daemon said."""
        answer = self._guest.run("systemctl", "start", "parties", limit_s=START_LIMIT_S)
        assert answer.code == 0, answer.err + self.said()

    def stop(self) -> None:
        """Stop it in order; it must not have failed."""
        self._guest.output("systemctl", "stop", "parties", limit_s=START_LIMIT_S)
        result = self._guest.output("systemctl", "show", "parties", "-p", "Result", "--value").strip()
        assert result == "success", f"{result}\n{self.said()}"

    def await_end(self, limit_s: float = AWAITED_S) -> None:
        """Wait until systemd has seen its end, what comes after it included."""
        self.await_that(lambda: self._state() in {"failed", "inactive"}, "its end", limit_s)

    def forget_failure(self) -> None:
        """So that it may be started again."""
        self._guest.output("systemctl", "reset-failed", "parties")

    def _state(self) -> str:
        return self._guest.run("systemctl", "is-active", "parties").out.strip()

    @property
    def main_pid(self) -> int:
        """The front."""
        return int(self._guest.output("systemctl", "show", "parties", "-p", "MainPID", "--value"))

    @property
    def control_pid(self) -> int:
        """The control process; 0 while there is none that manages."""
        answer = self._guest.run("cat", f"{RUNTIME}/in-force.json")
        return int(json.loads(answer.out)["pid"]) if answer.code == 0 else 0

    def kill(self, name: str, pid: int) -> None:
        """Send a signal by name."""
        self._guest.output("kill", f"-{name}", str(pid))

    # What it does

    def said(self, lines: int = 60) -> str:
        """The end of its log."""
        return self._guest.output("journalctl", "-u", "parties", "--no-pager", "-o", "cat", "-n", str(lines))

    def await_moves(self, resources: set[str], limit_s: float = AWAITED_S) -> None:
        """Wait until each of the resources has been moved in this boot."""
        self.await_that(
            lambda: resources <= set(re.findall(r"tick \d+: ([a-z]+)(?:@\d+)? [-\d]", self.said(10_000))), "moves", limit_s
        )

    def verify(self) -> Mapping[str, Any]:
        """What ``parties verify`` finds, as JSON; a write on its way may make it differ for a moment."""
        deadline = time.monotonic() + AWAITED_S / 5
        code, text = self._verified()
        while code != 0 and time.monotonic() < deadline:
            time.sleep(0.5)
            code, text = self._verified()
        assert code == 0, text
        return dict(json.loads(text))

    def _verified(self) -> tuple[int | None, str]:
        return self.parties("verify", "--json", "-c", CONFIGURATION)

    def await_that(self, condition: Callable[[], bool], words: str, limit_s: float) -> None:
        """Look again and again; fails the test with the daemon's last words."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"no {words} within {limit_s:.0f} s:\n{self.said()}"
            time.sleep(0.5)

    def leftovers(self) -> str:
        """What of a daemon that put everything back is still there: nothing but records, else what."""
        return self._guest.shell(f"ls -d {STATE}/journal* {RUNTIME}/in-force.json {RUNTIME}/resume 2>/dev/null || true").strip()


class ManagedScene:
    """The machine with the scene set up and the daemon in place, and what every value was before its first start."""

    def __init__(self, guest: GuestMachine, managed: Managed) -> None:
        self.guest = guest
        self.managed = managed
        set_up(guest, managed)
        self.daemon = Daemon(guest)
        self.daemon.install()
        self.before = guest.call("snapshot", "values")


def built_package() -> Path | None:
    """The package on the host, if it was built."""
    return max((REPOSITORY / "dist").glob("parties_*.deb"), key=lambda path: path.stat().st_mtime, default=None)

"""Hard resets at random moments while the daemon manages: after the boot nothing of it is in force, and it starts as ever.

A reset takes the kernel's values with it; what is tested is what outlives it: the journal of another boot, unit properties, files.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import pytest

from .daemon import START_LIMIT_S, Daemon
from .image import GuestImage
from .machine import GuestMachine, GuestOptions
from .scene import PREPARE, Managed, await_start, set_up
from .snapshot import differences

pytestmark = pytest.mark.guest

RESETS = int(os.environ.get("PARTIES_RESETS", "20"))
PARTS = 2  # that may run side by side, each on a machine of its own
SEED = 2019
MANAGING_S = 4.0  # the reset comes within so long after the daemon is ready, or before


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.xdist_group(f"resets-{part}")) for part in range(min(PARTS, RESETS))]
)
def test_nothing_is_left_after_hard_resets(part: int, image: GuestImage, project_disk: Path, tmp_path: Path) -> None:
    """Each time every value is as on the first boot, and the next start meets the stale journal without a word of failure."""
    rng = random.Random(SEED + part)  # noqa: S311 - the same moments in every run
    resets = len(range(part, RESETS, PARTS))
    with GuestMachine(image, project_disk, tmp_path, GuestOptions(frequency=True)) as guest:
        guest.until_up()
        guest.shell(PREPARE)
        set_up(guest, Managed(frequency=True))
        daemon = Daemon(guest)
        daemon.install()
        before = guest.call("snapshot", "values")
        guest.output("sync")  # the scene's own files, which a reset would else leave empty
        begun = time.monotonic()
        daemon.start()
        start_s = time.monotonic() - begun
        for number in range(resets):
            moment_s = rng.uniform(0.0, start_s + MANAGING_S)
            begun = time.monotonic()
            if number:
                guest.begin("systemctl", "start", "parties", limit_s=START_LIMIT_S)
            time.sleep(moment_s)
            guest.reset()
            guest.shell(PREPARE)
            await_start(guest)
            journal = daemon.leftovers()
            sys.stderr.write(
                f"guest: reset {number + 1} of {resets}: {moment_s:.1f} s after the start began; boot {guest.boot_s:.1f} s, "
                f"left on disk: {journal or 'nothing'}; {time.monotonic() - begun:.0f} s\n"
            )
            assert differences(before, guest.call("snapshot", "values")) == [], f"after reset {number + 1}"
            if journal and number % 4 == 0:
                code, text = daemon.parties("restore")
                assert code == 0, text
                assert differences(before, guest.call("snapshot", "values")) == [], text
        daemon.start()
        daemon.verify()
        daemon.stop()
        assert differences(before, guest.call("snapshot", "values")) == []
        assert daemon.leftovers() == ""

"""By hand: boots the virtual machine as the tests have it, and carries out shell commands line by line until the input ends.

``python -m tests.guest.console`` as root; ``reset`` presses the reset button. Nothing that is done there is kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from .image import ImageError, ready_image
from .machine import GuestError, GuestMachine, GuestOptions
from .project_disk import make_project_disk
from .resctrl_trick import why_not
from .scene import PREPARE

LIMIT_S = 300.0


def main() -> None:
    """Boot and serve."""
    try:
        image = ready_image()
    except ImageError as error:
        sys.exit(f"guest: {error}")
    with tempfile.TemporaryDirectory(prefix="parties-guest-") as name:
        directory = Path(name)
        disk = make_project_disk(directory / "project.img", directory)
        options = GuestOptions(frequency=True, resctrl=why_not(image.kernel_version) is None)
        with GuestMachine(image, disk, directory / "machine", options) as guest:
            guest.shell(PREPARE)
            _say(f"up after {guest.boot_s:.0f} s; the project is in /opt/project\n# ")
            for line in sys.stdin:
                _say(_carried_out(guest, line.strip()) + "# ")


def _carried_out(guest: GuestMachine, line: str) -> str:
    try:
        if line == "reset":
            guest.reset()
            return f"up again after {guest.boot_s:.0f} s\n"
        answer = guest.run("bash", "-c", line, limit_s=LIMIT_S)
    except GuestError as error:
        return f"{error}\n"
    return answer.out + answer.err + (f"(exit code {answer.code})\n" if answer.code else "")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()

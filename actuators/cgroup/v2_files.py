"""Control files of v2: a file that is not there although the group is means that the group's controller is not enabled."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from actuators.cgroup.files import KeptFile, bare
from parties.knob import KnobError

SUBTREE_CONTROL = "cgroup.subtree_control"


def enable_command(controller: str, directory: Path) -> str:
    """What an operator can type so that the groups directly below ``directory`` have a controller."""
    return f"echo +{controller} > {directory / SUBTREE_CONTROL}"


class ControllerFile(KeptFile):
    """A file that a controller ("memory") gives to each group in which it is enabled."""

    def __init__(self, directory: Path, name: str, *, writable: bool = True, readable: bool = True) -> None:
        super().__init__(directory / name, writable=writable, readable=readable)
        self._controller = name.partition(".")[0]

    def read_if_enabled(self) -> str | None:
        """The whole text; None where the controller is not enabled. Raises KnobError, ENOENT where the group is gone."""
        raw = self.raw_if_enabled()
        return None if raw is None else raw.decode()

    def raw_if_enabled(self) -> bytes | None:
        """The same as it comes."""
        try:
            return self.raw()
        except KnobError as error:
            if self._not_enabled(error):
                return None
            raise

    def write(self, text: str, cause: str = "") -> None:
        """Write one line. Where the controller is not enabled, EOPNOTSUPP instead of ENOENT, for the group is there."""
        try:
            super().write(text, cause)
        except KnobError as error:
            if not self._not_enabled(error):
                raise
            raise self.refused(
                OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)),
                text,
                f"the {self._controller} controller is not enabled in this group, or this kernel has no such file; "
                f"if {self._controller} is not in {self.path.parent / 'cgroup.controllers'}: "
                f"{enable_command(self._controller, self.path.parent.parent)}",
            ) from error

    def explained(self, error: KnobError, text: str, cause: str) -> KnobError:
        """The same refusal with its cause, if there is one to tell."""
        return self.refused(bare(error), text, cause) if cause and error.errno != errno.EOPNOTSUPP else error

    def _not_enabled(self, error: KnobError) -> bool:
        """Whether the group is there and the file is not; a kept descriptor of a file that went says ENODEV."""
        return error.errno in (errno.ENOENT, errno.ENODEV) and self.path.parent.is_dir() and not self.path.exists()

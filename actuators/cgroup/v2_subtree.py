"""Enabling v2 controllers: who may, and how it is undone.

A group has the files of a controller only if the group above it names the controller in its cgroup.subtree_control, and so on up
to the root. The daemon enables what is missing on the way to a managed group, as knobs that are journalled and disabled again, but
only where the tree is nobody else's: systemd takes back what is changed in its part of it. That part is all but what lies below a
unit with ``Delegate=``, which systemd marks by an extended attribute. Without systemd the whole tree is free.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from actuators.cgroup.files import KeptFile, bare
from actuators.cgroup.group import ENABLED, Controller
from actuators.cgroup.v2_files import SUBTREE_CONTROL, enable_command
from parties.knob import KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import Resource

NAMES = {Controller.CPU: "cpu", Controller.CPUSET: "cpuset", Controller.MEMORY: "memory", Controller.DISK: "io"}
"""The v2 controllers; counting CPU time and freezing need none."""

_DELEGATED = ("trusted.delegate", "user.delegate")
_RESOURCES = {"cpu": Resource.CORES, "cpuset": Resource.CORES, "memory": Resource.MEMORY, "io": Resource.DISK}


class SubtreePath:
    """The groups from the root of the tree down to the one above a managed group: what is to be enabled there.

    ``root`` is the file system's root, where systemd says that it runs the machine.
    """

    def __init__(self, tree: Path, directory: Path, root: Path) -> None:
        self._tree = tree
        self._directory = directory
        self._systemd = (root / "run/systemd/system").is_dir()

    def ours(self, names: tuple[str, ...]) -> list[SubtreeControlKnob]:
        """What has to be enabled for the group to have the controllers and may be by us, from the root down, set or not."""
        return [SubtreeControlKnob(place, name) for name in names for place in self._above() if self._is_free(place)]

    def forbidden(self, names: tuple[str, ...]) -> list[SubtreeControlKnob]:
        """What is not enabled, and is systemd's. Raises KnobError."""
        knobs = [SubtreeControlKnob(place, name) for name in names for place in self._above() if not self._is_free(place)]
        return [knob for knob in knobs if knob.read() != ENABLED]

    def _above(self) -> list[Path]:
        return [place for place in reversed(self._directory.parents) if place.is_relative_to(self._tree)]

    def _is_free(self, directory: Path) -> bool:
        if not self._systemd:
            return True
        places = (directory, *directory.parents)
        return any(_is_delegated(place) for place in places if place.is_relative_to(self._tree) and place != self._tree)


class SubtreeControlKnob:
    """Whether a group's children have a controller: one word of its cgroup.subtree_control. None means that they have not."""

    KIND = "cgroup2.subtree-control"  # and the controller, as an exit policy is a resource's: "cgroup2.subtree-control.io"

    def __init__(self, directory: Path, controller: str) -> None:
        self.directory = directory
        self.controller = controller
        self._file = KeptFile(directory / SUBTREE_CONTROL)
        self.ref = KnobRef(f"{self.KIND}.{controller}", (str(directory), controller))

    def read(self) -> str | None:
        """Whether it is enabled."""
        return ENABLED if self.controller in self._file.read().split() else None

    def write(self, value: str) -> None:
        """Enable it; ``value`` can be nothing else."""
        if value != ENABLED:
            raise self._file.refused(OSError(errno.EINVAL, os.strerror(errno.EINVAL)), value)
        self._put("+")

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Leave it enabled, or disable it; EBUSY while a group below passes it on."""
        self._put("-" if old is None else "+")

    def _put(self, sign: str) -> None:
        word = sign + self.controller
        try:
            self._file.write(word)
        except KnobError as error:
            cause = self._cause(sign, error.errno or 0)
            if error.errno == errno.ENOENT and self.directory.is_dir():  # the group is there, the controller is not
                missing = OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
                raise self._file.refused(missing, word, cause) from error
            raise self._file.refused(bare(error), word, cause) from error

    def _cause(self, sign: str, number: int) -> str:
        if number == errno.EBUSY and sign == "-":
            return "a group below passes the controller on to its own"
        return {
            errno.EBUSY: f"{self.directory} has processes of its own, which have to be in groups below it for that; move them",
            errno.ENOENT: f"{self.directory} has no such controller itself: "
            f"{enable_command(self.controller, self.directory.parent)}",
            errno.EOPNOTSUPP: f"the group is threaded, see {self.directory / 'cgroup.type'}; use one above it",
            errno.EINVAL: "no such controller; for cpu: real-time processes below have to be in the root group on this kernel",
        }.get(number, "")


def _is_delegated(directory: Path) -> bool:
    for name in _DELEGATED:
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _kind(resource: Resource) -> KnobKind:
    return KnobKind(lambda address: SubtreeControlKnob(Path(address[0]), address[1]), resource)


KINDS: KnobKinds = {f"{SubtreeControlKnob.KIND}.{name}": _kind(resource) for name, resource in _RESOURCES.items()}
"""They have no ``safe`` value: a controller is disabled again where it was, which changes nothing below once no limit is set."""

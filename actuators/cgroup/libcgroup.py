"""Finding, making and removing control groups and moving processes, through libcgroup.

The library is loaded when this is first used: Debian's package libcgroup2, through the declarations of PyPI's libcgroup-bind. The
class on top of those in PyPI's libcgroup is not used: it opens every hierarchy on import, moves the processes of a group that it
deletes into the parent without a word, and reports the errno of an earlier call. No value on the hot path goes through here (a
kept descriptor is 45 times as fast).
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from actuators.cgroup.hierarchy import GroupMissingError, Hierarchies, SetupError

PACKAGE = "libcgroup2"
_OTHER = 50016  # ECGOTHER: the cause is in errno
_NON_EMPTY = 50030
_EMPTY_ONLY = 4


class LibcgroupError(SetupError):
    """libcgroup is missing or refused: what was asked for, and its own words."""


class GroupBusyError(LibcgroupError):
    """A group that is to be removed still has processes or groups below it."""


class Libcgroup:
    """libcgroup on this machine's v1 hierarchies. Raises LibcgroupError where the library is missing."""

    def __init__(self, hierarchies: Hierarchies) -> None:
        self._hierarchies = hierarchies
        self._groups = _load("groups")
        self._errors = _load("error")
        self._check(_load("init").cgroup_init(), "initialise libcgroup")

    def exists(self, controller: str, path: str) -> bool:
        """Whether the group is there in that controller's hierarchy."""
        return self._directory(controller, path).is_dir()

    def create(self, controllers: Sequence[str], path: str) -> None:
        """Make the group, and those above it that are missing, in each hierarchy. One that exists stays as it is.

        A new group of cpuset takes CPUs and nodes over from the one above, as it can hold no process before.
        """
        new = [place for controller in controllers for place in self._missing(controller, path)]
        if not new:
            return
        with self._group(path) as group:
            for controller in controllers:
                self._add(group, controller, path)
            self._check(self._groups.cgroup_create_cgroup(group, 1), f"create {path} in {', '.join(controllers)}")
        for place in new:
            _inherit_cpuset(place)

    def remove(self, controllers: Sequence[str], path: str) -> None:
        """Remove the group from each hierarchy; where it is gone already that is well. Processes are not moved: GroupBusyError."""
        for controller in controllers:
            place = self._directory(controller, path)
            if not place.is_dir():
                continue
            self._refuse_busy(place)
            with self._group(path) as group:
                self._add(group, controller, path)
                code = self._groups.cgroup_delete_cgroup_ext(group, _EMPTY_ONLY)
                if code == _NON_EMPTY:
                    self._refuse_busy(place)
                self._check(code, f"remove {place}")

    def move(self, controllers: Sequence[str], path: str, pid: int) -> None:
        """Move a process with all its threads into the group, in each hierarchy.

        By cgroup.procs, which takes the whole process at once; libcgroup's own attach call takes one thread, and would miss those
        that are born meanwhile.
        """
        for controller in controllers:
            self._require(controller, path)
            with self._group(path) as group:
                part = self._add(group, controller, path)
                self._check(
                    self._groups.cgroup_add_value_string(part, b"cgroup.procs", str(pid).encode())
                    or self._groups.cgroup_modify_cgroup(group),
                    f"move process {pid} to {path} in {controller}",
                )

    def pids(self, controller: str, path: str) -> tuple[int, ...]:
        """The processes of the group in that hierarchy."""
        self._require(controller, path)
        values = ctypes.POINTER(ctypes.c_int)()
        count = ctypes.c_int()
        code = self._groups.cgroup_get_procs(
            path.strip("/").encode(), controller.encode(), ctypes.byref(values), ctypes.byref(count)
        )
        self._check(code, f"list the processes of {path} in {controller}")
        return tuple(values[index] for index in range(count.value))

    def _require(self, controller: str, path: str) -> None:
        place = self._directory(controller, path)
        if not place.is_dir():
            raise GroupMissingError(f"{place} does not exist; create the group first")

    def _directory(self, controller: str, path: str) -> Path:
        return self._hierarchies.mount_point(controller) / path.strip("/")

    def _missing(self, controller: str, path: str) -> Iterator[Path]:
        """The directories that ``create`` has to make in a hierarchy, from the top."""
        place = self._hierarchies.mount_point(controller)
        for part in path.strip("/").split("/"):
            place /= part
            try:
                place.stat()
            except FileNotFoundError:
                yield place
            except OSError as error:
                raise LibcgroupError(f"{place}: {error.strerror}") from error

    @contextmanager
    def _group(self, path: str) -> Iterator[object]:
        group = self._groups.cgroup_new_cgroup(path.strip("/").encode())
        if not group:
            raise LibcgroupError(f"libcgroup cannot take the group name {path!r}")
        try:
            yield group
        finally:
            self._groups.cgroup_free(ctypes.byref(group))

    def _add(self, group: object, controller: str, path: str) -> object:
        self._hierarchies.mount_point(controller)
        part = self._groups.cgroup_add_controller(group, controller.encode())
        if not part:
            raise LibcgroupError(f"libcgroup does not know the controller {controller!r} ({path})")
        return part

    def _refuse_busy(self, place: Path) -> None:
        pids = (place / "cgroup.procs").read_text(encoding="ascii").split()
        below = [child.name for child in place.iterdir() if child.is_dir()]
        if pids or below:
            what = f"processes {', '.join(pids)}" if pids else f"groups below it: {', '.join(sorted(below))}"
            raise GroupBusyError(f"{place} still has {what}; end or move them before the group is removed")

    def _check(self, code: int, what: str) -> None:
        if code == 0:
            return
        words = self._errors.cgroup_strerror(code).decode(errors="replace")
        if code == _OTHER and (number := self._errors.cgroup_get_last_errno()):
            words = os.strerror(number)
        raise LibcgroupError(f"cannot {what}: {words}")


def _load(name: str) -> ModuleType:
    """A module of the binding; it loads the library on import, which fails in more than one way where that is missing."""
    try:
        return importlib.import_module(f"libcgroup_bind.{name}")
    except ImportError as error:
        raise LibcgroupError(f"the Python package libcgroup is missing ({error}); install what setup.cfg lists") from error
    except (OSError, AttributeError) as error:
        raise LibcgroupError(f"libcgroup.so is missing or too old ({error}); install Debian's package {PACKAGE}") from error


def _inherit_cpuset(place: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        file, above = place / name, place.parent / name
        if file.exists() and not file.read_text(encoding="ascii").strip():
            file.write_text(above.read_text(encoding="ascii"), encoding="ascii")

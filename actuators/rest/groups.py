"""The rest's control groups: those that exist are confined as they are, and the processes of the root get a group of their own.

The root of cpuset, v1 or v2, cannot be confined. Its processes are moved into ``parties-rest``, a group that has the reserved CPUs:
whatever they start is born there, which an affinity set thread by thread would not give, and one knob stands for all of them. Since
only processes of the root are moved, undo needs no list: all go back to the root and the group is removed.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from actuators.cgroup import v1_knobs, v2_knobs
from actuators.cgroup.files import vanished
from actuators.cgroup.processes import processes
from actuators.systemd.knobs import UnitListKnob
from monitors.rest import read_process
from parties.knob import Knob, KnobError, KnobRef
from parties.units import parse_cpu_list

GROUP: Final = "parties-rest"
ALL: Final = "all"
CPUS: Final = "cpuset.cpus"
MEMS: Final = "cpuset.mems"
_MOST_PASSES: Final = 20
_BETWEEN_PASSES_S: Final = 0.02
_MOST_NAMED: Final = 8
_PROCS: Final = "cgroup.procs"
_UNIT_ENDINGS: Final = (".slice", ".service", ".scope")


class RestListV1Knob(v1_knobs.ListKnob):
    """cpuset.cpus of a v1 group that is nobody's, under the exit policy of the rest."""

    KIND = "rest.list-v1"


class RestListV2Knob(v2_knobs.ListKnob):
    """cpuset.cpus of a v2 group that is nobody's, under the exit policy of the rest."""

    KIND = "rest.list-v2"


class RestUnitKnob(UnitListKnob):
    """AllowedCPUs of a unit that is nobody's, under the exit policy of the rest."""

    KIND = "rest.unit"

    def journalled_first(self) -> tuple[Knob, ...]:
        """The unit's drop-ins."""
        return tuple(self._unit.journalled_first(None))


class RestGroupKnob:
    """The group of what was in the root, by its CPUs; None where there is no such group.

    ``directory`` is the group's, the root of cpuset the one above it.
    """

    KIND = "rest.group"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ref = KnobRef(self.KIND, (str(directory),))

    def read(self) -> str | None:
        """Its list of CPUs, "" for one that has none yet."""
        try:
            return (self._directory / CPUS).read_text(encoding="ascii").strip()
        except OSError as error:
            if vanished(error):
                return self._absent()
            raise KnobError(error.errno, f"{self._directory / CPUS}: cannot be read: {error.strerror}") from error

    def write(self, value: str) -> None:
        """Make it, if need be, and give it these CPUs."""
        try:
            self._directory.mkdir(exist_ok=True)
        except OSError as error:
            raise KnobError(error.errno, f"{self._directory}: cannot be made: {error.strerror}") from error
        mems = self._directory / MEMS
        if mems.exists() and not mems.read_text(encoding="ascii").strip():  # v1 takes no process without; v2 inherits
            _put(mems, (self._directory.parent / MEMS).read_text(encoding="ascii").strip())
        _put(self._directory / CPUS, value)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare as sets."""
        return found is not None and parse_cpu_list(wanted) == parse_cpu_list(found)

    def restore(self, old: str | None) -> None:
        """Give it the CPUs that it had, or return its processes to the root and remove it."""
        if old:
            self.write(old)
            return
        for _ in range(_MOST_PASSES):
            inside = processes(str(self._directory))
            if inside is None:
                return
            _move(inside, self._directory.parent)
            try:
                self._directory.rmdir()
            except OSError as error:
                if vanished(error):
                    return
                if error.errno != errno.EBUSY:
                    raise KnobError(error.errno, f"{self._directory}: cannot be removed: {error.strerror}") from error
                time.sleep(_BETWEEN_PASSES_S)  # a process was started meanwhile, or is on its way out
            else:
                return
        raise KnobError(errno.EBUSY, f"{self._directory}: cannot be removed; has somebody made groups below it?")

    def _absent(self) -> str | None:
        """The group is not there, or has no such file; without the hierarchy there is nothing to bring back either."""
        if not self._directory.parent.is_dir():
            raise KnobError(errno.ENOENT, f"{self._directory.parent}: cpuset is not mounted here any more")
        return "" if self._directory.is_dir() else None


class RestMembersKnob:
    """That the root's processes are in the group. Its only value is "all"; ``read`` names who is not, "stray 12 13".

    Kernel threads stay in the root: they have affinities of their own. It is never journalled, as removing the group undoes it.
    """

    KIND = "rest.members"

    def __init__(self, directory: Path, proc: Path = Path("/proc")) -> None:
        self._directory = directory
        self._proc = proc
        self.ref = KnobRef(self.KIND, (str(directory), str(proc)))

    def read(self) -> str | None:
        """Whether all are in."""
        strays = self._strays()
        return ALL if not strays else f"stray {' '.join(map(str, strays[:_MOST_NAMED]))}"

    def write(self, value: str) -> None:  # noqa: ARG002 (there is only one)
        """Move them, again and again until nobody is left: new ones come while the old ones are moved."""
        for _ in range(_MOST_PASSES):
            strays = self._strays()
            if not strays:
                return
            _move(strays, self._directory)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Nothing: removing the group returns its processes."""

    def _strays(self) -> list[int]:
        if not self._directory.is_dir():
            raise KnobError(errno.ENOENT, f"{self._directory}: the group is gone")
        try:
            text = (self._directory.parent / _PROCS).read_text(encoding="ascii")
        except OSError as error:
            raise KnobError(error.errno, f"{self._directory.parent / _PROCS}: cannot be read: {error.strerror}") from error
        return [pid for pid in sorted({int(word) for word in text.split()} - {0}) if self._can_move(pid)]

    def _can_move(self, pid: int) -> bool:
        found = read_process(self._proc / str(pid))
        return found is not None and not found.kernel_thread


def _put(file: Path, text: str) -> None:
    try:
        file.write_text(f"{text}\n", encoding="ascii")
    except OSError as error:
        raise KnobError(error.errno, f"{file}: cannot set {text!r}: {error.strerror}") from error


def _move(pids: tuple[int, ...] | list[int], group: Path) -> None:
    """Put processes into a group, one write each as the kernel wants it, but for those that have ended. Raises the first error."""
    failed: KnobError | None = None
    try:
        fd = os.open(group / _PROCS, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KnobError(error.errno, f"{group / _PROCS}: cannot be opened: {error.strerror}") from error
    try:
        for pid in pids:
            try:
                os.write(fd, b"%d\n" % pid)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    failed = failed or KnobError(error.errno, f"{group}: process {pid} cannot be moved: {error.strerror}")
    finally:
        os.close(fd)
    if failed is not None:
        raise failed


# Which groups are nobody's


def confinable_v2(root: Path, registered: tuple[str, ...]) -> Iterator[str]:
    """The paths of the largest v2 groups that have processes and contain no registered one, nor lie in one.

    Where a slice contains a registered unit, its other children are given one by one: a child cannot have what its parent lacks.
    """
    yield from _cover(root, "", frozenset(path.strip("/") for path in registered))


def _cover(root: Path, above: str, registered: frozenset[str]) -> Iterator[str]:
    for name in _below(root / above):
        path = f"{above}/{name}".strip("/")
        if path in registered or path == GROUP:
            continue
        if any(one.startswith(f"{path}/") for one in registered):
            yield from _cover(root, path, registered)
        elif _populated(root / path):
            yield f"/{path}"


def confinable_v1(root: Path, registered: tuple[str, ...]) -> Iterator[str]:
    """The paths of the v1 groups that have processes and are not registered, nor in or above one that is; the deepest first."""
    taken = tuple(path.strip("/") for path in (*registered, GROUP))
    for place, _, _ in os.walk(root, topdown=False):
        path = str(Path(place).relative_to(root))
        if path == "." or any(f"{path}/".startswith(f"{one}/") or one.startswith(f"{path}/") for one in taken):
            continue
        try:
            inhabited = (Path(place) / _PROCS).read_text(encoding="ascii").strip()
        except OSError:
            continue  # just gone
        if inhabited:
            yield f"/{path}"


def unit_of(path: str) -> str | None:
    """The system manager's unit whose group this is: slices down to a unit; what a unit has made below itself is its own."""
    *slices, name = path.strip("/").split("/")
    return name if name.endswith(_UNIT_ENDINGS) and all(one.endswith(".slice") for one in slices) else None


def _below(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _populated(directory: Path) -> bool:
    try:
        return "populated 1" in (directory / "cgroup.events").read_text(encoding="ascii")
    except OSError:
        return False

"""Which threads are in a holder's resctrl group: those of its control groups, the later ones as well, and no others.

A thread that is forked inherits the group of the one that forked it, so whoever is in stays in; but what joins a control group from
outside (a service that is started again) comes with the root group's ways. So the group is looked after while the loop runs, by a
process of its own. Removing a group returns its threads to the root group: that is the undo, and the group's entry in the journal
precedes the first thread that is moved.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from actuators.cache.resctrl import PREFIX, ResctrlError, group_names
from actuators.cgroup.files import vanished
from actuators.cgroup.processes import read_ids
from parties.interfaces import Finding
from parties.knob import KnobError, KnobKind, KnobKinds, KnobRef
from parties.model import NS_PER_S, Holder, Resource

ALL = "all"
PERIOD_NS = NS_PER_S
_MOST_PASSES = 10
_MOST_NAMED = 8
_LISTS = ("cgroup.threads", "tasks")
"""A control group's list of threads in v2, and in v1."""


class ResctrlTasksKnob:
    """The threads of one of our groups. Its only value is "all": each thread of ``control_groups`` is in, nobody else is.

    Threads that are in somebody else's group are left there: ``read`` names them, and any that could not be moved.
    """

    KIND = "resctrl.tasks"

    def __init__(self, mount: Path, name: str, control_groups: Sequence[str]) -> None:
        self._mount, self._name, self._control_groups = mount, name, tuple(control_groups)
        self._tasks = f"{mount}/{name}/tasks"
        self.ref = KnobRef(self.KIND, (str(mount), name, *control_groups))

    def read(self) -> str | None:
        """That all are in, or who is not: "stray 12 13; qemu 17" for two that could not be moved and one in the group "qemu"."""
        strays, elsewhere = self._missing(self._inside())
        told = [f"stray {_shown(strays)}"] if strays else []
        told += [f"{group} {_shown(threads)}" for group, threads in sorted(elsewhere.items())]
        return "; ".join(told) or ALL

    def write(self, value: str) -> None:  # noqa: ARG002 (there is only one)
        """Move whoever is missing, again and again until nobody is: new threads come while the old ones are moved."""
        self._return_leavers()
        for _ in range(_MOST_PASSES):
            strays, _ = self._missing(self._inside())
            if not strays:
                return
            _move(strays, self._tasks)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare."""
        return wanted == found

    def restore(self, old: str | None) -> None:
        """Nothing: removing the group returns its threads."""

    def _inside(self) -> frozenset[int]:
        inside = _threads(self._tasks)
        if inside is None:
            raise KnobError(errno.ENOENT, f"{self._tasks}: the group is gone")
        return inside

    def _return_leavers(self) -> None:
        """Whoever has left the control groups leaves this one. They are looked at last: a new thread is in both from its birth."""
        inside = self._inside()
        leavers = inside - self._wanted()
        if leavers:
            _move(leavers, f"{self._mount}/tasks")

    def _wanted(self) -> frozenset[int]:
        return frozenset().union(*(threads_below(directory) for directory in self._control_groups))

    def _missing(self, inside: frozenset[int]) -> tuple[frozenset[int], Mapping[str, frozenset[int]]]:
        """Who is to be moved, and who is in somebody else's group, by its name."""
        missing = self._wanted() - inside
        elsewhere = {}
        if missing:
            elsewhere = {name: held for name in self._foreign_groups() if (held := missing & self._threads_of(name))}
        return missing.difference(*elsewhere.values()), elsewhere

    def _foreign_groups(self) -> Sequence[str]:
        try:
            return [name for name in group_names(self._mount) if not name.startswith(PREFIX)]
        except ResctrlError as error:
            raise KnobError(errno.EIO, str(error)) from error

    def _threads_of(self, group: str) -> frozenset[int]:
        return _threads(f"{self._mount}/{group}/tasks") or frozenset()


class MembershipTask:
    """The upkeep of one holder's group."""

    value = ALL

    def __init__(self, holder: Holder, knob: ResctrlTasksKnob, *, period_ns: int = PERIOD_NS) -> None:
        self._holder = holder
        self._told: set[str] = set()
        self.ref = knob.ref
        self.period_ns = period_ns

    def judge(self, found: str | None, error: OSError | None) -> Finding:
        """Warnings of threads that are not where they belong, once for each place. A vanished group is its own knob's business."""
        if error is not None:
            return Finding() if vanished(error) else Finding(warnings=(f"{self.ref.kind} of {self._holder}: {error}",))
        if found is None or found == ALL:
            return Finding()
        news = [
            (where, threads) for where, _, threads in (part.partition(" ") for part in found.split("; ")) if where not in self._told
        ]
        self._told.update(where for where, _ in news)
        return Finding(warnings=tuple(self._words(where, threads) for where, threads in news))

    def _words(self, where: str, threads: str) -> str:
        if where == "stray":
            return f"{self._holder}: its new threads could not all be given its cache ways yet"
        return f"{self._holder}: threads are in the resctrl group {where} of another tool and stay there, with its ways: {threads}"


def threads_below(directory: str) -> frozenset[int]:
    """The threads of a control group and of those below it; none where it is gone. Raises KnobError."""
    found: set[int] = set()
    for place, _, files in os.walk(directory):
        name = next((name for name in _LISTS if name in files), None)
        found |= (name and _threads(f"{place}/{name}")) or frozenset()
    return frozenset(found)


def _threads(path: str) -> frozenset[int] | None:
    """The threads in a list; None where its group is gone.

    A thread of another PID namespace is listed as 0, which in a write would mean the writer.
    """
    found = read_ids(path)
    return None if found is None else frozenset(found) - {0}


def _move(threads: Iterable[int], tasks: str) -> None:
    """Put threads into a group, one write each as the kernel wants it; one that has ended is none. Raises the first other error."""
    failed: KnobError | None = None
    try:
        fd = os.open(tasks, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KnobError(error.errno, f"{tasks}: cannot open: {error.strerror}") from error
    try:
        for thread in sorted(threads):
            try:
                os.write(fd, b"%d\n" % thread)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    continue
                failed = failed or KnobError(error.errno, f"{tasks}: cannot move thread {thread}: {error.strerror}")
    finally:
        os.close(fd)
    if failed is not None:
        raise failed


def _shown(threads: Iterable[int]) -> str:
    numbers = sorted(threads)
    return " ".join(map(str, numbers[:_MOST_NAMED])) + (
        f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    )


KINDS: KnobKinds = {
    ResctrlTasksKnob.KIND: KnobKind(
        lambda address: ResctrlTasksKnob(Path(address[0]), address[1], address[2:]), Resource.CACHE, slow=True
    )
}

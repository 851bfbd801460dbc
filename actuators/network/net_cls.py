"""Control groups v1 as a mark of whose packet it is: net_cls.classid, which the kernel copies to the sockets of the processes.

Used for groups that the v2 tree does not have, where net_cls is mounted. A class id that somebody else gave a group is taken as it
is; where there is none, the group gets that of its holder's traffic class. Groups below it are marked one by one, since only those
that are made later inherit it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from actuators.cgroup.files import KeptFile
from parties.knob import KnobRef

CLASS_ID = "net_cls.classid"


class ClassIdKnob:
    """net_cls.classid of one group, a decimal number; None where it has none.

    Setting it walks over all open sockets of the group's processes, so that it takes long for a busy server: a slow kind.
    """

    KIND = "net-cls.classid"

    def __init__(self, path: Path) -> None:
        self._file = KeptFile(path)
        self.ref = KnobRef(self.KIND, (str(path),))

    def read(self) -> str | None:
        """The number."""
        text = self._file.read().strip()
        return None if text == "0" else text

    def write(self, value: str) -> None:
        """Mark the group and what its processes have open."""
        self._file.write(value)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare numbers; 0 is none."""
        return int(wanted) == int(found or 0)

    def restore(self, old: str | None) -> None:
        """Bring back the mark, or that there was none."""
        self._file.write(old or "0")


def marks(group: Path) -> Iterator[tuple[Path, int]]:
    """The file and the number in it of a group and of those below it; nothing where there is none."""
    for place, _, names in os.walk(group):
        if CLASS_ID in names:
            path = Path(place) / CLASS_ID
            try:
                yield path, int(path.read_text(encoding="ascii"))
            except (OSError, ValueError):  # just gone
                continue

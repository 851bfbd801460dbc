"""What systemd writes besides a property that is set: the files of every controller of the unit, as it knows them.

It does not know all. Engines set some limits of their containers behind its back, in the kernel's file alone: Docker and containerd
(runc) no swap, Kubernetes memory.oom.group. Setting any property would do away with them, as does any reload. So they are put back
right after the property, and journalled before the first, for the reload that ends a restore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from actuators.cgroup.v2_files import ControllerFile
from parties.knob import KnobRef

_DEFAULTS: Mapping[str, str] = {
    "memory.min": "0",
    "memory.low": "0",
    "memory.swap.max": "max",
    "memory.zswap.max": "max",
    "memory.oom.group": "0",
}
"""The files, and what the kernel has where nobody has set any."""


class BesideKnob:
    """The files of one unit beside those of its own knobs: a JSON object with each that is not the kernel's default.

    Nobody wants a value of it, and every method raises KnobError.
    """

    KIND = "systemd.beside"

    def __init__(self, directory: Path) -> None:
        self._files = [(name, default, ControllerFile(directory, name)) for name, default in _DEFAULTS.items()]
        self.ref = KnobRef(self.KIND, (str(directory),))

    def read(self) -> str | None:
        """What differs from the kernel's defaults; None if nothing does."""
        found = {name: text for name, default, file in self._files if (text := _text(file)) not in (default, None)}
        return json.dumps(found, sort_keys=True) if found else None

    def write(self, value: str) -> None:
        """Have just these values, and the kernel's defaults otherwise."""
        self.restore(value)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare every file."""
        return _values(wanted) == _values(found)

    def restore(self, old: str | None) -> None:
        """Have the values that there were; what already is as it was is not written."""
        wanted = _values(old)
        for name, default, file in self._files:
            if _text(file) not in (wanted.get(name, default), None):
                file.write(wanted.get(name, default))


def _text(file: ControllerFile) -> str | None:
    text = file.read_if_enabled()
    return None if text is None else text.strip()


def _values(value: str | None) -> dict[str, str]:
    content = json.loads(value) if value else {}
    return content if isinstance(content, dict) else {}

"""The drop-in files that setting a property leaves behind, and the reload that makes systemd forget them.

Setting a property back to what it was is not enough: the file that says so would stay, and win over the unit's own files from then
on. So what was in these files, or that they were not there, is journalled before the unit's first property is set, and put back
after the last; then systemd reads its files anew, once for all units.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from actuators.systemd.bus import SystemdBus
from parties.knob import KnobError, KnobRef
from parties.model import Resource

CONTROL = "run/systemd/system.control"
TRANSIENT = "run/systemd/transient"
_DIRECTORIES = (CONTROL, TRANSIENT)
"""Where systemd puts the runtime drop-ins of units with a file of their own, and of transient ones such as containers' scopes."""

_REST = "rest"
_FILES: Mapping[Resource | None, tuple[str, ...]] = {
    None: ("50-AllowedCPUs.conf",),
    Resource.CORES: (
        "50-AllowedCPUs.conf",
        "50-AllowedMemoryNodes.conf",
        "50-CPUQuota.conf",
        "50-CPUQuotaPeriodSec.conf",
        "50-CPUWeight.conf",
    ),
    Resource.MEMORY: ("50-MemoryHigh.conf", "50-MemoryMax.conf"),
    Resource.DISK: ("50-IOReadBandwidthMax.conf", "50-IOWriteBandwidthMax.conf"),
}
_LIMITS = ("memory.high", "memory.max")
_DUE = "run/systemd/parties-reload-due"
DUE = "due"


class DropInKnob:
    """The drop-ins of one unit and one resource (None: the rest of the machine): a JSON object with the content of each there is.

    Those of memory also carry the group's limits, to be in force again before the drop-ins go: under what is in use no limit may be
    lowered, and the reload after it would (EBUSY).
    """

    KIND = "systemd.drop-in"  # and the resource, as an exit policy is a resource's: "systemd.drop-in.memory"

    def __init__(self, resource: Resource | None, unit: str, directory: Path, root: Path = Path("/")) -> None:
        self._unit = unit
        self._directory = directory
        self._root = root
        self._files = _FILES[resource]
        self._limits = _LIMITS if resource is Resource.MEMORY else ()
        self.ref = KnobRef(f"{self.KIND}.{resource or _REST}", (unit, str(directory), str(root)))

    def read(self) -> str | None:
        """The files' content, by path; None where there is none and no limit to mind."""
        state = {key: found for key, found in (("files", dict(self._content())), ("limits", self._in_force())) if found}
        return json.dumps(state, sort_keys=True) if state else None

    def write(self, value: str) -> None:
        """Have just these files."""
        self._put(value)

    def same(self, wanted: str, found: str | None) -> bool:
        """Compare the files alone."""
        return _files(wanted) == _files(found)

    def restore(self, old: str | None) -> None:
        """Have the files that there were."""
        self._put(old)

    def _put(self, value: str | None) -> None:
        self._refuse_early(value)
        wanted, found = _files(value), dict(self._content())
        if wanted == found:
            return
        if any(path.startswith(TRANSIENT) for path in wanted.keys() - found.keys()) and not self._directory.is_dir():
            raise KnobError(errno.ENOENT, f"drop-ins of {self._unit}: it has ended, and systemd removed them with it")
        try:
            (self._root / _DUE).touch()
            for path in found.keys() - wanted.keys():
                (self._root / path).unlink()
            for path, content in wanted.items():
                file = self._root / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content, encoding="utf-8")
            self._remove_empty()
        except OSError as error:
            raise KnobError(error.errno, f"drop-ins of {self._unit}: {error.filename}: {error.strerror}") from error

    def _refuse_early(self, value: str | None) -> None:
        before, now = _state(value).get("limits", {}), self._in_force()
        if now and before and now != before:
            raise KnobError(
                errno.EBUSY,
                f"drop-ins of {self._unit}: its memory limits are {now}, and would be {before} at once; mend those first",
            )

    def _content(self) -> Iterator[tuple[str, str]]:
        for directory in _DIRECTORIES:
            for name in self._files:
                path = f"{directory}/{self._unit}.d/{name}"
                try:
                    yield path, (self._root / path).read_text(encoding="utf-8", errors="surrogateescape")
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise KnobError(error.errno, f"{self._root / path}: cannot read: {error.strerror}") from error

    def _in_force(self) -> dict[str, str]:
        limits = {}
        for name in self._limits:
            with contextlib.suppress(OSError):
                limits[name] = (self._directory / name).read_text(encoding="ascii").strip()
        return limits

    def _remove_empty(self) -> None:
        for directory in _DIRECTORIES:
            place = self._root / directory / f"{self._unit}.d"
            with contextlib.suppress(OSError):  # not there, or somebody else's files are in it
                place.rmdir()
        with contextlib.suppress(OSError):
            (self._root / CONTROL).rmdir()


class ReloadKnob:
    """Whether systemd has yet to read its files anew. Journalled before everything else of systemd, so the last to be put back."""

    KIND = "systemd.reload"

    def __init__(self, bus: SystemdBus, root: Path = Path("/")) -> None:
        self._bus = bus
        self._due = root / _DUE
        self.ref = KnobRef(self.KIND, (str(root),))

    def read(self) -> str | None:
        """``DUE``, or None."""
        return DUE if self._due.exists() else None

    def write(self, value: str) -> None:
        """Note that it is due; ``value`` can be nothing else."""
        if value != DUE:
            raise KnobError(errno.EINVAL, f"{self._due}: cannot set {value!r}: {os.strerror(errno.EINVAL)}")
        self._due.touch()

    def same(self, wanted: str, found: str | None) -> bool:  # noqa: ARG002 (see ``restore``)
        """Whether nothing is due."""
        return found is None

    def restore(self, old: str | None) -> None:  # noqa: ARG002 (a reload that was due before is due still)
        """Have it done."""
        self._bus.reload()
        self._due.unlink(missing_ok=True)


def _state(value: str | None) -> Mapping[str, dict[str, str]]:
    content = json.loads(value) if value else {}
    return content if isinstance(content, dict) else {}


def _files(value: str | None) -> dict[str, str]:
    return _state(value).get("files", {})

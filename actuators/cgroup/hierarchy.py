"""Where this machine's control-group hierarchies are mounted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

V1_CONTROLLERS = frozenset(
    {"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "net_cls", "net_prio", "perf_event", "pids"}
)


class SetupError(Exception):
    """The machine or the configuration is not as it has to be: one message for the operator (what, where, what to do)."""


class ControllerMissingError(SetupError):
    """A control-group controller that is needed is not mounted."""


class GroupMissingError(SetupError):
    """A control group that is to be managed does not exist."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The mount points of the v1 controllers and of the v2 tree.

    ``v1`` maps a controller to its mount point; ``v2`` is the unified tree, None where it is not mounted.
    """

    v1: Mapping[str, Path] = field(default_factory=dict)
    v2: Path | None = None

    @classmethod
    def find(cls, root: Path = Path("/"), overrides: Mapping[str, str] | None = None) -> Hierarchies:
        """Read ``root``/proc/self/mountinfo; ``overrides`` (controller -> mount point) win over what is found there.

        Raises SetupError if the file cannot be read or an overriding mount point is not a directory.
        """
        mountinfo = root / "proc/self/mountinfo"
        try:
            lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError as error:
            raise SetupError(f"{mountinfo}: cannot read the mounts: {error.strerror}; is /proc mounted?") from error
        v1, v2 = _parse(lines, root)
        for controller, mount_point in (overrides or {}).items():
            path = Path(mount_point)
            if not path.is_dir():
                raise SetupError(f"controllers.{controller}: {path} is not a directory; give the controller's mount point")
            v1[controller] = path
        return cls(v1, v2)

    def mount_point(self, controller: str) -> Path:
        """The mount point of a v1 controller. Raises ControllerMissingError."""
        try:
            return self.v1[controller]
        except KeyError:
            raise ControllerMissingError(self.lacks((controller,))) from None

    def lacks(self, controllers: tuple[str, ...]) -> str:
        """One sentence naming those of ``controllers`` that have no v1 hierarchy and what to do; empty if all have one."""
        absent = [controller for controller in controllers if controller not in self.v1]
        if not absent:
            return ""
        found = f"found v1: {', '.join(sorted(self.v1)) or 'none'}; v2: {self.v2 or 'none'}"
        advice = f"mount -t cgroup -o {absent[0]} {absent[0]} /sys/fs/cgroup/{absent[0]}"
        return f"no control-group v1 hierarchy for {', '.join(absent)} ({found}); mount it, for example: {advice}"


def _parse(lines: list[str], root: Path) -> tuple[dict[str, Path], Path | None]:
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in lines:
        mount, _, filesystem = line.partition(" - ")
        fields, kinds = mount.split(), filesystem.split()
        if len(fields) < 5 or len(kinds) < 3:  # noqa: PLR2004 (mountinfo: the mount point is field 5, the options are the third after the dash)
            continue
        path = root / _unescape(fields[4]).lstrip("/")
        if kinds[0] == "cgroup":
            for option in kinds[2].split(","):
                if option in V1_CONTROLLERS:
                    v1.setdefault(option, path)
        elif kinds[0] == "cgroup2" and v2 is None:
            v2 = path
    return v1, v2


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes of blank, tab, newline and backslash."""
    for code in ("040", "011", "012", "134"):
        text = text.replace("\\" + code, chr(int(code, 8)))
    return text

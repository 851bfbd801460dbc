"""A machine's /proc and /sys as far as the rest of it is looked at: kernel threads, interrupts, control groups."""

from __future__ import annotations

from pathlib import Path

PF_KTHREAD, PF_NO_SETAFFINITY = 0x0020_0000, 0x0400_0000


class MachineTree:
    """Below ``root``; each method adds something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.v1 = root / "sys/fs/cgroup/cpuset"
        self.v2 = root / "sys/fs/cgroup/unified"
        for place in (self.v1, self.v2, root / "proc/irq", root / "sys/devices/virtual/workqueue"):
            place.mkdir(parents=True)
        (root / "proc/irq/default_smp_affinity").write_text("f\n")
        (root / "sys/devices/virtual/workqueue/cpumask").write_text("f\n")

    def thread(self, tid: int, name: str, *, kernel: bool = True, fixed: bool = False) -> None:
        """A thread that started 100 ticks after its number."""
        flags = PF_KTHREAD * kernel | PF_NO_SETAFFINITY * fixed
        place = self.root / f"proc/{tid}"
        place.mkdir()
        fields = ["S", "2", "0", "0", "0", "-1", str(flags), *["0"] * 12, str(100 + tid), *["0"] * 30]
        (place / "stat").write_text(f"{tid} ({name}) {' '.join(fields)}\n")

    def interrupt(self, number: str, cpus: str, *, handled: bool = True) -> Path:
        """An interrupt; the directory of all of them."""
        place = self.root / "proc/irq" / number
        place.mkdir()
        if handled:
            (place / "eth0").mkdir()
        (place / "smp_affinity_list").write_text(f"{cpus}\n")
        return place.parent

    def group_v2(self, path: str, *, populated: bool = True) -> None:
        """A v2 group and those above it."""
        place = self.v2
        for part in path.split("/"):
            place /= part
            place.mkdir(exist_ok=True)
            (place / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    def group_v1(self, path: str) -> None:
        """A v1 group with a process."""
        place = self.v1 / path
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.procs").write_text("7\n")
        (place / "cpuset.cpus").write_text("0-3\n")

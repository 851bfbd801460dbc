"""Fixture trees of resctrl: ordinary files where the kernel has its own, in the texts that it prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TreeOptions:
    """The machine: by default a Xeon E5 v4 with 20 ways, two of them shared with devices, and 16 classes of service."""

    ways: int = 20
    domains: tuple[int, ...] = (0, 1)
    closids: int = 16
    min_cbm_bits: int = 1
    shareable: int = 0xC0000
    cdp: bool = False
    memory_bandwidth: bool = False
    monitoring: bool = False

    @property
    def full(self) -> int:
        """The mask of every way."""
        return (1 << self.ways) - 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The names of the L3's lines."""
        return ("L3CODE", "L3DATA") if self.cdp else ("L3",)


XEON = TreeOptions()
XEON_CDP = TreeOptions(cdp=True, closids=8)
ODD_IDS = TreeOptions(domains=(3, 7), shareable=0)
EPYC = TreeOptions(ways=16, domains=tuple(range(16)), shareable=0, memory_bandwidth=True, monitoring=True)
HASWELL = TreeOptions(domains=(0,), closids=4, min_cbm_bits=2)


def make_tree(mount: Path, options: TreeOptions = XEON) -> Path:
    """A freshly mounted resctrl."""
    for line in options.lines:
        info = mount / "info" / line
        info.mkdir(parents=True)
        (info / "cbm_mask").write_text(f"{options.full:x}\n")
        (info / "min_cbm_bits").write_text(f"{options.min_cbm_bits}\n")
        (info / "num_closids").write_text(f"{options.closids}\n")
        (info / "shareable_bits").write_text(f"{options.shareable:x}\n")
    if options.memory_bandwidth:
        (mount / "info/MB").mkdir()
        (mount / "info/MB/num_closids").write_text("16\n")
    if options.monitoring:
        (mount / "info/L3_MON").mkdir()
        (mount / "info/L3_MON/mon_features").write_text("llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n")
        (mount / "mon_groups").mkdir()
    (mount / "info/last_cmd_status").write_text("ok\n")
    add_files(mount, options)
    return mount


def add_group(mount: Path, name: str, options: TreeOptions = XEON, *, mask: int = 0, mode: str = "shareable") -> Path:
    """A group, with one mask in every domain; every way without one."""
    add_files(mount / name, options, mask=mask, mode=mode)
    return mount / name


def add_files(group: Path, options: TreeOptions, *, mask: int = 0, mode: str = "shareable", tasks: Iterable[int] = ()) -> None:
    """What the kernel puts into the directory of a group."""
    group.mkdir(parents=True, exist_ok=True)
    lines = [(name, f"{mask or options.full:x}") for name in options.lines]
    lines += [("MB", "100")] if options.memory_bandwidth else []
    width = max(len(name) for name, _ in lines)
    text = "".join(f"{name:>{width}}:{';'.join(f'{domain}={value}' for domain in options.domains)}\n" for name, value in lines)
    (group / "schemata").write_text(text)
    (group / "mode").write_text(f"{mode}\n")
    (group / "tasks").write_text("".join(f"{task}\n" for task in tasks))
    if options.monitoring:
        for domain in options.domains:
            counters = group / f"mon_data/mon_L3_{domain:02d}"
            counters.mkdir(parents=True)
            for name in ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"):
                (counters / name).write_text("0\n")

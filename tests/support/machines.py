"""Machine shapes: the files of /proc, /sys and a few other places of one machine, kept as one text each in tests/fixtures/machines.

The format, see the README there: ``=== PATH`` begins a file, and its lines follow; ``=== PATH/`` is an empty directory;
``=== PATH -> TARGET`` a symbolic link. One list of numbers in a path, ``cpu[0-3,8]``, makes a file for each, and ``{+4}`` in its
text or target stands for the number plus four.

``python tests/support/machines.py`` records the machine that it runs on, without names, addresses and serial numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from parties.units import parse_cpu_list

DIRECTORY = Path(__file__).parent.parent / "fixtures/machines"

_HEAD = "=== "
_LIST = re.compile(r"\[([0-9,-]+)\]")
_OFFSET = re.compile(r"\{([+-]\d+)\}")

_RECORDED = (
    *("proc/cpuinfo", "proc/filesystems", "proc/meminfo", "proc/self/mountinfo", "proc/cmdline", "proc/version"),
    *("proc/interrupts", "proc/irq/*/smp_affinity_list", "proc/irq/*/effective_affinity_list", "proc/pressure/*"),
    *("proc/sys/kernel/osrelease", "proc/sys/kernel/perf_event_paranoid"),
    *(f"proc/2/{name}" for name in ("stat", "status", "cgroup", "comm")),
    *("sys/devices/system/cpu/online", "sys/devices/system/cpu/isolated", "sys/devices/system/cpu/cpu*/topology/*"),
    *("sys/devices/system/cpu/cpu*/cache/index3/*", "sys/devices/system/cpu/cpufreq/", "sys/devices/system/cpu/cpufreq/*/*"),
    *("sys/devices/system/cpu/cpu*/cpufreq", "sys/devices/system/cpu/intel_pstate/*", "sys/devices/system/node/node*/cpulist"),
    *(
        "sys/devices/system/clocksource/clocksource0/*_clocksource",
        "sys/fs/cgroup/*/",
        "sys/fs/cgroup/cgroup.[cs]*o*l*",
        "sys/fs/resctrl/info/*/*",
    ),
    *("sys/fs/cgroup/unified/cgroup.[cs]*o*l*", "sys/block/[!l]*/dev", "sys/block/[!l]*/size"),
    *("sys/class/net/*/speed", "sys/class/net/*/operstate", "sys/class/net/*/type"),
)
_OF_TOPOLOGY = frozenset({"core_cpus_list", "thread_siblings_list", "physical_package_id"})
_OF_CACHE = frozenset({"id", "level", "size", "shared_cpu_list", "ways_of_associativity"})
_SAID = ("psi", "cgroup", "systemd.unified", "isolcpus", "nohz_full", "rdt", "intel_pstate", "amd_pstate", "nomodule")
_SAID_OF_A_PROCESS = ("Name:", "Cpus_allowed_list:")


class Entry(NamedTuple):
    """One section: a file with its text, a link with its target, or a directory."""

    path: str
    text: str
    target: str = ""


def machine(name: str, directory: Path) -> Path:
    """Unpack the shape of that name below ``directory``, which stands for the file system's root from then on."""
    return unpack(entries((DIRECTORY / f"{name}.txt").read_text(encoding="utf-8")), directory)


def unpack(machine_entries: Iterable[Entry], directory: Path) -> Path:
    """Make these files below ``directory``."""
    made: set[str] = set()
    for entry in machine_entries:
        above, _, last = f"{directory}/{entry.path}".rpartition("/")
        if above not in made:
            Path(above).mkdir(parents=True, exist_ok=True)
            made.add(above)
        if entry.target:
            Path(above, last).symlink_to(entry.target)
        elif last:
            Path(above, last).write_bytes(entry.text.encode())
    return directory


def names() -> list[str]:
    """Every shape there is."""
    return sorted(file.stem for file in DIRECTORY.glob("*.txt"))


def entries(text: str) -> Iterator[Entry]:
    """Every file of a shape, with lists of numbers written out."""
    for section in re.split(rf"^{_HEAD}", text, flags=re.MULTILINE)[1:]:
        head, _, body = section.partition("\n")
        path, _, target = head.partition(" -> ")
        listed = _LIST.search(path)
        for number in parse_cpu_list(listed[1]) if listed else (0,):
            named = _LIST.sub(str(number), path) if listed else path
            yield Entry(named, _counted(body, number), _counted(target, number))


def _counted(text: str, number: int) -> str:
    return _OFFSET.sub(lambda found: str(number + int(found[1])), text)


def record(root: Path = Path("/")) -> Iterator[str]:
    """The sections of the machine at ``root``: what the doctor looks at, and no more."""
    for place in sorted({place for pattern in _RECORDED for place in root.glob(pattern)}):
        path = str(place.relative_to(root))
        if place.is_symlink():
            yield f"{_HEAD}{path} -> {place.readlink()}\n"
        elif place.is_dir():
            yield f"{_HEAD}{path}/\n"
        elif _wanted(path):
            try:
                text = place.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            yield f"{_HEAD}{path}\n{_sanitised(path, text)}"
            if path.startswith("sys/block/") and path.endswith("/dev"):
                yield f"{_HEAD}sys/dev/block/{text.strip()} -> ../../block/{place.parent.name}\n"


def _wanted(path: str) -> bool:
    above, _, last = path.rpartition("/")
    of = {"topology": _OF_TOPOLOGY, "index3": _OF_CACHE}
    known = of.get(above.rpartition("/")[2])
    return known is None or last in known


def _sanitised(path: str, text: str) -> str:
    if path == "proc/cmdline":
        return " ".join(word for word in text.split(" -- ", maxsplit=1)[0].split() if word.startswith(_SAID)) + "\n"
    if path == "proc/version":
        return " ".join(text.split()[:3]) + "\n"
    if path.endswith("/status"):
        return "".join(line for line in text.splitlines(keepends=True) if line.startswith(_SAID_OF_A_PROCESS))
    if path == "proc/cpuinfo":  # the processors are alike
        return text.partition("\n\n")[0] + "\n\n"
    if path == "proc/self/mountinfo":
        kept = [line for line in text.splitlines() if line.split(" - ")[-1].split()[0] in {"cgroup", "cgroup2", "resctrl", "sysfs"}]
        return "\n".join(kept) + "\n"
    return text


if __name__ == "__main__":
    sys.stdout.write("Recorded by tests/support/machines.py.\n" + "".join(record()))

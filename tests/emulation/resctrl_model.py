"""A model of the kernel's resctrl file system (arch/x86/kernel/cpu/resctrl of Linux 6.1 and later): its files, checks and errors.

Texts, orders of checks and errno are the kernel's; ``answers/`` holds what the real one answered. Written from its behaviour and
source; left out: pseudo-locking, L2, the software controller of memory bandwidth, renaming of monitoring groups.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.emulation.kernel_text import (
    format_cpu_list,
    format_cpu_mask,
    parse_cpu_list,
    parse_cpu_mask,
    parse_number,
    parse_pid,
    refusal,
)
from tests.emulation.threads import Threads

DIRECTORY = stat.S_IFDIR | 0o755
_FILE = stat.S_IFREG | 0o644
_READ_ONLY = stat.S_IFREG | 0o444
_STATUS_BYTES = 512
_MIN_BANDWIDTH = 10  # per cent; also the step
_FULL_BANDWIDTH = 100
_EVENTS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
_CONTROL_FILES = {"cpus": _FILE, "cpus_list": _FILE, "mode": _FILE, "schemata": _FILE, "size": _READ_ONLY, "tasks": _FILE}
_MONITOR_FILES = {"cpus": _FILE, "cpus_list": _FILE, "tasks": _FILE}


@dataclass(frozen=True)
class ResctrlOptions:
    """The machine that is emulated. ``domains`` maps each L3's id to its CPUs; None: one with all CPUs that are online."""

    ways: int = 11
    domains: dict[int, list[int]] | None = None
    closids: int = 16
    min_cbm_bits: int = 1
    shareable_bits: int = 0
    sparse_masks: bool = False
    cdp: bool = False  # mounted with -o cdp: code and data apart, half as many groups
    cdp_capable: bool = True  # the processor has it: names are padded for it
    memory_bandwidth: bool = False
    monitoring: bool = False
    rmids: int = 32
    way_bytes: int = 1 << 20
    recent: bool = False  # a kernel of 6.8 or later: sparse_masks, lists of threads


@dataclass(eq=False)
class Group:
    """A control group of resctrl, or a monitoring group below one."""

    name: str
    number: int
    closid: int
    parent: Group | None = None
    mode: str = "shareable"
    cpus: frozenset[int] = frozenset()
    monitors: dict[str, Group] = field(default_factory=dict)
    counters: dict[tuple[int, str], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """One line of schemata: L3, L3CODE, L3DATA or MB."""

    name: str
    peer: str = ""
    is_cache: bool = True


class ResctrlModel:
    """The file system. Paths begin with a slash; every method raises OSError as the kernel would."""

    def __init__(self, options: ResctrlOptions, threads: Threads, online: Sequence[int]) -> None:
        self.options = options
        self.domains = {0: list(online)} if options.domains is None else options.domains
        self.online = frozenset(cpu for cpus in self.domains.values() for cpu in cpus)
        self.full = (1 << options.ways) - 1
        self.closids = options.closids // 2 if options.cdp else options.closids
        if options.cdp:
            self.schemas = [Schema("L3CODE", "L3DATA"), Schema("L3DATA", "L3CODE")]
        else:
            self.schemas = [Schema("L3")]
        if options.memory_bandwidth:
            self.schemas.append(Schema("MB", is_cache=False))
        self._values = {
            (schema.name, domain): [self.full if schema.is_cache else _FULL_BANDWIDTH] * self.closids
            for schema in self.schemas
            for domain in self.domains
        }
        self.root = Group("", 0, 0, cpus=self.online)
        self.groups: dict[str, Group] = {"": self.root}
        self._index: dict[str, int] | None = None
        self.status = ""
        self._threads = threads
        self._next_number = 1
        self._threshold_bytes = 65536

    # The tree

    def _entries(self) -> dict[str, int]:
        """Every path with its type and permissions. Kept until a group comes or goes, as tools ask for hundreds."""
        if self._index is None:
            index = dict.fromkeys(self._directories(), DIRECTORY) | {"/": DIRECTORY}
            for path in self._info_files():
                index[path] = _FILE if path.endswith("/max_threshold_occupancy") else _READ_ONLY
            for where, group in self._all_groups().items():
                files = _MONITOR_FILES if group.parent else _CONTROL_FILES
                index |= {f"{where}/{name}": mode for name, mode in files.items()}
                index |= {f"{place}/{event}": _READ_ONLY for place in self._counter_directories(where) for event in _EVENTS}
            self._index = index
        return self._index

    def mode(self, path: str) -> int:
        """The type and permissions of a file."""
        try:
            return self._entries()[path]
        except KeyError:
            raise refusal(errno.ENOENT, path) from None

    def names(self, path: str) -> Sequence[str]:
        """The names in a directory."""
        prefix = path.rstrip("/") + "/"
        found = (name[len(prefix) :] for name in self._entries() if name.startswith(prefix))
        return sorted(name for name in found if name and "/" not in name)

    def target(self, path: str) -> str:
        """There are no symbolic links."""
        raise refusal(errno.EINVAL, path)

    def _all_groups(self) -> dict[str, Group]:
        found = {}
        for name, group in self.groups.items():
            where = f"/{name}" if name else ""
            found[where] = group
            found |= {f"{where}/mon_groups/{child}": monitor for child, monitor in group.monitors.items()}
        return found

    def _directories(self) -> set[str]:
        found = {"/info", *(f"/info/{schema.name}" for schema in self.schemas)}
        if self.options.monitoring:
            found.add("/info/L3_MON")
        for where, group in self._all_groups().items():
            found |= {where} if where else set()
            if self.options.monitoring:
                found |= {f"{where}/mon_data", *self._counter_directories(where)}
                found |= set() if group.parent else {f"{where}/mon_groups"}
        return found

    def _counter_directories(self, where: str) -> list[str]:
        return [f"{where}/mon_data/mon_L3_{domain:02d}" for domain in self.domains] if self.options.monitoring else []

    def _place(self, path: str) -> tuple[Group | None, str]:
        where, _, name = path.rpartition("/")
        return self._all_groups().get(where), name

    def _counter(self, path: str) -> tuple[Group, int, str] | None:
        if not self.options.monitoring:
            return None
        for where, group in self._all_groups().items():
            for domain, place in zip(self.domains, self._counter_directories(where), strict=True):
                event = path.removeprefix(f"{place}/")
                if event in _EVENTS and path == f"{place}/{event}":
                    return group, domain, event
        return None

    # Groups

    def mkdir(self, path: str) -> None:
        """Make a control group in the root, or a monitoring group in a ``mon_groups``."""
        where, _, name = path.rpartition("/")
        if "\n" in name:
            raise refusal(errno.EINVAL, path)
        if where == "":
            self._make_control(name)
            return
        place = where.removesuffix("/mon_groups")
        parent = self._all_groups().get(place)
        if not self.options.monitoring or place == where or parent is None or parent.parent is not None or name == "mon_groups":
            raise refusal(errno.EPERM, path)
        self._check_rmids()
        parent.monitors[name] = Group(name, self._number(), parent.closid, parent)

    def _make_control(self, name: str) -> None:
        if self.options.monitoring:
            self._check_rmids()
        taken = {group.closid for group in self.groups.values()}
        closid = next((number for number in range(self.closids) if number not in taken), None)
        if closid is None:
            raise self._refuse(errno.ENOSPC, "Out of CLOSIDs")
        staged = {}
        for schema in self.schemas:
            for domain in self.domains:
                staged[schema.name, domain] = self._first_mask(schema, domain) if schema.is_cache else _FULL_BANDWIDTH
        for key, value in staged.items():
            self._values[key][closid] = value
        self.groups[name] = Group(name, self._number(), closid)

    def _first_mask(self, schema: Schema, domain: int) -> int:
        """A new group has the first run of ways that nobody has for itself."""
        mask = used = self.options.shareable_bits
        for group in self.groups.values():
            theirs = self._values[schema.name, domain][group.closid]
            theirs |= self._values[schema.peer, domain][group.closid] if schema.peer else 0
            used |= theirs
            mask |= theirs if group.mode == "shareable" else 0
        mask |= self.full & ~used
        mask = _first_run(mask)
        if mask.bit_count() < self.options.min_cbm_bits:
            raise self._refuse(errno.ENOSPC, f"No space on {schema.name}:{domain}")
        return mask

    def _check_rmids(self) -> None:
        if len(self._all_groups()) >= self.options.rmids:
            raise self._refuse(errno.ENOSPC, "Out of RMIDs")

    def _number(self) -> int:
        self._index = None  # a group comes
        self._next_number += 1
        return self._next_number

    def rmdir(self, path: str) -> None:
        """Remove a group; its threads and CPUs go back to where it belonged."""
        group = self._all_groups().get(path)
        if group is None or group is self.root:
            raise refusal(errno.EPERM if self.mode(path) else errno.ENOENT, path)
        self._index = None
        if group.parent is not None:
            self._threads.move_all(group.number, group.parent.number)
            del group.parent.monitors[group.name]
            return
        for monitor in group.monitors.values():
            self._threads.move_all(monitor.number, self.root.number)
        self._threads.move_all(group.number, self.root.number)
        self.root.cpus |= group.cpus
        del self.groups[group.name]

    # Reading

    def read(self, path: str) -> str:
        """The text of a file."""
        info = self._info_files().get(path)
        if info is not None:
            return info()
        counter = self._counter(path)
        if counter is not None:
            group, domain, event = counter
            return group.counters.get((domain, event), "0") + "\n"
        found, name = self._place(path)
        if found is None:
            raise refusal(errno.ENODEV, path)
        readers: dict[str, Callable[[Group], str]] = {
            "schemata": self._show_schemata,
            "size": self._show_size,
            "tasks": lambda group: "".join(f"{tid}\n" for tid in self._tasks(group)),
            "cpus": lambda group: format_cpu_mask(group.cpus, max(self.online) + 1) + "\n",
            "cpus_list": lambda group: format_cpu_list(group.cpus) + "\n",
            "mode": lambda group: group.mode + "\n",
        }
        return readers[name](found)

    def _tasks(self, group: Group) -> list[int]:
        """A control group lists the threads of its monitoring groups as well."""
        tids = self._threads.inside(group.number)
        for monitor in group.monitors.values():
            tids += self._threads.inside(monitor.number)
        return sorted(tids)

    def _show_schemata(self, group: Group) -> str:
        digits = max((self.options.ways + 3) // 4, 3 if self.options.memory_bandwidth else 0)
        return self._lines(
            group, lambda schema, value: f"{value:0{digits}x}" if schema.is_cache else f"{value:{digits}d}", lambda value: value
        )

    def _show_size(self, group: Group) -> str:
        return self._lines(
            group, lambda _, value: str(value), lambda value: value.bit_count() * self.options.way_bytes
        )  # fmt: skip

    def _lines(self, group: Group, show: Callable[[Schema, int], str], of_cache: Callable[[int], int]) -> str:
        padded = self.options.cdp or self.options.cdp_capable
        width = max(len(schema.name) for schema in self.schemas)
        width = max(width, len("L3CODE")) if padded else width
        lines = []
        for schema in self.schemas:
            parts = []
            for domain in self.domains:
                value = self._values[schema.name, domain][group.closid]
                parts.append(f"{domain}={show(schema, of_cache(value) if schema.is_cache else value)}")
            lines.append(f"{schema.name:>{width}}:{';'.join(parts)}\n")
        return "".join(lines)

    def _info_files(self) -> dict[str, Callable[[], str]]:
        options = self.options
        files: dict[str, Callable[[], str]] = {"/info/last_cmd_status": lambda: self.status or "ok\n"}
        for schema in self.schemas:
            where = f"/info/{schema.name}"
            files[f"{where}/num_closids"] = lambda: f"{self.closids}\n"
            if not schema.is_cache:
                files |= {
                    f"{where}/bandwidth_gran": lambda: "10\n",
                    f"{where}/delay_linear": lambda: "1\n",
                    f"{where}/min_bandwidth": lambda: "10\n",
                    f"{where}/thread_throttle_mode": lambda: "max\n",
                }
                continue
            files |= {
                f"{where}/bit_usage": lambda schema=schema: self._show_usage(schema),  # type: ignore[misc]
                f"{where}/cbm_mask": lambda: f"{self.full:x}\n",
                f"{where}/min_cbm_bits": lambda: f"{options.min_cbm_bits}\n",
                f"{where}/shareable_bits": lambda: f"{options.shareable_bits:x}\n",
            }
            if options.recent:
                files[f"{where}/sparse_masks"] = lambda: f"{int(options.sparse_masks)}\n"
        if options.monitoring:
            files |= {
                "/info/L3_MON/max_threshold_occupancy": lambda: f"{self._threshold_bytes}\n",
                "/info/L3_MON/mon_features": lambda: "".join(f"{event}\n" for event in _EVENTS),
                "/info/L3_MON/num_rmids": lambda: f"{options.rmids}\n",
            }
        return files

    def _show_usage(self, schema: Schema) -> str:
        parts = []
        for domain in self.domains:
            held = {"shareable": 0, "exclusive": 0}
            for group in self.groups.values():
                held[group.mode] |= self._values[schema.name, domain][group.closid]
            parts.append(f"{domain}=" + "".join(self._usage_of(1 << way, held) for way in reversed(range(self.options.ways))))
        return ";".join(parts) + "\n"

    def _usage_of(self, way: int, held: dict[str, int]) -> str:
        if self.options.shareable_bits & way:
            return "X" if held["shareable"] & way else "H"
        if held["shareable"] & way:
            return "S"
        return "E" if held["exclusive"] & way else "0"

    # Writing

    def write(self, path: str, text: str) -> None:
        """One write of a file."""
        if path == "/info/L3_MON/max_threshold_occupancy":
            value = parse_number(text, 10)
            if value is None:
                raise refusal(errno.EINVAL, path)
            self._threshold_bytes = value
            return
        group, name = self._place(path)
        if group is None:
            raise refusal(errno.ENODEV, path)
        writers: dict[str, Callable[[Group, str], None]] = {
            "schemata": self._write_schemata,
            "mode": self._write_mode,
            "tasks": self._write_tasks,
            "cpus": lambda group, text: self._write_cpus(group, text, parse_cpu_mask),
            "cpus_list": lambda group, text: self._write_cpus(group, text, parse_cpu_list),
        }
        if name not in writers:
            raise refusal(errno.EACCES, path)
        writers[name](group, text)

    def _refuse(self, number: int, status: str = "") -> OSError:
        """The status grows until an operation clears it, as the kernel's buffer does."""
        if status:
            self.status = (self.status + status + "\n")[:_STATUS_BYTES]
        return refusal(number)

    def _write_schemata(self, group: Group, text: str) -> None:
        if not text.endswith("\n"):
            raise refusal(errno.EINVAL)
        self.status = ""
        staged: dict[tuple[str, int], int] = {}
        for line in text[:-1].split("\n"):
            name, colon, rest = line.partition(":")
            name = name.strip()
            if not colon:
                raise self._refuse(errno.EINVAL, "Missing ':'")
            if not rest:
                raise self._refuse(errno.EINVAL, f"Missing '{name}' value")
            schema = next((schema for schema in self.schemas if schema.name == name), None)
            if schema is None:
                raise self._refuse(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
            self._stage_line(group, schema, rest, staged)
        for key, value in staged.items():
            self._values[key][group.closid] = value

    def _stage_line(self, group: Group, schema: Schema, line: str, staged: dict[tuple[str, int], int]) -> None:
        while line:
            part, _, line = line.partition(";")
            number, equals, text = part.partition("=")
            domain = parse_number(number, 10) if equals else None
            if domain is None:
                raise self._refuse(errno.EINVAL, "Missing '=' or non-numeric domain")
            if domain not in self.domains:
                raise refusal(errno.EINVAL)  # the kernel gives no reason here
            if (schema.name, domain) in staged:
                raise self._refuse(errno.EINVAL, f"Duplicate domain {domain}")
            parse = self._parse_mask if schema.is_cache else self._parse_bandwidth
            staged[schema.name, domain] = parse(group, schema, domain, text.strip())

    def _parse_bandwidth(self, group: Group, schema: Schema, domain: int, text: str) -> int:  # noqa: ARG002 (as _parse_mask)
        value = parse_number(text, 10)
        if value is None:
            kind = "Invalid" if self.options.recent else "Non-decimal digit in"
            raise self._refuse(errno.EINVAL, f"{kind} MB value {text}")
        if not _MIN_BANDWIDTH <= value <= _FULL_BANDWIDTH:
            raise self._refuse(errno.EINVAL, f"MB value {value} out of range [{_MIN_BANDWIDTH},{_FULL_BANDWIDTH}]")
        return -(-value // _MIN_BANDWIDTH) * _MIN_BANDWIDTH

    def _parse_mask(self, group: Group, schema: Schema, domain: int, text: str) -> int:
        mask = parse_number(text, 16)
        if mask is None:
            raise self._refuse(errno.EINVAL, f"Non-hex character in the mask {text}")
        if (self.options.min_cbm_bits > 0 and mask == 0) or mask > self.full:
            raise self._refuse(errno.EINVAL, "Mask out of range")
        run = _first_run(mask)
        if not self.options.sparse_masks and run != mask:
            raise self._refuse(errno.EINVAL, f"The mask {mask:x} has non-consecutive 1-bits")
        if run.bit_count() < self.options.min_cbm_bits:
            raise self._refuse(errno.EINVAL, f"Need at least {self.options.min_cbm_bits} bits in the mask")
        if self._overlaps(group, schema, domain, mask, exclusive=True):
            raise self._refuse(errno.EINVAL, "Overlaps with exclusive group")
        if group.mode == "exclusive" and self._overlaps(group, schema, domain, mask, exclusive=False):
            raise self._refuse(errno.EINVAL, "Overlaps with other group")
        return mask

    def _overlaps(self, group: Group, schema: Schema, domain: int, mask: int, *, exclusive: bool) -> bool:
        if not exclusive and mask & self.options.shareable_bits:
            return True
        names = [schema.name, *([schema.peer] if schema.peer else [])]
        return any(
            mask & self._values[name, domain][other.closid]
            for name in names
            for other in self.groups.values()
            if other is not group and (other.mode == "exclusive" or not exclusive)
        )

    def _write_mode(self, group: Group, text: str) -> None:
        if not text.endswith("\n"):
            raise refusal(errno.EINVAL)
        self.status = ""
        mode = text[:-1]
        if mode == group.mode:
            return
        if mode not in {"shareable", "exclusive"}:
            raise self._refuse(errno.EINVAL, "Unknown or unsupported mode")
        if mode == "exclusive":
            for schema in self.schemas:
                for domain in self.domains if schema.is_cache else ():
                    if self._overlaps(group, schema, domain, self._values[schema.name, domain][group.closid], exclusive=False):
                        raise self._refuse(errno.EINVAL, "Schemata overlaps")
        group.mode = mode

    def _write_tasks(self, group: Group, text: str) -> None:
        parts = [part.strip() for part in text.rstrip("\n").split(",")] if self.options.recent else [text.strip()]
        if not self.options.recent and ((parse_pid(parts[0]) is None) or (parse_pid(parts[0]) or 0) < 0):
            raise refusal(errno.EINVAL)
        self.status = ""
        for part in parts:
            tid = parse_pid(part)
            if tid is None:
                raise self._refuse(errno.EINVAL, f"Task list parsing error pid {part}")
            if tid < 0:
                raise self._refuse(errno.EINVAL, f"Invalid pid {tid}")
            self._move_task(group, tid)

    def _move_task(self, group: Group, tid: int) -> None:
        number = 0
        if group.parent is not None:
            family = {group.parent.number, *(monitor.number for monitor in group.parent.monitors.values())}
            if self._threads.group_of(tid) not in family:
                number = errno.EINVAL
                self._refuse(number, "Can't move task to different control group")
        if not number and not self._threads.put(tid, group.number):
            number = errno.ESRCH
            self._refuse(number, f"No task {tid}")
        if number:
            raise self._refuse(number, f"Error while processing task {tid}" if self.options.recent else "")

    def _write_cpus(self, group: Group, text: str, parse: Callable[[str], frozenset[int]]) -> None:
        try:
            cpus = parse(text)
        except OSError as error:
            raise self._refuse(error.errno or errno.EINVAL, "Bad CPU list/mask") from error
        if cpus - self.online:
            raise self._refuse(errno.EINVAL, "Can only assign online CPUs")
        if group.parent is None:
            self._give_cpus(group, cpus)
            return
        if cpus - group.parent.cpus:
            raise self._refuse(errno.EINVAL, "Can only add CPUs to mongroup that belong to parent")
        for monitor in group.parent.monitors.values():
            monitor.cpus -= cpus
        group.cpus = cpus

    def _give_cpus(self, group: Group, cpus: frozenset[int]) -> None:
        if group is self.root and group.cpus - cpus:
            raise self._refuse(errno.EINVAL, "Can't drop CPUs from default group")
        self.root.cpus |= group.cpus - cpus
        for other in self.groups.values():
            if other is not group:
                other.cpus -= cpus
                for monitor in other.monitors.values():
                    monitor.cpus &= other.cpus
        group.cpus = cpus
        for monitor in group.monitors.values():
            monitor.cpus = frozenset()

    # What a test orders

    def set_counter(self, group: str, domain: int, event: str, value: str) -> None:
        """Let a monitoring counter say ``value`` (a number, or "Unavailable" or "Error"). ``group``: "", "a", "a/mon_groups/b"."""
        self._all_groups()[f"/{group}" if group else ""].counters[domain, event] = value

    def set_mask(self, group: str, schema: str, domain: int, mask: int) -> None:
        """Change a mask without any check, as hardware or another owner might."""
        self._values[schema, domain][self.groups[group].closid] = mask

    def get_state(self) -> dict[str, dict[str, object]]:
        """Every control group: CLOSID, mode, CPUs and masks as schemata says."""
        return {
            name: {
                "closid": group.closid,
                "mode": group.mode,
                "cpus": sorted(group.cpus),
                "schemata": self._show_schemata(group),
                "monitors": sorted(group.monitors),
            }
            for name, group in self.groups.items()
        }


def _first_run(mask: int) -> int:
    """The lowest run of 1-bits."""
    lowest = mask & -mask
    above = mask + lowest
    return mask & ~above

"""A model of /sys/devices/system/cpu: topology, caches, cpufreq with its drivers' own switches, with the kernel's own errors."""

from __future__ import annotations

import errno
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.emulation.cpufreq_policy import CpufreqOptions, Policy, Turbo, number
from tests.emulation.fuse_tree import FixedTree
from tests.emulation.kernel_text import format_cpu_list, format_cpu_mask, refusal

_DIRECTORY = stat.S_IFDIR | 0o755
_LINK = stat.S_IFLNK | 0o777
_INTEL = {"active": "intel_pstate", "passive": "intel_cpufreq", "off": ""}
_AMD = {"active": "amd-pstate-epp", "passive": "amd-pstate", "guided": "amd-pstate", "disable": ""}
_CACHES = {  # index: level, type, KiB, ways
    "index0": (1, "Data", 32, 8),
    "index1": (1, "Instruction", 32, 8),
    "index2": (2, "Unified", 1024, 16),
    "index3": (3, "Unified", 28160, 11),
}


@dataclass(frozen=True)
class Cpu:
    """One hardware thread."""

    number: int
    core: int
    socket: int


class CpufreqModel(FixedTree):
    """The tree. Paths begin with a slash, which stands for /sys/devices/system/cpu; every method raises OSError as sysfs would."""

    def __init__(self, options: CpufreqOptions) -> None:
        self.options = options
        per_socket = options.cores
        self.cpus = [
            Cpu((thread * options.sockets + socket) * per_socket + core, core, socket)
            for thread in range(options.threads)
            for socket in range(options.sockets)
            for core in range(options.cores)
        ]
        self.turbo = Turbo(on=not options.turbo_barred)
        self.status = self._status_of(options.driver)
        self.policies: dict[int, Policy] = {}
        self._index: dict[str, int] | None = None
        self._names: dict[str, list[str]] = {}
        self._register(options.driver)
        self._fixed = self._topology()

    def _status_of(self, driver: str) -> str:
        modes = self._modes_of(driver)
        return next((mode for mode, name in modes.items() if name == driver), "")

    @staticmethod
    def _modes_of(driver: str) -> dict[str, str]:
        if driver.startswith("intel"):
            return _INTEL
        return _AMD if driver.startswith("amd") else {}

    def _register(self, driver: str) -> None:
        self._index = None
        domains = self.options.policies or [[cpu.number] for cpu in self.cpus]
        self.policies = {min(cpus): Policy(self.options, driver, sorted(cpus), self.turbo) for cpus in domains} if driver else {}

    def _topology(self) -> dict[str, str]:
        everyone = frozenset(cpu.number for cpu in self.cpus)
        listed = format_cpu_list(everyone) + "\n"
        files = {f"/{name}": listed for name in ("online", "possible", "present")}
        files |= {"/offline": "\n", "/kernel_max": "8191\n", "/smt/active": f"{int(self.options.threads > 1)}\n"}
        files["/smt/control"] = "on\n" if self.options.threads > 1 else "notsupported\n"
        for cpu in self.cpus:
            where = f"/cpu{cpu.number}"
            socket = frozenset(other.number for other in self.cpus if other.socket == cpu.socket)
            core = frozenset(other.number for other in self.cpus if other.number in socket and other.core == cpu.core)
            files |= {
                f"{where}/online": "1\n",
                f"{where}/topology/core_id": f"{cpu.core}\n",
                f"{where}/topology/die_id": "0\n",
                f"{where}/topology/physical_package_id": f"{cpu.socket}\n",
            }
            for name, cpus in (("core_cpus", core), ("thread_siblings", core), ("package_cpus", socket), ("core_siblings", socket)):
                files[f"{where}/topology/{name}"] = format_cpu_mask(cpus, len(self.cpus)) + "\n"
                files[f"{where}/topology/{name}_list"] = format_cpu_list(cpus) + "\n"
            files |= self._caches(cpu, core, socket)
        return files

    def _caches(self, cpu: Cpu, core: frozenset[int], socket: frozenset[int]) -> dict[str, str]:
        files: dict[str, str] = {}
        ids = self.options.l3_ids or list(range(self.options.sockets))
        for index, (level, kind, kib, ways) in _CACHES.items():
            where = f"/cpu{cpu.number}/cache/{index}"
            shared = socket if level == len(_CACHES) - 1 else core
            texts: dict[str, object] = {
                "coherency_line_size": 64,
                "id": ids[cpu.socket] if shared is socket else min(core),
                "level": level,
                "number_of_sets": kib * 1024 // 64 // ways,
                "physical_line_partition": 1,
                "shared_cpu_list": format_cpu_list(shared),
                "shared_cpu_map": format_cpu_mask(shared, len(self.cpus)),
                "size": f"{kib}K",
                "type": kind,
                "ways_of_associativity": ways,
            }
            files |= {f"{where}/{name}": f"{text}\n" for name, text in texts.items()}
        return files

    # The tree

    def _files(self) -> dict[str, int]:
        files = dict.fromkeys(self._fixed, 0o444)
        files |= dict.fromkeys((name for name in files if name.endswith("/online") and name != "/online"), 0o644)
        for first, policy in self.policies.items():
            files |= {f"/cpufreq/policy{first}/{name}": mode for name, mode in policy.modes().items()}
        if self._modes_of(self.options.driver) is _INTEL:
            files |= {"/intel_pstate/status": 0o644}
            if self.policies:
                files |= dict.fromkeys((f"/intel_pstate/{name}" for name in ("max_perf_pct", "min_perf_pct", "no_turbo")), 0o644)
                files |= {"/intel_pstate/num_pstates": 0o444, "/intel_pstate/turbo_pct": 0o444}
        elif self._modes_of(self.options.driver) is _AMD:
            files |= {"/amd_pstate/status": 0o644}
        if self._has_boost():
            files |= {"/cpufreq/boost": 0o644}
        return files

    def _has_boost(self) -> bool:
        drivers = {policy.driver for policy in self.policies.values()}
        return bool(drivers & {"acpi-cpufreq", "amd-pstate", "amd-pstate-epp"}) and not self.options.turbo_barred

    def _links(self) -> dict[str, str]:
        return {f"/cpu{cpu}/cpufreq": f"../cpufreq/policy{first}" for first, policy in self.policies.items() for cpu in policy.cpus}

    def _entries(self) -> dict[str, int]:
        """Every path with its type and permissions. Kept until other policies come, as tools ask for thousands."""
        if self._index is None:
            index = {path: stat.S_IFREG | mode for path, mode in self._files().items()}
            index |= dict.fromkeys(self._links(), _LINK)
            parents = {str(parent) for path in index for parent in PurePosixPath(path).parents}
            self._index = index | dict.fromkeys({*parents, "/cpufreq"}, _DIRECTORY)
            self._names = {}
            for path in self._index:
                where, _, name = path.rpartition("/")
                self._names.setdefault(where or "/", []).append(name)
        return self._index

    def mode(self, path: str) -> int:
        """The type and permissions of a file."""
        try:
            return self._entries()[path]
        except KeyError:
            raise refusal(errno.ENOENT, path) from None

    def names(self, path: str) -> Sequence[str]:
        """The names in a directory."""
        self._entries()
        return sorted(filter(None, self._names.get(path, ())))

    def target(self, path: str) -> str:
        """Where a symbolic link points to."""
        try:
            return self._links()[path]
        except KeyError:
            raise refusal(errno.EINVAL, path) from None

    def _policy(self, path: str) -> tuple[Policy | None, str]:
        where, _, name = path.rpartition("/")
        first = where.removeprefix("/cpufreq/policy")
        return (self.policies.get(int(first)) if first.isdecimal() else None), name

    def read(self, path: str) -> str:
        """The text of a file."""
        if path in self._fixed:
            return self._fixed[path]
        policy, name = self._policy(path)
        if policy is not None:
            return policy.read(name)
        pct = next((policy.max_perf_pct for policy in self.policies.values()), 100)
        texts = {
            "/intel_pstate/status": self.status,
            "/amd_pstate/status": self.status,
            "/intel_pstate/no_turbo": str(int(not self.turbo.on)),
            "/intel_pstate/max_perf_pct": str(pct),
            "/intel_pstate/min_perf_pct": str(-(-self.options.min_khz * 100 // self.options.turbo_khz)),
            "/intel_pstate/num_pstates": str((self.options.turbo_khz - self.options.min_khz) // 100_000 + 1),
            "/intel_pstate/turbo_pct": str((self.options.turbo_khz - self.options.base_khz) * 100 // self.options.turbo_khz),
            "/cpufreq/boost": str(int(self.turbo.on)),
        }
        if path not in texts:
            raise refusal(errno.ENODEV, path)
        return texts[path] + "\n"

    def write(self, path: str, text: str) -> None:
        """One write of a file."""
        policy, name = self._policy(path)
        if policy is not None:
            policy.write(name, text)
        elif path.endswith("_pstate/status"):
            self._switch(text.strip())
        elif path == "/intel_pstate/no_turbo":
            self._set_no_turbo(number(text))
        elif path == "/intel_pstate/max_perf_pct":
            for each in self.policies.values():
                each.max_perf_pct = min(max(number(text), -(-self.options.min_khz * 100 // self.options.turbo_khz)), 100)
        elif path == "/cpufreq/boost":
            value = number(text)
            if value > 1:
                raise refusal(errno.EINVAL, path)
            self._set_turbo(on=bool(value))
        elif path.endswith("/online"):
            raise refusal(errno.EBUSY, path)  # no CPU of the emulation goes offline
        else:
            raise refusal(errno.ENODEV, path)

    def _set_no_turbo(self, value: int) -> None:
        if self.options.turbo_barred:
            raise refusal(errno.EPERM)
        self._set_turbo(on=not value)

    def _set_turbo(self, *, on: bool) -> None:
        self.turbo.on = on
        for policy in self.policies.values():
            policy.update()

    def _switch(self, mode: str) -> None:
        """Another mode is another driver: its policies begin anew."""
        modes = self._modes_of(self.options.driver)
        if mode not in modes:
            raise refusal(errno.EINVAL)
        if mode == "off" and self.status != "off":
            raise refusal(errno.EBUSY)  # with hardware P-states it cannot be left
        if mode != self.status:
            self.status = mode
            self._register(modes[mode])

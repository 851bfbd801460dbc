"""A service manager on a tree of ordinary files: answers on its private D-Bus socket as systemd 252 does, on a kernel of v2.

What it does to the files was watched on the real one: controllers come and go with the properties that need them, an emptied CPU
list is forgotten but not written, drop-ins win by their names at a reload, and a quota in a drop-in is a whole number of percents.
With a property it writes the files of every controller of that unit, as it knows them, and at a reload those of all units.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jeepney import HeaderFields, Parser, new_error, new_method_return

from actuators.cgroup.hierarchy import Hierarchies

UNSET = 2**64 - 1
HEAD = '# This is a drop-in unit file extension, created via "systemctl set-property"\n# or an equivalent operation. Do not edit.\n'
CPUSET, CPU, MEMORY, IO = "cpuset", "cpu", "memory", "io"
DEFAULTS = {
    CPUSET: {"cpuset.cpus": "", "cpuset.cpus.effective": "0-3", "cpuset.mems": "", "cpuset.mems.effective": "0"},
    CPU: {"cpu.max": "max 100000", "cpu.weight": "100", "cpu.idle": "0"},
    MEMORY: dict.fromkeys(("memory.high", "memory.max", "memory.swap.max"), "max")
    | {"memory.current": "0", "memory.events": "", "memory.stat": ""},
    IO: {"io.max": ""},
}
CONTROLLER = {
    "AllowedCPUs": CPUSET,
    "AllowedMemoryNodes": CPUSET,
    "CPUQuotaPerSecUSec": CPU,
    "CPUQuotaPeriodUSec": CPU,
    "CPUWeight": CPU,
    "MemoryHigh": MEMORY,
    "MemoryMax": MEMORY,
    "IOReadBandwidthMax": IO,
    "IOWriteBandwidthMax": IO,
}
FILE_NAMES = {"CPUQuotaPerSecUSec": "CPUQuota", "CPUQuotaPeriodUSec": "CPUQuotaPeriodSec"}
DEVICES = {"/dev/vdb": "254:16", "/dev/disk/by-id/b": "254:16", "/dev/vdc": "254:32"}


class FakeSystemd:
    """Below ``root``; ``units`` are the paths of running units by name, ``configured`` what their own files set.

    ``refuse`` maps the number of a call (from 0) to the D-Bus error name that it gets; ``silent`` calls get no answer, ``cut`` ones
    a closed connection. ``always`` are the controllers that are enabled without being asked for.
    """

    def __init__(self, root: Path, always: tuple[str, ...] = (CPU, MEMORY)) -> None:
        self.root = root
        self.tree = root / "sys/fs/cgroup"
        self.units: dict[str, str] = {}
        self.transient: set[str] = set()
        self.configured: dict[str, dict[str, Any]] = {}
        self.context: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.refuse: dict[int, str] = {}
        self.silent: set[int] = set()
        self.cut: set[int] = set()
        self.unknown_properties: set[str] = set()
        self.idle_weight = True
        self._always = always
        (root / "run/systemd/system").mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.tree.mkdir(parents=True)
        (self.tree / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        for path, number in {"vdb": "254:16", "vdc": "254:32"}.items():
            (root / f"sys/dev/block/{number}").mkdir(parents=True)
            (root / f"sys/dev/block/{number}/uevent").write_text(f"MAJOR=254\nDEVNAME={path}\n")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(root / "run/systemd/private"))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def hierarchies(self) -> Hierarchies:
        return Hierarchies.find(self.root)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(timeout=120)

    def start(self, unit: str, path: str, *, transient: bool = False, **configured: Any) -> Path:  # noqa: ANN401
        """Run a unit; its group as the kernel and systemd make it."""
        self.units[unit] = path
        if transient:
            self.transient.add(unit)
        self.configured.setdefault(unit, configured)
        self.context[unit] = self._loaded(unit)
        place = self.tree / path.strip("/")
        place.mkdir(parents=True)
        (place / "cgroup.procs").write_text("7\n")
        (place / "cgroup.freeze").write_text("0\n")
        self.realize()
        return place

    def stop(self, unit: str) -> None:
        shutil.rmtree(self.tree / self.units[unit].strip("/"))

    def reload(self) -> None:
        """daemon-reload: everything from the files again, and everything realized anew."""
        for unit in self.units:
            self.context[unit] = self._loaded(unit)
        self.realize()

    def snapshot(self) -> Mapping[str, str]:
        """Every file of the tree that holds a setting, and of systemd's runtime directory."""
        files = (file for top in (self.tree, self.root / "run") for file in top.rglob("*") if file.is_file())
        return {str(file.relative_to(self.root)): file.read_text() for file in files if file.suffix != ".effective"}

    # What it does to the kernel

    def realize(self, changed: str = "") -> None:
        """Every unit anew, or one."""
        wanted = {CONTROLLER[name] for context in self.context.values() for name, value in context.items() if _set(value)}
        for unit, path in self.units.items():
            place = self.tree / path.strip("/")
            if not place.is_dir():
                continue
            own = {CONTROLLER[name] for name, value in self.context[unit].items() if _set(value)} | set(self._always)
            for controller, files in DEFAULTS.items():
                if controller in wanted or controller in self._always:
                    for name, text in files.items():
                        if not (place / name).exists():
                            (place / name).write_text(text + "\n")
                else:
                    for name in files:
                        (place / name).unlink(missing_ok=True)
            self._write_values(place, self.context[unit], own if changed in ("", unit) else set())

    @staticmethod
    def _write_values(place: Path, context: Mapping[str, Any], own: set[str]) -> None:
        for controller, values in ((CPUSET, _lists), (CPU, _cpu_values), (MEMORY, _limits), (IO, _disk_limits)):
            if controller in own:
                for name, text in values(context).items():
                    (place / name).write_text(text + "\n")

    # What it keeps in files

    def _loaded(self, unit: str) -> dict[str, Any]:
        context = dict(self.configured.get(unit, {}))
        files: dict[str, Path] = {}
        for directory in (
            "etc/systemd/system",
            "run/systemd/transient",
            "run/systemd/system.control",
            "etc/systemd/system.control",
        ):
            files |= {file.name: file for file in (self.root / directory / f"{unit}.d").glob("*.conf")}
        for name in sorted(files):
            for line in files[name].read_text().splitlines():
                if "=" in line and not line.startswith("#"):
                    _assign(context, *line.split("=", 1))
        return context

    def _write_drop_in(self, unit: str, prop: str) -> None:
        name = FILE_NAMES.get(prop, prop)
        directory = "transient" if unit in self.transient else "system.control"
        file = self.root / f"run/systemd/{directory}/{unit}.d/50-{name}.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{HEAD}[Service]\n{_lines(prop, self.context[unit][prop])}\n")

    # How it is spoken with

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            self._answer_all(connection)

    def _answer_all(self, connection: socket.socket) -> None:
        text = b""
        while b"BEGIN\r\n" not in text:
            text += (data := connection.recv(4096))
            if not data:
                return
            if b"AUTH" in data:
                connection.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        parser = Parser()
        parser.add_data(text.partition(b"BEGIN\r\n")[2])
        for serial in range(1, 1 << 30):
            while (message := parser.get_next_message()) is None:
                if not (data := connection.recv(4096)):
                    return
                parser.add_data(data)
            number, method = len(self.calls), str(message.header.fields[HeaderFields.member])
            self.calls.append((method, message.body))
            if number in self.cut:
                return
            if number in self.silent:
                continue
            connection.sendall(self._answer(message, method, self.refuse.get(number, "")).serialise(serial=serial))

    def _answer(self, message: Any, method: str, refusal: str) -> Any:  # noqa: ANN401 - jeepney has no types
        body = message.body
        unit = str(body[0]) if body else ""
        if refusal:
            return new_error(message, refusal, "s", (f"refused by the test with {refusal}",))
        if method == "Reload":
            self.reload()
            return new_method_return(message)
        if method == "LoadUnit":
            return new_method_return(message, "o", (f"/org/freedesktop/systemd1/unit/{re.sub('[^a-z]', '_', unit)}",))
        if method == "Get" and body[1] == "Version":
            return new_method_return(message, "v", (("s", "252"),))
        if method == "Get":
            (name,) = [
                name for name in self.units if str(message.header.fields[HeaderFields.path]).endswith(re.sub("[^a-z]", "_", name))
            ]
            return new_method_return(message, "v", (("a(st)", self.context[name].get(body[1], [])),))
        return self._set_properties(message, unit, body[1], body[2])

    def _set_properties(self, message: Any, unit: str, runtime: bool, properties: Any) -> Any:  # noqa: ANN401, FBT001
        if unit not in self.units:
            return new_error(message, "org.freedesktop.systemd1.NoSuchUnit", "s", (f"Unit {unit} not found.",))
        assert runtime
        for name, (_, value) in properties:
            if name in self.unknown_properties:
                words = f"Cannot set property {name}, or unknown property."
                return new_error(message, "org.freedesktop.DBus.Error.PropertyReadOnly", "s", (words,))
            if name == "CPUWeight" and value == 0 and not self.idle_weight:
                words = "Value specified in CPUWeight is out of range"
                return new_error(message, "org.freedesktop.DBus.Error.InvalidArgs", "s", (words,))
        for name, (signature, value) in properties:
            context = self.context[unit]
            if signature == "a(st)":
                kept = {path: rate for path, rate in context.get(name, []) if path not in dict(value)}
                context[name] = [(path, rate) for path, rate in (kept | dict(value)).items() if rate != UNSET]
            else:
                context[name] = value
            self._write_drop_in(unit, name)
        self.realize(unit)
        return new_method_return(message)


def _lists(context: Mapping[str, Any]) -> dict[str, str]:
    """An empty list is not written; where there never was one all are in force."""
    values: dict[str, str] = {}
    for prop, name in (("AllowedCPUs", "cpuset.cpus"), ("AllowedMemoryNodes", "cpuset.mems")):
        if text := _ranges(context.get(prop) or b""):
            values |= {name: text, f"{name}.effective": text}
    return values


def _limits(context: Mapping[str, Any]) -> dict[str, str]:
    files = {"MemoryHigh": "memory.high", "MemoryMax": "memory.max", "MemorySwapMax": "memory.swap.max"}
    values = {name: context.get(prop, UNSET) for prop, name in files.items()}
    return {name: "max" if value == UNSET else str(value) for name, value in values.items()}


def _disk_limits(context: Mapping[str, Any]) -> dict[str, str]:
    limits: dict[str, dict[str, str]] = {}
    for prop, key in (("IOReadBandwidthMax", "rbps"), ("IOWriteBandwidthMax", "wbps")):
        for path, value in context.get(prop, ()):
            limits.setdefault(DEVICES[path], {"rbps": "max", "wbps": "max"})[key] = str(value)
    lines = [f"{device} rbps={keys['rbps']} wbps={keys['wbps']} riops=max wiops=max" for device, keys in limits.items()]
    return {"io.max": "\n".join(lines)}


def _cpu_values(context: Mapping[str, Any]) -> dict[str, str]:
    weight = context.get("CPUWeight", UNSET)
    quota, period = context.get("CPUQuotaPerSecUSec", UNSET), context.get("CPUQuotaPeriodUSec", UNSET)
    period = 100_000 if period == UNSET else max(period, 1000, 1000 * 1_000_000 // quota)
    return {
        "cpu.idle": "1" if weight == 0 else "0",
        "cpu.weight": "0" if weight == 0 else "100" if weight == UNSET else str(weight),
        "cpu.max": f"{'max' if quota == UNSET else quota * period // 1_000_000} {period}",
    }


def _set(value: Any) -> bool:  # noqa: ANN401 - of any property
    return value not in (UNSET, b"", [], ())


def _ranges(mask: bytes) -> str:
    numbers = [index * 8 + bit for index, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
    return ",".join(str(number) for number in numbers)


def _lines(prop: str, value: Any) -> str:  # noqa: ANN401 - of any property
    if prop in ("AllowedCPUs", "AllowedMemoryNodes"):
        return f"{prop}=\n{prop}={_ranges(value)}"
    if prop == "CPUQuotaPerSecUSec":
        return "CPUQuota=" if value == UNSET else f"CPUQuota={value // 10000}%"
    if prop == "CPUQuotaPeriodUSec":
        return "CPUQuotaPeriodSec=" if value == UNSET else f"CPUQuotaPeriodSec={value}us"
    if prop == "CPUWeight":
        return "CPUWeight=" if value == UNSET else f"CPUWeight={value or 'idle'}"
    if prop.startswith("IO"):
        return "\n".join([f"{prop}=", *(f"{prop}={path} {rate}" for path, rate in value)])
    return f"{prop}={'infinity' if value == UNSET else value}"


def _assign(context: dict[str, Any], name: str, text: str) -> None:
    """One line of a drop-in, as it is read back."""
    if name in ("AllowedCPUs", "AllowedMemoryNodes"):
        numbers = [int(number) for number in text.split(",") if number]
        context[name] = sum(1 << number for number in numbers).to_bytes(max(numbers, default=-1) // 8 + 1, "little")
    elif name == "CPUQuota":
        context["CPUQuotaPerSecUSec"] = int(text.rstrip("%")) * 10000 if text else UNSET
    elif name == "CPUQuotaPeriodSec":
        context["CPUQuotaPeriodUSec"] = int(text.removesuffix("us")) if text else UNSET
    elif name == "CPUWeight":
        context[name] = {"": UNSET, "idle": 0}.get(text) if text in ("", "idle") else int(text)
    elif name.startswith("IO"):
        path, _, rate = text.partition(" ")
        context[name] = [*context.get(name, []), (path, int(rate))] if text else []
    else:
        context[name] = UNSET if text == "infinity" else int(text)

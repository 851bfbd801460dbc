"""A virtual machine that runs commands for a test, can be reset at any point, and is gone when the test is over.

QEMU in software emulation: it works everywhere, and its clocks are slow and uneven, so that tests assert on ratios and orders.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .agent import PORT as AGENT_PORT
from .firmware import frequency_table
from .image import GuestImage
from .resctrl_trick import debugger_script

BOOT_LIMIT_S = 900.0  # of what takes 20 s: a busy host may be ten times slower, and no test is about that
STUCK_S = 240.0  # now and then a reset leaves the emulated processors hanging in the first moments of the kernel, for ever
COMMAND_LIMIT_S = 300.0
SLACK_S = 120.0  # beyond a command's own limit, since the guest's clock is slower than ours
LOOK_S = 2.0  # between looks at a silent guest's console
SCRATCH_MIB = 256
XEON = "max,vendor=GenuineIntel,family=6,model=63,stepping=2"  # neither driver takes the processor that "max" is by default
KERNEL_LINE = (
    "console=ttyS0 root=/dev/vda rw quiet loglevel=4 mitigations=off random.trust_cpu=on net.ifnames=0 systemd.show_status=0"
)


class GuestError(Exception):
    """The guest did not do what it was asked; the message ends with the last lines of its console."""


@dataclass(frozen=True, slots=True)
class GuestOptions:
    """What kind of machine. ``frequency``: processors that acpi-cpufreq takes; ``resctrl``: the kernel's own resctrl.

    CPUs and memory are divided evenly among the ``sockets``; each of several has a NUMA node and an L3 cache of its own. A socket
    then has 2, 4 or 8 CPUs: other numbers leave gaps between the APIC ids, and under QEMU 7.2 the kernel then hangs as it boots.
    """

    cpus: int = 4
    sockets: int = 1
    memory_mib: int = 2048
    frequency: bool = False
    resctrl: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command in the guest ended: ``code`` is None where it was killed at its limit."""

    code: int | None
    out: str
    err: str


class GuestMachine:
    """Boots on entry; on exit it is killed, whatever happened, and its disks are removed.

    The root file system is an overlay over the image, kept over resets. The third disk, /dev/vdc, is empty and the tests' own.
    """

    def __init__(self, image: GuestImage, project: Path, directory: Path, options: GuestOptions = GuestOptions()) -> None:
        self._image = image
        self._project = project
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._qmp: socket.socket | None = None
        self._rest = b""
        self._answers: dict[int, Answer] = {}
        self._number = 0
        self.boot_id = ""
        self.boot_s = 0.0
        """How long the last boot took until the agent answered."""

    # Its life

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self._start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for name in ("root.qcow2", "scratch.img"):
            (self._directory / name).unlink(missing_ok=True)

    def kill(self) -> None:
        """End it at once, as a cut cable would."""
        for connection in (self._channel, self._qmp):
            if connection is not None:
                connection.close()
        self._channel = self._qmp = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def reset(self) -> None:
        """Press the reset button, and wait until it is up again. What was not yet on its disks is lost.

        Once more if it then hangs: a boot that came to nothing has changed nothing.
        """
        begun, before = time.monotonic(), self.boot_id
        self._command_qemu("system_reset")
        if not self._boots(begun, begun + STUCK_S, other_than=before):
            sys.stderr.write(f"guest: not up within {STUCK_S:.0f} s of a reset, so it is reset once more\n")
            self._command_qemu("system_reset")
            self._await_boot(begun, other_than=before)

    def power_off(self, limit_s: float = 600.0) -> None:
        """Shut it down in order and wait for its end."""
        self._send({"id": self._next(), "argv": ["systemctl", "poweroff"], "limit_s": COMMAND_LIMIT_S})
        assert self._process is not None
        try:
            self._process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise self._error(f"not off within {limit_s:.0f} s") from None
        self.kill()

    # What it can be asked

    def run(self, *argv: str, limit_s: float = COMMAND_LIMIT_S, stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
        """Run a command, whatever its exit code. ``limit_s`` is in the guest's time."""
        return self.wait(self.begin(*argv, limit_s=limit_s, stdin=stdin, env=env), limit_s)

    def begin(self, *argv: str, limit_s: float = COMMAND_LIMIT_S, stdin: str = "", env: Mapping[str, str] | None = None) -> int:
        """Start a command and go on; its number is for ``wait``."""
        number = self._next()
        self._send({"id": number, "argv": list(argv), "stdin": stdin, "limit_s": limit_s, "env": dict(env or {})})
        return number

    def wait(self, number: int, limit_s: float = COMMAND_LIMIT_S) -> Answer:
        """The end of a command that was begun. Raises GuestError if it does not come."""
        deadline = time.monotonic() + 2 * limit_s + SLACK_S
        while number not in self._answers:
            message = self._receive(deadline)
            if message is None:
                raise self._error(f"no answer to command {number} within {2 * limit_s + SLACK_S:.0f} s")
            if "hello" in message:
                raise self._error("the guest began anew, unasked")
            self._answers[message["id"]] = Answer(message["exit"], message["out"], message["err"])
        return self._answers.pop(number)

    def output(self, *argv: str, limit_s: float = COMMAND_LIMIT_S, stdin: str = "") -> str:
        """Run a command that must succeed; what it printed. Raises GuestError."""
        answer = self.run(*argv, limit_s=limit_s, stdin=stdin)
        if answer.code != 0:
            ending = f"exit code {answer.code}" if answer.code is not None else f"killed after {limit_s:.0f} s"
            raise self._error(f"{' '.join(argv)}: {ending}\n{answer.out[-4000:]}{answer.err[-4000:]}", console=False)
        return answer.out

    def shell(self, script: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Run a shell script that must succeed in every line; what it printed."""
        return self.output("sh", "-eu", limit_s=limit_s, stdin=script)

    def call(self, module: str, function: str, limit_s: float = COMMAND_LIMIT_S, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """Call ``tests.guest.MODULE.FUNCTION`` in the guest; what it returned. Raises GuestError with its traceback."""
        text = self.output("python3", "-m", "tests.guest.inside", module, function, json.dumps(arguments), limit_s=limit_s)
        return json.loads(text.splitlines()[-1])

    def read(self, path: str) -> str:
        """A file's text."""
        return self.output("cat", path)

    def write(self, path: str, text: str) -> None:
        """Write a file, making its directory."""
        self.output("sh", "-c", 'mkdir -p "${1%/*}" && cat > "$1"', "sh", path, stdin=text)

    def until_up(self, limit_s: float = 600.0) -> str:
        """Wait until the system has come up; "running", or "degraded" with the units that failed."""
        state = self.run("systemctl", "is-system-running", "--wait", limit_s=limit_s).out.strip()
        return state if state == "running" else f"{state}: {self.run('systemctl', '--failed', '--plain', '--no-legend').out}"

    def console(self, lines: int = 40) -> str:
        """The last lines of the console."""
        with contextlib.suppress(OSError):
            return "\n".join((self._directory / "console.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    # How it is started

    def _prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        overlay = str(self._directory / "root.qcow2")
        _run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(self._image.root), overlay)
        with (self._directory / "scratch.img").open("wb") as file:
            file.truncate(SCRATCH_MIB << 20)

    def _start(self) -> None:
        begun = time.monotonic()
        wrapper = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with (self._directory / "qemu.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*wrapper, *self._command_line()], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory
            )
        self._channel = self._connect("agent.sock")
        self._qmp = self._connect("qmp.sock")
        self._command_qemu("qmp_capabilities")
        if self._options.resctrl:
            self._debug()
        self._await_boot(begun)

    def _command_line(self) -> Sequence[str]:
        options = self._options
        special = options.frequency or options.resctrl
        words = [
            *(
                "qemu-system-x86_64",
                "-accel",
                "tcg,thread=multi",
                "-machine",
                "q35",
                "-nographic",
                "-nodefaults",
                "-no-user-config",
            ),
            *("-cpu", XEON if special else "max", *_shape(options)),
            *("-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)),
            *("-append", KERNEL_LINE + (" nokaslr" if options.resctrl else "")),
            *("-serial", "file:console.log"),
            *("-drive", "file=root.qcow2,if=virtio,format=qcow2,cache=unsafe"),
            *("-drive", f"file={self._project},if=virtio,format=raw,readonly=on"),
            *("-drive", "file=scratch.img,if=virtio,format=raw,cache=unsafe"),
            *("-device", "virtio-serial-pci", "-chardev", "socket,path=agent.sock,server=on,wait=off,id=agent"),
            *("-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"),
            *("-qmp", "unix:qmp.sock,server=on,wait=off"),
        ]
        if options.frequency:
            table = frequency_table(self._directory, cpus=options.cpus)
            words += ["-acpitable", f"file={table}", "-device", "pc-testdev"]
        if options.resctrl:
            words += ["-chardev", "socket,path=gdb.sock,server=on,wait=off,id=gdb", "-gdb", "chardev:gdb", "-S"]
        return words

    def _debug(self) -> None:
        """Let a debugger have its way while the kernel boots."""
        script = self._directory / "resctrl.gdb"
        script.write_text(debugger_script(self._image.kernel_version, self._directory / "gdb.sock"))
        done = subprocess.run(
            ["gdb", "-nx", "-batch", "-x", str(script)], capture_output=True, text=True, timeout=BOOT_LIMIT_S, check=False
        )
        (self._directory / "gdb.log").write_text(done.stdout + done.stderr)
        if "Error" in done.stderr or done.returncode:
            raise self._error(f"the debugger failed: {done.stderr[-2000:]}")

    def _connect(self, name: str) -> socket.socket:
        deadline = time.monotonic() + SLACK_S
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(os.path.relpath(self._directory / name))
            except OSError:
                connection.close()
                if time.monotonic() > deadline or self._process is None or self._process.poll() is not None:
                    raise self._error("QEMU did not start") from None
                time.sleep(0.05)
            else:
                return connection

    # How it is spoken with

    def _await_boot(self, begun: float, other_than: str = "") -> None:
        if not self._boots(begun, begun + BOOT_LIMIT_S, other_than):
            raise self._error(f"not up within {BOOT_LIMIT_S:.0f} s")

    def _boots(self, begun: float, deadline: float, other_than: str) -> bool:
        """Whether the agent of another boot has said hello by then."""
        self._answers.clear()
        while (message := self._receive(deadline)) is not None:
            if message.get("hello", other_than) != other_than:
                self.boot_id = message["hello"]
                self.boot_s = time.monotonic() - begun
                return True
        return False

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _send(self, request: dict[str, Any]) -> None:
        assert self._channel is not None, "the machine is off"
        self._channel.settimeout(SLACK_S)
        self._channel.sendall(json.dumps(request).encode() + b"\n")

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        """The agent's next message, or None at the deadline. Half a line of before a reset is passed over."""
        assert self._channel is not None, "the machine is off"
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                with contextlib.suppress(ValueError):
                    return dict(json.loads(line[max(line.rfind(b'{"hello"'), 0) :]))
                continue
            if not self._readable(self._channel, deadline):
                return None
            data = self._channel.recv(1 << 16)
            if not data:
                raise self._error("QEMU ended")
            self._rest += data

    def _readable(self, channel: socket.socket, deadline: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(channel, selectors.EVENT_READ)
            while not selector.select(min(LOOK_S, max(0.0, deadline - time.monotonic()))):
                if "Kernel panic" in self.console():
                    raise self._error("the guest's kernel panicked")
                if time.monotonic() > deadline:
                    return False
        return True

    def _command_qemu(self, command: str) -> None:
        assert self._qmp is not None, "the machine is off"
        self._qmp.sendall(json.dumps({"execute": command}).encode())
        self._qmp.settimeout(SLACK_S)
        text = b""
        while b'"return"' not in text:
            data = self._qmp.recv(1 << 16)
            if not data or b'"error"' in data:
                raise self._error(f"QEMU refused {command}: {data.decode()}")
            text += data

    def _error(self, words: str, *, console: bool = True) -> GuestError:
        log = self._directory / "qemu.log"
        qemu = log.read_text(errors="replace").strip() if log.exists() else ""
        parts = [words, qemu and f"QEMU says: {qemu}"]
        if console:
            parts.append(f"console ({self._directory / 'console.log'}):\n{self.console()}")
        return GuestError("\n".join(part for part in parts if part))


def _shape(options: GuestOptions) -> Sequence[str]:
    """Processors and memory, divided among the sockets."""
    if options.sockets == 1:
        return ["-smp", str(options.cpus), "-m", str(options.memory_mib)]
    each, mebibytes = options.cpus // options.sockets, options.memory_mib // options.sockets
    assert each & (each - 1) == 0, f"{each} CPUs in a socket do not boot"
    words = ["-smp", f"{options.cpus},sockets={options.sockets},cores={each},threads=1", "-m", str(options.memory_mib)]
    for node in range(options.sockets):
        words += ["-object", f"memory-backend-ram,id=memory{node},size={mebibytes}M"]
        words += ["-numa", f"node,nodeid={node},cpus={node * each}-{(node + 1) * each - 1},memdev=memory{node}"]
    return words


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")

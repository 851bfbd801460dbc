"""The load generator as the harness uses it: one process for each service, in the client's namespace, on the reserved CPUs."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.intervals import ReportError, Window, parse_line, parse_window
from workloads.sandbox import SERVER_ADDRESS, Child, Sandbox, SandboxError
from workloads.services import CONNECTIONS, ServiceProgram

GENERATOR = Path(__file__).parent / "loadgen" / "target" / "release" / "parties-loadgen"
WINDOW = "100ms"  # the daemon's sub-interval
MAX_LAG = "2ms"  # of the generator's own; a run beyond it is no measurement
EXIT_INVALID = 3
QUEUE_S = 0.25  # of load at the highest rate: more than ten times a target; what cannot wait is counted as unsent
LEAST_QUEUE = 128
CONTROL_LIMIT_S = 5.0

Profile = Sequence[tuple[float, float]]
"""Points (seconds since the start, requests per second), the rate running straight from one to the next."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The end of a load generator's report."""

    completed: int
    failed: int
    unsent: int
    p99_ns: int | None
    lag_p99_ns: int
    cpu_ns: int
    valid: bool  # the generator kept its schedule; what the service did not take is told by ``unsent``
    reasons: tuple[str, ...]


def profile_text(profile: Profile) -> str:
    """The load generator's profile file."""
    return "".join(f"{round(at_s * 1000)}ms {round(rate)}\n" for at_s, rate in profile)


class LoadRun:
    """A running load generator: its windows as they come, its totals at the end."""

    def __init__(  # noqa: PLR0913 - what a load is
        self,
        box: Sandbox,
        program: ServiceProgram,
        profile: Profile,
        *,
        seed: int,
        shape: str = "linear",
        histogram_socket: Path | None = None,
    ) -> None:
        self.service = program.name
        file = box.directory / f"{program.name}.profile"
        file.write_text(profile_text(profile))
        self.report = box.directory / f"{program.name}.report.jsonl"
        self.report.unlink(missing_ok=True)
        limit = max(LEAST_QUEUE, round(QUEUE_S * max(rate for _, rate in profile)))
        self._control = box.directory / f"{program.name}.control"
        command: list[str | Path] = [GENERATOR, *program.load_arguments(SERVER_ADDRESS)]
        command += ["--profile", file, "--profile-shape", shape, "--seed", str(seed)]
        command += ["--connections", str(CONNECTIONS), "--max-outstanding", str(limit), "--drain-timeout", "1s"]
        command += ["--interval", WINDOW, "--interval-histograms", "--json", "--report", self.report, "--max-lag", MAX_LAG]
        command += ["--control", self._control]
        if histogram_socket is not None:
            command += ["--histogram-socket", histogram_socket, "--service", program.name, "--client", "demo"]
        self.child: Child = box.spawn(f"load-{program.name}", command, namespace=box.client_namespace, real_time=True)
        self.windows: list[Window] = []
        self._totals: Totals | None = None
        self._read = 0

    def poll(self) -> list[Window]:
        """The windows that came since the last call. Raises SandboxError if the generator failed or talks nonsense."""
        fresh: list[Window] = []
        running = self.child.running()  # asked before reading, so that the last lines are not missed
        try:
            for line in self._new_lines():
                record = parse_line(line)
                if record.get("kind") == "interval":
                    fresh.append(parse_window(record))
                elif record.get("kind") == "summary":
                    self._totals = parse_totals(record)
        except ReportError as error:
            raise SandboxError(f"load generator of {self.service}: {error}") from error
        self.windows += fresh
        if not running and self.child.popen.returncode not in (0, EXIT_INVALID):
            status = self.child.popen.returncode
            raise SandboxError(f"load generator of {self.service} ended with status {status}: {self.child.log_tail()}")
        return fresh

    def set_rate(self, rate_rps: float) -> None:
        """From now on the load is this, whatever the profile says. Raises SandboxError."""
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.settimeout(CONTROL_LIMIT_S)
                control.connect(str(self._control))
                control.sendall(f"rate {round(rate_rps)}\n".encode())
                answer = control.recv(4096)
        except OSError as error:
            raise SandboxError(f"load generator of {self.service} takes no commands: {error}") from error
        if b'"error"' in answer:
            raise SandboxError(f"load generator of {self.service}: {answer.decode()}")

    def finish(self) -> Totals:
        """End it if it still runs; its totals. Raises SandboxError if it left none."""
        self.child.stop()
        self.poll()
        if self._totals is None:
            raise SandboxError(f"load generator of {self.service} left no summary: {self.child.log_tail()}")
        return self._totals

    def _new_lines(self) -> list[str]:
        if not self.report.exists():
            return []
        with self.report.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return whole.decode().splitlines()


def preload(box: Sandbox, program: ServiceProgram, limit_s: float = 20.0) -> None:
    """Fill a service with its data. Raises SandboxError."""
    arguments = program.preload_arguments(SERVER_ADDRESS)
    if arguments is None:
        return
    child = box.spawn(f"preload-{program.name}", [GENERATOR, *arguments, "--json"], namespace=box.client_namespace)
    if child.popen.wait(limit_s):
        raise SandboxError(f"{program.name} could not be filled with data: {child.log_tail()}")


def parse_totals(record: dict[str, object]) -> Totals:
    """The totals of a report line of kind ``summary``. Raises ReportError."""
    try:
        response, lag, reasons = record["response_ns"], record["lag_ns"], record["reasons"]
        if not (isinstance(response, dict) and isinstance(lag, dict) and isinstance(reasons, list)):
            raise ReportError("summary line: response_ns, lag_ns or reasons have another shape")
        codes = {reason["code"] for reason in reasons}
        completed, failed, unsent, user_ns, system_ns = (
            int(str(record[name])) for name in ("completed", "failed", "unsent", "cpu_user_ns", "cpu_system_ns")
        )
        return Totals(
            completed,
            failed,
            unsent,
            int(response["p99"]) if completed else None,
            int(lag["p99"]),
            user_ns + system_ns,
            "send_lag" not in codes,
            tuple(str(reason["text"]) for reason in reasons),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"summary line: {error!r}") from error

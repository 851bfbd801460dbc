"""The daemon as the demo drives it: the control process, its snapshots and its final report."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parties.codec import to_json
from parties.settings import ControlSettings
from workloads.sandbox import Sandbox, SandboxError, wait_for

START_LIMIT_S = 15.0
STOP_LIMIT_S = 15.0
LARGEST_MESSAGE_BYTES = 1 << 18
RECEIVE_BUFFER_BYTES = 1 << 21

Message = dict[str, Any]


class Controller:
    """A running control process. ``ticks`` and ``events`` grow as ``poll`` is called. ``wrapper`` begins its command.

    ``program`` is the module to run, with what comes before the control process's own arguments.
    """

    def __init__(
        self, box: Sandbox, settings: ControlSettings, wrapper: Sequence[str] = (), program: Sequence[str] = ("parties.control",)
    ) -> None:
        self.ticks: list[Message] = []
        self.events: list[Message] = []
        self.report: Message | None = None
        self._started = False
        runtime = Path(settings.runtime_directory)
        for directory in (runtime, Path(settings.state_directory)):
            directory.mkdir(exist_ok=True)
        self.histogram_socket = runtime / "histogram.sock"
        self._front, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._front.setblocking(False)
        self._front.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        read_end, write_end = os.pipe()
        with theirs, os.fdopen(read_end, "rb") as reader:
            command = [sys.executable, "-m", *program, "--settings-fd", str(read_end), "--front-fd", str(theirs.fileno())]
            self.child = box.spawn("parties", [*wrapper, *command], pass_fds=(reader.fileno(), theirs.fileno()))
        box.declare_daemon(self.child)
        with os.fdopen(write_end, "w") as writer:  # a few KiB: less than a pipe holds
            json.dump(to_json(settings), writer)

    def wait_started(self) -> None:
        """Wait for its first word. Raises SandboxError with its own message if it ends instead."""
        wait_for(lambda: self.poll() or self._started, "the controller to start", [self.child], START_LIMIT_S)

    def poll(self) -> bool:
        """Take in what it said since the last call; always False. Raises SandboxError if it said nonsense."""
        while True:
            try:
                data = self._front.recv(LARGEST_MESSAGE_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return False
            self._take(data)

    def stop(self) -> Message:
        """Have it put back everything; its final report. Raises SandboxError if it gave none or could not put back."""
        status = self.child.stop(STOP_LIMIT_S)
        self.poll()
        self._front.close()
        if status or self.report is None:
            raise SandboxError(f"the controller ended with status {status}: {self.child.log_tail()}")
        return self.report

    def require_running(self) -> None:
        """Raise SandboxError if it has ended."""
        if not self.child.running():
            raise SandboxError(f"the controller ended in mid-run: {self.child.log_tail()}")

    def _take(self, data: bytes) -> None:
        message = json.loads(data)
        take: dict[str, Callable[[Message], None]] = {
            "started": self._begin,
            "tick": self.ticks.append,
            "event": self.events.append,
            "stopped": self._end,
        }
        if message["type"] in take:
            take[message["type"]](message)

    def _begin(self, message: Message) -> None:
        del message
        self._started = True

    def _end(self, message: Message) -> None:
        self.report = message["report"]

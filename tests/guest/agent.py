"""Runs in the guest: carries out what the host asks for over a virtio serial port, one JSON object a line in both directions.

A request is {"id", "argv", "stdin", "env", "limit_s"}; its answer {"id", "exit", "out", "err"}, ``exit`` being None past the limit.
Requests are carried out side by side. Output goes through files, so that what a command leaves running in the background does not
hold the answer back. At the start the agent says {"hello": boot id}. The standard library alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PORT = "parties.agent"
PROJECT = "/opt/project"
KEPT_BYTES = 4 << 20  # of each output, its end


def find_port() -> str:
    """The port's device, by the name that the host gave it."""
    while True:
        for entry in Path("/sys/class/virtio-ports").glob("*/name"):
            if entry.read_text().strip() == PORT:
                return f"/dev/{entry.parent.name}"
        time.sleep(0.1)


class Agent:
    """Reads requests and writes answers until the machine ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, message: dict[str, Any]) -> None:
        """Write one line, whole."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data[:32768]) :]

    def serve(self) -> None:
        """Take requests. What is no JSON, such as half a line that was sent before a reset, is passed over."""
        rest = b""
        while True:
            data = os.read(self._descriptor, 65536)
            if not data:
                time.sleep(0.1)  # nobody is at the host's end
                continue
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    request = json.loads(line)
                    threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = carry_out(request)
        except OSError as error:
            answer = {"exit": 127, "out": "", "err": str(error)}
        self.say({"id": request["id"], **answer})


def carry_out(request: dict[str, Any]) -> dict[str, Any]:
    """Run the command; past its limit it is killed with its process group."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(request.get("stdin", "").encode())
        given.seek(0)
        process = subprocess.Popen(
            request["argv"],
            stdin=given,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": PROJECT, **request.get("env", {})},
            cwd="/",
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=request["limit_s"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        return {"exit": code, "out": _tail(out), "err": _tail(err)}


def _tail(file: Any) -> str:  # noqa: ANN401 - whatever tempfile makes
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - KEPT_BYTES))
    return str(file.read().decode(errors="replace"))


def main() -> None:
    """Never ends by itself."""
    agent = Agent(os.open(find_port(), os.O_RDWR))
    agent.say({"hello": Path("/proc/sys/kernel/random/boot_id").read_text().strip()})
    agent.serve()


if __name__ == "__main__":
    main()

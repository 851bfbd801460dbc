"""The process that cleans up after a run, however the run ends.

It sits in a session of its own, deaf to the keyboard, and waits for the end of file on a pipe whose other end only the run holds:
the kernel closes that when the run ends, even by SIGKILL. Then it removes what the run's manifest names.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from workloads.cleanup import clean
from workloads.manifest import Kind, Manifest, ProcessId

READY = b"."


def main(arguments: list[str]) -> int:
    """Watch the pipe, then clean; the arguments are the manifest's path and the pipe's descriptor. 0 if nothing is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    manifest, pipe = Manifest(Path(arguments[0])), int(arguments[1])
    manifest.add(Kind.JANITOR, str(ProcessId.of(os.getpid())))
    with contextlib.suppress(OSError):  # the run may have ended already
        os.write(sys.stdout.fileno(), READY)
    while os.read(pipe, 1):
        pass
    problems = clean(manifest)
    with contextlib.suppress(OSError):
        print("".join(f"{problem}\n" for problem in problems), end="", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

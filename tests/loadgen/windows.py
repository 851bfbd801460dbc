"""The documented schema of the histogram socket, and a daemon's end of it that checks every message."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

LARGEST_MESSAGE_BYTES = 65_536
LARGEST_BUCKET = 7167
LONGEST_NAME = 64
POLL_SECONDS = 0.05
COUNTS = (
    "scheduled",
    "sent",
    "completed",
    "failed",
    "unsent",
    "outstanding",
    "oldest_outstanding_ns",
)
FIELDS = {"version", "service", "client", "sequence", "window_start_ns", "window_end_ns", "histogram", *COUNTS}


def upper_ns(bucket: int) -> int:
    """The largest value in a bucket."""
    shift = max(0, bucket // 128 - 1)
    return ((bucket - 128 * shift + 1) << shift) - 1


def percentile_ns(histogram: dict[int, int], share: float) -> int:
    """The end of the bucket that holds a percentile."""
    rank = max(1, -int(-sum(histogram.values()) * share // 1))
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            return upper_ns(bucket)
    return 0


def merged(sparse: list[list[int]]) -> dict[int, int]:
    """Sums sparse histograms."""
    total: dict[int, int] = {}
    for one in sparse:
        for bucket, count in zip(one[::2], one[1::2], strict=True):
            total[bucket] = total.get(bucket, 0) + count
    return total


def histogram_problems(histogram: object, completed: int) -> list[str]:
    """What is wrong with a sparse histogram."""
    if not isinstance(histogram, list) or not all(type(n) is int for n in histogram) or len(histogram) % 2:
        return ["histogram is not a list of pairs of integers"]
    buckets, counts = histogram[::2], histogram[1::2]
    problems = []
    if any(a >= b for a, b in itertools.pairwise(buckets)):
        problems.append("buckets do not ascend")
    if any(not 0 <= bucket <= LARGEST_BUCKET for bucket in buckets):
        problems.append("a bucket is out of range")
    if any(count <= 0 for count in counts):
        problems.append("a count is not above 0")
    if sum(counts) != completed:
        problems.append(f"completed is {completed}, the histogram holds {sum(counts)}")
    return problems


def problems(data: bytes, before: dict[str, Any] | None, now_ns: int) -> list[str]:
    """What is wrong with a message, by the document; ``before`` is the client's last one."""
    if len(data) > LARGEST_MESSAGE_BYTES:
        return ["too large"]
    message = json.loads(data.decode("utf-8"))
    if set(message) != FIELDS:
        return [f"fields missing or unknown: {set(message) ^ FIELDS}"]
    found = [
        f"{name} is no integer of at least 0"
        for name in (*COUNTS, "sequence")
        if type(message[name]) is not int or message[name] < 0
    ]
    if message["version"] != 1:
        found.append("version is not 1")
    if not message["service"] or not 1 <= len(message["client"]) <= LONGEST_NAME:
        found.append("service or client has no good name")
    if not message["window_start_ns"] < message["window_end_ns"] <= now_ns:
        found.append("window is empty or in the future")
    if before and (message["sequence"] <= before["sequence"] or message["window_start_ns"] < before["window_end_ns"]):
        found.append("sequence or window goes back")
    if (message["outstanding"] == 0) != (message["oldest_outstanding_ns"] == 0) and message["outstanding"] == 0:
        found.append("nothing outstanding has no age")
    return found + histogram_problems(message["histogram"], message["completed"])


@dataclass
class Daemon:
    """Listens at a path, takes messages of one client after another, and refuses as many as told."""

    path: Path
    refuse: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._end = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(4)
        self._listener.settimeout(POLL_SECONDS)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._listener.close()
        self.path.unlink()

    def _run(self) -> None:
        """At the end what was sent before it is still taken in."""
        while not self._end.is_set() or select.select([self._listener], [], [], 0)[0]:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(POLL_SECONDS)
                    self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        while not self._end.is_set() or select.select([connection], [], [], 0)[0]:
            with contextlib.suppress(TimeoutError):
                data = connection.recv(2 * LARGEST_MESSAGE_BYTES)
                if not data:
                    return
                self.found += problems(
                    data, self.messages[-1] if self.messages else None, time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                )
                self.messages.append(json.loads(data))
                if len(self.messages) <= self.refuse:
                    connection.send(json.dumps({"version": 1, "error": "service: unknown, register it"}).encode())

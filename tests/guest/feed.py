"""Runs in the guest: reports made-up latencies, so that a test decides which service violates its target.

``python3 feed.py SOCKET FILE``: the file, a JSON object, has each service's latency in nanoseconds, and is read again and again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from parties.client import HistogramClient

PAUSE_S = 0.2
REQUESTS = 20


def main() -> None:
    """Never ends by itself."""
    path, file = sys.argv[1:]
    clients = {service: HistogramClient(path, service, background=False) for service in json.loads(Path(file).read_text())}
    while True:
        for service, latency_ns in json.loads(Path(file).read_text()).items():
            clients[service].record(latency_ns, REQUESTS)
            clients[service].flush()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()

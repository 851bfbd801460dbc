"""Runs in the guest: a small load on the services, whose latencies it reports to the daemon as any application would.

``python3 load.py SOCKET ADDRESS``: memcached on port 11211 and a web server on port 8080 of that address, each asked ten times a
second in a closed loop, one connection each. Runs until it is ended.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable

from parties.client import HistogramClient

PAUSE_S = 0.1
LIMIT_S = 5.0


def ask_store(connection: socket.socket) -> None:
    """One value of memcached that is not there: the answer is short."""
    connection.sendall(b"get nothing\r\n")
    _until(connection, b"END\r\n")


def ask_web(connection: socket.socket) -> None:
    """One page over a kept connection."""
    connection.sendall(b"GET / HTTP/1.1\r\nHost: guest\r\n\r\n")
    _until(connection, b"\r\n\r\nok\n")


def _until(connection: socket.socket, end: bytes) -> None:
    data = b""
    while not data.endswith(end):
        more = connection.recv(4096)
        if not more:
            raise ConnectionResetError
        data += more


def drive(path: str, service: str, address: tuple[str, int], ask: Callable[[socket.socket], None]) -> None:
    """Ask for ever; while the service is away, try again."""
    with HistogramClient(path, service) as client:
        while True:
            try:
                with socket.create_connection(address, timeout=LIMIT_S) as connection:
                    while True:
                        with client.request():
                            ask(connection)
                        time.sleep(PAUSE_S)
            except OSError:
                time.sleep(PAUSE_S)


def main() -> None:
    """One thread for each service."""
    path, address = sys.argv[1:]
    threading.Thread(target=drive, args=(path, "store", (address, 11211), ask_store), daemon=True).start()
    drive(path, "web", (address, 8080), ask_web)


if __name__ == "__main__":
    main()

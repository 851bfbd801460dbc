"""Small memcached and HTTP servers that misbehave as told, each on a thread and an ephemeral port of 127.0.0.1."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Self

START_SECONDS = 120.0


@dataclass
class Behaviour:
    """What the server does to requests; counters of requests begin at 1."""

    delay_s: float = 0.0  # before each answer, connections side by side
    serial_s: float = 0.0  # work of each request, one request of the whole server at a time
    stall_at_request: int = 0  # at this request the whole server stands still once ...
    stall_s: float = 0.0  # ... for so long
    error_every: int = 0  # every so manieth request is answered with an error
    hang_up_every: int = 0  # every so manieth request loses its connection without an answer
    close_every: int = 0  # every so manieth answer announces and does the end of its connection (HTTP)
    mute_every: int = 0  # every so manieth request gets no answer
    garbage_every: int = 0  # every so manieth answer is none


@dataclass
class Seen:
    """What came in, and what was done to it."""

    connections: int = 0
    requests: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)
    errors: int = 0
    hang_ups: int = 0
    closes: int = 0
    muted: int = 0
    garbage: int = 0


class HangUp(Exception):  # noqa: N818 - an order, not an error
    """The connection is to be cut."""


class Server:
    """The part that both protocols share: life, misbehaviour and counting."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.seen = Seen()
        self.port = port
        self._ready = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_SECONDS)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._turn = asyncio.Lock()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=256)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, HangUp, asyncio.CancelledError):
            while await self.serve_one(reader, writer):
                pass
        self._writers.discard(writer)
        writer.close()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Reads a request and answers it; false at the end of the stream."""
        raise NotImplementedError

    def hit(self, every: int) -> bool:
        """The last request is one of every so many."""
        return every > 0 and len(self.seen.requests) % every == 0

    async def misbehave(self, request: str) -> bool:
        """Counts a request and does what is to be done to it; false if it is not to be answered."""
        self.seen.requests.append(request)
        if len(self.seen.requests) == self.behaviour.stall_at_request:
            time.sleep(self.behaviour.stall_s)  # noqa: ASYNC251 - the whole server is meant to stand still
        if self.behaviour.delay_s:
            await asyncio.sleep(self.behaviour.delay_s)
        if self.behaviour.serial_s:
            async with self._turn:
                time.sleep(self.behaviour.serial_s)  # noqa: ASYNC251 - asyncio's own timers are too coarse for a known capacity
        if self.hit(self.behaviour.hang_up_every):
            self.seen.hang_ups += 1
            raise HangUp
        if self.hit(self.behaviour.mute_every):
            self.seen.muted += 1
            return False
        return True

    def spoiled(self, good: bytes, error: bytes) -> bytes:
        """The answer, or what stands in its place."""
        if self.hit(self.behaviour.error_every):
            self.seen.errors += 1
            return error
        if self.hit(self.behaviour.garbage_every):
            self.seen.garbage += 1
            return b"\x00\x01 no answer at all\r\n"
        return good


class Memcached(Server):
    """GET, multi-GET and SET; every key is held once one was stored, and before that none is."""

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = (await reader.readline()).decode()
        if not line:
            return False
        operation, *words = line.split()
        if operation == "set":
            await reader.readexactly(int(words[3]) + 2)
            self.seen.stored[words[0]] = int(words[3])
            good = b"STORED\r\n"
        else:
            held = [key for key in words if key in self.seen.stored]
            good = b"".join(f"VALUE {key} 0 5\r\nEND\r\n\r\n".encode() for key in held) + b"END\r\n"
        if await self.misbehave(line.strip()):
            writer.write(self.spoiled(good, b"SERVER_ERROR out of memory\r\n"))
        return True


class Http(Server):
    """GET; bodies with a length and in chunks by turns, written in two pieces."""

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *headers = head.strip().split("\r\n")
        self.seen.headers = headers
        if not await self.misbehave(first):
            return True
        closes = self.hit(self.behaviour.close_every)
        extra = "Connection: close\r\n" if closes else ""
        if len(self.seen.requests) % 2:
            good = f"HTTP/1.1 200 OK\r\n{extra}Content-Length: 11\r\n\r\nhello world"
        else:
            good = f"HTTP/1.1 200 OK\r\n{extra}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
        answer = self.spoiled(good.encode(), b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")
        writer.write(answer[:30])
        await asyncio.sleep(0)
        writer.write(answer[30:])
        if closes:
            self.seen.closes += 1
            await writer.drain()
            raise HangUp
        return True

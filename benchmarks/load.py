"""A light load generator: bare asyncio connections with keep-alive, one request at a time each.

It shares the cores with the server, so what it does not cost is what the server gets.
"""

import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import httptools

HOST = "127.0.0.1"
DATA = b"data: "

clock = time.perf_counter


class WrongAnswer(Exception):
    """A server answered something that must not count as a run."""


@dataclass(slots=True)
class Reply:
    """One answer. Times are seconds since the request was sent; `first` is the first event of a stream."""

    status: int
    body: bytes
    seconds: float
    first: float | None

    def expect(self, status: int, part: bytes = b"") -> Self:
        """Return the reply itself. Raise WrongAnswer unless it has the status, and the part in its body."""
        if self.status != status or part not in self.body:
            raise WrongAnswer(f"{self.status}: {self.body[:500]!r}")
        return self


class Connection(asyncio.Protocol):
    """One keep-alive connection. `watch` gets each piece of a body instead of the reply."""

    def __init__(self) -> None:
        self.watch: Callable[[bytes], None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Reply] | None = None
        self._body: list[bytes] = []
        self._first: float | None = None
        self._sent = 0.0

    @classmethod
    async def open(cls, port: int) -> Self:
        _, protocol = await asyncio.get_running_loop().create_connection(cls, HOST, port)
        return protocol

    def send(self, request: bytes) -> "asyncio.Future[Reply]":
        self._body, self._first = [], None
        self._answer = asyncio.get_running_loop().create_future()
        self._sent = clock()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WrongAnswer(f"the server closed the connection ({error})"))

    def on_body(self, body: bytes) -> None:
        if self.watch is not None:
            self.watch(body)
            return
        if self._first is None and DATA in body:
            self._first = clock() - self._sent
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            status = self._parser.get_status_code()
            self._answer.set_result(Reply(status, b"".join(self._body), clock() - self._sent, self._first))


Step = Callable[[Connection], Awaitable[Reply]]
"""What one client does for one run; the reply is what is timed."""


@dataclass(slots=True)
class Load:
    """What a number of clients saw in some seconds, and the CPU time the server took for it."""

    replies: list[Reply]
    seconds: float
    cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Runs a second."""
        return len(self.replies) / self.seconds

    @property
    def milliseconds(self) -> float:
        """Median time of an answer."""
        return 1000 * statistics.median(reply.seconds for reply in self.replies)

    @property
    def first_milliseconds(self) -> float:
        """Median time to the first event of a stream."""
        return 1000 * statistics.median(reply.first for reply in self.replies if reply.first is not None)

    @property
    def cpu_milliseconds(self) -> float:
        """CPU time of the server, a run."""
        return 1000 * self.cpu_seconds / len(self.replies)


async def drive(port: int, clients: int, step: Step, *, seconds: float) -> Load:
    """Let each client do one run after the other for some seconds. The first wrong answer ends it."""
    connections = [await Connection.open(port) for _ in range(clients)]
    replies: list[Reply] = []
    begin = clock()

    async def client(connection: Connection) -> None:
        while clock() - begin < seconds:
            replies.append(await step(connection))

    try:
        async with asyncio.TaskGroup() as group:
            for connection in connections:
                group.create_task(client(connection))
        return Load(replies, clock() - begin)
    finally:
        for connection in connections:
            connection.close()


def post(kind: str, *, id: str | None = None, stream: bool = False, background: bool = False, **input: Any) -> bytes:
    """Return a request for a run of its own session."""
    id = id or str(uuid.uuid4())
    body: dict[str, Any] = {"id": id, "session_id": id, "input": {"kind": kind, "message": "hello", **input}}
    if stream or background:
        body |= {"stream": stream, "background": background}
    content = json.dumps(body).encode()
    return (
        b"POST /api/invocations HTTP/1.1\r\nHost: b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (
            len(content),
            content,
        )
    )


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: b\r\n\r\n".encode()

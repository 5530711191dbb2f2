"""A TCP proxy in front of PostgreSQL that counts protocol messages and breaks connections between them.

It answers the requests for TLS and GSS encryption with "no" itself, so that what it forwards stays readable;
a URL that insists on TLS cannot go through it.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from sqlalchemy import make_url

from outlast.testing._ports import LOOPBACK, free_port

T = TypeVar("T")
Direction = Literal["to_server", "to_client"]
When = Literal["before", "after"]

ENCRYPTION_REQUESTS = {80877103, 80877104}  # SSLRequest, GSSENCRequest
REFUSED = b"N"
GOODBYE = b"X"
COMMAND_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Cut:
    """Break a connection at its n-th message in one direction, before or after that message is forwarded.

    The startup message counts as the first one to the server; the goodbye of a client that closes its
    connection does not count, since nobody waits for it. With `containing`, only messages whose bytes
    contain it are counted: `Cut(containing=b"COMMIT")` loses the answer to the first COMMIT.
    """

    direction: Direction = "to_server"
    nth: int = 1
    when: When = "after"
    containing: bytes = b""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Say how many messages one connection carried so far, in each direction."""

    to_server: int
    to_client: int


class ArmedCut:
    """Tell whether a cut has happened; it happens once."""

    def __init__(self, cut: Cut, ignored: set["_Connection"]) -> None:
        self.cut = cut
        self._ignored = ignored
        self._counts: dict[_Connection, int] = {}
        self._fired = threading.Event()

    @property
    def fired(self) -> bool:
        return self._fired.is_set()

    def wait_fired(self, timeout_seconds: float = COMMAND_SECONDS) -> None:
        """Return when the cut has happened; raise TimeoutError when it does not."""
        if not self._fired.wait(timeout_seconds):
            raise TimeoutError(f"no connection came to {self.cut}")

    def _meets(self, connection: "_Connection", direction: Direction, message: bytes) -> bool:
        is_other = connection in self._ignored or direction != self.cut.direction
        if self.fired or is_other or self.cut.containing not in message:
            return False
        self._counts[connection] = self._counts.get(connection, 0) + 1
        if self._counts[connection] != self.cut.nth:
            return False
        self._fired.set()
        return True


class FaultProxy:
    """Stand between clients and a PostgreSQL server on `port`, from `with` on, in a thread of its own.

    It forwards whole messages. Every method returns when its effect is in force.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.host = LOOPBACK
        self.port = free_port()
        self._target = (target_host, target_port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._open: set[_Connection] = set()
        self._seen: list[_Connection] = []
        self._armed: ArmedCut | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.refuse()
        self.drop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, url: str) -> str:
        """Return the same database URL, going through this proxy."""
        return make_url(url).set(host=self.host, port=self.port).render_as_string(hide_password=False)

    @property
    def traffic(self) -> list[Traffic]:
        """Return what each connection carried, in the order in which they were opened."""
        return self._call(lambda: [Traffic(one.counts["to_server"], one.counts["to_client"]) for one in self._seen])

    def cut(self, cut: Cut, *, open_connections: bool = False) -> ArmedCut:
        """Arm a cut in place of an earlier one, for the connections opened from now on.

        Each counts for itself and the first to get there is cut. With `open_connections` those that are
        open now take part too, counting from now.
        """

        def arm() -> ArmedCut:
            self._armed = ArmedCut(cut, set() if open_connections else set(self._open))
            return self._armed

        return self._call(arm)

    def freeze(self) -> None:
        """Keep every connection open and forward nothing, until `thaw`."""
        self._call(self._flowing.clear)

    def thaw(self) -> None:
        """Forward again, beginning with what was held back."""
        self._call(self._flowing.set)

    def refuse(self) -> None:
        """Refuse new connections until `accept`; open ones go on."""
        self._call(self._stop_listening)

    def accept(self) -> None:
        """Take new connections again."""
        self._call(self._listen)

    def drop(self) -> None:
        """Break every open connection."""
        self._run(self._drop())

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run(call())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(COMMAND_SECONDS)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port))
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept_one, self._listener)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has gone again
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does it only for sockets that it made
        connection = _Connection(self, client)
        self._seen.append(connection)
        self._open.add(connection)
        connection.task.add_done_callback(lambda task: self._open.discard(connection))

    async def _drop(self) -> None:
        tasks = [connection.task for connection in self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cut_at(self, connection: "_Connection", direction: Direction, message: bytes) -> When | None:
        armed = self._armed
        return armed.cut.when if armed and armed._meets(connection, direction, message) else None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._target)


class _Connection:
    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self.counts: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        self.task = asyncio.create_task(self._run(client))
        self.task.add_done_callback(lambda task: client.close())
        self._proxy = proxy

    async def _run(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client)
        writers = [writer]
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                startup = await _read_startup(reader, writer)
                server_reader, server_writer = await self._proxy._connect()
                writers.append(server_writer)
                was_cut = await self._forward(
                    self._pump("to_server", reader, server_writer, startup),
                    self._pump("to_client", server_reader, writer),
                )
                if was_cut:
                    await _hang_up((reader, writer), (server_reader, server_writer))
            await _close(writers)
        finally:
            for each in writers:
                each.transport.abort()

    async def _forward(self, *directions: Coroutine[Any, Any, bool]) -> bool:
        """Run both directions until one ends, and tell whether by a cut."""
        pumps = [asyncio.create_task(direction) for direction in directions]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        return any(pump.result() for pump in done)

    async def _pump(
        self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter, first: bytes = b""
    ) -> bool:
        while message := first or await _read_message(source):
            first = b""
            await self._proxy._flowing.wait()
            when = self._count(direction, message)
            if when != "before":
                sink.write(message)
                await sink.drain()
            if when:
                return True
        return False

    def _count(self, direction: Direction, message: bytes) -> When | None:
        if direction == "to_server" and message.startswith(GOODBYE):
            return None
        self.counts[direction] += 1
        return self._proxy._cut_at(self, direction, message)


async def _read_startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    while True:
        head = await reader.readexactly(8)
        length, code = struct.unpack("!II", head)
        message = head + await reader.readexactly(length - len(head))
        if code not in ENCRYPTION_REQUESTS:
            return message
        writer.write(REFUSED)


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """Return the next message, or nothing when the peer has closed or lost the connection."""
    try:
        head = await reader.readexactly(5)
        (length,) = struct.unpack("!I", head[1:])
        return head + await reader.readexactly(length - 4)
    except (OSError, asyncio.IncompleteReadError):
        return b""


async def _hang_up(*peers: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """End both sides and read on until they have closed too.

    Closing with unread data would send a reset, and a reset discards what the peer has not read yet: the
    message that was forwarded before the cut could be lost.
    """
    for _, writer in peers:
        writer.write_eof()
    await asyncio.gather(*(_discard(reader) for reader, _ in peers))


async def _discard(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


async def _close(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

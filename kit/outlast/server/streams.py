"""A follower as a stream of server-sent events."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from outlast.core.errors import OutlastError
from outlast.core.records import Invocation
from outlast.engine import Entry, Follower
from outlast.wires.native import project

logger = logging.getLogger("outlast.server")

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Encoding": "identity"}
"""The last one keeps compressing middleware from holding events back; versions differ in what else they respect."""


class OpenStreams:
    """The streams of this process, so that a shutdown can get rid of readers that do not read."""

    def __init__(self) -> None:
        self.count = 0
        self._transports: dict[object, Any] = {}

    def add(self, stream: object, receive: Receive) -> None:
        """Note a stream; under uvicorn `receive` is a method of what has the connection's transport."""
        self.count += 1
        transport = getattr(getattr(receive, "__self__", None), "transport", None)
        if hasattr(transport, "abort"):
            self._transports[stream] = transport

    def remove(self, stream: object) -> None:
        self.count -= 1
        self._transports.pop(stream, None)

    def abort(self) -> None:
        """Cut the connections of the streams that are still open."""
        for transport in list(self._transports.values()):
            transport.abort()


class EventStream(StreamingResponse):
    """Everything after the follower's cursor, then live, then the end frame.

    It ends without an end frame when this worker drains. What is ready is sent as one chunk; the next is read only
    after the client took it, so that a slow reader costs one chunk and no database connection.
    """

    media_type = "text/event-stream"

    def __init__(
        self, follower: Follower, streams: OpenStreams, *, keep_alive: float, render_end: Callable[[Invocation], bytes]
    ) -> None:
        self._follower, self._streams = follower, streams
        # Entered here, for a topic that nobody entered would stay for ever.
        follower.__enter__()
        super().__init__(_chunks(follower, keep_alive, render_end), headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.add(self, receive)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.remove(self)
            self._follower.__exit__(None, None, None)


async def _chunks(
    follower: Follower, keep_alive: float, render_end: Callable[[Invocation], bytes]
) -> AsyncIterator[bytes]:
    yield project.OPENING
    while not follower.done and not follower.closed:
        try:
            entries = await follower.next(keep_alive)
        except OutlastError as error:
            # The status line left long ago; a stream without an end frame makes the client come back.
            logger.warning("a stream ends early: %s", error)
            return
        if entries:
            yield b"".join([_frame(entry) for entry in entries])
        elif not follower.done and not follower.closed:
            yield project.KEEP_ALIVE
    if follower.done and follower.final is not None:
        yield render_end(follower.final)


def _frame(entry: Entry) -> bytes:
    """Render an entry once for all its readers."""
    if entry.frame is None:
        entry.frame = project.frame(entry.position, entry.text)
    return entry.frame

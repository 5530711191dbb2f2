"""What runs between the start and the end of a server's lifespan: a store, an engine, and the streams it feeds."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from outlast.engine import AgentHandlers, Engine
from outlast.server import signals
from outlast.server.settings import ServerSettings
from outlast.server.streams import OpenStreams
from outlast.store import Store

logger = logging.getLogger("outlast.server")

STALLED_READER_SECONDS = 2.0
"""How long after the drain a reader that does not read may keep its connection."""
LEAVE_SECONDS = 10.0
"""What a shutdown may take beside the drain itself: handlers that are cancelled, the last writes, stalled readers."""


class Serving(Protocol):
    """What the routes of the API need of their server."""

    prefix: str

    def runtime(self) -> "Runtime":
        """Return what runs. Raises NotStarted before the lifespan began."""
        ...


class Runtime:
    """One start of a server. Made by `running`."""

    def __init__(self, store: Store, engine: Engine, settings: ServerSettings) -> None:
        self.store, self.engine, self.settings = store, engine, settings
        self.streams = OpenStreams()
        self._loop = asyncio.get_running_loop()
        self._leaving: asyncio.Task[None] | None = None

    @property
    def draining(self) -> bool:
        """Nothing new is accepted; what runs may still end."""
        return self._leaving is not None or self.engine.draining

    def drain_soon(self) -> None:
        """Begin to drain. May be called from a signal handler or any thread, and more than once."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._drain)

    def hurry_soon(self) -> None:
        """Hand back at once what a drain still waits for. May be called from a signal handler or any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.engine.hurry)

    def _drain(self) -> asyncio.Task[None]:
        self.engine.begin_drain()
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._leave())
        return self._leaving

    async def _leave(self) -> None:
        """Let runs end, hand the rest back, and let go of readers: open connections end by themselves then."""
        try:
            await self.engine.stop()
        finally:
            self._loop.call_later(STALLED_READER_SECONDS, self.streams.abort)

    async def stop(self) -> None:
        """Drain, whoever began it, and close the store."""
        try:
            await self._drain()
        finally:
            await self.store.close()


@contextlib.asynccontextmanager
async def running(
    store_url: str, agents: Mapping[str, AgentHandlers], settings: ServerSettings
) -> AsyncIterator[Runtime]:
    """Open the store, start the engine, and stop both at the end; a signal begins the drain earlier."""
    store = await Store.open(store_url)
    try:
        engine = Engine(store, agents, settings.engine)
        await engine.start()
    except BaseException:
        await store.close()
        raise
    runtime = Runtime(store, engine, settings)
    # Around the end too: it may take as long as the drain, and a second signal shortens it.
    longest = settings.engine.drain_timeout + LEAVE_SECONDS
    with signals.watched(runtime.drain_soon, runtime.hurry_soon, longest_seconds=longest):
        try:
            yield runtime
        finally:
            await runtime.stop()

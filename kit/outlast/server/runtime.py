"""What runs between the start and the end of a server's lifespan: a store, an engine, and the streams it feeds."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping

from outlast.engine import AgentHandlers, Engine
from outlast.server import signals
from outlast.server.settings import ServerSettings
from outlast.server.streams import OpenStreams
from outlast.store import Store

logger = logging.getLogger("outlast.server")

STALLED_READER_SECONDS = 2.0
"""How long after the drain a reader that does not read may keep its connection."""
AGAIN_SECONDS = 1.0
"""One Ctrl-C may reach a worker twice: from the terminal, and from the process above it."""
LEAVE_SECONDS = 10.0
"""What a shutdown may take beside the drain itself: handlers that are cancelled, the last writes, stalled readers."""


class Runtime:
    """One start of a server. Made by `running`."""

    def __init__(self, store: Store, engine: Engine, settings: ServerSettings) -> None:
        self.store, self.engine, self.settings = store, engine, settings
        self.streams = OpenStreams()
        self._loop = asyncio.get_running_loop()
        self._leaving: asyncio.Task[None] | None = None
        self._asked_at: float | None = None

    @property
    def draining(self) -> bool:
        """Nothing new is accepted; what runs may still end."""
        return self._leaving is not None or self.engine.draining

    def drain_soon(self) -> None:
        """Begin to drain; when asked a second time, hand back what still runs. For signal handlers and any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._asked)

    def _asked(self) -> None:
        now = self._loop.time()
        if self._asked_at is None:
            self._asked_at = now
            self._drain()
        elif now - self._asked_at > AGAIN_SECONDS:
            self.engine.hurry()

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
    with signals.watched(runtime.drain_soon, longest_seconds=settings.engine.drain_timeout + LEAVE_SECONDS):
        try:
            yield runtime
        finally:
            await runtime.stop()

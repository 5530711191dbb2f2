"""Durable runs in a process of the user's own: the engine with one worker and no HTTP."""

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakKeyDictionary, finalize

from outlast.engine.engine import Engine
from outlast.engine.handlers import AgentHandlers
from outlast.engine.settings import EngineSettings
from outlast.store.store import Store
from outlast.store.url import DEFAULT_URL


class Agent(Protocol):
    """What runs here."""

    name: str

    def handlers(self) -> AgentHandlers: ...


@dataclass(slots=True)
class _Opened:
    """A store, and the engine on it once something runs, of one event loop."""

    store: Store
    agents: dict[str, AgentHandlers] = field(default_factory=dict)
    engine: Engine | None = None


class LocalStore:
    """A store that is opened where it is first used: each event loop has a worker of its own on it.

    Use it as `async with`, or `await close()`; used again, it is opened again. A process that just ends leaves nothing
    behind that another process could not take over.
    """

    def __init__(self, url: str, settings: EngineSettings | None = None) -> None:
        self.url = url
        self._place = _folder_of(self) if url == "memory" else url
        self._settings = settings or EngineSettings(claims=False)
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def store(self) -> Store:
        """Return the store of the running loop. Starts no worker."""
        async with self._lock():
            return (await self._open()).store

    async def engine(self, agent: Agent) -> Engine:
        """Return the engine of the running loop, with the agent in it."""
        async with self._lock():
            opened = await self._open()
            opened.agents[agent.name] = agent.handlers()
            if opened.engine is None:
                opened.engine = Engine(opened.store, opened.agents, self._settings)
                await opened.engine.start()
            return opened.engine

    def will_run(self, number: int) -> bool:
        """Say whether the running loop has accepted a run for which it has no room yet."""
        opened = self._opened.get(asyncio.get_running_loop())
        return opened is not None and opened.engine is not None and opened.engine.will_run(number)

    async def close(self) -> None:
        """Let runs of this loop end, hand back what does not, and close the store."""
        async with self._lock():
            opened = self._opened.pop(asyncio.get_running_loop(), None)
            if opened is None:
                return
            if opened.engine is not None:
                await opened.engine.stop()
            await opened.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _lock(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def _open(self) -> _Opened:
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            self._opened[loop] = _Opened(await Store.open(self._place))
        return self._opened[loop]


def _folder_of(store: LocalStore) -> str:
    """Return the URL of a file that is deleted with a store: `memory`, for all event loops of the store."""
    folder = tempfile.mkdtemp(prefix="outlast-")
    finalize(store, shutil.rmtree, folder, ignore_errors=True)
    return f"sqlite:///{folder}/state.db"


def open_store(url: str = DEFAULT_URL) -> LocalStore:
    """Return the store at a URL: `sqlite:///file.db`, `postgresql://…`, or `memory` for tests.

    Without one it is the file `.outlast/state.db` below the current folder, whatever OUTLAST_STORE says.
    """
    return LocalStore(url)

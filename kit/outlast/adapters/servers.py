"""The connections of a process to servers of tools: made at the first use, again when they were lost, closed when idle.

They live in a thread of their own, so that any loop and any thread may call a tool, and none waits for another's server.
"""

import asyncio
import importlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from outlast.adapters.declared import Connection, ListedTool, Lost, Refused, Speaks, ToolServer
from outlast.adapters.journal import current_tool_call
from outlast.adapters.run import CURRENT_RUN
from outlast.core.errors import OutlastError
from outlast.core.portal import Portal

logger = logging.getLogger("outlast.adapters")

MOST = 64
"""Connections at once, and so calls at once."""

IDLE_SECONDS = 60.0
"""A connection that nobody uses for so long is closed, and the credential forgotten."""

LOOK_SECONDS = 5.0
"""How long a server may take to show that it is still there."""

CONNECT_SECONDS = 30.0

WAITS_SECONDS = (0.2, 1.0, 2.0)
"""Between the tries to connect: a server that restarts is away for a moment."""

CLOSE_SECONDS = 10.0

IDEMPOTENCY_KEY = "outlast/idempotency_key"
"""In the `_meta` of a call: the key of `current_tool_call`."""


class ToolFailed(OutlastError):
    """A call that the server did not answer well. The text begins with the code, for it is what the model is told.

    Codes: `credential_required`, `credential_refused`, `connection_lost`, `tools_unavailable`, `tool_failed`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}", code=code)


class ToolsUnavailable(OutlastError):
    """A server does not say what tools it has; the message is for people, on one line."""

    code = "tools_unavailable"


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of a server, to be made one of a framework's. `name` is the model's, `own_name` the server's."""

    server: ToolServer
    folder: Path
    name: str
    own_name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def needs_approval(self) -> bool:
        """Whether a person has to agree to a call."""
        return self.server.asks(self.own_name)

    @property
    def rerun_safe(self) -> bool:
        """Whether it may run again when nobody knows whether it ran."""
        return self.server.may_rerun(self.own_name)

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Call the tool with the credential of whom the server declares, and return what the model is told.

        It is sent once: what becomes of a call whose connection is lost, nobody knows. Raise ToolFailed.
        """
        credential = _credential(self.server)
        return await _servers().call(self, credential, arguments, _meta())

    def call_from_thread(self, arguments: Mapping[str, Any]) -> str:
        """The same for code without asyncio."""
        credential = _credential(self.server)
        return _servers().portal.call(_servers().called(self, credential, arguments, _meta()))


def tools(server: ToolServer, folder: Path) -> list[ServerTool]:
    """Ask a server what tools it has, as the service itself. Blocks. Raise ToolsUnavailable."""
    credential = os.environ.get(server.credential) if server.credential else None
    if server.auth == "app" and server.credential and not credential:
        raise ToolsUnavailable(f"the server of tools {server.name!r} needs {server.credential}, which is not set")
    listed = _servers().portal.call(_servers().listed(server, credential or None, folder))
    if (missing := server.unknown([one.name for one in listed])) is not None:
        raise ToolsUnavailable(
            f"[[tools]] {server.name!r} names {missing!r}, which the server does not have; it has "
            f"{', '.join(one.name for one in listed)}"
        )
    return [
        ServerTool(server, folder, server.name_of(one.name), one.name, one.description, one.schema) for one in listed
    ]


async def leave() -> None:
    """Close the connections that nobody uses; a worker leaves."""
    if (found := _opened.get(os.getpid())) is not None:
        await found.portal.run(found.leave())


def _credential(server: ToolServer) -> str | None:
    """Return whose credential a call is made with. Raise ToolFailed where it is not there."""
    if server.auth == "app":
        if server.credential is None:
            return None
        found, whose = os.environ.get(server.credential), f"that of the service, and {server.credential} is not set"
    else:
        if server.url is None and server.credential is None:
            return None  # a command that takes none
        run = CURRENT_RUN.get()
        found = None if run is None else run.context.request_auth.credential
        whose = "that of the user, which came with no request, or was forgotten when its worker died; ask the user"
    if not found:
        raise ToolFailed("credential_required", f"the server {server.name!r} needs a credential: {whose}")
    if not (found.isascii() and found.isprintable()) or " " in found:
        # Before anybody else refuses it in a text that shows it.
        raise ToolFailed("credential_refused", f"what was sent for the server {server.name!r} is no credential")
    return found


def _meta() -> dict[str, Any]:
    try:
        return {IDEMPOTENCY_KEY: current_tool_call().idempotency_key}
    except LookupError:
        return {}


class _Servers:
    """The connections, by server and credential. Everything but `call` is for the thread of the portal."""

    def __init__(self) -> None:
        self.portal = Portal("outlast-tools")
        self._kept: OrderedDict[tuple[ToolServer, str | None, Path], _Kept] = OrderedDict()
        self._room = asyncio.Semaphore(MOST)
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, tool: ServerTool, credential: str | None, arguments: Mapping[str, Any], meta: Any) -> str:
        return await self.portal.run(self.called(tool, credential, arguments, meta))

    async def called(self, tool: ServerTool, credential: str | None, arguments: Mapping[str, Any], meta: Any) -> str:
        name = tool.server.name
        try:
            async with self._used(tool.server, credential, tool.folder) as connection:
                answer = await connection.call(tool.own_name, arguments, meta)
        except Lost:
            told = (
                f"the connection to the server {name!r} was lost during this call; it may have finished, finished in part "
                "or never begun; look at the current state before calling it again"
            )
            raise ToolFailed("connection_lost", told) from None
        except Refused as error:
            raise ToolFailed("credential_refused", f"the server {name!r} refuses the credential: {error}") from None
        except ToolsUnavailable as error:
            raise ToolFailed(error.code, str(error)) from None
        text = _without(credential, answer.text)
        if answer.failed:
            raise ToolFailed("tool_failed", text)
        return text

    async def listed(self, server: ToolServer, credential: str | None, folder: Path) -> list[ListedTool]:
        try:
            async with self._used(server, credential, folder) as connection, asyncio.timeout(CONNECT_SECONDS):
                return await connection.tools()
        except Refused as error:
            way = f"set {server.credential}" if server.credential else "name a variable that has one: credential"
            raise ToolsUnavailable(
                f"the server of tools {server.name!r} lists its tools to known callers only: {error}; {way}"
            ) from None
        except ToolsUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - each transport has its own ways to fail
            raise _unavailable(server, credential, error) from None

    async def leave(self) -> None:
        for key, kept in list(self._kept.items()):
            self._drop(key, kept)
        if self._closing:
            await asyncio.wait(self._closing)

    @asynccontextmanager
    async def _used(self, server: ToolServer, credential: str | None, folder: Path) -> AsyncIterator[Connection]:
        async with self._room:
            key = server, credential, folder
            kept = self._kept.get(key)
            if kept is None:
                for oldest, idle in list(self._kept.items()):
                    if len(self._kept) < MOST:
                        break
                    self._drop(oldest, idle)
                kept = self._kept[key] = _Kept(server, credential, folder)
            self._kept.move_to_end(key)
            kept.users += 1
            try:
                yield await kept.ready()
            finally:
                kept.users -= 1
                kept.used += 1
                asyncio.get_running_loop().call_later(IDLE_SECONDS, self._drop_idle, key, kept, kept.used)

    def _drop_idle(self, key: Any, kept: "_Kept", used: int) -> None:
        if kept.used == used:
            self._drop(key, kept)

    def _drop(self, key: Any, kept: "_Kept") -> None:
        if kept.users == 0 and self._kept.get(key) is kept:
            del self._kept[key]
            task = asyncio.get_running_loop().create_task(kept.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _Kept:
    """A connection that is kept, in a task that lives as long as it: a transport ends in the task it began in."""

    def __init__(self, server: ToolServer, credential: str | None, folder: Path) -> None:
        self.users = 0
        self.used = 0
        self._server, self._credential, self._folder = server, credential, folder
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def ready(self) -> Connection:
        """Return an open connection. Raise Refused or ToolsUnavailable."""
        async with self._lock:
            if self._connection is not None:
                if await self._answers(self._connection):
                    return self._connection
                logger.warning("the server of tools %r does not answer; connecting again", self._server.name)
                await self.close()
            for wait in (*WAITS_SECONDS, None):
                try:
                    return await self._connect(_speaks(self._server))
                except (Refused, ToolsUnavailable):
                    raise
                except Exception as error:  # noqa: BLE001 - each transport has its own ways to fail
                    if wait is None:
                        raise _unavailable(self._server, self._credential, error) from None
                    logger.debug("server of tools %r: %r", self._server.name, type(error))
                    await asyncio.sleep(wait)
            raise AssertionError

    async def _answers(self, connection: Connection) -> bool:
        if self._task is None or self._task.done():
            return False
        if self.users > 1:
            return True  # a server may do one thing at a time, and be busy with another call
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await connection.look()
        except Exception as error:  # noqa: BLE001 - each transport has its own ways to be gone
            logger.debug("server of tools %r: %r", self._server.name, type(error))
            return False
        return True

    async def _connect(self, by: Speaks) -> Connection:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Connection] = loop.create_future()
        self._stop = asyncio.Event()
        self._task = loop.create_task(self._hold(by, opened, self._stop))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._connection = await opened
        except BaseException:
            self._task.cancel()
            raise
        return self._connection

    async def _hold(self, by: Speaks, opened: "asyncio.Future[Connection]", stop: asyncio.Event) -> None:
        try:
            async with by.connected(self._server, self._credential, self._folder) as connection:
                opened.set_result(connection)
                await stop.wait()
        except Exception as error:  # noqa: BLE001 - for whoever waits; afterwards, the next look finds it ended
            if not opened.done():
                opened.set_exception(error)

    async def close(self) -> None:
        self._connection = None
        if self._task is not None:
            self._stop.set()
            _, left = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            for task in left:
                task.cancel()


def _speaks(server: ToolServer) -> Speaks:
    """Import what speaks as a server does, when one is there: it is an extra, and takes a moment."""
    try:
        return cast(Speaks, importlib.import_module(f"outlast.adapters.{server.type}"))
    except ImportError as error:
        raise ToolsUnavailable(str(error)) from None


def _unavailable(server: ToolServer, credential: str | None, error: BaseException) -> ToolsUnavailable:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = "it takes too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
    return ToolsUnavailable(f"the server of tools {server.name!r} cannot be reached: {_without(credential, said)}")


def _without(credential: str | None, text: str) -> str:
    """Take a credential out of a text of others."""
    return text if credential is None else text.replace(credential, "***")


_opened: dict[int, _Servers] = {}
"""By process: a forked one must leave the connections of its parent alone."""
_lock = threading.Lock()


def _servers() -> _Servers:
    with _lock:
        if (process := os.getpid()) not in _opened:
            _opened[process] = _Servers()
        return _opened[process]

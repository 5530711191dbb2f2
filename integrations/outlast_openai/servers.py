"""The MCP servers of the agents: connected once a worker, again when they restarted, and closed when the worker leaves.

A server that somebody else connected before is left to them.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from agents.mcp import MCPServer, MCPServerManager

from outlast.core.errors import RunFailed

logger = logging.getLogger("outlast.openai")

LOOK_SECONDS = 5.0
"""How long a server may take to show that it is there."""

WAITS_SECONDS = (0.2, 1.0, 2.0)
"""Between the tries to connect: a server that restarts is away for a moment."""


class Servers:
    """The servers of one wrapped agent. Each event loop has connections of its own."""

    def __init__(self, servers: Sequence[MCPServer]) -> None:
        self._servers = list(servers)
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()

    @contextlib.asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """Surround an attempt: connections are not closed under it."""
        connections = self._connections()
        connections.users += 1
        try:
            yield
        finally:
            connections.users -= 1

    async def ready(self) -> bool:
        """Connect what is not connected, or not any more; say whether a connection had been lost.

        Raises RunFailed (`mcp_unavailable`) for a server that cannot be reached.
        """
        if not self._servers:
            return False
        connections = self._connections()
        return any(await asyncio.gather(*(connections.ready(server) for server in self._servers)))

    async def close(self) -> None:
        """Close the connections of this loop, unless another store's runs use them: its end closes them."""
        connections = self._opened.get(asyncio.get_running_loop())
        if connections is not None and not connections.users:
            del self._opened[asyncio.get_running_loop()]
            await connections.close()

    def _connections(self) -> "_Connections":
        return self._opened.setdefault(asyncio.get_running_loop(), _Connections())


class _Connections:
    def __init__(self) -> None:
        self.users = 0
        self._managers: dict[MCPServer, MCPServerManager] = {}
        self._locks: dict[MCPServer, asyncio.Lock] = {}

    async def ready(self, server: MCPServer) -> bool:
        async with self._locks.setdefault(server, asyncio.Lock()):
            manager = self._managers.get(server)
            if manager is None:
                if getattr(server, "session", None) is None:
                    await self._connect(server)
                return False
            if await _is_there(server):
                return False
            logger.warning("the MCP server %r does not answer; connecting again", server.name)
            await manager.cleanup_all()
            await self._connect(server)
            return True

    async def _connect(self, server: MCPServer) -> None:
        """Connect in a task that lives as long as the connection: a transport ends in the task it began in."""
        for wait in (*WAITS_SECONDS, None):
            manager = MCPServerManager([server], connect_in_parallel=True, drop_failed_servers=False)
            await manager.connect_all()
            if not manager.failed_servers:
                self._managers[server] = manager
                return
            await manager.cleanup_all()
            if wait is not None:
                await asyncio.sleep(wait)
        self._managers.pop(server, None)
        error = manager.errors.get(server)
        raise RunFailed("mcp_unavailable", f"the MCP server {server.name!r} cannot be reached: {error!r}")

    async def close(self) -> None:
        await asyncio.gather(*(manager.cleanup_all() for manager in self._managers.values()))


async def _is_there(server: Any) -> bool:
    """Ask a server for something every server has; one that shows no session is not asked."""
    session = getattr(server, "session", None)
    if session is None:
        return not hasattr(server, "session")
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await session.list_tools()
    except Exception as error:  # noqa: BLE001 - each transport has its own ways to be gone
        logger.debug("MCP server %r: %r", server.name, error)
        return False
    return True

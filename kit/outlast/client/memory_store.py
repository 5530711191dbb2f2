"""The memories behind a URL: the methods of `MemoryStore` over HTTP, each safe to repeat."""

import uuid
from collections.abc import Sequence
from typing import Any

from outlast.client.transport import Transport
from outlast.core import ids
from outlast.core.conversations import (
    LARGEST_PAGE,
    MOST_LISTED,
    Memory,
    MemorySearchResult,
    memory_cursor,
    memory_of_json,
)
from outlast.core.portal import Blocking, blocking

MEMORIES = "/api/memories"


class RemoteMemoryStore:
    """The memories of whoever the client is, on its server. Get it as `client.memory`.

    The methods are those of `outlast.sessions.MemoryStore` and raise the same; besides, each raises ServerUnreachable. A
    connection that breaks is waited out: each change has a key, so that a repeat of it changes nothing.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(
        self,
        path: str,
        content: str,
        *,
        key: str | None = None,
        actor_id: str | None = None,
        session_id: str | None = None,
    ) -> Memory:
        """Store a memory at a path that has none. Raises Conflict (`memory_exists`)."""
        asked = {"path": path, "content": content, "actor_id": actor_id, "session_id": session_id, "key": _key(key)}
        return memory_of_json(await self._transport.json("POST", MEMORIES, json=asked))

    async def put(
        self,
        path: str,
        content: str,
        *,
        append: bool = False,
        key: str | None = None,
        actor_id: str | None = None,
        session_id: str | None = None,
    ) -> Memory:
        """Store a memory, whatever was at the path; with `append`, behind what is there."""
        asked = {"content": content, "append": append, "key": _key(key)}
        return await self._entry("PUT", _named(path, actor_id, session_id), json=asked)

    async def update(
        self,
        path: str,
        content: str,
        *,
        key: str | None = None,
        actor_id: str | None = None,
        session_id: str | None = None,
    ) -> Memory:
        """Replace the content of a memory. Raises NotFound."""
        asked = {"content": content, "key": _key(key)}
        return await self._entry("PATCH", _named(path, actor_id, session_id), json=asked)

    async def get(self, path: str, *, actor_id: str | None = None, session_id: str | None = None) -> Memory:
        """Return a memory. Raises NotFound."""
        return await self._entry("GET", _named(path, actor_id, session_id))

    async def list(
        self,
        path: str | None = None,
        path_prefix: str = "",
        *,
        actor_id: str | None = None,
        session_id: str | None = None,
        after: tuple[str, str | None] | None = None,
        limit: int = 100,
    ) -> Sequence[Memory]:
        """Return memories at a path, or whose path begins so, by path; of every session unless one is named.

        `after` is the path and the session of the last memory that is known: what follows it is returned, up to `limit`
        (1 to 1,000).
        """
        prefix = {"path_prefix": ids.memory_path(path_prefix, "path_prefix")} if path_prefix != "" else {}
        query: dict[str, Any] = {**_named(path, actor_id, session_id), **prefix}
        if after is not None:
            query["cursor"] = memory_cursor(*ids.memory_place(after))
        found, limit = list[Memory](), ids.limit(limit, MOST_LISTED)
        while True:
            query["limit"] = min(limit - len(found), LARGEST_PAGE)
            page = await self._transport.json("GET", MEMORIES, params=query)
            found += [memory_of_json(one) for one in page["items"]]
            if len(found) >= limit or page["next_cursor"] is None:
                return found
            query["cursor"] = page["next_cursor"]

    async def search(
        self, text: str, *, actor_id: str | None = None, session_id: str | None = None, limit: int = 10
    ) -> Sequence[MemorySearchResult]:
        """Return the memories that have any word of a text, the best first. No character of it is an operator."""
        asked = {"text": text, "actor_id": actor_id, "session_id": session_id, "limit": limit}
        found = await self._transport.json("POST", f"{MEMORIES}/search", json=asked)
        return [MemorySearchResult(memory_of_json(one["memory"]), one["score"]) for one in found["items"]]

    async def delete(self, path: str, *, actor_id: str | None = None, session_id: str | None = None) -> None:
        """Remove a memory. Raises NotFound."""
        await self._transport.delete(f"{MEMORIES}/entry", params=_named(path, actor_id, session_id))

    async def _entry(self, method: str, query: dict[str, str], **request: Any) -> Memory:
        return memory_of_json(await self._transport.json(method, f"{MEMORIES}/entry", params=query, **request))


class SyncRemoteMemoryStore(Blocking[RemoteMemoryStore]):
    """The same for code without asyncio; every method blocks."""

    add = blocking(RemoteMemoryStore.add)
    put = blocking(RemoteMemoryStore.put)
    update = blocking(RemoteMemoryStore.update)
    get = blocking(RemoteMemoryStore.get)
    list = blocking(RemoteMemoryStore.list)
    search = blocking(RemoteMemoryStore.search)
    delete = blocking(RemoteMemoryStore.delete)


def _named(path: str | None, actor_id: str | None, session_id: str | None) -> dict[str, str]:
    """Return the query that names memories. Raise InvalidRequest for what cannot be a name."""
    query = {} if path is None else {"path": ids.memory_path(path)}
    query |= {} if actor_id is None else {"actor_id": ids.name(actor_id, "actor_id")}
    return query | ({} if session_id is None else {"session_id": ids.session_id(session_id)})


def _key(key: str | None) -> str:
    return uuid.uuid4().hex if key is None else key

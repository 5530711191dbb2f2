"""The memory store: what is known about an actor, by path, with full-text search."""

import uuid
from collections.abc import Sequence

from outlast.core import ids, jsontext
from outlast.core.conversations import MOST_LISTED, Memory, MemorySearchResult
from outlast.core.errors import InvalidRequest, NotFound
from outlast.sessions.session import StoreSource
from outlast.store.memories import Key, Mode, StoredMemory
from outlast.store.store import Store

MAX_CONTENT = 65_536
"""Characters of one memory."""
MAX_NAME_BYTES = 2500
"""Bytes of principal, actor, path and session together: PostgreSQL's index takes no more."""
MOST_FOUND = 100


class MemoryStore:
    """The memories of one principal, each actor's by path; with `session_id`, apart from those of other sessions.

    `actor_id` is the principal unless it is given. Every method raises InvalidRequest for a name that cannot be one.
    With a `key` of the caller's making, the same change again changes nothing and returns the memory, until 16 other
    changes of the memory or its removal came between.
    """

    def __init__(self, store: Store | StoreSource, *, principal: str = "local") -> None:
        self._source = store
        self._principal = principal

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
        return await self._write("add", path, content, actor_id, session_id, key)

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
        return await self._write(
            "append" if ids.flag(append, "append") else "put", path, content, actor_id, session_id, key
        )

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
        return await self._write("update", path, content, actor_id, session_id, key)

    async def get(self, path: str, *, actor_id: str | None = None, session_id: str | None = None) -> Memory:
        """Return a memory. Raises NotFound."""
        found = await (await self._store()).read.memory(self._key(path, actor_id, session_id))
        if found is None:
            raise NotFound(f"there is no memory at {path!r}")
        return _memory(found)

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
        found = await (await self._store()).read.memories(
            self._principal,
            self._actor(actor_id),
            path=None if path is None else ids.memory_path(path),
            prefix="" if path_prefix == "" else ids.memory_path(path_prefix, "path_prefix"),
            session_id=_session(session_id),
            after=None if after is None else _place(after),
            limit=ids.limit(limit, MOST_LISTED),
        )
        return [_memory(one) for one in found]

    async def search(
        self, text: str, *, actor_id: str | None = None, session_id: str | None = None, limit: int = 10
    ) -> Sequence[MemorySearchResult]:
        """Return the memories that have any word of a text, the best first. No character of it is an operator."""
        found = await (await self._store()).read.found_memories(
            self._principal, self._actor(actor_id), _content(text, "text"), session_id=_session(session_id),
            limit=ids.limit(limit, MOST_FOUND),
        )  # fmt: skip
        return [MemorySearchResult(_memory(one), score) for one, score in found]

    async def delete(self, path: str, *, actor_id: str | None = None, session_id: str | None = None) -> None:
        """Remove a memory. Raises NotFound."""
        await (await self._store()).memories.delete(self._key(path, actor_id, session_id))

    async def _write(
        self,
        mode: Mode,
        path: str,
        content: str,
        actor_id: str | None,
        session_id: str | None,
        key: str | None,
    ) -> Memory:
        where, text = self._key(path, actor_id, session_id), _content(content)
        token = uuid.uuid4().hex if key is None else ids.name(key, "key")
        store = await self._store()
        return _memory(await store.memories.write(where, text, mode=mode, token=token, limit=MAX_CONTENT))

    async def _store(self) -> Store:
        return self._source if isinstance(self._source, Store) else await self._source.store()

    def _key(self, path: str, actor_id: str | None, session_id: str | None) -> Key:
        key = Key(self._principal, self._actor(actor_id), ids.memory_path(path), _session(session_id) or "")
        if sum(len(part.encode()) for part in key) > MAX_NAME_BYTES:
            raise InvalidRequest(
                f"`path`, `actor_id` and `session_id` have more than {MAX_NAME_BYTES} bytes together",
                code="invalid_path",
                field="path",
            )
        return key

    def _actor(self, actor_id: str | None) -> str:
        return self._principal if actor_id is None else ids.name(actor_id, "actor_id")


def _memory(stored: StoredMemory) -> Memory:
    return Memory(
        stored.path, jsontext.decode(stored.content), stored.actor_id, stored.session_id or None, stored.created_at,
        stored.updated_at,
    )  # fmt: skip


def _place(after: object) -> tuple[str, str]:
    path, session_id = ids.memory_place(after)
    return path, session_id or ""


def _content(content: object, field: str = "content") -> str:
    if not isinstance(content, str):
        raise InvalidRequest(f"`{field}` must be a string", code=f"invalid_{field}", field=field)
    if len(content) > MAX_CONTENT:
        raise InvalidRequest(
            f"`{field}` has {len(content)} characters; the limit is {MAX_CONTENT}",
            code="memory_too_large" if field == "content" else f"invalid_{field}",
            field=field,
        )
    return content


def _session(session_id: str | None) -> str | None:
    return None if session_id is None else ids.session_id(session_id)

"""The memory store: what is known about an actor, by path, with full-text search."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.core import ids, jsontext
from outlast.core.errors import InvalidRequest, NotFound
from outlast.sessions.session import StoreSource
from outlast.store.memories import Key, Mode, StoredMemory
from outlast.store.store import Store

MAX_CONTENT = 65_536
"""Characters of one memory."""
MAX_NAME_BYTES = 2500
"""Bytes of principal, actor, path and session together: PostgreSQL's index takes no more."""
MOST_FOUND = 100
MOST_LISTED = 1000

_PATH = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,512}")


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory. Times are milliseconds since 1970 UTC."""

    path: str
    content: str
    actor_id: str
    session_id: str | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """A memory that was found; a higher score is a better match, within one search."""

    memory: Memory
    score: float


class MemoryStore:
    """The memories of one principal, each actor's by path; with `session_id`, apart from those of other sessions.

    `actor_id` is the principal unless it is given. Every method raises InvalidRequest for a name that cannot be one.
    """

    def __init__(self, store: Store | StoreSource, *, principal: str = "local") -> None:
        self._source = store
        self._principal = principal

    async def add(
        self, path: str, content: str, *, actor_id: str | None = None, session_id: str | None = None
    ) -> Memory:
        """Store a memory at a path that has none. Raises Conflict (`memory_exists`)."""
        return await self._write("add", path, content, actor_id, session_id)

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
        """Store a memory, whatever was at the path; with `append`, behind what is there.

        With a `key` of the caller's making, the same change again changes nothing, until 16 other changes of the memory
        or its removal came between. Raises Conflict (`idempotency_conflict`) when the key was used for another change.
        """
        return await self._write("append" if append else "put", path, content, actor_id, session_id, key)

    async def update(
        self, path: str, content: str, *, actor_id: str | None = None, session_id: str | None = None
    ) -> Memory:
        """Replace the content of a memory. Raises NotFound."""
        return await self._write("update", path, content, actor_id, session_id)

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
            self._principal, self._actor(actor_id), path=None if path is None else _path(path),
            prefix="" if path_prefix == "" else _path(path_prefix, "path_prefix"), session_id=_session(session_id),
            after=None if after is None else _place(after), limit=_bounded(limit, MOST_LISTED),
        )  # fmt: skip
        return [_memory(one) for one in found]

    async def search(
        self, text: str, *, actor_id: str | None = None, session_id: str | None = None, limit: int = 10
    ) -> Sequence[MemorySearchResult]:
        """Return the memories that have any word of a text, the best first. No character of it is an operator."""
        found = await (await self._store()).read.found_memories(
            self._principal, self._actor(actor_id), _content(text, "text"), session_id=_session(session_id),
            limit=_bounded(limit, MOST_FOUND),
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
        key: str | None = None,
    ) -> Memory:
        where, text = self._key(path, actor_id, session_id), _content(content)
        token = uuid.uuid4().hex if key is None else _name(key, "key")
        store = await self._store()
        return _memory(await store.memories.write(where, text, mode=mode, token=token, limit=MAX_CONTENT))

    async def _store(self) -> Store:
        return self._source if isinstance(self._source, Store) else await self._source.store()

    def _key(self, path: str, actor_id: str | None, session_id: str | None) -> Key:
        key = Key(self._principal, self._actor(actor_id), _path(path), _session(session_id) or "")
        if sum(len(part.encode()) for part in key) > MAX_NAME_BYTES:
            raise InvalidRequest(
                f"`path`, `actor_id` and `session_id` have more than {MAX_NAME_BYTES} bytes together",
                code="invalid_path",
                field="path",
            )
        return key

    def _actor(self, actor_id: str | None) -> str:
        return self._principal if actor_id is None else _name(actor_id, "actor_id")


def _memory(stored: StoredMemory) -> Memory:
    return Memory(
        stored.path, jsontext.decode(stored.content), stored.actor_id, stored.session_id or None, stored.created_at,
        stored.updated_at,
    )  # fmt: skip


def _path(path: object, field: str = "path") -> str:
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise InvalidRequest(
            f"`{field}` must be a string of 1 to 512 characters without control characters",
            code="invalid_path",
            field=field,
        )
    return path


def _place(after: object) -> tuple[str, str]:
    if not isinstance(after, tuple) or len(after) != 2:
        raise InvalidRequest("`after` must be a path and a session", code="invalid_cursor", field="after")
    return _path(after[0], "after"), _session(after[1]) or ""


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


def _name(value: object, field: str) -> str:
    try:
        return ids.session_id(value)
    except InvalidRequest:
        raise InvalidRequest(f"`{field}` must be a string of 1 to 512 characters", field=field) from None


def _bounded(limit: object, most: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= most:
        raise InvalidRequest(f"`limit` must be between 1 and {most}", code="invalid_parameter", field="limit")
    return limit

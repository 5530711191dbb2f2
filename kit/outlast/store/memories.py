"""Memories and the search in them; how they are searched is said in `words`."""

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection as PooledConnection
from sqlalchemy import (
    Select,
    func,
    select,
    tuple_,
)

from outlast.core import jsontext
from outlast.core.errors import Conflict, InvalidRequest, NotFound
from outlast.store.statements import Again, Connection, Rows, Statement, query
from outlast.store.tables import memories
from outlast.store.words import ONE, WordIndex, owner
from outlast.store.writer import seen_once

Mode = Literal["add", "put", "append", "update"]

RECENT_KEYS = 16
"""Changes of one memory that are recognised when they are repeated."""

Submit = Callable[[str, Callable[[Connection], Any]], "asyncio.Future[Any]"]


class StoredMemory(NamedTuple):
    """One stored memory. `content` is JSON text of a string; `session_id` is empty for none."""

    number: int
    actor_id: str
    session_id: str
    path: str
    content: str
    created_at: int
    updated_at: int


class Key(NamedTuple):
    """What names a memory."""

    principal: str
    actor_id: str
    path: str
    session_id: str


class MemoryChanges:
    """The writing verbs. Each future resolves after its commit."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def write(self, key: Key, content: str, *, mode: Mode, token: str, limit: int) -> "asyncio.Future[StoredMemory]":
        """Store text at a path. `token` names this change, so that a repeat of it changes nothing.

        The future raises Conflict (`memory_exists`; `idempotency_conflict` when another change had the token), NotFound,
        and InvalidRequest (`memory_too_large`) for more than `limit` characters.
        """
        return self._submit("memory", lambda connection: _write(connection, key, content, mode, token, limit))

    def delete(self, key: Key) -> "asyncio.Future[None]":
        """Remove a memory. The future raises NotFound."""
        return self._submit("memory", seen_once(lambda connection: _delete(connection, key)))


_COLUMNS = "m.number, m.actor_id, m.session_id, m.path, m.content, m.created_at, m.updated_at"
_KEY = "principal = :principal AND actor_id = :actor_id AND path = :path AND session_id = :session_id"
_FIND = Statement("SELECT " + _COLUMNS + ", m.recent_keys FROM {p}memories m WHERE " + _KEY + " {update}")
_INSERT = Statement(
    """
    INSERT INTO {p}memories (principal, actor_id, path, session_id, content, recent_keys, created_at, updated_at)
    VALUES (:principal, :actor_id, :path, :session_id, '""', '[]', {now}, {now})
    ON CONFLICT (principal, actor_id, path, session_id) DO NOTHING
    """
)
_UPDATE = Statement(
    "UPDATE {p}memories SET content = :content, recent_keys = :keys, updated_at = {now} WHERE number = :number"
)
_DELETE = Statement("DELETE FROM {p}memories WHERE number = :number")
_WORDS = WordIndex("memory_words", "SELECT CAST(:number AS bigint) AS number")
# `session_id <> ''` is the condition of the index `memories_of_session`.
_OF_SESSIONS = """
    SELECT m.number FROM {p}sessions s JOIN {p}memories m ON m.principal = s.principal AND m.session_id = s.id
    WHERE m.session_id <> '' AND s.number IN (SELECT f.value FROM {values} f)
"""
_FORGET_SESSIONS = Statement(f"DELETE FROM memory_words WHERE rowid IN ({_OF_SESSIONS})")
_DELETE_SESSIONS = Statement(f"DELETE FROM {{p}}memories WHERE number IN ({_OF_SESSIONS})")


def _write(connection: Connection, key: Key, content: str, mode: Mode, token: str, limit: int) -> StoredMemory:
    fields = key._asdict()
    created = False
    if mode != "update":
        created = connection.send(_INSERT, **fields).count() == 1
    found = query(connection, _FIND, **fields)
    if not found:
        if mode != "update":
            raise Again("the memory was removed between two statements")
        raise NotFound(f"there is no memory at {key.path!r}")
    *row, keys = found[0]
    memory, recent, digest = StoredMemory(*row), jsontext.decode(keys), _digest(mode, content)
    for known, what in recent:
        if known == token and what != digest:
            raise Conflict(
                f"the key {token!r} was used for another change of this memory; use a new key for a new change",
                code="idempotency_conflict",
            )
        if known == token:
            return memory
    if mode == "add" and not created:
        raise Conflict(f"there is a memory at {key.path!r}; use put or update", code="memory_exists")
    text = jsontext.decode(memory.content) + content if mode == "append" else content
    if len(text) > limit:
        raise InvalidRequest(
            f"the memory would have {len(text)} characters; the limit is {limit}",
            code="memory_too_large",
            field="content",
        )
    kept = jsontext.encode([[token, digest], *recent][:RECENT_KEYS])
    connection.send(_UPDATE, number=memory.number, content=jsontext.encode(text), keys=kept)
    connection.send(_WORDS.forget(connection.dialect), number=memory.number)
    learn, parameters = _WORDS.learn(connection.dialect, owner(key.principal, key.actor_id), f"{key.path} {text}")
    connection.send(learn, number=memory.number, **parameters)
    *row, _ = query(connection, _FIND, **fields)[0]
    return StoredMemory(*row)


def _digest(mode: Mode, content: str) -> str:
    return blake2b(jsontext.encode([mode, content]).encode(), digest_size=8).hexdigest()


def _delete(connection: Connection, key: Key) -> None:
    found = query(connection, _FIND, **key._asdict())
    if not found:
        raise NotFound(f"there is no memory at {key.path!r}")
    connection.send(_WORDS.forget(connection.dialect), number=found[0][0])
    connection.send(_DELETE, number=found[0][0])


def delete_of_sessions(connection: Connection, numbers: Rows) -> None:
    """Remove what belongs to sessions that are about to be deleted."""
    if connection.dialect == "sqlite":
        connection.send(_FORGET_SESSIONS, values=numbers)
    connection.send(_DELETE_SESSIONS, values=numbers)


_MEMORIES = select(
    memories.c.number, memories.c.actor_id, memories.c.session_id, memories.c.path, memories.c.content,
    memories.c.created_at, memories.c.updated_at,
)  # fmt: skip


def read(connection: PooledConnection, key: Key) -> StoredMemory | None:
    """Return a memory, or None."""
    named = _MEMORIES.where(
        memories.c.principal == key.principal, memories.c.actor_id == key.actor_id, memories.c.path == key.path,
        memories.c.session_id == key.session_id,
    )  # fmt: skip
    row = connection.execute(named).first()
    return None if row is None else StoredMemory._make(row)


def listed(
    connection: PooledConnection,
    principal: str,
    actor_id: str,
    *,
    path: str | None,
    prefix: str,
    session_id: str | None,
    after: tuple[str, str] | None,
    limit: int,
) -> list[StoredMemory]:
    """Return memories at `path` or whose path begins with `prefix`, by path and session; those behind `after`."""
    found = _of(_MEMORIES, principal, actor_id, session_id)
    if path is not None:
        found = found.where(memories.c.path == path)
    if prefix:
        # The first condition is for the index.
        found = found.where(memories.c.path >= prefix, func.substr(memories.c.path, 1, len(prefix)) == prefix)
    if after is not None:
        found = found.where(tuple_(memories.c.path, memories.c.session_id) > after)
    rows = connection.execute(found.order_by(memories.c.path, memories.c.session_id).limit(limit))
    return [StoredMemory._make(row) for row in rows]


def search(
    connection: PooledConnection, principal: str, actor_id: str, text: str, *, session_id: str | None, limit: int
) -> list[tuple[StoredMemory, float]]:
    """Return the memories that have any of the words, the best first, each with its score.

    A word counts the less, the more of the actor's memories (of the session, if one is named) have it.
    """
    of_session = [] if session_id is None else [memories.c.session_id == session_id]
    scores = _WORDS.scores(connection, owner(principal, actor_id), text, memories, of_session)
    if scores is None:
        return []
    best = scores.limit(limit).subquery()
    found = _of(_MEMORIES.add_columns(best.c.score), principal, actor_id, session_id)
    found = found.join(best, best.c.number == memories.c.number)
    found = found.order_by(best.c.score.desc(), memories.c.updated_at.desc(), memories.c.number.desc())
    return [(StoredMemory._make(row[:-1]), int(row[-1]) / ONE) for row in connection.execute(found)]


def _of(found: Select[Any], principal: str, actor_id: str, session_id: str | None) -> Select[Any]:
    found = found.where(memories.c.principal == principal, memories.c.actor_id == actor_id)
    return found if session_id is None else found.where(memories.c.session_id == session_id)

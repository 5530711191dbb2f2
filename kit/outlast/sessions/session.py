"""The session store: conversations and their items, with and without a server."""

import re
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

from outlast.core import ids, jsontext
from outlast.core.conversations import Session, SessionItem, SessionPage, item_line, lines_of, session_line
from outlast.core.errors import InvalidRequest, NotFound, SessionNotFound
from outlast.core.records import StoredItem, StoredSession
from outlast.store.store import Store

PAGE = 100
LARGEST_PAGE = 500
DEFAULT_AGENT = "agent"
KEEP_TOMBSTONES_MS = 90 * 24 * 3600 * 1000

_KEY = re.compile(r"[\x21-\x7e]{1,128}")
_ITEM_ID = re.compile(r"[\x21-\x7e]{1,160}")
"""A key and a number."""


class StoreSource(Protocol):
    """What opens a store where it is first used, such as `open_store()` returns."""

    async def store(self) -> Store: ...


class SessionStore:
    """The sessions of one principal.

    Every method raises InvalidRequest for a name that cannot be one. Whatever changes items raises NotFound for a session
    that is not there, SessionBusy while a run of the session is not final, and Conflict (`unsupported_for_agent`) when its
    agent keeps the history as checkpoints.
    """

    def __init__(self, store: Store | StoreSource, *, principal: str = "local") -> None:
        self._source = store
        self._principal = principal

    async def create(
        self,
        id: str | None = None,
        *,
        agent: str = DEFAULT_AGENT,
        actor_id: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Session:
        """Create a session and return it; one of the same agent, actor and parent is returned as it is.

        A child has the actor of its parent. Raises InvalidRequest, NotFound for the parent, and Conflict
        (`session_exists`, `actor_mismatch`).
        """
        store = await self._store()
        parent = None if parent is None else ids.name(parent, "parent")
        if actor_id is None and parent is not None:
            actor_id = (await self.get(parent)).actor_id
        stored = await store.sessions.create(
            self._principal,
            ids.session_id(id) if id is not None else str(uuid.uuid4()),
            agent=ids.name(agent, "agent"),
            actor_id=ids.name(actor_id, "actor_id") if actor_id is not None else self._principal,
            parent_id=parent,
            labels=ids.labels(labels),
        )
        return _session(stored)

    async def get(self, id: str) -> Session:
        """Return a session. Raises NotFound."""
        return _session(await self._find(id))

    async def list(
        self,
        *,
        agent: str | None = None,
        actor_id: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Session]:
        """Give the sessions that match, the newest first, reading on as they are taken."""
        cursor: int | None = None
        while True:
            page = await self.page(agent=agent, actor_id=actor_id, parent=parent, labels=labels, cursor=cursor)
            for session in page.sessions:
                yield session
            if (cursor := page.cursor) is None:
                return

    async def page(
        self,
        *,
        agent: str | None = None,
        actor_id: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        cursor: int | None = None,
        limit: int = PAGE,
    ) -> SessionPage:
        """Return a part of the list; `cursor` is that of the page before."""
        filters = {"agent": agent, "actor_id": actor_id, "parent": parent}
        named = {field: ids.name(text, field) for field, text in filters.items() if text is not None}
        found = await (await self._store()).read.sessions(
            self._principal, agent=named.get("agent"), actor_id=named.get("actor_id"), parent_id=named.get("parent"),
            labels=ids.labels(labels), before=None if cursor is None else ids.position(cursor, "cursor"), limit=ids.limit(limit, LARGEST_PAGE) + 1,
        )  # fmt: skip
        shown = found[:limit]
        return SessionPage([_session(one) for one in shown], shown[-1].number if len(found) > limit else None)

    async def update(self, id: str, *, labels: Mapping[str, str | None]) -> Session:
        """Set labels and return the session; None removes a label. Raises NotFound."""
        store = await self._store()
        return _session(
            await store.sessions.label(self._principal, ids.session_id(id), ids.labels(labels, removable=True))
        )

    async def append(
        self, id: str, items: Sequence[Mapping[str, Any]], *, key: str | None = None
    ) -> Sequence[SessionItem]:
        """Append items, JSON objects, all or none, and return them.

        With a `key` of the caller's making, appending the same again changes nothing. Raises Conflict (`item_exists`)
        when the key was used for other items.
        """
        key = uuid.uuid4().hex if key is None else _key(key)
        contents = [
            (f"{key}-{index}", _content(item, f"items[{index}]"))
            for index, item in enumerate(ids.objects(items, "items"))
        ]
        store, absent = await self._store(), f"{key}-{len(contents)}"
        stored = await store.sessions.append(self._principal, ids.session_id(id), contents, absent=absent)
        return [_item(one) for one in stored]

    async def items(
        self, id: str, *, after: int | None = None, limit: int | None = None, newest_first: bool = False
    ) -> AsyncIterator[SessionItem]:
        """Give items in order, or the newest first, reading on as they are taken.

        `after` is the position of the last item that is known: what follows it in the order asked for is given.
        """
        after = None if after is None else ids.position(after, "after")
        left = None if limit is None else ids.limit(limit, least=0)
        newest_first = ids.flag(newest_first, "newest_first")
        store, scope = await self._store(), (await self._find(id)).scope
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            found = await store.read.items(scope, after=after, newest_first=newest_first, limit=size)
            for one in found:
                yield _item(one)
            if not found:
                return
            after = found[-1].position
            left = None if left is None else left - len(found)

    async def pop(self, id: str) -> SessionItem | None:
        """Remove the last item and return it; None when there is none."""
        popped = await (await self._store()).sessions.pop(self._principal, ids.session_id(id))
        return None if popped is None else _item(popped)

    async def clear(self, id: str) -> int:
        """Remove all items and return how many there were."""
        return await (await self._store()).sessions.clear(self._principal, ids.session_id(id))

    async def fork(
        self,
        id: str,
        new_id: str | None = None,
        *,
        up_to_item_id: str | None = None,
        actor_id: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Session:
        """Copy a session, up to and with an item, and return the copy: a session of its own, without parent.

        Without an item all is copied; while a run is answering tool calls, all before the answer that asked for them.
        What is appended to one of them later does not change the other. The same fork again is returned as it is.
        Raises NotFound for the session or the item, and Conflict (`session_exists`).
        """
        if not isinstance(up_to_item_id, str | None):
            raise InvalidRequest("`up_to_item_id` must be a string", code="invalid_field", field="up_to_item_id")
        if up_to_item_id is not None and not _ITEM_ID.fullmatch(up_to_item_id):
            raise NotFound(f"this session has no item {up_to_item_id!a}")
        stored = await (await self._store()).sessions.fork(
            self._principal, ids.session_id(id), ids.session_id(new_id) if new_id is not None else str(uuid.uuid4()),
            actor_id=None if actor_id is None else ids.name(actor_id, "actor_id"), labels=ids.labels(labels),
            up_to_item_id=up_to_item_id,
        )  # fmt: skip
        return _session(stored)

    async def delete(self, id: str, *, force: bool = False) -> None:
        """Remove a session, its items, its runs and the memories kept for it; with `force`, its descendants too.

        Raises NotFound, SessionBusy, and Conflict (`session_has_children`).
        """
        id, force = ids.session_id(id), ids.flag(force, "force")
        await (await self._store()).sessions.delete(self._principal, id, force=force, keep_ms=KEEP_TOMBSTONES_MS)

    async def export(self, id: str) -> AsyncIterator[str]:
        """Give a session as lines of JSON: the session, then each item."""
        yield session_line(await self.get(id))
        async for item in self.items(id):
            yield item_line(item)

    async def import_(self, lines: Iterable[str] | AsyncIterable[str], *, id: str | None = None) -> Session:
        """Store what `export` gives as a new session, all or nothing, and return it. `id` is another name for it.

        `lines` may be lines, one text with all of them, or `export` itself, also that of another store.
        Raises InvalidRequest that names the line, and Conflict (`session_exists`).
        """
        head, *rest = [_line(number, line) for number, line in enumerate(await lines_of(lines), 1) if line.strip()] or [
            {}
        ]
        if head.get("type") != "session":
            raise InvalidRequest("line 1 must be the session", code="invalid_import", field="line 1")
        contents = [_imported(number, line) for number, line in enumerate(rest, 2)]
        if len({item_id for item_id, _ in contents}) < len(contents):
            raise InvalidRequest("two items have the same id", code="invalid_import", field="id")
        stored = await (await self._store()).sessions.create(
            self._principal,
            ids.session_id(id if id is not None else head.get("id")),
            agent=ids.name(head.get("agent"), "agent"),
            actor_id=ids.name(head.get("actor_id"), "actor_id"),
            parent_id=None,
            labels=ids.labels(head.get("labels", {})),
            items=contents,
        )
        return _session(stored)

    async def _store(self) -> Store:
        return self._source if isinstance(self._source, Store) else await self._source.store()

    async def _find(self, id: str) -> StoredSession:
        found = await (await self._store()).read.session(self._principal, ids.session_id(id))
        if found is None:
            raise SessionNotFound(f"there is no session {id!r}")
        return found


def _session(stored: StoredSession) -> Session:
    return Session(
        stored.id, stored.agent, stored.actor_id, stored.parent_id, stored.root_id, stored.forked_from,
        jsontext.decode(stored.labels), stored.active, stored.created_at, stored.last_activity,
    )  # fmt: skip


def _item(stored: StoredItem) -> SessionItem:
    content = jsontext.decode(stored.item)
    return SessionItem(stored.id, stored.position, content, stored.created_at, stored.invocation_id)


def _content(item: Any, field: str) -> str:
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"{field} must be a JSON object", code="invalid_item", field=field)
    return jsontext.encode(dict(item))


def _key(key: Any) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidRequest("`key` must be 1 to 128 visible ASCII characters", code="invalid_key", field="key")
    return key


def _line(number: int, line: str) -> dict[str, Any]:
    try:
        value = jsontext.parse(line.encode())
    except (InvalidRequest, UnicodeEncodeError) as error:
        raise InvalidRequest(f"line {number}: {error}", code="invalid_import", field=f"line {number}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"line {number} is no object", code="invalid_import", field=f"line {number}")
    return value


def _imported(number: int, line: dict[str, Any]) -> tuple[str, str]:
    field = f"line {number}"
    item_id = line.get("id")
    if line.get("type") != "item" or not isinstance(item_id, str) or not _ITEM_ID.fullmatch(item_id):
        raise InvalidRequest(f"{field} is no item with an id", code="invalid_import", field=field)
    return item_id, _content(line.get("content"), field)

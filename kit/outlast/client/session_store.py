"""The sessions behind a URL: the methods of `SessionStore` over HTTP, safe to repeat where they can be."""

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from outlast.client.transport import Transport
from outlast.core import ids
from outlast.core.conversations import (
    JSON_LINES,
    Session,
    SessionItem,
    SessionPage,
    item_line,
    item_of_json,
    lines_of,
    session_line,
    session_of_json,
)
from outlast.core.portal import Blocking, blocking, iterating

PAGE = 100
SESSIONS = "/api/sessions"


class RemoteSessionStore:
    """The sessions of whoever the client is, on its server. Get it as `client.sessions`.

    The methods are those of `outlast.sessions.SessionStore` and raise the same; besides, each raises ServerUnreachable. A
    connection that breaks is waited out: a repeat changes nothing. `pop` and `clear` cannot be repeated safely, so they
    raise AnswerLost when it is unknown whether they were done.
    """

    def __init__(self, transport: Transport, agent: str | None) -> None:
        self._transport, self._agent = transport, agent

    async def create(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        actor_id: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Session:
        """Create a session and return it; one of the same agent, actor and parent is returned as it is.

        The agent is that of the client unless one is named, or the only one of the server. A child has the actor of its
        parent. Raises InvalidRequest, NotFound for the parent, and Conflict (`session_exists`, `actor_mismatch`).
        """
        asked = {
            "id": str(uuid.uuid4()) if id is None else id, "agent": self._agent if agent is None else agent,
            "actor_id": actor_id, "parent": parent, "labels": _plain(labels),
        }  # fmt: skip
        return session_of_json(await self._transport.json("POST", SESSIONS, json=asked))

    async def get(self, id: str) -> Session:
        """Return a session. Raises NotFound."""
        return session_of_json(await self._transport.json("GET", session_path(id)))

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
        names = {"agent": agent, "actor_id": actor_id, "parent": parent}
        query: dict[str, Any] = {field: ids.name(text, field) for field, text in names.items() if text is not None}
        query |= {f"labels.{label}": text for label, text in ids.labels(labels).items()}
        query["limit"] = ids.limit(limit)
        query |= {} if cursor is None else {"cursor": ids.position(cursor, "cursor")}
        found = await self._transport.json("GET", SESSIONS, params=query)
        return SessionPage([session_of_json(one) for one in found["items"]], _cursor(found))

    async def update(self, id: str, *, labels: Mapping[str, str | None]) -> Session:
        """Set labels and return the session; None removes a label. Raises NotFound."""
        updated = await self._transport.json("PATCH", session_path(id), json={"labels": _plain(labels)})
        return session_of_json(updated)

    async def append(
        self, id: str, items: Sequence[Mapping[str, Any]], *, key: str | None = None
    ) -> Sequence[SessionItem]:
        """Append items, JSON objects, all or none, and return them.

        With a `key` of the caller's making, appending the same again changes nothing. Raises Conflict (`item_exists`)
        when the key was used for other items.
        """
        asked = {
            "items": [_plain(item) for item in ids.objects(items, "items")],
            "key": uuid.uuid4().hex if key is None else key,
        }
        stored = await self._transport.json("POST", f"{session_path(id)}/items", json=asked)
        return [item_of_json(one) for one in stored["items"]]

    async def items(
        self, id: str, *, after: int | None = None, limit: int | None = None, newest_first: bool = False
    ) -> AsyncIterator[SessionItem]:
        """Give items in order, or the newest first, reading on as they are taken.

        `after` is the position of the last item that is known: what follows it in the order asked for is given.
        """
        after = None if after is None else ids.position(after, "after")
        left = None if limit is None else ids.limit(limit, least=0)
        path, order = f"{session_path(id)}/items", "desc" if ids.flag(newest_first, "newest_first") else "asc"
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            query: dict[str, Any] = {"limit": size, "order": order} | ({} if after is None else {"after": after})
            found = await self._transport.json("GET", path, params=query)
            for one in found["items"]:
                yield item_of_json(one)
            if (after := _cursor(found)) is None:
                return
            left = None if left is None else left - size

    async def pop(self, id: str) -> SessionItem | None:
        """Remove the last item and return it; None when there is none. Raises AnswerLost."""
        popped = (await self._transport.once("POST", f"{session_path(id)}/items/pop"))["item"]
        return None if popped is None else item_of_json(popped)

    async def clear(self, id: str) -> int:
        """Remove all items and return how many there were. Raises AnswerLost."""
        return int((await self._transport.once("DELETE", f"{session_path(id)}/items"))["removed"])

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

        What is appended to one of them later does not change the other. The same fork again is returned as it is.
        Raises NotFound for the session or the item, and Conflict (`session_exists`).
        """
        asked = {
            "id": str(uuid.uuid4()) if new_id is None else new_id, "up_to_item_id": up_to_item_id,
            "actor_id": actor_id, "labels": _plain(labels),
        }  # fmt: skip
        return session_of_json(await self._transport.json("POST", f"{session_path(id)}/fork", json=asked))

    async def delete(self, id: str, *, force: bool = False) -> None:
        """Remove a session, its items and its runs; with `force`, its descendants too.

        Raises NotFound, SessionBusy, and Conflict (`session_has_children`).
        """
        await self._transport.delete(session_path(id), params={"force": ids.flag(force, "force")})

    async def export(self, id: str) -> AsyncIterator[str]:
        """Give a session as lines of JSON: the session, then each item."""
        yield session_line(await self.get(id))
        async for item in self.items(id):
            yield item_line(item)

    async def import_(self, lines: Iterable[str] | AsyncIterable[str], *, id: str | None = None) -> Session:
        """Store what `export` gives as a new session, all or nothing, and return it. `id` is another name for it.

        `lines` may be lines, one text with all of them, or `export` itself, also that of another store.
        Raises InvalidRequest that names the line, or (`body_too_large`) where the server takes no more, and Conflict
        (`session_exists`).
        """
        query = {} if id is None else {"id": ids.session_id(id)}
        text = "\n".join(line.replace("\n", " ") for line in await lines_of(lines))
        # A lone surrogate becomes bytes that the server refuses, with the number of the line.
        content = text.encode(errors="surrogatepass")
        headers = {"Content-Type": JSON_LINES}
        return session_of_json(
            await self._transport.json("POST", SESSIONS, params=query, content=content, headers=headers)
        )


class SyncRemoteSessionStore(Blocking[RemoteSessionStore]):
    """The same for code without asyncio; every method blocks."""

    create = blocking(RemoteSessionStore.create)
    get = blocking(RemoteSessionStore.get)
    list = iterating(RemoteSessionStore.list)
    page = blocking(RemoteSessionStore.page)
    update = blocking(RemoteSessionStore.update)
    append = blocking(RemoteSessionStore.append)
    items = iterating(RemoteSessionStore.items)
    pop = blocking(RemoteSessionStore.pop)
    clear = blocking(RemoteSessionStore.clear)
    fork = blocking(RemoteSessionStore.fork)
    delete = blocking(RemoteSessionStore.delete)
    export = iterating(RemoteSessionStore.export)
    import_ = blocking(RemoteSessionStore.import_)


def session_path(id: str) -> str:
    """Return the path of a session. Raise InvalidRequest for an id that cannot be one."""
    # A dot too: `.` and `..` would be taken for steps in the path.
    return f"{SESSIONS}/{quote(ids.session_id(id), safe='').replace('.', '%2E')}"


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _cursor(page: Mapping[str, Any]) -> int | None:
    return None if page["next_cursor"] is None else int(page["next_cursor"])

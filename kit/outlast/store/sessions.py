"""Sessions and their items. Every change locks its session's row first, as accepting a run of the session does.

The writer may repeat a transaction whose commit has an unknown outcome. So each change finds its own earlier effect: a
session and an item by their ids, a removal by the position that the first try saw.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection as PooledConnection
from sqlalchemy import func, literal_column, select

from outlast.core import ids, jsontext
from outlast.core.errors import Conflict, InvalidRequest, NotFound, SessionBusy, SessionNotFound
from outlast.core.records import StoredItem, StoredSession
from outlast.core.transcript import AWAITS, Message, Role, open_calls
from outlast.store import approvals, memories
from outlast.store import invocations as life
from outlast.store.statements import Connection, Rows, Statement, query, values
from outlast.store.tables import invocations, sessions
from outlast.store.writer import seen_once

Submit = Callable[[str, Callable[[Connection], Any]], "asyncio.Future[Any]"]


class SessionChanges:
    """The writing verbs. Each future resolves after its commit."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def create(
        self,
        principal: str,
        id: str,
        *,
        agent: str,
        actor_id: str,
        parent_id: str | None,
        labels: Mapping[str, str],
        items: Sequence[tuple[str, str]] = (),
    ) -> "asyncio.Future[StoredSession]":
        """Store a session, with its first items (id, JSON text); the same session again is returned as it is.

        The future raises Conflict (`session_exists`, `actor_mismatch`), and NotFound for the parent.
        """
        return self._submit(
            "session.create",
            lambda connection: _create(connection, principal, id, agent, actor_id, parent_id, labels, items),
        )

    def label(
        self, principal: str, id: str, labels: Mapping[str, str | None]
    ) -> "asyncio.Future[StoredSession]":  # fmt: skip
        """Set labels; None removes one. The future raises NotFound."""
        return self._submit("session.label", lambda connection: _label(connection, principal, id, labels))

    def append(
        self, principal: str, id: str, items: Sequence[tuple[str, str]], *, absent: str
    ) -> "asyncio.Future[list[StoredItem]]":
        """Store items (id, JSON text) in order, all or none; the same items again are returned as they are.

        `absent` is an id that only a longer list of the same caller would have used. The future raises NotFound,
        SessionBusy, Conflict (`item_exists`, `unsupported_for_agent`).
        """
        return self._submit("session.append", lambda connection: _append(connection, principal, id, items, absent))

    def pop(self, principal: str, id: str) -> "asyncio.Future[StoredItem | None]":
        """Remove the last item and return it. The future raises as `append` does."""
        return self._submit("session.pop", _Pop(principal, id))

    def clear(self, principal: str, id: str) -> "asyncio.Future[int]":
        """Remove every item and return how many there were. The future raises as `append` does."""
        return self._submit("session.clear", _Clear(principal, id))

    def fork(
        self,
        principal: str,
        id: str,
        new_id: str,
        *,
        actor_id: str | None,
        labels: Mapping[str, str],
        up_to_item_id: str | None,
    ) -> "asyncio.Future[StoredSession]":
        """Copy a session and its items, up to and with one of them, or to the end of the last whole step.

        The same fork again is returned as it is.

        The future raises NotFound (the session, the item) and Conflict (`session_exists`, `unsupported_for_agent`).
        """
        return self._submit(
            "session.fork",
            lambda connection: _fork(connection, principal, id, new_id, actor_id, labels, up_to_item_id),
        )

    def delete(self, principal: str, id: str, *, force: bool, keep_ms: int) -> "asyncio.Future[None]":
        """Remove a session with its runs, which leave tombstones for `keep_ms`, and its memories; with `force`, its
        descendants too.

        The future raises NotFound, SessionBusy, and Conflict (`session_has_children`).
        """
        delete = seen_once(lambda connection: _delete(connection, principal, id, force=force, keep_ms=keep_ms))
        return self._submit("session.delete", delete)


_COLUMNS = (
    "s.number, s.principal, s.id, s.agent, s.actor_id, p.id, COALESCE(r.id, s.id), s.forked_from, s.labels, "
    "s.last_item, s.created_at, s.last_activity"
)
_SELECT = (
    "SELECT " + _COLUMNS + " FROM {p}sessions s LEFT JOIN {p}sessions p ON p.number = s.parent_number "
    "LEFT JOIN {p}sessions r ON r.number = s.root_number WHERE s.principal = :principal AND s.id = :id"
)
_FIND = Statement(_SELECT)
_LOCK = Statement("SELECT s.number FROM {p}sessions s WHERE s.principal = :principal AND s.id = :id {update}")
_INSERT = Statement(
    """
    INSERT INTO {p}sessions (principal, id, agent, actor_id, parent_number, root_number, forked_from, labels, last_item,
        created_at, last_activity)
    VALUES (:principal, :id, :agent, :actor_id, CAST(:parent AS bigint), CAST(:root AS bigint),
        CAST(:forked_from AS text), :labels, CAST(:last_item AS bigint), {now}, {now})
    ON CONFLICT (principal, id) DO NOTHING
    """
)
_ROOT = Statement("SELECT COALESCE(root_number, number), actor_id FROM {p}sessions WHERE number = :number")
_LABEL = Statement("UPDATE {p}sessions SET labels = :labels, last_activity = {now} WHERE number = :number")
_ACTIVE = Statement(
    "SELECT v.id FROM {p}invocations v WHERE v.session_number = :number AND v.status IN ('queued', 'running') LIMIT 1"
)
_CHECKPOINTED = Statement("SELECT h.scope FROM {p}heads h WHERE h.scope = :scope LIMIT 1")
_ITEM = "SELECT t.position, t.id, t.item, t.created_at, t.invocation_number FROM {p}items t WHERE t.scope = :scope "
_KNOWN = Statement(_ITEM + "AND t.id IN (SELECT i.id FROM {rows} i) ORDER BY t.position", {"id": "text"})
_LAST = Statement(_ITEM + "ORDER BY t.position DESC LIMIT 1")
_NEWEST = Statement(_ITEM + "AND t.position < :before ORDER BY t.position DESC LIMIT 20")
_APPEND = Statement(
    """
    INSERT INTO {p}items (scope, position, id, item, created_at)
    SELECT CAST(:scope AS text), i.p, i.id, i.t, {now} FROM {rows} i
    """,
    {"p": "bigint", "id": "text", "t": "text"},
)
_ADVANCE = Statement(
    "UPDATE {p}sessions SET last_item = last_item + :count, last_activity = {now} WHERE number = :number "
    "RETURNING last_item - :count"
)
_REMOVE = Statement("DELETE FROM {p}items WHERE scope = :scope AND position BETWEEN :first AND :last")
_COUNT = Statement("SELECT count(*) FROM {p}items WHERE scope = :scope AND position <= :last")
_TOUCH = Statement("UPDATE {p}sessions SET last_activity = {now} WHERE number = :number")
_COPY = Statement(
    """
    INSERT INTO {p}items (scope, position, id, item, created_at)
    SELECT CAST(:new AS text), t.position, t.id, t.item, t.created_at FROM {p}items t
    WHERE t.scope = :scope AND t.position <= :last
    """
)
_TREE = Statement(
    """
    WITH RECURSIVE tree (number) AS (
        SELECT CAST(:number AS bigint)
        UNION ALL SELECT c.number FROM {p}sessions c JOIN tree ON c.parent_number = tree.number
    )
    SELECT number FROM tree ORDER BY number
    """
)
_LOCK_ALL = Statement(
    "SELECT number FROM {p}sessions WHERE number IN (SELECT f.value FROM {values} f) ORDER BY number {update}"
)
_RUNS = Statement(
    "SELECT v.number, v.status FROM {p}invocations v WHERE v.session_number IN (SELECT f.value FROM {values} f)"
)
_SCOPES = "WHERE scope IN (SELECT 's' || CAST(f.value AS text) FROM {values} f)"
_DELETE_HISTORIES = [
    Statement(f"DELETE FROM {{p}}{table} " + _SCOPES)
    for table in ("approvals", "checkpoint_parts", "checkpoint_writes", "checkpoints", "heads", "items", "journal")
]
_DELETE = Statement("DELETE FROM {p}sessions WHERE number IN (SELECT f.value FROM {values} f)")


def _find(connection: Connection, principal: str, id: str) -> StoredSession:
    """Lock the session and return it, or raise NotFound."""
    query(connection, _LOCK, principal=principal, id=id)
    found = query(connection, _FIND, principal=principal, id=id)
    if not found:
        raise SessionNotFound(f"there is no session {id!r}")
    return StoredSession(*found[0])


def _free(connection: Connection, principal: str, id: str) -> StoredSession:
    """Lock a session that no run has, and whose history is its items, and return it."""
    found = _find(connection, principal, id)
    if active := query(connection, _ACTIVE, number=found.number):
        raise SessionBusy(f"invocation {active[0][0]} of this session is not final; wait for it or cancel it")
    _refuse_checkpoints(connection, found)
    return found


def _refuse_checkpoints(connection: Connection, found: StoredSession) -> None:
    if query(connection, _CHECKPOINTED, scope=found.scope):
        raise kept_as_checkpoints(found.agent)


def kept_as_checkpoints(agent: str) -> Conflict:
    """Return the error of changing the items of a session whose history is elsewhere."""
    return Conflict(
        f"the agent {agent!r} keeps this session's history as checkpoints, not as items", code="unsupported_for_agent"
    )


def _create(
    connection: Connection,
    principal: str,
    id: str,
    agent: str,
    actor_id: str,
    parent_id: str | None,
    labels: Mapping[str, str],
    contents: Sequence[tuple[str, str]],
) -> StoredSession:
    parent = None if parent_id is None else _find(connection, principal, parent_id)
    if parent is not None and parent.actor_id != actor_id:
        raise Conflict("a child session belongs to the actor of its parent", code="actor_mismatch")
    created = _insert(
        connection, principal=principal, id=id, agent=agent, actor_id=actor_id,
        parent=None if parent is None else parent.number, root=_root(connection, parent), forked_from=None,
        labels=jsontext.encode(dict(labels)), last_item=len(contents),
    )  # fmt: skip
    found = _find(connection, principal, id)
    wanted = (agent, actor_id, parent_id, None)
    if not created and (found.agent, found.actor_id, found.parent_id, found.forked_from) != wanted:
        raise _exists(id)
    if created and contents:
        connection.send(_APPEND, scope=found.scope, rows=_rows(0, contents))
    if not created and contents and not _same(_known(connection, found.scope, contents), contents):
        raise _exists(id)
    return found


def _root(connection: Connection, parent: StoredSession | None) -> int | None:
    if parent is None:
        return None
    return int(query(connection, _ROOT, number=parent.number)[0][0])


def _insert(connection: Connection, **parameters: Any) -> bool:
    """Return False when there is such a session."""
    return connection.send(_INSERT, **parameters).count() == 1


def _exists(id: str) -> Conflict:
    return Conflict(
        f"there is a session {id!r} with another agent, actor, parent or origin, or with other items",
        code="session_exists",
    )


def _label(connection: Connection, principal: str, id: str, labels: Mapping[str, str | None]) -> StoredSession:
    found = _find(connection, principal, id)
    merged = {**jsontext.decode(found.labels), **labels}
    kept = ids.labels({key: value for key, value in merged.items() if value is not None})
    connection.send(_LABEL, number=found.number, labels=jsontext.encode(kept))
    return _find(connection, principal, id)


def _append(
    connection: Connection, principal: str, id: str, contents: Sequence[tuple[str, str]], absent: str
) -> list[StoredItem]:
    found = _find(connection, principal, id)
    # Before the look for a run: a repeat of what was stored is answered, whatever runs by now.
    known = _known(connection, found.scope, [*contents, (absent, "")])
    if known:
        if _same(known, contents):
            return known
        raise Conflict(
            f"the item {known[0].id!r} of this session has another content or came in another company; "
            "use a new key for new items",
            code="item_exists",
        )
    _free(connection, principal, id)
    if not contents:
        return []
    before = query(connection, _ADVANCE, number=found.number, count=len(contents))[0][0]
    connection.send(_APPEND, scope=found.scope, rows=_rows(before, contents))
    approvals.close_by_hand(connection, found.scope)
    return _known(connection, found.scope, contents)


def _rows(before: int, contents: Sequence[tuple[str, str]]) -> Rows:
    numbered = enumerate(contents, before + 1)
    return Rows(["p", "id", "t"], [(position, id, text) for position, (id, text) in numbered])


def _known(connection: Connection, scope: str, contents: Sequence[tuple[str, str]]) -> list[StoredItem]:
    ids = Rows(["id"], [(id,) for id, _ in contents])
    return [StoredItem(*row) for row in query(connection, _KNOWN, scope=scope, rows=ids)] if contents else []


def _same(known: Sequence[StoredItem], contents: Sequence[tuple[str, str]]) -> bool:
    return [(item.id, item.item) for item in known] == list(contents)


class _Pop:
    """One removal of the last item. A second run of it, after a commit of unknown outcome, removes the same one."""

    def __init__(self, principal: str, id: str) -> None:
        self._key = principal, id
        self._popped: StoredItem | None = None

    def __call__(self, connection: Connection) -> StoredItem | None:
        found = _find(connection, *self._key)
        if self._popped is not None and not _known(connection, found.scope, [(self._popped.id, "")]):
            return self._popped
        _free(connection, *self._key)
        rows = query(connection, _LAST, scope=found.scope)
        if not rows:
            return None
        self._popped = StoredItem(*rows[0])
        position = self._popped.position
        connection.send(_REMOVE, scope=found.scope, first=position, last=position)
        approvals.close_by_hand(connection, found.scope)
        connection.send(_TOUCH, number=found.number)
        return self._popped


class _Clear:
    """One removal of all items. A second run of it leaves alone what was appended since."""

    def __init__(self, principal: str, id: str) -> None:
        self._key = principal, id
        self._number, self._last, self._count = 0, 0, 0

    def __call__(self, connection: Connection) -> int:
        found = _find(connection, *self._key)
        if found.number == self._number and not self._left(connection, found):
            return self._count
        found = _free(connection, *self._key)
        if found.number != self._number:
            self._last = found.last_item
            self._count = self._left(connection, found)
            # Last, for a run that broke off in between counted nothing.
            self._number = found.number
        connection.send(_REMOVE, scope=found.scope, first=0, last=self._last)
        approvals.close_by_hand(connection, found.scope)
        connection.send(_TOUCH, number=found.number)
        return self._count

    def _left(self, connection: Connection, found: StoredSession) -> int:
        return int(query(connection, _COUNT, scope=found.scope, last=self._last)[0][0])


def _fork(
    connection: Connection,
    principal: str,
    id: str,
    new_id: str,
    actor_id: str | None,
    labels: Mapping[str, str],
    up_to_item_id: str | None,
) -> StoredSession:
    source = _find(connection, principal, id)
    _refuse_checkpoints(connection, source)
    if up_to_item_id is None:
        last = _last_whole(connection, source)
    else:
        last = _position(connection, source.scope, up_to_item_id)
    actor_id = actor_id or source.actor_id
    created = _insert(
        connection, principal=principal, id=new_id, agent=source.agent, actor_id=actor_id, parent=None, root=None,
        forked_from=source.id, labels=jsontext.encode(dict(labels)), last_item=last,
    )  # fmt: skip
    copy = _find(connection, principal, new_id)
    if created:
        connection.send(_COPY, new=copy.scope, scope=source.scope, last=last)
        approvals.copy_closed(connection, scope=source.scope, new=copy.scope, session_number=copy.number)
    elif (copy.agent, copy.actor_id, copy.forked_from) != (source.agent, actor_id, source.id):
        raise _exists(new_id)
    return copy


def _last_whole(connection: Connection, source: StoredSession) -> int:
    """Return where the last whole step ends: before an answer whose calls a run is still answering, else at the end."""
    if not query(connection, _ACTIVE, number=source.number):
        return source.last_item
    since, seen, answered = list[Message](), set[str](), False
    for position, id, content in _from_the_end(connection, source):
        awaited = content.get(AWAITS) if isinstance(content, Mapping) else None
        if isinstance(awaited, list):
            return source.last_item if all(one in seen for one in awaited if isinstance(one, str)) else position - 1
        seen.add(id)
        with suppress(InvalidRequest):
            since.insert(0, Message.of_json(content))
            if since[0].calls and not answered:
                return position - 1 if open_calls(since) else source.last_item
            if answered and since[0].role is Role.USER:
                break
            # Of some frameworks the calls of an answer are items of their own: what awaits them comes before it.
            answered = answered or since[0].role is Role.ASSISTANT
    return source.last_item


def _from_the_end(connection: Connection, source: StoredSession) -> Iterator[tuple[int, str, Any]]:
    """Give the items, the newest first: position, id, content."""
    before = source.last_item + 1
    while rows := query(connection, _NEWEST, scope=source.scope, before=before):
        for position, id, item, _, _ in rows:
            yield position, id, jsontext.decode(item)
        before = rows[-1][0]


def _position(connection: Connection, scope: str, item_id: str) -> int:
    found = query(connection, _KNOWN, scope=scope, rows=Rows(["id"], [(item_id,)]))
    if not found:
        raise NotFound(f"this session has no item {item_id!r}")
    return StoredItem(*found[0]).position


def _delete(connection: Connection, principal: str, id: str, *, force: bool, keep_ms: int) -> None:
    found = _find(connection, principal, id)
    tree = _locked_tree(connection, found.number)
    if len(tree) > 1 and not force:
        raise Conflict(
            f"session {id!r} has {len(tree) - 1} descendants; delete them first, or use force",
            code="session_has_children",
        )
    listed = values(tree)
    runs = query(connection, _RUNS, values=listed)
    if any(status in ("queued", "running") for _, status in runs):
        raise SessionBusy("a run of this session or of a descendant is not final; wait for it or cancel it")
    life.remove(connection, [number for number, _ in runs], keep_ms)
    memories.delete_of_sessions(connection, listed)
    for statement in (*_DELETE_HISTORIES, _DELETE):
        connection.send(statement, values=listed)


def _locked_tree(connection: Connection, number: int) -> list[int]:
    """Lock a session and its descendants. A child that is born meanwhile waits for its parent's lock, or is seen."""
    locked: list[int] = []
    while (tree := [number for (number,) in query(connection, _TREE, number=number)]) != locked:
        query(connection, _LOCK_ALL, values=values(tree))
        locked = tree
    return tree


_parent, _root_session = sessions.alias("parent"), sessions.alias("root")
_newest = (
    select(func.coalesce(invocations.c.finished_at, invocations.c.started_at, invocations.c.created_at))
    .where(invocations.c.session_number == sessions.c.number)
    .order_by(invocations.c.number.desc())
    .limit(1)
    .scalar_subquery()
)
_active = (
    select(invocations.c.id)
    .where(invocations.c.session_number == sessions.c.number, invocations.c.status.in_(["queued", "running"]))
    .order_by(invocations.c.number)
    .limit(1)
    .scalar_subquery()
)
_SESSIONS = select(
    sessions.c.number, sessions.c.principal, sessions.c.id, sessions.c.agent, sessions.c.actor_id, _parent.c.id,
    func.coalesce(_root_session.c.id, sessions.c.id), sessions.c.forked_from, sessions.c.labels, sessions.c.last_item,
    sessions.c.created_at, sessions.c.last_activity, _newest, _active,
).select_from(
    sessions.outerjoin(_parent, _parent.c.number == sessions.c.parent_number)
    .outerjoin(_root_session, _root_session.c.number == sessions.c.root_number)
)  # fmt: skip


def read(connection: PooledConnection, principal: str, id: str) -> StoredSession | None:
    """Return a session, or None."""
    row = connection.execute(_SESSIONS.where(sessions.c.principal == principal, sessions.c.id == id)).first()
    return None if row is None else _session(row)


def listed(
    connection: PooledConnection,
    principal: str,
    *,
    agent: str | None,
    actor_id: str | None,
    parent_id: str | None,
    labels: Sequence[Any],
    before: int | None,
    limit: int,
) -> list[StoredSession]:
    """Return sessions, the newest first, below the number `before`. `labels` are conditions."""
    # The condition of the index `sessions_listed`; see `tables`.
    found = _SESSIONS.where(sessions.c.principal == principal, sessions.c.number > literal_column("0"), *labels)
    if agent is not None:
        found = found.where(sessions.c.agent == agent)
    if actor_id is not None:
        found = found.where(sessions.c.actor_id == actor_id)
    if parent_id is not None:
        found = found.where(_parent.c.id == parent_id)
    if before is not None:
        found = found.where(sessions.c.number < before)
    rows = connection.execute(found.order_by(sessions.c.number.desc()).limit(limit))
    return [_session(row) for row in rows]


def _session(row: Any) -> StoredSession:
    *fields, last_activity, newest, active = row
    return StoredSession._make((*fields, max(last_activity, newest or 0), active))

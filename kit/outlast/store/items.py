"""Items of a history as its run writes them, and as everybody reads them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select

from outlast.core.records import StoredItem
from outlast.store import bounded
from outlast.store.grouped import LEASE, Part
from outlast.store.statements import Rows, Statement
from outlast.store.tables import invocations, items, sessions

ITEMS_BYTES = 1 << 20
"""Bytes of items read at once, about."""

# A run has its history alone, so that it counts positions itself, and a repeat finds its own rows there.
_APPEND = Statement(
    """
    INSERT INTO {p}items (scope, position, id, invocation_number, item, created_at)
    SELECT CAST(:scope AS text), i.p, i.id, v.number, i.t, {now} FROM {rows} i JOIN {p}invocations v ON """
    + LEASE
    + " ON CONFLICT DO NOTHING",
    {"p": "bigint", "id": "text", "t": "text"},
)
_ADVANCE = Statement(
    """
    UPDATE {p}sessions SET last_item = :last, last_activity = {now}
    WHERE last_item < :last AND number = (SELECT v.session_number FROM {p}invocations v WHERE """
    + LEASE
    + ")"
)


def append(scope: str, after: int, contents: Sequence[tuple[str, str]]) -> list[Part]:
    """Store items (id, JSON text) of a run behind the position `after`."""
    rows = [(position, id, text) for position, (id, text) in enumerate(contents, after + 1)]
    return [
        Part("items", _APPEND, {"scope": scope, "rows": Rows(["p", "id", "t"], rows)}),
        Part("items", _ADVANCE, {"last": after + len(rows)}),
    ]


def last(connection: Connection, scope: str) -> int:
    """Return the highest position that was ever given out in a history."""
    given = select(sessions.c.last_item).where(sessions.c.number == int(scope[1:])) if scope[0] == "s" else None
    highest = select(func.coalesce(func.max(items.c.position), 0)).where(items.c.scope == scope)
    found = int(connection.execute(highest).scalar_one())
    return found if given is None else max(found, connection.execute(given).scalar_one_or_none() or 0)


def read(connection: Connection, scope: str, *, after: int | None, newest_first: bool, limit: int) -> list[StoredItem]:
    """Return items behind the position `after` in the order asked for, and not many more bytes than ITEMS_BYTES."""
    query = _ordered(scope, after, newest_first).limit(limit)
    return [StoredItem._make(row) for row in bounded.rows(connection, query, "item", max_bytes=ITEMS_BYTES)]


_ITEMS = select(
    items.c.position, items.c.id, items.c.item, items.c.created_at, items.c.invocation_number,
    invocations.c.id.label("invocation_id"),
).select_from(items.outerjoin(invocations, invocations.c.number == items.c.invocation_number))  # fmt: skip


def _ordered(scope: str, after: int | None, newest_first: bool) -> Select[Any]:
    found = _ITEMS.where(items.c.scope == scope)
    if newest_first:
        if after is not None:
            found = found.where(items.c.position < after)
        return found.order_by(items.c.position.desc())
    if after is not None:
        found = found.where(items.c.position > after)
    return found.order_by(items.c.position)

"""Checkpoints of a framework's own state, as payloads nobody here looks into, written under the attempt's lease.

A checkpoint has the name of its history (scope), a namespace in it, an id and a parent; pending writes belong to a
checkpoint and come from one task each. The head of a namespace, not the newest id, says where a history goes on. What
checkpoints and writes have in common is stored once (`parts`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, or_, select

from outlast.store import parts
from outlast.store.grouped import LEASE, Part
from outlast.store.parts import Packed, Pages, Payload, Unpacked, Value
from outlast.store.statements import Statement
from outlast.store.tables import checkpoint_parts, checkpoint_writes, checkpoints, heads

DIGESTS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """What one task wrote to one channel before its step was committed; its value is as that of a checkpoint."""

    task_id: str
    index: int
    channel: str
    own: Payload | None
    values: Sequence[Value]
    task_path: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One stored checkpoint: a payload of its own, values that others may share, and metadata as JSON text.

    One that was read has digests where it has parts, and `needs` are the digests of all of them.
    """

    namespace: str
    id: str
    parent: str | None
    own: Payload
    values: Sequence[Value]
    metadata: str
    writes: tuple[PendingWrite, ...] = ()
    needs: frozenset[bytes] = frozenset()


UNDER_LEASE = f"FROM {{p}}invocations v WHERE {LEASE}"
ANYHOW = "WHERE true"
"""For a transaction that holds the session itself."""


def _statements(condition: str) -> tuple[Statement, Statement, Statement, Statement]:
    part = """
        INSERT INTO {p}checkpoint_parts (scope, digest, content)
        SELECT CAST(:scope AS text), :digest, :content
    """
    checkpoint = """
        INSERT INTO {p}checkpoints (scope, namespace, id, parent, body, metadata, created_at)
        SELECT CAST(:scope AS text), CAST(:namespace AS text), CAST(:id AS text), CAST(:parent AS text), :body,
            CAST(:metadata AS text), {now}
    """
    write = """
        INSERT INTO {p}checkpoint_writes (scope, namespace, checkpoint_id, task_id, position, channel, body, task_path)
        SELECT CAST(:scope AS text), CAST(:namespace AS text), CAST(:checkpoint_id AS text), CAST(:task_id AS text),
            CAST(:position AS integer), CAST(:channel AS text), :body, CAST(:task_path AS text)
    """
    row = "ON CONFLICT (scope, namespace, checkpoint_id, task_id, position) "
    return (
        Statement(part + condition + " ON CONFLICT (scope, digest) DO NOTHING"),
        Statement(
            checkpoint + condition + " ON CONFLICT (scope, namespace, id) "
            "DO UPDATE SET body = excluded.body, metadata = excluded.metadata"
        ),
        Statement(write + condition + row + "DO NOTHING"),
        Statement(
            write + condition + row + "DO UPDATE SET channel = excluded.channel, body = excluded.body, "
            "task_path = excluded.task_path"
        ),
    )  # fmt: skip


_BY_CONDITION = {condition: _statements(f" {condition} ") for condition in (UNDER_LEASE, ANYHOW)}


def put(
    scope: str,
    checkpoint: Checkpoint,
    *,
    packed: Packed | None = None,
    stored: Collection[bytes] = (),
    condition: str = UNDER_LEASE,
) -> list[Part]:
    """Store a checkpoint, without its pending writes. `stored` are digests of parts that are there for certain."""
    packed = packed or pack(checkpoint)
    _, statement, _, _ = _BY_CONDITION[condition]
    parameters = {
        "scope": scope, "namespace": checkpoint.namespace, "id": checkpoint.id, "parent": checkpoint.parent,
        "body": packed.body, "metadata": checkpoint.metadata,
    }  # fmt: skip
    return [*_put_parts(scope, packed.parts, stored, condition), Part("checkpoint", statement, parameters)]


def pack(checkpoint: Checkpoint) -> Packed:
    """Write down the values of a checkpoint."""
    return parts.pack(checkpoint.values, own=checkpoint.own)


def put_writes(
    scope: str,
    namespace: str,
    checkpoint_id: str,
    writes: Sequence[PendingWrite],
    *,
    replace: bool,
    stored: Collection[bytes] = (),
    condition: str = UNDER_LEASE,
) -> list[Part]:
    """Store pending writes of a checkpoint; those that exist stay, or are replaced."""
    _, _, keep, overwrite = _BY_CONDITION[condition]
    made: list[Part] = []
    for write in writes:
        packed = parts.pack(write.values, own=write.own)
        parameters = {
            "scope": scope, "namespace": namespace, "checkpoint_id": checkpoint_id, "task_id": write.task_id,
            "position": write.index, "channel": write.channel, "body": packed.body, "task_path": write.task_path,
        }  # fmt: skip
        made += _put_parts(scope, packed.parts, stored, condition)
        made.append(Part("checkpoint", overwrite if replace else keep, parameters))
    return made


def _put_parts(scope: str, needed: Mapping[bytes, bytes], stored: Collection[bytes], condition: str) -> list[Part]:
    statement = _BY_CONDITION[condition][0]
    return [
        Part("checkpoint", statement, {"scope": scope, "digest": digest, "content": content})
        for digest, content in needed.items()
        if digest not in stored
    ]


def digests(made: Iterable[Part]) -> set[bytes]:
    """Return the digests of the parts among what is written."""
    return {part.parameters["digest"] for part in made if "digest" in part.parameters}


def read(connection: Connection, scope: str, namespace: str, id: str | None, *, pages: Pages) -> Checkpoint | None:
    """Return a checkpoint with its pending writes: the named one, or the head of the namespace."""
    query = _named(scope, namespace, id) if id is not None else _head(scope, namespace)
    row = connection.execute(query).first()
    return None if row is None else _checkpoints(connection, scope, [row], pages)[0]


def listed(
    connection: Connection,
    scope: str,
    *,
    namespace: str | None,
    before: str | None,
    behind: tuple[str, str] | None,
    limit: int | None,
    pages: Pages,
) -> list[Checkpoint]:
    """Return checkpoints of a history, newest first: with ids below `before`, and behind this id and namespace."""
    columns = checkpoints.c
    query = select(checkpoints).where(columns.scope == scope)
    if namespace is not None:
        query = query.where(columns.namespace == namespace)
    if before is not None:
        query = query.where(columns.id < before)
    if behind is not None:
        id, at = behind
        query = query.where(or_(columns.id < id, and_(columns.id == id, columns.namespace > at)))
    query = query.order_by(columns.id.desc(), columns.namespace).limit(limit)
    return _checkpoints(connection, scope, connection.execute(query).all(), pages)


def contents(connection: Connection, scope: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return parts by their digests; those that are not there are left out."""
    found: dict[bytes, bytes] = {}
    for start in range(0, len(digests), DIGESTS_AT_ONCE):
        some = digests[start : start + DIGESTS_AT_ONCE]
        query = select(checkpoint_parts.c.digest, checkpoint_parts.c.content).where(
            checkpoint_parts.c.scope == scope, checkpoint_parts.c.digest.in_(some)
        )
        found.update((bytes(digest), bytes(content)) for digest, content in connection.execute(query))
    return found


def _named(scope: str, namespace: str, id: str) -> Select[Any]:
    return select(checkpoints).where(
        checkpoints.c.scope == scope, checkpoints.c.namespace == namespace, checkpoints.c.id == id
    )


def _head(scope: str, namespace: str) -> Select[Any]:
    at_head = and_(
        checkpoints.c.scope == heads.c.scope,
        checkpoints.c.namespace == heads.c.namespace,
        checkpoints.c.id == heads.c.checkpoint,
    )
    return (
        select(checkpoints).join(heads, at_head).where(heads.c.scope == scope, heads.c.namespace == namespace)
    )  # fmt: skip


def _checkpoints(connection: Connection, scope: str, rows: Sequence[Row[Any]], pages: Pages) -> list[Checkpoint]:
    written = [_writes(connection, scope, row.namespace, row.id) for row in rows]
    bodies = [bytes(row.body) for row in rows] + [bytes(write.body) for writes in written for write in writes]
    opened = iter(parts.unpack(bodies, lambda digests: contents(connection, scope, digests), pages))
    whole = [(row, next(opened)) for row in rows]
    return [
        _checkpoint(row, found, tuple(_write(write, next(opened)) for write in writes))
        for (row, found), writes in zip(whole, written, strict=True)
    ]


def _writes(connection: Connection, scope: str, namespace: str, checkpoint_id: str) -> Sequence[Row[Any]]:
    table = checkpoint_writes
    query = select(table).where(
        table.c.scope == scope, table.c.namespace == namespace, table.c.checkpoint_id == checkpoint_id
    )
    # In the order of code points, whatever the database sorts by: a framework applies writes in this order.
    return sorted(connection.execute(query), key=lambda row: (row.task_path, row.task_id, row.position))


def _write(row: Row[Any], found: Unpacked) -> PendingWrite:
    return PendingWrite(row.task_id, row.position, row.channel, found.own, found.values, row.task_path)


def _checkpoint(row: Row[Any], found: Unpacked, writes: tuple[PendingWrite, ...]) -> Checkpoint:
    assert found.own is not None
    return Checkpoint(
        row.namespace, row.id, row.parent, found.own, found.values, row.metadata, writes, frozenset(found.needed())
    )

"""Checkpoints of a framework's own state, as bytes nobody here looks into, written under the attempt's lease.

A checkpoint has the name of its history (scope), a namespace in it, an id and a parent; pending writes belong to a
checkpoint and come from one task each. The head of a namespace, not the newest id, says where a history goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Row, Select, and_, select

from outlast.store.grouped import LEASE, Part
from outlast.store.statements import Statement
from outlast.store.tables import checkpoint_writes, checkpoints, heads


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """What one task wrote to one channel before its step was committed."""

    task_id: str
    index: int
    channel: str
    type: str
    body: bytes
    task_path: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One stored checkpoint. `metadata` is JSON text."""

    scope: str
    namespace: str
    id: str
    parent: str | None
    type: str
    body: bytes
    metadata: str
    writes: tuple[PendingWrite, ...] = ()


_FROM_LEASE = " FROM {p}invocations v WHERE " + LEASE + "\n"
_PUT = Statement(
    """
    INSERT INTO {p}checkpoints (scope, namespace, id, parent, type, body, metadata, created_at)
    SELECT CAST(:scope AS text), CAST(:namespace AS text), CAST(:id AS text), CAST(:parent AS text),
        CAST(:type AS text), :body, CAST(:metadata AS text), {now}
    """
    + _FROM_LEASE
    + """
    ON CONFLICT (scope, namespace, id) DO UPDATE SET type = excluded.type, body = excluded.body,
        metadata = excluded.metadata
    """
)
_PUT_WRITE = """
    INSERT INTO {p}checkpoint_writes (scope, namespace, checkpoint_id, task_id, position, channel, type, body, task_path)
    SELECT CAST(:scope AS text), CAST(:namespace AS text), CAST(:checkpoint_id AS text), CAST(:task_id AS text),
        CAST(:position AS integer), CAST(:channel AS text), CAST(:type AS text), :body, CAST(:task_path AS text)
"""
_KEEP_WRITE = Statement(
    _PUT_WRITE + _FROM_LEASE + "ON CONFLICT (scope, namespace, checkpoint_id, task_id, position) DO NOTHING"
)
_REPLACE_WRITE = Statement(
    _PUT_WRITE
    + _FROM_LEASE
    + """
    ON CONFLICT (scope, namespace, checkpoint_id, task_id, position) DO UPDATE SET channel = excluded.channel,
        type = excluded.type, body = excluded.body, task_path = excluded.task_path
    """
)


def put(checkpoint: Checkpoint) -> Part:
    """Store a checkpoint, without its pending writes."""
    parameters = {
        "scope": checkpoint.scope, "namespace": checkpoint.namespace, "id": checkpoint.id,
        "parent": checkpoint.parent, "type": checkpoint.type, "body": checkpoint.body,
        "metadata": checkpoint.metadata,
    }  # fmt: skip
    return Part("checkpoint", _PUT, parameters)


def put_writes(
    *, scope: str, namespace: str, checkpoint_id: str, writes: Sequence[PendingWrite], replace: bool
) -> list[Part]:
    """Store pending writes of a checkpoint; those that exist stay, or are replaced."""
    statement = _REPLACE_WRITE if replace else _KEEP_WRITE
    return [
        Part(
            "checkpoint",
            statement,
            {
                "scope": scope, "namespace": namespace, "checkpoint_id": checkpoint_id, "task_id": write.task_id,
                "position": write.index, "channel": write.channel, "type": write.type, "body": write.body,
                "task_path": write.task_path,
            },
        )
        for write in writes
    ]  # fmt: skip


def read(connection: Connection, scope: str, namespace: str, id: str | None) -> Checkpoint | None:
    """Return a checkpoint with its pending writes: the named one, or the head of the namespace."""
    query = _named(scope, namespace, id) if id is not None else _head(scope, namespace)
    row = connection.execute(query).first()
    return None if row is None else _checkpoint(row, _writes(connection, scope, namespace, row.id))


def listed(
    connection: Connection, scope: str, namespace: str | None, before: str | None, limit: int | None
) -> list[Checkpoint]:
    """Return checkpoints of a history, newest first."""
    query = select(checkpoints).where(checkpoints.c.scope == scope)
    if namespace is not None:
        query = query.where(checkpoints.c.namespace == namespace)
    if before is not None:
        query = query.where(checkpoints.c.id < before)
    rows = connection.execute(query.order_by(checkpoints.c.id.desc()).limit(limit)).all()
    return [_checkpoint(row, _writes(connection, scope, row.namespace, row.id)) for row in rows]


def _named(scope: str, namespace: str, id: str) -> Select[tuple[object, ...]]:
    return select(checkpoints).where(
        checkpoints.c.scope == scope, checkpoints.c.namespace == namespace, checkpoints.c.id == id
    )


def _head(scope: str, namespace: str) -> Select[tuple[object, ...]]:
    at_head = and_(
        checkpoints.c.scope == heads.c.scope,
        checkpoints.c.namespace == heads.c.namespace,
        checkpoints.c.id == heads.c.checkpoint,
    )
    return (
        select(checkpoints).join(heads, at_head).where(heads.c.scope == scope, heads.c.namespace == namespace)
    )  # fmt: skip


def _writes(connection: Connection, scope: str, namespace: str, checkpoint_id: str) -> tuple[PendingWrite, ...]:
    table = checkpoint_writes
    query = (
        select(table.c.task_id, table.c.position, table.c.channel, table.c.type, table.c.body, table.c.task_path)
        .where(table.c.scope == scope, table.c.namespace == namespace, table.c.checkpoint_id == checkpoint_id)
        .order_by(table.c.task_path, table.c.task_id, table.c.position)
    )
    return tuple(
        PendingWrite(task_id, index, channel, type_, bytes(body), path)
        for task_id, index, channel, type_, body, path in connection.execute(query)
    )


def _checkpoint(row: Row[tuple[object, ...]], writes: tuple[PendingWrite, ...]) -> Checkpoint:
    return Checkpoint(row.scope, row.namespace, row.id, row.parent, row.type, bytes(row.body), row.metadata, writes)

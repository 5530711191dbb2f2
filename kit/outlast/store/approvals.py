"""What a person has to decide before a tool call may run: asked and decided by runs under their lease, once each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection as PooledConnection
from sqlalchemy import Select, select

from outlast.core.records import Approval, ApprovalKind, ApprovalStatus
from outlast.store.grouped import LEASE, Part
from outlast.store.statements import Connection, Rows, Statement, label
from outlast.store.tables import approvals, invocations, sessions

_ASK = Statement(
    """
    INSERT INTO {p}approvals (principal, scope, key, session_number, invocation_number, newest_run, kind, call_id,
        name, arguments, details, status, created_at)
    SELECT v.principal, CAST(:scope AS text), i.k, v.session_number, v.number,
        COALESCE((SELECT max(o.number) FROM {p}invocations o WHERE o.session_number = v.session_number), v.number),
        i.t, i.c, i.n, i.a, i.d, 'open', {now}
    FROM {rows} i JOIN {p}invocations v ON """
    + LEASE
    + " ON CONFLICT (scope, key) DO NOTHING",
    {"k": "text", "t": "text", "c": "text", "n": "text", "a": "text", "d": "text"},
)
_DECIDE = Statement(
    """
    UPDATE {p}approvals SET status = 'decided', decision = :decision, decided_by = :number, decided_at = {now}
    WHERE scope = :scope AND key = :key AND status = 'open' AND EXISTS (SELECT 1 FROM {p}invocations v WHERE """
    + LEASE
    + ")"
)
_CLOSE = """
    UPDATE {p}approvals SET status = 'closed', decided_at = {now} WHERE scope = :scope AND status = 'open'
"""
_CLOSE_BY_RUN = Statement(
    _CLOSE
    + " AND key NOT IN (SELECT i.k FROM {rows} i) AND EXISTS (SELECT 1 FROM {p}invocations v WHERE "
    + LEASE
    + ")",
    {"k": "text"},
)
_CLOSE_BY_HAND = Statement(_CLOSE)
_COPY = Statement(
    """
    INSERT INTO {p}approvals (principal, scope, key, session_number, invocation_number, newest_run, kind, call_id,
        name, arguments, details, status, created_at, decided_at)
    SELECT principal, CAST(:new AS text), key, CAST(:session AS bigint), invocation_number, newest_run, kind, call_id,
        name, arguments, details, 'closed', created_at, {now}
    FROM {p}approvals
    WHERE scope = :scope AND (status <> 'decided' OR decision LIKE :rejected OR decision LIKE :responded)
    """
)
_REJECTED, _RESPONDED = '{"type":"reject"%', '{"type":"respond"%'


class Asked(NamedTuple):
    """What is asked; `arguments` and `details` are JSON text."""

    key: str
    kind: ApprovalKind
    call_id: str | None
    name: str
    arguments: str
    details: str


def ask(scope: str, asked: Sequence[Asked]) -> Part:
    """Note what a person has to decide. What was asked before, under its key, stays as it is."""
    rows = [
        one._replace(call_id=None if one.call_id is None else label(one.call_id), name=label(one.name)) for one in asked
    ]
    return Part("approval.asked", _ASK, {"scope": scope, "rows": Rows(["k", "t", "c", "n", "a", "d"], rows)})


def decide(scope: str, key: str, decision: str) -> Part:
    """Store a decision (JSON text) about an open call. A decision that was made stays."""
    return Part("approval.decided", _DECIDE, {"scope": scope, "key": key, "decision": decision})


def close(scope: str, *, but: Sequence[str] = ()) -> Part:
    """Let nobody decide any more about what is open in a history, but for some keys: it goes on without."""
    return Part("approval.closed", _CLOSE_BY_RUN, {"scope": scope, "rows": Rows(["k"], [(key,) for key in but])})


def close_by_hand(connection: Connection, scope: str) -> None:
    """The same, where somebody changes the history while no run has it."""
    connection.send(_CLOSE_BY_HAND, scope=scope)


def copy_closed(connection: Connection, *, scope: str, new: str, session_number: int) -> None:
    """Note in the copy of a history that nobody approved there what certainly never ran: what nobody let run here.

    What is open in the original is open there only. What was closed is copied too, so that a copy of the copy knows it.
    """
    connection.send(
        _COPY, scope=scope, new=new, session=session_number, rejected=_REJECTED, responded=_RESPONDED
    )  # fmt: skip


_APPROVALS = select(
    approvals.c.number, approvals.c.key, sessions.c.id.label("session_id"), sessions.c.agent,
    invocations.c.id.label("invocation_id"), approvals.c.newest_run, approvals.c.kind, approvals.c.call_id, approvals.c.name,
    approvals.c.arguments, approvals.c.details, approvals.c.status, approvals.c.decision, approvals.c.decided_by, approvals.c.created_at,
    approvals.c.decided_at,
).select_from(
    approvals.join(sessions, sessions.c.number == approvals.c.session_number).outerjoin(
        invocations, invocations.c.number == approvals.c.invocation_number
    )
)  # fmt: skip


def of_keys(connection: PooledConnection, scope: str, keys: Sequence[str]) -> list[Approval]:
    """Return what was, or is, to be decided in a history, by its keys there."""
    possible = [key for key in keys if key == label(key)]
    found = _APPROVALS.where(approvals.c.scope == scope, approvals.c.key.in_(possible))
    return _read(connection, found.order_by(approvals.c.number))


def undecided(connection: PooledConnection, scope: str, limit: int) -> list[Approval]:
    """Return what nobody decided in a history, open or closed, newest first."""
    found = _APPROVALS.where(approvals.c.scope == scope, approvals.c.status != ApprovalStatus.DECIDED)
    return _read(connection, found.order_by(approvals.c.number.desc()).limit(limit))


def listed(
    connection: PooledConnection,
    principal: str,
    *,
    status: ApprovalStatus | None,
    session_id: str | None,
    before: int | None,
    limit: int,
) -> list[Approval]:
    """Return approvals of every session, newest first, below the number `before`."""
    found = _APPROVALS.where(approvals.c.principal == principal)
    if status is not None:
        found = found.where(approvals.c.status == status)
    if session_id is not None:
        found = found.where(sessions.c.id == session_id)
    if before is not None:
        found = found.where(approvals.c.number < before)
    return _read(connection, found.order_by(approvals.c.number.desc()).limit(limit))


def _read(connection: PooledConnection, found: Select[Any]) -> list[Approval]:
    rows = [Approval._make(row) for row in connection.execute(found)]
    return [row._replace(kind=ApprovalKind(row.kind), status=ApprovalStatus(row.status)) for row in rows]

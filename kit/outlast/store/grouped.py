"""The hot transactions: accept, write (events and journal) and finish, many of each in one transaction.

The order inside a transaction is fixed, and is the same in every worker, so that workers cannot deadlock: the own worker
row, then sessions by number, then invocations. Locks are statements of their own: on PostgreSQL a statement does not
see what was committed while it waited for a lock, so whatever depends on a lock must be a later statement.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.core import faults, jsontext
from outlast.core.errors import Conflict, Gone, LeaseLost, OutlastError
from outlast.core.records import Invocation, OnActive, Outcome, Request
from outlast.store.invocations import COLUMNS, INVOCATION_COLUMNS, RELEASE, invocation
from outlast.store.statements import Connection, Pending, Row, Rows, Statement, query, values
from outlast.store.workers import FENCE


@dataclass(frozen=True, slots=True)
class Accepted:
    """`created` is False when the same request was accepted before."""

    invocation: Invocation
    created: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """`released` are the numbers of invocations that may start now."""

    finished_at: int
    last_position: int
    released: tuple[int, ...]


LEASE = "v.number = :number AND v.epoch = :epoch AND v.holder = :me AND v.status = 'running'"
"""The condition on the invocation `v` under whose lease a part is written."""


@dataclass(frozen=True, slots=True)
class Part:
    """A statement that belongs to a write and names its lease by `:number`, `:epoch` and `:me`; see `LEASE`."""

    point: str
    statement: Statement
    parameters: Mapping[str, Any]
    answer: Statement | None = None


@dataclass(slots=True, eq=False)
class Accept:
    """Store a request; with `lease`, start it at once on this worker when its session is free."""

    request: Request
    lease: bool
    timeout_seconds: float | None = None


@dataclass(slots=True, eq=False)
class Write:
    """Store events and parts under a lease. The answer is one list of rows for each part.

    `told` is called with whether they were stored, in the order of commits, before whoever awaits the answer.
    """

    number: int
    epoch: int
    events: Sequence[tuple[int, int, str]] = ()
    parts: Sequence[Part] = ()
    progress: bool = False
    told: Callable[[bool], None] | None = None


@dataclass(slots=True, eq=False)
class Finish:
    """Make an invocation final and release the next one of its session."""

    number: int
    epoch: int
    session_number: int | None
    outcome: Outcome


Operation = Accept | Write | Finish
Answer = Accepted | Finished | list[list[Row]] | OutlastError | None
"""None: this batch could not answer the operation; it must be repeated alone."""

_PRINCIPAL, _ID = COLUMNS.index("principal"), COLUMNS.index("id")
_ACCEPT_COLUMNS = {
    "i": "int", "p": "text", "id": "text", "s": "text", "g": "text", "k": "text", "f": "text", "t": "text",
    "c": "text", "m": "text", "tm": "bigint", "r": "boolean", "l": "boolean",
}  # fmt: skip
_NOT_KNOWN = """
    NOT EXISTS (SELECT 1 FROM {p}invocations v WHERE v.principal = i.p AND v.id = i.id)
    AND NOT EXISTS (SELECT 1 FROM {p}tombstones t WHERE t.principal = i.p AND t.id = i.id)
"""
_NEW_SESSIONS = Statement(
    """
    INSERT INTO {p}sessions (principal, id, agent, actor_id, created_at, last_activity)
    SELECT n.p, n.s, n.g, n.p, {now}, {now} FROM (
        SELECT i.p, i.s, i.g, row_number() OVER (PARTITION BY i.p, i.s ORDER BY i.i) AS rank
        FROM {rows} i
        WHERE i.s IS NOT NULL AND """
    + _NOT_KNOWN
    + """
        AND NOT EXISTS (SELECT 1 FROM {p}sessions s WHERE s.principal = i.p AND s.id = i.s)
    ) n WHERE n.rank = 1 ORDER BY n.p, n.s
    ON CONFLICT (principal, id) DO NOTHING
    """,
    _ACCEPT_COLUMNS,
)
_LOCK_ACCEPTING = Statement(
    """
    SELECT s.number FROM {p}sessions s WHERE s.number IN (
        SELECT o.number FROM {rows} i JOIN {p}sessions o ON o.principal = i.p AND o.id = i.s
        UNION SELECT f.value FROM {values} f
    ) ORDER BY s.number {update}
    """,
    _ACCEPT_COLUMNS,
)
_LOCK_FINISHING = Statement(
    "SELECT number FROM {p}sessions WHERE number IN (SELECT f.value FROM {values} f) ORDER BY number {update}"
)
# With EXISTS, PostgreSQL may read every open invocation once and hash them, instead of looking at one session's.
_OPEN = """(
    SELECT o.number FROM {p}invocations o WHERE o.session_number = s.number AND o.status IN ('queued', 'running') LIMIT 1
) IS NOT NULL"""
_INSERT = Statement(
    """
    INSERT INTO {p}invocations (principal, id, session_number, agent, kind, fingerprint, input, config, metadata,
        timeout_ms, status, ready, holder, epoch, attempt, created_at, started_at)
    SELECT c.p, c.id, c.session, c.g, c.k, c.f, c.t, c.c, c.m, c.tm,
        CASE WHEN c.head AND c.leased THEN 'running' ELSE 'queued' END,
        c.head,
        CASE WHEN c.head AND c.leased THEN CAST(:me AS text) END,
        CASE WHEN c.head AND c.leased THEN 1 ELSE 0 END,
        CASE WHEN c.head AND c.leased THEN 1 ELSE 0 END,
        {now},
        CASE WHEN c.head AND c.leased THEN {now} END
    FROM (
        SELECT i.*, s.number AS session,
            s.number IS NULL OR (row_number() OVER (PARTITION BY s.number ORDER BY i.i) = 1 AND NOT """
    + _OPEN
    + """) AS head,
            i.l AND EXISTS (SELECT 1 FROM {p}workers w WHERE w.id = CAST(:me AS text)) AS leased
        FROM {rows} i LEFT JOIN {p}sessions s ON s.principal = i.p AND s.id = i.s
        WHERE """
    + _NOT_KNOWN
    + """
        AND (i.s IS NULL OR s.agent = i.g)
        AND NOT (i.r AND s.number IS NOT NULL AND """
    + _OPEN
    + """)
    ) c ORDER BY c.i
    RETURNING """
    + ", ".join(COLUMNS),
    _ACCEPT_COLUMNS,
)
_KNOWN = Statement(
    """
    SELECT i.i, s.agent, (SELECT 1 FROM {p}tombstones t WHERE t.principal = i.p AND t.id = i.id), """
    + INVOCATION_COLUMNS
    + """
    FROM {rows} i
    LEFT JOIN {p}sessions s ON s.principal = i.p AND s.id = i.s
    LEFT JOIN {p}invocations v ON v.principal = i.p AND v.id = i.id
    LEFT JOIN {p}sessions vs ON vs.number = v.session_number
    """,
    _ACCEPT_COLUMNS,
)

# COALESCE keeps the planners from walking all that this worker holds instead of the few rows that are named.
_EVENT_COLUMNS = {"n": "bigint", "e": "int", "p": "bigint", "a": "int", "t": "text"}
_LEASE_COLUMNS = {"n": "bigint", "e": "int"}
_HELD = Statement(
    """
    SELECT v.number, v.epoch FROM {rows} i JOIN {p}invocations v ON v.number = i.n AND v.epoch = i.e
    WHERE COALESCE(v.holder, '') = :me AND v.status = 'running'
    """,
    _LEASE_COLUMNS,
)
_EVENTS = Statement(
    """
    INSERT INTO {p}events (invocation_number, position, attempt, at, event)
    SELECT i.n, i.p, i.a, {now}, i.t
    FROM {rows} i JOIN {p}invocations v ON v.number = i.n AND v.epoch = i.e
    WHERE COALESCE(v.holder, '') = :me AND v.status = 'running'
    ON CONFLICT (invocation_number, position) DO NOTHING
    """,
    _EVENT_COLUMNS,
)
_EVENTS_ALONE = Statement(
    """
    WITH held AS (
        SELECT v.number, v.epoch FROM {p}invocations v
        WHERE COALESCE(v.holder, '') = :me AND v.status = 'running'
            AND (v.number, v.epoch) IN (SELECT i.n, i.e FROM {rows} i)
        ORDER BY v.number {share}
    ), stored AS (
        INSERT INTO {p}events (invocation_number, position, attempt, at, event)
        SELECT i.n, i.p, i.a, {now}, i.t FROM {rows} i JOIN held ON held.number = i.n AND held.epoch = i.e
        ON CONFLICT (invocation_number, position) DO NOTHING
    )
    SELECT number, epoch FROM held
    """,
    _EVENT_COLUMNS,
)
"""PostgreSQL only: events and nothing else, in one statement that is its own transaction. The fence is the lock on each
invocation: a takeover that changes the row first makes the row drop out, one that comes later waits. (The worker's row
would not do here: who ends a run for its worker holds that row and leaves it, and a statement that waited for it would
go on with what it saw of the run before.)
"""
_PROGRESS = Statement(
    """
    UPDATE {p}invocations SET progress = true, suspect = false
    WHERE number IN (SELECT f.value FROM {values} f) AND holder = :me AND status = 'running'
        AND (NOT progress OR suspect)
    """
)

_FINISH_COLUMNS = {
    "n": "bigint", "e": "int", "st": "text", "o": "text", "er": "text", "it": "text", "u": "text",
}  # fmt: skip
_FINISH = Statement(
    """
    UPDATE {p}invocations SET status = i.st, output = i.o, error = i.er, interrupt = i.it, usage = i.u,
        last_position = COALESCE((SELECT max(e.position) FROM {p}events e WHERE e.invocation_number = i.n), 0),
        finished_at = {now}, ready = false, suspect = false
    FROM {rows} i
    WHERE {p}invocations.number = i.n AND {p}invocations.epoch = i.e
        AND COALESCE({p}invocations.holder, '') = :me AND {p}invocations.status = 'running'
    RETURNING number, finished_at, last_position
    """,
    _FINISH_COLUMNS,
)
_FINISHED = Statement(
    """
    SELECT v.number, v.finished_at, v.last_position FROM {rows} i JOIN {p}invocations v ON v.number = i.n AND v.epoch = i.e
    WHERE v.holder = :me AND v.status = i.st
    """,
    _FINISH_COLUMNS,
)


_Lease = tuple[int, int]


@dataclass(slots=True)
class _Batch:
    """The operations of one transaction, by kind, and the answers to wait for."""

    me: str | None
    accepts: list[Accept] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    created: Pending | None = None
    stored: Pending | None = None
    asked: set[_Lease] = field(default_factory=set)
    held: Pending | None = None
    parts: list[Pending] = field(default_factory=list)
    finished: Pending | None = None
    released: Pending | None = None

    def points(self) -> list[str]:
        found = dict.fromkeys(["accept"] if self.accepts else [])
        for write in self.writes:
            if write.events:
                found["events"] = None
            found.update(dict.fromkeys(part.point for part in write.parts))
        if self.finishes:
            found["finish"] = None
        return list(found)


def perform(connection: Connection, me: str | None, operations: Sequence[Operation]) -> list[Answer]:
    """Run the operations in one transaction and return an answer for each, in order. Errors of the driver go out."""
    batch = _Batch(me)
    for operation in operations:
        _add(batch, operation)
    if connection.dialect == "postgresql" and not faults.active() and _only_events(batch):
        batch.asked = {(write.number, write.epoch) for write in batch.writes}
        batch.held = connection.send(_EVENTS_ALONE, rows=_event_rows(batch), me=batch.me)
        return _answers(connection, batch, operations)
    points = batch.points() if faults.active() else ()
    _reach(points, "begin")
    connection.begin()
    _send(connection, batch)
    connection_reach(connection, points)
    connection.commit()
    _reach(points, "after_commit")
    return _answers(connection, batch, operations)


def separable(operations: Sequence[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Split off what must wait for the next transaction: a repeated id, or `reject` behind its own session."""
    now: list[Operation] = []
    later: list[Operation] = []
    ids: set[tuple[str, str]] = set()
    sessions: set[tuple[str, str | None]] = set()
    for operation in operations:
        if isinstance(operation, Accept):
            request = operation.request
            id_key, session_key = (request.principal, request.id), (request.principal, request.session_id)
            rejecting = request.on_active is OnActive.REJECT and request.session_id is not None
            if id_key in ids or (rejecting and session_key in sessions):
                later.append(operation)
                continue
            ids.add(id_key)
            sessions.add(session_key)
        now.append(operation)
    return now, later


def size(operation: Operation) -> int:
    """Return about how many bytes an operation brings, without looking at any of them."""
    match operation:
        case Write():
            events = sum([len(text) for _, _, text in operation.events])
            return events + sum([_weight(value) for part in operation.parts for value in part.parameters.values()])
        case Accept():
            return len(operation.request.input) + len(operation.request.config)
        case Finish():
            outcome = operation.outcome
            return sum([len(text or "") for text in (outcome.output, outcome.error, outcome.interrupt, outcome.usage)])


def _weight(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return sum([_weight(field) for item in value.items for field in item]) if isinstance(value, Rows) else 0


def connection_reach(connection: Connection, points: Sequence[str]) -> None:
    """Stop before the commit, where a test asks for it, with every statement executed and every lock held."""
    if faults.active():
        connection.sync()
        _reach(points, "before_commit")


def _reach(points: Sequence[str], moment: str) -> None:
    for point in points:
        faults.reach(f"{point}.{moment}")


def _add(batch: _Batch, operation: Operation) -> None:
    match operation:
        case Accept():
            batch.accepts.append(operation)
        case Write():
            batch.writes.append(operation)
        case Finish():
            batch.finishes.append(operation)


def _send(connection: Connection, batch: _Batch) -> None:
    if connection.dialect == "postgresql" and batch.me is not None:
        connection.send(FENCE, me=batch.me)
    finishing = values(sorted({f.session_number for f in batch.finishes if f.session_number is not None}))
    if batch.accepts:
        _send_accepts(connection, batch, finishing)
    elif finishing.items and connection.dialect == "postgresql":
        connection.send(_LOCK_FINISHING, values=finishing)
    if batch.writes:
        _send_writes(connection, batch)
    if batch.finishes:
        _send_finishes(connection, batch, finishing)


def _send_accepts(connection: Connection, batch: _Batch, finishing: Rows) -> None:
    input = _accept_rows(enumerate(batch.accepts))
    if any(accept.request.session_id is not None for accept in batch.accepts):
        connection.send(_NEW_SESSIONS, rows=input)
        if connection.dialect == "postgresql":
            connection.send(_LOCK_ACCEPTING, rows=input, values=finishing)
    elif finishing.items and connection.dialect == "postgresql":
        connection.send(_LOCK_FINISHING, values=finishing)
    batch.created = connection.send(_INSERT, rows=input, me=batch.me)


def _accept_rows(accepts: Iterable[tuple[int, Accept]]) -> Rows:
    return Rows(_ACCEPT_COLUMNS, [_accept_row(index, accept) for index, accept in accepts])


def _accept_row(index: int, accept: Accept) -> Row:
    request = accept.request
    timeout = accept.timeout_seconds if request.timeout_seconds is None else request.timeout_seconds
    return (
        index, request.principal, request.id, request.session_id, request.agent, request.kind, request.fingerprint,
        request.input, request.config, jsontext.encode(dict(request.metadata)),
        None if timeout is None else round(timeout * 1000),
        request.on_active is OnActive.REJECT, accept.lease,
    )  # fmt: skip


def _only_events(batch: _Batch) -> bool:
    alone = not batch.accepts and not batch.finishes
    return alone and all(write.events and not write.parts and not write.progress for write in batch.writes)


def _event_rows(batch: _Batch) -> Rows:
    return Rows(
        _EVENT_COLUMNS,
        [
            (write.number, write.epoch, position, attempt, text)
            for write in batch.writes
            for position, attempt, text in write.events
        ],
    )


def _send_writes(connection: Connection, batch: _Batch) -> None:
    batch.asked = {(write.number, write.epoch) for write in batch.writes if not write.events}
    if batch.asked:
        batch.held = connection.send(_HELD, rows=Rows(_LEASE_COLUMNS, list(batch.asked)), me=batch.me)
    if (events := _event_rows(batch)).items:
        batch.stored = connection.send(_EVENTS, rows=events, me=batch.me)
    for write in batch.writes:
        for part in write.parts:
            lease = {"number": write.number, "epoch": write.epoch, "me": batch.me}
            sent = connection.send(part.statement, **part.parameters, **lease)
            answer = part.answer and connection.send(part.answer, **part.parameters)
            batch.parts.append(answer or sent)
    if progress := sorted({write.number for write in batch.writes if write.progress}):
        connection.send(_PROGRESS, values=values(progress), me=batch.me)


def _send_finishes(connection: Connection, batch: _Batch, finishing: Rows) -> None:
    batch.finished = connection.send(_FINISH, rows=_finish_rows(batch.finishes), me=batch.me)
    if finishing.items:
        batch.released = connection.send(RELEASE, values=finishing)


def _finish_rows(finishes: Iterable[Finish]) -> Rows:
    return Rows(_FINISH_COLUMNS, [_finish_row(finish.number, finish.epoch, finish.outcome) for finish in finishes])


def _finish_row(number: int, epoch: int, outcome: Outcome) -> Row:
    return number, epoch, outcome.status, outcome.output, outcome.error, outcome.interrupt, outcome.usage


def _answers(connection: Connection, batch: _Batch, operations: Sequence[Operation]) -> list[Answer]:
    """Put the answers in order. What the transaction did not do, and may have been done before, is looked up now."""
    accepted = iter(_accept_answers(connection, batch))
    finished = _finished(connection, batch)
    lost = _lost_leases(connection, batch, finished)
    parts = iter(batch.parts)
    released = tuple(number for (number,) in batch.released.rows()) if batch.released else ()
    answers: list[Answer] = []
    for operation in operations:
        match operation:
            case Accept():
                answers.append(next(accepted))
            case Write():
                found = [next(parts).rows() for _ in operation.parts]
                answers.append(_lost(operation.number) if (operation.number, operation.epoch) in lost else found)
            case Finish():
                at, last = finished.get(operation.number, (None, 0))
                answers.append(_lost(operation.number) if at is None else Finished(at, last, released))
    return answers


def _lost(number: int) -> LeaseLost:
    return LeaseLost(f"invocation {number} is no longer held by this attempt; nothing of this write was stored")


def _lost_leases(connection: Connection, batch: _Batch, finished: Collection[int]) -> set[_Lease]:
    """Return the leases that did not stand. When an event was not stored, or was there before, they are looked up.

    One whose run ended with this transaction stood until then.
    """
    lost = batch.asked - {(number, epoch) for number, epoch in batch.held.rows()} if batch.held else set()
    if batch.stored is not None and batch.stored.count() != sum([len(write.events) for write in batch.writes]):
        rest = {(write.number, write.epoch) for write in batch.writes} - batch.asked
        found = query(connection, _HELD, rows=Rows(_LEASE_COLUMNS, list(rest)), me=batch.me)
        ended = {(finish.number, finish.epoch) for finish in batch.finishes if finish.number in finished}
        lost |= rest - {(number, epoch) for number, epoch in found} - ended
    return lost


def _finished(connection: Connection, batch: _Batch) -> dict[int, tuple[int, int]]:
    if batch.finished is None:
        return {}
    found = batch.finished.rows()
    done = {number for number, *_ in found}
    if rest := [finish for finish in batch.finishes if finish.number not in done]:
        found = [*found, *query(connection, _FINISHED, rows=_finish_rows(rest), me=batch.me)]
    return {number: (at, last) for number, at, last in found}


def _accept_answers(connection: Connection, batch: _Batch) -> list[Answer]:
    if batch.created is None:
        return []
    created = {(row[_PRINCIPAL], row[_ID]): row for row in batch.created.rows()}
    missing = [
        (index, accept)
        for index, accept in enumerate(batch.accepts)
        if (accept.request.principal, accept.request.id) not in created
    ]
    known: dict[int, Row] = {}
    if missing:
        found = query(connection, _KNOWN, rows=_accept_rows(missing))
        known = {row[0]: row[1:] for row in found}
    answers: list[Answer] = []
    for index, accept in enumerate(batch.accepts):
        if index in known:
            answers.append(_not_created(known[index], accept.request))
        else:
            row = created[accept.request.principal, accept.request.id]
            answers.append(Accepted(invocation((*row, accept.request.session_id)), created=True))
    return answers


def _not_created(row: Row, request: Request) -> Answer:
    session_agent, tombstone, *fields = row
    if fields[0] is not None:
        found = invocation(tuple(fields))
        if found.fingerprint == request.fingerprint:
            return Accepted(found, created=False)
        return Conflict(
            f"invocation {request.id} exists with another {_differing(found, request)}; use a new id for a new request",
            code="idempotency_conflict",
        )
    if tombstone is not None:
        return Gone(f"invocation {request.id} was deleted; use a new id for a new request")
    if session_agent is not None and session_agent != request.agent:
        return Conflict(
            f"this session belongs to the agent {session_agent!r}, not to {request.agent!r}",
            code="session_of_other_agent",
        )
    if session_agent is not None and request.on_active is OnActive.REJECT:
        return Conflict("this session has an invocation that is not final yet", code="session_active")
    return None


def _differing(found: Invocation, request: Request) -> str:
    """Name the fields in which two requests differ, and no value of them."""
    compared = {
        "input": _same_json(found.input, request.input),
        "session_id": found.session_id == request.session_id,
        "agent": found.agent == request.agent,
        "config": _same_json(found.config, request.config),
        "kind": found.kind == request.kind,
    }
    # Keys that are no strings are ordered as what they are in a fingerprint, and stored as strings.
    *others, last = [name for name, same in compared.items() if not same] or ["input"]
    return f"{', '.join(others)} and {last}" if others else last


def _same_json(one: str, other: str) -> bool:
    return one == other or jsontext.fingerprint(jsontext.decode(one)) == jsontext.fingerprint(jsontext.decode(other))

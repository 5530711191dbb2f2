"""The life of an invocation after it was accepted: claim, hand back, cancel, time out, expire, delete, retention.

Each function runs inside a write transaction that its caller opened. Whoever changes a row that another worker holds
locks that worker's row first: a batch of the holder has it shared, so the two cannot overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outlast.core.errors import Conflict, NotFound
from outlast.core.records import Invocation, Kind, Outcome, Status
from outlast.store import workers
from outlast.store.statements import Connection, Row, Rows, Statement, query, values

CancelReason = Literal["cancelled", "timeout"]

COLUMNS = Invocation._fields[:-1]
INVOCATION_COLUMNS = ", ".join(f"v.{name}" for name in COLUMNS) + ", vs.id"
"""The columns `invocation` reads; `v` is the invocation, `vs` its session."""

_SELECT = (
    "SELECT " + INVOCATION_COLUMNS + " FROM {p}invocations v LEFT JOIN {p}sessions vs ON vs.number = v.session_number "
)


def invocation(row: Row) -> Invocation:
    """Make the record of a row of INVOCATION_COLUMNS."""
    found = Invocation._make(row)
    return found._replace(kind=Kind(found.kind), status=Status(found.status), suspect=bool(found.suspect))


RELEASE = Statement(
    """
    UPDATE {p}invocations SET ready = true
    WHERE status = 'queued' AND NOT ready AND number IN (
        SELECT (SELECT min(o.number) FROM {p}invocations o
                WHERE o.session_number = f.value AND o.status IN ('queued', 'running'))
        FROM {values} f)
    RETURNING number
    """
)
"""Let the first unfinished invocation of each session start."""

_ONE_AT_A_TIME = Statement("SELECT pg_advisory_xact_lock(hashtext(CAST(:name AS text)))")
_CLAIM = Statement(
    """
    UPDATE {p}invocations SET status = 'running', holder = CAST(:me AS text), epoch = epoch + 1,
        attempt = attempt + 1, progress = false, started_at = COALESCE(started_at, {now})
    WHERE EXISTS (SELECT 1 FROM {p}workers w WHERE w.id = CAST(:me AS text)) AND number IN (
        SELECT q.number FROM {p}invocations q
        WHERE q.status = 'queued' AND q.ready AND q.suspect = (:suspect = 1)
            AND (:only = 0 OR q.number = :only)
            AND q.agent IN (SELECT i.agent FROM {rows} i)
            AND (:per_principal = 0 OR :per_principal > (
                SELECT count(*) FROM {p}invocations r
                WHERE r.status = 'running' AND r.principal = q.principal))
        ORDER BY q.number LIMIT :room {skip})
    RETURNING number
    """,
    {"agent": "text"},
)
_HELD_UNKNOWN = Statement(
    _SELECT + "WHERE v.holder = :me AND v.status = 'running' AND v.number NOT IN (SELECT f.value FROM {values} f) "
    "ORDER BY v.number"
)


def claim(
    connection: Connection,
    *,
    me: str,
    agents: Sequence[str],
    room: int,
    suspect_room: int,
    per_principal: int,
    known: Sequence[int],
    only: int = 0,
) -> list[Invocation]:
    """Lease up to `room` ready runs, of which at most `suspect_room` lost their last worker by a crash.

    Returns every run leased to `me` that is not in `known`: what this call claimed, and what an earlier call
    claimed whose answer was lost. `only` restricts the claim to one invocation's number.
    """
    if connection.dialect == "postgresql":
        connection.send(workers.FENCE, me=me)
    if per_principal and connection.dialect == "postgresql":
        connection.send(_ONE_AT_A_TIME, name="outlast.claim")
    input = Rows(["agent"], [(agent,) for agent in agents])

    def lease(room: int, *, suspect: bool = False) -> int:
        leased = connection.send(
            _CLAIM, me=me, rows=input, suspect=int(suspect), room=room, per_principal=per_principal, only=only
        )
        return len(leased.rows())

    if suspect_room:
        room -= lease(min(room, suspect_room), suspect=True)
    if per_principal:
        while room > 0 and lease(1):
            room -= 1
    elif room > 0:
        lease(room)
    return [invocation(row) for row in query(connection, _HELD_UNKNOWN, me=me, values=values(known))]


_HAND_BACK = Statement(
    """
    UPDATE {p}invocations SET status = 'queued', ready = true, holder = NULL,
        attempt = attempt - CASE WHEN :entered = 1 THEN 0 ELSE 1 END
    WHERE number = :number AND epoch = :epoch AND holder = :me AND status = 'running'
    RETURNING number
    """
)


def hand_back(connection: Connection, *, me: str, number: int, epoch: int, entered: bool) -> None:
    """Give a run back to the queue. It is not charged; without `entered` the attempt does not count either."""
    connection.send(_HAND_BACK, me=me, number=number, epoch=epoch, entered=int(entered))


_LOCK_SESSION = Statement("SELECT number FROM {p}sessions WHERE number = :session {update}")
_FIND = Statement(_SELECT + "WHERE v.principal = :principal AND v.id = :id")
_BY_NUMBER = Statement(_SELECT + "WHERE v.number = :number")
_LOCK_INVOCATION = Statement("SELECT number FROM {p}invocations WHERE number = :number {update}")
_ASK_CANCEL = Statement(
    """
    UPDATE {p}invocations SET cancel = :reason
    WHERE number = :number AND status IN ('queued', 'running') AND cancel IS NULL
    """
)
_END = Statement(
    """
    UPDATE {p}invocations SET status = :status, error = :error, cancel = COALESCE(cancel, :cancel),
        finished_at = {now}, ready = false, suspect = false, epoch = epoch + 1,
        last_position = COALESCE((SELECT max(e.position) FROM {p}events e WHERE e.invocation_number = :number), 0)
    WHERE number = :number AND epoch = :epoch AND status IN ('queued', 'running')
    """
)
# Nobody puts the history in order here: the next run does, and answers these calls as not approved.
_CLOSE_ASKED = Statement(
    """
    UPDATE {p}approvals SET status = 'closed', decided_at = {now}
    WHERE invocation_number = :number AND status = 'open'
    """
)


def find(connection: Connection, principal: str, id: str) -> Invocation:
    """Return the invocation, or raise NotFound."""
    found = query(connection, _FIND, principal=principal, id=id)
    if not found:
        raise NotFound(f"there is no invocation {id}")
    return invocation(found[0])


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel left behind: the record now, and what may start because of it."""

    invocation: Invocation
    released: tuple[int, ...] = ()


def cancel(connection: Connection, *, principal: str, id: str, outcome: Outcome) -> Cancelled:
    """End a run that nobody began with `outcome` at once; have any other be stopped; leave a final one alone.

    The holder of a running one stops it. One that lost its worker stays in the queue: whoever claims it has its agent
    answer the calls that it left open, which the store cannot, and finishes it without entering it. If nobody who has
    the agent does so in time, it is expired, and its calls are left to the next run of the session.
    """
    found = find(connection, principal, id)
    if found.session_number is not None:
        query(connection, _LOCK_SESSION, session=found.session_number)
    query(connection, _LOCK_INVOCATION, number=found.number)
    found = find(connection, principal, id)
    if found.status is Status.QUEUED and not found.attempt:
        return _end(connection, found, outcome, "cancelled")
    connection.send(_ASK_CANCEL, number=found.number, reason="cancelled")
    return Cancelled(_again(connection, found))


def expire(connection: Connection, *, number: int, epoch: int, outcome: Outcome) -> Cancelled | None:
    """Take a run that was asked to stop, and did not, away from its holder or out of the queue; end it with `outcome`.

    An open batch of the holder is waited for and never skipped, see `workers.lock`.
    """
    found = query(connection, _BY_NUMBER, number=number)
    if not found:
        return None
    record = invocation(found[0])
    if record.holder is not None:
        workers.lock(connection, id=record.holder)
    if record.session_number is not None:
        query(connection, _LOCK_SESSION, session=record.session_number)
    query(connection, _LOCK_INVOCATION, number=number)
    record = _again(connection, record)
    if record.epoch != epoch or record.status.final:
        return None
    if record.status is Status.QUEUED and record.cancel is None:
        return None
    return _end(connection, record, outcome, None)


def _end(connection: Connection, found: Invocation, outcome: Outcome, reason: CancelReason | None) -> Cancelled:
    connection.send(
        _END, number=found.number, epoch=found.epoch, status=outcome.status, error=outcome.error, cancel=reason
    )
    connection.send(_CLOSE_ASKED, number=found.number)
    released: tuple[int, ...] = ()
    if found.session_number is not None:
        answer = query(connection, RELEASE, values=values([found.session_number]))
        released = tuple(number for (number,) in answer)
    return Cancelled(_again(connection, found), released)


def _again(connection: Connection, found: Invocation) -> Invocation:
    return invocation(query(connection, _BY_NUMBER, number=found.number)[0])


_TIME_OUT = Statement(
    """
    UPDATE {p}invocations SET cancel = 'timeout'
    WHERE status = 'running' AND cancel IS NULL AND timeout_ms > 0 AND started_at + timeout_ms < {now}
    RETURNING number
    """
)
_STOPPING = Statement(
    """
    SELECT number, epoch, holder, cancel FROM {p}invocations
    WHERE status IN ('queued', 'running') AND cancel IS NOT NULL
    """
)
# The first condition is what lets SQLite use the index of open invocations.
_FORGOTTEN = Statement(
    """
    UPDATE {p}invocations SET ready = true
    WHERE status IN ('queued', 'running') AND status = 'queued' AND NOT ready AND NOT EXISTS (
        SELECT 1 FROM {p}invocations o WHERE o.session_number = {p}invocations.session_number
            AND o.status IN ('queued', 'running') AND o.number < {p}invocations.number)
    RETURNING number
    """
)
_ORPHANS = Statement(
    """
    UPDATE {p}invocations SET status = 'queued', ready = true, holder = NULL
    WHERE status = 'running' AND holder NOT IN (SELECT w.id FROM {p}workers w)
    RETURNING number
    """
)


@dataclass(frozen=True, slots=True)
class Stopping:
    """An invocation that began and was asked to stop. Without a holder, it waits for somebody who finishes it."""

    number: int
    epoch: int
    holder: str | None
    reason: str


def stopping(connection: Connection) -> list[Stopping]:
    """Ask overdue runs to stop, and return every run that was asked to and is not final."""
    connection.send(_TIME_OUT)
    return [Stopping(*row) for row in query(connection, _STOPPING)]


def sweep(connection: Connection) -> int:
    """Mend what no known interleaving leaves behind: a session head that is not ready, a run of no worker."""
    forgotten = query(connection, _FORGOTTEN)
    orphans = query(connection, _ORPHANS)
    return len(forgotten) + len(orphans)


_BURY = Statement(
    """
    INSERT INTO {p}tombstones (principal, id, expires_at)
    SELECT v.principal, v.id, {now} + :keep_ms FROM {p}invocations v
    WHERE v.number IN (SELECT f.value FROM {values} f)
    ON CONFLICT (principal, id) DO NOTHING
    """
)
_DELETE_EVENTS = Statement("DELETE FROM {p}events WHERE invocation_number IN (SELECT f.value FROM {values} f)")
_DELETE_JOURNAL = Statement(
    """
    DELETE FROM {p}journal WHERE invocation_number IN (SELECT f.value FROM {values} f) AND NOT EXISTS (
        SELECT 1 FROM {p}journal o WHERE o.scope = {p}journal.scope AND substr(o.scope, 1, 1) = 's'
            AND o.state IN ('pending', 'started', 'waiting'))
    """
)
_OWN_SCOPE = "WHERE scope IN (SELECT 'i' || CAST(f.value AS text) FROM {values} f)"
_DELETE_HISTORIES = [
    Statement(f"DELETE FROM {{p}}{table} " + _OWN_SCOPE)
    for table in ("checkpoint_parts", "checkpoint_writes", "checkpoints", "heads", "items")
]
_DELETE = Statement("DELETE FROM {p}invocations WHERE number IN (SELECT f.value FROM {values} f)")
_OLD = Statement(
    """
    SELECT v.number FROM {p}invocations v
    WHERE v.finished_at < {now} - :age_ms AND v.status = :status ORDER BY v.finished_at LIMIT :limit {skip}
    """
)
_OLD_TOMBSTONES = Statement("DELETE FROM {p}tombstones WHERE expires_at < {now}")


def delete(connection: Connection, *, principal: str, id: str, keep_ms: int) -> None:
    """Remove a final invocation with its log and leave a tombstone for `keep_ms`.

    Raises NotFound, and Conflict (`not_final`) while it is queued or running.
    """
    found = find(connection, principal, id)
    if not found.status.final:
        raise Conflict(f"invocation {id} is {found.status}; cancel it first", code="not_final")
    remove(connection, [found.number], keep_ms)


def remove_old(connection: Connection, *, status: Status, age_ms: int, keep_ms: int, limit: int) -> int:
    """Remove up to `limit` invocations that became `status` more than `age_ms` ago; return how many."""
    old = [number for (number,) in query(connection, _OLD, status=status, age_ms=age_ms, limit=limit)]
    if old:
        remove(connection, old, keep_ms)
    connection.send(_OLD_TOMBSTONES)
    return len(old)


def remove(connection: Connection, numbers: Sequence[int], keep_ms: int) -> None:
    """Remove final invocations with their logs and leave tombstones for `keep_ms`.

    What they asked stays as long as the history of the session, in which a call may be open that nobody approved.
    """
    listed = values(numbers)
    connection.send(_BURY, values=listed, keep_ms=keep_ms)
    connection.send(_DELETE_EVENTS, values=listed)
    connection.send(_DELETE_JOURNAL, values=listed)
    for statement in _DELETE_HISTORIES:
        connection.send(statement, values=listed)
    connection.send(_DELETE, values=listed)


def cancelled_outcome(reason: str) -> Outcome:
    """How a run ends that was asked to stop: `failed` with the code `cancelled` or `timeout`."""
    if reason == "timeout":
        return Outcome.failed("timeout", "the run took longer than its time limit")
    return Outcome.failed("cancelled", "the run was cancelled")

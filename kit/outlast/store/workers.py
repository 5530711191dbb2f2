"""Workers: register, beat, and take over from the dead. No clock decides: only counters that changed or did not."""

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.core import jsontext
from outlast.store.statements import Connection, Statement, query

LOCK_TIMEOUT_MS = 3000
"""A batch of a worker that is dead or frozen may still be open; it ends by itself or by its idle timeout, and the next
scan tries again."""

FENCE = Statement("SELECT id FROM {p}workers WHERE id = :me {share}")
"""What a transaction holds that writes under leases: whoever takes them away must have this row first."""

_REGISTER = Statement(
    """
    INSERT INTO {p}workers (id, host, pid, lock_file, claims, started_at)
    VALUES (:id, :host, :pid, :lock_file, :claims, {now})
    ON CONFLICT (id) DO NOTHING
    """
)
_FIRST_BEAT = Statement(
    """
    INSERT INTO {p}beats (worker_id, counter, stalled, at) VALUES (:id, 0, false, {now})
    ON CONFLICT (worker_id) DO NOTHING
    """
)
_BEAT = Statement(
    """
    UPDATE {p}beats SET counter = counter + 1, stalled = (:stalled = 1), at = {now} WHERE worker_id = :id
    RETURNING counter
    """
)
_ALL = Statement(
    """
    SELECT w.id, w.host, w.pid, w.lock_file, w.claims, w.started_at, b.counter, b.stalled, b.at
    FROM {p}workers w JOIN {p}beats b ON b.worker_id = w.id ORDER BY w.started_at, w.id
    """
)
_LOCK_TIMEOUT = Statement("SELECT set_config('lock_timeout', CAST(:milliseconds AS text), true)")
_LOCK = Statement("SELECT id FROM {p}workers WHERE id = :id {update}")
_COUNTER = Statement("SELECT counter FROM {p}beats WHERE worker_id = :id")
_REMOVE_BEAT = Statement("DELETE FROM {p}beats WHERE worker_id = :id")
_REMOVE = Statement("DELETE FROM {p}workers WHERE id = :id RETURNING id")
_REQUEUE = Statement(
    """
    UPDATE {p}invocations SET status = 'queued', ready = true, holder = NULL, suspect = true,
        crashes = crashes + CASE WHEN progress THEN 0 ELSE 1 END
    WHERE holder = :id AND status = 'running'
    RETURNING number, id, attempt
    """
)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered worker and its last beat."""

    id: str
    host: str
    pid: int
    lock_file: str | None
    claims: str
    started_at: int
    counter: int
    stalled: bool
    beat_at: int

    def takes(self, agent: str) -> bool:
        """Say whether this worker takes queued runs of an agent by itself."""
        return agent in jsontext.decode(self.claims)

    def may_have_accepted(self, agent: str) -> bool:
        """Say whether a run of an agent may be its own. One that takes runs by itself takes those of all its agents."""
        return self.claims == "[]" or self.takes(agent)


@dataclass(frozen=True, slots=True)
class Lost:
    """A run whose worker died; it is queued again."""

    number: int
    id: str
    attempt: int


def register(
    connection: Connection, *, id: str, host: str, pid: int, lock_file: str | None, claims: Sequence[str]
) -> None:
    connection.send(_REGISTER, id=id, host=host, pid=pid, lock_file=lock_file, claims=jsontext.encode(list(claims)))
    connection.send(_FIRST_BEAT, id=id)


def try_to_write(connection: Connection) -> None:
    """Write a row, which the caller takes back, so that a database that refuses to be written says so."""
    connection.send(_REGISTER, id="try-to-write", host="", pid=0, lock_file=None, claims="[]")


def beat(connection: Connection, *, id: str, stalled: bool) -> bool:
    """Count one more. False: somebody took over from this worker."""
    return bool(query(connection, _BEAT, id=id, stalled=int(stalled)))


def listed(connection: Connection) -> list[WorkerRow]:
    return [WorkerRow(*row) for row in query(connection, _ALL)]


def lock(connection: Connection, *, id: str) -> None:
    """Wait for a worker's open batch and keep it from writing another, until the end of this transaction.

    On PostgreSQL a batch that does not end makes this, and every later wait of the transaction, fail with Again.
    """
    if connection.dialect == "postgresql":
        connection.send(_LOCK_TIMEOUT, milliseconds=LOCK_TIMEOUT_MS)
        query(connection, _LOCK, id=id)


def take_over(connection: Connection, *, id: str, counter: int | None) -> list[Lost] | None:
    """Remove a dead worker and queue its runs again, in this transaction.

    `counter` is the beat it was judged by: None is returned, and nothing changes, when the worker beat again or is
    gone. An open batch of the worker is waited for and never skipped, see `lock`.
    """
    lock(connection, id=id)
    if counter is not None and query(connection, _COUNTER, id=id) != [(counter,)]:
        return None
    connection.send(_REMOVE_BEAT, id=id)
    if not query(connection, _REMOVE, id=id):
        return None
    return [Lost(*row) for row in query(connection, _REQUEUE, id=id)]


def deregister(connection: Connection, *, id: str) -> None:
    """Remove a worker that holds nothing any more; runs it still holds are queued again, uncharged."""
    connection.send(_RETURN, id=id)
    connection.send(_REMOVE_BEAT, id=id)
    connection.send(_REMOVE, id=id)


_RETURN = Statement(
    "UPDATE {p}invocations SET status = 'queued', ready = true, holder = NULL WHERE holder = :id AND status = 'running'"
)

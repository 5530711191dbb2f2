"""PostgreSQL by psycopg: a write transaction is sent as one pipeline, so that it costs one round trip."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from outlast.store.statements import Again, DatabaseError, DialectName, Lost, Refused, Row, Statement, translated

IDLE_IN_TRANSACTION_MS = 5000
"""A frozen worker must not hold rows for longer."""

CONNECT_ARGUMENTS: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "outlast",
}

# serialization failure, deadlock, lock timeout, a racing insert of the same id, and a statement timeout
_AGAIN = ("40001", "40P01", "55P03", "23505", "57014")
_LOST = ("08", "53", "57P", "25P03", "25006", "58")
# Within the transaction, because behind a transaction pooler a session's settings reach other clients. For the scans
# see `statements._FEW`: right for a table of one page, such a plan would be kept when the table has grown.
_BOUND = Statement(
    "SELECT set_config('idle_in_transaction_session_timeout', :milliseconds, true), "
    "set_config('enable_seqscan', 'off', true)"
)


def _meaning(error: Exception) -> type[DatabaseError]:
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state is None:
        return Lost if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else Refused
    if state in _AGAIN:
        return Again
    return Lost if state.startswith(_LOST) else Refused


_translated = translated(psycopg.Error, _meaning)


class Sent:
    """The answer of a statement in the pipeline."""

    __slots__ = ("_cursor", "_owner")

    def __init__(self, cursor: psycopg.Cursor[Row], owner: "PostgresConnection") -> None:
        self._cursor, self._owner = cursor, owner

    @_translated
    def rows(self) -> list[Row]:
        self._owner.sync()
        return self._cursor.fetchall() if self._cursor.description else []


class PostgresConnection:
    dialect: DialectName = "postgresql"

    def __init__(self, arguments: dict[str, Any], schema: str) -> None:
        self._arguments = {**CONNECT_ARGUMENTS, **arguments}
        self.schema = schema
        self._channel = f"outlast_{schema}"[:63]
        self._scope: AbstractContextManager[psycopg.Pipeline] | None = None
        self._pipeline: psycopg.Pipeline | None = None
        self._connection = self._open()

    @_translated
    def _open(self) -> "psycopg.Connection[Row]":
        return psycopg.connect(**self._arguments, autocommit=True)

    @_translated
    def begin(self) -> None:
        self._scope = self._connection.pipeline()
        self._pipeline = self._scope.__enter__()
        self._connection.execute("BEGIN")
        self.send(_BOUND, milliseconds=str(IDLE_IN_TRANSACTION_MS))

    @_translated
    def send(self, statement: Statement, **parameters: Any) -> Sent:
        return Sent(self._connection.execute(statement.render("postgresql", self.schema), parameters), self)

    @_translated
    def sync(self) -> None:
        if self._pipeline is not None:
            self._pipeline.sync()

    @_translated
    def commit(self) -> None:
        cursor = self._connection.execute("COMMIT")
        self._leave()
        if cursor.statusmessage != "COMMIT":
            raise Lost(f"COMMIT answered {cursor.statusmessage}")

    def rollback(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._leave()
        status = self._connection.info.transaction_status
        if status is TransactionStatus.IDLE:
            return
        if status is TransactionStatus.INTRANS:
            with contextlib.suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
                return
        # The server skips what follows a failed statement in a pipeline. Where that would have been prepared, the driver
        # takes it for prepared from then on (psycopg 3.3): only a new connection is sure.
        with contextlib.suppress(DatabaseError):
            self.reconnect()

    def _leave(self) -> None:
        scope, self._scope, self._pipeline = self._scope, None, None
        if scope is not None:
            scope.__exit__(None, None, None)

    def close(self) -> None:
        self._connection.close()

    def reconnect(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self._leave()
        self.close()
        self._connection = self._open()

    @_translated
    def listen(self) -> None:
        self._connection.execute(f'LISTEN "{self._channel}"')

    @_translated
    def notifications(self, timeout: float) -> list[str]:
        """Return what was notified within `timeout` seconds; returns as soon as there is something."""
        return [found.payload for found in self._connection.notifies(timeout=timeout, stop_after=1)]

    @_translated
    def notify(self, payload: str) -> None:
        self._connection.execute("SELECT pg_notify(%s, %s)", (self._channel, payload))

"""PostgreSQL by psycopg: what a transaction sends goes out together, so that it costs one round trip.

The statements go through psycopg's layer over libpq (`psycopg.pq`), not through its cursors. A cursor flushes every
statement of a pipeline by itself, which makes the server work on each alone and costs four times the CPU here
(measured); and it takes a statement for prepared that the server skipped in a failed pipeline (psycopg 3.3).
"""

import contextlib
import itertools
import logging
import os
import re
import select
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, TransactionStatus

from outlast.store.statements import Again, DatabaseError, DialectName, Lost, Refused, Row, Rows, Statement, translated

logger = logging.getLogger("outlast.store")

IDLE_IN_TRANSACTION_MS = 5000
"""A frozen worker must not hold rows for longer."""

MAX_PARAMETER_BYTES = 256 << 20
"""PostgreSQL ends the connection that sends it a message of a GiB, and one statement has several parameters."""

CONNECT_ARGUMENTS: dict[str, Any] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "outlast",
    "client_encoding": "UTF8",
}

# serialization failure, deadlock, lock timeout, a racing insert of the same id, and a statement timeout
_AGAIN = ("40001", "40P01", "55P03", "23505", "57014")
_LOST = ("08", "53", "57P", "25P03", "25006", "58")

_BEGIN, _COMMIT, _ROLLBACK = Statement("BEGIN"), Statement("COMMIT"), Statement("ROLLBACK")
# Within the transaction, because behind a transaction pooler a session's settings reach other clients. For the scans
# see `statements._FEW`: right for a table of one page, such a plan would be kept when the table has grown.
_BOUND = Statement(
    "SELECT set_config('idle_in_transaction_session_timeout', :milliseconds, true), "
    "set_config('enable_seqscan', 'off', true)"
)
_NOTIFY = Statement("SELECT pg_notify(:channel, :payload)")

_Key = tuple[bytes, tuple[int, ...]]
"""A statement's text and the types of its parameters."""

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
_UNKNOWN, _BOOLEAN, _BYTES, _INTEGER, _FLOAT = 0, 16, 17, 20, 701
_TYPES: Mapping[type, int] = {bool: _BOOLEAN, int: _INTEGER, float: _FLOAT, bytes: _BYTES}
_LOADERS: Mapping[int, Callable[[bytes], Any]] = {
    _BOOLEAN: lambda text: text == b"t",
    _BYTES: lambda text: bytes.fromhex(text[2:].decode("ascii")),
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((700, _FLOAT), float),
}
"""By the type's number in `pg_type`; everything else is text."""


def _meaning_of_state(state: str) -> type[DatabaseError]:
    if state in _AGAIN:
        return Again
    return Lost if state.startswith(_LOST) else Refused


def meaning(error: Exception) -> type[DatabaseError]:
    """Return what an error of the driver means."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state is None:
        return Lost if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) else Refused
    return _meaning_of_state(state)


_translated = translated(psycopg.Error, meaning)


def _refusal(result: "pq.abc.PGresult") -> DatabaseError:
    state = result.error_field(DiagnosticField.SQLSTATE)
    kind = _meaning_of_state(state.decode()) if state else Lost
    return kind(result.get_error_message("utf-8"))


@cache
def _numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Turn `%(name)s` into `$1`; return the text and the names by number."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PLACEHOLDER.sub(number, text).encode(), tuple(names)


def _dumped(value: Any) -> bytes | None:
    if isinstance(value, Rows):
        value = value.objects
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if not isinstance(value, str | bytes | int | float):
        raise Refused(f"a parameter of type {type(value).__name__}")
    text = value if isinstance(value, bytes) else str(value).encode()
    if len(text) > MAX_PARAMETER_BYTES:
        raise Refused(f"a parameter of {len(text)} bytes; the limit is {MAX_PARAMETER_BYTES}")
    if isinstance(value, bytes):
        return text
    if b"\0" in text:
        raise Refused("PostgreSQL stores no text with a NUL character")  # libpq would cut it off there
    return text


class Sent:
    """The answer of a statement that was sent, or will be with the next `sync` or `commit`."""

    __slots__ = ("_owner", "_result")

    def __init__(self, owner: "PostgresConnection") -> None:
        self._owner = owner
        self._result: pq.abc.PGresult | None = None

    def arrived(self, result: "pq.abc.PGresult") -> None:
        self._result = result

    @property
    def status(self) -> bytes | None:
        """What the server says it did, once it did."""
        return self._result.command_status if self._result is not None else None

    def _arrival(self) -> "pq.abc.PGresult":
        if self._result is None:
            self._owner.sync()
        if self._result is None:
            raise Lost("the statement was not executed")
        return self._result

    def count(self) -> int:
        return self._arrival().command_tuples or 0

    def rows(self) -> list[Row]:
        result = self._arrival()
        loaders = [_LOADERS.get(result.ftype(column), bytes.decode) for column in range(result.nfields)]
        return [_row(result, row, loaders) for row in range(result.ntuples)]


def _row(result: "pq.abc.PGresult", row: int, loaders: list[Callable[[bytes], Any]]) -> Row:
    values = [result.get_value(row, column) for column in range(len(loaders))]
    return tuple([None if value is None else load(value) for value, load in zip(values, loaders, strict=True)])


class _Preparation:
    """The answer to the preparation of a statement, which has its name only when the server says so."""

    __slots__ = ("_key", "_name", "_prepared")

    def __init__(self, prepared: dict[_Key, bytes], key: _Key, name: bytes) -> None:
        self._prepared, self._key, self._name = prepared, key, name

    def arrived(self, _result: "pq.abc.PGresult") -> None:
        self._prepared[self._key] = self._name


def is_pooled(connection: "psycopg.Connection[Any]") -> bool:
    """Say whether a pooler such as PgBouncer stands before the database: it makes up the process number.

    Each transaction may then be with another server process, so nothing may be left in one: no prepared statement and
    no LISTEN.
    """
    backend = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return backend != (connection.info.backend_pid,)


def interrupt(connection: "psycopg.Connection[Any]") -> None:
    """End, from another thread, what waits for the server; never raises."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


class PostgresConnection:
    """One connection to PostgreSQL; for `pooled` see `is_pooled`."""

    dialect: DialectName = "postgresql"

    def __init__(self, arguments: dict[str, Any], schema: str) -> None:
        self._arguments = {**CONNECT_ARGUMENTS, **arguments}
        self.schema = schema
        self._channel = f"outlast_{schema}"[:63]
        self._names = itertools.count()
        self._connect()

    @_translated
    def _connect(self) -> None:
        self._connection = psycopg.connect(**self._arguments, autocommit=True)
        try:
            self.pooled = is_pooled(self._connection)
        except psycopg.Error:
            self.close()
            raise
        self._libpq = self._connection.pgconn
        self._poll = select.poll()
        self._prepared: dict[_Key, bytes] = {}
        self._preparing: dict[_Key, bytes] = {}
        self._awaited: list[Sent | _Preparation] = []
        self._in_transaction = False

    def begin(self) -> None:
        self._in_transaction = True
        self._queue(_BEGIN, {})
        self._queue(_BOUND, {"milliseconds": str(IDLE_IN_TRANSACTION_MS)})

    def send(self, statement: Statement, **parameters: Any) -> Sent:
        sent = self._queue(statement, parameters)
        if not self._in_transaction:
            self.sync()
        return sent

    def commit(self) -> None:
        sent = self._queue(_COMMIT, {})
        self._in_transaction = False
        self.sync()
        if sent.status != b"COMMIT":
            raise Lost(f"COMMIT answered {sent.status!r}")

    def rollback(self) -> None:
        self._in_transaction = False
        # An error among what still waits makes the server skip this ROLLBACK; the next one is alone.
        for _ in range(2):
            if self._libpq.transaction_status == TransactionStatus.IDLE and not self._awaited:
                return
            with contextlib.suppress(DatabaseError):
                self._queue(_ROLLBACK, {})
                self.sync()
        if self._libpq.transaction_status != TransactionStatus.IDLE:
            self.close()

    @_translated
    def _queue(self, statement: Statement, parameters: Mapping[str, Any]) -> Sent:
        """Hand a statement to libpq, which keeps it until `sync`."""
        text, names = _numbered(statement.render("postgresql", self.schema))
        values = [parameters[name] for name in names]
        if not self._libpq.pipeline_status:
            self._libpq.enter_pipeline_mode()
        types = tuple([_TYPES.get(type(value), _UNKNOWN) for value in values])
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        dumped = [_dumped(value) for value in values]
        if self.pooled:
            self._libpq.send_query_params(text, dumped, types, formats)
        else:
            key = text, types
            name = self._prepared.get(key) or self._preparing.get(key) or self._prepare(key)
            self._libpq.send_query_prepared(name, dumped, formats)
        sent = Sent(self)
        self._awaited.append(sent)
        return sent

    def _prepare(self, key: _Key) -> bytes:
        name = self._preparing[key] = b"outlast_%d" % next(self._names)
        text, types = key
        self._libpq.send_prepare(name, text, types)
        self._awaited.append(_Preparation(self._prepared, key, name))
        return name

    @_translated
    def sync(self) -> None:
        """Send what waits and take every answer. Raises the first error; what came after it was not executed."""
        awaited, self._awaited = self._awaited, []
        if not awaited:
            return
        self._preparing.clear()
        self._libpq.pipeline_sync()
        failed: pq.abc.PGresult | None = None
        for waiting in awaited:
            result = self._result()
            if result is None:
                raise Lost("the connection was lost")
            if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                waiting.arrived(result)
            elif failed is None:
                failed = result
            while self._result() is not None:
                pass
        if failed is None or self._libpq.status == ConnStatus.OK:
            self._result()
            self._libpq.exit_pipeline_mode()
        if failed is not None:
            raise _refusal(failed)

    def _result(self) -> "pq.abc.PGresult | None":
        """Wait for the next answer; None ends the answers of one statement."""
        while (unsent := self._libpq.flush()) or self._libpq.is_busy():
            self._poll.register(self._libpq.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            self._poll.poll()
            self._libpq.consume_input()
        return self._libpq.get_result()

    def close(self) -> None:
        self._connection.close()

    def reconnect(self) -> None:
        self.close()
        self._connect()

    def interrupt(self) -> None:
        interrupt(self._connection)

    def listen(self) -> None:
        if self.pooled:
            logger.warning(
                "there is a pooler before the database: what other workers do is noticed by polling; "
                "a direct connection is faster"
            )
            return
        self.send(Statement(f'LISTEN "{self._channel}"'))

    @_translated
    def notifications(self, timeout: float) -> list[str]:
        """Return what was notified within `timeout` seconds; returns as soon as there is something."""
        return [found.payload for found in self._connection.notifies(timeout=timeout, stop_after=1)]

    def notify(self, payload: str) -> None:
        self.send(_NOTIFY, channel=self._channel, payload=payload)

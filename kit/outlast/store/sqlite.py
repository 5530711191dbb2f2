"""SQLite: WAL, synchronous FULL, `BEGIN IMMEDIATE` as the fence, and an own wait for the write lock.

SQLite's busy timeout backs off up to 100 ms and is unfair between processes (measured: p99 of 0.9 s with two
writers), so the write lock is tried every half millisecond instead.
"""

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from outlast.core import jsontext
from outlast.store.statements import (
    PLACEHOLDER,
    Again,
    DatabaseError,
    DialectName,
    Lost,
    Refused,
    Row,
    Rows,
    Statement,
    translated,
)

LOCK_RETRY_SECONDS = 0.0005
LOCK_TIMEOUT_SECONDS = 30.0
READ_BUSY_TIMEOUT_SECONDS = 10.0

MOST_BOUND_ROWS = 512
"""More rows are passed as one JSON text, which is slower and has no limit."""

STATEMENTS = 256
"""Prepared statements a connection keeps; each statement has one text for every power of two of rows."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LOST = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def prepare(connection: sqlite3.Connection, *, durable: bool) -> None:
    """Set what every connection needs; also used for the connections of SQLAlchemy's pool."""
    _patiently(lambda: connection.execute("PRAGMA journal_mode = WAL"))
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    connection.execute(f"PRAGMA busy_timeout = {int(READ_BUSY_TIMEOUT_SECONDS * 1000)}")


def meaning(error: Exception) -> type[DatabaseError]:
    """Return what an error of the driver means."""
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(code, int):
        return Lost if "closed database" in str(error) else Refused
    if code & 0xFF in _BUSY:
        return Again
    return Lost if code & 0xFF in _LOST else Refused


_translated = translated(sqlite3.Error, meaning)


def _size(rows: Rows) -> int:
    """Return how many rows the text of the statement has, or 0 for JSON."""
    count = max(len(rows.items), 1)
    return 0 if count > MOST_BOUND_ROWS else 1 << (count - 1).bit_length()


def _bound(rows: Rows) -> Iterator[Any]:
    size = _size(rows)
    if size == 0:
        return iter([jsontext.encode(rows.items)])
    missing = (size - len(rows.items)) * len(rows.columns)
    return chain(chain.from_iterable(rows.items), repeat(None, missing))


@cache
def _positional(text: str, shapes: tuple[tuple[str, tuple[str, ...], int], ...]) -> tuple[str, tuple[str, ...]]:
    """Turn `:name` into `?` or a table; return the text and the names in order."""
    tables = {name: _table(columns, size) for name, columns, size in shapes}
    order = tuple(found[1] for found in PLACEHOLDER.finditer(text))
    return PLACEHOLDER.sub(lambda found: tables.get(found[1], "?"), text), order


def _table(columns: tuple[str, ...], size: int) -> str:
    if size == 0:
        fields = ", ".join(f"value ->> {index} AS {name}" for index, name in enumerate(columns))
        return f"(SELECT {fields} FROM json_each(?))"
    fields = ", ".join(f"column{index} AS {name}" for index, name in enumerate(columns, 1))
    row = f"({', '.join('?' * len(columns))})"
    return f"(SELECT {fields} FROM (VALUES {', '.join([row] * size)}) WHERE column1 IS NOT NULL)"


class Done:
    """The rows of a statement that was executed at once."""

    __slots__ = ("_cursor", "_rows")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._rows: list[Row] = cursor.fetchall()

    def rows(self) -> list[Row]:
        return self._rows

    def count(self) -> int:
        return self._cursor.rowcount


class SQLiteConnection:
    dialect: DialectName = "sqlite"

    def __init__(self, path: Path, *, durable: bool) -> None:
        self._path, self._durable = path, durable
        self._connection = self._open()

    @_translated
    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=READ_BUSY_TIMEOUT_SECONDS,
            cached_statements=STATEMENTS,
        )  # fmt: skip
        prepare(connection, durable=self._durable)
        connection.execute("PRAGMA busy_timeout = 0")
        return connection

    @_translated
    def begin(self) -> None:
        _patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))

    @_translated
    def send(self, statement: Statement, **parameters: Any) -> Done:
        shapes = tuple([
            (name, value.columns, _size(value)) for name, value in parameters.items() if isinstance(value, Rows)
        ])  # fmt: skip
        text, order = _positional(statement.render("sqlite", None), shapes)
        bound: list[Any] = []
        for name in order:
            value = parameters[name]
            if isinstance(value, Rows):
                bound.extend(_bound(value))
            else:
                bound.append(value)
        return Done(self._connection.execute(text, bound))

    def sync(self) -> None:
        pass

    @_translated
    def commit(self) -> None:
        _patiently(lambda: self._connection.execute("COMMIT"))

    def rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()

    def close(self) -> None:
        self._connection.close()

    def reconnect(self) -> None:
        self.close()
        self._connection = self._open()

    def notify(self, payload: str) -> None:
        pass

    def listen(self) -> None:
        pass

    def notifications(self, timeout: float) -> list[str]:
        return []


def _patiently(step: Callable[[], object]) -> None:
    """Repeat `step` while another connection holds the lock it needs."""
    give_up = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        try:
            step()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > give_up:
                raise
            time.sleep(LOCK_RETRY_SECONDS * (0.5 + random.random()))

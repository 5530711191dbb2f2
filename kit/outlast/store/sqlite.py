"""SQLite: WAL, synchronous FULL, `BEGIN IMMEDIATE` as the fence, and an own wait for the write lock.

SQLite's busy timeout backs off up to 100 ms and is unfair between processes (measured: p99 of 0.9 s with two
writers), so the write lock is tried every half millisecond instead.
"""

import random
import sqlite3
import time
from collections.abc import Callable, Iterable
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

_Shape = tuple[tuple[str, ...], int]

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_LOST = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def prepare(connection: sqlite3.Connection, *, durable: bool) -> None:
    """Set what every connection needs; also used for the connections of SQLAlchemy's pool."""
    _patiently(connection.execute, "PRAGMA journal_mode = WAL")
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


def _shape(rows: Rows | None) -> _Shape | None:
    """Return the columns, and how many rows the text of the statement has, or 0 for JSON."""
    if rows is None:
        return None
    count = len(rows.items)
    if count <= 1:
        return rows.columns, 1
    return rows.columns, 0 if count > MOST_BOUND_ROWS else 1 << (count - 1).bit_length()


def _bound(rows: Rows, shape: _Shape) -> Iterable[Any]:
    columns, size = shape
    if size == len(rows.items) == 1:
        return rows.items[0]
    if size == 0:
        return [jsontext.encode(rows.items)]
    return chain(chain.from_iterable(rows.items), repeat(None, (size - len(rows.items)) * len(columns)))


@cache
def _positional(text: str, rows: _Shape | None, values: _Shape | None) -> tuple[str, tuple[str, ...]]:
    """Turn `:name` into `?` or a table; return the text and the names in order."""
    tables = {name: _table(*shape) for name, shape in (("rows", rows), ("values", values)) if shape is not None}
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
        _patiently(self._connection.execute, "BEGIN IMMEDIATE")

    @_translated
    def send(self, statement: Statement, **parameters: Any) -> Done:
        shapes = {name: _shape(parameters.get(name)) for name in ("rows", "values")}
        text, order = _positional(statement.render("sqlite", None), **shapes)
        bound: list[Any] = []
        for name in order:
            if (shape := shapes.get(name)) is not None:
                bound.extend(_bound(parameters[name], shape))
            else:
                bound.append(parameters[name])
        return Done(self._connection.execute(text, bound))

    def sync(self) -> None:
        pass

    @_translated
    def commit(self) -> None:
        _patiently(self._connection.execute, "COMMIT")

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

    def interrupt(self) -> None:
        pass  # no wait is without an end

    def notify(self, payload: str) -> None:
        pass

    def listen(self) -> None:
        pass

    def notifications(self, timeout: float) -> list[str]:
        return []


def _patiently(execute: Callable[[str], object], step: str) -> None:
    """Execute `step` again and again while another connection holds the lock it needs."""
    give_up = None
    while True:
        try:
            execute(step)
            return
        except sqlite3.OperationalError as error:
            give_up = give_up or time.monotonic() + LOCK_TIMEOUT_SECONDS
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > give_up:
                raise
            time.sleep(LOCK_RETRY_SECONDS * (0.5 + random.random()))

"""One SQL text for both databases: a statement is written once and rendered for the dialect that runs it.

Placeholders are `:name`. `{rows}` is the statement's input: a list of JSON objects passed as one text parameter
`:rows`, so that a batch of any size is one statement and one parameter.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from outlast.core import jsontext

DialectName = Literal["sqlite", "postgresql"]
Row = tuple[Any, ...]

_PLACEHOLDER = re.compile(r"(?<![:\w]):(\w+)")
_FRAGMENTS: Mapping[DialectName, Mapping[str, str]] = {
    "sqlite": {
        "now": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
        "share": "",
        "update": "",
        "skip": "",
    },
    "postgresql": {
        "now": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)",
        "share": "FOR SHARE",
        "update": "FOR UPDATE",
        "skip": "FOR UPDATE SKIP LOCKED",
    },
}


@dataclass(frozen=True)
class Statement:
    """A statement for both databases; `columns` names the fields of `{rows}` with their PostgreSQL types."""

    text: str
    columns: Mapping[str, str] | None = None

    def render(self, dialect: DialectName, schema: str | None) -> str:
        """Return the text in the driver's own placeholder style."""
        return _render(self.text, tuple((self.columns or {}).items()), dialect, schema)


@cache
def _render(text: str, columns: tuple[tuple[str, str], ...], dialect: DialectName, schema: str | None) -> str:
    prefix = f'"{schema}".' if schema else ""
    rendered = text.format(p=prefix, rows=_rows(columns, dialect), values=_values(dialect), **_FRAGMENTS[dialect])
    if dialect == "sqlite":
        return rendered
    return _PLACEHOLDER.sub(r"%(\1)s", rendered.replace("%", "%%"))


def _rows(columns: tuple[tuple[str, str], ...], dialect: DialectName) -> str:
    if dialect == "sqlite":
        fields = ", ".join(f"value ->> '{name}' AS {name}" for name, _ in columns)
        return f"(SELECT {fields} FROM json_each(:rows))"
    fields = ", ".join(f"{name} {type_}" for name, type_ in columns)
    names = ", ".join(name for name, _ in columns)
    return f"(SELECT {names} FROM json_to_recordset(CAST(:rows AS json)) AS _({fields}, {_FEW}) WHERE few IS NULL)"


def _values(dialect: DialectName) -> str:
    """A list of integers passed as the JSON text `:values`; the column is `value`."""
    if dialect == "sqlite":
        return "(SELECT value ->> 'value' AS value FROM json_each(:values))"
    return f"(SELECT value FROM json_to_recordset(CAST(:values AS json)) AS _(value bigint, {_FEW}) WHERE few IS NULL)"


# A plan is made once and kept, often while the tables are nearly empty. PostgreSQL takes a list of JSON for 100 rows,
# and would read a small table as a whole to join them, and go on so when the table has grown. The field is never
# there, so the condition always holds; the planner, which cannot know, expects one row, and looks up by index.
_FEW = "few boolean"


def rows(items: Sequence[Mapping[str, Any]]) -> str:
    """Return the parameter for `{rows}`."""
    return jsontext.encode(items)


def values(numbers: Iterable[int]) -> str:
    """Return the parameter for `{values}`."""
    return jsontext.encode([{"value": number} for number in numbers])


class DatabaseError(Exception):
    """A transaction failed; it is rolled back or to be rolled back. The cause is the driver's error."""


class Lost(DatabaseError):
    """The connection is gone, or the database cannot write now: the outcome of a commit under way is unknown."""


class Again(DatabaseError):
    """A lock, a deadlock or a race: nothing was committed, and the same transaction may succeed."""


class Refused(DatabaseError):
    """The statement itself is refused; repeating it is useless."""


P = ParamSpec("P")
T = TypeVar("T")


def translated(
    driver_error: type[Exception], meaning: Callable[[Exception], type[DatabaseError]]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a method raise DatabaseErrors instead of its driver's."""

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except driver_error as error:
                raise meaning(error)(str(error)) from error

        return wrapped

    return decorate


class Pending(Protocol):
    """The answer of a sent statement; reading it may wait for the database."""

    def rows(self) -> list[Row]: ...


class Connection(Protocol):
    """One database connection used by one thread. Every method but `rollback` and `close` may raise DatabaseErrors."""

    dialect: DialectName

    def begin(self) -> None:
        """Open a write transaction; on SQLite it is the fence."""

    def send(self, statement: Statement, **parameters: Any) -> Pending:
        """Run a statement of the open transaction, or queue it for the next `sync`."""
        ...

    def sync(self) -> None:
        """Wait until everything sent was executed."""

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """End a failed transaction; never raises."""

    def close(self) -> None:
        """Close; never raises."""

    def reconnect(self) -> None:
        """Close and open again."""

    def notify(self, payload: str) -> None:
        """Send a hint to the other processes, outside any transaction; a no-op where commits can be watched."""

    def listen(self) -> None:
        """Begin to receive hints; a no-op where commits can be watched."""

    def notifications(self, timeout: float) -> list[str]:
        """Return the hints of the next `timeout` seconds, as soon as there is one."""
        ...


def query(connection: Connection, statement: Statement, **parameters: Any) -> list[Row]:
    """Run one statement and return its rows."""
    return connection.send(statement, **parameters).rows()

"""One SQL text for both databases: a statement is written once and rendered for the dialect that runs it.

Placeholders are `:name`. `{rows}` is a table that comes with the statement, so that a batch of any size is one
statement: one JSON text on PostgreSQL, bound values on SQLite, which would take thrice as long to read the JSON.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from outlast.core import jsontext

DialectName = Literal["sqlite", "postgresql"]
Row = tuple[Any, ...]

PLACEHOLDER = re.compile(r"(?<![:\w]):(\w+)")
_VALUE = (("value", "bigint"),)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
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


def now(dialect: DialectName) -> str:
    """Return the SQL for the database's time."""
    return _FRAGMENTS[dialect]["now"]


@dataclass(frozen=True)
class Statement:
    """A statement for both databases; `columns` are the fields of `{rows}` with their PostgreSQL types."""

    text: str
    columns: Mapping[str, str] | None = None

    def render(self, dialect: DialectName, schema: str | None) -> str:
        """Return the text in the driver's own placeholder style."""
        return _render(self.text, tuple((self.columns or {}).items()), dialect, schema)


@cache
def _render(text: str, columns: tuple[tuple[str, str], ...], dialect: DialectName, schema: str | None) -> str:
    prefix = f'"{schema}".' if schema else ""
    if dialect == "sqlite":
        return text.format(p=prefix, rows=":rows", values=":values", **_FRAGMENTS[dialect])
    rows, values = _recordset("rows", columns), _recordset("values", _VALUE)
    rendered = text.format(p=prefix, rows=rows, values=values, **_FRAGMENTS[dialect])
    return PLACEHOLDER.sub(r"%(\1)s", rendered.replace("%", "%%"))


def _recordset(parameter: str, columns: Iterable[tuple[str, str]]) -> str:
    fields = ", ".join(f"{name} {type_}" for name, type_ in columns)
    names = ", ".join(name for name, _ in columns)
    return (
        f"(SELECT {names} FROM json_to_recordset(CAST(:{parameter} AS json)) AS _({fields}, {_FEW}) WHERE few IS NULL)"
    )


# A plan is made once and kept, often while the tables are nearly empty. PostgreSQL takes a list of JSON for 100 rows,
# and would read a small table as a whole to join them, and go on so when the table has grown. The field is never
# there, so the condition always holds; the planner, which cannot know, expects one row, and looks up by index.
_FEW = "few boolean"


class Rows:
    """The parameter for `{rows}`: `items` are tuples in the order of `columns`, and the first field is never None."""

    def __init__(self, columns: Iterable[str], items: Sequence[Row]) -> None:
        self.columns, self.items = tuple(columns), items

    @cached_property
    def objects(self) -> str:
        """The rows as JSON text: one object each."""
        return jsontext.encode([dict(zip(self.columns, item, strict=True)) for item in self.items])


def values(numbers: Iterable[int]) -> Rows:
    """Return the parameter for `{values}`, a table of integers whose column is `value`."""
    return Rows(["value"], [(number,) for number in numbers])


def label(text: str) -> str:
    """Return a text that models or clients made up as a column of its own can hold it.

    JSON text holds NUL and lone surrogates; in a column PostgreSQL refuses the one, and both databases the other.
    """
    return _UNSTORABLE.sub("\ufffd", text)


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

    def count(self) -> int:
        """How many rows an INSERT without RETURNING stored."""
        ...


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

"""JSON objects by namespace and key: what agents keep for longer than a session, for frameworks that have a store.

A namespace is a list of labels, kept as JSON text, so that what is below one is what begins with its text. A change is
one or more statements that need no answer: in a run they are part of a write under its lease.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection as PooledConnection
from sqlalchemy import Select, and_, literal_column, or_, select

from outlast.core import jsontext
from outlast.store.grouped import LEASE, Part
from outlast.store.statements import Connection, DialectName, Statement, now, query, values
from outlast.store.tables import documents
from outlast.store.words import ONE, WordIndex, owner

Submit = Callable[[str, Callable[[Connection], Any]], "asyncio.Future[Any]"]

READ_AT_ONCE = 500


class Place(NamedTuple):
    """What names a document. `namespace` is JSON text of a list."""

    principal: str
    namespace: str
    key: str


class StoredDocument(NamedTuple):
    """One stored document. `namespace` and `value` are JSON text; a `score` has what was found by its words."""

    number: int
    namespace: str
    key: str
    value: str
    ttl_ms: int | None
    created_at: int
    updated_at: int
    score: float | None = None


_UNDER_LEASE = f"EXISTS (SELECT 1 FROM {{p}}invocations v WHERE {LEASE})"
_KEY = "d.principal = :principal AND d.namespace = :namespace AND d.key = :key"


class _Changes:
    """The statements, each under the same condition."""

    def __init__(self, condition: str) -> None:
        self.words = WordIndex(
            "document_words", f"SELECT d.number FROM {{p}}documents d WHERE {_KEY} AND {condition}"
        )  # fmt: skip
        self.put = Statement(
            """
            INSERT INTO {p}documents (principal, namespace, key, value, ttl_ms, expires_at, created_at, updated_at)
            SELECT CAST(:principal AS text), CAST(:namespace AS text), CAST(:key AS text), CAST(:value AS text),
                CAST(:ttl_ms AS bigint), {now} + CAST(:ttl_ms AS bigint), {now}, {now}
            WHERE """
            + condition
            + """
            ON CONFLICT (principal, namespace, key) DO UPDATE SET value = excluded.value, ttl_ms = excluded.ttl_ms,
                expires_at = excluded.expires_at, updated_at = excluded.updated_at,
                created_at = CASE WHEN documents.expires_at <= excluded.updated_at THEN excluded.created_at
                    ELSE documents.created_at END
            """
        )
        self.delete = Statement(
            "DELETE FROM {p}documents WHERE principal = :principal AND namespace = :namespace AND key = :key AND "
            + condition
        )


_IN_RUN, _OUTSIDE = _Changes(_UNDER_LEASE), _Changes("true")


def put(place: Place, value: str, *, ttl_ms: int | None, text: str, dialect: DialectName, in_run: bool) -> list[Part]:
    """Store a document, to be found by the words of `text`."""
    changes = _IN_RUN if in_run else _OUTSIDE
    key = place._asdict()
    made = [
        Part("document", changes.put, {**key, "value": value, "ttl_ms": ttl_ms}),
        Part("document", changes.words.forget(dialect), key),
    ]
    if text:
        learn, parameters = changes.words.learn(dialect, owner(place.principal), text)
        made.append(Part("document", learn, {**key, **parameters}))
    return made


def delete(place: Place, *, dialect: DialectName, in_run: bool) -> list[Part]:
    """Remove a document, if it is there."""
    changes = _IN_RUN if in_run else _OUTSIDE
    statements = (changes.words.forget(dialect), changes.delete)
    return [Part("document", statement, place._asdict()) for statement in statements]


class DocumentChanges:
    """The writing verbs outside of runs. Each future resolves after its commit."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    def change(self, parts: Sequence[Part]) -> "asyncio.Future[None]":
        """Do changes in one transaction."""

        def send(connection: Connection) -> None:
            for part in parts:
                connection.send(part.statement, **part.parameters)

        return self._submit("document", send)

    def touch(self, numbers: Sequence[int]) -> "asyncio.Future[None]":
        """Let documents live on for as long as they were given at first."""
        return self._submit("document", lambda connection: _touch(connection, numbers))

    def remove_expired(self, *, limit: int) -> "asyncio.Future[int]":
        """Remove a batch of documents whose time is over, of everybody; return how many."""
        return self._submit("document", lambda connection: _remove_expired(connection, limit))


_TOUCH = Statement(
    """
    UPDATE {p}documents SET expires_at = {now} + ttl_ms
    WHERE ttl_ms IS NOT NULL AND number IN (SELECT f.value FROM {values} f)
    """
)
_EXPIRED = Statement("SELECT number FROM {p}documents WHERE expires_at <= {now} ORDER BY expires_at LIMIT :limit")
_FORGET_ALL = Statement("DELETE FROM document_words WHERE rowid IN (SELECT f.value FROM {values} f)")
_DELETE_ALL = Statement("DELETE FROM {p}documents WHERE number IN (SELECT f.value FROM {values} f)")


def _touch(connection: Connection, numbers: Sequence[int]) -> None:
    connection.send(_TOUCH, values=values(numbers))


def _remove_expired(connection: Connection, limit: int) -> int:
    numbers = [number for (number,) in query(connection, _EXPIRED, limit=limit)]
    if numbers:
        if connection.dialect == "sqlite":
            connection.send(_FORGET_ALL, values=values(numbers))
        connection.send(_DELETE_ALL, values=values(numbers))
    return len(numbers)


_DOCUMENTS = select(
    documents.c.number, documents.c.namespace, documents.c.key, documents.c.value, documents.c.ttl_ms,
    documents.c.created_at, documents.c.updated_at,
)  # fmt: skip


def read(connection: PooledConnection, places: Sequence[Place]) -> list[StoredDocument | None]:
    """Return documents in the order asked for; None for one that is not there, or whose time is over."""
    found = []
    for place in places:
        named = _alive(connection, _DOCUMENTS).where(
            documents.c.principal == place.principal, documents.c.namespace == place.namespace,
            documents.c.key == place.key,
        )  # fmt: skip
        row = connection.execute(named).first()
        found.append(None if row is None else StoredDocument._make((*row, None)))
    return found


def search(
    connection: PooledConnection,
    principal: str,
    prefix: Sequence[str],
    *,
    text: str,
    keep: Callable[[str], bool] | None,
    offset: int,
    limit: int,
) -> list[StoredDocument]:
    """Return documents in a namespace and below: those with a word of `text` first, the best first, then the newest.

    `keep` says by its value whether a document counts.
    """
    found: list[StoredDocument] = []
    for document in _ordered(connection, principal, prefix, text, offset + limit if keep is None else READ_AT_ONCE):
        if keep is None or keep(document.value):
            found.append(document)
            if len(found) >= offset + limit:
                break
    return found[offset:]


def _ordered(
    connection: PooledConnection, principal: str, prefix: Sequence[str], text: str, at_once: int
) -> Iterator[StoredDocument]:
    matched: set[int] = set()
    below = _below(prefix)
    scores = _OUTSIDE.words.scores(connection, owner(principal), text, documents, below)
    if scores is not None:
        best = scores.subquery()
        ranked = _alive(connection, _DOCUMENTS.add_columns(best.c.score)).join(
            best, best.c.number == documents.c.number
        )
        ranked = ranked.order_by(best.c.score.desc(), documents.c.updated_at.desc(), documents.c.number.desc())
        for row in _paged(connection, ranked, at_once):
            matched.add(row[0])
            yield StoredDocument._make((*row[:-1], int(row[-1]) / ONE))
    every = _alive(connection, _DOCUMENTS).where(documents.c.principal == principal, *below)
    every = every.order_by(documents.c.updated_at.desc(), documents.c.number.desc())
    for row in _paged(connection, every, at_once + len(matched)):
        if row[0] not in matched:
            yield StoredDocument._make((*row, None))


def namespaces(connection: PooledConnection, principal: str, prefix: Sequence[str]) -> list[list[str]]:
    """Return every namespace that has documents, from `prefix` on."""
    named = select(documents.c.namespace).where(documents.c.principal == principal, *_below(prefix)).distinct()
    return [jsontext.decode(text) for text in connection.execute(_alive(connection, named)).scalars()]


def _below(prefix: Sequence[str]) -> list[Any]:
    """Return the condition for a namespace and all below it, as ranges, for the index."""
    if not prefix:
        return []
    begin = jsontext.encode(list(prefix))[:-1]
    # What is below goes on with a comma, whose successor is the hyphen.
    inside = and_(documents.c.namespace >= f"{begin},", documents.c.namespace < f"{begin}-")
    return [or_(documents.c.namespace == f"{begin}]", inside)]


def _alive(connection: PooledConnection, found: Select[Any]) -> Select[Any]:
    here: DialectName = "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
    return found.where(or_(documents.c.expires_at.is_(None), documents.c.expires_at > literal_column(now(here))))


def _paged(connection: PooledConnection, found: Select[Any], at_once: int) -> Iterator[Any]:
    start = 0
    while rows := connection.execute(found.limit(at_once).offset(start)).all():
        yield from rows
        if len(rows) < at_once:
            return
        start += at_once

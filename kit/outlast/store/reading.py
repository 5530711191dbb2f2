"""Reads, on pooled connections in threads of their own: no reader holds a connection while it waits."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection as PooledConnection
from sqlalchemy import Engine, Select, Text, and_, func, literal_column, or_, select
from sqlalchemy import cast as sa_cast
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outlast.core import jsontext
from outlast.core.errors import StoreError, StoreUnavailable
from outlast.core.records import (
    Approval,
    ApprovalStatus,
    Call,
    CallState,
    Event,
    Invocation,
    Status,
    StoredItem,
    StoredSession,
)
from outlast.store import approvals as decisions
from outlast.store import bounded, checkpoints, overview
from outlast.store import documents as kept
from outlast.store import invocations as life
from outlast.store import items as histories
from outlast.store import memories as remembered
from outlast.store import sessions as conversations
from outlast.store.checkpoints import Checkpoint
from outlast.store.documents import Place, StoredDocument
from outlast.store.memories import Key, StoredMemory
from outlast.store.overview import Overview, WorkerState
from outlast.store.parts import Pages
from outlast.store.statements import DatabaseError, Refused
from outlast.store.tables import beats, events, heads, invocations, journal, sessions, workers
from outlast.store.url import StoreURL
from outlast.store.workers import WorkerRow
from outlast.store.writer import CLOSE_SECONDS

logger = logging.getLogger("outlast.store")

READERS = 4
"""Threads, and connections, that read."""

EVENTS_BYTES = 1 << 20
"""Bytes of events read at once, about: a reader that is behind must not cost much memory."""

LIST_BYTES = 8 << 20
"""Bytes of what runs were given and returned, read at once for a list, about: one run may have 64 MiB of it."""

_LARGE = ("input", "config", "metadata", "output", "error", "interrupt", "usage")

CURSORS_AT_ONCE = 300
"""SQLite refuses an expression of more than 1,000 levels."""

PATIENCE_SECONDS = 0.25
"""Between two tries of a read that runs depend on."""

T = TypeVar("T")

_RECORD = (
    *(invocations.c[name] for name in life.COLUMNS),
    sessions.c.id.label("session_id"),
)
_INVOCATIONS = select(*_RECORD).select_from(
    invocations.outerjoin(sessions, sessions.c.number == invocations.c.session_number)
)
# The condition of the index `invocations_listed`; see `tables`.
_LISTED = invocations.c.number > literal_column("0")


@dataclass(frozen=True, slots=True)
class Tail:
    """What a follower of other workers' runs learns at once: new events, and the record when these are its last."""

    events: list[Event]
    final: Invocation | None
    gone: bool = False


@dataclass(slots=True)
class Tails:
    """What was read of several runs. `next` is the run to begin with when there was more than is read at once: the one
    behind the last that was read, so that a run with very much to say keeps no other waiting."""

    runs: dict[int, Tail]
    next: int | None


class Reader:
    """Every read of the store."""

    def __init__(
        self,
        engine: Engine,
        url: StoreURL,
        meaning: Callable[[Exception], type[DatabaseError]],
        interrupt: Callable[[], None],
    ) -> None:
        """`meaning` says of an error of the driver whether the same read may succeed later.

        `interrupt` ends what waits for a database that does not answer.
        """
        self._engine, self._url = engine, url
        self._meaning, self._interrupt = meaning, interrupt
        self._reading: WeakSet[Future[Any]] = WeakSet()
        self._closed = False
        self._pages = Pages()
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="outlast-reader")

    def close(self) -> None:
        """Let the reads that are under way end; what waits for its turn, and what comes later, is refused."""
        self._closed = True
        self._threads.shutdown(wait=False)
        patience = CLOSE_SECONDS
        while wait_for_all(list(self._reading), timeout=patience).not_done:
            self._interrupt()
            patience = 1.0
        self._threads.shutdown(wait=True)
        self._engine.dispose()

    async def _run(self, read: Callable[[PooledConnection], T], *, patient: bool = False) -> T:
        """Read in a thread; with `patient`, wait for a database that does not answer, as writes do."""
        waited = False
        while True:
            try:
                return await self._in_thread(read)
            except StoreUnavailable as error:
                if not patient or self._closed:
                    raise
                if not waited:
                    logger.warning("%s: a run waits for it (%s)", error, error.__cause__)
                waited = True
                await asyncio.sleep(PATIENCE_SECONDS)

    def _in_thread(self, read: Callable[[PooledConnection], T]) -> "asyncio.Future[T]":
        try:
            reading = self._threads.submit(self._read, read)
            self._reading.add(reading)
            return asyncio.wrap_future(reading)
        except RuntimeError:  # there are no threads any more
            raise _closed() from None

    def _read(self, read: Callable[[PooledConnection], T]) -> T:
        """Read once, and once more on a fresh connection when a pooled one turned out dead."""
        for last in (False, True):
            if self._closed:
                raise _closed()
            try:
                with self._engine.connect() as connection:
                    return read(connection)
            except PoolTimeout as error:
                raise StoreUnavailable("the store is too busy to be read; try again") from error
            except DBAPIError as error:
                if isinstance(error.orig, Exception) and self._meaning(error.orig) is Refused:
                    logger.error("the database refused a read: %s", error.orig)
                    raise StoreError("the database refused a read; see the log") from error
                if last:
                    raise StoreUnavailable("the database cannot be read; try again") from error
                self._engine.dispose()
        raise AssertionError("unreachable")

    async def invocation(self, principal: str, id: str) -> Invocation | None:
        query = _INVOCATIONS.where(invocations.c.principal == principal, invocations.c.id == id)
        return await self._run(lambda connection: _one(connection, query))

    async def listed(
        self,
        principal: str,
        *,
        session_id: str | None,
        status: Status | None,
        agent: str | None,
        metadata: Mapping[str, str],
        before: int | None,
        limit: int,
    ) -> list[Invocation]:
        """Newest first, below the number `before`: up to `limit`, or until they are `plenty`; at least one."""
        query = _INVOCATIONS.where(invocations.c.principal == principal, _LISTED)
        if session_id is not None:
            query = query.where(sessions.c.id == session_id)
        if status is not None:
            query = query.where(invocations.c.status == status)
        if agent is not None:
            query = query.where(invocations.c.agent == agent)
        if before is not None:
            query = query.where(invocations.c.number < before)
        for key, value in metadata.items():
            query = query.where(_labelled(self._engine, invocations.c.metadata, key, value))
        query = query.order_by(invocations.c.number.desc()).limit(limit)
        return await self._run(
            lambda connection: [
                life.invocation(tuple(row)) for row in bounded.rows(connection, query, *_LARGE, max_bytes=LIST_BYTES)
            ]
        )

    async def unfinished(self, principal: str, session_id: str) -> Invocation | None:
        """Return the oldest run of a session that is not final."""
        query = (
            _INVOCATIONS.where(
                sessions.c.principal == principal,
                sessions.c.id == session_id,
                invocations.c.status.in_([Status.QUEUED, Status.RUNNING]),
            )
            .order_by(invocations.c.number)
            .limit(1)
        )
        return await self._run(lambda connection: _one(connection, query))

    async def unfinished_before(self, invocation: Invocation) -> list[str]:
        """Return the ids of what was accepted earlier in the session and is not final: the newest first."""
        query = (
            select(invocations.c.id)
            .where(
                invocations.c.session_number == invocation.session_number,
                invocations.c.number < invocation.number,
                invocations.c.status.in_([Status.QUEUED, Status.RUNNING]),
            )
            .order_by(invocations.c.number.desc())
        )
        return await self._run(lambda connection: list(connection.execute(query).scalars()))

    async def events(
        self, number: int, *, after: int, limit: int, max_bytes: int = EVENTS_BYTES, patient: bool = False
    ) -> list[Event]:
        """Return the next events, up to `limit`, and not many more bytes of them than `max_bytes`; at least one."""
        query = (
            select(events.c.position, events.c.attempt, events.c.at, events.c.event)
            .where(events.c.invocation_number == number, events.c.position > after)
            .order_by(events.c.position)
            .limit(limit)
        )
        return await self._run(
            lambda connection: [
                Event._make(row) for row in bounded.rows(connection, query, "event", max_bytes=max_bytes)
            ],
            patient=patient,
        )

    async def last_position(self, number: int, *, patient: bool = False) -> int:
        query = select(func.coalesce(func.max(events.c.position), 0)).where(events.c.invocation_number == number)
        return await self._run(lambda connection: int(connection.execute(query).scalar_one()), patient=patient)

    async def tails(
        self, cursors: Mapping[int, int], *, limit: int, first: int = 0, max_bytes: int = EVENTS_BYTES
    ) -> Tails:
        """Read what is new behind each cursor, for all followed runs at once, from the run `first` on and around.

        Returns up to `limit` events, and not many more bytes of them than `max_bytes`; at least one.
        """
        tails = Tails({}, None)
        numbers = sorted(cursors, key=lambda number: (number < first, number))
        for start in range(0, len(numbers), CURSORS_AT_ONCE):
            some = {number: cursors[number] for number in numbers[start : start + CURSORS_AT_ONCE]}
            read = partial(_tails, cursors=some, first=first, limit=limit, max_bytes=max_bytes)
            found, last = await self._run(read, patient=True)
            tails.runs.update(found)
            texts = [event.text for tail in found.values() for event in tail.events]
            limit, max_bytes = limit - len(texts), max_bytes - sum(map(len, texts))
            if last is not None and (limit <= 0 or max_bytes <= 0):
                tails.next = last + 1
                break
        return tails

    async def calls(self, scope: str) -> list[Call]:
        query = _calls().where(journal.c.scope == scope).order_by(journal.c.created_at, journal.c.key)
        return await self._run(lambda connection: [_call(row) for row in connection.execute(query)], patient=True)

    async def call(self, scope: str, key: str) -> Call | None:
        query = _calls().where(journal.c.scope == scope, journal.c.key == key)

        def read(connection: PooledConnection) -> Call | None:
            row = connection.execute(query).first()
            return None if row is None else _call(row)

        return await self._run(read, patient=True)

    async def approvals(self, scope: str, keys: Sequence[str]) -> list[Approval]:
        """Read what was, or is, to be decided in a history, by its keys there."""
        return await self._run(lambda connection: decisions.of_keys(connection, scope, keys), patient=True)

    async def undecided(self, scope: str, *, limit: int) -> list[Approval]:
        """Read what nobody decided in a history, open or closed, newest first."""
        return await self._run(lambda connection: decisions.undecided(connection, scope, limit), patient=True)

    async def approvals_listed(
        self,
        principal: str,
        *,
        status: ApprovalStatus | None,
        session_id: str | None,
        before: int | None,
        limit: int,
    ) -> list[Approval]:
        """Newest first, of every session, below the number `before`."""
        return await self._run(
            lambda connection: decisions.listed(
                connection, principal, status=status, session_id=session_id, before=before, limit=limit
            )
        )

    async def head(self, scope: str, namespace: str) -> str | None:
        query = select(heads.c.checkpoint).where(heads.c.scope == scope, heads.c.namespace == namespace)
        return await self._run(lambda connection: connection.execute(query).scalar_one_or_none(), patient=True)

    async def heads(self, scope: str) -> list[str]:
        """Name the namespaces of a history that go on from a checkpoint."""
        query = select(heads.c.namespace).where(heads.c.scope == scope).order_by(heads.c.namespace)
        return list(await self._run(lambda connection: connection.execute(query).scalars().all(), patient=True))

    async def checkpoint(self, scope: str, namespace: str, id: str | None = None) -> Checkpoint | None:
        """Read a checkpoint with its pending writes, in digests; without an id, the head of the namespace."""
        return await self._run(
            lambda connection: checkpoints.read(connection, scope, namespace, id, pages=self._pages), patient=True
        )

    async def checkpoints(
        self,
        scope: str,
        *,
        namespace: str | None = None,
        before: str | None = None,
        behind: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[Checkpoint]:
        """Newest first, with ids below `before`, and behind this id and namespace."""
        return await self._run(
            lambda connection: checkpoints.listed(
                connection, scope, namespace=namespace, before=before, behind=behind, limit=limit, pages=self._pages
            ),
            patient=True,
        )

    async def parts(self, scope: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Read what checkpoints name by digests."""
        return await self._run(lambda connection: checkpoints.contents(connection, scope, digests), patient=True)

    async def checkpointed(self, principal: str) -> list[str]:
        """Read the ids of the sessions that have checkpoints, the newest first."""
        query = (
            select(sessions.c.id)
            .where(
                sessions.c.principal == principal,
                select(heads.c.scope).where(heads.c.scope == "s" + sa_cast(sessions.c.number, Text)).exists(),
            )
            .order_by(sessions.c.number.desc())
        )
        return await self._run(lambda connection: list(connection.execute(query).scalars()))

    async def session_number(self, principal: str, id: str) -> int | None:
        query = select(sessions.c.number).where(sessions.c.principal == principal, sessions.c.id == id)
        return await self._run(lambda connection: connection.execute(query).scalar_one_or_none(), patient=True)

    async def session(self, principal: str, id: str, *, patient: bool = False) -> StoredSession | None:
        return await self._run(lambda connection: conversations.read(connection, principal, id), patient=patient)

    async def sessions(
        self,
        principal: str,
        *,
        agent: str | None = None,
        actor_id: str | None = None,
        parent_id: str | None = None,
        labels: Mapping[str, str],
        before: int | None,
        limit: int,
    ) -> list[StoredSession]:
        """Newest first, below the number `before`."""
        labelled = [_labelled(self._engine, sessions.c.labels, key, value) for key, value in labels.items()]
        return await self._run(
            lambda connection: conversations.listed(
                connection, principal, agent=agent, actor_id=actor_id, parent_id=parent_id, labels=labelled,
                before=before, limit=limit,
            )
        )  # fmt: skip

    async def items(
        self, scope: str, *, after: int | None, newest_first: bool, limit: int, patient: bool = False
    ) -> list[StoredItem]:
        """Read items behind the position `after` in the order asked for; at least one, and about a MiB of them."""
        return await self._run(
            lambda connection: histories.read(connection, scope, after=after, newest_first=newest_first, limit=limit),
            patient=patient,
        )

    async def last_item(self, scope: str) -> int:
        """Read the highest position that was ever given out in a history."""
        return await self._run(lambda connection: histories.last(connection, scope), patient=True)

    async def memory(self, key: Key) -> StoredMemory | None:
        return await self._run(lambda connection: remembered.read(connection, key))

    async def memories(
        self,
        principal: str,
        actor_id: str,
        *,
        path: str | None,
        prefix: str,
        session_id: str | None,
        after: tuple[str, str] | None,
        limit: int,
    ) -> list[StoredMemory]:
        """By path and session, behind those of `after`."""
        return await self._run(
            lambda connection: remembered.listed(
                connection, principal, actor_id, path=path, prefix=prefix, session_id=session_id, after=after,
                limit=limit,
            )
        )  # fmt: skip

    async def found_memories(
        self, principal: str, actor_id: str, text: str, *, session_id: str | None, limit: int
    ) -> list[tuple[StoredMemory, float]]:
        """The best first, each with its score."""
        return await self._run(
            lambda connection: remembered.search(
                connection, principal, actor_id, text, session_id=session_id, limit=limit
            )
        )

    async def documents(self, places: Sequence[Place]) -> list[StoredDocument | None]:
        """Read documents in the order asked for."""
        return await self._run(lambda connection: kept.read(connection, places), patient=True)

    async def found_documents(
        self,
        principal: str,
        prefix: Sequence[str],
        *,
        text: str,
        keep: Callable[[str], bool] | None,
        offset: int,
        limit: int,
    ) -> list[StoredDocument]:
        """The best for a text first, then the newest; see `documents.search`."""
        return await self._run(
            lambda connection: kept.search(
                connection, principal, prefix, text=text, keep=keep, offset=offset, limit=limit
            ),
            patient=True,
        )

    async def namespaces(self, principal: str, prefix: Sequence[str]) -> list[list[str]]:
        """Read every namespace of documents, from `prefix` on."""
        return await self._run(lambda connection: kept.namespaces(connection, principal, prefix), patient=True)

    async def overview(self) -> Overview:
        """Count what there is, over all principals."""
        return await self._run(lambda connection: overview.read(connection, self._url))

    async def working(self) -> Sequence[WorkerState]:
        """Read the workers with what they hold."""
        return await self._run(lambda connection: overview.working(connection, self._url))

    async def old(self, *, status: Status, age_ms: int) -> int:
        """Count the invocations that became `status` more than `age_ms` ago."""
        return await self._run(lambda connection: overview.old(connection, self._url, status, age_ms))

    async def workers(self) -> list[WorkerRow]:
        query = select(
            workers.c.id, workers.c.host, workers.c.pid, workers.c.lock_file, workers.c.claims,
            workers.c.started_at,
            beats.c.counter, beats.c.stalled, beats.c.at,
        ).join(beats, beats.c.worker_id == workers.c.id).order_by(workers.c.started_at, workers.c.id)  # fmt: skip
        return await self._run(lambda connection: [WorkerRow(*row) for row in connection.execute(query)])


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed")


def plenty(listed: Sequence[Invocation]) -> bool:
    """Say whether a list may be shorter than was asked for because of its bytes."""
    return sum(len(getattr(run, name) or "") for run in listed for name in _LARGE) >= LIST_BYTES


def _one(connection: PooledConnection, query: Select[Any]) -> Invocation | None:
    row = connection.execute(query).first()
    return None if row is None else life.invocation(tuple(row))


def _labelled(engine: Engine, labels: Any, key: str, value: str) -> Any:
    """Look for the label in the stored text: a quote inside a string is escaped there, so it matches nothing else.

    (The JSON functions of PostgreSQL fail on a NUL in any label of any row.)
    """
    label = jsontext.encode({key: value})[1:-1]
    find = func.instr if engine.dialect.name == "sqlite" else func.strpos
    return or_(*(find(labels, before + label) > 0 for before in "{,"))


def _tails(
    connection: PooledConnection, *, cursors: Mapping[int, int], first: int, limit: int, max_bytes: int
) -> tuple[dict[int, Tail], int | None]:
    """Return the tails, and the run of the last event."""
    known = select(invocations.c.number, invocations.c.status, invocations.c.last_position)
    # What is final first: it has no event behind the ones read next.
    there = connection.execute(known.where(invocations.c.number.in_(list(cursors)))).all()
    found: dict[int, list[Event]] = {number: [] for number in cursors}
    last: int | None = None
    for row in bounded.rows(connection, _behind(cursors, first, limit), "event", max_bytes=max_bytes):
        last = row[0]
        found[last].append(Event._make(row[1:]))
    reached = {number: events[-1].position if events else cursors[number] for number, events in found.items()}
    # Of the others the records are not read: they hold inputs and outputs, and it may take many readings to the end.
    ended = [number for number, status, end in there if Status(status).final and reached[number] >= end]
    records = connection.execute(_INVOCATIONS.where(invocations.c.number.in_(ended))) if ended else ()
    final = {row[0]: life.invocation(tuple(row)) for row in records}
    gone = cursors.keys() - {number for number, *_ in there}
    return {number: Tail(events, final.get(number), number in gone) for number, events in found.items()}, last


def _behind(cursors: Mapping[int, int], first: int, limit: int) -> Select[Any]:
    behind: Sequence[Any] = [
        and_(events.c.invocation_number == number, events.c.position > after) for number, after in cursors.items()
    ]
    return (
        select(events.c.invocation_number, events.c.position, events.c.attempt, events.c.at, events.c.event)
        .where(or_(*behind))
        .order_by(events.c.invocation_number < first, events.c.invocation_number, events.c.position)
        .limit(limit)
    )


def _calls() -> Select[Any]:
    return select(
        journal.c.scope, journal.c.key, journal.c.state, journal.c.invocation_number, journal.c.epoch,
        journal.c.token, journal.c.call_id, journal.c.name, journal.c.arguments, journal.c.outcome,
        journal.c.started_position, journal.c.finished_position,
    )  # fmt: skip


def _call(row: Any) -> Call:
    scope, key, state, *rest = row
    return Call(scope, key, CallState(state), *rest)

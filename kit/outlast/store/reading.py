"""Reads, on pooled connections in threads of their own: no reader holds a connection while it waits."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import JSON, Engine, Select, and_, cast, func, or_, select
from sqlalchemy import Connection as PooledConnection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from outlast.core.errors import StoreError, StoreUnavailable
from outlast.core.records import Call, CallState, Event, Invocation, Status
from outlast.store import invocations as life
from outlast.store.tables import beats, events, heads, invocations, journal, sessions, workers
from outlast.store.workers import WorkerRow

READERS = 4
"""Threads, and connections, that read."""

T = TypeVar("T")

_RECORD = (
    *(invocations.c[name] for name in life.COLUMNS),
    sessions.c.id,
)
_INVOCATIONS = select(*_RECORD).select_from(
    invocations.outerjoin(sessions, sessions.c.number == invocations.c.session_number)
)


@dataclass(frozen=True, slots=True)
class Tail:
    """What a follower of other workers' runs learns at once: new events, and the record when it is final."""

    events: list[Event]
    final: Invocation | None


class Reader:
    """Every read of the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="outlast-reader")

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._engine.dispose()

    async def _run(self, read: Callable[[PooledConnection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)

    def _read(self, read: Callable[[PooledConnection], T]) -> T:
        """Read once, and once more on a fresh connection when a pooled one turned out dead."""
        for last in (False, True):
            try:
                with self._engine.connect() as connection:
                    return read(connection)
            except PoolTimeout as error:
                raise StoreUnavailable("the store is too busy to be read; try again") from error
            except OperationalError as error:
                if last:
                    raise StoreUnavailable("the database cannot be read; try again") from error
                self._engine.dispose()
            except DBAPIError as error:
                raise StoreError("the database refused a read; see the log") from error
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
        """Newest first, below the number `before`."""
        query = _INVOCATIONS.where(invocations.c.principal == principal)
        if session_id is not None:
            query = query.where(sessions.c.id == session_id)
        if status is not None:
            query = query.where(invocations.c.status == status)
        if agent is not None:
            query = query.where(invocations.c.agent == agent)
        if before is not None:
            query = query.where(invocations.c.number < before)
        for key, value in metadata.items():
            query = query.where(_label(self._engine, key) == value)
        query = query.order_by(invocations.c.number.desc()).limit(limit)
        return await self._run(lambda connection: [life.invocation(tuple(row)) for row in connection.execute(query)])

    async def events(self, number: int, *, after: int, limit: int) -> list[Event]:
        query = (
            select(events.c.position, events.c.attempt, events.c.at, events.c.event)
            .where(events.c.invocation_number == number, events.c.position > after)
            .order_by(events.c.position)
            .limit(limit)
        )
        return await self._run(lambda connection: [Event(*row) for row in connection.execute(query)])

    async def last_position(self, number: int) -> int:
        query = select(func.coalesce(func.max(events.c.position), 0)).where(events.c.invocation_number == number)
        return await self._run(lambda connection: int(connection.execute(query).scalar_one()))

    async def tails(self, cursors: Mapping[int, int], *, limit: int) -> dict[int, Tail]:
        """Read what is new behind each cursor, for all followed runs at once."""
        numbers = list(cursors)

        def read(connection: PooledConnection) -> dict[int, Tail]:
            finals = _INVOCATIONS.where(
                invocations.c.number.in_(numbers), invocations.c.status.not_in([Status.QUEUED, Status.RUNNING])
            )
            # The final records first: whoever is final has no event behind the ones read next.
            final = {row[0]: life.invocation(tuple(row)) for row in connection.execute(finals)}
            found: dict[int, list[Event]] = {number: [] for number in numbers}
            for number, *event in connection.execute(_behind(cursors, limit)):
                found[number].append(Event(*event))
            return {number: Tail(found[number], final.get(number)) for number in numbers}

        return await self._run(read)

    async def calls(self, scope: str) -> list[Call]:
        query = _calls().where(journal.c.scope == scope).order_by(journal.c.created_at, journal.c.key)
        return await self._run(lambda connection: [_call(row) for row in connection.execute(query)])

    async def call(self, scope: str, key: str) -> Call | None:
        query = _calls().where(journal.c.scope == scope, journal.c.key == key)

        def read(connection: PooledConnection) -> Call | None:
            row = connection.execute(query).first()
            return None if row is None else _call(row)

        return await self._run(read)

    async def head(self, scope: str, namespace: str) -> str | None:
        query = select(heads.c.checkpoint).where(heads.c.scope == scope, heads.c.namespace == namespace)
        return await self._run(lambda connection: connection.execute(query).scalar_one_or_none())

    async def workers(self) -> list[WorkerRow]:
        query = select(
            workers.c.id, workers.c.host, workers.c.pid, workers.c.lock_file, workers.c.started_at,
            beats.c.counter, beats.c.stalled, beats.c.at,
        ).join(beats, beats.c.worker_id == workers.c.id).order_by(workers.c.started_at, workers.c.id)  # fmt: skip
        return await self._run(lambda connection: [WorkerRow(*row) for row in connection.execute(query)])


def _one(connection: PooledConnection, query: Select[Any]) -> Invocation | None:
    row = connection.execute(query).first()
    return None if row is None else life.invocation(tuple(row))


def _label(engine: Engine, key: str) -> Any:
    if engine.dialect.name == "sqlite":
        return func.json_extract(invocations.c.metadata, '$."' + key.replace('"', '\\"') + '"')
    return func.json_extract_path_text(cast(invocations.c.metadata, JSON), key)


def _behind(cursors: Mapping[int, int], limit: int) -> Select[Any]:
    behind: Sequence[Any] = [
        and_(events.c.invocation_number == number, events.c.position > after) for number, after in cursors.items()
    ]
    return (
        select(events.c.invocation_number, events.c.position, events.c.attempt, events.c.at, events.c.event)
        .where(or_(*behind))
        .order_by(events.c.invocation_number, events.c.position)
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

"""The store: every verb that reads or writes the database. No row and no connection leaves this package."""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from outlast.core.errors import StoreSetupError, StoreUnavailable
from outlast.core.records import Invocation, Outcome, Request
from outlast.store import invocations as life
from outlast.store import sqlite, workers
from outlast.store.documents import DocumentChanges
from outlast.store.grouped import Accept, Accepted, Finish, Finished, Part, Write
from outlast.store.invocations import Cancelled
from outlast.store.memories import MemoryChanges
from outlast.store.migrate import current, migrate, require_current
from outlast.store.reading import READERS, Reader
from outlast.store.sessions import SessionChanges
from outlast.store.sqlite import SQLiteConnection
from outlast.store.statements import Connection, DatabaseError, Row
from outlast.store.threads import ThreadChanges
from outlast.store.url import StoreURL, parse
from outlast.store.writer import Call, Writer, seen_once

logger = logging.getLogger("outlast.store")

POOL_TIMEOUT_SECONDS = 10


class Store:
    """One process's access to the database: a writer thread, and readers apart.

    `read` has the reading verbs, `sessions`, `memories`, `documents` and `threads` those that change them outside of runs. The writing verbs return futures that resolve after their commit; they are
    `asyncio` futures of the loop that opened the store.
    """

    def __init__(self, url: StoreURL, engine: Engine, writer: Writer) -> None:
        self.url = url
        self.read = Reader(engine, url, _meaning(url), _interrupter(url, engine))
        self.sessions = SessionChanges(self._call)
        self.memories = MemoryChanges(self._call)
        self.threads = ThreadChanges(self._call)
        self.documents = DocumentChanges(self._call)
        self._engine = engine
        self._writer = writer
        writer.abandoned = self.read.close

    @classmethod
    async def open(cls, url: str, *, upgrade: bool = True) -> "Store":
        """Open the database at `url` and bring its schema up to date. Raise StoreSetupError with the way out.

        Without `upgrade` nothing is made or changed, and a store that is not there or not up to date is refused.
        """
        loop = asyncio.get_running_loop()
        try:
            parsed = parse(url, create=upgrade)
            engine = await loop.run_in_executor(None, _prepared, parsed, upgrade)
            connection = await loop.run_in_executor(None, _connect, parsed)
        except DBAPIError as error:
            raise StoreSetupError(f"the store cannot be opened: {error.orig}") from error
        except (DatabaseError, OSError) as error:
            raise StoreSetupError(f"the store cannot be opened: {error}") from error
        return cls(parsed, engine, Writer(connection, loop))

    async def close(self) -> None:
        """Commit what waits and close every connection."""
        await self._writer.close()
        await asyncio.get_running_loop().run_in_executor(None, self.read.close)
        if self.url.path is not None and not self.url.durable:
            shutil.rmtree(self.url.path.parent, ignore_errors=True)

    @property
    def worker(self) -> str | None:
        """The worker under whose leases this store writes."""
        return self._writer.me

    @worker.setter
    def worker(self, id: str | None) -> None:
        self._writer.me = id

    @staticmethod
    async def revision(url: str) -> str | None:
        """Return the revision of the schema at `url`, None for a database without our tables. Makes nothing.

        Raises StoreSetupError as `open` does.
        """
        return await asyncio.get_running_loop().run_in_executor(None, _revision, parse(url, create=False))

    async def check_writable(self) -> None:
        """Write something and take it back. Raise StoreUnavailable, and do not wait, when the database refuses."""
        await asyncio.get_running_loop().run_in_executor(None, _try_to_write, self.url)

    def connect(self) -> Connection:
        """Open a connection of its own, for a thread that must not wait for the writer. Blocks."""
        return _connect(self.url)

    def accept(
        self, request: Request, *, lease: bool, timeout_seconds: float | None = None
    ) -> "asyncio.Future[Accepted]":
        """Store a request; with `lease`, start it on this worker if its session is free.

        `timeout_seconds` is for a request that has no time limit of its own; 0 means that there is none. The future raises Conflict, Gone, or StoreError.
        """
        return self._writer.submit(Accept(request, lease, timeout_seconds))

    def write(
        self,
        number: int,
        epoch: int,
        *,
        events: Sequence[tuple[int, int, str]] = (),
        parts: Sequence[Part] = (),
        progress: bool = False,
        told: Callable[[bool], None] | None = None,
    ) -> "asyncio.Future[list[list[Row]]]":
        """Store events (position, attempt, JSON text) and parts under a lease, in one transaction.

        `told` is called on the loop with whether it was stored, in the order of commits, before the future resolves. The
        future raises LeaseLost when the lease is gone; then nothing was stored.
        """
        return self._writer.submit(Write(number, epoch, events, parts, progress, told))

    def finish(
        self, number: int, epoch: int, session_number: int | None, outcome: Outcome
    ) -> "asyncio.Future[Finished]":
        """Make an invocation final and let the next one of its session start. The future raises LeaseLost."""
        return self._writer.submit(Finish(number, epoch, session_number, outcome))

    def claim(self, **options: Any) -> "asyncio.Future[list[Invocation]]":
        """Lease ready runs; see `invocations.claim`."""
        me = self._writer.me
        return self._call("claim", lambda connection: life.claim(connection, me=me or "", **options))

    def hand_back(self, number: int, epoch: int, *, entered: bool) -> "asyncio.Future[None]":
        """Give a run back to the queue, uncharged."""
        me = self._writer.me or ""
        return self._call(
            "hand_back",
            lambda connection: life.hand_back(connection, me=me, number=number, epoch=epoch, entered=entered),
        )

    def cancel(self, principal: str, id: str) -> "asyncio.Future[Cancelled]":
        """End a run that nobody began, have any other be stopped. The future raises NotFound."""
        outcome = life.cancelled_outcome("cancelled")
        return self._call(
            "cancel", lambda connection: life.cancel(connection, principal=principal, id=id, outcome=outcome)
        )

    def expire(self, number: int, epoch: int, reason: str) -> "asyncio.Future[Cancelled | None]":
        """Take a run that does not stop away from its holder and end it."""
        outcome = life.cancelled_outcome(reason)
        return self._call(
            "expire", lambda connection: life.expire(connection, number=number, epoch=epoch, outcome=outcome)
        )

    def delete(self, principal: str, id: str, *, keep_ms: int) -> "asyncio.Future[None]":
        """Remove a final invocation. The future raises NotFound or Conflict (`not_final`)."""
        delete = seen_once(lambda connection: life.delete(connection, principal=principal, id=id, keep_ms=keep_ms))
        return self._call("delete", delete)

    def remove_old(self, **options: Any) -> "asyncio.Future[int]":
        """Remove a batch of old invocations; see `invocations.remove_old`."""
        return self._call("delete", lambda connection: life.remove_old(connection, **options))

    def register(
        self, *, id: str, host: str, pid: int, lock_file: str | None, claims: Sequence[str] = ()
    ) -> "asyncio.Future[None]":
        """Add a worker, which takes queued runs of the agents `claims` by itself."""
        return self._call(
            "register",
            lambda connection: workers.register(
                connection, id=id, host=host, pid=pid, lock_file=lock_file, claims=claims
            ),
        )

    def deregister(self, id: str) -> "asyncio.Future[None]":
        return self._call("hand_back", lambda connection: workers.deregister(connection, id=id))

    def notify(self, payload: str) -> "asyncio.Future[None]":
        """Send a hint to the other processes of this database."""
        return self._writer.submit(Call("", lambda connection: connection.notify(payload)))

    def _call(self, point: str, function: Callable[[Connection], Any]) -> "asyncio.Future[Any]":
        return self._writer.submit(Call(point, function))


def _prepared(url: StoreURL, upgrade: bool) -> Engine:
    engine = _engine(url)
    try:
        if upgrade:
            migrate(engine, url.schema)
        else:
            require_current(engine, url.schema)
        if not url.is_sqlite:
            _warn_of_weak_commits(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _revision(url: StoreURL) -> str | None:
    engine = _engine(url)
    try:
        return current(engine, url.schema)
    except DBAPIError as error:
        raise StoreSetupError(f"the store cannot be opened: {error.orig}") from error
    finally:
        engine.dispose()


def _try_to_write(url: StoreURL) -> None:
    try:
        connection = _connect(url)
        try:
            connection.begin()
            workers.try_to_write(connection)
            connection.sync()
        finally:
            connection.rollback()
            connection.close()
    except DatabaseError as error:
        raise StoreUnavailable(f"the store cannot be written: {error}") from error


def _warn_of_weak_commits(engine: Engine) -> None:
    with engine.connect() as connection:
        level = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
        standbys = connection.exec_driver_sql("SHOW synchronous_standby_names").scalar_one()
        followed = connection.exec_driver_sql("SELECT count(*) FROM pg_stat_replication").scalar_one()
    if level == "off":
        logger.warning("synchronous_commit is %r: a crash of the database may lose what was already accepted", level)
    if followed and not standbys:
        logger.warning("the standby is asynchronous: a failover may lose what was already accepted")


def _engine(url: StoreURL) -> Engine:
    options: dict[str, Any] = {"pool_size": READERS, "max_overflow": 0, "pool_timeout": POOL_TIMEOUT_SECONDS}
    try:
        if not url.is_sqlite:
            options["connect_args"] = _connect_arguments(url)
        engine = create_engine(url.sqlalchemy, isolation_level="AUTOCOMMIT", **options)
    except ModuleNotFoundError as error:
        raise StoreSetupError("PostgreSQL needs its driver: pip install 'outlast[postgres]'") from error
    if not url.is_sqlite:
        from outlast.store.postgres import is_pooled

        @event.listens_for(engine, "connect")
        def prepare_nothing_behind_a_pooler(connection: Any, _record: object) -> None:
            if is_pooled(connection):
                connection.prepare_threshold = None

        return engine.execution_options(schema_translate_map={None: url.schema})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        sqlite.prepare(connection, durable=url.durable)

    return engine


def _interrupter(url: StoreURL, engine: Engine) -> Callable[[], None]:
    """Return what ends every wait for the database of an engine's connections."""
    if url.is_sqlite:
        return lambda: None
    from outlast.store import postgres

    used: WeakSet[Any] = WeakSet()
    event.listen(engine, "checkout", lambda connection, *_: used.add(connection))

    def interrupt() -> None:
        with contextlib.suppress(RuntimeError):  # one was added meanwhile; whoever waits interrupts again
            for connection in used:
                postgres.interrupt(connection)

    return interrupt


def _connect_arguments(url: StoreURL) -> dict[str, Any]:
    """Return what every connection is made with where the URL does not say otherwise."""
    from outlast.store.postgres import CONNECT_ARGUMENTS

    return {name: value for name, value in CONNECT_ARGUMENTS.items() if name not in url.sqlalchemy.query}


def _meaning(url: StoreURL) -> Callable[[Exception], type[DatabaseError]]:
    if url.is_sqlite:
        return sqlite.meaning
    from outlast.store import postgres

    return postgres.meaning


def _connect(url: StoreURL) -> Connection:
    if url.path is not None:
        return SQLiteConnection(url.path, durable=url.durable)
    # psycopg is an extra: it is imported where a PostgreSQL URL was given, and nowhere else.
    from outlast.store.postgres import PostgresConnection

    _, arguments = _engine(url).dialect.create_connect_args(url.sqlalchemy)
    assert url.schema is not None
    return PostgresConnection(dict(arguments), url.schema)

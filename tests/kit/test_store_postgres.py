"""What only PostgreSQL can do wrong: prepared statements, and plans that are kept."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

psycopg = pytest.importorskip("psycopg")

from outlast.core.errors import StoreError
from outlast.core.records import Outcome, Request, Status
from outlast.store import Store
from outlast.store.postgres import PostgresConnection
from outlast.store.statements import DatabaseError, Statement, query
from outlast.testing.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

Make = Callable[..., Request]
USED = Statement("SELECT CAST(:number AS int) + 1")
TIMES_UNTIL_PREPARED = 5
"""By a cursor of the driver; the store prepares at the first use."""
MANY = 2000
FILL_SESSIONS = """
    INSERT INTO outlast.sessions (principal, id, agent, actor_id, created_at, last_activity)
    SELECT 'local', 'filling ' || n, 'a', 'local', 0, 0 FROM generate_series(1, %s) n
"""
FILL_INVOCATIONS = """
    INSERT INTO outlast.invocations (principal, id, session_number, agent, kind, fingerprint, input, config, metadata,
        status, ready, epoch, attempt, created_at)
    SELECT 'local', gen_random_uuid(), s.number, 'a', 'message', '', '', '', '{}',
        CASE n %% 2 WHEN 0 THEN 'queued' ELSE 'completed' END, false, 0, 0, 0
    FROM generate_series(1, %s) n JOIN outlast.sessions s ON s.id = 'filling ' || n
"""


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def connection(postgres_url: str) -> Iterator[PostgresConnection]:
    opened = PostgresConnection({"conninfo": postgres_url.replace("+psycopg", "")}, "outlast")
    yield opened
    opened.close()


def _use(connection: PostgresConnection, times: int = 1) -> None:
    for number in range(times):
        connection.begin()
        answer = connection.send(USED, number=number)
        connection.commit()
        assert answer.rows() == [(number + 1,)]


@pytest.mark.parametrize("used", range(TIMES_UNTIL_PREPARED + 2))
def test_a_statement_works_after_it_was_skipped_in_a_failed_transaction(
    connection: PostgresConnection, used: int
) -> None:
    _use(connection, used)
    for _ in range(2):
        connection.begin()
        with pytest.raises(DatabaseError):
            connection.send(Statement("SELECT 1 / CAST(:zero AS int)"), zero=0)
            connection.send(USED, number=1)
            connection.commit()
        connection.rollback()
    _use(connection, TIMES_UNTIL_PREPARED + 2)


def test_a_rollback_without_an_error_keeps_the_connection(connection: PostgresConnection) -> None:
    (before,) = query(connection, Statement("SELECT pg_backend_pid()"))
    connection.begin()
    connection.send(USED, number=1)
    connection.sync()
    connection.rollback()
    (after,) = query(connection, Statement("SELECT pg_backend_pid()"))
    assert before == after


async def test_connections_that_the_server_ended_while_idle_are_replaced(postgres_url: str, make_request: Make) -> None:
    # BR-50
    store = await Store.open(postgres_url)
    first = (await store.accept(make_request(), lease=False)).invocation
    assert await store.read.invocation(first.principal, first.id)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        assert admin.execute("SELECT count(pg_terminate_backend(pid)) " + others).fetchone() >= (2,)
    second = (await store.accept(make_request(), lease=False)).invocation
    assert await store.read.invocation(second.principal, second.id)
    await store.close()


async def test_what_is_too_large_for_the_database_fails_alone(
    postgres_url: str, make_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the connection instead, and the same would be sent again for ever."""
    monkeypatch.setattr("outlast.store.postgres.MAX_PARAMETER_BYTES", 10_000)
    store = await Store.open(postgres_url)
    accepted = [store.accept(make_request(input="x" * size), lease=False) for size in (1, 20_000, 1)]
    assert (await accepted[0]).created
    with pytest.raises(StoreError):
        await accepted[1]
    assert (await accepted[2]).created
    await store.close()


READ = "SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"


async def test_the_rows_read_for_a_run_do_not_grow_with_the_tables(postgres_url: str, make_request: Make) -> None:
    """The plans are made while the tables are nearly empty, and nothing analyses the tables later."""
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
        store = await Store.open(postgres_url)
        await store.register(id="w", host="here", pid=1, lock_file=None)
        store.worker = "w"
        for table in ("invocations", "sessions", "events"):
            admin.execute(f"ALTER TABLE outlast.{table} SET (autovacuum_enabled = false)")
        for number in range(20):
            await _run(store, make_request(f"first {number}"))
        admin.execute(FILL_SESSIONS, [MANY])
        admin.execute(FILL_INVOCATIONS, [MANY])
        admin.execute("SELECT pg_stat_force_next_flush()")
        admin.execute("SELECT pg_stat_reset()")
        for number in range(20):
            await _run(store, make_request(f"last {number}"))
        await store.close()
        # A server process tells what it counted while it ends, which nobody waits for.
        while min((read := dict(admin.execute(READ)))["invocations"], read["sessions"]) < 20:
            await asyncio.sleep(0.05)
    assert read["invocations"] < MANY
    assert read["sessions"] < MANY
    assert read["events"] < MANY


async def _run(store: Store, request: Request) -> None:
    run = (await store.accept(request, lease=True)).invocation
    for position in range(1, 4):
        await store.write(run.number, run.epoch, events=[(position, 1, "{}")])
    await store.finish(run.number, run.epoch, run.session_number, Outcome(Status.COMPLETED, output="{}"))

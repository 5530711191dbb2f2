"""Asking how a session was interrupted is a reading: the rows and the database's own counters of writes say so."""

import contextlib
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import pytest

from outlast import Agent, AgentClient, DurableAgentServer, RunFailed, Tool, open_store
from outlast.adapters import ChatSession
from outlast.adapters.native import CallDelta, Delta, ProviderError, Stopped, TextDelta, ToolSpec
from outlast.client import RemoteSession
from outlast.core.transcript import Message, StopReason
from outlast.sessions import SessionStore
from outlast.store.tables import metadata
from outlast.testing.serving import ServerThread

pytestmark = pytest.mark.anyio

LIVING = frozenset({"beats", "workers"})
"""What a server writes because it lives."""
TIMES = 15
"""Of each of seven sessions."""
GIVE_UP_SECONDS = 30.0


class Watch(Protocol):
    """Looks at a database from outside."""

    def rows(self) -> dict[str, list[Any]]:
        """Return all rows of all tables, but of those that are left out."""
        ...

    def writes(self) -> Any:
        """Return what the database counted of writes, which are complete when nobody else is connected any more."""
        ...


class WatchSqlite:
    """Counts by a trigger a table, and by the version of the file, which every commit that changes it raises."""

    def __init__(self, connection: sqlite3.Connection, left_out: frozenset[str]) -> None:
        self._connection, self._left_out = connection, left_out
        watched = metadata.tables.keys() - left_out
        tables = self._all("SELECT name FROM sqlite_master WHERE type = 'table'")
        assert watched <= {name for (name,) in tables}
        connection.execute("CREATE TABLE written (number integer)")
        for table in watched:
            for change in ("INSERT", "UPDATE", "DELETE"):
                connection.execute(
                    f"CREATE TRIGGER see_{change}_{table} AFTER {change} ON {table} BEGIN INSERT INTO written VALUES (1); END"
                )

    def rows(self) -> dict[str, list[Any]]:
        tables = [name for (name,) in self._all("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: self._all(f'SELECT * FROM "{name}"') for name in tables if name not in self._left_out}

    def writes(self) -> Any:
        version = None if self._left_out else self._all("PRAGMA data_version")
        return self._all("SELECT count(*) FROM written"), version

    def _all(self, query: str) -> list[Any]:
        return self._connection.execute(query).fetchall()


class WatchPostgres:
    """Reads the statistics, which a connection has told all of when it is gone."""

    def __init__(self, connection: Any, left_out: frozenset[str]) -> None:
        self._connection, self._left_out = connection, sorted(left_out)

    def rows(self) -> dict[str, list[Any]]:
        tables = self._all("SELECT schemaname, relname FROM pg_stat_user_tables WHERE relname <> ALL(%s)")
        return {
            name: self._all(f'SELECT ctid, xmin, t.* FROM "{schema}"."{name}" t ORDER BY 1', [])
            for schema, name in tables
        }

    def writes(self) -> Any:
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while self._all(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
            "AND pid <> pg_backend_pid()",
            [],
        ):
            assert time.monotonic() < give_up, "somebody is still connected"
            time.sleep(0.01)
        return self._all(
            "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname <> ALL(%s) ORDER BY 1"
        )

    def _all(self, query: str, parameters: Sequence[Any] | None = None) -> list[Any]:
        found: list[Any] = self._connection.execute(
            query, [self._left_out] if parameters is None else parameters
        ).fetchall()
        return found


@contextmanager
def watching(url: str, left_out: frozenset[str]) -> Iterator[Watch]:
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            yield WatchSqlite(connection, left_out)
        return
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        yield WatchPostgres(connection, left_out)


class Plays:
    """A model that plays answers in order and counts its calls."""

    name = "plays"

    def __init__(self, *answers: Sequence[Delta | Exception]) -> None:
        self.called, self._answers = 0, list(answers)

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        self.called += 1
        for delta in self._answers.pop(0):
            if isinstance(delta, Exception):
                raise delta
            yield delta


BY_HAND: dict[str, list[dict[str, Any]]] = {
    "call_model": [{"role": "user", "content": "a"}],
    "recover_tools": [{"role": "assistant", "tool_calls": [{"id": "c1", "name": "pay", "arguments": "{}"}]}],
    "retry_response": [{"role": "assistant", "content": "hal", "stop_reason": "aborted"}],
    "continue_response": [{"role": "assistant", "content": "The three rea", "stop_reason": "length"}],
    "completed": [{"role": "assistant", "content": "Done."}],
}


async def pay() -> str:
    """Pay."""
    return "paid"


async def interrupted_sessions(url: str, agent: Agent) -> None:
    """Make a session of each kind: by hand, by a run that asks a person, and by one that breaks off."""
    async with open_store(url) as local:
        for id, items in BY_HAND.items():
            await SessionStore(local).create(id)
            await SessionStore(local).append(id, items)
        assert (await agent.session("await_approval", store=local).run("buy")).interrupt is not None
        with pytest.raises(RunFailed):
            await agent.session("broken", store=local).run("say")


@asynccontextmanager
async def conversations(url: str, agent: Agent, way: str) -> AsyncIterator[Any]:
    if way == "in process":
        async with open_store(url) as local:
            yield lambda id: agent.session(id, store=local)
    else:
        with ServerThread(DurableAgentServer(agent, store=url)) as server:
            async with AgentClient(server.url) as client:
                yield client.session


@pytest.mark.parametrize("way", ["in process", "over HTTP"])
async def test_a_hundred_resume_points_write_nothing_and_call_no_model(store_url: str, way: str) -> None:
    # BR-19
    asking: list[Delta | Exception] = [CallDelta(0, "{}", "c1", "pay"), Stopped(StopReason.TOOL_CALLS)]
    model = Plays(asking, [TextDelta("half"), ProviderError("gone")])
    agent = Agent(model, tools=[Tool(pay, needs_approval=True)])
    await interrupted_sessions(store_url, agent)
    with watching(store_url, frozenset() if way == "in process" else LIVING) as watch:
        before = watch.writes(), watch.rows()
        async with conversations(store_url, agent, way) as session:
            for id in (*BY_HAND, "await_approval", "broken"):
                chat: ChatSession | RemoteSession = session(id)
                (point,) = {str(await chat.resume_point()) for _ in range(TIMES)}
                expected = {"completed": "None", "broken": "'half'"}.get(id, f"'{id}'")
                assert expected in point
        assert (watch.writes(), watch.rows()) == before
    assert model.called == 2


async def test_the_watch_sees_a_write(store_url: str) -> None:
    """Else the test above would say nothing."""
    async with open_store(store_url) as local:
        await SessionStore(local).create("s")
    with watching(store_url, LIVING) as watch:
        before = watch.writes(), watch.rows()
        async with open_store(store_url) as local:
            await SessionStore(local).update("s", labels={})
        after = watch.writes(), watch.rows()
    assert after[0] != before[0]
    assert after[1] != before[1]

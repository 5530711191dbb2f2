"""What a turn of a long LangGraph session costs: `StoreSaver` beside LangGraph's own checkpointers, as a table.

`python benchmarks/langgraph_turns.py --turns 500`: the same graph of two steps, a message of 1 KB each way, turn by turn
in alternation, so that the columns share the weather of the machine. Two columns compare checkpointers, by the graph's own
`ainvoke(…, durability="sync")`; a turn of `LangGraphAgent` is a whole durable run, with its log and its record. Bytes are what
the columns of checkpoint tables hold, in kilobytes after the times in milliseconds.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from outlast.adapters import LocalStore, open_store
from outlast.testing.postgres import PostgresServer, PostgresUnavailable
from outlast_langgraph import LangGraphAgent, StoreSaver

MARKS = (10, 40, 80, 160, 320, 500, 1000)
WINDOW = 9
"""Turns up to a mark whose median counts."""
TEXT = "word " * 200

OURS = {
    "checkpoints": ("scope", "namespace", "id", "parent", "body", "metadata"),
    "checkpoint_writes": ("scope", "namespace", "checkpoint_id", "task_id", "channel", "body", "task_path"),
    "checkpoint_parts": ("scope", "digest", "content"),
}
SQLITE = {
    "checkpoints": ("thread_id", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"),
    "writes": ("thread_id", "checkpoint_id", "task_id", "channel", "type", "value"),
}
POSTGRES = {
    "checkpoints": ("thread_id", "checkpoint_id", "parent_checkpoint_id", "checkpoint::text", "metadata::text"),
    "checkpoint_blobs": ("thread_id", "channel", "version", "type", "blob"),
    "checkpoint_writes": ("thread_id", "checkpoint_id", "task_id", "channel", "type", "blob", "task_path"),
}
Tables = dict[str, tuple[str, ...]]


class State(MessagesState):
    count: int


def plan(state: State) -> dict[str, Any]:
    return {"count": len(state["messages"])}


def answer(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(f"{state['count']} {TEXT}", id=uuid.uuid4().hex)]}


def graph(checkpointer: Any = None) -> Any:
    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("answer", answer)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "answer")
    return builder.compile(checkpointer=checkpointer)


Turn = Callable[[str], Awaitable[Any]]


class Rival:
    """One way to run the graph, with the times of its turns."""

    def __init__(self, name: str, turn: Turn, tables: Tables, ask: Callable[[str], Awaitable[int]], size: str) -> None:
        self.name, self._turn, self._tables, self._ask, self._size = name, turn, tables, ask, size
        self._times: list[float] = []

    async def turn(self, text: str) -> None:
        begin = time.perf_counter()
        await self._turn(text)
        self._times.append(1000 * (time.perf_counter() - begin))

    def milliseconds(self) -> float:
        return statistics.median(self._times[-WINDOW:])

    async def kilobytes(self) -> float:
        total = 0
        for table, columns in self._tables.items():
            summed = " + ".join(f"coalesce({self._size.format(column)}, 0)" for column in columns)
            total += await self._ask(f"SELECT coalesce(sum({summed}), 0) FROM {table}")
        return total / 1000


async def rivals(stack: AsyncExitStack, database: str, folder: Path, new_url: Callable[[], str]) -> list[Rival]:
    store = await stack.enter_async_context(open_store(new_url()))
    chat = LangGraphAgent(graph()).session("s", store=store)
    plain = await stack.enter_async_context(open_store(new_url()))
    config = {"configurable": {"thread_id": "s"}}

    def invoked(compiled: Any) -> Turn:
        async def turn(text: str) -> None:
            await compiled.ainvoke({"messages": [HumanMessage(text)]}, config, durability="sync")

        return turn

    if database == "sqlite":
        sqlite = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "official.db")))

        async def ask_sqlite(query: str) -> int:
            async with sqlite.conn.execute(query) as cursor:
                row = await cursor.fetchone()
            return int(row[0]) if row else 0

        size = "length(CAST({} AS BLOB))"
        official = Rival("AsyncSqliteSaver", invoked(graph(sqlite)), SQLITE, ask_sqlite, size)
    else:
        postgres = await stack.enter_async_context(
            AsyncPostgresSaver.from_conn_string(new_url().replace("+psycopg", ""))
        )
        await postgres.setup()

        async def ask_postgres(query: str) -> int:
            found: Any = await postgres.conn.execute(query)  # type: ignore[union-attr]  # one connection, no pool
            row = await found.fetchone()
            return int(next(iter(row.values())))

        size = "octet_length({})"
        official = Rival("AsyncPostgresSaver", invoked(graph(postgres)), POSTGRES, ask_postgres, size)
    alone = invoked(graph(StoreSaver(plain)))
    return [
        official,
        Rival("StoreSaver", alone, OURS, await _asking(plain), size),
        Rival("LangGraphAgent", chat.run, OURS, await _asking(store), size),
    ]


async def _asking(store: LocalStore) -> Callable[[str], Awaitable[int]]:
    opened = await store.store()
    schema = f'"{opened.url.schema}".' if opened.url.schema else ""

    async def ask(query: str) -> int:
        with opened._engine.connect() as connection:
            return int(connection.exec_driver_sql(query.replace("FROM ", f"FROM {schema}")).scalar_one())

    return ask


async def measure(database: str, folder: Path, new_url: Callable[[], str], turns: int) -> None:
    async with AsyncExitStack() as stack:
        all_ = await rivals(stack, database, folder, new_url)
        for number in range(1, turns + 1):
            for rival in all_:
                await rival.turn(f"{number} {TEXT}")
            if number in MARKS:
                cells = [f"{rival.milliseconds():.1f} | {await rival.kilobytes():,.0f}" for rival in all_]
                print(f"| {database} | {number} | {' | '.join(cells)} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure turns of long LangGraph sessions.")
    parser.add_argument("--turns", type=int, default=500, help="turns of the session")
    options = parser.parse_args(arguments)
    print("| database | turn | LangGraph's own, ms | KB | StoreSaver, ms | KB | LangGraphAgent, ms | KB |")
    print("|" + " --- |" * 8)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-")))
        asyncio.run(measure("sqlite", folder, lambda: f"sqlite:///{folder / uuid.uuid4().hex}.db", options.turns))
        try:
            server = stack.enter_context(PostgresServer())
        except PostgresUnavailable as error:
            print(f"without PostgreSQL: {error}", file=sys.stderr)
        else:
            asyncio.run(measure("postgresql", folder, server.create_database, options.turns))


if __name__ == "__main__":
    main()

"""What durability adds to a turn of an agent of the OpenAI Agents SDK, as a table.

`python benchmarks/openai_turns.py --turns 40`: the same agent, whose scripted model calls two tools at once and then answers, turn
by turn in alternation, so that the columns share the weather of the machine: the SDK with nothing kept, with its own
`SQLiteSession`, with a `StoreSession`, and an `OpenAIAgent`, whose turn is a whole durable run. `SQLiteSession` leaves
`synchronous` at the default of SQLite, which must be what outlast sets: FULL. Times are medians in milliseconds; the last
column is that of the ratios of `OpenAIAgent` to `SQLiteSession` in each turn.
"""

import argparse
import asyncio
import contextlib
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled

from outlast.adapters import open_store
from outlast.testing.postgres import PostgresServer, PostgresUnavailable
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession
from outlast_openai.testing import ScriptModel

WARM = 5
"""Turns that do not count."""
FULL = 2
"""The value of `PRAGMA synchronous`."""

Turn = Callable[[], Awaitable[Any]]


@function_tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"It is sunny in {city}."


@function_tool
async def time_of(city: str) -> str:
    """Tell the time."""
    return f"It is noon in {city}."


class Asks(Script):
    """Calls both tools, each time under new ids, as providers do."""

    def answer(self, history: History) -> Say:
        if history[-1]["role"] != "user":
            return Say("Sunny, at noon.")
        names = ("weather", "time_of")
        return Say("Wait.", [ScriptedCall(name, {"city": "Rome"}, f"call_{uuid.uuid4().hex}") for name in names])


def agent() -> Agent[Any]:
    return Agent(name="a", model=ScriptModel(Asks("")), tools=[weather, time_of])


def run_by_sdk(session: Any) -> Turn:
    asked = agent()

    async def turn() -> None:
        result = Runner.run_streamed(asked, "How is Rome?", session=session)
        async for _ in result.stream_events():
            pass
        assert result.final_output == "Sunny, at noon."

    return turn


class Rival:
    """One way to run the agent, with the times of its turns."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.times: list[float] = []

    async def turn(self) -> None:
        begin = time.perf_counter()
        await self._turn()
        self.times.append(1000 * (time.perf_counter() - begin))


async def measure(database: str, folder: Path, url: str, turns: int) -> str:
    path = folder / f"{uuid.uuid4().hex}.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (FULL,)
    own = SQLiteSession("s", path)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        chat = OpenAIAgent(agent()).session("durable", store=store)

        async def durable() -> None:
            assert (await chat.run("How is Rome?")).text == "Sunny, at noon."

        ways = [run_by_sdk(None), run_by_sdk(own), run_by_sdk(StoreSession("s", store)), durable]
        rivals = [Rival(way) for way in ways]
        for number in range(turns):
            # Each begins as often as another, since the first one finds the caches cold.
            for rival in rivals[number % 4 :] + rivals[: number % 4]:
                await rival.turn()
    own.close()
    counted = [rival.times[WARM:] for rival in rivals]
    ratios = [ours / theirs for theirs, ours in zip(counted[1], counted[3], strict=True)]
    cells = " | ".join(f"{statistics.median(times):.1f}" for times in counted)
    quartiles = statistics.quantiles(ratios)
    return f"| {database} | {cells} | {statistics.median(ratios):.2f} ({quartiles[0]:.2f}-{quartiles[2]:.2f}) |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure turns of an agent of the OpenAI Agents SDK.")
    parser.add_argument("--turns", type=int, default=40, help="turns of each session")
    options = parser.parse_args(arguments)
    set_tracing_disabled(True)
    print("| database | no session | SQLiteSession | StoreSession | OpenAIAgent | of SQLiteSession (quartiles) |")
    print("|" + " --- |" * 6)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-")))
        url = f"sqlite:///{folder / 'state.db'}"
        print(asyncio.run(measure("sqlite", folder, url, options.turns)), flush=True)
        try:
            server = stack.enter_context(PostgresServer())
        except PostgresUnavailable as error:
            print(f"without PostgreSQL: {error}", file=sys.stderr)
        else:
            print(asyncio.run(measure("postgresql", folder, server.create_database(), options.turns)), flush=True)


if __name__ == "__main__":
    main()

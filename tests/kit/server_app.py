"""An app for tests that need a server in a process of its own: what a run does is said by its input."""

import asyncio
import os
import sqlite3
import time
from typing import Any

from outlast import DurableAgentServer, EngineSettings, InvocationContext
from outlast.store import sqlite
from outlast.testing.effects import EffectsLog


def shift_clock(seconds: float) -> None:
    """Set the clock of this process wrong: Python's, and SQLite's, which is a worker's own too."""
    right, prepare = time.time, sqlite.prepare
    time.time = lambda: right() + seconds

    def prepare_shifted(connection: sqlite3.Connection, *, durable: bool) -> None:
        prepare(connection, durable=durable)
        connection.create_function("julianday", 1, lambda _: time.time() / 86_400 + 2_440_587.5)

    sqlite.prepare = prepare_shifted


if "TEST_CLOCK_OFFSET" in os.environ:
    shift_clock(float(os.environ["TEST_CLOCK_OFFSET"]))

app = DurableAgentServer(
    settings=EngineSettings(
        beat=float(os.environ.get("TEST_BEAT", EngineSettings().beat)),
        dead_after=float(os.environ.get("TEST_DEAD_AFTER", EngineSettings().dead_after)),
        drain_timeout=float(os.environ.get("TEST_DRAIN", "30")),
        concurrency=int(os.environ.get("TEST_CONCURRENCY", "100")),
    ),
    keep_alive=float(os.environ.get("TEST_KEEP_ALIVE", "15")),
)


@app.invoke
async def invoke(context: InvocationContext) -> Any:
    """Emit `events` events, `every` seconds apart, and return the input; append `effect` to the effects log first."""
    asked = context.input if isinstance(context.input, dict) else {}
    if "effect" in asked:
        EffectsLog(os.environ["TEST_EFFECTS"]).append(asked["effect"])
    for number in range(context.last_position + 1, asked.get("events", 0) + 1):
        await context.emit({"type": "step", "number": number, "text": "x" * asked.get("size", 0)})
        await asyncio.sleep(asked.get("every", 0))
    await asyncio.sleep(asked.get("sleep", 0))
    return {"input": context.input, "attempt": context.attempt}


@app.recover
async def recover(context: InvocationContext) -> Any:
    """Go on where the log ends, without the sleep."""
    asked = context.input if isinstance(context.input, dict) else {}
    for number in range(context.last_position + 1, asked.get("events", 0) + 1):
        await context.emit({"type": "step", "number": number, "text": "x" * asked.get("size", 0)})
    return {"input": context.input, "attempt": context.attempt}

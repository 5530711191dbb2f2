"""The app that is measured: `outlast serve benchmarks/app.py:app`. The `kind` of the input says what a run does."""

import asyncio
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import echo

from outlast import DurableAgentServer, EngineSettings, InvocationContext

app = DurableAgentServer(
    settings=EngineSettings(
        concurrency=int(os.environ.get("BENCH_CONCURRENCY", "100")), state_dir=Path(os.environ["BENCH_STATE_DIR"])
    )
)
gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)


@app.invoke
async def invoke(context: InvocationContext) -> Any:
    match context.input["kind"]:
        case "posted":
            return await posted(context)
        case "hold":
            return await hold(context, **context.input["hold"])
        case "open":
            return gates[context.input["gate"]].set()
        case _:
            return await awaited(context)


@app.recover
async def recover(context: InvocationContext) -> Any:
    return await invoke(context)


async def awaited(context: InvocationContext) -> Any:
    """Each event is committed before the next is made."""
    for number in range(echo.EVENTS):
        await context.emit(echo.event(number))
    return echo.result(context.input["message"])


async def posted(context: InvocationContext) -> Any:
    """The events are committed in order behind the handler's back, and all of them before it ends."""
    for number in range(echo.EVENTS):
        context.post(echo.event(number))
    await context.barrier()
    return echo.result(context.input["message"])


async def hold(context: InvocationContext, *, gate: str, events: int = 0, every: float = 0) -> Any:
    """Wait until the gate is opened, then emit events that tell when they were made."""
    await gates[gate].wait()
    for _ in range(events):
        await context.emit({"at": time.monotonic()})
        await asyncio.sleep(every)
    return events

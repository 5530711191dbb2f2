"""Figures of the engine and the store without HTTP, as JSON.

`python -m benchmarks.in_process URL OTHER_URL FOLDER QUEUED`
"""

import asyncio
import json
import os
import statistics
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from benchmarks import echo
from benchmarks.load import clock

from outlast.core.records import Invocation, Outcome, Request, Status
from outlast.engine import AgentHandlers, Engine, EngineSettings, InvocationContext
from outlast.store import Store

AWAITED = 500
POSTED = 1000
POSTING_RUNS = 10
CLAIMS = 50
SESSION = "the only one"
ME = "bench"


def request(session_id: str | None = None) -> Request:
    return Request.of(principal="local", id=str(uuid.uuid4()), session_id=session_id, agent="a", input={})


async def awaited(context: InvocationContext) -> float:
    begin = clock()
    for number in range(AWAITED):
        await context.emit(echo.event(number))
    return 1000 * (clock() - begin) / AWAITED


async def posted(context: InvocationContext) -> float:
    begin = clock()
    for number in range(POSTED):
        context.post(echo.event(number))
    await context.barrier()
    return POSTED / (clock() - begin)


Handler = Callable[[InvocationContext], Awaitable[Any]]


@asynccontextmanager
async def running(url: str, folder: Path, invoke: Handler) -> AsyncIterator[Engine]:
    """Start an engine on its own store."""
    store = await Store.open(url)
    settings = EngineSettings(state_dir=folder)
    engine = Engine(store, {"a": AgentHandlers(invoke, invoke)}, settings)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
        await store.close()


async def emits(url: str, folder: Path, invoke: Handler, runs: int) -> float:
    """Return the median of what some runs, one after the other, measured in their handler."""
    outputs = []
    async with running(url, folder, invoke) as engine:
        for _ in range(runs + 1):
            final = await engine.wait(await engine.accept(request()))
            outputs.append(float(final.output or "nan"))
    return statistics.median(outputs[1:])


async def claims(url: str, queued: int) -> dict[str, float]:
    """Queue runs in one session, and be the worker that takes one after the other."""
    store = await Store.open(url)
    try:
        await store.register(id=ME, host="here", pid=os.getpid(), lock_file=None)
        store.worker = ME
        await asyncio.gather(*(store.accept(request(SESSION), lease=False) for _ in range(queued)))
        turns, polls = zip(*[await _turn(store) for _ in range(CLAIMS)], strict=True)
        return {"claim": 1000 * statistics.median(turns), "empty_poll": 1000 * statistics.median(polls)}
    finally:
        await store.close()


async def _turn(store: Store) -> tuple[float, float]:
    """Claim the head, look for more while it runs, and finish it; return the seconds of the turn and of the look."""
    begin = clock()
    (head,) = await _claim(store, [])
    claimed = clock()
    assert not await _claim(store, [head.number])
    polled = clock()
    outcome = Outcome(Status.COMPLETED, output="{}")
    await store.finish(head.number, head.epoch, head.session_number, outcome)
    return claimed - begin + clock() - polled, polled - claimed


async def _claim(store: Store, known: Sequence[int]) -> Sequence[Invocation]:
    return await store.claim(agents=["a"], room=16, suspect_room=1, per_principal=0, known=known)


async def main(emit_url: str, claim_url: str, folder: Path, queued: int) -> dict[str, float]:
    return {
        "emit": await emits(emit_url, folder, awaited, 3),
        "post": await emits(emit_url, folder, posted, POSTING_RUNS),
        **await claims(claim_url, queued),
    }


if __name__ == "__main__":
    _, emit_url, claim_url, folder, queued = sys.argv
    print(json.dumps(uvloop.run(main(emit_url, claim_url, Path(folder), int(queued)))))

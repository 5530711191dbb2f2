"""The app for a harness that compares agent servers: `python benchmarks/peer_app.py PORT FOLDER`.

BENCH_DB is the store's URL (default: a file in FOLDER). The input is `{"msg", "kind", "run"}`. A harness that has a
module `work` on PYTHONPATH says by it what a run does: `events(kind, run)` gives the texts to emit, `one(kind, step,
run)` is one step of them, `result(msg)` is the output.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from outlast import DurableAgentServer, InvocationContext, OutcomeUnknown

SLOW = "slow"
"""The kind whose steps have side effects."""


class Echo:
    """What a run does when no harness says anything else."""

    N = 10

    async def one(self, kind: str, step: int, run: str) -> str:
        return f"ev-{step}"

    async def events(self, kind: str, run: str) -> AsyncIterator[str]:
        for step in range(self.N):
            yield await self.one(kind, step, run)

    def result(self, message: str) -> Any:
        return {"echo": message, "n": self.N}


work: Any = importlib.import_module("work") if importlib.util.find_spec("work") else Echo()
app = DurableAgentServer(
    store=os.environ.get("BENCH_DB") or f"sqlite:///{Path(*sys.argv[2:3]).resolve() / 'outlast.db'}"
)


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


@app.invoke
async def invoke(context: InvocationContext) -> Any:
    """Emit what is not in the log yet, so that an attempt after a crash goes on where the last one ended."""
    asked, stored = context.input, context.last_position
    if asked["kind"] == SLOW:
        for step in range(stored, work.N):
            await context.emit(await effect(context, step))
    else:
        number = 0
        async for text in work.events(asked["kind"], asked["run"]):
            number += 1
            if number > stored:
                await context.emit(text)
    return work.result(asked["msg"])


@app.recover
async def recover(context: InvocationContext) -> Any:
    return await invoke(context)


async def effect(context: InvocationContext, step: int) -> Any:
    """Do a step that must not happen twice. When nobody knows whether it happened, look, as a person would."""
    run = context.input["run"]
    try:
        return await context.once(f"step-{step}", work.one, SLOW, step, run)
    except OutcomeUnknown:
        return f"ev-{step}" if happened(run, step) else await work.one(SLOW, step, run)


def happened(run: str, step: int) -> bool:
    """Tell whether the effect of a step is in the harness's log; its lines end in the run and the step."""
    log = Path(os.environ.get("BENCH_TOOL_LOG", ""))
    return log.is_file() and any(line.split()[-2:] == [run, str(step)] for line in log.read_text().splitlines())


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)

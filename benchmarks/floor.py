"""The floor: plain FastAPI and uvicorn doing the same work in memory, and nothing else. `python -m benchmarks.floor PORT`

It answers the same requests as outlast, so that one load generator serves both.
"""

import asyncio
import json
import sys
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from benchmarks import echo
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel

REMEMBERED = 4096
"""Runs in the background that are kept for whoever asks."""

app = FastAPI()
runs: OrderedDict[str, dict[str, Any]] = OrderedDict()
tasks: set[asyncio.Task[None]] = set()


class Ask(BaseModel):
    id: uuid.UUID
    session_id: str | None = None
    input: dict[str, Any]
    stream: bool = False
    background: bool = False


@app.get("/readyz")
async def readyz() -> Response:
    return PlainTextResponse("ok\n")


@app.post("/api/invocations", response_model=None)
async def invoke(ask: Ask) -> Response | dict[str, Any]:
    if ask.stream:
        return StreamingResponse(frames(ask), media_type="text/event-stream")
    if ask.background:
        return in_background(ask)
    events = [echo.event(number) for number in range(echo.EVENTS)]
    return {"id": ask.id, "status": "completed", "output": echo.result(ask.input["message"]), "count": len(events)}


@app.get("/api/invocations/{id}")
async def get(id: str) -> dict[str, Any]:
    if id not in runs:
        raise HTTPException(404)
    return runs[id]


async def frames(ask: Ask) -> AsyncIterator[str]:
    for number in range(echo.EVENTS):
        yield f"id: {number + 1}\nevent: token\ndata: {json.dumps(echo.event(number))}\n\n"
    yield f"event: end\ndata: {json.dumps({'status': 'completed', 'output': echo.result(ask.input['message'])})}\n\n"


def in_background(ask: Ask) -> Response:
    """Answer 202; a run of the kind `queued` is only kept."""
    run: dict[str, Any] = {"id": str(ask.id), "status": "queued", "events": [], "output": None}
    runs[run["id"]] = run
    if len(runs) > REMEMBERED:
        runs.popitem(last=False)
    if ask.input["kind"] != "queued":
        task = asyncio.create_task(work(run, ask.input["message"]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return JSONResponse({"id": run["id"], "status": run["status"]}, 202)


async def work(run: dict[str, Any], message: str) -> None:
    run["events"].extend(echo.event(number) for number in range(echo.EVENTS))
    run["output"], run["status"] = echo.result(message), "completed"


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)

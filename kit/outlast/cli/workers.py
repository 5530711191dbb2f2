"""`outlast workers`: who runs agents on a store."""

from collections.abc import AsyncIterator
from typing import Any

from outlast.cli.access import opened_store
from outlast.cli.errors import command
from outlast.cli.options import Json, StoreUrl
from outlast.cli.output import at, duration, key, listed
from outlast.core import jsontext
from outlast.core.times import shown
from outlast.engine import locks
from outlast.engine.settings import EngineSettings
from outlast.store.overview import WorkerState

_COLUMNS = {
    "ID": key("id"),
    "STATE": key("state"),
    "RUNNING": key("running"),
    "AGENTS": lambda one: ", ".join(one["agents"]),
    "PID": key("pid"),
    "LAST BEAT": lambda one: f"{duration(one['silent_seconds'])} ago",
    "STARTED": at("started_at"),
}


@command
async def workers(store: StoreUrl = None, json: Json = False) -> None:
    """List the workers of a store: whether they live, and how many runs they hold.

    A worker that is dead, or silent for long, is removed, and its runs go on elsewhere, as soon as another one runs.
    """

    async def found() -> AsyncIterator[dict[str, Any]]:
        for one in await opened.read.working():
            yield _as_json(one)

    async with opened_store(store) as opened:
        await listed(found(), _COLUMNS, json=json)


def _as_json(one: WorkerState) -> dict[str, Any]:
    row = one.row
    return {
        "id": row.id, "state": state(one), "running": one.running, "agents": jsontext.decode(row.claims), "pid": row.pid,
        "here": row.host == locks.host_id(), "silent_seconds": one.silent_ms / 1000, "started_at": shown(row.started_at),
    }  # fmt: skip


def state(one: WorkerState) -> str:
    """Say how a worker seems: by its lock, which tells for certain on its own machine, and by its last beat."""
    row = one.row
    if row.host == locks.host_id() and row.lock_file is not None and locks.is_free(row.lock_file):
        return "dead"
    if one.silent_ms > EngineSettings().dead_after * 1000:
        return "silent"
    return "stalled" if row.stalled else "alive"

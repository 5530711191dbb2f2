"""What commands ask: a server by its client, or a store by the same methods, as far as they need no agent."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from outlast.adapters.approvals import request_of
from outlast.cli import agent_toml
from outlast.cli.errors import USAGE, fail
from outlast.client import AgentClient, ApprovalRequest
from outlast.core import ids, jsontext, times
from outlast.core.errors import InvalidRequest, NotFound
from outlast.core.records import ApprovalStatus, Invocation, Status
from outlast.sessions import MemoryStore, SessionStore
from outlast.sessions.session import IDEMPOTENCY_RETENTION
from outlast.store import Store
from outlast.store.reading import plenty
from outlast.store.url import DEFAULT_URL
from outlast.wires.native import project

URL, STORE, TOKEN = "OUTLAST_URL", "OUTLAST_STORE", "OUTLAST_TOKEN"
DEFAULT_SERVER = "http://127.0.0.1:8000"
PRINCIPAL = "local"
PATIENCE_SECONDS = 5.0
PAGE = 100
LOOK_AGAIN_SECONDS = 0.25


class StoreClient:
    """The methods of `AgentClient` on a store. Nothing runs here: what is asked of a run, its worker does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.sessions = SessionStore(store, principal=PRINCIPAL)
        self.memory = MemoryStore(store, principal=PRINCIPAL)

    async def get(self, invocation_id: str) -> dict[str, Any]:
        return _object(await self._record(invocation_id))

    async def cancel(self, invocation_id: str) -> dict[str, Any]:
        return _object((await self.store.cancel(PRINCIPAL, ids.invocation_id(invocation_id))).invocation)

    async def delete(self, invocation_id: str) -> None:
        await self.store.delete(
            PRINCIPAL, ids.invocation_id(invocation_id), keep_ms=round(IDEMPOTENCY_RETENTION * 1000)
        )

    async def invocations(
        self,
        *,
        session_id: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        before: int | None = None
        while True:
            found = await self.store.read.listed(
                PRINCIPAL,
                session_id=None if session_id is None else ids.session_id(session_id),
                status=None if status is None else Status(status),
                agent=None if agent is None else ids.name(agent, "agent"),
                metadata=ids.labels(metadata, "metadata"),
                before=before,
                limit=PAGE,
            )
            for record in found:
                yield _object(record)
            if len(found) < PAGE and not plenty(found):
                return
            before = found[-1].number

    async def events(
        self, invocation_id: str, *, after: int = 0, follow: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        record = await self._record(invocation_id)
        if after > (last := await self.store.read.last_position(record.number)):
            raise InvalidRequest(f"the cursor {after} is beyond the last event, {last}", field="after")
        while True:
            found = await self.store.read.events(record.number, after=after, limit=PAGE)
            for entry in found:
                after = entry.position
                yield {
                    "position": entry.position, "attempt": entry.attempt, "at": times.shown(entry.at),
                    "event": jsontext.decode(entry.text),
                }  # fmt: skip
            if found:
                continue
            if not follow or record.status.final:
                return
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            # Before the events, so that those of a final one are all that there are.
            record = await self._record(invocation_id)

    async def approvals(
        self, *, status: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[ApprovalRequest]:
        before: int | None = None
        while True:
            found = await self.store.read.approvals_listed(
                PRINCIPAL,
                status=None if status is None else ApprovalStatus(status),
                session_id=None if session_id is None else ids.session_id(session_id),
                before=before,
                limit=PAGE,
            )
            for row in found:
                yield request_of(row)
            if len(found) < PAGE:
                return
            before = found[-1].number

    async def _record(self, invocation_id: str) -> Invocation:
        id = ids.invocation_id(invocation_id)
        found = await self.store.read.invocation(PRINCIPAL, id)
        if found is None:
            raise NotFound(f"there is no invocation {id}")
        return found


Access = AgentClient | StoreClient


@asynccontextmanager
async def opened(url: str | None, store: str | None, *, writes: bool = False) -> AsyncIterator[Access]:
    """Give what was asked for: a server, or a store, which is left as it is."""
    if url is not None and store is not None:
        fail("--url and --store exclude each other: a server has its store", USAGE)
    if url is None and store is None:
        url = os.environ.get(URL)
    if url is not None:
        async with client(url, patience=PATIENCE_SECONDS) as asked:
            yield asked
        return
    async with opened_store(store, writes=writes) as found:
        yield StoreClient(found)


@asynccontextmanager
async def opened_store(store: str | None, *, writes: bool = False) -> AsyncIterator[Store]:
    """Give a store as it is: nothing is made or brought up to date."""
    found = await Store.open(store_url(store), upgrade=False)
    try:
        if writes:
            # Whatever is written later waits for a database that cannot be written, which is no way to end here.
            await found.check_writable()
        yield found
    finally:
        await found.close()


def client(url: str, *, patience: float, agent: str | None = None) -> AgentClient:
    """Return a client of a server, with the token of the environment."""
    return AgentClient(url, agent=agent, token=os.environ.get(TOKEN), patience=patience)


def store_url(given: str | None) -> str:
    """Return the store that is meant."""
    if given or os.environ.get(STORE):
        return given or os.environ[STORE]
    if not agent_toml.there():
        return DEFAULT_URL
    return agent_toml.read().store_url


def _object(record: Invocation) -> dict[str, Any]:
    found: dict[str, Any] = jsontext.decode(project.invocation(record, ""))
    return found

"""`AgentClient` and `SyncAgentClient`: an agent behind a URL, used like one in process."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from outlast.client.memory_store import RemoteMemoryStore, SyncRemoteMemoryStore
from outlast.client.session import INVOCATIONS, RemoteSession, SyncRemoteSession
from outlast.client.session_store import RemoteSessionStore, SyncRemoteSessionStore
from outlast.client.transport import Transport
from outlast.core import ids
from outlast.core.conversations import ApprovalRequest, approval_of_json
from outlast.core.errors import InvalidRequest
from outlast.core.portal import portal

TIMEOUT_SECONDS = 60.0
PATIENCE_SECONDS = 120.0
PAGE = 500
"""Events that a server tells of at once."""
LOOK_AGAIN_SECONDS = 0.25


class AgentClient:
    """A client of one server, for one event loop: in another one it raises RuntimeError.

    Use it as `async with`, or `await close()`.

    `agent` names one of several agents of the server. `timeout` is how long, in seconds, an answer may be silent (the
    server sends a sign of life every 15 s), `patience` how long a server that cannot be reached is tried again. `http` is a
    client of your own, with its own base URL and timeouts. `sessions` and `memory` have the methods of `SessionStore` and
    `MemoryStore`. Raises InvalidRequest for a base URL that is none.
    """

    def __init__(
        self,
        base_url: str = "",
        *,
        agent: str | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        patience: float = PATIENCE_SECONDS,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._owned = http is None
        self._http = http or httpx.AsyncClient(base_url=_base(base_url), headers=headers, timeout=timeout)
        self._transport = Transport(self._http, patience)
        self._agent = agent
        self.sessions = RemoteSessionStore(self._transport, agent)
        self.memory = RemoteMemoryStore(self._transport)

    def session(self, id: str | None = None) -> RemoteSession:
        """Return a conversation; without an id, one whose runs do not know each other."""
        return RemoteSession(self._transport, id, self._agent)

    async def describe(self) -> dict[str, Any]:
        """Return who answers: the `version` of outlast, and the `agents` with their capabilities."""
        found: dict[str, Any] = await self._transport.json("GET", "/api/agent")
        return found

    async def get(self, invocation_id: str) -> dict[str, Any]:
        """Return an invocation object. Raises NotFound."""
        found: dict[str, Any] = await self._transport.json("GET", _path(invocation_id))
        return found

    async def cancel(self, invocation_id: str) -> dict[str, Any]:
        """Ask a run to stop and return its invocation object. Raises NotFound."""
        found: dict[str, Any] = await self._transport.json("POST", f"{_path(invocation_id)}/cancel")
        return found

    async def delete(self, invocation_id: str) -> None:
        """Remove a final invocation; its id answers Gone for a while. Raises NotFound, and Conflict (`not_final`)."""
        await self._transport.delete(_path(invocation_id))

    async def invocations(
        self,
        *,
        session_id: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Give the invocation objects that match, the newest first, reading on as they are taken."""
        query = {} if session_id is None else {"session_id": ids.session_id(session_id)}
        query |= {} if status is None else {"status": status}
        query |= {} if agent is None else {"agent": ids.name(agent, "agent")}
        query |= {f"metadata.{label}": text for label, text in ids.labels(metadata, "metadata").items()}
        async for one in self._transport.listed(INVOCATIONS, query):
            yield one

    async def events(
        self, invocation_id: str, *, after: int = 0, follow: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """Give the log of an invocation behind a position: `{position, attempt, at, event}` each.

        With `follow` it goes on until the run is final; without, it ends where the log ends now. Raises NotFound.
        """
        query = {"after": ids.position(after, "after"), "limit": PAGE}
        while True:
            page = await self._transport.json(
                "GET", f"{_path(invocation_id)}/events", params=query, headers={"Accept": "application/json"}
            )
            for one in page["items"]:
                yield one
            if page["next_cursor"] is None or not (page["items"] or follow):
                return
            query["after"] = int(page["next_cursor"])
            if not page["items"]:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def approvals(
        self, *, status: str | None = None, session_id: str | None = None
    ) -> AsyncIterator[ApprovalRequest]:
        """Give what waits, or waited, for a person, over all sessions, the newest first, reading on as it is taken.

        `status` is `open`, `decided` or `closed`; without one all are given.
        """
        query = {} if status is None else {"status": status}
        query |= {} if session_id is None else {"session_id": ids.session_id(session_id)}
        async for one in self._transport.listed("/api/approvals", query):
            yield approval_of_json(one)

    async def close(self) -> None:
        """Close the connections; those of a client of your own stay open."""
        if self._owned:
            self._transport.require_loop()
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _path(invocation_id: str) -> str:
    return f"{INVOCATIONS}/{ids.invocation_id(invocation_id)}"


def _base(url: object) -> httpx.URL:
    """Return a base URL, checked: what is wrong in it is not waited out like a server that does not answer."""
    try:
        parsed = httpx.URL(str(url))
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"the base URL {url!r} cannot be read: {error}", field="base_url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or (parsed.port or 0) > 65535:
        raise InvalidRequest(
            f"the base URL {url!r} is not like http://127.0.0.1:8000 or https://agents.example", field="base_url"
        )
    return parsed


class SyncAgentClient:
    """The same for code without asyncio; every method blocks. Use it as `with`, or `close()`."""

    def __init__(
        self,
        base_url: str,
        *,
        agent: str | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._client = AgentClient(base_url, agent=agent, token=token, timeout=timeout, patience=patience)
        self.sessions = SyncRemoteSessionStore(self._client.sessions)
        self.memory = SyncRemoteMemoryStore(self._client.memory)

    def session(self, id: str | None = None) -> SyncRemoteSession:
        return self._client.session(id).sync

    def describe(self) -> dict[str, Any]:
        return portal().call(self._client.describe())

    def get(self, invocation_id: str) -> dict[str, Any]:
        return portal().call(self._client.get(invocation_id))

    def cancel(self, invocation_id: str) -> dict[str, Any]:
        return portal().call(self._client.cancel(invocation_id))

    def delete(self, invocation_id: str) -> None:
        portal().call(self._client.delete(invocation_id))

    def invocations(
        self,
        *,
        session_id: str | None = None,
        status: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        return portal().iterate(
            self._client.invocations(session_id=session_id, status=status, agent=agent, metadata=metadata)
        )

    def events(self, invocation_id: str, *, after: int = 0, follow: bool = False) -> Iterator[dict[str, Any]]:
        return portal().iterate(self._client.events(invocation_id, after=after, follow=follow))

    def approvals(self, *, status: str | None = None, session_id: str | None = None) -> Iterator[ApprovalRequest]:
        return portal().iterate(self._client.approvals(status=status, session_id=session_id))

    def close(self) -> None:
        portal().call(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

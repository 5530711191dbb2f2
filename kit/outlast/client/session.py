"""A conversation with an agent behind HTTP: the methods of one in process, and no answer is lost on the way."""

import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from outlast.client.session_store import session_path
from outlast.client.sse import frames
from outlast.client.transport import Transport
from outlast.core.conversations import LARGEST_PAGE
from outlast.core.errors import AgentResumeError, SessionBusy, SessionNotFound, StoreUnavailable
from outlast.core.portal import Blocking, blocking, iterating, portal
from outlast.core.reply import Reply, ended, reply_of
from outlast.core.resume import ResumePoint, point_of_json

WAIT_SECONDS = 20
"""How long one request waits for the end of a run before it is asked again."""

INVOCATIONS = "/api/invocations"


class RemoteSession:
    """One conversation. Get it from `client.session(id)`; `id` None makes every run one of its own."""

    def __init__(self, transport: Transport, id: str | None, agent: str | None) -> None:
        self.id = id
        self._transport, self._agent = transport, agent

    async def run(self, /, input: Any, *, id: str | None = None, **options: Any) -> Reply:
        """Run the agent on an input and return its reply. `options` are fields of the request, such as `config`.

        A connection that breaks, and a server that restarts, are waited out. The same `id` again returns the same run.
        Raises RunFailed, InvalidRequest, Conflict and its kinds, and ServerUnreachable.
        """
        return reply_of(_end(await self._finished(INVOCATIONS, self._request(id, input=input, **options))))

    async def stream(self, /, input: Any, *, id: str | None = None, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Run the agent on an input and give its events, each once; the last one has the reply.

        Leaving the iteration early does not stop the run.
        """
        async for event in self._events(INVOCATIONS, self._request(id, input=input, **options)):
            yield event

    async def start(self, /, input: Any, *, id: str | None = None, **options: Any) -> dict[str, Any]:
        """Have the agent run on an input and return at once: its `id`, `status` and where it is to be found.

        It is stored, and will run, when this returns. The same `id` again returns the same run.
        """
        request = {**self._request(id, input=input, **options), "background": True}
        found: dict[str, Any] = await self._transport.json("POST", INVOCATIONS, json=request)
        return found

    async def resume(self, /, *, id: str | None = None, **options: Any) -> Reply:
        """Go on where the session was interrupted. Raises AgentResumeError when nothing can be resumed."""
        with _absent_is_empty():
            return reply_of(_end(await self._finished(f"{self._path()}/resume", self._request(id, **options))))

    async def stream_resume(self, /, *, id: str | None = None, **options: Any) -> AsyncIterator[dict[str, Any]]:
        """Go on where the session was interrupted and give the events from there."""
        with _absent_is_empty():
            async for event in self._events(f"{self._path()}/resume", self._request(id, **options)):
                yield event

    async def resume_point(self) -> ResumePoint | None:
        """Return how the session was interrupted, or None. Raises SessionBusy while a run goes on."""
        try:
            found = await self._transport.json("GET", f"{self._path()}/resume-point")
        except SessionNotFound:
            return None
        if found["active"] is not None:
            raise SessionBusy(f"invocation {found['active']} of this session is not final")
        return None if found["point"] is None else point_of_json(found["point"])

    async def messages(self) -> list[dict[str, Any]]:
        """Return the messages of the session, oldest first. Reads only."""
        found = self._transport.listed(f"{self._path()}/messages", {"limit": LARGEST_PAGE}, cursor="after")
        try:
            return [message async for message in found]
        except SessionNotFound:
            return []

    async def state(self, checkpoint_id: str | None = None) -> dict[str, Any]:
        """Return the state that the agent keeps of the session, now or at a checkpoint. Reads only.

        Raises NotFound, and Conflict (`unsupported_for_agent`) for an agent that keeps items.
        """
        query = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
        found: dict[str, Any] = await self._transport.json("GET", f"{self._path()}/state", params=query)
        return found

    async def history(self, *, before: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Give the states the session had, the newest first, from before a checkpoint on. Raises as `state` does."""
        query = {} if before is None else {"before": before}
        async for state in self._transport.listed(f"{self._path()}/history", query, cursor="before"):
            yield state

    async def update_state(
        self, values: Any, *, as_node: str | None = None, checkpoint_id: str | None = None
    ) -> dict[str, Any]:
        """Change the state as if a node had written `values`, and return it; runs go on from there.

        With `checkpoint_id` they go on from the state at that checkpoint, changed. Raises as `state` does, InvalidRequest,
        SessionBusy, and AnswerLost when it is unknown whether it was done.
        """
        asked = {"values": values, "as_node": as_node, "checkpoint_id": checkpoint_id}
        changed: dict[str, Any] = await self._transport.once("POST", f"{self._path()}/state", json=asked)
        return changed

    async def fork(self, new_id: str | None = None, *, checkpoint_id: str | None = None) -> "RemoteSession":
        """Copy the session, up to a checkpoint of its history or whole, and return the copy: a session of its own.

        Raises as `update_state` does, and Conflict (`session_exists`).
        """
        asked = {"id": new_id, "checkpoint_id": checkpoint_id}
        made = await self._transport.once("POST", f"{self._path()}/fork", json=asked)
        return RemoteSession(self._transport, made["id"], self._agent)

    async def cancel(self) -> bool:
        """Ask the run of this session to stop; say whether there was one. What it did so far is kept."""
        try:
            active = (await self._transport.json("GET", self._path()))["active"]
        except SessionNotFound:
            return False
        if active is not None:
            await self._transport.json("POST", f"{INVOCATIONS}/{active}/cancel")
        return active is not None

    @property
    def sync(self) -> "SyncRemoteSession":
        """The same methods for code without asyncio."""
        return SyncRemoteSession(self)

    def _path(self) -> str:
        if self.id is None:
            raise ValueError("a conversation without an id cannot be resumed, looked at or cancelled")
        return session_path(self.id)

    def _request(self, id: str | None, **fields: Any) -> dict[str, Any]:
        request = {"id": id or str(uuid.uuid4()), **fields}
        if "input" in fields and self.id is not None:
            request["session_id"] = self.id
        return request if self._agent is None else {"agent": self._agent, **request}

    async def _finished(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Repeat a request until its run is final. It joins the run that it started."""
        while True:
            found = await self._transport.json("POST", path, json=request, headers={"Prefer": f"wait={WAIT_SECONDS}"})
            if "kind" in found and found["status"] in ("completed", "failed", "interrupted"):
                return dict(found)

    async def _events(self, path: str, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        patience, after = self._transport.patience(), 0
        asked: dict[str, Any] = {"method": "POST", "path": path, "json": {**request, "stream": True}}
        while True:
            try:
                async with self._transport.stream(**asked) as answer:
                    asked = {"method": "GET", "path": f"{INVOCATIONS}/{request['id']}/events"}
                    try:
                        async for frame in frames(answer.aiter_lines()):
                            if frame.name == "end":
                                yield _end(frame.data)
                                return
                            after = frame.position or after
                            yield frame.data
                    finally:
                        patience.advanced()  # however long nothing was said: the server was there until now
                error: Exception = StoreUnavailable("the stream ended before the run did")
            except (httpx.TransportError, StoreUnavailable) as broken:
                error = broken
            asked |= {"params": {"after": after}} if asked["method"] == "GET" else {}
            await patience.wait(error)


@contextmanager
def _absent_is_empty() -> Iterator[None]:
    """Refuse to resume a session that is not there as one in process does: nothing was ever said in it."""
    try:
        yield
    except SessionNotFound:
        raise AgentResumeError("empty") from None


def _end(invocation: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: invocation.get(name) for name in ("output", "error", "interrupt", "usage")}
    return ended(invocation["id"], invocation["status"], **fields)


class SyncRemoteSession(Blocking[RemoteSession]):
    """A conversation for code without asyncio; every method blocks."""

    run = blocking(RemoteSession.run)
    stream = iterating(RemoteSession.stream)
    start = blocking(RemoteSession.start)
    resume = blocking(RemoteSession.resume)
    stream_resume = iterating(RemoteSession.stream_resume)
    resume_point = blocking(RemoteSession.resume_point)
    messages = blocking(RemoteSession.messages)
    state = blocking(RemoteSession.state)
    history = iterating(RemoteSession.history)
    update_state = blocking(RemoteSession.update_state)
    cancel = blocking(RemoteSession.cancel)

    def fork(self, new_id: str | None = None, *, checkpoint_id: str | None = None) -> "SyncRemoteSession":
        return portal().call(self._wrapped.fork(new_id, checkpoint_id=checkpoint_id)).sync

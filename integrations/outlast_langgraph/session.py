"""A conversation in this process with what LangGraph knows of it besides: its states, now and before."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from outlast.adapters.history import History
from outlast.adapters.local import LocalStore
from outlast.adapters.session import PRINCIPAL, ChatSession, ResumableAgent, SyncChatSession
from outlast.adapters.threads import Threads
from outlast.core import ids
from outlast.core.errors import Conflict, NotFound
from outlast.core.portal import portal
from outlast_langgraph.graph import WrappedGraph
from outlast_langgraph.saver import StoreSaver, reading

COPY = "__copy__"
"""In whose name LangGraph makes a checkpoint again as the newest one."""


class LangGraphSession(ChatSession):
    """One conversation with a graph. States are LangGraph's own `StateSnapshot`s."""

    def __init__(self, agent: ResumableAgent, wrapped: WrappedGraph, id: str, store: LocalStore | str | None) -> None:
        super().__init__(agent, id, store)
        self._wrapped = wrapped

    @property
    def sync(self) -> SyncLangGraphSession:
        """The same methods for code without asyncio."""
        return SyncLangGraphSession(self)

    async def state(self, checkpoint_id: str | None = None) -> StateSnapshot:
        """Return the state of the session, now or at a checkpoint of its history. Reads only."""
        with reading(await self._read()) as history:
            return await self._wrapped.state(_at(history.thread, checkpoint_id))

    async def history(self, *, limit: int | None = None, before: str | None = None) -> Sequence[StateSnapshot]:
        """Return the states the session had, the newest first; `before` is the id of a checkpoint. Reads only."""
        with reading(await self._read()) as history:
            found = self._wrapped.guarded.aget_state_history(
                _at(history.thread), limit=limit, before=None if before is None else _at(history.thread, before)
            )
            return [snapshot async for snapshot in found]

    async def update_state(
        self, values: Any, *, as_node: str | None = None, checkpoint_id: str | None = None
    ) -> StateSnapshot:
        """Change the state as if a node had written `values`, and return it; runs go on from there.

        With `checkpoint_id` they go on from the state at that checkpoint, changed. Raises SessionBusy while a run has the
        session, and Conflict (`unsupported_for_agent`) for a graph with a checkpointer of its own.
        """
        await self._graph().aupdate_state(_at(self.id, checkpoint_id), values, as_node=as_node)
        return await self.state()

    async def fork(self, new_id: str | None = None, *, checkpoint_id: str | None = None) -> LangGraphSession:
        """Copy the session, up to a checkpoint of its history or whole, and return the copy: a session of its own.

        Calls that are open in the copy are answered there as unknown, and its questions are dropped. Raises NotFound,
        SessionBusy, and Conflict (`session_exists`, `unsupported_for_agent`).
        """
        graph, new_id = self._graph(), ids.session_id(new_id) if new_id is not None else str(uuid.uuid4())
        threads = Threads(self._local, agent=self._agent.name, principal=PRINCIPAL)
        if await threads.history(new_id) is not None:
            raise Conflict(f"there is a session {new_id!r} already", code="session_exists")
        at = (await self.state(checkpoint_id)).config["configurable"].get("checkpoint_id")
        if at is None or (await self.state(at)).metadata is None:
            raise NotFound(f"session {self.id!r} has no checkpoint {checkpoint_id or ''}".rstrip())
        await threads.copy(self.id, new_id)
        if (await graph.aget_state(_at(new_id))).config["configurable"].get("checkpoint_id") != at:
            await graph.aupdate_state(_at(new_id, at), None, as_node=COPY)
        return LangGraphSession(self._agent, self._wrapped, new_id, self._local)

    async def _read(self) -> History:
        store = await self._local.store()
        found = await History.of_session(store, PRINCIPAL, self.id)
        return found if found is not None else History.of_none(store, PRINCIPAL, self.id)

    def _graph(self) -> Pregel[Any, Any, Any, Any]:
        """Return the graph with a checkpointer that writes without a run."""
        if self._wrapped.keeps_own_state:
            raise Conflict(
                "this graph has a checkpointer of its own, to which only its runs write; compile it without one",
                code="unsupported_for_agent",
            )
        saver = StoreSaver(self._local, agent=self._agent.name, principal=PRINCIPAL)
        return self._wrapped.guarded.copy({"checkpointer": saver})


class SyncLangGraphSession(SyncChatSession):
    """A conversation with a graph for code without asyncio; every method blocks."""

    def __init__(self, session: LangGraphSession) -> None:
        super().__init__(session)
        self._session = session

    def state(self, checkpoint_id: str | None = None) -> StateSnapshot:
        return portal().call(self._session.state(checkpoint_id))

    def history(self, *, limit: int | None = None, before: str | None = None) -> Sequence[StateSnapshot]:
        return portal().call(self._session.history(limit=limit, before=before))

    def update_state(
        self, values: Any, *, as_node: str | None = None, checkpoint_id: str | None = None
    ) -> StateSnapshot:
        return portal().call(self._session.update_state(values, as_node=as_node, checkpoint_id=checkpoint_id))

    def fork(self, new_id: str | None = None, *, checkpoint_id: str | None = None) -> SyncLangGraphSession:
        return portal().call(self._session.fork(new_id, checkpoint_id=checkpoint_id)).sync


def _at(thread: str, checkpoint_id: str | None = None) -> RunnableConfig:
    configurable = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": configurable | ({} if checkpoint_id is None else {"checkpoint_id": checkpoint_id})}

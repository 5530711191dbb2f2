"""A conversation in this process with what LangGraph knows of it besides: its states, now and before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.types import StateSnapshot

from outlast.adapters.local import LocalStore
from outlast.adapters.session import PRINCIPAL, ChatSession, ResumableAgent, SyncChatSession
from outlast.core.portal import portal
from outlast_langgraph.graph import WrappedGraph
from outlast_langgraph.states import States


class LangGraphSession(ChatSession):
    """One conversation with a graph. States are LangGraph's own `StateSnapshot`s."""

    def __init__(self, agent: ResumableAgent, wrapped: WrappedGraph, id: str, store: LocalStore | str | None) -> None:
        super().__init__(agent, id, store)
        self._wrapped = wrapped
        self._states = States(wrapped, self._local, agent=agent.name, principal=PRINCIPAL, session_id=self.id)

    @property
    def sync(self) -> SyncLangGraphSession:
        """The same methods for code without asyncio."""
        return SyncLangGraphSession(self)

    async def state(self, checkpoint_id: str | None = None) -> StateSnapshot:
        """Return the state of the session, now or at a checkpoint of its history. Reads only."""
        return await self._states.state(checkpoint_id)

    async def history(self, *, limit: int | None = None, before: str | None = None) -> Sequence[StateSnapshot]:
        """Return the states the session had, the newest first; `before` is the id of a checkpoint. Reads only."""
        return await self._states.history(limit=limit, before=before)

    async def update_state(
        self, values: Any, *, as_node: str | None = None, checkpoint_id: str | None = None
    ) -> StateSnapshot:
        """Change the state as if a node had written `values`, and return it; runs go on from there.

        With `checkpoint_id` they go on from the state at that checkpoint, changed. Raises SessionBusy while a run has the
        session, and Conflict (`unsupported_for_agent`) for a graph with a checkpointer of its own.
        """
        return await self._states.update(values, as_node=as_node, checkpoint_id=checkpoint_id)

    async def fork(self, new_id: str | None = None, *, checkpoint_id: str | None = None) -> LangGraphSession:
        """Copy the session, up to a checkpoint of its history or whole, and return the copy: a session of its own.

        Calls that are open in the copy are answered there as unknown, and its questions are dropped. Raises NotFound,
        SessionBusy, and Conflict (`session_exists`, `unsupported_for_agent`).
        """
        made = await self._states.fork(new_id, checkpoint_id=checkpoint_id)
        return LangGraphSession(self._agent, self._wrapped, made, self._local)


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

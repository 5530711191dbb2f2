"""The states of one session, now and before: read, changed, copied; in LangGraph's form, and in JSON for clients."""

import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from outlast.adapters.threads import Source, Threads
from outlast.core import ids
from outlast.core.errors import Conflict, InvalidRequest, NotFound, OutlastError
from outlast_langgraph.graph import WrappedGraph, plain
from outlast_langgraph.messages import if_json
from outlast_langgraph.saver import StoreSaver, reading

PAGE = 20
COPY = "__copy__"
"""In whose name LangGraph makes a checkpoint again as the newest one."""


class States:
    """What a graph keeps of one session of a principal."""

    def __init__(self, wrapped: WrappedGraph, source: Source, *, agent: str, principal: str, session_id: str) -> None:
        self._wrapped, self._source = wrapped, source
        self._agent, self._principal, self.id = agent, principal, session_id
        self._threads = Threads(source, agent=agent, principal=principal)

    async def state(self, checkpoint_id: str | None = None) -> StateSnapshot:
        """Return the state, now or at a checkpoint of the history. Reads only."""
        with reading(await self._threads.reading(self.id)) as history:
            return await self._wrapped.state(_at(history.thread, checkpoint_id))

    async def history(self, *, limit: int | None = None, before: str | None = None) -> Sequence[StateSnapshot]:
        """Return the states there were, the newest first; `before` is the id of a checkpoint. Reads only."""
        with reading(await self._threads.reading(self.id)) as history:
            found = self._wrapped.guarded.aget_state_history(
                _at(history.thread), limit=limit, before=None if before is None else _at(history.thread, before)
            )
            return [snapshot async for snapshot in found]

    async def update(self, values: Any, *, as_node: str | None, checkpoint_id: str | None) -> StateSnapshot:
        """Change the state as if a node had written `values`, and return it; runs go on from there."""
        await self._graph().aupdate_state(_at(self.id, checkpoint_id), values, as_node=as_node)
        return await self.state()

    async def fork(self, new_id: str | None, *, checkpoint_id: str | None) -> str:
        """Copy the session, up to a checkpoint of its history or whole, and return the id of the copy."""
        graph, new_id = self._graph(), ids.session_id(new_id) if new_id is not None else str(uuid.uuid4())
        if await self._threads.history(new_id) is not None:
            raise Conflict(f"there is a session {new_id!r} already", code="session_exists")
        at = checkpoint_of(await (self.state() if checkpoint_id is None else self.at(checkpoint_id)))
        if at is None:
            raise self._absent(checkpoint_id)
        await self._threads.copy(self.id, new_id)
        if checkpoint_of(await graph.aget_state(_at(new_id))) != at:
            await graph.aupdate_state(_at(new_id, at), None, as_node=COPY)
        return new_id

    async def at(self, checkpoint_id: str) -> StateSnapshot:
        """Return the state at a checkpoint. Raise NotFound for one that the session does not have."""
        found = await self.state(checkpoint_id)
        if found.metadata is None:
            raise self._absent(checkpoint_id)
        return found

    def _absent(self, checkpoint_id: str | None) -> NotFound:
        return NotFound(f"session {self.id!r} has no checkpoint {checkpoint_id or ''}".rstrip())

    def _graph(self) -> Pregel[Any, Any, Any, Any]:
        """Return the graph with a checkpointer that writes without a run."""
        if self._wrapped.keeps_own_state:
            raise Conflict(
                "this graph has a checkpointer of its own, to which only its runs write; compile it without one",
                code="unsupported_for_agent",
            )
        saver = StoreSaver(self._source, agent=self._agent, principal=self._principal)
        return self._wrapped.guarded.copy({"checkpointer": saver})


class StatesAsJSON:
    """The same for clients of a server: in JSON, and with errors that say what is wrong with a request."""

    def __init__(self, states: States) -> None:
        self._states = states

    async def state(self, checkpoint_id: str | None = None) -> dict[str, Any]:
        found = self._states.state() if checkpoint_id is None else self._states.at(checkpoint_id)
        return as_json(await found)

    async def history(self, *, before: str | None = None) -> AsyncIterator[dict[str, Any]]:
        if before is not None:
            await self._states.at(before)
        while found := await self._states.history(before=before, limit=PAGE):
            for snapshot in found:
                yield as_json(snapshot)
            before = checkpoint_of(found[-1])

    async def update(self, values: Any, *, as_node: str | None, checkpoint_id: str | None) -> dict[str, Any]:
        if checkpoint_id is not None:
            await self._states.at(checkpoint_id)
        try:
            return as_json(await self._states.update(values, as_node=as_node, checkpoint_id=checkpoint_id))
        except OutlastError:
            raise
        except Exception as error:
            # Reducers and writers of the graph are code of the user, and see here what they do not expect.
            said = str(error).splitlines() or [""]
            raise InvalidRequest(
                f"the graph refuses this change: {type(error).__name__}: {said[0]}",
                code="invalid_state",
                field="values",
            ) from error

    async def fork(self, new_id: str | None, *, checkpoint_id: str | None) -> str:
        return await self._states.fork(new_id, checkpoint_id=checkpoint_id)


def checkpoint_of(snapshot: StateSnapshot) -> str | None:
    """Return the id of the checkpoint a state is of."""
    return _id_in(snapshot.config)


def as_json(snapshot: StateSnapshot) -> dict[str, Any]:
    """Return a state as clients get it. What JSON cannot say is told by its text."""
    return {
        "checkpoint_id": checkpoint_of(snapshot),
        "parent_checkpoint_id": _id_in(snapshot.parent_config),
        "created_at": snapshot.created_at,
        "values": _shown(snapshot.values),
        "next": list(snapshot.next),
        "tasks": [
            {
                "id": task.id,
                "name": task.name,
                "error": None if task.error is None else str(task.error),
                "interrupts": [{"id": one.id, "value": _shown(one.value)} for one in task.interrupts],
                "state": as_json(task.state) if isinstance(task.state, StateSnapshot) else None,
            }
            for task in snapshot.tasks
        ],
        "metadata": _shown(dict(snapshot.metadata or {})),
    }


def _shown(value: Any) -> Any:
    found = plain(value)
    if isinstance(found, dict):
        return {str(key): _shown(one) for key, one in found.items()}
    return if_json(found, str(found))


def _id_in(config: RunnableConfig | None) -> str | None:
    found = ((config or {}).get("configurable") or {}).get("checkpoint_id")
    return None if found is None else str(found)


def _at(thread: str, checkpoint_id: str | None = None) -> RunnableConfig:
    configurable = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": configurable | ({} if checkpoint_id is None else {"checkpoint_id": checkpoint_id})}

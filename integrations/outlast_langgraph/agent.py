"""The wrapper users hold."""

import logging
from collections.abc import AsyncIterator, Collection, Sequence
from itertools import islice
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from outlast.adapters.history import History
from outlast.adapters.local import LocalStore
from outlast.adapters.protocol import DurableAgent
from outlast.adapters.run import Run
from outlast.adapters.threads import Source
from outlast.core.errors import AgentResumeError
from outlast.core.records import Kind
from outlast.core.resume import ResumeKind, ResumePoint
from outlast_langgraph import asking
from outlast_langgraph.coverage import Coverage
from outlast_langgraph.graph import WrappedGraph
from outlast_langgraph.saver import reading
from outlast_langgraph.seams import is_function
from outlast_langgraph.session import LangGraphSession
from outlast_langgraph.states import States, StatesAsJSON
from outlast_langgraph.turn import LangGraphTurn

logger = logging.getLogger("outlast.langgraph")


class LangGraphAgent(DurableAgent):
    """Makes a compiled LangGraph graph, or a workflow made by `@entrypoint`, durable, without changing it.

    Tools named in `rerun_safe` may run again when a crash left their outcome unknown; every other call is answered.
    Requests may set, in their `config`, what the graph's `context_schema` has, and `config_keys`: graphs find these in
    `config["configurable"]`, but for `recursion_limit`, which is LangGraph's.
    """

    framework = "langgraph"
    history = "checkpoints"

    def __init__(
        self,
        graph: Any,
        *,
        name: str | None = None,
        rerun_safe: Collection[str] = frozenset(),
        config_keys: Collection[str] = frozenset(),
    ) -> None:
        super().__init__(name=name or "agent", rerun_safe=rerun_safe, config_keys=config_keys)
        self.graph = graph
        self._wrapped = WrappedGraph(graph)
        self.config_keys |= self._wrapped.context_keys
        self.keeps_threads = self._wrapped.keeps_own_state
        if uncovered := [one for one in self.coverage() if one.state == "not covered"]:
            logger.warning(
                "agent %s: not covered are %s", self.name, "; ".join(f"{one.node} ({one.reason})" for one in uncovered)
            )

    def coverage(self) -> Sequence[Coverage]:
        """Say of every node, and of the nodes of subgraphs, whether what it does in the world happens once."""
        return self._wrapped.coverage

    def session(self, id: str, *, store: LocalStore | str | None = None) -> LangGraphSession:
        """Return a conversation with the graph in this process, without a server; see `DurableAgent.session`."""
        return LangGraphSession(self, self._wrapped, id, store)

    def session_states(self, store: Source, principal: str, session_id: str) -> StatesAsJSON:
        """Return what clients of a server read and change of a session's states."""
        return StatesAsJSON(States(self._wrapped, store, agent=self.name, principal=principal, session_id=session_id))

    def turn(self, run: Run) -> LangGraphTurn:
        given = None if run.context.kind is Kind.RESUME else self._wrapped.read_input(run.context.input)
        return LangGraphTurn(self._wrapped, run, given)

    async def require_resume_point(self, history: History) -> ResumePoint:
        snapshot = await self._state(history)
        if (waiting := await asking.awaited(history, snapshot.interrupts)) is not None:
            return waiting
        try:
            point = self._wrapped.point(snapshot)
        except AgentResumeError:
            # In a graph that has changed a run can look as if it were over.
            if await self._missing_node(history, snapshot) is None:
                raise
            return ResumePoint(ResumeKind.CALL_MODEL)
        # A question stays in the state until its task is done, also when the run that answered it failed.
        return ResumePoint(ResumeKind.CALL_MODEL) if point.kind is ResumeKind.AWAIT_APPROVAL else point

    async def messages(self, history: History, *, after: int = 0) -> AsyncIterator[tuple[int, dict[str, Any]]]:
        for one in islice(enumerate(self._wrapped.messages(await self._state(history)), 1), after, None):
            yield one

    async def _state(self, history: History) -> StateSnapshot:
        with reading(history):
            return await self._wrapped.state({"configurable": {"thread_id": history.thread}})

    async def _missing_node(self, history: History, snapshot: StateSnapshot) -> str | None:
        with reading(history):
            return await self._wrapped.missing_node({"configurable": {"thread_id": history.thread}}, snapshot)


def recognise(target: object) -> LangGraphAgent | None:
    """Wrap a framework object that a command line was pointed at, or return None for what is not ours."""
    known = isinstance(target, CompiledStateGraph) or is_function(target)
    return LangGraphAgent(target) if known else None

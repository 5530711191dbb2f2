"""The wrapper users hold."""

import logging
from collections.abc import Collection
from typing import Any

from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from outlast.adapters.history import History
from outlast.adapters.protocol import DurableAgent
from outlast.adapters.run import Run
from outlast.core.records import Kind
from outlast.core.resume import ResumeKind, ResumePoint
from outlast_langgraph import asking
from outlast_langgraph.graph import WrappedGraph
from outlast_langgraph.saver import HISTORY
from outlast_langgraph.turn import LangGraphTurn

logger = logging.getLogger("outlast.langgraph")


class LangGraphAgent(DurableAgent):
    """Makes a compiled LangGraph graph durable, without changing it.

    Tools named in `rerun_safe` may run again when a crash left their outcome unknown; every other call is answered.
    Requests may set `config_keys`; graphs find them in `config["configurable"]`.
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
        self.keeps_threads = self._wrapped.keeps_own_state
        for warning in self._wrapped.warnings:
            logger.warning("agent %s: %s", self.name, warning)

    def turn(self, run: Run) -> LangGraphTurn:
        given = None if run.context.kind is Kind.RESUME else self._wrapped.read_input(run.context.input)
        return LangGraphTurn(self._wrapped, run, given)

    async def require_resume_point(self, history: History) -> ResumePoint:
        snapshot = await self._state(history)
        if (waiting := await asking.awaited(history, snapshot.interrupts)) is not None:
            return waiting
        point = self._wrapped.point(snapshot)
        # A question stays in the state until its task is done, also when the run that answered it failed.
        return ResumePoint(ResumeKind.CALL_MODEL) if point.kind is ResumeKind.AWAIT_APPROVAL else point

    async def messages(self, history: History) -> list[dict[str, Any]]:
        return self._wrapped.messages(await self._state(history))

    async def _state(self, history: History) -> StateSnapshot:
        token = HISTORY.set(history)
        try:
            return await self._wrapped.state({"configurable": {"thread_id": history.thread}})
        finally:
            HISTORY.reset(token)


def recognise(target: object) -> LangGraphAgent | None:
    """Wrap a framework object that a command line was pointed at, or return None for what is not ours."""
    return LangGraphAgent(target) if isinstance(target, CompiledStateGraph) else None

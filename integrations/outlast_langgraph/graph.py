"""A compiled graph made durable: its guarded copy, its input, its state."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from outlast.adapters.inputs import Answers, Messages, parse, refuse
from outlast.core.jsontext import encode
from outlast.core.resume import ResumeKind, ResumePoint, require_resume_point
from outlast_langgraph import seams
from outlast_langgraph.messages import as_json, messages_of, transcript
from outlast_langgraph.saver import GuardedSaver, RunSaver, StoreSaver
from outlast_langgraph.store import DurableStore

logger = logging.getLogger("outlast.langgraph")

GraphInput = Messages | Answers | Mapping[str, Any]
"""New messages, answers for a waiting run, or a whole state that fits the graph's input."""


class WrappedGraph:
    """A graph with its tools behind the journal and its checkpoints under the lease of a run."""

    def __init__(self, graph: Any) -> None:
        compiled = _compiled(graph)
        seams.check()
        saver = _saver(compiled)
        self.keeps_own_state = isinstance(saver, GuardedSaver)
        made = seams.instrument(compiled, saver, DurableStore())
        self.guarded = made.graph
        self.warnings = tuple(made.warnings)
        self.messages_key = seams.messages_key(compiled, made)
        self._inputs = seams.input_channels(compiled)
        self._stops = compiled.interrupt_before_nodes
        self.has_breakpoints = bool(compiled.interrupt_before_nodes or compiled.interrupt_after_nodes)

    def read_input(self, value: Any) -> GraphInput:
        """Read an input. Raise RunFailed (`invalid_input`) that says what this graph accepts."""
        resuming = isinstance(value, Mapping) and set(value) == {"resume"}
        if not resuming and isinstance(value, Mapping) and value and set(value) <= self._inputs:
            return self._state_input(value)
        if not resuming and self.messages_key is None:
            raise refuse("this graph has no messages", f"an object with keys of {sorted(self._inputs)}")
        return parse(value)

    def _state_input(self, value: Mapping[str, Any]) -> GraphInput:
        key = self.messages_key
        if key is None or key not in value:
            return value
        if set(value) == {key}:
            return parse({"messages": value[key]}) if isinstance(value[key], list) else parse(value[key])
        try:
            return {**value, key: convert_to_messages(value[key])}
        except (ValueError, NotImplementedError, KeyError, TypeError, AttributeError) as error:
            raise refuse(str(error).splitlines()[0]) from error

    def stops_before(self, names: Sequence[str]) -> bool:
        """Say whether the graph has a breakpoint before one of some nodes."""
        return bool(names) and (self._stops == "*" or any(name in self._stops for name in names))

    async def state(self, config: RunnableConfig) -> StateSnapshot:
        """Return the live state, with that of subgraphs; writes nothing."""
        try:
            return await self.guarded.aget_state(config, subgraphs=True)
        except ValueError:
            # LangGraph 1.2 cannot read subgraphs when one of them has checkpointer=False.
            return await self.guarded.aget_state(config)

    def point(self, snapshot: StateSnapshot) -> ResumePoint:
        """Return the resume point of a state. Raise AgentResumeError with the reason when there is none."""
        key = self.messages_key or "messages"
        if snapshot.interrupts:
            return ResumePoint(ResumeKind.AWAIT_APPROVAL)
        for task in snapshot.tasks:
            if isinstance(task.state, StateSnapshot) and task.state.values:
                return self.point(task.state)
        if snapshot.tasks and self.messages_key is None:
            return ResumePoint(ResumeKind.CALL_MODEL)
        history = messages_of(snapshot.values, key) if snapshot.values else []
        entries = transcript(history)
        if snapshot.next and entries and entries[-1].role == "assistant" and not entries[-1].calls:
            return ResumePoint(ResumeKind.CALL_MODEL)
        return require_resume_point(entries)

    def messages(self, snapshot: StateSnapshot) -> list[dict[str, Any]]:
        """Return the messages of a state in the neutral form; a graph without messages has none."""
        if self.messages_key is None or not snapshot.values:
            return []
        return [as_json(message) for message in messages_of(snapshot.values, self.messages_key)]

    def other_state(self, values: Any) -> dict[str, Any] | None:
        """Return what the state has beside the messages, as far as JSON can say it."""
        if not isinstance(values, Mapping):
            return None
        kept = {key: value for key, value in values.items() if key != self.messages_key and _is_json(value)}
        return kept or None


def _compiled(graph: Any) -> Pregel[Any, Any, Any, Any]:
    if isinstance(graph, CompiledStateGraph):
        return graph
    if isinstance(graph, RunnableSequence):
        raise TypeError(
            "a pipe (`graph | x`) has no state of its own to recover; wrap the graph alone, and put what comes before or "
            "after it into nodes of the graph"
        )
    if hasattr(graph, "compile"):
        raise TypeError("compile the graph first: LangGraphAgent(builder.compile())")
    if isinstance(graph, Pregel):
        raise TypeError("graphs of the functional API (@entrypoint) are not supported; use a StateGraph")
    if isinstance(graph, Runnable):
        raise TypeError(f"a {type(graph).__name__} has no checkpoints to recover from; wrap a compiled graph")
    raise TypeError(f"LangGraphAgent wraps a compiled graph, not a {type(graph).__name__}")


def _saver(graph: Pregel[Any, Any, Any, Any]) -> RunSaver:
    own = graph.checkpointer
    if own is None or isinstance(own, bool):
        return StoreSaver()
    if isinstance(own, InMemorySaver):
        logger.warning("the graph's InMemorySaver would lose its state with the process; the store is used instead")
        return StoreSaver()
    return GuardedSaver(own)


def _is_json(value: Any) -> bool:
    try:
        encode(value)
    except ValueError:
        return False
    return True

"""A compiled graph made durable: its guarded copy, its input, its state."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, cast, get_type_hints, is_typeddict

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot
from pydantic import BaseModel

from outlast.adapters.inputs import Answers, Messages, parse, refuse
from outlast.core.errors import AgentResumeError, RunFailed
from outlast.core.jsontext import encode
from outlast.core.resume import ResumeKind, ResumePoint, require_resume_point
from outlast_langgraph import seams
from outlast_langgraph.coverage import coverage
from outlast_langgraph.messages import as_json, messages_of, transcript
from outlast_langgraph.saver import RETURN, GuardedSaver, RunSaver, StoreSaver
from outlast_langgraph.store import DurableStore

logger = logging.getLogger("outlast.langgraph")


@dataclass(frozen=True, slots=True)
class Argument:
    """What an `@entrypoint` is called with."""

    value: Any


GraphInput = Messages | Answers | Argument | Mapping[str, Any]
"""New messages, answers for a waiting run, an argument, or a whole state that fits the graph's input."""


class WrappedGraph:
    """A graph with its tools behind the journal and its checkpoints under the lease of a run."""

    def __init__(self, graph: Any) -> None:
        compiled = _compiled(graph)
        seams.check()
        saver = _saver(compiled)
        self.is_function = seams.is_function(compiled)
        self.keeps_own_state = isinstance(saver, GuardedSaver)
        made = seams.instrument(compiled, saver, DurableStore())
        self.guarded = made.graph
        self.coverage = tuple(coverage(compiled))
        self.messages_key = seams.messages_key(compiled, made)
        self._context_schema = compiled.context_schema
        self.context_keys = _fields(self._context_schema)
        self._inputs = seams.input_channels(compiled)
        self._stops = compiled.interrupt_before_nodes
        self.has_breakpoints = bool(compiled.interrupt_before_nodes or compiled.interrupt_after_nodes)

    def read_input(self, value: Any) -> GraphInput:
        """Read an input. Raise RunFailed (`invalid_input`) that says what this graph accepts."""
        resuming = isinstance(value, Mapping) and set(value) == {"resume"}
        if self.is_function and not resuming:
            if value is None:
                raise refuse("null, with which no workflow can start", "any other JSON")
            return Argument(value)
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

    def context_of(self, config: Mapping[str, Any]) -> Any:
        """Return the context that a request's config makes, or None for a graph that declares none.

        Raises RunFailed (`invalid_config`).
        """
        if self._context_schema is None:
            return None
        given = {key: value for key, value in config.items() if key in self.context_keys}
        try:
            return given if is_typeddict(self._context_schema) else self._context_schema(**given)
        except (TypeError, ValueError) as error:
            said = str(error).replace(f"{self._context_schema.__name__}.__init__()", "the context of the graph")
            raise RunFailed("invalid_config", said) from error

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

    async def values_at(self, config: RunnableConfig, namespace: str) -> Mapping[str, Any]:
        """Return what the channels of a namespace hold."""
        found = await self._at(config, namespace)
        return {} if found is None else found.checkpoint["channel_values"]

    async def returned_tasks(self, config: RunnableConfig, namespace: str) -> set[str]:
        """Return the ids of the `@task`s whose results the newest step of a namespace has."""
        found = await self._at(config, namespace)
        writes = (found.pending_writes if found is not None else None) or []
        return {task for task, channel, _ in writes if channel == RETURN}

    async def missing_node(self, config: RunnableConfig, snapshot: StateSnapshot) -> str | None:
        """Return the name of a node at which the graph, or one in it, is to go on, and that it does not have."""
        for at in deep(snapshot):
            found = await self._at(config, namespace_of(at))
            if found is not None and (missing := seams.missing_node(self.guarded, namespace_of(at), found)) is not None:
                return missing
        return None

    async def _at(self, config: RunnableConfig, namespace: str) -> CheckpointTuple | None:
        saver = self.guarded.checkpointer
        assert isinstance(saver, RunSaver)
        at = {**config["configurable"], "checkpoint_ns": namespace}
        return await saver.aget_tuple({**config, "configurable": at})

    def point(self, snapshot: StateSnapshot) -> ResumePoint:
        """Return the resume point of a state. Raise AgentResumeError with the reason when there is none."""
        key = self.messages_key or "messages"
        if snapshot.interrupts:
            return ResumePoint(ResumeKind.AWAIT_APPROVAL)
        for task in snapshot.tasks:
            if isinstance(task.state, StateSnapshot) and task.state.values:
                return self.point(task.state)
        if self.messages_key is None:
            if snapshot.tasks:
                return ResumePoint(ResumeKind.CALL_MODEL)
            raise AgentResumeError("empty" if snapshot.metadata is None else "completed")
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

    def returned(self, value: Any) -> tuple[list[BaseMessage], str, Any]:
        """Return what an `@entrypoint` gave: as messages, as text, and, where it is neither, as it is."""
        messages = value if isinstance(value, list) and value else [value]
        if all(isinstance(one, BaseMessage) for one in messages):
            return messages, messages[-1].text, None
        return [], value if isinstance(value, str) else "", None if isinstance(value, str) else plain(value)

    def other_state(self, values: Any) -> dict[str, Any] | None:
        """Return what the state has beside the messages, as far as JSON can say it."""
        if not isinstance(values, Mapping):
            return None
        kept = {key: value for key, value in values.items() if key != self.messages_key and _is_json(value)}
        return kept or None


def _compiled(graph: Any) -> Pregel[Any, Any, Any, Any]:
    if isinstance(graph, CompiledStateGraph) or seams.is_function(graph):
        return cast(Pregel[Any, Any, Any, Any], graph)
    if isinstance(graph, RunnableSequence):
        raise TypeError(
            "a pipe (`graph | x`) has no state of its own to recover; wrap the graph alone, and put what comes before or "
            "after it into nodes of the graph"
        )
    if hasattr(graph, "compile"):
        raise TypeError("compile the graph first: LangGraphAgent(builder.compile())")
    if isinstance(graph, Pregel):
        raise TypeError("a Pregel that was put together by hand is not supported; use a StateGraph or an @entrypoint")
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


def _fields(schema: Any) -> frozenset[str]:
    """Return the names that a context may have."""
    if schema is None:
        return frozenset()
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return frozenset(schema.model_fields)
    return (
        frozenset(field.name for field in fields(schema)) if is_dataclass(schema) else frozenset(get_type_hints(schema))
    )


def namespace_of(snapshot: StateSnapshot) -> str:
    return str(snapshot.config["configurable"].get("checkpoint_ns", ""))


def deep(snapshot: StateSnapshot) -> Iterator[StateSnapshot]:
    """Give the state of the graph, then those of its subgraphs."""
    yield snapshot
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            yield from deep(task.state)


def plain(value: Any) -> Any:
    """Return a value with its messages and models in forms that JSON has."""
    match value:
        case BaseMessage():
            return as_json(value)
        case BaseModel():
            return value.model_dump(mode="json")
        case Mapping():
            return {key: plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value


def _is_json(value: Any) -> bool:
    try:
        encode(value)
    except ValueError:
        return False
    return True

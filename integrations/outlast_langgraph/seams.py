"""The only place that touches private names of LangGraph, and what it does there: a guarded copy of a graph.

`check` looks for every such name when an agent is made, so that another LangGraph fails then, and not in a run.
"""

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import Runnable, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.tools import BaseTool
from langgraph._internal._runnable import RunnableCallable
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from langgraph.constants import START
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.pregel import Pregel
from langgraph.pregel._read import PregelNode
from langgraph.store.base import BaseStore

from outlast_langgraph import saver, tools

PINNED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ToolNode, ("_func", "_afunc", "_execute_tool_sync")),
    (PregelNode, ("copy",)),
    (Pregel, ("copy", "aget_state", "aupdate_state", "astream")),
    (RunnableCallable, ("invoke", "ainvoke")),
)
PINNED_FIELDS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ToolNode, ("_wrap_tool_call", "_awrap_tool_call", "_messages_key")),
    (PregelNode, ("bound", "subgraphs")),
)

_MARK = "_outlast_guarded"


class UnknownLangGraph(ImportError):
    """This version of LangGraph does not have what the adapter builds on."""


def check() -> None:
    """Raise UnknownLangGraph when the installed LangGraph lacks a name this module uses."""
    missing = [f"{owner.__name__}.{name}" for owner, names in PINNED for name in names if not hasattr(owner, name)]
    sample = {ToolNode: ToolNode([]), PregelNode: PregelNode(channels=[], triggers=[])}
    missing += [
        f"{owner.__name__}.{name}"
        for owner, names in PINNED_FIELDS
        for name in names
        if not hasattr(sample[owner], name)
    ]
    missing += [f"channel {name}" for name in (saver.RESUME, saver.INTERRUPT) if name not in WRITES_IDX_MAP]
    if missing:
        raise UnknownLangGraph(
            f"this version of langgraph lacks {', '.join(missing)}; outlast works with langgraph 1.0 to 1.2"
        )


@dataclass(slots=True)
class Instrumented:
    """A guarded copy of a graph, and what could not be guarded in it."""

    graph: Pregel[Any, Any, Any, Any]
    warnings: list[str] = field(default_factory=list)
    tool_nodes: list[ToolNode] = field(default_factory=list)


def instrument(
    graph: Pregel[Any, Any, Any, Any], checkpointer: BaseCheckpointSaver[Any], store: BaseStore
) -> Instrumented:
    """Return a copy of a graph whose tools are journalled and whose state goes to `checkpointer`.

    One that was compiled without a long-term store gets `store`; the graphs in it use the same.

    The graph itself stays as it is, except that tool nodes and graphs which its functions hold are guarded in place:
    no copy can reach them. Without a run they behave as before.
    """
    made = Instrumented(graph)
    made.graph = _copied(
        graph, {"checkpointer": checkpointer, "store": store if graph.store is None else graph.store}, made, ""
    )
    return made


def _copied(
    graph: Pregel[Any, Any, Any, Any], update: dict[str, Any], made: Instrumented, path: str
) -> Pregel[Any, Any, Any, Any]:
    nodes = {name: _node(name, node, made, path) for name, node in graph.nodes.items()}
    return graph.copy({"nodes": nodes, **update})


def _node(name: str, node: PregelNode, made: Instrumented, path: str) -> PregelNode:
    where = f"{path}{name}"
    bound = _guarded_body(node.bound, made, where)
    if bound is None:
        _guard_held(name, node, made, where)
        return node
    changed = node.copy({"bound": bound})
    for cached in ("node", "flat_writers"):
        changed.__dict__.pop(cached, None)
    if isinstance(bound, Pregel):
        # Reading the state of subgraphs goes by this list, not by `bound`.
        changed.subgraphs = [bound]
    return changed


def _guarded_body(body: Any, made: Instrumented, where: str) -> Any:
    """Return the guarded form of a node's body, or None when there is nothing to guard in it."""
    if isinstance(body, ToolNode):
        return guard(body, made)
    if isinstance(body, Pregel):
        if body.checkpointer is False:
            raise TypeError(
                f"the subgraph {where!r} is compiled with checkpointer=False: it keeps nothing to recover from, and LangGraph "
                "cannot run it durably; compile it without that option"
            )
        return _copied(body, {}, made, f"{where}/")
    if isinstance(body, RunnableSequence):
        steps = [_guarded_body(step, made, where) for step in body.steps]
        if any(step is not None for step in steps):
            return RunnableSequence(*[new or old for new, old in zip(steps, body.steps, strict=True)])
    if isinstance(body, RunnableBindingBase) and (bound := _guarded_body(body.bound, made, where)) is not None:
        return body.model_copy(update={"bound": bound})
    return None


def _guard_held(name: str, node: PregelNode, made: Instrumented, where: str) -> None:
    """Guard what a function holds, and warn of what it calls by itself."""
    for graph in node.subgraphs or ():
        if isinstance(graph, Pregel):
            _guard_in_place(graph, made)
    if name == START:
        return
    for value in _held(node.bound):
        if isinstance(value, ToolNode):
            guard(value, made, in_place=True)
        elif isinstance(value, BaseTool):
            made.warnings.append(
                f"{where}: a function that calls the tool {value.name!r} by itself; after a crash its calls are answered "
                "and the function is not entered again"
            )


def _guard_in_place(graph: Pregel[Any, Any, Any, Any], made: Instrumented) -> None:
    for node in graph.nodes.values():
        if isinstance(node.bound, ToolNode):
            guard(node.bound, made, in_place=True)
        elif isinstance(node.bound, Pregel):
            _guard_in_place(node.bound, made)


def _held(body: Runnable[Any, Any] | None) -> Iterator[object]:
    function = getattr(body, "afunc", None) or getattr(body, "func", None)
    function = getattr(function, "__wrapped__", function)
    if not inspect.isfunction(function):
        return
    found = inspect.getclosurevars(function)
    held: Mapping[str, object]
    for held in (found.nonlocals, found.globals):
        for value in held.values():
            yield from value.values() if isinstance(value, dict) else [value]


def guard(node: ToolNode, made: Instrumented, *, in_place: bool = False) -> ToolNode:
    """Return a copy of a tool node, or the node itself, that takes every call to the journal first."""
    if getattr(node, _MARK, False):
        return node
    guarded = node if in_place else copy.copy(node)
    if not in_place:
        # The runnable keeps bound methods of the node it was made for.
        guarded.func, guarded.afunc = guarded._func, guarded._afunc
    setattr(guarded, _MARK, True)
    inner, ainner = node._wrap_tool_call, node._awrap_tool_call
    guarded._wrap_tool_call = _sync_wrapper(guarded, inner)
    guarded._awrap_tool_call = _async_wrapper(guarded, inner, ainner)
    made.tool_nodes.append(guarded)
    return guarded


Handler = Callable[[ToolCallRequest], Any]
AsyncHandler = Callable[[ToolCallRequest], Awaitable[Any]]


def _sync_wrapper(node: ToolNode, inner: Callable[[ToolCallRequest, Handler], Any] | None) -> Any:
    def wrap(request: ToolCallRequest, handler: Handler) -> Any:
        run = tools.current_run()

        def body() -> Any:
            return inner(request, handler) if inner is not None else handler(request)

        if run is None:
            return body()
        return tools.guarded_in_thread(run, tools.call_of(request, node._messages_key, run), body)

    return wrap


def _async_wrapper(
    node: ToolNode,
    inner: Callable[[ToolCallRequest, Handler], Any] | None,
    ainner: Callable[[ToolCallRequest, AsyncHandler], Awaitable[Any]] | None,
) -> Any:
    async def wrap(request: ToolCallRequest, handler: AsyncHandler) -> Any:
        run = tools.current_run()

        async def body() -> Any:
            if ainner is not None:
                return await ainner(request, handler)
            if inner is not None:
                return await asyncio.to_thread(inner, request, _sync_execution(node))
            return await handler(request)

        if run is None:
            return await body()
        return await tools.guarded(run, tools.call_of(request, node._messages_key, run), body)

    return wrap


def _sync_execution(node: ToolNode) -> Handler:
    """A node whose only wrapper is synchronous executes its tools synchronously too, as LangGraph does."""

    def execute(request: ToolCallRequest) -> Any:
        return node._execute_tool_sync(request, "tool_calls", request.runtime.config)

    return execute


def nodes_at(graph: Pregel[Any, Any, Any, Any], namespace: str) -> Mapping[str, PregelNode]:
    """Return the nodes of the graph, or of the subgraph whose checkpoints have a namespace."""
    for part in filter(None, namespace.split("|")):
        name = part.split(":")[0]
        bound = graph.nodes[name].bound
        graph = bound if isinstance(bound, Pregel) else next(iter(_graphs(graph.nodes[name].subgraphs)))
    return graph.nodes


def _graphs(found: Iterable[object] | None) -> Iterator[Pregel[Any, Any, Any, Any]]:
    return (graph for graph in found or () if isinstance(graph, Pregel))


def answers_calls(node: PregelNode | None) -> bool:
    """Say whether a node may be entered again: its tools, or those of the graph in it, are behind the journal."""
    if node is None:
        return False
    return (
        isinstance(node.bound, Pregel)
        or holds_tool_node(node.bound)
        or any(isinstance(value, ToolNode) for value in _held(node.bound))
        or bool(node.subgraphs)
    )


def holds_tool_node(body: Any) -> bool:
    """Say whether a body is a tool node, or a pipe or binding around one."""
    if isinstance(body, ToolNode):
        return True
    if isinstance(body, RunnableSequence):
        return any(holds_tool_node(step) for step in body.steps)
    return isinstance(body, RunnableBindingBase) and holds_tool_node(body.bound)


def input_channels(graph: Pregel[Any, Any, Any, Any]) -> frozenset[str]:
    """Return the names a graph's input may have."""
    builder = getattr(graph, "builder", None)
    schema = getattr(builder, "input_schema", None)
    schemas = getattr(builder, "schemas", {})
    if schema in schemas:
        return frozenset(schemas[schema])
    return frozenset(name for name in graph.channels if not name.startswith(("__", "branch:")))


def messages_key(graph: Pregel[Any, Any, Any, Any], made: Instrumented) -> str | None:
    """Return the name of the channel that holds the conversation, or None for a graph without one."""
    for key in ("messages", *(node._messages_key for node in made.tool_nodes)):
        if key in graph.channels:
            return key
    return None

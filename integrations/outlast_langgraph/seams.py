"""The only place that touches private names of LangGraph, and what it does there: a guarded copy of a graph.

`check` looks for every such name when an agent is made, so that another LangGraph fails then, and not in a run.
"""

import asyncio
import concurrent.futures
import copy
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import count
from types import CodeType
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD, PREVIOUS, RETURN, TASKS
from langgraph._internal._runnable import RunnableCallable
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.func import _TaskFunction
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.pregel import Pregel, _runner
from langgraph.pregel._loop import AsyncPregelLoop, PregelLoop, SyncPregelLoop
from langgraph.pregel._read import PregelNode
from langgraph.store.base import BaseStore
from langgraph.types import PregelExecutableTask, Send

from outlast.adapters.journal import ToolCall
from outlast.adapters.run import Run
from outlast.core.errors import RunFailed
from outlast_langgraph import places, saver, tools
from outlast_langgraph.answers import IS_SEEN, Asked
from outlast_langgraph.observer import Observer

PINNED: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ToolNode, ("_func", "_afunc", "_execute_tool_sync")),
    (PregelNode, ("copy",)),
    (Pregel, ("copy", "aget_state", "aupdate_state", "astream")),
    (RunnableCallable, ("invoke", "ainvoke")),
    (BaseTool, ("run", "arun", "_filter_injected_args")),
    (BaseChatModel, ("invoke", "ainvoke", "stream", "astream", "generate", "agenerate", "_convert_input")),
    (BaseLLM, ("generate", "agenerate")),
)
PINNED_FIELDS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ToolNode, ("_wrap_tool_call", "_awrap_tool_call", "_messages_key")),
    (PregelNode, ("bound", "subgraphs")),
)
_LOOP_FIELD = "_checkpointer_put_after_previous"
_LOOP_FUTURE = "_put_checkpoint_fut"
_SCRATCHPAD_FIELDS = ("call_counter", "subgraph_counter")
_BRANCH, _JOIN = "branch:to:", "join:"
_RUNNERS = ("run_with_retry", "arun_with_retry")

_MODELS = {("langchain.agents.factory", name) for name in ("model_node", "amodel_node")}
"""The functions of `create_agent` that call its model, by module and name."""

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
    missing += [
        f"{loop.__name__}.{_LOOP_FIELD}" for loop in (SyncPregelLoop, AsyncPregelLoop) if not hasattr(loop, _LOOP_FIELD)
    ]
    missing += [
        f"PregelScratchpad.{name}" for name in _SCRATCHPAD_FIELDS if name not in PregelScratchpad.__dataclass_fields__
    ]
    missing += [name for name in _RUNNERS if not hasattr(_runner, name)]
    if saver.RETURN != RETURN:
        missing.append(f"channel {saver.RETURN}")
    missing += [f"channel {name}" for name in (saver.RESUME, saver.INTERRUPT) if name not in WRITES_IDX_MAP]
    if missing:
        raise UnknownLangGraph(
            f"this version of langgraph lacks {', '.join(missing)}; outlast works with langgraph 1.0 to 1.2"
        )


@dataclass(slots=True)
class Instrumented:
    """A guarded copy of a graph, and what could not be guarded in it."""

    graph: Pregel[Any, Any, Any, Any]
    tool_nodes: list[ToolNode] = field(default_factory=list)


def instrument(
    graph: Pregel[Any, Any, Any, Any], checkpointer: BaseCheckpointSaver[Any], store: BaseStore
) -> Instrumented:
    """Return a copy of a graph whose tools are journalled and whose state goes to `checkpointer`.

    One that was compiled without a long-term store gets `store`; the graphs in it use the same.

    The graph itself stays as it is, except that tool nodes and graphs which its functions hold are guarded in place:
    no copy can reach them. Without a run they behave as before.
    """
    see_entries()
    see_models()
    see_tools()
    wait_for_nothing()
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
        _guard_held(node, made)
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
        return _copied(body, {}, made, f"{where}/")
    if isinstance(body, RunnableSequence):
        steps = [_guarded_body(step, made, where) for step in body.steps]
        if any(step is not None for step in steps):
            return RunnableSequence(*[new or old for new, old in zip(steps, body.steps, strict=True)])
    if isinstance(body, RunnableBindingBase) and (bound := _guarded_body(body.bound, made, where)) is not None:
        return body.model_copy(update={"bound": bound})
    return None


def _guard_held(node: PregelNode, made: Instrumented) -> None:
    """Guard what a function holds."""
    for graph in node.subgraphs or ():
        if isinstance(graph, Pregel):
            _guard_in_place(graph, made)
    for value in held(node.bound):
        if isinstance(value, ToolNode):
            guard(value, made, in_place=True)


def _guard_in_place(graph: Pregel[Any, Any, Any, Any], made: Instrumented) -> None:
    for node in graph.nodes.values():
        if isinstance(node.bound, ToolNode):
            guard(node.bound, made, in_place=True)
        elif isinstance(node.bound, Pregel):
            _guard_in_place(node.bound, made)


def held(body: Any) -> Iterator[object]:
    """Give the values that the function of a node names, and those in the dicts and lists among them."""
    function = body if inspect.isfunction(body) else getattr(body, "afunc", None) or getattr(body, "func", None)
    function = getattr(function, "__wrapped__", function)
    if not inspect.isfunction(function):
        return
    named = dict(inspect.getclosurevars(function).nonlocals)
    named |= {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for value in named.values():
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    """Give the names that a function looks up, also in the functions and comprehensions within."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def unbound(value: object) -> object:
    """Return what is in the bindings around a value, as `model.bind_tools(…)` makes them."""
    while isinstance(value, RunnableBindingBase):
        value = value.bound
    return value


def function_of_task(value: object) -> Any:
    """Return the function of a `@task`, or None for anything else."""
    return value.func if isinstance(value, _TaskFunction) else None


def is_middleware(node: PregelNode | None) -> bool:
    """Say whether a node is a hook of a middleware of `create_agent`, which runs between the model and the tools."""
    return node is not None and _is_a(_owner(node), "AgentMiddleware")


def asked_about_in_tools(nodes: Mapping[str, PregelNode]) -> set[str]:
    """Name the tools about which `HumanInTheLoopMiddleware` asks where they would run, and not in a hook before."""
    owners = [owner for node in nodes.values() if _is_a(owner := _owner(node), "HumanInTheLoopMiddleware")]
    return {
        name
        for owner in owners
        if getattr(owner, "interrupt_mode", None) == "per_call"
        for name in getattr(owner, "interrupt_on", ())
    }


def _owner(node: PregelNode) -> object:
    function = getattr(node.bound, "func", None) or getattr(node.bound, "afunc", None)
    return getattr(function, "__self__", None)


def _is_a(value: object, name: str) -> bool:
    """Look a class of LangChain up by its name: the package need not be installed."""
    return any(c.__name__ == name and c.__module__.startswith("langchain.") for c in type(value).__mro__)


def is_model_node(node: PregelNode) -> bool:
    """Say whether a node is the one in which `create_agent` calls its model."""
    function = getattr(node.bound, "afunc", None) or getattr(node.bound, "func", None)
    return (getattr(function, "__module__", None), getattr(function, "__qualname__", "").rpartition(".")[2]) in _MODELS


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


# Graphs without checkpoints ----------------------------------------------------------------------------------------


class _NothingToWaitFor:
    """What a graph without checkpoints waits for after each step; one with checkpoints sets its own in its place."""

    def __init__(self, done: Callable[[], Any]) -> None:
        self._done = done

    def __get__(self, loop: PregelLoop | None, owner: type) -> Any:
        if loop is None:
            return self
        if getattr(loop, _LOOP_FIELD) is not None:
            raise AttributeError(_LOOP_FUTURE)
        return self._done()


def wait_for_nothing() -> None:
    """Let a graph without checkpoints run inside one whose durability is "sync".

    It takes over the durability, and then LangGraph 1.2 waits for the checkpoint of each step without asking whether
    there is one: AttributeError, `_put_checkpoint_fut`.
    """
    for loop, done in ((SyncPregelLoop, _done), (AsyncPregelLoop, _done_here)):
        if _LOOP_FUTURE not in vars(loop):
            setattr(loop, _LOOP_FUTURE, _NothingToWaitFor(done))


def _done() -> "concurrent.futures.Future[None]":
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.set_result(None)
    return future


def _done_here() -> "asyncio.Future[None]":
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


# Tasks, whenever they are entered ----------------------------------------------------------------------------------


def see_entries() -> None:
    """Have a run know of each entry into the code of a task; outside of runs tasks are as they were."""
    for name in _RUNNERS:
        if not getattr(original := getattr(_runner, name), _MARK, False):
            setattr(_runner, name, _counted(original))


def _counted(original: Callable[..., Any]) -> Any:
    @wraps(original)
    def run(task: PregelExecutableTask, *arguments: Any, **options: Any) -> Any:
        observer = saver.observer_of(task.config)
        if observer is not None:
            task = replace(task, proc=cast(Runnable[Any, Any], _Entered(task, observer)))
        return original(task, *arguments, **options)

    setattr(run, _MARK, True)
    return run


class _Entered:
    """Takes the place of what a task runs. In every entry its graphs and tasks have the same numbers, so that they go on.

    LangGraph has them go on when a retry policy enters a task again, but counts further, and then does not find them.
    """

    def __init__(self, task: PregelExecutableTask, observer: Observer) -> None:
        self._task, self._observer = task, observer

    @contextmanager
    def _entry(self, config: RunnableConfig) -> Iterator[RunnableConfig]:
        try:
            self._observer.enter(self._task.config)
        except RunFailed as error:
            raise saver.Stopped(error) from error
        yield self._numbered(config)
        self._observer.leave(self._task.config)

    def _numbered(self, config: RunnableConfig) -> RunnableConfig:
        configurable = config["configurable"]
        again = replace(
            configurable[CONFIG_KEY_SCRATCHPAD], call_counter=count().__next__, subgraph_counter=count().__next__
        )
        # Where LangGraph looks for the number of the next `@task`.
        self._task.config["configurable"][CONFIG_KEY_SCRATCHPAD] = again
        return cast(RunnableConfig, {**config, "configurable": {**configurable, CONFIG_KEY_SCRATCHPAD: again}})

    def invoke(self, input: Any, config: RunnableConfig) -> Any:
        with self._entry(config) as own:
            return self._task.proc.invoke(input, own)

    async def ainvoke(self, input: Any, config: RunnableConfig) -> Any:
        with self._entry(config) as own:
            return await self._task.proc.ainvoke(input, own)

    async def astream(self, input: Any, config: RunnableConfig) -> AsyncIterator[Any]:
        with self._entry(config) as own:
            async for piece in self._task.proc.astream(input, own):
                yield piece


# Models, wherever they are asked -----------------------------------------------------------------------------------


def see_models() -> None:
    """Have every chat model that is asked in a run give what it had said; outside of runs models are as they were."""
    if not getattr(BaseChatModel.invoke, _MARK, False):
        BaseChatModel.invoke = _told(BaseChatModel.invoke)  # type: ignore[method-assign]
        BaseChatModel.ainvoke = _atold(BaseChatModel.ainvoke)  # type: ignore[method-assign]
        BaseChatModel.stream = _streamed(BaseChatModel.stream)  # type: ignore[method-assign]
        BaseChatModel.astream = _astreamed(BaseChatModel.astream)  # type: ignore[method-assign]
        for kind in (BaseChatModel, BaseLLM):
            kind.generate = _lost(kind.generate)  # type: ignore[method-assign]
            kind.agenerate = _lost(kind.agenerate)  # type: ignore[method-assign]


def _lost(original: Callable[..., Any]) -> Any:
    """A model is reached that way too, by one with an `invoke` of its own; nobody hears of it where it hands on no callbacks."""

    @wraps(original)
    def generate(model: Any, /, *arguments: Any, **options: Any) -> Any:
        if (observer := saver.observer_of(ensure_config())) is not None and places.namespace(ensure_config()):
            observer.lose()
        return original(model, *arguments, **options)

    return generate


def _ask(model: BaseChatModel, input: Any, config: RunnableConfig | None, options: Mapping[str, Any]) -> Asked | None:
    """Note what a model is asked; None where that is no matter, or was noted around this call."""
    config = places.within(config)
    observer = saver.observer_of(config)
    if observer is None or IS_SEEN.get() or not places.namespace(config):
        return None
    task, messages = places.namespace(config), model._convert_input(input).to_messages()
    try:
        return observer.answers.ask(places.task(observer.steady, task), task, messages, options)
    except RunFailed as error:
        raise saver.Stopped(error) from error


def _told(original: Callable[..., Any]) -> Any:
    @wraps(original)
    def invoke(model: BaseChatModel, /, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        asked = _ask(model, input, config, options)
        if asked is None:
            return original(model, input, config, **options)
        if asked.answer is None:
            with asked.under_way():
                asked.answered(original(model, input, config, **options))
        return asked.answer

    setattr(invoke, _MARK, True)
    return invoke


def _atold(original: Callable[..., Awaitable[Any]]) -> Any:
    @wraps(original)
    async def ainvoke(model: BaseChatModel, /, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        asked = _ask(model, input, config, options)
        if asked is None:
            return await original(model, input, config, **options)
        if asked.answer is None:
            with asked.under_way():
                asked.answered(await original(model, input, config, **options))
        return asked.answer

    return ainvoke


def _streamed(original: Callable[..., Iterator[Any]]) -> Any:
    @wraps(original)
    def stream(
        model: BaseChatModel, /, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Iterator[Any]:
        asked = _ask(model, input, config, options)
        if asked is None:
            yield from original(model, input, config, **options)
        elif asked.answer is not None:
            yield asked.as_chunk()
        else:
            pieces = iter(original(model, input, config, **options))
            while True:
                with asked.under_way():
                    piece = next(pieces, None)
                    asked.came(piece)
                if piece is None:
                    return
                yield piece

    return stream


def _astreamed(original: Callable[..., AsyncIterator[Any]]) -> Any:
    @wraps(original)
    async def astream(
        model: BaseChatModel, /, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> AsyncIterator[Any]:
        asked = _ask(model, input, config, options)
        if asked is not None and asked.answer is not None:
            yield asked.as_chunk()
            return
        pieces = original(model, input, config, **options)
        if asked is None:
            async for piece in pieces:
                yield piece
            return
        while True:
            with asked.under_way():
                piece = await anext(pieces, None)
                asked.came(piece)
            if piece is None:
                return
            yield piece

    return astream


# Tools, wherever they run -----------------------------------------------------------------------------------------


def see_tools() -> None:
    """Have every tool that runs in a run pass by the journal; outside of runs tools are as they were."""
    if not getattr(BaseTool.run, _MARK, False):
        BaseTool.run = _seen(BaseTool.run)  # type: ignore[method-assign]
        BaseTool.arun = _aseen(BaseTool.arun)  # type: ignore[method-assign]


def _seen(original: Callable[..., Any]) -> Any:
    @wraps(original)
    def run(tool: BaseTool, /, tool_input: Any, *arguments: Any, **options: Any) -> Any:
        config = ensure_config(options.get("config"))
        observer, call_id = saver.observer_of(config), options.get("tool_call_id")
        if observer is None:
            return original(tool, tool_input, *arguments, **options)

        def body(call: ToolCall) -> Any:
            with tools.of_call(None):
                return original(tool, tool_input, *arguments, **options, config=_inside(config, call))

        options.pop("config", None)
        if (call := tools.call_under_way(call_id)) is not None:
            return body(call)
        called = tools.Called(observer, tool.name, call_id, _arguments(tool, tool_input), places.within(config))
        return called.run_in_thread(lambda: body(called.call))

    setattr(run, _MARK, True)
    return run


def _aseen(original: Callable[..., Awaitable[Any]]) -> Any:
    @wraps(original)
    async def arun(tool: BaseTool, /, tool_input: Any, *arguments: Any, **options: Any) -> Any:
        config = ensure_config(options.get("config"))
        observer, call_id = saver.observer_of(config), options.get("tool_call_id")
        if observer is None:
            return await original(tool, tool_input, *arguments, **options)

        async def body(call: ToolCall) -> Any:
            with tools.of_call(None):
                return await original(tool, tool_input, *arguments, **options, config=_inside(config, call))

        options.pop("config", None)
        if (call := tools.call_under_way(call_id)) is not None:
            return await body(call)
        called = tools.Called(observer, tool.name, call_id, _arguments(tool, tool_input), places.within(config))
        return await called.run(lambda: body(called.call))

    return arun


def _arguments(tool: BaseTool, given: Any) -> Any:
    """Return the arguments of a tool without those that LangChain puts in."""
    return tool._filter_injected_args(given) if isinstance(given, dict) else given


def _inside(config: RunnableConfig, call: ToolCall) -> RunnableConfig:
    """Return a config in which the graphs that a tool runs are numbered from the call's own number."""
    configurable = config.get("configurable") or {}
    scratchpad = configurable.get(CONFIG_KEY_SCRATCHPAD)
    if not isinstance(scratchpad, PregelScratchpad):
        return config
    own = replace(scratchpad, subgraph_counter=count(places.first_graph(call)).__next__)
    return cast(RunnableConfig, {**config, "configurable": {**configurable, CONFIG_KEY_SCRATCHPAD: own}})


def _sync_wrapper(node: ToolNode, inner: Callable[[ToolCallRequest, Handler], Any] | None) -> Any:
    def wrap(request: ToolCallRequest, handler: Handler) -> Any:
        run = tools.current_run()

        def body() -> Any:
            return inner(request, handler) if inner is not None else handler(request)

        if run is None:
            return body()
        call = tools.call_of(request, node._messages_key, run)
        with tools.of_call(call):
            return tools.guarded_in_thread(
                run, call, body, before=_said_before(call, request), again=_inner_state(run, call, request)
            )

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
        call = tools.call_of(request, node._messages_key, run)
        with tools.of_call(call):
            return await tools.guarded(
                run, call, body, before=_said_before(call, request), again=_inner_state(run, call, request)
            )

    return wrap


def _said_before(call: ToolCall, request: ToolCallRequest) -> dict[str, Any]:
    """Where a graph without checkpoints has the model and the tools, they are in one place."""
    observer = saver.observer_of(request.runtime.config)
    return {} if observer is None else tools.said_before(observer, request.runtime.config, call)


def _inner_state(run: Run, call: ToolCall, request: ToolCallRequest) -> tools.Again:
    return lambda: tools.has_inner_state(run, call, request.runtime.config)


def _sync_execution(node: ToolNode) -> Handler:
    """A node whose only wrapper is synchronous executes its tools synchronously too, as LangGraph does."""

    def execute(request: ToolCallRequest) -> Any:
        return node._execute_tool_sync(request, "tool_calls", request.runtime.config)

    return execute


def nodes_at(graph: Pregel[Any, Any, Any, Any], namespace: str) -> Mapping[str, PregelNode]:
    """Return the nodes of the graph, or of the subgraph whose checkpoints have a namespace."""
    return _graph_at(graph, namespace).nodes


def missing_node(graph: Pregel[Any, Any, Any, Any], namespace: str, found: CheckpointTuple) -> str | None:
    """Return the name of a node at which a graph is to go on from a checkpoint, and that it does not have.

    LangGraph takes a checkpoint that says so for one of a run that is over.
    """
    graph = _graph_at(graph, namespace)
    written = [(channel, value) for _, channel, value in found.pending_writes or ()]
    for channel, value in [*found.checkpoint["channel_values"].items(), *written]:
        if channel == TASKS:
            names = [one.node for one in (value if isinstance(value, list) else [value]) if isinstance(one, Send)]
        elif channel not in graph.channels and (
            channel.startswith(_BRANCH) or (channel.startswith(_JOIN) and _has_begun(value))
        ):
            names = [channel.rpartition(":")[2]]
        else:
            continue
        if missing := [name for name in names if channel != TASKS or name not in graph.nodes]:
            return missing[0]
    return None


def _has_begun(joined: Any) -> bool:
    """Say whether one of the nodes that a join waits for is done."""
    return bool(joined[0] if isinstance(joined, tuple) else joined)


def _graph_at(graph: Pregel[Any, Any, Any, Any], namespace: str) -> Pregel[Any, Any, Any, Any]:
    for part in filter(None, namespace.split("|")):
        name = part.split(":")[0]
        bound = graph.nodes[name].bound
        graph = bound if isinstance(bound, Pregel) else next(iter(_graphs(graph.nodes[name].subgraphs)))
    return graph


def _graphs(found: Iterable[object] | None) -> Iterator[Pregel[Any, Any, Any, Any]]:
    return (graph for graph in found or () if isinstance(graph, Pregel))


def answers_calls(node: PregelNode | None) -> bool:
    """Say whether a node may be entered again: its tools, or those of the graph in it, are behind the journal."""
    if node is None:
        return False
    return (
        isinstance(node.bound, Pregel)
        or holds_tool_node(node.bound)
        or any(isinstance(value, ToolNode) for value in held(node.bound))
        or bool(node.subgraphs)
    )


def answers_calls_itself(node: PregelNode | None) -> bool:
    """Say whether a node does nothing but run tools behind the journal, or another graph."""
    return node is not None and (isinstance(node.bound, Pregel) or holds_tool_node(node.bound))


def holds_tool_node(body: Any) -> bool:
    """Say whether a body is a tool node, or a pipe or binding around one."""
    if isinstance(body, ToolNode):
        return True
    if isinstance(body, RunnableSequence):
        return any(holds_tool_node(step) for step in body.steps)
    return isinstance(body, RunnableBindingBase) and holds_tool_node(body.bound)


def is_function(graph: object) -> bool:
    """Say whether a graph was made of a function by `@entrypoint`."""
    return isinstance(graph, Pregel) and not isinstance(graph, CompiledStateGraph) and PREVIOUS in graph.channels


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

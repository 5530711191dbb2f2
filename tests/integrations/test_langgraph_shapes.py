"""Every shape of graph, killed by SIGKILL in the middle of a tool: no tool runs again, and the session goes on.

The model asks for `a` and `b` in one answer, with the same call ids in every turn. `a` ends, `b` is cut off.
"""

import ast
import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage, message_chunk_to_message
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from outlast.adapters import open_store
from outlast.core.resume import CANCELLED_RESULT, INTERRUPTED_RESULT
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

CALLS = (ScriptedCall("a", {"x": 1}), ScriptedCall("b", {"x": 2}))
A, B, UNKNOWN = "result of a", "result of b", INTERRUPTED_RESULT


class World:
    """The outside: two tools that write down that they ran, and a model that writes down what it saw."""

    def __init__(self, folder: str, kill: bool) -> None:
        self.effects = EffectsLog(Path(folder) / "effects")
        self.views = EffectsLog(Path(folder) / "views")
        self.kill = kill
        self.model = ScriptedChatModel(script=Script(Say("Looking.", CALLS), Say("Done."), on_call=self._note))

    def _note(self, history: History) -> None:
        self.views.append(repr([(message["role"], message["content"]) for message in history]))

    def tools(self) -> list[BaseTool]:
        @tool
        async def a(x: int) -> str:
            """A quick tool."""
            self.effects.append("a")
            return A

        @tool
        async def b(x: int) -> str:
            """A slow tool."""
            self.effects.append("b")
            await asyncio.sleep(0.1)
            self._die()
            return B

        return [a, b]

    def sync_tools(self) -> list[BaseTool]:
        @tool
        def a(x: int) -> str:
            """A quick tool."""
            self.effects.append("a")
            return A

        @tool
        def b(x: int) -> str:
            """A slow tool."""
            self.effects.append("b")
            time.sleep(0.1)
            self._die()
            return B

        return [a, b]

    def _die(self) -> None:
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    async def call_model(self, state: MessagesState) -> dict[str, Any]:
        return {"messages": [await self.model.ainvoke(state["messages"])]}


def loop_graph(world: World, tools: Any, route: Any = tools_condition, targets: Any = None) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("model", world.call_model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_edge("tools", "model")
    graph.add_conditional_edges("model", route, *([targets] if targets else []))
    return graph.compile()


def create_agent_graph(world: World) -> Any:
    return create_agent(world.model, world.tools())


def tool_node(world: World) -> Any:
    return loop_graph(world, ToolNode(world.tools()))


def send(world: World) -> Any:
    def fan_out(state: MessagesState) -> Any:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return [Send("tools", [call]) for call in last.tool_calls] or END

    return loop_graph(world, ToolNode(world.tools()), fan_out, ["tools", END])


def around(inner: Any) -> Any:
    return StateGraph(MessagesState).add_node("agent", inner).add_edge(START, "agent").compile()


def subgraph(world: World) -> Any:
    return around(create_agent(world.model, world.tools()))


def subgraph_with_own_history(world: World) -> Any:
    return around(create_agent(world.model, world.tools(), checkpointer=True))


def subgraph_in_function(world: World) -> Any:
    inner: Any = create_agent(world.model, world.tools())

    async def run_inner(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await inner.ainvoke({"messages": state["messages"]}))["messages"]}

    return around(run_inner)


def sync_tools(world: World) -> Any:
    return create_agent(world.model, world.sync_tools())


class PassThrough(AgentMiddleware[Any, Any]):
    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return await handler(request)


def middleware(world: World) -> Any:
    return create_agent(world.model, world.tools(), middleware=[PassThrough()])


def sync_loop(world: World) -> Any:
    """A graph whose nodes call a graph synchronously, in a thread."""
    inner: Any = create_agent(world.model, world.sync_tools())

    def run_inner(state: MessagesState) -> dict[str, Any]:
        return {"messages": inner.invoke({"messages": state["messages"]})["messages"]}

    return around(run_inner)


def piped(world: World) -> Any:
    return loop_graph(world, ToolNode(world.tools()).with_config(tags=["x"]) | (lambda state: state))


def tool_node_in_function(world: World) -> Any:
    held = ToolNode(world.tools())

    async def use(state: MessagesState) -> Any:
        return await held.ainvoke(state)

    return loop_graph(world, use)


def own_node(world: World) -> Any:
    by_name = {found.name: found for found in world.tools()}

    async def run(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return {"messages": [await by_name[call["name"]].ainvoke(call) for call in last.tool_calls]}

    return loop_graph(world, run)


def own_node_without_ids(world: World) -> Any:
    by_name = {found.name: found for found in world.tools()}

    async def run(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        results = [(await by_name[call["name"]].ainvoke(call["args"]), call["id"]) for call in last.tool_calls]
        return {"messages": [ToolMessage(result, tool_call_id=id or "") for result, id in results]}

    return loop_graph(world, run)


def sync_node_without_ids(world: World) -> Any:
    by_name = {found.name: found for found in world.sync_tools()}

    def run(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        results = [(by_name[call["name"]].invoke(call["args"]), call["id"]) for call in last.tool_calls]
        return {"messages": [ToolMessage(result, tool_call_id=id or "") for result, id in results]}

    return loop_graph(world, run)


def plain_functions(world: World) -> Any:
    a, b = (found.coroutine for found in world.tools())  # type: ignore[attr-defined]

    async def run(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        functions = {"a": a, "b": b}
        return {
            "messages": [
                ToolMessage(await functions[call["name"]](**call["args"]), tool_call_id=call["id"] or "")
                for call in last.tool_calls
            ]
        }

    return loop_graph(world, run)


def one_node(world: World) -> Any:
    by_name = {found.name: found for found in world.tools()}

    async def loop(state: MessagesState) -> dict[str, Any]:
        said: list[Any] = []
        while True:
            said.append(await world.model.ainvoke([*state["messages"], *said]))
            if not said[-1].tool_calls:
                return {"messages": said}
            said += [await by_name[call["name"]].ainvoke(call) for call in said[-1].tool_calls]

    return around(loop)


def sync_node(world: World) -> Any:
    by_name = {found.name: found for found in world.sync_tools()}

    def loop(state: MessagesState) -> dict[str, Any]:
        said: list[Any] = []
        while True:
            said.append(world.model.invoke([*state["messages"], *said]))
            if not said[-1].tool_calls:
                return {"messages": said}
            said += [by_name[call["name"]].invoke(call) for call in said[-1].tool_calls]

    return around(loop)


def streaming_node(world: World) -> Any:
    by_name = {found.name: found for found in world.tools()}

    async def loop(state: MessagesState) -> dict[str, Any]:
        said: list[Any] = []
        while True:
            answer: Any = None
            async for chunk in world.model.astream([*state["messages"], *said]):
                answer = chunk if answer is None else answer + chunk
            said.append(message_chunk_to_message(answer))
            if not answer.tool_calls:
                return {"messages": said}
            said += [await by_name[call["name"]].ainvoke(call) for call in answer.tool_calls]

    return around(loop)


def without_checkpoints(world: World) -> Any:
    return around(create_agent(world.model, world.tools(), checkpointer=False))


def without_checkpoints_in_function(world: World) -> Any:
    inner: Any = create_agent(world.model, world.tools(), checkpointer=False)

    async def run_inner(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await inner.ainvoke({"messages": state["messages"]}))["messages"]}

    return around(run_inner)


def without_checkpoints_in_thread(world: World) -> Any:
    inner: Any = create_agent(world.model, world.sync_tools(), checkpointer=False)

    def run_inner(state: MessagesState) -> dict[str, Any]:
        return {"messages": inner.invoke({"messages": state["messages"]})["messages"]}

    return around(run_inner)


# What the model sees as the results of `a` and `b` after the recovery.
SHAPES: dict[str, tuple[Callable[[World], Any], list[str]]] = {
    shape.__name__: (shape, results)
    for shape, results in [
        (create_agent_graph, [A, UNKNOWN]),
        (tool_node, [A, UNKNOWN]),
        (send, [A, UNKNOWN]),
        (subgraph, [A, UNKNOWN]),
        (subgraph_with_own_history, [A, UNKNOWN]),
        (subgraph_in_function, [A, UNKNOWN]),
        (sync_tools, [A, UNKNOWN]),
        (sync_loop, [A, UNKNOWN]),
        (middleware, [A, UNKNOWN]),
        (piped, [A, UNKNOWN]),
        (tool_node_in_function, [A, UNKNOWN]),
        (own_node, [A, UNKNOWN]),
        (own_node_without_ids, [A, UNKNOWN]),
        (sync_node_without_ids, [A, UNKNOWN]),
        (plain_functions, [UNKNOWN, UNKNOWN]),
    ]
}


# The model and the tools are in one node: no checkpoint shows what was said in it before it ends.
LOOPS = [
    shape.__name__
    for shape in (
        one_node, sync_node, streaming_node, without_checkpoints, without_checkpoints_in_function,
        without_checkpoints_in_thread,
    )
]  # fmt: skip


def shape_named(name: str) -> Callable[[World], Any]:
    found: Callable[[World], Any] = globals()[name]
    return found


async def talk(url: str, shape: str, folder: str, message: str | None, kill: bool = False) -> dict[str, Any]:
    """Send a message, or resume; return the reply and the log."""
    agent = LangGraphAgent(shape_named(shape)(World(folder, kill)))
    async with open_store(url) as store:
        chat = agent.session("s", store=store)
        events = [event async for event in (chat.stream_resume() if message is None else chat.stream(message))]
        reply = events[-1]["reply"]
        return {
            "status": events[-1]["status"],
            "error": events[-1].get("error"),
            "text": reply.text if reply else None,
            "results": [m["content"] for m in reply.messages if m["role"] == "tool"] if reply else None,
            "events": events[:-1],
        }


async def point(url: str, shape: str, folder: str) -> Any:
    agent = LangGraphAgent(shape_named(shape)(World(folder, kill=False)))
    async with open_store(url) as store:
        found = await agent.session("s", store=store).resume_point()
        return None if found is None else [found.kind, [call.name for call in found.unanswered_tool_calls]]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__]) as harness:
        yield harness


def check_recovery(harness: KillHarness, url: str, folder: Path, shape: str) -> None:
    where = {"url": url, "shape": shape, "folder": str(folder)}
    assert harness.run(talk, {**where, "message": "hi", "kill": True}).killed
    kind, _ = harness.run(point, where).result
    assert kind == "recover_tools"
    recovered = harness.run(talk, {**where, "message": None}).result
    assert (recovered["status"], recovered["text"]) == ("completed", "Done.")
    assert recovered["results"] == SHAPES[shape][1]
    effects = EffectsLog(folder / "effects")
    assert sorted(effects.read()) == ["a", "b"]
    assert harness.run(point, where).result is None
    # The next turn has the same call ids, and its tools run as usual.
    again = harness.run(talk, {**where, "message": "again"}).result
    assert (again["status"], again["results"]) == ("completed", [A, B])
    assert sorted(effects.read()) == ["a", "a", "b", "b"]


def check_new_message(harness: KillHarness, url: str, folder: Path, shape: str) -> None:
    """The message ends the run that a dead process left; its calls are answered like those of a cancelled one."""
    where = {"url": url, "shape": shape, "folder": str(folder)}
    assert harness.run(talk, {**where, "message": "hi", "kill": True}).killed
    assert harness.run(talk, {**where, "message": "again"}).result["status"] == "completed"
    results = [CANCELLED_RESULT if result == UNKNOWN else result for result in SHAPES[shape][1]]
    expected = [("user", "hi"), ("assistant", "Looking."), *(("tool", result) for result in results)]
    assert EffectsLog(folder / "views").read()[1] == repr([*expected, ("user", "again")])
    assert sorted(EffectsLog(folder / "effects").read()) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_tool_runs_again_after_a_crash(harness: KillHarness, tmp_path: Path, shape: str) -> None:
    # BR-01
    check_recovery(harness, f"sqlite:///{tmp_path / 'state.db'}", tmp_path, shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_new_message_closes_open_calls_first(harness: KillHarness, tmp_path: Path, shape: str) -> None:
    # BR-11
    check_new_message(harness, f"sqlite:///{tmp_path / 'state.db'}", tmp_path, shape)


def test_the_same_on_every_store(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    check_recovery(harness, store_url, tmp_path, "create_agent_graph")


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_recovery, check_new_message])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_on_every_store(
    harness: KillHarness,
    store_url: str,
    tmp_path: Path,
    shape: str,
    check: Callable[[KillHarness, str, Path, str], None],
) -> None:
    check(harness, store_url, tmp_path, shape)


@pytest.mark.parametrize("shape", LOOPS)
def test_a_node_with_the_model_and_the_tools_is_told_what_the_model_had_said(
    harness: KillHarness, tmp_path: Path, shape: str
) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "shape": shape, "folder": str(tmp_path)}
    assert harness.run(talk, {**where, "message": "hi", "kill": True}).killed
    recovered = harness.run(talk, {**where, "message": None}).result
    assert (recovered["status"], recovered["text"], recovered["results"]) == ("completed", "Done.", [A, UNKNOWN])
    views = [[role for role, _ in ast.literal_eval(view)] for view in EffectsLog(tmp_path / "views").read()]
    assert views == [["user"], ["user", "assistant", "tool", "tool"]]
    assert sorted(EffectsLog(tmp_path / "effects").read()) == ["a", "b"]
    again = harness.run(talk, {**where, "message": "again"}).result
    assert (again["status"], again["results"]) == ("completed", [A, B])
    assert sorted(EffectsLog(tmp_path / "effects").read()) == ["a", "a", "b", "b"]


def test_pipe_is_refused_when_wrapped(tmp_path: Path) -> None:
    graph = create_agent_graph(World(str(tmp_path), kill=False))
    with pytest.raises(TypeError, match="wrap the graph alone"):
        LangGraphAgent(graph | (lambda state: state))

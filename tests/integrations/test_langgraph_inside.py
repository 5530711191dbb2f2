"""Tools and agents that run inside of nodes and tools: what they had done is known when they are entered again."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy, interrupt

from outlast.adapters import LocalStore, open_store
from outlast.core.resume import INTERRUPTED_RESULT, ResumeKind
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


class World:
    """Tools that write down that they ran; `b` kills the process, for the first time."""

    def __init__(self, folder: str) -> None:
        self.effects = EffectsLog(Path(folder) / "effects")

    def tools(self) -> list[BaseTool]:
        @tool
        async def a(x: int) -> str:
            """A quick tool."""
            self.effects.append(f"a{x}")
            return f"result of a{x}"

        @tool
        async def b(x: int) -> str:
            """A deadly tool."""
            first = "b" not in "".join(self.effects.read())
            self.effects.append(f"b{x}")
            if first:
                await asyncio.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
            return f"result of b{x}"

        return [a, b]

    def researcher(self, x: int = 1) -> Any:
        """An agent that asks for `a`, then for `b`, and says that it is done."""
        a, b = (Say("", [ScriptedCall(name, {"x": x})]) for name in "ab")
        return create_agent(ScriptedChatModel(script=Script(a, b, Say(f"Done {x}."))), self.tools())


def ask_tool(world: World) -> BaseTool:
    deep = world.researcher()

    @tool
    async def ask(question: str) -> str:
        """Ask another agent."""
        world.effects.append("outer")
        answer = await deep.ainvoke({"messages": [HumanMessage(question)]})
        return str(answer["messages"][-1].content)

    return ask


CALLS = (ScriptedCall("a", {"x": 7}), ScriptedCall("ask", {"question": "inner"}))


def agent_in_a_tool(world: World) -> Any:
    model = ScriptedChatModel(script=Script(Say("", CALLS), Say("All done.")))
    return create_agent(model, [world.tools()[0], ask_tool(world)])


def agent_in_a_tool_of_one_task(world: World) -> Any:
    """All calls of an answer are in one task of the graph, and two of them are agents."""
    model = ScriptedChatModel(script=Script(Say("", [CALLS[1], *CALLS]), Say("All done.")))

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", call_model)
    graph.add_node("tools", ToolNode([world.tools()[0], ask_tool(world)])).add_edge(START, "model")
    return graph.add_conditional_edges("model", tools_condition).add_edge("tools", "model").compile()


def agent_in_a_tool_of_a_node(world: World) -> Any:
    by_name = {found.name: found for found in [world.tools()[0], ask_tool(world)]}
    model = ScriptedChatModel(script=Script(Say("", CALLS), Say("All done.")))

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def run(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return {"messages": [await by_name[call["name"]].ainvoke(call) for call in last.tool_calls]}

    graph = StateGraph(MessagesState).add_node("model", call_model).add_node("tools", run).add_edge(START, "model")
    return graph.add_conditional_edges("model", tools_condition).add_edge("tools", "model").compile()


def agents_in_a_gather(world: World) -> Any:
    """Graphs that a node runs at once, and that nothing but running the node finds."""
    researchers = [[world.researcher(x)] for x in (1, 2, 3)]

    async def run(state: MessagesState) -> dict[str, Any]:
        world.effects.append("outer")
        answers = await asyncio.gather(*(one[0].ainvoke({"messages": [HumanMessage("look")]}) for one in researchers))
        return {"messages": [AIMessage(" ".join(answer["messages"][-1].text for answer in answers))]}

    return StateGraph(MessagesState).add_node("run", run).add_edge(START, "run").compile()


INSIDE: dict[str, tuple[Callable[[World], Any], str, list[str]]] = {
    "agent_in_a_tool": (agent_in_a_tool, "All done.", ["a1", "a7", "b1", "outer", "outer"]),
    "agent_in_a_tool_of_a_node": (agent_in_a_tool_of_a_node, "All done.", ["a1", "a7", "b1", "outer", "outer"]),
    "agents_in_a_gather": (agents_in_a_gather, "Done 1. Done 2. Done 3.", ["a1", "a2", "a3", "outer", "outer"]),
}


async def talk(url: str, folder: str, shape: str, own: bool = False) -> Any:
    graph = globals()[shape](World(folder))
    async with open_store(url) as store, AsyncSqliteSaver.from_conn_string(f"{folder}/own.db") as saver:
        if own:
            graph.checkpointer = saver
        reply = await LangGraphAgent(graph).session("s", store=store).run("go", id=ID)
        return reply.text, [message["content"] for message in reply.messages if message["role"] == "tool"]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__]) as harness:
        yield harness


@pytest.mark.parametrize("own", [False, True], ids=["store", "own checkpointer"])
@pytest.mark.parametrize("shape", INSIDE)
def test_agents_go_on_inside(harness: KillHarness, tmp_path: Path, shape: str, own: bool) -> None:
    """What the inner agents had done is kept, and what was cut off in them is answered."""
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path), "shape": shape, "own": own}
    _, text, effects = INSIDE[shape]
    assert harness.run(talk, where).killed
    assert harness.run(talk, where).result[0] == text
    ran = EffectsLog(tmp_path / "effects").read()
    assert sorted(one for one in ran if shape != "agents_in_a_gather" or one[0] != "b") == effects
    assert len([one for one in ran if one[0] == "b"]) == len({one for one in ran if one[0] == "b"})


def test_agents_in_tools_of_one_task_keep_their_states_apart(harness: KillHarness, tmp_path: Path) -> None:
    """Each of the two goes on with its own work, whichever of them was in its deadly tool."""
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    where["shape"] = "agent_in_a_tool_of_one_task"
    assert harness.run(talk, where).killed
    text, results = harness.run(talk, where).result
    assert (text, results) == ("All done.", ["Done 1.", "result of a7", "Done 1."])
    ran = EffectsLog(tmp_path / "effects").read()
    assert (ran.count("a1"), ran.count("a7")) == (2, 1)
    assert (ran.count("outer") <= 4, ran.count("b1") <= 2) == (True, True)


class Notes(TypedDict):
    topic: str
    notes: list[str]


async def take_notes(url: str, folder: str) -> Any:
    """A workflow whose node calls tools by itself, without a model."""
    a, b = World(folder).tools()

    @tool
    def c(x: int) -> int:
        """A tool whose result is no text."""
        return x

    async def look(state: Notes) -> dict[str, Any]:
        return {"notes": [await a.ainvoke({"x": 1}), str(await c.ainvoke({"x": 1}) + 1), await b.ainvoke({"x": 1})]}

    graph: Any = StateGraph(Notes).add_node("look", look).add_edge(START, "look").compile()
    async with open_store(url) as store:
        reply = await LangGraphAgent(graph).session("s", store=store).run({"topic": "x", "notes": []}, id=ID)
        return reply.output["state"]["notes"]


def test_node_that_calls_tools_is_entered_again_and_its_tools_are_answered(
    harness: KillHarness, tmp_path: Path, store_url: str
) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(take_notes, where).killed
    assert harness.run(take_notes, where).result == ["result of a1", "2", INTERRUPTED_RESULT]
    assert EffectsLog(tmp_path / "effects").read() == ["a1", "b1"]


@pytest.mark.parametrize("sync", [False, True])
async def test_node_that_starts_over_after_an_answer_gets_the_results_it_had(local: LocalStore, sync: bool) -> None:
    ran: list[int] = []

    @tool
    def look(x: int) -> dict[str, int]:
        """Look."""
        ran.append(x)
        return {"x": x, "number": len(ran)}

    @tool
    def refuse() -> str:
        """Fail."""
        ran.append(-1)
        raise ToolException("no")

    def failing() -> str:
        try:
            return str(refuse.invoke({}))
        except ToolException as error:
            return str(error)

    def node(state: MessagesState) -> dict[str, Any]:
        found = [look.invoke({"x": 1}), look.invoke({"x": 1}), failing()]
        return {"messages": [AIMessage(f"{found} {interrupt('sure?')}")]}

    async def anode(state: MessagesState) -> dict[str, Any]:
        return await asyncio.to_thread(node, state)

    builder = StateGraph(MessagesState).add_node("node", node if sync else anode).add_edge(START, "node")
    chat = LangGraphAgent(builder.compile()).session("s", store=local)
    assert (await chat.run("go")).interrupt is not None
    reply = await chat.run({"resume": "yes"})
    first, second = {"x": 1, "number": 1}, {"x": 1, "number": 2}
    assert (reply.text, ran) == (f"{[first, second, 'ToolException: no']} yes", [1, 1, -1])


async def test_node_that_is_tried_again_gets_the_results_it_had(local: LocalStore) -> None:
    ran, failures = list[int](), [ConnectionError("no")]

    @tool
    async def look(x: int) -> int:
        """Look."""
        ran.append(x)
        return x

    async def node(state: MessagesState) -> dict[str, Any]:
        found = await look.ainvoke({"x": 5})
        if failures:
            raise failures.pop()
        return {"messages": [AIMessage(str(found))]}

    policy = RetryPolicy(initial_interval=0, max_attempts=2, jitter=False)
    builder = StateGraph(MessagesState).add_node("node", node, retry_policy=policy).add_edge(START, "node")
    reply = await LangGraphAgent(builder.compile()).session("s", store=local).run("go")
    assert (reply.text, ran) == ("5", [5])


async def test_loop_in_a_node_may_use_a_call_id_again(local: LocalStore) -> None:
    """Providers do: the second call is not the first one."""
    ran: list[int] = []

    @tool
    async def look(x: int) -> str:
        """Look."""
        ran.append(x)
        return f"saw {x}"

    said = (Say("", [ScriptedCall("look", {"x": x}, "call_1")]) for x in (1, 2))
    model = ScriptedChatModel(script=Script(*said, "Done."))

    async def loop(state: MessagesState) -> dict[str, Any]:
        said: list[Any] = []
        while not said or said[-1].type != "ai":
            said.append(await model.ainvoke([*state["messages"], *said]))
            said += [await look.ainvoke(call) for call in said[-1].tool_calls]
        return {"messages": said}

    builder = StateGraph(MessagesState).add_node("loop", loop).add_edge(START, "loop")
    reply = await LangGraphAgent(builder.compile()).session("s", store=local).run("go")
    assert [message["content"] for message in reply.messages if message["role"] == "tool"] == ["saw 1", "saw 2"]
    assert (reply.text, ran) == ("Done.", [1, 2])


async def test_question_of_an_agent_in_a_tool_is_answered(local: LocalStore) -> None:
    """The tool that waits is entered again, and the agent in it goes on from its state."""
    ran: list[str] = []

    @tool
    async def book(x: int) -> str:
        """Book."""
        ran.append("book")
        return f"booked, {interrupt('window or aisle?')}"

    deep = create_agent(ScriptedChatModel(script=Script(Say("", [ScriptedCall("book", {"x": 1})]), "Booked.")), [book])

    @tool
    async def ask(question: str) -> str:
        """Ask another agent."""
        answer = await deep.ainvoke({"messages": [HumanMessage(question)]})
        return " ".join(message.text for message in answer["messages"] if message.type in ("tool", "ai"))

    outer = ScriptedChatModel(script=Script(Say("", [ScriptedCall("ask", {"question": "q"})]), "All done."))
    chat = LangGraphAgent(create_agent(outer, [ask])).session("s", store=local)
    assert (await chat.run("go")).interrupt is not None
    point = await chat.resume_point()
    assert point is not None and point.kind is ResumeKind.AWAIT_APPROVAL
    reply = await chat.run({"resume": "aisle"})
    (told,) = [message["content"] for message in reply.messages if message["role"] == "tool"]
    assert (reply.text, told) == ("All done.", " booked, aisle Booked.")
    assert ran == ["book", "book"]


async def test_tools_outside_of_runs_are_as_they_were() -> None:
    @tool
    def look(x: int) -> int:
        """Look."""
        return x

    assert (look.invoke({"x": 1}), await look.ainvoke({"x": 2})) == (1, 2)

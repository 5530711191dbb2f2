"""A node that asks the model and runs its tools by itself, or asks a person, is told again what the model had said.

The model never says the same twice: asked again it would pay another amount, and in this turn's calls by other ids.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy, interrupt

from outlast.adapters import open_store
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel


class World:
    """The outside: a tool that pays and one that looks, and a model that each time pays one more than before."""

    def __init__(self, folder: str, kill: str | None) -> None:
        self.effects, self.asked = EffectsLog(Path(folder) / "effects"), EffectsLog(Path(folder) / "asked")
        self.kill = kill
        self.started = asyncio.Event()

    def reach(self, what: str) -> None:
        self.effects.append(what)
        if what == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def pay(self) -> BaseTool:
        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            self.reach(f"pay {amount}")
            return f"paid {amount}"

        return pay

    def script(self, *after: Say | str, tool: str = "pay") -> Script:
        amount = 1 + len(self.asked.read())
        call = ScriptedCall(tool, {"amount": amount}, id=f"call_{amount}")
        return Script(Say("I pay.", [call]), *(after or ["Done."]))

    def model(self, *after: Say | str, tool: str = "pay") -> ScriptedChatModel:
        script = self.script(*after, tool=tool)
        self.asked.append(tool)
        return ScriptedChatModel(script=script)


def around(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()


def paying(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(state["messages"])
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    return around(node)


def tried_again(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(state["messages"])
        result = await pay.ainvoke(said.tool_calls[0])
        if world.effects.read().count("failed") < 2:
            world.reach("failed")
            raise ConnectionError
        return {"messages": [said, result, AIMessage("Done.")]}

    policy = RetryPolicy(max_attempts=4, initial_interval=0, jitter=False)
    return StateGraph(MessagesState).add_node("node", node, retry_policy=policy).add_edge(START, "node").compile()


def with_metadata(world: World) -> Any:
    """LangChain drops what LangGraph says of the task where a call brings metadata of its own."""
    pay, own = world.pay(), RunnableConfig(metadata={"customer": "42"})

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(state["messages"], own)
        result = await pay.ainvoke(said.tool_calls[0]["args"], own)
        world.reach("paid")
        return {"messages": [said, ToolMessage(result, tool_call_id=said.tool_calls[0]["id"]), AIMessage("Done.")]}

    return around(node)


def always_paying_one(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        await pay.ainvoke({"amount": 1}, RunnableConfig(metadata={"customer": "42"}))
        return {"messages": [AIMessage("Done.")]}

    return around(node)


def asking_otherwise(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(
            [*state["messages"], HumanMessage(f"{len(world.asked.read())} o'clock")]
        )
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    return around(node)


def acting_on_the_stream(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = None
        async for chunk in world.model().astream(state["messages"]):
            said = chunk if said is None else said + chunk
            if chunk.tool_call_chunks:
                await pay.ainvoke(said.tool_calls[0])
                world.reach("paid")
        return {"messages": [AIMessage("Done.")]}

    return around(node)


def two_at_once(world: World) -> Any:
    """One branch pays while the other has no answer from its model yet."""
    pay = world.pay()

    async def slow(state: MessagesState) -> None:
        await ScriptedChatModel(script=Script("Slow.", delay_seconds=0 if world.kill is None else 60)).ainvoke("Slow?")

    async def quick(state: MessagesState) -> Any:
        said: Any = await world.model().ainvoke(state["messages"])
        await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")

    async def node(state: MessagesState) -> dict[str, Any]:
        await asyncio.gather(slow(state), quick(state))
        return {"messages": [AIMessage("Done.")]}

    return around(node)


def model_in_a_tool(world: World) -> Any:
    """What the model said in a tool is the tool's: it is not asked for when the journal answers the tool."""
    pay = world.pay()

    @tool
    async def delegate(amount: int) -> str:
        """Have another pay."""
        said: Any = await world.model().ainvoke("Pay!")
        return str(await pay.ainvoke(said.tool_calls[0]["args"]))

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model(tool="delegate").ainvoke(state["messages"])
        result = await delegate.ainvoke(said.tool_calls[0])
        world.reach("paid")
        last = await world.model().ainvoke([*state["messages"], said, result])
        return {"messages": [last]}

    return around(node)


def changing_the_answer(world: World) -> Any:
    """The node pays ten more than the model said, and changes the answer for that."""
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(state["messages"])
        said.tool_calls[0]["args"]["amount"] += 10
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    return around(node)


def in_a_pipe(world: World) -> Any:
    """The steps of a pipe with metadata of its own do not see what LangGraph says of the task."""
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        pipe = world.model() | (lambda said: said.tool_calls[0]["args"]) | pay
        await pipe.with_config(metadata={"customer": "42"}).ainvoke(state["messages"])
        world.reach("paid")
        return {"messages": [AIMessage("Done.")]}

    return around(node)


class Unreliable(ScriptedChatModel):
    is_down: bool

    async def _astream(self, *arguments: Any, **options: Any) -> Any:
        if self.is_down:
            raise ConnectionError
        async for chunk in super()._astream(*arguments, **options):
            yield chunk


def falling_back(world: World) -> Any:
    """The two are asked with options of their own, and the first is there again after the crash."""
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        say = Script(Say("I pay.", [ScriptedCall("pay", {"amount": 100})]))
        first = Unreliable(script=say, is_down=not world.effects.read()).bind(tools=["a"])
        said: Any = await first.with_fallbacks([world.model().bind(tools=["b"])]).ainvoke("Pay.")
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    return around(node)


def trying_again_until_answered(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = None
        while said is None:
            with contextlib.suppress(ConnectionError):
                model = Unreliable(script=world.script(), is_down=not world.asked.read())
                world.asked.append("pay")
                said = await model.ainvoke(state["messages"])
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    return around(node)


def failing_before_the_tool(world: World) -> Any:
    """The retry policy has the model asked again, and what it said then is what was done."""
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(state["messages"])
        if not world.effects.read():
            world.reach("failed")
            raise ConnectionError
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    policy = RetryPolicy(initial_interval=0, jitter=False)
    return StateGraph(MessagesState).add_node("node", node, retry_policy=policy).add_edge(START, "node").compile()


class Breaking(ScriptedChatModel):
    async def _astream(self, *arguments: Any, **options: Any) -> Any:
        async for chunk in super()._astream(*arguments, **options):
            yield chunk
            if chunk.message.tool_call_chunks:  # type: ignore[attr-defined]
                raise ConnectionError


def acting_on_a_broken_stream(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = None
        with contextlib.suppress(ConnectionError):
            async for chunk in Breaking(script=world.script()).astream(state["messages"]):
                said = chunk if said is None else said + chunk
        await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [AIMessage("Done.")]}

    return around(node)


def asking_a_person(world: World) -> Any:
    pay = world.pay()

    async def node(state: MessagesState) -> dict[str, Any]:
        said: Any = await world.model().ainvoke(state["messages"])
        if interrupt(said.tool_calls[0]["args"]) != "yes":
            said = await world.model().ainvoke([*state["messages"], HumanMessage("Less!")])
        result = await pay.ainvoke(said.tool_calls[0])
        world.reach("paid")
        return {"messages": [said, result, AIMessage("Done.")]}

    return around(node)


async def talk(
    url: str, shape: str, folder: str, message: str | None = None, answer: str | None = None, kill: str | None = None
) -> Any:
    """Send a message or the answer to a question, or resume; return how it ended, and what it asks."""
    world = World(folder, kill)
    make: Callable[[World], Any] = globals()[shape]
    async with open_store(url) as store:
        chat = LangGraphAgent(make(world)).session("s", store=store)
        input = message if answer is None else {"resume": answer}
        stream = chat.stream_resume() if input is None else chat.stream(input)
        last = [event async for event in stream][-1]
        reply = last.get("reply")
        questions = reply.interrupt["questions"] if reply is not None and reply.interrupt else []
        asked = [question["value"] for question in questions]
        return {"status": last["status"], "error": last.get("error"), "asked": asked}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__]) as harness:
        yield harness


@pytest.fixture
def where(tmp_path: Path) -> dict[str, str]:
    return {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}


def effects(where: dict[str, str]) -> list[str]:
    return EffectsLog(Path(where["folder"]) / "effects").read()


FIRST = {
    "paying": "pay 1",
    "with_metadata": "pay 1",
    "two_at_once": "pay 1",
    "model_in_a_tool": "pay 2",
    "changing_the_answer": "pay 11",
    "in_a_pipe": "pay 1",
    "falling_back": "pay 1",
    "trying_again_until_answered": "pay 2",
    "failing_before_the_tool": "pay 2",
}


@pytest.mark.parametrize("shape", FIRST)
@pytest.mark.parametrize("kill", ["first", "paid"])
def test_model_is_not_asked_again_where_a_tool_had_begun(
    harness: KillHarness, where: dict[str, str], shape: str, kill: str
) -> None:
    kill = FIRST[shape] if kill == "first" else kill
    assert harness.run(talk, {**where, "shape": shape, "message": "Pay.", "kill": kill}).killed
    assert harness.run(talk, {**where, "shape": shape}).result["status"] == "completed"
    assert len([effect for effect in effects(where) if effect.startswith("pay ")]) == 1


def test_tool_called_with_metadata_is_called_in_every_turn(where: dict[str, str]) -> None:
    for message in ("One.", "Two."):
        assert asyncio.run(talk(**where, shape="always_paying_one", message=message))["status"] == "completed"
    assert effects(where) == ["pay 1", "pay 1"]


@pytest.mark.parametrize("kill", [None, "failed"])
def test_model_is_not_asked_again_by_a_retry(harness: KillHarness, where: dict[str, str], kill: str | None) -> None:
    where["shape"] = "tried_again"
    first = harness.run(talk, {**where, "message": "Pay.", "kill": kill})
    ended = first.result if kill is None else harness.run(talk, where).result
    assert ended["status"] == "completed"
    assert effects(where) == ["pay 1", "failed", "failed"]


def test_node_that_asks_something_else_is_not_continued(harness: KillHarness, where: dict[str, str]) -> None:
    where["shape"] = "asking_otherwise"
    assert harness.run(talk, {**where, "message": "Pay.", "kill": "paid"}).killed
    error = harness.run(talk, where).result["error"]
    assert (error["code"], "the tool 'pay' had started there" in error["message"]) == ("cannot_recover", True)
    assert effects(where) == ["pay 1", "paid"]
    assert harness.run(talk, {**where, "message": "Again."}).result["status"] == "completed"


@pytest.mark.parametrize("shape", ["acting_on_the_stream", "acting_on_a_broken_stream"])
def test_node_that_acts_before_the_answer_is_whole_is_not_continued(
    harness: KillHarness, where: dict[str, str], shape: str
) -> None:
    where["shape"] = shape
    assert harness.run(talk, {**where, "message": "Pay.", "kill": "paid"}).killed
    assert harness.run(talk, where).result["error"]["code"] == "cannot_recover"
    assert effects(where) == ["pay 1", "paid"]


@pytest.mark.parametrize("kill", [None, "pay 1", "paid"])
def test_what_a_person_agreed_to_is_done_and_nothing_else(
    harness: KillHarness, where: dict[str, str], kill: str | None
) -> None:
    where["shape"] = "asking_a_person"
    assert harness.run(talk, {**where, "message": "Pay."}).result["asked"] == [{"amount": 1}]
    first = harness.run(talk, {**where, "answer": "yes", "kill": kill})
    ended = first.result if kill is None else harness.run(talk, where).result
    assert ended["status"] == "completed"
    assert effects(where)[0] == "pay 1"
    assert len([effect for effect in effects(where) if effect.startswith("pay ")]) == 1


def test_node_may_ask_the_model_otherwise_after_the_answer_of_a_person(
    harness: KillHarness, where: dict[str, str]
) -> None:
    where["shape"] = "asking_a_person"
    assert harness.run(talk, {**where, "message": "Pay."}).result["status"] == "interrupted"
    assert harness.run(talk, {**where, "answer": "no"}).result["status"] == "completed"
    assert effects(where) == ["pay 3", "paid"]


def test_model_and_tool_take_options_of_any_name() -> None:
    """Providers' models take `model=` with each call: that a run sees the call leaves no name taken."""
    LangGraphAgent(around(lambda state: state))
    model = ScriptedChatModel(script=Script("Done."))

    @tool
    def look(place: str) -> str:
        """Look."""
        return place

    async def ask() -> list[str]:
        said = await model.ainvoke(input="Hi", model="other")
        streamed = "".join([chunk.text async for chunk in model.astream("Hi", model="other")])
        return [said.text, streamed, await look.arun({"place": "here"}, tool="other")]

    assert asyncio.run(ask()) == ["Done.", "Done.", "here"]
    assert model.invoke(input="Hi", model="other").text == "Done."
    assert "".join(chunk.text for chunk in model.stream("Hi", model="other")) == "Done."
    assert look.run({"place": "here"}, tool="other") == "here"

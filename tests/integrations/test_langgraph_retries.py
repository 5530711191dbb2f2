"""A retry policy enters code again in one attempt: what it had done is not done again, or the run ends and says so.

The model never says the same twice: asked again it would pay another amount, by another id.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain_core.language_models import LLM
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, Send

from outlast.adapters import LocalStore, open_store
from outlast.core.errors import RunFailed
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio

AGAIN = RetryPolicy(max_attempts=4, initial_interval=0, jitter=False)
tried_again: Callable[[Callable[..., Any]], Any] = task(retry_policy=AGAIN)


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with open_store(f"sqlite:///{tmp_path / 'state.db'}") as opened:
        yield opened


class Completion(LLM):
    """A model that is no chat model."""

    @property
    def _llm_type(self) -> str:
        return "completion"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **options: Any) -> str:
        return "Pay."


class WithItsOwnWay(ScriptedChatModel):
    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
        made = await self.agenerate_prompt([self._convert_input(input)])
        return made.generations[0][0].message  # type: ignore[union-attr]


class World:
    """A tool that pays, a model that each time pays one more than before, and a line that fails twice."""

    def __init__(self, ask: "Ask", *, raising: int = 0) -> None:
        self.paid: list[int] = []
        self.asked = self.failed = 0
        self._ask, self._raising = ask, raising

        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            if self._raising:
                self._raising -= 1
                raise ConnectionError
            self.paid.append(amount)
            return f"paid {amount}"

        self.pay: BaseTool = pay

    def says(self) -> Script:
        self.asked += 1
        return Script(Say("I pay.", [ScriptedCall("pay", {"amount": self.asked}, id=f"call_{self.asked}")]))

    async def ask(self, messages: list[Any]) -> Any:
        return await self._ask(self, messages)

    def fail(self) -> None:
        if self.failed < 2:
            self.failed += 1
            raise ConnectionError

    async def act(self, messages: list[Any]) -> list[Any]:
        said = await self.ask(messages)
        result = await self.pay.ainvoke(said.tool_calls[0])
        self.fail()
        return [AIMessage(said.text, tool_calls=said.tool_calls), result, AIMessage("Done.")]

    def inner(self, checkpointer: bool | None) -> Any:
        """A graph with a model, a tool and, after them, the line that fails; its own nodes are not tried again."""

        async def model(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await self.ask(state["messages"])]}

        def last(state: MessagesState) -> dict[str, Any]:
            self.fail()
            return {"messages": [AIMessage("Done.")]}

        built = StateGraph(MessagesState).add_node(model).add_node("tools", ToolNode([self.pay])).add_node(last)
        built.add_edge(START, "model").add_edge("model", "tools").add_edge("tools", "last")
        return built.compile(checkpointer=checkpointer)


Ask = Callable[[World, list[Any]], Awaitable[Any]]


async def plainly(world: World, messages: list[Any]) -> Any:
    return await ScriptedChatModel(script=world.says()).ainvoke(messages)


async def in_its_own_way(world: World, messages: list[Any]) -> Any:
    return await WithItsOwnWay(script=world.says()).ainvoke(messages)


async def by_completion(world: World, messages: list[Any]) -> Any:
    (call,) = world.says().answers[0].calls
    await Completion().ainvoke("Pay?")
    return AIMessage("", tool_calls=[{"name": call.name, "args": dict(call.arguments), "id": call.id}])


async def half_streamed(world: World, messages: list[Any]) -> Any:
    said: Any = None
    async for chunk in ScriptedChatModel(script=world.says()).astream(messages):
        said = chunk if said is None else said + chunk
        if chunk.tool_call_chunks:
            return said


class WithAnObject(ScriptedChatModel):
    async def _astream(self, *arguments: Any, **options: Any) -> Any:
        async for chunk in super()._astream(*arguments, **options):
            if chunk.message.tool_call_chunks:  # type: ignore[attr-defined]
                chunk.message.additional_kwargs["raw"] = object()
            yield chunk


async def with_an_object(world: World, messages: list[Any]) -> Any:
    """What the model said has something in it that cannot be stored."""
    return await WithAnObject(script=world.says()).ainvoke(messages)


def node(world: World) -> Any:
    async def act(state: MessagesState) -> dict[str, Any]:
        return {"messages": await world.act(state["messages"])}

    return StateGraph(MessagesState).add_node("act", act, retry_policy=AGAIN).add_edge(START, "act").compile()


def a_task(world: World) -> Any:
    @tried_again
    async def act(question: str) -> str:
        return str((await world.act([HumanMessage(question)]))[-1].text)

    @entrypoint()
    async def workflow(question: str) -> str:
        return str(await act(question))

    return workflow


def an_entrypoint(world: World) -> Any:
    @entrypoint(retry_policy=AGAIN)
    async def workflow(question: str) -> str:
        return str((await world.act([HumanMessage(question)]))[-1].text)

    return workflow


def around(graph: Any) -> Any:
    """A node that calls a graph by itself."""

    async def call(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await graph.ainvoke({"messages": state["messages"]}))["messages"]}

    return StateGraph(MessagesState).add_node("call", call, retry_policy=AGAIN).add_edge(START, "call").compile()


def having(graph: Any) -> Any:
    """A graph with a graph for a node."""
    return StateGraph(MessagesState).add_node("call", graph, retry_policy=AGAIN).add_edge(START, "call").compile()


def task_around(graph: Any) -> Any:
    @tried_again
    async def call(question: str) -> str:
        return str((await graph.ainvoke({"messages": [HumanMessage(question)]}))["messages"][-1].text)

    @entrypoint()
    async def workflow(question: str) -> str:
        return str(await call(question))

    return workflow


def around_without_checkpoints(world: World) -> Any:
    return around(world.inner(checkpointer=False))


def having_without_checkpoints(world: World) -> Any:
    return having(world.inner(checkpointer=False))


def task_around_without_checkpoints(world: World) -> Any:
    return task_around(world.inner(checkpointer=False))


def around_with_checkpoints(world: World) -> Any:
    return around(world.inner(checkpointer=None))


def having_with_checkpoints(world: World) -> Any:
    return having(world.inner(checkpointer=None))


def task_around_with_checkpoints(world: World) -> Any:
    return task_around(world.inner(checkpointer=None))


def around_tasks(world: World) -> Any:
    @task
    async def ask(question: str) -> Any:
        return await world.ask([HumanMessage(question)])

    @task
    async def pay(call: Any) -> Any:
        return await world.pay.ainvoke(call)

    @entrypoint(retry_policy=AGAIN)
    async def workflow(question: str) -> str:
        said = await ask(question)
        await pay(said.tool_calls[0])
        world.fail()
        return "Done."

    return workflow


IN_ONE_PLACE = (
    node,
    a_task,
    an_entrypoint,
    around_without_checkpoints,
    having_without_checkpoints,
    task_around_without_checkpoints,
)
IN_PLACES_OF_THEIR_OWN = (around_with_checkpoints, having_with_checkpoints, task_around_with_checkpoints, around_tasks)
Shape = Callable[[World], Any]


@pytest.mark.parametrize("ask", [in_its_own_way, by_completion, half_streamed, with_an_object])
@pytest.mark.parametrize("shape", IN_ONE_PLACE)
async def test_model_whose_answer_is_lost_is_not_asked_again_once_a_tool_ran(
    local: LocalStore, shape: Shape, ask: Ask
) -> None:
    world = World(ask)
    chat = LangGraphAgent(shape(world)).session("s", store=local)
    with pytest.raises(RunFailed, match="the tool 'pay' had started there") as caught:
        await chat.run("Pay.")
    assert (caught.value.code, world.paid) == ("cannot_recover", [1])


@pytest.mark.parametrize("shape", IN_ONE_PLACE)
async def test_session_goes_on_after_a_retry_that_was_refused(local: LocalStore, shape: Shape) -> None:
    world = World(by_completion)
    chat = LangGraphAgent(shape(world)).session("s", store=local)
    with pytest.raises(RunFailed):
        await chat.run("Pay.")
    world.failed = 2
    assert (await chat.run("Again.")).text == "Done."
    assert world.paid == [1, 2]


@pytest.mark.parametrize("shape", IN_ONE_PLACE)
async def test_model_says_what_it_had_said(local: LocalStore, shape: Shape) -> None:
    world = World(plainly)
    reply = await LangGraphAgent(shape(world)).session("s", store=local).run("Pay.")
    assert (reply.text, world.paid, world.failed) == ("Done.", [1], 2)


@pytest.mark.parametrize("ask", [plainly, in_its_own_way, by_completion])
@pytest.mark.parametrize("shape", IN_PLACES_OF_THEIR_OWN)
async def test_graphs_and_tasks_with_checkpoints_go_on(local: LocalStore, shape: Shape, ask: Ask) -> None:
    world = World(ask)
    reply = await LangGraphAgent(shape(world)).session("s", store=local).run("Pay.")
    assert (reply.text, world.paid, world.asked, world.failed) == ("Done.", [1], 1, 2)


@pytest.mark.parametrize("ask", [plainly, by_completion])
@pytest.mark.parametrize("shape", IN_ONE_PLACE)
async def test_tool_that_raised_may_be_asked_for_again(local: LocalStore, shape: Shape, ask: Ask) -> None:
    world = World(ask, raising=2)
    world.failed = 2
    reply = await LangGraphAgent(shape(world)).session("s", store=local).run("Pay.")
    assert (reply.text, len(world.paid)) == ("Done.", 1)


def failing(times: int) -> Callable[[], None]:
    left = [ConnectionError()] * times

    def fail() -> None:
        if left:
            raise left.pop()

    return fail


@pytest.mark.parametrize("completion", [False, True])
async def test_later_question_in_a_graph_without_checkpoints_is_asked_again(
    local: LocalStore, completion: bool
) -> None:
    """The first round is over, and nothing in it would happen again."""
    world, fail = World(by_completion if completion else plainly), failing(2)

    async def answer(state: MessagesState) -> dict[str, Any]:
        if completion:
            await Completion().ainvoke("And?")
        fail()
        return {"messages": [await ScriptedChatModel(script=Script("Done.")).ainvoke("And?")]}

    async def model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await world.ask(state["messages"])]}

    built = StateGraph(MessagesState).add_node(model).add_node("tools", ToolNode([world.pay]))
    built.add_node("answer", answer, retry_policy=AGAIN)
    built.add_edge(START, "model").add_edge("model", "tools").add_edge("tools", "answer")
    outer = StateGraph(MessagesState).add_node("inner", built.compile(checkpointer=False)).add_edge(START, "inner")
    reply = await LangGraphAgent(outer.compile()).session("s", store=local).run("Pay.")
    assert (reply.text, world.paid) == ("Done.", [1])


async def test_equal_calls_of_tasks_after_one_that_was_tried_again_are_calls_of_their_own(local: LocalStore) -> None:
    looked: list[int] = []

    @tool
    async def look() -> int:
        """Look."""
        looked.append(len(looked) + 1)
        return looked[-1]

    fail = failing(2)

    async def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage(str(await look.ainvoke({})))]}

    async def second(state: MessagesState) -> dict[str, Any]:
        found = [str(await look.ainvoke({}))]
        fail()
        return {"messages": [HumanMessage(" ".join([*found, str(await look.ainvoke({}))]))]}

    async def third(state: MessagesState) -> dict[str, Any]:
        told = [*(message.text for message in state["messages"][1:]), str(await look.ainvoke({}))]
        return {"messages": [AIMessage(" ".join(told))]}

    built = StateGraph(MessagesState).add_node(first).add_node(second, retry_policy=AGAIN).add_node(third)
    built.add_edge(START, "first").add_edge("first", "second").add_edge("second", "third")
    outer = StateGraph(MessagesState).add_node("inner", built.compile(checkpointer=False)).add_edge(START, "inner")
    reply = await LangGraphAgent(outer.compile()).session("s", store=local).run("Look.")
    assert (reply.text, looked) == ("1 2 3 4", [1, 2, 3, 4])


class Bills(TypedDict):
    bills: list[str]


async def test_loops_and_maps_are_tasks_of_their_own(local: LocalStore) -> None:
    """A completion model is asked anew in every round and in every branch, with tools that run in between."""
    world = World(by_completion)

    async def pay(state: Bills) -> None:
        for _ in state["bills"]:
            said = await world.ask([])
            await world.pay.ainvoke(said.tool_calls[0])

    built = StateGraph(Bills).add_node("pay", pay, retry_policy=AGAIN).add_node("begin", lambda _: None)
    built.add_conditional_edges("begin", lambda state: [Send("pay", {"bills": [bill]}) for bill in state["bills"]])
    built.add_node("again", lambda _: None).add_edge(START, "begin").add_edge("pay", "again")
    built.add_conditional_edges("again", lambda _: "begin" if len(world.paid) < 6 else "__end__")
    await LangGraphAgent(built.compile()).session("s", store=local).run({"bills": ["a", "b", "c"]})
    assert sorted(world.paid) == [1, 2, 3, 4, 5, 6]

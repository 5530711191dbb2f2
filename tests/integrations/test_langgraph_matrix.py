"""Every shape of graph, killed at every moment of a run and of its recovery, on every kind of checkpointer.

No tool runs twice, every model sees a history that providers take, and the run ends as if nothing had happened.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from outlast.adapters import open_store
from outlast.core.errors import OutlastError
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import Child, KillAt, KillHarness
from outlast.testing.postgres import PostgresServer
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
AT_ONCE = 4
"""Cases that run side by side."""
QUICK = 11
"""Moments of one shape in the quick test."""


class World:
    """Tools that pay, and a model that writes down what it saw, and may die while it thinks."""

    def __init__(self, folder: str, dies_in_model: int = 0) -> None:
        self.paid, self.views = EffectsLog(Path(folder) / "paid"), EffectsLog(Path(folder) / "views")
        self._dies = dies_in_model
        calls = [Say("First.", [ScriptedCall("pay", {"x": 1}), ScriptedCall("pay", {"x": 2})])]
        calls.append(Say("Then.", [ScriptedCall("pay", {"x": 3})]))
        self.model = ScriptedChatModel(script=Script(*calls, "All is paid.", on_call=self._note))

    def _note(self, history: History) -> None:
        self.views.append(
            repr([(m["role"], [c["id"] for c in m.get("tool_calls", ())], m.get("tool_call_id")) for m in history])
        )
        if len(self.views.read()) == self._dies:
            os.kill(os.getpid(), signal.SIGKILL)

    def tools(self) -> list[BaseTool]:
        @tool
        async def pay(x: int) -> str:
            """Pay."""
            self.paid.append(str(x))
            await asyncio.sleep(0.01 * x)
            return f"paid {x}"

        return [pay]

    async def think(self, state: MessagesState) -> dict[str, Any]:
        return {"messages": [await self.model.ainvoke(state["messages"])]}


def loop(world: World, tools: Any, route: Any = tools_condition, targets: Any = None) -> Any:
    graph = StateGraph(MessagesState).add_node("model", world.think).add_node("tools", tools)
    graph.add_edge(START, "model").add_edge("tools", "model")
    return graph.add_conditional_edges("model", route, *([targets] if targets else [])).compile()


class Hooks(AgentMiddleware[Any, Any]):
    def before_model(self, state: Any, runtime: Any) -> None:
        return None

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return await handler(request)


def agent(world: World) -> Any:
    return create_agent(world.model, world.tools(), middleware=[Hooks()])


def tool_node(world: World) -> Any:
    return loop(world, ToolNode(world.tools()))


def send(world: World) -> Any:
    def fan_out(state: MessagesState) -> Any:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return [Send("tools", [call]) for call in last.tool_calls] or END

    return loop(world, ToolNode(world.tools()), fan_out, ["tools", END])


def own_node(world: World) -> Any:
    (pay,) = world.tools()

    async def run(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return {"messages": [await pay.ainvoke(call) for call in last.tool_calls]}

    return loop(world, run)


def subgraph(world: World) -> Any:
    inner = create_agent(world.model, world.tools())
    return StateGraph(MessagesState).add_node("agent", inner).add_edge(START, "agent").compile()


def subgraph_of_its_own(world: World) -> Any:
    inner = create_agent(world.model, world.tools(), checkpointer=True)
    return StateGraph(MessagesState).add_node("agent", inner).add_edge(START, "agent").compile()


def agent_in_a_node(world: World) -> Any:
    inner: dict[str, Any] = {"agent": create_agent(world.model, world.tools())}

    async def run(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await inner["agent"].ainvoke({"messages": state["messages"]}))["messages"]}

    return StateGraph(MessagesState).add_node("run", run).add_edge(START, "run").compile()


def workflow(world: World) -> Any:
    (pay,) = world.tools()

    @task
    async def think(messages: list[Any]) -> Any:
        return await world.model.ainvoke(messages)

    @task
    async def act(call: Any) -> Any:
        return await pay.ainvoke(call)

    @entrypoint()
    async def run(question: str) -> Any:
        messages: Any = [HumanMessage(question)]
        while True:
            said = await think(messages)
            messages = add_messages(messages, [said])
            if not said.tool_calls:
                return messages
            messages = add_messages(messages, await asyncio.gather(*(act(call) for call in said.tool_calls)))

    return run


class Bill(TypedDict):
    open: list[int]
    text: str


def without_messages(world: World) -> Any:
    (pay,) = world.tools()

    async def settle(state: Bill) -> dict[str, Any]:
        await asyncio.gather(*(pay.ainvoke({"x": x}) for x in state["open"]))
        return {"open": []}

    graph = StateGraph(Bill).add_node("settle", settle).add_node("tell", lambda _: {"text": "All is paid."})
    return graph.add_edge(START, "settle").add_edge("settle", "tell").compile()


SHAPES = (
    agent, tool_node, send, own_node, subgraph, subgraph_of_its_own, agent_in_a_node, workflow, without_messages,
)  # fmt: skip


async def run(url: str, folder: str, shape: str, own: str | None = None, dies_in_model: int = 0) -> dict[str, Any]:
    """Ask for the run by its id, as a client does that does not know whether it was accepted."""
    graph = globals()[shape](World(folder, dies_in_model))
    given: Any = {"open": [1, 2, 3], "text": ""} if shape == "without_messages" else "pay"
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        if own is not None:
            kind: Any = AsyncPostgresSaver if own.startswith("postgresql") else AsyncSqliteSaver
            graph.checkpointer = await stack.enter_async_context(kind.from_conn_string(own))
            await graph.checkpointer.setup()
        reply = await LangGraphAgent(graph).session("s", store=store).run(given, id=ID)
        state = reply.output.get("state") or {}
        return {"text": state.get("text") or reply.text}


def check(result: dict[str, Any], folder: Path) -> None:
    assert result["text"] == "All is paid."
    paid = EffectsLog(folder / "paid").read()
    assert len(paid) == len(set(paid)), paid
    for view in EffectsLog(folder / "views").read():
        check_history(eval(view))


def check_history(messages: Sequence[tuple[str, list[str], str | None]]) -> None:
    """What providers ask: a user begins, and each answer with calls is followed at once by one result for each."""
    assert [role for role, _, _ in messages].count("user") == 1 and messages[0][0] == "user", messages
    asked: list[str] = []
    for role, calls, answers in messages:
        if role == "tool":
            assert answers in asked, messages
            asked.remove(answers)
        else:
            assert not asked, messages
            asked = list(calls)
    assert not asked, messages


@dataclass(frozen=True)
class Case:
    """Where a run is killed, in its model or at a boundary, and its recovery, if that is killed too."""

    place: KillAt | int
    again: KillAt | None = None


class Campaign:
    """Runs cases of one shape, several at once, each on a database of its own."""

    def __init__(
        self, harness: KillHarness, root: Path, shape: str, *, own: bool = False, database: Any = None
    ) -> None:
        self._harness, self._root, self._where = harness, root, {"shape": shape}
        self._own, self._database = own, database
        self.kills = 0

    def _case(self, name: str) -> dict[str, Any]:
        folder = self._root / name
        folder.mkdir(parents=True, exist_ok=True)
        url = self._database() if self._database is not None else f"sqlite:///{folder / 'state.db'}"
        own = (url if self._database is not None else str(folder / "own.db")) if self._own else None
        return {**self._where, "url": url, "folder": str(folder), "own": own}

    def places(self) -> list[KillAt]:
        """Return the boundaries of a run from where its worker has it."""
        found = self._harness.trace(run, self._case("trace"))
        start = next(n for n, place in enumerate(found) if place.point == "attempt.before_handler")
        return found[start:]

    def run(self, cases: Sequence[Case]) -> dict[Case, str]:
        """Return what went wrong, by case."""
        failures: dict[Case, str] = {}
        for first in range(0, len(cases), AT_ONCE):
            batch = {case: self._case(str(first + n)) for n, case in enumerate(cases[first : first + AT_ONCE])}
            for child in [self._first(case, where) for case, where in batch.items()]:
                self.kills += child.wait().killed
            seconds = [self._start(where, case.again) for case, where in batch.items() if case.again is not None]
            for child in seconds:
                self.kills += child.wait().killed
            ends = {case: self._start(where) for case, where in batch.items()}
            for case, child in ends.items():
                try:
                    check(child.wait().result, Path(batch[case]["folder"]))
                except (AssertionError, OutlastError) as error:
                    failures[case] = f"{type(error).__name__}: {error}"[-600:]
        return failures

    def _first(self, case: Case, where: dict[str, Any]) -> Child:
        if isinstance(case.place, int):
            return self._start({**where, "dies_in_model": case.place})
        return self._start(where, case.place)

    def _start(self, where: dict[str, Any], kill: KillAt | None = None) -> Child:
        return self._harness.start(run, where, kill=kill) if kill is not None else self._harness.start(run, where)


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=30) as harness:
        yield harness


def spread(found: Sequence[Any], count: int) -> list[Any]:
    """Return some of them, evenly."""
    return [found[n * len(found) // count] for n in range(min(count, len(found)))]


def quick(places: Sequence[KillAt], models: int) -> list[Case]:
    """Some boundaries, the model, and recoveries of a run whose tool was cut off."""
    repairs = [
        Case(KillAt("tool.before_body", 2), KillAt(point))
        for point in ("journal.answered.before_commit", "checkpoint.before_put", "finish.before_commit")
    ]
    return [*map(Case, spread(places, QUICK - 3 - models)), *(Case(n + 2) for n in range(models)), *repairs]


@pytest.mark.parametrize("own", [False, True], ids=["store", "own checkpointer"])
@pytest.mark.parametrize("shape", [shape.__name__ for shape in SHAPES])
def test_killed_at_some_moments(harness: KillHarness, tmp_path: Path, shape: str, own: bool) -> None:
    # BR-01, BR-07
    campaign = Campaign(harness, tmp_path, shape, own=own)
    assert not campaign.run(quick(campaign.places(), 0 if shape == "without_messages" else 2))
    assert campaign.kills >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["store", "own checkpointer"])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("shape", [shape.__name__ for shape in SHAPES])
def test_killed_at_every_moment(
    harness: KillHarness, tmp_path: Path, shape: str, database: str, own: bool, request: pytest.FixtureRequest
) -> None:
    """More than two thousand kills in all: each boundary, and each kind of boundary in the recovery of a cut-off tool."""
    server: PostgresServer | None = request.getfixturevalue("postgres_server") if database == "postgresql" else None
    campaign = Campaign(harness, tmp_path, shape, own=own, database=server and server.create_database)
    places = campaign.places()
    cases = [*map(Case, places), *(Case(n) for n in range(1, 4) if shape != "without_messages")]
    for point in dict.fromkeys(place.point for place in places):
        cases += [Case(KillAt("tool.before_body", nth), KillAt(point)) for nth in (2, 3)]
    assert not campaign.run(cases)

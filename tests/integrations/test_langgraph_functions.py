"""Workflows made by `@entrypoint`: run, killed, recovered; tasks that ended do not run again."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

from outlast.adapters import LocalStore, open_store
from outlast.core.errors import RunFailed
from outlast.core.resume import INTERRUPTED_RESULT, ResumeKind
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent, recognise
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


async def test_any_json_goes_in_and_what_it_returns_comes_out(local: LocalStore) -> None:
    @task
    async def double(x: int) -> int:
        return x * 2

    @entrypoint()
    async def workflow(numbers: list[int], *, previous: int | None = None) -> dict[str, Any]:
        doubled = await asyncio.gather(*(double(x) for x in numbers))
        return {"sum": sum(doubled), "before": previous}

    agent = recognise(workflow)
    assert agent is not None
    chat = agent.session("s", store=local)
    assert (await chat.run([1, 2])).output["final_output"] == {"sum": 6, "before": None}
    assert (await chat.run([5])).output["final_output"] == {"sum": 10, "before": {"sum": 6, "before": None}}
    assert await chat.resume_point() is None
    with pytest.raises(RunFailed, match="no workflow can start"):
        await chat.run(None)


@pytest.mark.parametrize(
    ("returned", "text", "messages"),
    [("done", "done", []), (AIMessage("done", id="1"), "done", ["done"]), ([HumanMessage("q", id="1")], "q", ["q"])],
)
async def test_text_and_messages_are_told_as_such(
    local: LocalStore, returned: Any, text: str, messages: list[str]
) -> None:
    @entrypoint()
    def workflow(_: str) -> Any:
        return returned

    reply = await LangGraphAgent(workflow).session("s", store=local).run("go")
    assert (reply.text, [message["content"] for message in reply.messages]) == (text, messages)


async def test_question_in_a_task_is_answered_and_the_other_tasks_keep_their_results(local: LocalStore) -> None:
    ran: list[str] = []

    @task
    def write(topic: str) -> str:
        ran.append("write")
        return f"essay about {topic}"

    @task
    def review(essay: str) -> str:
        ran.append("review")
        return f"{essay}: {interrupt({'essay': essay})}"

    @entrypoint()
    def workflow(topic: str) -> str:
        return review(write(topic).result()).result()

    chat = LangGraphAgent(workflow).session("s", store=local)
    assert (await chat.run("cats")).interrupt is not None
    point = await chat.resume_point()
    assert point is not None and point.kind is ResumeKind.AWAIT_APPROVAL
    assert (await chat.run({"resume": "good"})).text == "essay about cats: good"
    assert ran == ["write", "review", "review"]


async def test_failed_workflow_goes_on_where_it_failed(local: LocalStore) -> None:
    ran, failures = list[str](), [ValueError("no")]

    @task
    async def first() -> int:
        ran.append("first")
        return 1

    @entrypoint()
    async def workflow(_: str) -> int:
        found = await first()
        if failures:
            raise failures.pop()
        return found

    chat = LangGraphAgent(workflow).session("s", store=local)
    with pytest.raises(RunFailed, match="no"):
        await chat.run("go")
    assert (await chat.resume()).output["final_output"] == 1
    assert ran == ["first"]


def workflow_of(folder: str, sync: bool) -> Any:
    """Three tasks, of which the last calls tools, and effects in between."""
    effects = EffectsLog(Path(folder) / "effects")

    @tool
    def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        return f"paid {x}"

    @task
    def one(x: int) -> int:
        effects.append(f"one {x}")
        return x + 1

    @task
    async def two(x: int) -> int:
        effects.append(f"two {x}")
        await asyncio.sleep(0.01)
        return x + 1

    @task
    async def three(x: int) -> list[str]:
        return [await pay.ainvoke({"x": x}), await pay.ainvoke({"x": x + 1})]

    @entrypoint()
    async def workflow(x: int) -> list[str]:
        first, second = await asyncio.gather(one(x), two(x))
        third = await two(first + second)
        return await three(third)

    @entrypoint()
    def sync_workflow(x: int) -> list[str]:
        first, second = one(x), two(x)
        third = two(first.result() + second.result()).result()
        time.sleep(0.01)
        return three(third).result()

    return sync_workflow if sync else workflow


async def work(url: str, folder: str, sync: bool = False, own: bool = False) -> Any:
    graph = workflow_of(folder, sync)
    async with open_store(url) as store, AsyncSqliteSaver.from_conn_string(f"{folder}/own.db") as saver:
        if own:
            graph.checkpointer = saver
        reply = await LangGraphAgent(graph).session("s", store=store).run(1, id=ID)
        return reply.output["final_output"]


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


WAYS = pytest.mark.parametrize(("sync", "own"), [(False, False), (True, False), (False, True)])


def kill_everywhere(harness: KillHarness, root: Path, every: int, **where: Any) -> None:
    """No tool runs twice, and a task that another one came after does not either."""
    (root / "trace").mkdir()
    trace = {"url": f"sqlite:///{root / 'trace' / 'state.db'}", "folder": str(root / "trace"), **where}
    for number, place in enumerate(harness.trace(work, trace)[::every]):
        folder = root / str(number)
        folder.mkdir()
        at = {**where, "url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
        killed = harness.start(work, at, kill=place).wait()
        before = EffectsLog(folder / "effects").read()
        result = harness.run(work, at).result if killed.killed else killed.result
        ran = EffectsLog(folder / "effects").read()
        assert all(told in (f"paid {x}", INTERRUPTED_RESULT) for told, x in zip(result, (5, 6), strict=True)), place
        assert ran.count("pay 5") <= 1 and ran.count("pay 6") <= 1, (place, ran)
        if "two 4" in before:
            assert (ran.count("one 1"), ran.count("two 1")) == (1, 1), (place, ran)
        if "pay 5" in before:
            assert ran.count("two 4") == 1, (place, ran)


@WAYS
def test_killed_here_and_there(harness: KillHarness, tmp_path: Path, sync: bool, own: bool) -> None:
    kill_everywhere(harness, tmp_path, 16, sync=sync, own=own)


@pytest.mark.slow
@WAYS
def test_killed_everywhere(harness: KillHarness, tmp_path: Path, sync: bool, own: bool) -> None:
    kill_everywhere(harness, tmp_path, 1, sync=sync, own=own)


async def agent_in_a_task(url: str, folder: str) -> Any:
    effects = EffectsLog(Path(folder) / "effects")

    @tool
    async def look(x: int) -> str:
        """Look."""
        effects.append(f"look {x}")
        return f"saw {x}"

    said = (Say("", [ScriptedCall("look", {"x": x})]) for x in (1, 2))
    agents = {"deep": create_agent(ScriptedChatModel(script=Script(*said, "Done.")), [look])}

    @task
    async def research(question: str) -> list[Any]:
        effects.append("research")
        answer = await agents["deep"].ainvoke({"messages": [HumanMessage(question)]})
        return [*answer["messages"]]

    @entrypoint()
    async def workflow(question: str) -> Any:
        return await research(question)

    async with open_store(url) as store:
        return (await LangGraphAgent(workflow).session("s", store=store).run("why?", id=ID)).text


def test_agent_in_a_task_goes_on_inside(harness: KillHarness, tmp_path: Path, store_url: str) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(agent_in_a_task, where, kill=KillAt("tool.after_body", 2)).killed
    assert harness.run(agent_in_a_task, where).result == "Done."
    assert EffectsLog(tmp_path / "effects").read() == ["research", "look 1", "look 2", "research"]


async def loop_in_a_task(url: str, folder: str) -> Any:
    effects = EffectsLog(Path(folder) / "effects")

    @tool
    async def look(x: int) -> str:
        """Look."""
        effects.append(f"look {x}")
        return f"saw {x}"

    model = ScriptedChatModel(script=Script(Say("", [ScriptedCall("look", {"x": 1})]), "Done."))

    @task
    async def think(messages: list[Any]) -> Any:
        said = await model.ainvoke(messages)
        return add_messages(messages, [said, *[await look.ainvoke(call) for call in said.tool_calls]])

    @entrypoint()
    async def workflow(question: str) -> Any:
        messages: Any = await think([HumanMessage(question)])
        return await think(messages)

    async with open_store(url) as store:
        return (await LangGraphAgent(workflow).session("s", store=store).run("why?", id=ID)).text


@pytest.mark.parametrize("place", [KillAt("tool.after_body"), KillAt("checkpoint.before_put", 2)])
def test_loop_of_model_and_tools_in_a_task_goes_on(harness: KillHarness, tmp_path: Path, place: KillAt) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    assert harness.run(loop_in_a_task, where, kill=place).killed
    assert harness.run(loop_in_a_task, where).result == "Done."
    assert EffectsLog(tmp_path / "effects").read() == ["look 1"]

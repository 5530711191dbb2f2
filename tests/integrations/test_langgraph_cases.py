"""Cases from other projects' bug reports, through graphs; those with tests of their own elsewhere are named there."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.runtime import get_runtime
from langgraph.types import interrupt

from outlast.adapters import LocalStore, open_store
from outlast.core.errors import RunFailed, SessionBusy
from outlast.core.resume import CONTINUE_TEXT, ResumeKind
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


def agent_with(tools: Any, *answers: Say | str, on_call: Callable[[History], None] | None = None, **more: Any) -> Any:
    model = ScriptedChatModel(script=Script(*answers, on_call=on_call))
    return LangGraphAgent(create_agent(model, tools, **more), name="a")


def results(messages: Any) -> list[Any]:
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("blocking", ["no", "def", "async def"])
async def test_long_tool_runs_once_whatever_it_blocks(running: Any, make_request: Any, blocking: str) -> None:
    # BR-02, BR-03
    ran: list[int] = []

    @tool
    async def waits(x: int) -> str:
        """Wait."""
        ran.append(x)
        await asyncio.sleep(1.5) if blocking == "no" else time.sleep(1.5)  # noqa: ASYNC251 - that is the case
        return "waited"

    @tool("waits")
    def blocks(x: int) -> str:
        """Block a thread."""
        ran.append(x)
        time.sleep(1.5)
        return "waited"

    script = (Say("", [ScriptedCall("waits", {"x": 1})]), "Done.")
    agents = {"a": agent_with([blocks if blocking == "def" else waits], *script).handlers()}
    async with running(agents=agents) as engine, running(agents=agents):
        accepted = await engine.accept(make_request("s", input="go"))
        run = await engine.wait(accepted, 30)
        assert (run.status, run.attempt, ran) == ("completed", 1, [1])


async def test_result_whose_commit_was_lost_is_stored_once(local: LocalStore, lost_once: Any) -> None:
    # BR-13
    ran: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    chat = agent_with([pay], Say("", [ScriptedCall("pay", {"x": 1})]), "Done.").session("s", store=local)
    with lost_once("journal.done.after_commit"):
        reply = await chat.run("pay")
    assert (reply.text, results(reply.messages), ran) == ("Done.", ["paid"], [1])


async def test_answer_that_was_cut_is_continued(local: LocalStore) -> None:
    # BR-15
    heard: list[list[str]] = []
    said = (Say("The three rea", stop_reason="length"), "sons are these.")

    def note(history: History) -> None:
        heard.append([message["content"] for message in history])

    chat = agent_with([], *said, on_call=note).session("s", store=local)
    assert (await chat.run("Why?")).stop_reason == "length"
    point = await chat.resume_point()
    assert point is not None and point.kind is ResumeKind.CONTINUE_RESPONSE
    await chat.resume()
    assert heard[-1] == ["Why?", "The three rea", CONTINUE_TEXT]


async def test_approval_that_comes_twice_lets_the_tool_run_once(local: LocalStore) -> None:
    # BR-58
    ran: list[int] = []

    @tool
    async def delete(x: int) -> str:
        """Delete."""
        ran.append(x)
        return "deleted"

    asking = HumanInTheLoopMiddleware(interrupt_on={"delete": True})
    agent = agent_with([delete], Say("", [ScriptedCall("delete", {"x": 5})]), "Done.", middleware=[asking])
    asked = await agent.session("s", store=local).run("delete")
    (approval,) = asked.interrupt["approvals"]
    decision = {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}
    async with open_store(local.url) as elsewhere:
        ends = await asyncio.gather(
            *(agent.session("s", store=store).run(decision, wait=20) for store in (local, elsewhere)),
            return_exceptions=True,
        )
    codes = sorted(getattr(end, "code", "completed") for end in ends)
    assert codes in (["approval_already_decided", "completed"], ["completed", "nothing_to_answer"])
    assert ran == [5]
    with pytest.raises((RunFailed, SessionBusy)):
        await agent.session("s", store=local).run(decision)
    assert ran == [5]


@dataclass
class Tenant:
    name: str = "nobody"


async def test_approval_after_a_restart_meets_the_context_of_its_own_request(store_url: str) -> None:
    # BR-59
    ran: list[str] = []

    def made() -> Any:
        @tool
        async def pay(x: int) -> str:
            """Pay."""
            ran.append(get_runtime(Tenant).context.name)
            return "paid"

        asking = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
        said = (Say("", [ScriptedCall("pay", {"x": 1})]), "Done.")
        return agent_with([pay], *said, middleware=[asking], context_schema=Tenant)

    async with open_store(store_url) as store:
        asked = await made().session("s", store=store).run("pay", config={"name": "one"})
        (approval,) = asked.interrupt["approvals"]
    async with open_store(store_url) as store:
        decision = {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}
        reply = await made().session("s", store=store).run(decision, config={"name": "two"})
    assert (reply.text, ran) == ("Done.", ["two"])


async def test_two_tools_that_pause_in_one_step_get_their_own_answers(local: LocalStore) -> None:
    # BR-60
    ran: list[str] = []

    def asking(name: str) -> Any:
        @tool(name)
        async def ask() -> str:
            """Ask."""
            return f"{name} heard {interrupt(name)}"

        return ask

    @tool
    async def quick() -> str:
        """Do not ask."""
        ran.append("quick")
        return "quick"

    calls = [ScriptedCall(name) for name in ("tool_a", "tool_b", "quick")]
    chat = agent_with([asking("tool_a"), asking("tool_b"), quick], Say("", calls), "Done.").session("s", store=local)
    asked = await chat.run("go")
    ids = {question["value"]: question["id"] for question in asked.interrupt["questions"]}
    assert set(ids) == {"tool_a", "tool_b"}
    asked = await chat.run({"resume": {"answers": {ids["tool_b"]: "no"}}})
    (left,) = asked.interrupt["questions"]
    reply = await chat.run({"resume": {"answers": {left["id"]: "yes"}}})
    history = results(await chat.messages())
    assert sorted(history) == ["quick", "tool_a heard yes", "tool_b heard no"]
    assert (reply.text, ran) == ("Done.", ["quick"])

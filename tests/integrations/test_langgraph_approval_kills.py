"""A graph that asks and a run that decides, killed at every durable boundary: what was approved runs once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

from outlast import open_store
from outlast.core.resume import INTERRUPTED_RESULT, NOT_RUN_RESULT
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

ASK, DECIDE = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b12"
SAMPLE = 7
"""Every n-th point in the quick test."""


async def buy(url: str, folder: str, mode: Any) -> dict[str, Any]:
    """Ask and decide, each by its id, as a client does that does not know whether its request was accepted."""
    effects = EffectsLog(Path(folder) / "effects")

    @tool
    def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        return f"paid {x}"

    model = ScriptedChatModel(script=Script(Say("I will.", [ScriptedCall("pay", {"x": 2})]), "Done."))
    asking = HumanInTheLoopMiddleware(interrupt_on={"pay": True}, interrupt_mode=mode)
    async with open_store(url) as store:
        chat = LangGraphAgent(create_agent(model, [pay], middleware=[asking])).session("s", store=store)
        asked = await chat.run("buy", id=ASK)
        if asked.interrupt is None:
            # The middleware asks where the tool would run: nobody knows any more which of the two had begun.
            assert (mode, asked.messages[1]["content"]) == ("per_call", INTERRUPTED_RESULT)
            return {"text": asked.text, "history": await chat.messages()}
        (approval,) = asked.interrupt["approvals"]
        reply = await chat.run({"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}}, id=DECIDE)
        return {"text": reply.text, "history": await chat.messages()}


async def stop(url: str, folder: str) -> list[str]:
    """Come to a breakpoint. Returns what ran."""
    async with open_store(url) as store:
        assert (await broken(folder).session("s", store=store).run("go", id=ASK)).interrupt is not None
    return EffectsLog(Path(folder) / "effects").read()


async def go_past(url: str, folder: str) -> str:
    """Come to a breakpoint, and pass it."""
    async with open_store(url) as store:
        chat = broken(folder).session("s", store=store)
        await chat.run("go", id=ASK)
        return (await chat.run({"resume": True}, id=DECIDE)).text


def broken(folder: str) -> LangGraphAgent:
    def node(state: MessagesState) -> dict[str, Any]:
        EffectsLog(Path(folder) / "effects").append("node")
        return {"messages": [AIMessage("Passed.")]}

    builder = StateGraph(MessagesState).add_node("before", lambda state: {}).add_node("node", node)
    builder.add_edge(START, "before").add_edge("before", "node")
    return LangGraphAgent(builder.compile(interrupt_before=["node"]))


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


def trace(harness: KillHarness, scenario: Any, folder: Path, **more: Any) -> list[KillAt]:
    folder.mkdir()
    return harness.trace(scenario, {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder), **more})


def check(result: Any, folder: Path) -> None:
    assert result["text"] == "Done."
    ran = EffectsLog(folder / "effects").read()
    (told,) = [message["content"] for message in result["history"] if message["role"] == "tool"]
    assert [ran, told] in (
        [["pay 2"], "paid 2"], [["pay 2"], INTERRUPTED_RESULT], [[], INTERRUPTED_RESULT], [[], NOT_RUN_RESULT],
    )  # fmt: skip


def kill_and_go_on(harness: KillHarness, folder: Path, place: KillAt, mode: str, url: str | None = None) -> None:
    folder.mkdir(exist_ok=True)
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder), "mode": mode}
    if harness.start(buy, where, kill=place).wait().killed:
        check(harness.run(buy, where).result, folder)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_killed_here_and_there(harness: KillHarness, tmp_path: Path, mode: str) -> None:
    for number, place in enumerate(trace(harness, buy, tmp_path / "trace", mode=mode)[::SAMPLE]):
        kill_and_go_on(harness, tmp_path / str(number), place, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_killed_everywhere(harness: KillHarness, tmp_path: Path, mode: str) -> None:
    for number, place in enumerate(trace(harness, buy, tmp_path / "trace", mode=mode)):
        kill_and_go_on(harness, tmp_path / str(number), place, mode)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize(
    "point", ["approval.asked.after_commit", "approval.decided.after_commit", "journal.done.before_commit"]
)
def test_killed_on_both_databases(harness: KillHarness, tmp_path: Path, store_url: str, point: str, mode: str) -> None:
    kill_and_go_on(harness, tmp_path, KillAt(point), mode, store_url)


@pytest.mark.parametrize(("scenario", "result"), [(stop, []), (go_past, "Passed.")], ids=["stop", "go past"])
def test_no_crash_passes_a_breakpoint(harness: KillHarness, tmp_path: Path, scenario: Any, result: Any) -> None:
    for number, place in enumerate(trace(harness, scenario, tmp_path / "trace")[::SAMPLE]):
        folder = tmp_path / str(number)
        folder.mkdir()
        where = {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
        if harness.start(scenario, where, kill=place).wait().killed:
            assert harness.run(scenario, where).result == result

"""Another version of a graph goes on with what an earlier one left: a crashed run, a question, a run that waits."""

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Required

import httpx
import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from outlast.adapters import open_store
from outlast.core.errors import RunFailed
from outlast.core.resume import ResumeKind
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast.testing.serving import ServerProcess
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__]) as harness:
        yield harness


# Changed graphs ------------------------------------------------------------------------------------------------------


def built(way: str, version: str, folder: str) -> Any:
    """A draft is reviewed; `way` says how the review is reached, and what it is."""
    effects = EffectsLog(Path(folder) / "effects")

    class Changed(MessagesState):
        tone: Required[str]

    state = Changed if version == "field" else MessagesState

    @tool
    async def check() -> str:
        """Check."""
        effects.append("reviewed")
        await asyncio.sleep(0.01)
        return "reviewed"

    async def draft(state: MessagesState) -> dict[str, Any]:
        effects.append("drafted")
        return {"messages": [AIMessage("drafted")]}

    async def review(state: MessagesState) -> dict[str, Any]:
        said = interrupt("good?") if way == "question" else await check.ainvoke({})
        return {"messages": [AIMessage(str(said))]}

    name = "check" if version == "renamed" else "review"
    body: Any = review
    if way == "subgraph":
        within = "check" if version == "renamed within" else "look"
        body = StateGraph(state).add_node(within, review).add_edge(START, within).compile()
    graph: Any = StateGraph(state).add_node("draft", draft).add_node("note", lambda _: None).add_node(name, body)
    graph.add_edge(START, "draft").add_edge(START, "note")
    if way == "send":
        graph.add_conditional_edges("draft", lambda state: [Send(name, state)], [name])
    elif way == "join":
        graph.add_edge(["draft", "note"], name)
    elif version == "one more":
        graph.add_node("polish", lambda _: None).add_edge("draft", "polish").add_edge("polish", name)
    else:
        graph.add_edge("draft", name)
    return LangGraphAgent(graph.compile())


async def talk(url: str, folder: str, way: str, version: str, message: Any = "Go.") -> Any:
    """Ask for the run by its id, or, with None, resume; return how it ended, and the kind of the resume point."""
    async with open_store(url) as store:
        chat = built(way, version, folder).session("s", store=store)
        try:
            reply = await (chat.run(message, id=ID if message == "Go." else None) if message else chat.resume())
            ended = reply.text
        except RunFailed as failed:
            ended = f"{failed.code}: {failed}"
        point = await chat.resume_point()
        return [ended, point and point.kind.value]


@pytest.fixture
def where(tmp_path: Path) -> dict[str, str]:
    return {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}


@pytest.mark.parametrize(
    ("way", "version", "missing"),
    [
        ("edge", "renamed", "review"),
        ("send", "renamed", "review"),
        ("join", "renamed", "review"),
        ("subgraph", "renamed", "review"),
        ("subgraph", "renamed within", "look"),
    ],
)
def test_run_whose_node_is_gone_fails_and_names_it(
    harness: KillHarness, where: dict[str, str], way: str, version: str, missing: str
) -> None:
    # BR-70
    where["way"] = way
    assert harness.run(talk, {**where, "version": "old"}, kill=KillAt("tool.after_body")).killed
    ended, point = harness.run(talk, {**where, "version": version}).result
    assert ended.startswith(f"cannot_recover: the run goes on at '{missing}', and the graph has no node of this name")
    assert point == ResumeKind.CALL_MODEL
    assert harness.run(talk, {**where, "version": version, "message": None}).result[0] == ended
    assert harness.run(talk, {**where, "version": version, "message": "Again."}).result == ["reviewed", None]
    assert EffectsLog(Path(where["folder"]) / "effects").read() == ["drafted", "reviewed"] * 2


def test_node_that_has_its_name_again_is_gone_on_with(harness: KillHarness, where: dict[str, str]) -> None:
    where["way"] = "edge"
    assert harness.run(talk, {**where, "version": "old"}, kill=KillAt("tool.before_body")).killed
    assert "cannot_recover" in harness.run(talk, {**where, "version": "renamed"}).result[0]
    ended, point = harness.run(talk, {**where, "version": "old", "message": None}).result
    assert ("The process stopped while this call was under way" in ended, point) == (True, None)
    assert EffectsLog(Path(where["folder"]) / "effects").read() == ["drafted"]


@pytest.mark.parametrize(
    ("way", "every"),
    [("edge", 6), *(pytest.param(way, 1, marks=pytest.mark.slow) for way in ("edge", "send", "join", "subgraph"))],
)
def test_review_is_never_left_out(harness: KillHarness, tmp_path: Path, way: str, every: int) -> None:
    """Killed at every moment, a run goes on in the graph that has changed, or fails."""
    # BR-70
    (tmp_path / "trace").mkdir()
    at = {"way": way, "url": f"sqlite:///{tmp_path}/trace/state.db", "folder": str(tmp_path / "trace")}
    for number, place in enumerate(harness.trace(talk, {**at, "version": "old"})[::every]):
        (folder := tmp_path / str(number)).mkdir()
        at = {"way": way, "url": f"sqlite:///{folder}/state.db", "folder": str(folder)}
        if harness.start(talk, {**at, "version": "old"}, kill=place).wait().killed:
            ended, _ = harness.run(talk, {**at, "version": "renamed"}).result
            assert ended in ("reviewed", f"cannot_recover: {ended.partition(': ')[2]}"), (place, ended)
            assert EffectsLog(folder / "effects").read().count("reviewed") <= 1, place


@pytest.mark.parametrize("version", ["one more", "field"])
def test_run_goes_on_at_its_node_in_a_graph_that_has_it(
    harness: KillHarness, where: dict[str, str], version: str
) -> None:
    """A node that was added before it is not run, and a field that was added has no value."""
    # BR-70
    where["way"] = "edge"
    assert harness.run(talk, {**where, "version": "old"}, kill=KillAt("tool.after_body")).killed
    assert harness.run(talk, {**where, "version": version}).result[1] is None
    assert EffectsLog(Path(where["folder"]) / "effects").read() == ["drafted", "reviewed"]


async def test_answer_to_a_node_that_is_gone_is_refused(where: dict[str, str]) -> None:
    # BR-70
    where["way"] = "question"
    await talk(**where, version="old")
    ended, _ = await talk(**where, version="renamed", message={"resume": "yes"})
    assert ended.startswith("cannot_recover: the run goes on at 'review'")
    assert await talk(**where, version="old", message={"resume": "yes"}) == ["yes", None]


async def test_graph_may_change_when_nothing_is_left_to_do(where: dict[str, str]) -> None:
    for way in ("edge", "send", "join"):
        where |= {"way": way, "url": where["url"].replace("state", way)}
        assert await talk(**where, version="old") == ["reviewed", None]
        assert await talk(**where, version="renamed") == ["reviewed", None]
        assert await talk(**where, version="renamed", message="Again.") == ["reviewed", None]


async def work(url: str, folder: str, name: str) -> Any:
    effects = EffectsLog(Path(folder) / "effects")

    @tool
    async def pay() -> str:
        """Pay."""
        effects.append("pay")
        return "paid"

    async def workflow(question: str) -> str:
        return str(await pay.ainvoke({}))

    workflow.__name__ = name
    async with open_store(url) as store:
        try:
            return (await LangGraphAgent(entrypoint()(workflow)).session("s", store=store).run("go", id=ID)).text
        except RunFailed as failed:
            return f"{failed.code}: {failed}"


def test_workflow_of_another_name_does_not_begin_anew(harness: KillHarness, where: dict[str, str]) -> None:
    # BR-70
    assert harness.run(work, {**where, "name": "old"}, kill=KillAt("tool.after_body")).killed
    assert harness.run(work, {**where, "name": "new"}).result.startswith("cannot_recover: the run goes on at 'old'")
    assert EffectsLog(Path(where["folder"]) / "effects").read() == ["pay"]


# Harmless changes ----------------------------------------------------------------------------------------------------


class Answers(Script):
    """Asks for the tool that the user names, and is done."""

    def answer(self, history: History) -> Say:
        said = history[-1]
        return Say("", [ScriptedCall(str(said["content"]), {})]) if said["role"] == "user" else Say("Done.")


def support(folder: Path, version: str) -> LangGraphAgent:
    effects = EffectsLog(folder / "effects")

    def named(name: str) -> BaseTool:
        @tool(name, description=f"{name}, as of {version}")
        async def run() -> str:
            effects.append(name)
            while (folder / "hold").exists():
                await asyncio.sleep(0.01)
            return f"{name} is done"

        return run

    tools = [named(name) for name in ("pay", "delete", *(["look"] if version == "new" else []))]
    asking = HumanInTheLoopMiddleware(interrupt_on={"delete": True})
    model = ScriptedChatModel(script=Answers(""))
    return LangGraphAgent(create_agent(model, tools, system_prompt=f"As of {version}.", middleware=[asking]), name="a")


served = support(Path(os.environ["OUTLAST_TEST_FOLDER"]), os.environ["OUTLAST_TEST_VERSION"]) if (
    "OUTLAST_TEST_FOLDER" in os.environ
) else None  # fmt: skip


def test_deploy_with_other_words_and_one_more_tool_goes_on_with_every_run(store_url: str, tmp_path: Path) -> None:
    # BR-69
    def server(version: str) -> ServerProcess:
        env = {"OUTLAST_TEST_FOLDER": str(tmp_path), "OUTLAST_TEST_VERSION": version}
        return ServerProcess.serving(f"{__file__}:served", store_url, log=tmp_path / version, env=env)

    def ask(on: ServerProcess, session: str, input: Any, id: str | None = None, **more: Any) -> Any:
        body = {"id": id or str(uuid.uuid4()), "input": input, "session_id": session, **more}
        return httpx.post(f"{on.url}/api/invocations", json=body, timeout=60).json()

    effects, ids = EffectsLog(tmp_path / "effects"), [str(uuid.uuid4()) for _ in range(2)]
    with server("old") as old:
        asked = ask(old, "asking", "delete")
        (tmp_path / "hold").touch()
        for id in ids:
            ask(old, "busy", "pay", id, background=True)
        give_up = time.monotonic() + 60
        while not effects.read():
            assert time.monotonic() < give_up
            time.sleep(0.02)
        old.kill()
    (tmp_path / "hold").unlink()
    with server("new") as new:
        (approval,) = asked["interrupt"]["approvals"]
        decided = ask(new, "asking", {"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}})
        ends = [ask(new, "busy", "pay", id) for id in ids]
        assert ask(new, "busy", "look")["status"] == "completed"
    assert [(one["status"], one["attempt"]) for one in (decided, *ends)] == [
        ("completed", 1), ("completed", 2), ("completed", 1),
    ]  # fmt: skip
    assert sorted(effects.read()) == ["delete", "look", "pay", "pay"]

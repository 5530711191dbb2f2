"""A graph killed at every durable boundary of a run, and once more during the recovery."""

import asyncio
import contextlib
import random
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from outlast.adapters import current_tool_call, open_store
from outlast.core import faults
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast.testing.logs import check_log
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
SAMPLE = 12
"""Every n-th point in the quick test."""


def agent(folder: str) -> LangGraphAgent:
    effects, views = EffectsLog(Path(folder) / "effects"), EffectsLog(Path(folder) / "views")
    keys = EffectsLog(Path(folder) / "keys")

    def note(history: History) -> None:
        views.append(repr([(message["role"], message.get("tool_call_id")) for message in history]))

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        keys.append(current_tool_call().idempotency_key)
        await asyncio.sleep(0.02)
        return f"paid {x}"

    calls = [Say("First.", [ScriptedCall("pay", {"x": 1}), ScriptedCall("pay", {"x": 2})])]
    calls.append(Say("Then.", [ScriptedCall("pay", {"x": 3})]))
    model = ScriptedChatModel(script=Script(*calls, Say("All is paid."), on_call=note))
    return LangGraphAgent(create_agent(model, [pay]))


async def run(url: str, folder: str) -> dict[str, Any]:
    """Ask for the run by its id, as a client does that does not know whether it was accepted."""
    async with open_store(url) as store:
        chat = agent(folder).session("s", store=store)
        events = [event async for event in chat.stream("pay", id=ID)]
        reply = events[-1]["reply"]
        return {
            "status": events[-1]["status"],
            "error": events[-1].get("error"),
            "text": reply and reply.text,
            "messages": reply and reply.messages,
            "events": events[:-1],
        }


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.fixture(scope="module")
def places(harness: KillHarness, tmp_path_factory: pytest.TempPathFactory) -> list[KillAt]:
    folder = tmp_path_factory.mktemp("trace")
    return harness.trace(run, {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)})


def check(result: Mapping[str, Any], folder: Path) -> None:
    """Nothing ran twice, every call has one answer, the log is whole, and the user spoke once."""
    assert (result["status"], result["text"]) == ("completed", "All is paid."), result["error"]
    effects = EffectsLog(folder / "effects").read()
    assert len(effects) == len(set(effects)), effects
    asked = [call["id"] for message in result["messages"] for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in result["messages"] if message["role"] == "tool"]
    assert sorted(asked) == sorted(answered)
    assert EffectsLog(folder / "views").read()[-1].count("'user'") == 1
    check_log(result["events"], result["messages"])


def kill_and_recover(harness: KillHarness, folder: Path, place: KillAt, url: str | None = None) -> None:
    where = {"url": url or f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
    # Writes that come together are one transaction: a run may have one less than the run that was traced.
    ended = harness.start(run, where, kill=place).wait()
    check(harness.run(run, where).result if ended.killed else ended.result, folder)


def test_killed_here_and_there(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    # BR-01, BR-07
    for number, place in enumerate(places[::SAMPLE]):
        folder = tmp_path / str(number)
        folder.mkdir()
        kill_and_recover(harness, folder, place)


@pytest.mark.slow
def test_killed_everywhere(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    failures = {}
    for number, place in enumerate(places):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            kill_and_recover(harness, folder, place)
        except AssertionError as error:
            failures[place] = str(error)
    assert not failures


@pytest.mark.slow
def test_killed_twice(harness: KillHarness, places: list[KillAt], tmp_path: Path) -> None:
    """The recovery is killed too, at its own points."""
    for number, place in enumerate(places[::SAMPLE]):
        first = tmp_path / f"{number}"
        first.mkdir()
        where = {"url": f"sqlite:///{first / 'state.db'}", "folder": str(first)}
        harness.start(run, where, kill=place).wait()
        ended = harness.run(run, where)
        counts = Counter(ended.reached)
        for again, point in enumerate(sorted(counts)[number % 5 :: 5]):
            folder = tmp_path / f"{number}-{again}"
            folder.mkdir()
            where = {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
            harness.start(run, where, kill=place).wait()
            harness.start(run, where, kill=KillAt(point)).wait()
            check(harness.run(run, where).result, folder)


def test_answer_stored_and_run_not_finished(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    """The answer is in the history: it becomes the result, and the model is not called again."""
    # BR-07
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(run, where, kill=KillAt("finish.before_commit")).killed
    check(harness.run(run, where).result, tmp_path)
    assert len(EffectsLog(tmp_path / "views").read()) == 3


async def run_on_own_checkpointer(url: str, folder: str, sync: bool) -> Any:
    graph = agent(folder).graph
    path = str(Path(folder) / "own.db")
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(url))
        if sync:
            graph.checkpointer = stack.enter_context(SqliteSaver.from_conn_string(path))
        else:
            graph.checkpointer = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
        chat = LangGraphAgent(graph).session("s", store=store)
        events = [event async for event in chat.stream("pay", id=ID)]
        reply = events[-1]["reply"]
        return {
            "status": events[-1]["status"], "error": events[-1].get("error"), "text": reply and reply.text,
            "messages": reply and reply.messages, "events": events[:-1],
        }  # fmt: skip


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    "place",
    [
        KillAt("tool.after_body", 2),
        KillAt("checkpoint.before_put", 2),
        KillAt("checkpoint.before_put", 3),
        KillAt("checkpoint.after_put", 3),
        KillAt("finish.before_commit"),
    ],
    ids=str,
)
def test_own_checkpointer(harness: KillHarness, tmp_path: Path, place: KillAt, sync: bool) -> None:
    """Its newest checkpoint may be one that the store never made the head: it is not followed."""
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path), "sync": sync}
    assert harness.run(run_on_own_checkpointer, where, kill=place).killed
    check(harness.run(run_on_own_checkpointer, where).result, tmp_path)


async def rerun(url: str, folder: str) -> Any:
    async with open_store(url) as store:
        safe = LangGraphAgent(agent(folder).graph, rerun_safe={"pay"})
        return (await safe.session("s", store=store).run("pay", id=ID)).text


def test_tool_that_may_run_again_does_with_the_same_key(harness: KillHarness, store_url: str, tmp_path: Path) -> None:
    where = {"url": store_url, "folder": str(tmp_path)}
    assert harness.run(rerun, where, kill=KillAt("tool.after_body", 3)).killed
    assert harness.run(rerun, where).result == "All is paid."
    effects, keys = EffectsLog(tmp_path / "effects").read(), EffectsLog(tmp_path / "keys").read()
    assert (effects[2:], len(effects)) == (["pay 3", "pay 3"], 4)
    assert keys[2] == keys[3]
    assert len(set(keys)) == 3


async def say_more(url: str, folder: str, id: str, message: str) -> Any:
    async with open_store(url) as store:
        return (await agent(folder).session("s", store=store).run(message, id=id)).text


def test_new_message_is_not_lost_while_calls_are_closed(harness: KillHarness, tmp_path: Path) -> None:
    """Killed at each checkpoint of the run that closes the calls of a dead one."""
    for number in range(1, 6):
        folder = tmp_path / str(number)
        folder.mkdir()
        where = {"url": f"sqlite:///{folder / 'state.db'}", "folder": str(folder)}
        assert harness.run(say_more, {**where, "id": ID, "message": "pay"}, kill=KillAt("tool.after_body", 2)).killed
        more = {**where, "id": ID[:-1] + "9", "message": "pay more"}
        harness.start(say_more, more, kill=KillAt("checkpoint.after_put", number)).wait()
        assert harness.run(say_more, more).result == "All is paid."
        last = EffectsLog(folder / "views").read()[-1]
        assert last.count("'user'") == 2, last


def test_new_message_is_not_lost_when_its_checkpoint_was_stored_and_nothing_else(
    harness: KillHarness, tmp_path: Path
) -> None:
    """The writes of the step that takes the input in are a commit of their own, or one with the checkpoint."""
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    assert harness.run(say_more, {**where, "id": ID, "message": "pay"}, kill=KillAt("tool.before_body", 1)).killed
    more = {**where, "id": ID[:-1] + "9", "message": "pay more"}
    assert harness.run(say_more, more, kill=KillAt("checkpoint.after_put", 1)).killed
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as database:
        database.execute("DELETE FROM checkpoint_writes WHERE checkpoint_id = (SELECT checkpoint FROM heads)")
    assert harness.run(say_more, more).result == "All is paid."
    last = EffectsLog(tmp_path / "views").read()[-1]
    assert last.count("'user'") == 2, last


class Secretive(Script):
    """Asks for a tool with the user's own word, and ends with what the tool said."""

    def answer(self, history: History) -> Say:
        word = [message["content"] for message in history if message["role"] == "user"][-1]
        last = history[-1]
        if last["role"] == "tool":
            return Say(f"{word} heard {last['content']}")
        return Say(calls=[ScriptedCall("whisper", {"word": word})])


async def converse(url: str, users: int) -> list[str]:
    """One graph and many users at the same time; return all that each of them saw."""

    @tool
    async def whisper(word: str) -> str:
        """Whisper."""
        await asyncio.sleep(random.random() / 20)
        return f"echo of {word}"

    agent = LangGraphAgent(create_agent(ScriptedChatModel(script=Secretive("")), [whisper]))
    async with open_store(url) as store:

        async def one(user: int) -> str:
            id = str(uuid.uuid5(uuid.NAMESPACE_OID, str(user)))
            events = [e async for e in agent.session(f"s{user}", store=store).stream(f"secret-{user}-", id=id)]
            return repr((events[:-1], events[-1]["reply"].messages))

        return await asyncio.gather(*(one(user) for user in range(users)))


def test_one_graph_serves_many_users_and_mixes_nothing(harness: KillHarness, store_url: str) -> None:
    """Killed when half of the tools have run, so that the other runs are recovered ones."""
    # BR-75
    users = 50
    where = {"url": store_url, "users": users}
    assert harness.run(converse, where, kill=KillAt("tool.after_body", users // 2)).killed
    for user, saw in enumerate(harness.run(converse, where).result):
        assert set(re.findall(r"secret-\d+-", saw)) == {f"secret-{user}-"}


def graph_of_nodes(folder: str) -> LangGraphAgent:
    """A subgraph of three nodes with effects; the last one asks twice, and is killed after the first answer."""
    effects = EffectsLog(Path(folder) / "effects")

    def step(name: str) -> Any:
        async def node(state: MessagesState) -> dict[str, Any]:
            effects.append(name)
            if name == "c":
                first = interrupt("first?")
                effects.append(f"c heard {first}")
                await asyncio.sleep(0.01)
                faults.reach("tool.before_body")
                return {"messages": [AIMessage(f"{first} and {interrupt('second?')}")]}
            return {}

        return node

    inner = StateGraph(MessagesState)
    for name in "abc":
        inner.add_node(name, step(name))
    inner.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    outer = StateGraph(MessagesState).add_node("inner", inner.compile()).add_edge(START, "inner")
    return LangGraphAgent(outer.compile())


async def say(url: str, folder: str, message: Any, id: str) -> Any:
    async with open_store(url) as store:
        reply = await graph_of_nodes(folder).session("s", store=store).run(message, id=id)
        return {"text": reply.text, "questions": [q["value"] for q in (reply.interrupt or {}).get("questions", ())]}


def test_killed_after_an_answer(harness: KillHarness, tmp_path: Path) -> None:
    """Nodes before the question do not run again, and the first answer is not given to the second question."""
    # BR-20
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    one, two, three = (ID[:-1] + digit for digit in "234")
    effects = EffectsLog(tmp_path / "effects")
    assert harness.run(say, {**where, "message": "go", "id": one}).result["questions"] == ["first?"]
    answer = {**where, "message": {"resume": "yes"}, "id": two}
    assert harness.run(say, answer, kill=KillAt("tool.before_body")).killed
    assert harness.run(say, answer).result["questions"] == ["second?"]
    assert harness.run(say, {**where, "message": {"resume": "no"}, "id": three}).result["text"] == "yes and no"
    assert [effect for effect in effects.read() if effect in "ab"] == ["a", "b"]


def test_killed_after_the_second_question_was_asked(harness: KillHarness, tmp_path: Path) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path)}
    one, two = (ID[:-1] + digit for digit in "23")
    harness.run(say, {**where, "message": "go", "id": one})
    answer = {**where, "message": {"resume": "yes"}, "id": two}
    assert harness.run(say, answer, kill=KillAt("attempt.after_handler")).killed
    assert harness.run(say, answer).result["questions"] == ["second?"]

"""The states of a session: read, gone back to, changed, copied."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from outlast import open_store
from outlast.adapters import LocalStore
from outlast.core.errors import Conflict, NotFound, SessionBusy
from outlast.core.resume import INTERRUPTED_RESULT, ResumeKind
from outlast.sessions import SessionStore
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio

Views = list[list[str]]


def talker(views: Views | None = None) -> LangGraphAgent:
    def note(history: History) -> None:
        if views is not None:
            views.append([message["content"] for message in history])

    return LangGraphAgent(create_agent(ScriptedChatModel(script=Script("Hello.", on_call=note)), []))


def texts(values: Any) -> list[str]:
    return [message.text for message in values["messages"]]


async def test_states_are_read_newest_first(local: LocalStore) -> None:
    chat = talker().session("s", store=local)
    assert (await chat.state()).values == {}
    for said in ("one", "two"):
        await chat.run(said)
    history = await chat.history()
    assert texts((await chat.state()).values) == ["one", "Hello.", "two", "Hello."] == texts(history[0].values)
    earlier = next(found for found in history if texts(found.values or {"messages": []}) == ["one", "Hello."])
    id = earlier.config["configurable"]["checkpoint_id"]
    assert texts((await chat.state(id)).values) == ["one", "Hello."]
    assert [found.config for found in await chat.history(limit=1)] == [history[0].config]
    older = await chat.history(before=id)
    assert older and all(found.config["configurable"]["checkpoint_id"] < id for found in older)


async def test_changed_state_is_what_the_next_run_sees(local: LocalStore) -> None:
    views: Views = []
    chat = talker(views).session("s", store=local)
    await chat.run("one")
    last = (await chat.state()).values["messages"][-1]
    changed = await chat.update_state({"messages": [AIMessage("Good day.", id=last.id)]}, as_node="model")
    assert texts(changed.values) == ["one", "Good day."]
    await chat.run("two")
    assert views[-1] == ["one", "Good day.", "two"]
    assert [message["content"] for message in await chat.messages()] == ["one", "Good day.", "two", "Hello."]


async def test_going_back_in_time_leaves_what_came_after(local: LocalStore) -> None:
    views: Views = []
    chat = talker(views).session("s", store=local)
    await chat.run("one")
    id = (await chat.state()).config["configurable"]["checkpoint_id"]
    await chat.run("two")
    await chat.update_state({"messages": [HumanMessage("or rather")]}, as_node="__start__", checkpoint_id=id)
    assert texts((await chat.state()).values) == ["one", "Hello.", "or rather"]
    assert (await chat.resume()).text == "Hello."
    assert views[-1] == ["one", "Hello.", "or rather"]


async def test_copies_go_on_by_themselves(local: LocalStore) -> None:
    views: Views = []
    chat = talker(views).session("s", store=local)
    await chat.run("one")
    id = (await chat.state()).config["configurable"]["checkpoint_id"]
    await chat.run("two")
    whole, early = await chat.fork("whole"), await chat.fork("early", checkpoint_id=id)
    await whole.run("three")
    await early.run("three")
    assert views[-2:] == [["one", "Hello.", "two", "Hello.", "three"], ["one", "Hello.", "three"]]
    assert texts((await chat.state()).values) == ["one", "Hello.", "two", "Hello."]
    listed = {session.id for session in (await SessionStore(local).page()).sessions}
    assert listed == {"s", "whole", "early"}
    with pytest.raises(Conflict, match="already"):
        await chat.fork("early")
    with pytest.raises(NotFound):
        await talker().session("nobody", store=local).fork()


async def test_calls_that_are_open_in_a_copy_are_unknown_there(local: LocalStore) -> None:
    """Nobody knows what became of them; they do not run a second time."""
    ran: list[int] = []

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return f"paid {x}"

    model = ScriptedChatModel(script=Script(Say("", [ScriptedCall("pay", {"x": 1})]), "Done."))
    chat = LangGraphAgent(create_agent(model, [pay])).session("s", store=local)
    await chat.run("pay")
    asked = next(found for found in await chat.history() if found.next == ("tools",))
    copy = await chat.fork(checkpoint_id=asked.config["configurable"]["checkpoint_id"])
    point = await copy.resume_point()
    assert point is not None and point.kind is ResumeKind.RECOVER_TOOLS
    reply = await copy.resume()
    assert [message["content"] for message in reply.messages if message["role"] == "tool"] == [INTERRUPTED_RESULT]
    assert ran == [1]


async def test_a_running_session_is_not_changed(local: LocalStore) -> None:
    go_on, begun = asyncio.Event(), asyncio.Event()

    async def node(state: MessagesState) -> dict[str, Any]:
        begun.set()
        await go_on.wait()
        return {"messages": [AIMessage("done")]}

    graph: Any = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    chat = LangGraphAgent(graph).session("s", store=local)
    running = asyncio.create_task(chat.run("go"))
    await begun.wait()
    with pytest.raises(SessionBusy):
        await chat.update_state({"messages": [HumanMessage("x")]}, as_node="node")
    go_on.set()
    assert (await running).text == "done"


async def test_question_is_dropped_in_a_copy(local: LocalStore) -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"heard {interrupt('what?')}")]}

    graph: Any = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    chat = LangGraphAgent(graph).session("s", store=local)
    await chat.run("go")
    copy = await chat.fork()
    assert (await chat.run({"resume": "this"})).text == "heard this"
    asked = await copy.run("again")
    assert asked.interrupt is not None
    assert (await copy.run({"resume": "that"})).text == "heard that"


async def test_checkpointer_of_ones_own_is_only_read(tmp_path: Path) -> None:
    async with (
        AsyncSqliteSaver.from_conn_string(str(tmp_path / "own.db")) as own,
        open_store(f"sqlite:///{tmp_path / 'state.db'}") as store,
    ):
        graph: Any = create_agent(ScriptedChatModel(script=Script("Hello.")), [], checkpointer=own)
        chat = LangGraphAgent(graph).session("s", store=store)
        await chat.run("one")
        assert texts((await chat.history())[0].values) == ["one", "Hello."]
        with pytest.raises(Conflict, match="of its own"):
            await chat.fork()


def test_without_asyncio(tmp_path: Path) -> None:
    chat = talker().session("s", store=f"sqlite:///{tmp_path / 'state.db'}").sync
    chat.run("one")
    assert texts(chat.state().values) == ["one", "Hello."]
    assert len(chat.history(limit=2)) == 2
    chat.close()

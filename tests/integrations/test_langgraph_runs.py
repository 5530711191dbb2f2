"""Runs of a LangGraph agent in this process: inputs, outputs, failures, questions, and what a history allows."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

pytest.importorskip("langchain")

from fastapi.testclient import TestClient
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from outlast import AgentClient, DurableAgentServer
from outlast.adapters import LocalStore, current_tool_call, open_store
from outlast.core.errors import AgentResumeError, RunFailed, SessionBusy
from outlast.core.resume import ResumeKind
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast.testing.serving import ServerThread
from outlast_langgraph import LangGraphAgent, recognise
from outlast_langgraph.testing import ScriptedChatModel

Views = list[list[tuple[str, Any]]]


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as store:
        yield store


def model(*answers: Say | str, views: Views | None = None) -> ScriptedChatModel:
    def note(history: History) -> None:
        if views is not None:
            views.append([(message["role"], message["content"]) for message in history])

    return ScriptedChatModel(script=Script(*answers, on_call=note))


def run(work: Callable[[LocalStore], Any], url: str) -> Any:
    async def opened() -> Any:
        async with open_store(url) as store:
            return await work(store)

    return asyncio.run(opened())


def call(name: str, id: str | None = None, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name, arguments, id)


def talker(views: Views | None = None) -> LangGraphAgent:
    return LangGraphAgent(create_agent(model("Hello there.", views=views), []))


@pytest.mark.parametrize(
    "given",
    [
        "hi",
        {"message": "hi"},
        {"messages": [{"role": "user", "content": "hi"}]},
        [{"role": "user", "content": "hi"}],
    ],
)
def test_input_shapes(store_url: str, given: Any) -> None:
    views: Views = []
    reply = run(lambda store: talker(views).session("s", store=store).run(given), store_url)
    assert views == [[("user", "hi")]]
    assert (reply.text, reply.stop_reason) == ("Hello there.", "stop")
    assert [message["role"] for message in reply.messages] == ["assistant"]
    assert reply.usage == {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}


def test_other_input_fails_and_the_session_goes_on(store_url: str) -> None:
    async def talk(store: LocalStore) -> str:
        chat = talker().session("s", store=store)
        for given in ({"text": "hi"}, [{"role": "assistant", "content": "hi", "tool_calls": "none"}]):
            with pytest.raises(RunFailed, match="expected a string") as caught:
                await chat.run(given)
            assert caught.value.code == "invalid_input"
        return (await chat.run("hi")).text

    assert run(talk, store_url) == "Hello there."


def test_same_text_twice_is_two_turns(store_url: str) -> None:
    # BR-18
    views: Views = []

    async def talk(store: LocalStore) -> None:
        chat = talker(views).session("s", store=store)
        await chat.run("yes")
        await chat.run("yes")

    run(talk, store_url)
    assert views[1] == [("user", "yes"), ("assistant", "Hello there."), ("user", "yes")]


def test_known_message_id_is_refused(store_url: str) -> None:
    async def talk(store: LocalStore) -> None:
        chat = talker().session("s", store=store)
        await chat.run([{"role": "user", "content": "hi", "id": "m1"}])
        with pytest.raises(RunFailed, match="m1"):
            await chat.run([{"role": "user", "content": "other", "id": "m1"}])

    run(talk, store_url)


def test_events_tell_the_run_and_end_with_the_reply(store_url: str) -> None:
    async def talk(store: LocalStore) -> list[Any]:
        return [event async for event in talker().session("s", store=store).stream("hi")]

    events = run(talk, store_url)
    told = "".join(event["delta"] for event in events if event["type"] == "agent.part.delta")
    assert told == "Hello there."
    finished = next(event for event in events if event["type"] == "agent.message.finished")
    assert (finished["stored"], finished["stop_reason"]) == (True, "stop")
    assert events[-1]["type"] == "agent.run.finished"
    assert events[-1]["reply"].text == "Hello there."


def test_the_same_without_asyncio(tmp_path: Path) -> None:
    chat = talker().session("s", store=f"sqlite:///{tmp_path / 'state.db'}").sync
    assert chat.run("hi").text == "Hello there."
    *_, last = chat.stream("again")
    assert last["reply"].text == "Hello there."
    assert chat.resume_point() is None
    with pytest.raises(AgentResumeError) as caught:
        chat.resume()
    assert caught.value.reason == "completed"
    chat.close()


def test_session_in_use_is_busy(store_url: str) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(state: MessagesState) -> dict[str, Any]:
        entered.set()
        await leave.wait()
        return {"messages": [AIMessage("free")]}

    async def talk(store: LocalStore) -> None:
        chat = LangGraphAgent(around(wait)).session("s", store=store)
        first = asyncio.create_task(chat.run("one"))
        await entered.wait()
        with pytest.raises(SessionBusy):
            await chat.run("two")
        second = asyncio.create_task(chat.run("three", wait=30))
        leave.set()
        assert [(await first).text, (await second).text] == ["free", "free"]

    run(talk, store_url)


def around(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()


def test_failure_after_a_tool_is_final_and_the_next_message_closes_the_call(store_url: str) -> None:
    # BR-08, BR-09, BR-11
    ran: list[str] = []
    views: Views = []
    stored = threading.Event()

    @tool
    def good() -> str:
        """Work."""
        ran.append("good")
        return "fine"

    @tool
    def bad() -> str:
        """Do not work, once the other's result is stored: a failure cancels what is not."""
        assert stored.wait(30)
        ran.append("bad")
        raise ValueError("404")

    async def talk(store: LocalStore) -> None:
        script = model(Say("", [call("good"), call("bad")]), "Sorry.", views=views)
        chat = LangGraphAgent(create_agent(script, [good, bad])).session("s", store=store)
        id = "0b7f4b35-6c43-4a5b-9f0e-0a4f5b8f7c01"
        async for event in chat.stream("go", id=id):
            if event["type"] == "agent.tool.finished":
                stored.set()
        with pytest.raises(RunFailed, match="ValueError: 404"):
            await chat.run("go", id=id)
        assert sorted(ran) == ["bad", "good"]
        point = await chat.resume_point()
        assert point is not None and point.kind is ResumeKind.RECOVER_TOOLS
        again = LangGraphAgent(create_agent(model("Sorry.", views=views), [good, bad]))
        await again.session("s", store=store).run("and now?")

    run(talk, store_url)
    assert sorted(ran) == ["bad", "good"]
    assert views[-1][:2] == [("user", "go"), ("assistant", "")]
    assert views[-1][2:4] == [("tool", "fine"), ("tool", "ValueError: 404")]
    assert views[-1][4] == ("user", "and now?")


def test_handled_tool_error_goes_to_the_model(store_url: str) -> None:
    # BR-09
    views: Views = []

    @tool
    def bad() -> str:
        """Do not work."""
        raise ValueError("404")

    graph = looped(model(Say("", [call("bad")]), "I see.", views=views), ToolNode([bad], handle_tool_errors=True))

    async def talk(store: LocalStore) -> str:
        return (await LangGraphAgent(graph).session("s", store=store).run("go")).text

    assert run(talk, store_url) == "I see."
    assert "404" in views[-1][-1][1]


def looped(chat: ScriptedChatModel, tools: Any) -> Any:
    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("model", call_model).add_node("tools", tools)
    graph.add_edge(START, "model").add_edge("tools", "model").add_conditional_edges("model", tools_condition)
    return graph.compile()


def test_tool_that_cancels_itself_does_not_hang_the_run(store_url: str) -> None:
    # BR-12
    @tool
    async def stop() -> str:
        """Stop."""
        raise asyncio.CancelledError

    async def talk(store: LocalStore) -> str:
        chat = LangGraphAgent(create_agent(model(Say("", [call("stop")]), "ok"), [stop])).session("s", store=store)
        with pytest.raises(RunFailed, match="CancelledError"):
            await chat.run("go")
        return (await talker().session("s", store=store).run("again")).text

    assert run(talk, store_url) == "Hello there."


def test_two_calls_with_one_id_have_two_results(store_url: str) -> None:
    # BR-14
    ran: list[str] = []

    @tool
    def get(what: str) -> str:
        """Get."""
        ran.append(what)
        return what

    calls = [call("get", "c1", what="A"), call("get", "c1", what="B"), call("get", "c1", what="B")]

    async def talk(store: LocalStore) -> Any:
        graph = looped(model(Say("", calls), "ok"), ToolNode([get]))
        return await LangGraphAgent(graph).session("s", store=store).run("go")

    reply = run(talk, store_url)
    assert sorted(ran) == ["A", "B", "B"]
    assert [m["content"] for m in reply.messages if m["role"] == "tool"] == ["A", "B", "B"]


def test_current_tool_call_has_a_key_to_hand_on(store_url: str) -> None:
    keys: list[str] = []

    @tool
    def pay() -> str:
        """Pay."""
        keys.append(current_tool_call().idempotency_key)
        return current_tool_call().name

    async def talk(store: LocalStore) -> Any:
        graph = create_agent(model(Say("", [call("pay"), call("pay", "other")]), "ok"), [pay])
        return await LangGraphAgent(graph).session("s", store=store).run("go")

    run(talk, store_url)
    assert len(set(keys)) == 2
    with pytest.raises(LookupError):
        current_tool_call()


def test_question_interrupts_and_its_answer_goes_on(store_url: str) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You said {interrupt({'question': 'how many?'})}")]}

    async def talk(store: LocalStore) -> None:
        chat = LangGraphAgent(around(ask)).session("s", store=store)
        asked = await chat.run("go")
        assert asked.interrupt is not None
        assert asked.interrupt["reason"] == "input_required"
        (question,) = asked.interrupt["questions"]
        assert question["value"] == {"question": "how many?"}
        point = await chat.resume_point()
        assert point is not None and point.kind is ResumeKind.AWAIT_APPROVAL
        with pytest.raises(AgentResumeError):
            await chat.resume()
        answered = await chat.run({"resume": {"answers": {question["id"]: 3}}})
        assert answered.text == "You said 3"
        with pytest.raises(RunFailed, match="does not wait"):
            await chat.run({"resume": 3})

    run(talk, store_url)


def test_approval_interrupts_and_an_approved_call_runs_once(store_url: str) -> None:
    ran: list[int] = []

    @tool
    def pay(x: int) -> str:
        """Pay."""
        ran.append(x)
        return "paid"

    graph = create_agent(
        model(Say("", [call("pay", x=1)]), "Done."), [pay],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True})],
    )  # fmt: skip

    async def talk(store: LocalStore) -> None:
        chat = LangGraphAgent(graph).session("s", store=store)
        asked = await chat.run("pay")
        assert asked.interrupt is not None
        (approval,) = asked.interrupt["approvals"]
        assert (approval["name"], approval["arguments"]) == ("pay", {"x": 1})
        assert ran == []
        done = await chat.run({"resume": {"decisions": [{"id": approval["id"], "type": "approve"}]}})
        assert (done.text, ran) == ("Done.", [1])

    run(talk, store_url)


class Numbers(TypedDict):
    number: int
    steps: list[str]


def test_graph_without_messages_takes_its_own_state(store_url: str) -> None:
    def double(state: Numbers) -> dict[str, Any]:
        get_stream_writer()({"type": "doubling", "number": state["number"]})
        return {"number": state["number"] * 2, "steps": ["double"]}

    graph = StateGraph(Numbers).add_node("double", double).add_edge(START, "double").add_edge("double", END).compile()

    async def talk(store: LocalStore) -> list[Any]:
        chat = LangGraphAgent(graph).session("s", store=store)
        with pytest.raises(RunFailed, match="no messages"):
            await chat.run("hi")
        return [event async for event in chat.stream({"number": 4})]

    events = run(talk, store_url)
    assert {"type": "doubling", "number": 4} in events
    assert events[-1]["reply"].output["state"] == {"number": 8, "steps": ["double"]}


def test_resume_point_writes_nothing(tmp_path: Path) -> None:
    # BR-19
    path = tmp_path / "state.db"

    @tool
    def bad() -> str:
        """Do not work."""
        raise ValueError("404")

    def dump() -> list[str]:
        with sqlite3.connect(path) as connection:
            return list(connection.iterdump())

    async def talk(store: LocalStore) -> None:
        agent = LangGraphAgent(create_agent(model(Say("", [call("bad")])), [bad]))
        with pytest.raises(RunFailed):
            await agent.session("s", store=store).run("go")
        await store.close()
        before = dump()
        points = {str(await agent.session("s", store=store).resume_point()) for _ in range(20)}
        await store.close()
        assert len(points) == 1
        assert dump() == before

    run(talk, f"sqlite:///{path}")


def test_own_checkpointer_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"

    async def talk(store: LocalStore) -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "own.db")) as own:
            agent = LangGraphAgent(create_agent(model("Hello there."), [], checkpointer=own))
            chat = agent.session("s", store=store)
            await chat.run("one")
            reply = await chat.run("two")
            assert reply.text == "Hello there."
            kept = await own.aget_tuple({"configurable": {"thread_id": "s"}})
            assert kept is not None
            assert len(kept.checkpoint["channel_values"]["messages"]) == 4

    run(talk, url)


def test_memory_checkpointer_is_replaced(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    views: Views = []
    graph = create_agent(model("Hello there.", views=views), [], checkpointer=InMemorySaver())
    assert "InMemorySaver" not in caplog.text
    agent = LangGraphAgent(graph)
    assert "InMemorySaver" in caplog.text

    async def talk(store: LocalStore) -> None:
        await agent.session("s", store=store).run("one")
        await agent.session("s", store=store).run("two")

    run(talk, store_url)
    assert len(views[-1]) == 3


def test_command_line_recognises_compiled_graphs_only() -> None:
    assert isinstance(recognise(create_agent(model("x"), [])), LangGraphAgent)
    assert recognise(object()) is None


def test_items_of_a_session_that_is_kept_as_checkpoints_are_not_changed(store_url: str) -> None:
    with TestClient(DurableAgentServer(talker(), store=store_url)) as client:
        client.post("/api/sessions", json={"id": "s"})
        refused = [
            client.post("/api/sessions/s/items", json={"items": [{"role": "user", "content": "hi"}]}),
            client.post("/api/sessions/s/items/pop"),
            client.delete("/api/sessions/s/items"),
        ]
    assert [(one.status_code, one.json()["code"]) for one in refused] == [(409, "unsupported_for_agent")] * 3


def test_what_is_said_over_http_is_read_as_in_process(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.client.session.LARGEST_PAGE", 1)

    async def said() -> None:
        with ServerThread(DurableAgentServer(talker(), store=store_url)) as server:
            async with AgentClient(server.url) as client, open_store(store_url) as store:
                await client.session("s").run("hi")
                found = await client.session("s").messages()
                assert found == await talker().session("s", store=store).messages()
                assert [one["role"] for one in found] == ["user", "assistant"]

    asyncio.run(said())

"""What graphs ask people: durable, decided once, bound to what was shown."""

import asyncio
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from outlast import AgentClient, DurableAgentServer, EngineSettings, Reply, RunFailed, SessionBusy, open_store
from outlast.adapters import ChatSession, LocalStore
from outlast.core.errors import AgentResumeError
from outlast.core.records import ApprovalKind, ApprovalStatus
from outlast.core.resume import CANCELLED_RESULT, NOT_APPROVED_RESULT, ResumeKind, ResumePoint
from outlast.testing.scripted import Say, Script, ScriptedCall
from outlast.testing.serving import ServerThread
from outlast_langgraph import LangGraphAgent
from outlast_langgraph.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


class Shop:
    """A graph that may look by itself, and pay when somebody agrees."""

    def __init__(self, *amounts: int, mode: Any = "batched", inside: bool = False) -> None:
        self.paid: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return f"paid {amount}"

        @tool
        def look() -> str:
            """Look."""
            return "5 left"

        calls = [ScriptedCall("look"), *(ScriptedCall("pay", {"amount": amount}) for amount in amounts)]
        graph: Any = create_agent(
            ScriptedChatModel(script=Script(Say("I will.", calls), "Done.")),
            [pay, look],
            middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True}, interrupt_mode=mode)],
        )
        if inside:
            graph = StateGraph(MessagesState).add_node("shop", graph).add_edge(START, "shop").compile()
        self.agent = LangGraphAgent(graph)

    def chat(self, local: LocalStore) -> ChatSession:
        return self.agent.session("s", store=local)


def asked(reply: Reply) -> list[dict[str, Any]]:
    assert reply.interrupt is not None
    return list(reply.interrupt["approvals"])


def decided(*decisions: dict[str, Any]) -> dict[str, Any]:
    return {"resume": {"decisions": list(decisions)}}


async def results(chat: ChatSession) -> list[str]:
    return [one["content"] for one in await chat.messages() if one["role"] == "tool"]


async def waiting(local: LocalStore) -> list[str]:
    read = (await local.store()).read
    found = await read.approvals_listed("local", status=ApprovalStatus.OPEN, session_id="s", before=None, limit=10)
    return [row.key for row in found]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize("inside", [False, True], ids=["graph", "subgraph"])
async def test_an_approved_call_runs_once(local: LocalStore, mode: str, inside: bool) -> None:
    shop = Shop(5, mode=mode, inside=inside)
    chat = shop.chat(local)
    reply = await chat.run("buy")
    (approval,) = asked(reply)
    assert (approval["name"], approval["arguments"], shop.paid) == ("pay", {"amount": 5}, [])
    assert reply.text == "I will."
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, list(point.approvals)) == (ResumeKind.AWAIT_APPROVAL, [approval])
    reply = await chat.run(decided({"id": approval["id"], "type": "approve", "arguments": {"amount": 5}}))
    assert (reply.text, shop.paid) == ("Done.", [5])


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize(
    ("decision", "paid", "told"),
    [
        ({"type": "edit", "arguments": {"amount": 3}}, [3], "paid 3"),
        ({"type": "reject", "message": "Too dear."}, [], "Too dear."),
        ({"type": "respond", "message": "I paid it."}, [], "I paid it."),
    ],
    ids=["edit", "reject", "respond"],
)
async def test_what_a_person_decides_is_done(
    local: LocalStore, mode: str, decision: dict[str, Any], paid: list[int], told: str
) -> None:
    shop = Shop(5, mode=mode)
    chat = shop.chat(local)
    (approval,) = asked(await chat.run("buy"))
    await chat.run(decided({"id": approval["id"], **decision}))
    assert shop.paid == paid
    assert any(told in result for result in await results(chat))


async def test_calls_asked_about_together_are_decided_together(local: LocalStore) -> None:
    shop = Shop(1, 2)
    chat = shop.chat(local)
    first, second = asked(await chat.run("buy"))
    with pytest.raises(RunFailed) as refused:
        await chat.run(decided({"id": second["id"], "type": "approve"}))
    assert (refused.value.code, shop.paid) == ("invalid_input", [])
    await chat.run(decided({"id": second["id"], "type": "approve"}, {"id": first["id"], "type": "reject"}))
    assert shop.paid == [2]


async def test_calls_asked_about_one_by_one_are_decided_one_by_one(local: LocalStore) -> None:
    shop = Shop(1, 2, mode="per_call")
    chat = shop.chat(local)
    first, second = sorted(asked(await chat.run("buy")), key=lambda one: one["arguments"]["amount"])
    assert asked(await chat.run(decided({"id": second["id"], "type": "approve"}))) == [first]
    assert shop.paid == [2]
    await chat.run(decided({"id": first["id"], "type": "approve"}))
    assert shop.paid == [2, 1]


@pytest.mark.parametrize(
    ("decision", "code"),
    [
        ({"id": "other", "type": "approve"}, "approval_mismatch"),
        ({"type": "approve", "arguments": {"amount": 6}}, "approval_mismatch"),
        ({"type": "allow"}, "invalid_input"),
    ],
)
async def test_a_decision_that_does_not_fit_runs_nothing(
    local: LocalStore, decision: dict[str, Any], code: str
) -> None:
    shop = Shop(5)
    chat = shop.chat(local)
    (approval,) = asked(await chat.run("buy"))
    with pytest.raises(RunFailed) as refused:
        await chat.run(decided({"id": approval["id"], **decision}))
    assert (refused.value.code, shop.paid) == (code, [])
    await chat.run(decided({"id": approval["id"], "type": "approve"}))
    with pytest.raises(RunFailed):
        await chat.run(decided({"id": approval["id"], "type": "approve"}))
    assert shop.paid == [5]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_new_message_closes_what_is_open(local: LocalStore, mode: str) -> None:
    # BR-11
    shop = Shop(5, mode=mode)
    chat = shop.chat(local)
    (approval,) = asked(await chat.run("buy"))
    asked(await chat.run("buy again"))
    assert NOT_APPROVED_RESULT in await results(chat)
    with pytest.raises(RunFailed) as refused:
        await chat.run(decided({"id": approval["id"], "type": "approve"}))
    assert (refused.value.code, shop.paid) == ("approval_already_decided", [])


async def test_two_equal_questions_of_one_node_get_an_answer_each(local: LocalStore) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{interrupt('sure?')}, {interrupt('sure?')}")]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    chat = LangGraphAgent(graph).session("s", store=local)
    first = await chat.run("go")
    assert first.interrupt is not None
    second = await chat.run({"resume": {"answers": {first.interrupt["questions"][0]["id"]: "yes"}}})
    assert second.interrupt is not None
    assert second.interrupt["questions"][0]["id"] != first.interrupt["questions"][0]["id"]
    assert (await chat.run({"resume": "no"})).text == "yes, no"


async def test_cancelling_a_run_answers_its_calls(local: LocalStore) -> None:
    began = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    graph = create_agent(ScriptedChatModel(script=Script(Say("", [ScriptedCall("wait")]), "Done.")), [wait])
    chat = LangGraphAgent(graph).session("s", store=local)
    running = asyncio.ensure_future(chat.run("go"))
    await began.wait()
    await chat.cancel()
    with pytest.raises(RunFailed):
        await running
    assert await results(chat) == [CANCELLED_RESULT]
    point = await chat.resume_point()
    assert point is not None
    assert point.kind is ResumeKind.CALL_MODEL
    assert (await chat.resume()).text == "Done."


def test_a_run_that_waited_behind_a_question_does_not_close_it(store_url: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def ask(state: MessagesState) -> dict[str, Any]:
        entered.set()
        go_on.wait(20)
        return {"messages": [AIMessage(f"You said {interrupt('how many?')}")]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    with TestClient(DurableAgentServer(LangGraphAgent(graph), store=store_url)) as client:

        def post(input: Any, **fields: Any) -> Any:
            body = {"id": str(uuid.uuid4()), "session_id": "s", "input": input, **fields}
            return client.post("/api/invocations", json=body).json()

        first = post("go", background=True)
        assert entered.wait(20)
        behind = post("and this", background=True)
        go_on.set()
        client.get(f"/api/invocations/{behind['id']}/events")
        assert client.get(f"/api/invocations/{behind['id']}").json()["error"]["code"] == "approval_open"
        (question,) = client.get("/api/approvals?status=open").json()["items"]
        assert (question["kind"], question["value"], question["invocation_id"]) == (
            "question", "how many?", first["id"],
        )  # fmt: skip
        assert post({"resume": 3})["output"]["text"] == "You said 3"


async def test_the_inbox_shows_calls_and_questions(store_url: str) -> None:
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You said {interrupt({'how': 'many?'})}")]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    agents = {"asks": LangGraphAgent(graph), "pays": Shop(5).agent}
    with ServerThread(DurableAgentServer(agents=agents, store=store_url)) as server:
        async with AgentClient(server.url) as client:
            await client.session("a").run("go", agent="asks")
            await client.session("b").run("buy", agent="pays")
            approval, question = [one async for one in client.approvals(status="open")]
    assert (question.kind, question.agent, question.arguments) == (ApprovalKind.QUESTION, "asks", {"how": "many?"})
    assert (question.name, question.call_id, question.allowed) == (None, None, ())
    assert (approval.kind, approval.name, approval.arguments) == (ApprovalKind.APPROVAL, "pay", {"amount": 5})
    assert approval.allowed == ["approve", "edit", "reject", "respond"]
    assert {"interrupt_id", "description"} <= approval.details.keys()


async def test_a_node_that_failed_after_its_answer_is_entered_again_with_it(local: LocalStore) -> None:
    failures = [RuntimeError("no paper")]

    def ask(state: MessagesState) -> dict[str, Any]:
        said = interrupt("how many?")
        if failures:
            raise failures.pop()
        return {"messages": [AIMessage(f"You said {said}")]}

    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
    chat = LangGraphAgent(graph).session("s", store=local)
    await chat.run("go")
    with pytest.raises(RunFailed, match="no paper"):
        await chat.run({"resume": 3})
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, point.approvals) == ("call_model", ())
    assert (await chat.resume()).text == "You said 3"


async def test_a_question_from_before_is_answered_here(local: LocalStore, tmp_path: Path) -> None:
    """The user's own checkpointer has it; no run here asked."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You said {interrupt('how many?')}")]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "own.db")) as saver:
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "s"}})
        chat = LangGraphAgent(graph).session("s", store=local)
        point = await chat.resume_point()
        assert point is not None
        assert (point.kind, [one["value"] for one in point.approvals]) == ("await_approval", ["how many?"])
        with pytest.raises(AgentResumeError, match="a person has to decide"):
            await chat.resume()
        reply = await chat.run({"resume": {"answers": {point.approvals[0]["id"]: 3}}})
        assert (reply.text, await chat.resume_point()) == ("You said 3", None)
        assert await LangGraphAgent(graph).session("other", store=local).resume_point() is None


async def test_cancelling_a_run_closes_what_its_calls_asked(local: LocalStore) -> None:
    began = asyncio.Event()

    @tool
    async def ask(about: str) -> str:
        """Ask."""
        interrupt(about)
        began.set()
        await asyncio.Event().wait()
        return "never"

    calls = [ScriptedCall("ask", {"about": about}) for about in ("this", "that")]
    graph = create_agent(ScriptedChatModel(script=Script(Say("", calls), "Done.")), [ask])
    chat = LangGraphAgent(graph).session("s", store=local)
    reply = await chat.run("go")
    assert reply.interrupt is not None
    this = reply.interrupt["questions"][0]
    running = asyncio.ensure_future(chat.run({"resume": {"answers": {this["id"]: "yes"}}}))
    await began.wait()
    await chat.cancel()
    with pytest.raises(RunFailed):
        await running
    assert await results(chat) == [CANCELLED_RESULT] * 2
    assert await waiting(local) == []
    assert (await chat.resume()).text == "Done."


async def test_a_message_that_is_refused_closes_nothing(local: LocalStore) -> None:
    shop = Shop(5)
    chat = shop.chat(local)
    (approval,) = asked(await chat.run([{"role": "user", "content": "buy", "id": "x"}]))
    for ids in (["x"], ["y", "y"]):
        with pytest.raises(RunFailed) as refused:
            await chat.run([{"role": "user", "content": "and this", "id": id} for id in ids])
        assert refused.value.code == "invalid_input"
    assert await waiting(local) == [approval["id"]]
    await chat.run(decided({"id": approval["id"], "type": "approve"}))
    assert shop.paid == [5]


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_call_beside_a_question_is_told_once(local: LocalStore, mode: str) -> None:
    chat = Shop(5, mode=mode).chat(local)
    events = [event async for event in chat.stream("buy")]
    (approval,) = asked(events[-1]["reply"])
    events += [event async for event in chat.stream(decided({"id": approval["id"], "type": "approve"}))]
    ended = [event["name"] for event in events if event["type"] == "agent.tool.finished"]
    assert sorted(ended) == ["look", "pay"]


@pytest.mark.parametrize("where", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}], ids=["before", "after"])
async def test_a_breakpoint_is_passed_when_somebody_says_so(local: LocalStore, where: Any) -> None:
    ran: list[str] = []

    def step(name: str) -> Any:
        def node(state: MessagesState) -> dict[str, Any]:
            ran.append(name)
            return {"messages": [AIMessage(name)]}

        return node

    builder = StateGraph(MessagesState).add_node("a", step("a")).add_node("b", step("b"))
    graph = builder.add_edge(START, "a").add_edge("a", "b").compile(**where)
    chat = LangGraphAgent(graph).session("s", store=local)
    reply = await chat.run("go")
    assert reply.interrupt is not None
    (question,) = reply.interrupt["questions"]
    assert (question["value"], ran) == ({"next": ["b"]}, ["a"])
    point = await chat.resume_point()
    assert point is not None
    assert point.kind is ResumeKind.AWAIT_APPROVAL
    assert (await chat.run({"resume": True})).text == "b"
    assert ran == ["a", "b"]
    with pytest.raises(RunFailed, match="does not wait"):
        await chat.run({"resume": True})
    await chat.run("again")
    assert (await chat.run("and again")).interrupt is not None
    assert ran == ["a", "b", "a", "a"]


async def idle_point(chat: ChatSession) -> ResumePoint | None:
    try:
        return await chat.resume_point()
    except SessionBusy:
        return None


async def test_cancelling_a_run_that_lost_its_worker_answers_its_calls_before_it_is_final(store_url: str) -> None:
    began = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    graph = create_agent(ScriptedChatModel(script=Script(Say("", [ScriptedCall("wait")]), "Done.")), [wait])
    stopped = LocalStore(store_url, EngineSettings(claims=False, drain_timeout=0))
    running = asyncio.ensure_future(LangGraphAgent(graph).session("s", store=stopped).run("go"))
    await began.wait()
    await stopped.close()
    with pytest.raises(RunFailed, match="the store was closed"):
        await running
    async with open_store(store_url) as local:
        chat = LangGraphAgent(graph).session("s", store=local)
        assert await chat.cancel()
        while (point := await idle_point(chat)) is None or point.cause != "cancelled":
            await asyncio.sleep(0.01)
        assert point.kind is ResumeKind.CALL_MODEL
        assert await results(chat) == [CANCELLED_RESULT]
        assert (await chat.resume()).text == "Done."

import asyncio
import functools
import logging
import re
import sys
import typing
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from outlast import Agent, AgentResumeError, DurableAgentServer, Hooks, RunFailed
from outlast.adapters import LocalStore
from outlast.adapters.native import (
    CallDelta,
    Delta,
    ProviderError,
    ProviderUnavailable,
    Stopped,
    TextDelta,
    Tool,
    ToolSetupError,
    ToolSpec,
    asking,
)
from outlast.adapters.native.tools import ToolError
from outlast.core.errors import SessionBusy
from outlast.core.resume import INTERRUPTED_RESULT
from outlast.core.transcript import Message, StopReason
from outlast.sessions import SessionStore
from outlast.testing.logs import check_log
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel

pytestmark = pytest.mark.anyio


class Heard:
    """A model that plays answers in order, and keeps the conversations it was called with."""

    name = "heard"

    def __init__(self, *answers: Sequence[Delta | Exception]) -> None:
        self.heard: list[list[dict[str, Any]]] = []
        self._answers = list(answers)

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        self.heard.append([message.as_json() for message in messages])
        for delta in self._answers.pop(0):
            if isinstance(delta, Exception):
                raise delta
            yield delta


def says(text: str, reason: StopReason = StopReason.STOP) -> list[Delta | Exception]:
    return [TextDelta(text), Stopped(reason)]


def calls(*ids: str, name: str = "pay") -> list[Delta | Exception]:
    asked: list[Delta | Exception] = [CallDelta(index, "{}", id, name) for index, id in enumerate(ids)]
    return [*asked, Stopped(StopReason.TOOL_CALLS)]


async def history(local: LocalStore, id: str = "s") -> list[tuple[str, str]]:
    found = [item.content async for item in SessionStore(local).items(id)]
    return [(message["role"], message["content"]) for message in found]


class Counted:
    """A tool that counts how often it ran."""

    def __init__(self) -> None:
        self.ran = 0

    def tool(self) -> Tool:
        async def pay() -> str:
            """Pay."""
            self.ran += 1
            return f"paid {self.ran}"

        return Tool(pay)


async def test_a_turn_with_tools_is_stored_and_told(local: LocalStore) -> None:
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    async def greet(name: str) -> str:
        return f"hello {name}"

    asked = [ScriptedCall("add", {"a": 1}), ScriptedCall("greet", {"name": "ann"}), ScriptedCall("nothing")]
    agent = Agent(ScriptedModel(Say("One moment.", asked), "Done."), tools=[add, greet])
    events = [event async for event in agent.session("s", store=local).stream("hi")]
    reply = events[-1]["reply"]
    assert (reply.text, reply.stop_reason, reply.usage) == ("Done.", "stop", {"input_tokens": 2, "output_tokens": 2})
    assert await history(local) == [
        ("user", "hi"),
        ("assistant", "One moment."),
        ("tool", "3"),
        ("tool", "hello ann"),
        ("tool", "there is no tool 'nothing'"),
        ("assistant", "Done."),
    ]
    check_log(events[:-1], reply.messages)
    inputs = [event["input"] for event in events if event["type"] == "agent.tool.started"]
    assert sorted(map(str, inputs)) == ["{'a': 1}", "{'name': 'ann'}", "{}"]


async def test_the_next_turn_knows_the_one_before(local: LocalStore) -> None:
    model = Heard(says("one"), says("two"))
    chat = Agent(model, instructions="Be brief.").session("s", store=local)
    await chat.run("a")
    await chat.run([{"role": "developer", "content": "now"}, {"role": "user", "content": "b", "id": "m1"}])
    assert [(one["role"], one["content"]) for one in model.heard[1]] == [
        ("system", "Be brief."), ("user", "a"), ("assistant", "one"), ("system", "now"), ("user", "b"),
    ]  # fmt: skip
    assert ("system", "Be brief.") not in await history(local)
    with pytest.raises(RunFailed, match="'m1' already"):
        await chat.run({"message": {"role": "user", "content": "b", "id": "m1"}})


async def test_the_same_text_twice_is_two_turns(local: LocalStore) -> None:
    # BR-18
    chat = Agent(ScriptedModel("ok")).session("s", store=local)
    await chat.run("yes")
    await chat.run("yes")
    assert await history(local) == [("user", "yes"), ("assistant", "ok")] * 2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ValueError("no money"), "ValueError: no money"),
        (lambda: asyncio.CancelledError("inner"), "CancelledError: inner"),  # BR-12
        (lambda: TimeoutError(), "TimeoutError: "),
    ],
)
async def test_a_tool_that_raises_is_told_to_the_model(
    local: LocalStore, make: Callable[[], BaseException], told: str
) -> None:
    async def pay() -> str:
        raise make()

    agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("pay")]), "sorry"), tools=[pay])
    assert (await agent.session("s", store=local).run("pay")).text == "sorry"
    assert ("tool", told) in await history(local)


async def test_what_a_tool_raised_is_in_the_log(local: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    def pay() -> str:
        raise KeyError("card")

    agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("pay")]), "sorry"), tools=[pay])
    with caplog.at_level(logging.INFO, "outlast.adapters"):
        await agent.session("s", store=local).run("pay")
    (record,) = [one for one in caplog.records if one.name == "outlast.adapters"]
    assert record.getMessage() == "the tool 'pay' raised"
    assert record.exc_info is not None and isinstance(record.exc_info[1], KeyError)


class Card(StrEnum):
    BLUE = "blue"


@dataclass
class Receipt:
    day: date
    amount: Decimal


class Order(BaseModel):
    id: UUID


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "null"),
        ({"a": [1, "ä"]}, '{"a":[1,"\\u00e4"]}'),
        (Card.BLUE, "blue"),
        (date(2026, 2, 3), '"2026-02-03"'),
        ([Receipt(date(2026, 2, 3), Decimal("1.20"))], '[{"day":"2026-02-03","amount":"1.20"}]'),
        ([Order(id=UUID(int=1))], '[{"id":"00000000-0000-0000-0000-000000000001"}]'),
        ({Path("a/b")}, '["a/b"]'),
    ],
)
async def test_what_pydantic_writes_as_json_is_a_result(result: object, told: str) -> None:
    def find() -> object:
        return result

    assert await Tool(find).run("{}") == told


@pytest.mark.parametrize("result", [object(), float("nan"), b"\xff", {date(2026, 2, 3): float("inf")}, iter([1])])
async def test_a_result_that_is_not_json_is_an_error(result: object) -> None:
    def find() -> object:
        return result

    with pytest.raises(ToolError, match="what JSON cannot hold"):
        await Tool(find).run("{}")


async def test_a_result_that_no_model_would_read_is_an_error(local: LocalStore) -> None:
    def read() -> str:
        return "x" * 2_000_000

    agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("read")]), "sorry"), tools=[read])
    reply = await agent.session("s", store=local).run("read")
    assert "2000000 characters" in reply.messages[1]["content"]
    assert reply.messages[1]["failed"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [('{"x": "a"}', "x: Input should be"), ('{"y": 1}', "x: Field required"), ("{", "Invalid JSON"), ("[]", "object")],
)
async def test_arguments_that_do_not_fit_do_not_reach_the_tool(local: LocalStore, arguments: str, told: str) -> None:
    ran = []

    def pay(x: int) -> str:
        ran.append(x)
        return "paid"

    model = Heard([CallDelta(0, arguments, "c", "pay"), Stopped(StopReason.TOOL_CALLS)], says("sorry"))
    await Agent(model, tools=[pay]).session("s", store=local).run("pay")
    assert told in model.heard[1][-1]["content"]
    assert model.heard[1][-1]["failed"]
    assert not ran


@pytest.mark.parametrize("ids", [("c", "c", ""), ("c-2", "c", "c"), ("call-1", "", "c")])
async def test_calls_with_one_id_are_told_apart(local: LocalStore, ids: tuple[str, ...]) -> None:
    # BR-14
    tool = Counted()
    model = Heard(calls(*ids), says("done"))
    await Agent(model, tools=[tool.tool()]).session("s", store=local).run("go")
    assert tool.ran == 3
    results = [one["tool_call_id"] for one in model.heard[1] if one["role"] == "tool"]
    assert results == [call["id"] for call in model.heard[1][1]["tool_calls"]]
    assert len(set(results)) == 3


async def test_an_answer_that_was_cut_is_continued_and_its_calls_are_not_run(local: LocalStore) -> None:
    # BR-15
    tool = Counted()
    cut: list[Delta | Exception] = [TextDelta("The three rea"), CallDelta(0, "{}", "c", "pay")]
    model = Heard([*cut, Stopped(StopReason.MAX_OUTPUT)], says("sons ", StopReason.MAX_OUTPUT), says("are."))
    chat = Agent(model, tools=[tool.tool()]).session("s", store=local)
    assert (await chat.run("why")).stop_reason == "length"
    for text in ("sons ", "are."):
        point = await chat.resume_point()
        assert point is not None
        assert point.kind == "continue_response"
        assert (await chat.resume()).text == text
    assert [role for role, _ in await history(local)] == [
        "user", "assistant", "internal", "assistant", "internal", "assistant",
    ]  # fmt: skip
    assert str(model.heard[-1]).count("The three rea") == 1
    assert tool.ran == 0


async def test_a_provider_that_fails_before_it_spoke_is_asked_again(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # BR-17
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)
    model = Heard([ProviderUnavailable("503")], says("a"))
    assert (await Agent(model).session("s", store=local).run("q")).text == "a"
    assert await history(local) == [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize("failure", [[TextDelta("half"), ProviderUnavailable("gone")], [TextDelta("half")]])
async def test_an_answer_that_broke_off_fails_the_run_and_is_asked_for_again_on_resume(
    local: LocalStore, failure: list[Delta | Exception]
) -> None:
    model = Heard(failure, says("whole"))
    chat = Agent(model).session("s", store=local)
    with pytest.raises(RunFailed) as caught:
        await chat.run("q")
    assert caught.value.code in ("provider_error", "provider_unavailable")
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, point.cause, point.partial_text) == ("call_model", "provider_error", "half")
    assert point.interrupted_at is not None
    assert (await chat.resume()).text == "whole"
    assert await history(local) == [("user", "q"), ("assistant", "whole")]
    assert await chat.resume_point() is None
    with pytest.raises(AgentResumeError) as refused:
        await chat.resume()
    assert refused.value.reason == "completed"


async def test_a_request_that_the_provider_refuses_is_not_repeated(local: LocalStore) -> None:
    model = Heard([ProviderError("bad key")], says("never"))
    with pytest.raises(RunFailed, match="bad key"):
        await Agent(model).session("s", store=local).run("q")
    assert len(model.heard) == 1


async def test_a_pause_of_the_provider_is_gone_on_from_and_not_for_ever(local: LocalStore) -> None:
    paused = says("", StopReason.PAUSED)
    assert (await Agent(Heard(paused, says("a"))).session("s", store=local).run("q")).text == "a"
    with pytest.raises(RunFailed) as caught:
        await Agent(Heard(*[paused] * 9)).session("t", store=local).run("q")
    assert caught.value.code == "pause_limit"


async def test_a_loop_of_tool_calls_ends(local: LocalStore) -> None:
    agent = Agent(Heard(*[calls("c")] * 60), tools=[Counted().tool()])
    with pytest.raises(RunFailed) as caught:
        await agent.session("s", store=local).run("q")
    assert caught.value.code == "step_limit"


OPEN: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "pay", "arguments": "{}"}]},
]


async def test_open_calls_of_an_imported_history_are_answered_and_not_run(local: LocalStore) -> None:
    sessions, tool = SessionStore(local), Counted()
    await sessions.create("s")
    await sessions.append("s", OPEN)
    chat = Agent(ScriptedModel("done"), tools=[tool.tool()]).session("s", store=local)
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, [call.id for call in point.unanswered_tool_calls]) == ("recover_tools", ["c1"])
    assert (await chat.resume()).text == "done"
    assert (await history(local))[2:] == [("tool", INTERRUPTED_RESULT), ("assistant", "done")]
    assert tool.ran == 0


async def test_a_new_message_closes_the_calls_before_it(local: LocalStore) -> None:
    # BR-11
    sessions, tool = SessionStore(local), Counted()
    await sessions.create("s")
    await sessions.append("s", OPEN)
    model = Heard(says("done"))
    await Agent(model, tools=[tool.tool()]).session("s", store=local).run("b")
    assert [(one["role"], one["content"]) for one in model.heard[0]] == [
        ("user", "a"), ("assistant", ""), ("tool", INTERRUPTED_RESULT), ("user", "b"),
    ]  # fmt: skip
    assert model.heard[0][2]["failed"]
    assert tool.ran == 0


async def test_asking_for_the_resume_point_changes_nothing(local: LocalStore) -> None:
    # BR-19
    sessions = SessionStore(local)
    await sessions.create("s")
    await sessions.append("s", OPEN)
    model = Heard()
    chat = Agent(model).session("s", store=local)
    before = [item async for item in sessions.items("s")], await sessions.get("s")
    assert len({str(await chat.resume_point()) for _ in range(100)}) == 1
    assert ([item async for item in sessions.items("s")], await sessions.get("s")) == before
    assert not model.heard


async def test_a_living_run_has_no_resume_point(local: LocalStore) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pay() -> str:
        begun.set()
        await go_on.wait()
        return "paid"

    agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("pay")]), "Done."), tools=[pay])
    chat = agent.session("s", store=local)
    running = asyncio.create_task(chat.run("pay"))
    await begun.wait()
    with pytest.raises(SessionBusy):
        await chat.resume_point()
    go_on.set()
    await running
    assert await chat.resume_point() is None


async def test_an_item_that_is_no_message_fails_the_run_and_is_named(local: LocalStore) -> None:
    sessions = SessionStore(local)
    await sessions.create("s")
    (item,) = await sessions.append("s", [{"what": "is this"}])
    with pytest.raises(RunFailed, match=item.id):
        await Agent(ScriptedModel("a")).session("s", store=local).run("q")


async def test_a_run_without_session_has_a_history_of_its_own(store_url: str) -> None:
    agent = Agent(ScriptedModel(Say(calls=[ScriptedCall("pay")]), "done"), tools=[Counted().tool()])
    with TestClient(DurableAgentServer(agent, store=store_url)) as client:
        body = {"id": "0f8fad5b-d9cb-469f-a165-70867728950e", "input": "hi"}
        assert client.post("/api/invocations", json=body).json()["output"]["text"] == "done"
        assert client.delete(f"/api/invocations/{body['id']}").status_code == 204


def test_a_function_that_no_model_can_call_is_refused() -> None:
    def untyped(x):  # type: ignore[no-untyped-def]  # that is the point
        return x

    def variable(*x: int) -> None: ...

    def strange(x: asyncio.Event) -> None: ...

    def calling(x: Callable[[], int]) -> None: ...

    class Place(typing.TypedDict):  # not that of typing_extensions, which pydantic asks for on Python 3.11
        street: str

    def going(x: Place) -> None: ...

    functions: list[Callable[..., Any]] = [untyped, variable, strange, calling]
    for function in functions + ([going] if sys.version_info < (3, 12) else []):
        with pytest.raises(ToolSetupError, match=function.__name__):
            Tool(function)
    with pytest.raises(ToolSetupError, match="'pay' is none"):
        Agent(ScriptedModel("a"), tools=["pay"])  # type: ignore[list-item]  # that is the point
    with pytest.raises(ToolSetupError, match="is a sequence"):
        Agent(ScriptedModel("a"), tools=calling)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ToolSetupError, match="two tools named 'pay'"):
        Agent(ScriptedModel("a"), tools=[Counted().tool(), Counted().tool()])


def test_a_tool_whose_name_providers_refuse_is_refused_where_it_is_made() -> None:
    def zähle() -> str:
        return "5"

    nameless: list[Callable[..., Any]] = [lambda: "5", functools.partial(zähle), zähle]
    for function in nameless:
        with pytest.raises(ToolSetupError, match=re.escape("Tool(f, name=")):
            Agent(ScriptedModel("Hello!"), tools=[function])
        assert Tool(function, name="count").spec.name == "count"
    names: list[Any] = ["", "count all", "zähle", "x" * 65, "count\n", 5]
    for name in names:
        with pytest.raises(ToolSetupError, match="1 to 64 letters"):
            Tool(zähle, name=name)


async def test_a_partial_is_a_tool_without_what_it_fixes() -> None:
    async def find(index: object, query: str, *, limit: int = 5, user: object = None) -> str:
        """Find something."""
        return f"{limit} of {query!r} for {user}"

    tool = Tool(functools.partial(functools.partial(find, object()), user="ann"), name="find")
    assert tool.spec.description == "Find something."
    assert list(tool.spec.parameters["properties"]) == ["query", "limit"]
    assert await tool.run('{"query": "tea"}') == "5 of 'tea' for ann"
    with pytest.raises(ToolError):
        await tool.run('{"query": "tea", "user": "bob"}')


def test_an_agent_of_wrong_parts_is_refused_where_it_is_made() -> None:
    for model in ("gpt", ScriptedModel):
        with pytest.raises(TypeError, match="a model is an object"):
            Agent(model)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError, match="instance of a class of"):
        Agent(ScriptedModel("a"), hooks=[Hooks])  # type: ignore[list-item]  # that is the point
    with pytest.raises(ToolSetupError, match="'play', which is no tool"):
        Agent(ScriptedModel("a"), tools=[Counted().tool()], rerun_safe={"pay", "play"})


def test_the_schema_of_a_tool_is_that_of_its_signature() -> None:
    def pay(amount: float, schema: str = "x", _note: list[str] | None = None) -> None:
        """Pay somebody."""

    spec = Tool(pay).spec
    assert (spec.name, spec.description) == ("pay", "Pay somebody.")
    assert list(spec.parameters["properties"]) == ["amount", "schema", "_note"]
    assert spec.parameters["required"] == ["amount"]


async def test_two_messages_of_one_id_are_refused_and_not_stored_as_one(local: LocalStore) -> None:
    twice = [{"role": "user", "content": text, "id": "x"} for text in ("a", "b")]
    with pytest.raises(RunFailed) as refused:
        await Agent(Heard()).session("s", store=local).run(twice)
    assert refused.value.code == "invalid_input"
    assert await history(local) == []


@pytest.mark.parametrize("arguments", ['{"x": 1e999}', '{"x": NaN}', '"{}"'])
async def test_arguments_that_json_cannot_hold_are_refused_by_their_tool(local: LocalStore, arguments: str) -> None:
    tool = Counted()
    model = Heard([CallDelta(0, arguments, "c", "pay"), Stopped(StopReason.TOOL_CALLS)], says("sorry"))
    assert (await Agent(model, tools=[tool.tool()]).session("s", store=local).run("pay")).text == "sorry"
    assert model.heard[1][-1]["failed"]
    assert tool.ran == 0

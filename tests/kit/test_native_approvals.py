"""Tool calls that a person decides about: asked, decided, refused, forgotten."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from outlast import (
    Agent,
    AgentClient,
    AgentResumeError,
    Conflict,
    DurableAgentServer,
    InvocationContext,
    Reply,
    RunFailed,
    Tool,
    open_store,
)
from outlast.adapters import ChatSession, LocalStore
from outlast.adapters.native import CallDelta, Delta, Hooks, Model, Stopped, TextDelta, ToolSetupError, ToolSpec
from outlast.core import jsontext
from outlast.core.records import Invocation, Status
from outlast.core.resume import (
    CANCELLED_RESULT,
    INTERRUPTED_RESULT,
    NOT_APPROVED_RESULT,
    REJECTED_RESULT,
    ResumeKind,
)
from outlast.core.transcript import Message, Role, StopReason
from outlast.engine import EngineSettings
from outlast.sessions import SessionStore
from outlast.testing.scripted import Say, ScriptedCall, ScriptedModel
from outlast.testing.serving import ServerThread

pytestmark = pytest.mark.anyio

BOTH = [ScriptedCall("look", {"at": "stock"}), ScriptedCall("pay", {"amount": 5})]


class Shop:
    """An agent that may look by itself, and pay when somebody agrees."""

    def __init__(self, *calls: ScriptedCall, answer: str = "Done.") -> None:
        self.paid: list[int] = []
        self.looked: list[str] = []

        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return f"paid {amount}"

        def look(at: str) -> str:
            """Look."""
            self.looked.append(at)
            return "5 left"

        self.pay, self.look = pay, look
        self._tools: list[Callable[..., Any] | Tool] = [look, Tool(pay, needs_approval=True)]
        self.agent = self.agent_of(ScriptedModel(Say("I will.", list(calls) or BOTH), answer))

    def agent_of(self, model: Model, **options: Any) -> Agent:
        return Agent(model, tools=self._tools, **options)

    def chat(self, local: LocalStore, id: str = "s") -> ChatSession:
        return self.agent.session(id, store=local)


def asked(reply: Reply) -> list[dict[str, Any]]:
    assert reply.interrupt is not None
    assert reply.interrupt["reason"] == "approval_required"
    return list(reply.interrupt["approvals"])


def decided(*decisions: dict[str, Any]) -> dict[str, Any]:
    return {"resume": {"decisions": list(decisions)}}


async def results(local: LocalStore, id: str = "s") -> list[str]:
    found = [item.content async for item in SessionStore(local).items(id)]
    return [message["content"] for message in found if message["role"] == "tool"]


async def test_a_run_stops_before_a_call_that_needs_approval_and_does_the_others(local: LocalStore) -> None:
    shop = Shop()
    reply = await shop.chat(local).run("buy")
    (approval,) = asked(reply)
    assert (approval["name"], approval["arguments"], reply.text) == ("pay", {"amount": 5}, "I will.")
    assert (shop.looked, shop.paid) == (["stock"], [])
    point = await shop.chat(local).resume_point()
    assert point is not None
    assert (point.kind, point.cause, list(point.approvals)) == (ResumeKind.AWAIT_APPROVAL, None, [approval])


async def test_what_the_model_said_before_it_asked_is_the_text_wherever_it_is_read(store_url: str) -> None:
    def shop() -> Agent:
        silent = ScriptedModel(Say("", [ScriptedCall("pay", {"amount": 5})]))
        return Shop().agent_of(silent) if quiet else Shop().agent

    for quiet, text in ((False, "I will."), (True, "")):
        async with open_store(store_url) as local:
            assert (await shop().session(f"run {quiet}", store=local).run("buy")).text == text
            events = [event async for event in shop().session(f"stream {quiet}", store=local).stream("buy")]
            assert events[-1]["reply"].text == text
        with ServerThread(DurableAgentServer(shop(), store=store_url)) as server:
            async with AgentClient(server.url) as client:
                reply = await client.session(f"http {quiet}").run("buy")
                assert reply.text == text
                events = [event async for event in client.session(f"remote {quiet}").stream("buy")]
                assert events[-1]["reply"].text == text
                assert (await client.get(reply.invocation_id))["interrupt"].get("text", "") == text


async def test_an_approved_call_runs_once_and_the_run_goes_on(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    events = [event async for event in shop.chat(local).stream(decided({"id": approval["id"], "type": "approve"}))]
    assert events[-1]["reply"].text == "Done."
    assert shop.paid == [5]
    assert [event["type"] for event in events][:2] == ["agent.approval.answered", "agent.tool.started"]
    assert await results(local) == ["5 left", "paid 5"]
    assert await shop.chat(local).resume_point() is None


async def test_a_refused_call_does_not_run_and_the_model_hears_why(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    no = {"id": approval["id"], "type": "reject", "message": "Too dear."}
    assert (await shop.chat(local).run(decided(no))).text == "Done."
    assert shop.paid == []
    assert (await results(local))[-1] == f"{REJECTED_RESULT} They said: Too dear."


async def test_an_edited_call_runs_with_the_arguments_of_the_person(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    edit = {"id": approval["id"], "type": "edit", "arguments": {"amount": 3}}
    await shop.chat(local).run(decided(edit))
    assert shop.paid == [3]
    assert (await results(local))[-1].startswith('A person changed the arguments of this call to {"amount":3}')


async def test_calls_may_be_decided_one_after_the_other(local: LocalStore) -> None:
    shop = Shop(ScriptedCall("pay", {"amount": 1}), ScriptedCall("pay", {"amount": 2}))
    first, second = asked(await shop.chat(local).run("buy"))
    reply = await shop.chat(local).run(decided({"id": second["id"], "type": "approve"}))
    assert asked(reply) == [first]
    assert shop.paid == [2]
    await shop.chat(local).run(decided({"id": first["id"], "type": "approve"}))
    assert shop.paid == [2, 1]


@pytest.mark.parametrize(
    ("decision", "code"),
    [
        ({"id": "other", "type": "approve"}, "approval_mismatch"),
        ({"type": "approve", "arguments": {"amount": 6}}, "approval_mismatch"),
        ({"type": "edit"}, "invalid_input"),
        ({"type": "edit", "arguments": {"amount": "much"}}, "invalid_input"),
        ({"type": "allow"}, "invalid_input"),
        ({"type": ["approve"]}, "invalid_input"),
        ({"type": "approve", "by": "me"}, "invalid_input"),
        ({"type": "reject", "message": 5}, "invalid_input"),
    ],
)
async def test_a_decision_that_does_not_fit_runs_nothing_and_leaves_the_question_open(
    local: LocalStore, decision: dict[str, Any], code: str
) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    with pytest.raises(RunFailed) as refused:
        await shop.chat(local).run(decided({"id": approval["id"], **decision}))
    assert refused.value.code == code
    assert shop.paid == []
    await shop.chat(local).run(decided({"id": approval["id"], "type": "approve", "arguments": {"amount": 5}}))
    assert shop.paid == [5]


@pytest.mark.parametrize("value", [{"decisions": []}, {"decisions": ["x"]}, {"answers": {}}, True, None])
async def test_what_is_no_decision_is_refused(local: LocalStore, value: Any) -> None:
    shop = Shop()
    await shop.chat(local).run("buy")
    with pytest.raises(RunFailed) as refused:
        await shop.chat(local).run({"resume": value})
    assert refused.value.code == "invalid_input"


async def test_nobody_decides_twice(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    await shop.chat(local).run(decided({"id": approval["id"], "type": "reject"}))
    with pytest.raises(RunFailed) as refused:
        await shop.chat(local).run(decided({"id": approval["id"], "type": "approve"}))
    assert refused.value.code == "approval_already_decided"
    assert shop.paid == []


async def test_a_new_message_lets_nobody_decide_any_more(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    again = Shop(ScriptedCall("look", {"at": "price"}))
    assert (await again.chat(local).run("never mind")).text == "Done."
    assert (await results(local))[1] == NOT_APPROVED_RESULT
    with pytest.raises(RunFailed) as refused:
        await shop.chat(local).run(decided({"id": approval["id"], "type": "approve"}))
    assert refused.value.code == "approval_already_decided"
    assert (shop.paid, again.paid) == ([], [])


async def test_resuming_without_a_decision_is_refused(local: LocalStore) -> None:
    shop = Shop()
    await shop.chat(local).run("buy")
    with pytest.raises(AgentResumeError) as refused:
        await shop.chat(local).resume()
    assert refused.value.reason == "awaiting_approval"


async def test_what_is_open_in_a_session_is_not_open_in_its_copy(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    await SessionStore(local).fork("s", "copy")
    point = await shop.chat(local, "copy").resume_point()
    assert point is not None
    assert point.kind is ResumeKind.RECOVER_TOOLS
    await shop.chat(local, "copy").resume()
    assert await results(local, "copy") == ["5 left", NOT_APPROVED_RESULT]
    await shop.chat(local).run(decided({"id": approval["id"], "type": "approve"}))
    assert shop.paid == [5]


async def forked(local: LocalStore) -> None:
    await SessionStore(local).fork("s", "copy")


async def forked_twice(local: LocalStore) -> None:
    await SessionStore(local).fork("s", "between")
    await SessionStore(local).fork("between", "copy")


async def forked_after_a_message_by_hand(local: LocalStore) -> None:
    await SessionStore(local).append("s", [{"role": "user", "content": "hello?"}])
    await SessionStore(local).fork("s", "copy")


async def forked_from_what_is_gone(local: LocalStore) -> None:
    await forked_twice(local)
    await SessionStore(local).delete("s")
    await SessionStore(local).delete("between")


async def forked_from_a_run_that_is_gone(local: LocalStore) -> None:
    await forked_twice(local)
    await remove_runs(local)


async def forked_from_where_it_was_asked(local: LocalStore) -> None:
    await Agent(ScriptedModel("Never mind.")).session("s", store=local).run("never mind")
    await remove_runs(local)
    said = [item async for item in SessionStore(local).items("s") if item.content.get("tool_calls")]
    await SessionStore(local).append("s", [{"role": "user", "content": "hello?"}])
    await SessionStore(local).fork("s", "copy", up_to_item_id=said[0].id)


async def forked_from_where_it_was_rejected(local: LocalStore) -> None:
    (waiting,) = await (await local.store()).read.approvals_listed(
        "local", status=None, session_id="s", before=None, limit=9
    )
    await Shop().chat(local).run(decided({"id": waiting.key, "type": "reject"}))
    await forked_from_where_it_was_asked(local)


async def remove_runs(local: LocalStore) -> None:
    """Do what retention does."""
    store = await local.store()
    for status in Status:
        await store.remove_old(status=status, age_ms=-1000, keep_ms=0, limit=100)


@pytest.mark.parametrize(
    "copied",
    [
        forked,
        forked_twice,
        forked_after_a_message_by_hand,
        forked_from_what_is_gone,
        forked_from_a_run_that_is_gone,
        forked_from_where_it_was_asked,
        forked_from_where_it_was_rejected,
    ],
)
async def test_what_nobody_approved_is_not_approved_in_any_copy_and_never_runs_there(
    local: LocalStore, copied: Callable[[LocalStore], Awaitable[None]]
) -> None:
    shop = Shop()
    await shop.chat(local).run("buy")
    await copied(local)
    # Whatever the tools of a later agent say about the call.
    later = Agent(ScriptedModel("Done."), tools=[shop.pay, shop.look], rerun_safe={"pay"})
    assert (await later.session("copy", store=local).resume()).text == "Done."
    assert (await results(local, "copy"))[-1] == NOT_APPROVED_RESULT
    assert shop.paid == []


async def test_what_was_closed_by_hand_stays_not_approved_when_its_run_is_gone(local: LocalStore) -> None:
    shop = Shop()
    await shop.chat(local).run("buy")
    await SessionStore(local).append("s", [{"role": "user", "content": "hello?"}])
    await remove_runs(local)
    later = Agent(ScriptedModel("Done."), tools=[shop.pay, shop.look], rerun_safe={"pay"})
    await later.session("s", store=local).resume()
    assert await results(local) == ["5 left", NOT_APPROVED_RESULT]
    assert shop.paid == []


async def test_a_history_that_is_changed_by_hand_closes_what_is_open(local: LocalStore) -> None:
    shop = Shop()
    (approval,) = asked(await shop.chat(local).run("buy"))
    await SessionStore(local).append("s", [{"role": "user", "content": "hello?"}])
    with pytest.raises(RunFailed) as refused:
        await shop.chat(local).run(decided({"id": approval["id"], "type": "approve"}))
    assert refused.value.code == "approval_already_decided"
    assert shop.paid == []


async def test_a_tool_may_say_itself_which_calls_need_approval(local: LocalStore) -> None:
    paid: list[int] = []

    async def dear(amount: int) -> bool:
        return amount > 10

    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    calls = [ScriptedCall("pay", {"amount": 5}), ScriptedCall("pay", {"amount": 50}), ScriptedCall("pay", {"x": 1})]
    agent = Agent(ScriptedModel(Say("", calls), "Done."), tools=[Tool(pay, needs_approval=dear)])
    (approval,) = asked(await agent.session("s", store=local).run("pay"))
    assert approval["arguments"] == {"amount": 50}
    assert paid == [5]


def down(amount: int) -> bool:
    raise ConnectionError("no rules today")


async def cancelled(amount: int) -> bool:
    raise asyncio.CancelledError


@pytest.mark.parametrize("rule", [down, cancelled, lambda amount: sys.exit(1)])
@pytest.mark.parametrize(("decision", "paid"), [({"type": "approve"}, [5]), ({"type": "reject"}, [])])
async def test_a_person_is_asked_where_the_rule_of_a_tool_raises(
    local: LocalStore,
    caplog: pytest.LogCaptureFixture,
    rule: Callable[[int], Any],
    decision: dict[str, Any],
    paid: list[int],
) -> None:
    shop = Shop()
    tools: list[Any] = [Tool(shop.pay, needs_approval=rule), shop.look]
    chat = Agent(ScriptedModel(Say("I will.", BOTH), "Done."), tools=tools).session("s", store=local)
    (approval,) = asked(await chat.run("buy"))
    assert (shop.looked, shop.paid) == (["stock"], [])
    assert "`needs_approval` of the tool 'pay' raised" in caplog.text
    assert (await chat.run(decided({"id": approval["id"], **decision}))).text == "Done."
    assert shop.paid == paid
    assert await chat.resume_point() is None


async def test_who_says_which_calls_need_approval_takes_the_arguments_it_wants() -> None:
    def pay(amount: int, currency: str = "EUR", note: str = "") -> str:
        return "paid"

    assert await Tool(pay, needs_approval=lambda amount: amount > 2).asks('{"amount": 5, "note": "x"}')
    assert await Tool(pay, needs_approval=lambda currency: currency == "EUR").asks('{"amount": 5}')
    assert await Tool(pay, needs_approval=lambda **given: given == {"amount": 5, "currency": "EUR", "note": ""}).asks(
        '{"amount": 5}'
    )


def test_who_says_which_calls_need_approval_takes_nothing_else() -> None:
    def pay(amount: int) -> str:
        return "paid"

    for wrong in (lambda order: True, lambda *amounts: True):
        with pytest.raises(ToolSetupError, match="is no parameter of the tool"):
            Tool(pay, needs_approval=wrong)
    with pytest.raises(ToolSetupError, match="true, false or a function"):
        Tool(pay, needs_approval="yes")  # type: ignore[arg-type]  # that is the point


async def test_a_run_without_session_cannot_ask(store_url: str) -> None:
    from fastapi.testclient import TestClient

    shop = Shop()
    with TestClient(DurableAgentServer(shop.agent, store=store_url)) as client:
        answer = client.post("/api/invocations", json={"id": "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "input": "buy"})
    assert answer.json()["error"]["code"] == "approval_needs_session"
    assert shop.paid == []


async def test_cancelling_a_run_answers_its_calls_before_it_is_final(local: LocalStore) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    async def quick() -> str:
        """Be quick."""
        return "quick"

    calls = [ScriptedCall("quick"), ScriptedCall("wait")]
    agent = Agent(ScriptedModel(Say("", calls), "Done."), tools=[quick, wait])
    async for event in agent.session("s", store=local).stream("go"):
        if event["type"] == "agent.tool.finished" and event["name"] == "quick":
            await began.wait()
            assert await agent.session("s", store=local).cancel()
    assert event["error"]["code"] == "cancelled"
    assert cancelled.is_set()
    assert await results(local) == ["quick", CANCELLED_RESULT]
    point = await agent.session("s", store=local).resume_point()
    assert point is not None
    assert (point.kind, point.cause) == (ResumeKind.CALL_MODEL, "cancelled")
    assert (await agent.session("s", store=local).resume()).text == "Done."


class Lost:
    """An agent whose run is handed back while one of its tools is under way, as a worker that stops does."""

    def __init__(self, url: str) -> None:
        self.began, self._url = asyncio.Event(), url

        async def wait() -> str:
            """Wait."""
            self.began.set()
            await asyncio.Event().wait()
            return "never"

        async def quick() -> str:
            """Be quick."""
            return "quick"

        script = ScriptedModel(Say("", [ScriptedCall("quick"), ScriptedCall("wait")]), "Done.")
        self.agent = Agent(script, tools=[quick, wait])

    async def run(self) -> None:
        local = LocalStore(self._url, EngineSettings(claims=False, drain_timeout=0))
        running = asyncio.create_task(self.agent.session("s", store=local).run("go"))
        await self.began.wait()
        while len(await results_in_journal(local)) < 1:
            await asyncio.sleep(0.01)
        await local.close()
        with pytest.raises(RunFailed, match="the store was closed"):
            await running


async def results_in_journal(local: LocalStore) -> list[Any]:
    return [call for call in await (await local.store()).read.calls("s1") if call.outcome is not None]


@pytest.mark.parametrize("goes_on", ["cancel", "message", "server", "resume"])
async def test_cancelling_a_run_that_lost_its_worker_answers_its_calls_before_it_is_final(
    store_url: str, goes_on: str
) -> None:
    lost = Lost(store_url)
    await lost.run()
    async with open_store(store_url) as local:
        chat = lost.agent.session("s", store=local)
        if goes_on == "cancel":
            assert await chat.cancel()
        elif goes_on == "message":
            other = Agent(ScriptedModel("Done."))
            assert (await other.session("s", store=local).run("Never mind.")).text == "Done."
        else:
            # Cancelled when nobody was there who could finish it.
            await (await local.store()).cancel("local", (await run_of(local)).id)
            if goes_on == "resume":
                assert (await chat.resume()).text == "Done."
            else:
                with ServerThread(DurableAgentServer(lost.agent, store=store_url)) as server:
                    async with AgentClient(server.url) as client:
                        while (await client.sessions.get("s")).active is not None:
                            await asyncio.sleep(0.01)
        while (ended := await run_of(local)).status is not Status.FAILED:
            await asyncio.sleep(0.01)
        assert ended.error is not None
        assert jsontext.decode(ended.error)["code"] == "cancelled"
        assert await results(local) == ["quick", CANCELLED_RESULT]
        if goes_on in ("cancel", "server"):
            point = await chat.resume_point()
            assert point is not None
            assert (point.kind, point.cause) == (ResumeKind.CALL_MODEL, "cancelled")
            assert (await chat.resume()).text == "Done."


async def test_another_agent_does_not_end_a_run_that_lost_its_worker(store_url: str) -> None:
    lost = Lost(store_url)
    await lost.run()
    async with open_store(store_url) as local:
        other = Agent(ScriptedModel("Hello!"), name="other").session("s", store=local)
        with pytest.raises(Conflict) as refused:
            await other.run("hi")
        assert refused.value.code == "session_of_other_agent"
        assert ((await run_of(local)).status, (await run_of(local)).cancel) == (Status.QUEUED, None)


async def run_of(local: LocalStore) -> Invocation:
    """Return the first run of the session."""
    read = (await local.store()).read
    return (await read.listed("local", session_id="s", status=None, agent=None, metadata={}, before=None, limit=9))[-1]


async def test_a_run_that_waits_says_what_it_used(local: LocalStore) -> None:
    reply = await Shop().chat(local).run("buy")
    assert reply.usage == {"input_tokens": 1, "output_tokens": 1}


class Raw:
    """A model that asks for one call in just these words, and then is done."""

    name = "raw"

    def __init__(self, call: CallDelta) -> None:
        self._call = call

    async def stream(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> AsyncGenerator[Delta, None]:
        if messages[-1].role is Role.USER:
            yield self._call
            yield Stopped(StopReason.TOOL_CALLS)
        else:
            yield TextDelta("Done.")
            yield Stopped(StopReason.STOP)


async def test_arguments_that_are_json_text_in_json_are_refused_and_not_run_unasked(local: LocalStore) -> None:
    shop = Shop()
    packed = jsontext.encode(jsontext.encode({"amount": 5}))
    agent = shop.agent_of(Raw(CallDelta(0, packed, "c", "pay")))
    assert (await agent.session("s", store=local).run("buy")).text == "Done."
    assert shop.paid == []
    assert "should be an object" in (await results(local))[0]


@pytest.mark.parametrize("safe", [[], ["pay"]])
async def test_a_call_in_the_input_is_answered_and_not_run(local: LocalStore, safe: list[str]) -> None:
    shop = Shop()
    call = {"id": "c", "name": "pay", "arguments": '{"amount": 7}'}
    given = [{"role": "user", "content": "buy"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    agent = shop.agent_of(ScriptedModel("Done."), rerun_safe=safe)
    assert (await agent.session("s", store=local).run(given)).text == "Done."
    assert shop.paid == []
    assert await results(local) == [INTERRUPTED_RESULT]


@pytest.mark.parametrize("odd", ["\x00", "\ud800"])
async def test_odd_characters_in_ids_and_names_of_calls_fail_nothing(local: LocalStore, odd: str) -> None:
    shop = Shop()
    agent = shop.agent_of(Raw(CallDelta(0, '{"amount": 5}', odd, "pay")))
    (approval,) = asked(await agent.session("s", store=local).run("buy"))
    with pytest.raises(RunFailed) as refused:
        await agent.session("s", store=local).run(decided({"id": odd, "type": "approve"}))
    assert refused.value.code == "approval_mismatch"
    await agent.session("s", store=local).run(decided({"id": approval["id"], "type": "approve"}))
    assert shop.paid == [5]
    other = shop.agent_of(Raw(CallDelta(0, "{}", "c", odd)))
    assert (await other.session("t", store=local).run("buy")).text == "Done."


class Held(Hooks):
    """Holds each run before it begins, once it is told to."""

    def __init__(self) -> None:
        self.holds, self.held = False, asyncio.Event()

    async def before_run(self, context: InvocationContext) -> None:
        if self.holds:
            self.held.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("decides", [True, False])
async def test_a_run_cancelled_before_it_began_leaves_open_what_another_asked(local: LocalStore, decides: bool) -> None:
    shop, hooks = Shop(), Held()
    agent = shop.agent_of(ScriptedModel(Say("", BOTH), "Done."), hooks=hooks)
    chat = agent.session("s", store=local)
    (approval,) = asked(await chat.run("buy"))
    yes, hooks.holds = decided({"id": approval["id"], "type": "approve"}), True
    running = asyncio.create_task(chat.run(yes if decides else "Never mind."))
    await hooks.held.wait()
    await chat.cancel()
    with pytest.raises(RunFailed):
        await running
    hooks.holds = False
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, list(point.approvals)) == (ResumeKind.AWAIT_APPROVAL, [approval])
    assert (await chat.run(yes)).text == "Done."
    assert shop.paid == [5]

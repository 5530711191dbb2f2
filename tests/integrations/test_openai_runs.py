"""Runs of an agent of the OpenAI Agents SDK in this process: inputs, outputs, failures, and what a history allows."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import (
    Agent,
    CustomTool,
    GuardrailFunctionOutput,
    ModelSettings,
    RunContextWrapper,
    RunHooks,
    function_tool,
    input_guardrail,
    output_guardrail,
    set_tracing_disabled,
)
from agents.items import TResponseInputItem
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from fastapi.testclient import TestClient
from openai import APIConnectionError
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCustomToolCall,
    ResponseIncompleteEvent,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseReasoningItem,
    ResponseTextDeltaEvent,
)
from openai.types.responses.response import IncompleteDetails
from pydantic import BaseModel

from outlast import AgentResumeError, DurableAgentServer, RunFailed, current_tool_call, open_store
from outlast.adapters import LocalStore
from outlast.core.errors import SessionBusy
from outlast.core.resume import CANCELLED_RESULT, CONTINUE_TEXT, INTERRUPTED_RESULT, RETRY_TEXT, ResumeKind
from outlast.sessions import SessionStore
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent, StoreSession, recognise
from outlast_openai.testing import ScriptModel

pytestmark = pytest.mark.anyio

set_tracing_disabled(True)


@pytest.fixture
async def local(store_url: str) -> AsyncIterator[LocalStore]:
    async with open_store(store_url) as opened:
        yield opened


def script(*answers: Say | str, views: list[History] | None = None) -> ScriptModel:
    return ScriptModel(Script(*answers, on_call=None if views is None else views.append))


def call(name: str, id: str = "call_1", **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name, arguments, id)


def talker(views: list[History] | None = None) -> OpenAIAgent:
    return OpenAIAgent(Agent(name="a", model=script("Hello there.", views=views)))


def failing(*steps: Any, **options: Any) -> OpenAIAgent:
    return OpenAIAgent(Agent(name="a", model=ScriptedModel(steps), **options))


async def items(local: LocalStore, id: str = "s") -> list[Any]:
    return list(await StoreSession(id, local).get_items())


@pytest.mark.parametrize(
    "given",
    [
        "hi",
        {"message": "hi"},
        [{"role": "user", "content": "hi"}],
        {"messages": [{"content": [{"type": "text", "text": "hi"}]}]},
    ],
)
async def test_input_shapes(local: LocalStore, given: Any) -> None:
    views: list[History] = []
    reply = await talker(views).session("s", store=local).run(given)
    (seen,) = views[0]
    assert (seen["role"], seen["content"]) in [("user", "hi"), ("user", [{"type": "text", "text": "hi"}])]
    assert (reply.text, reply.stop_reason) == ("Hello there.", "stop")
    assert [message["role"] for message in reply.messages] == ["assistant"]
    assert reply.usage == {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


@pytest.mark.parametrize("given", [{"text": "hi"}, [{"role": "tool", "content": "x"}], [{"content": "x", "name": "n"}]])
async def test_other_input_fails_and_the_session_goes_on(local: LocalStore, given: Any) -> None:
    chat = talker().session("s", store=local)
    with pytest.raises(RunFailed, match="not understood") as caught:
        await chat.run(given)
    assert caught.value.code == "invalid_input"
    assert (await chat.run("hi")).text == "Hello there."


def test_what_is_said_over_http_comes_in_parts(store_url: str) -> None:
    with TestClient(DurableAgentServer(talker(), store=store_url)) as client:
        client.post("/api/invocations", json={"id": str(uuid.uuid4()), "session_id": "s", "input": "hi"})
        first = client.get("/api/sessions/s/messages?limit=1").json()
        rest = client.get(f"/api/sessions/s/messages?after={first['next_cursor']}").json()
    assert [one["content"] for one in first["items"] + rest["items"]] == ["hi", "Hello there."]
    assert rest["next_cursor"] is None


async def test_next_turn_sees_the_one_before_once(local: LocalStore) -> None:
    # BR-18
    views: list[History] = []
    for _ in range(2):
        await talker(views).session("s", store=local).run("yes")
    assert [(one["role"], one["content"]) for one in views[1]] == [
        ("user", "yes"), ("assistant", "Hello there."), ("user", "yes"),
    ]  # fmt: skip


async def test_known_message_id_is_refused(local: LocalStore) -> None:
    chat = talker().session("s", store=local)
    await chat.run([{"role": "user", "content": "hi", "id": "m1"}])
    with pytest.raises(RunFailed, match="m1"):
        await chat.run([{"role": "user", "content": "other", "id": "m1"}])


class Desk:
    """An agent with a tool, and what happened to it."""

    def __init__(self, *answers: Say | str, **options: Any) -> None:
        self.did: list[Any] = []
        self.views: list[History] = []

        @function_tool
        def look(at: str) -> str:
            """Look."""
            self.did.append((at, current_tool_call().call_id))
            return f"{at} seen"

        answers = answers or (
            Say("Wait.", [call("look", "call_a", at="sky"), call("look", "call_b", at="sea")]),
            "Blue.",
        )
        self.agent = Agent(name="desk", model=script(*answers, views=self.views), tools=[look], **options)

    def chat(self, local: LocalStore, **options: Any) -> Any:
        return OpenAIAgent(self.agent, **options).session("s", store=local)


async def test_events_tell_the_run_in_the_order_in_which_it_became_true(local: LocalStore) -> None:
    events = [event async for event in Desk().chat(local).stream("look")]
    kinds = [event["type"] for event in events]
    assert (
        kinds.index("agent.message.finished") < kinds.index("agent.tool.started") < kinds.index("agent.tool.finished")
    )
    finished = [event for event in events if event["type"] == "agent.tool.finished"]
    assert sorted((event["call_id"], event["output"], event["outcome"]) for event in finished) == [
        ("call_a", "sky seen", "ok"), ("call_b", "sea seen", "ok"),
    ]  # fmt: skip
    text = [event["delta"] for event in events if event["type"] == "agent.part.delta"]
    assert text[0] == "Wait."
    assert text[-1] == "Blue."
    assert [event["stop_reason"] for event in events if event["type"] == "agent.message.finished"] == [
        "tool_calls",
        "stop",
    ]
    assert events[-1]["reply"].text == "Blue."


async def test_tools_know_their_call_and_run_beside_each_other(local: LocalStore) -> None:
    desk = Desk()
    await desk.chat(local).run("look")
    assert sorted(desk.did) == [("sea", "call_b"), ("sky", "call_a")]
    with pytest.raises(LookupError):
        current_tool_call()


async def test_agent_of_the_user_stays_as_it_was(local: LocalStore) -> None:
    def fields(one: Any) -> dict[str, Any]:
        """Return what is in an object, without the SDK's own notes."""
        return {name: value for name, value in vars(one).items() if not name.startswith("_")}

    desk = Desk()
    before, tool = fields(desk.agent), fields(desk.agent.tools[0])
    await desk.chat(local).run("look")
    assert fields(desk.agent) == before
    assert fields(desk.agent.tools[0]) == tool


async def test_session_has_each_item_once_as_the_sdk_made_it(local: LocalStore) -> None:
    await Desk().chat(local).run("look")
    kinds = [item.get("type", item.get("role")) for item in await items(local)]
    assert kinds == [
        "user", "message", "function_call", "function_call", "function_call_output", "function_call_output", "message",
    ]  # fmt: skip


async def test_hooks_of_the_user_are_called(local: LocalStore) -> None:
    heard: list[str] = []

    class Hooks(RunHooks[Any]):
        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            heard.append("llm")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            heard.append(f"start {tool.name}")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            heard.append(f"end {result}")

    await Desk(Say("", [call("look", at="sky")]), "Blue.").chat(local, hooks=Hooks()).run("look")
    assert heard == ["llm", "start look", "end sky seen", "llm"]


async def test_context_is_made_for_each_run_of_what_is_known_of_it(local: LocalStore) -> None:
    @function_tool
    def who(context: RunContextWrapper[dict[str, str]]) -> str:
        """Say who asks."""
        return context.context["session"]

    async def factory(context: Any) -> dict[str, str]:
        return {"session": context.session_id}

    agent = Agent[Any](name="a", model=script(Say("", [call("who")]), "Yes."), tools=[who])
    await OpenAIAgent(agent, context_factory=factory).session("s", store=local).run("who?")
    assert (await items(local))[2]["output"] == "s"


async def test_failed_tool_is_a_result_and_one_that_must_not_fail_ends_the_run(local: LocalStore) -> None:
    def broken(text: str) -> str:
        """Break."""
        raise ValueError(text)

    agent = Agent[Any](
        name="a", model=script(Say("", [call("broken", text="x")]), "Sorry."), tools=[function_tool(broken)]
    )
    assert (await OpenAIAgent(agent).session("s", store=local).run("do")).text == "Sorry."
    assert "error" in (await items(local))[2]["output"]

    agent.tools = [function_tool(broken, failure_error_function=None)]
    chat = OpenAIAgent(agent).session("t", store=local)
    with pytest.raises(RunFailed):
        await chat.run("do")
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, [one.name for one in point.unanswered_tool_calls]) == (ResumeKind.RECOVER_TOOLS, ["broken"])
    assert (await chat.resume()).text == "Sorry."
    assert (await items(local, "t"))[2]["output"] == INTERRUPTED_RESULT


async def test_handoff_moves_the_session_to_the_next_agent(local: LocalStore) -> None:
    views: list[History] = []
    second = Agent(name="second", model=script("I am the second.", "Second again.", views=views))
    first = Agent(name="first", model=script(Say("", [call("transfer_to_second")])), handoffs=[second])
    chat = OpenAIAgent(first).session("s", store=local)
    await chat.run("hi")
    assert (await chat.run("and now?")).text == "I am the second."
    assert len(views) == 2
    stored = [item.content async for item in SessionStore(local).items("s")]
    assert {"type": "outlast.note", "agent": "second"} in stored


async def test_calls_that_share_an_id_in_two_turns_are_told_apart(local: LocalStore) -> None:
    desk = Desk(Say("", [ScriptedCall("look", {"at": "sky"})]), "Blue.")
    for _ in range(3):
        assert (await desk.chat(local).run("look")).text == "Blue."
    assert len(desk.did) == 3


async def test_agent_as_tool_is_one_call_and_its_tools_have_none(local: LocalStore) -> None:
    @function_tool(failure_error_function=None)
    def look(at: str) -> str:
        """Look."""
        with pytest.raises(LookupError):
            current_tool_call()
        return at

    inner = Agent[Any](name="inner", model=script(Say("", [call("look", at="sky")]), "It is blue."), tools=[look])
    tool = inner.as_tool("ask", "Ask the desk.", failure_error_function=None)
    outer = Agent[Any](
        name="outer", model=script(Say("", [call("ask", input="colour?")]), "Blue, they say."), tools=[tool]
    )
    events = [event async for event in OpenAIAgent(outer).session("s", store=local).stream("hi")]
    assert events[-1]["reply"].text == "Blue, they say."
    assert [event["name"] for event in events if event["type"] == "agent.tool.started"] == ["ask"]


class Weather(BaseModel):
    city: str
    degrees: int


async def test_structured_output(local: LocalStore) -> None:
    agent = Agent[Any](name="a", model=script('{"city": "Rome", "degrees": 20}'), output_type=Weather)
    reply = await OpenAIAgent(agent).session("s", store=local).run("weather?")
    assert reply.output["final_output"] == {"city": "Rome", "degrees": 20}


async def test_result_of_a_tool_as_the_answer_is_the_end_of_the_run(local: LocalStore) -> None:
    chat = Desk(Say("", [call("look", at="sky")]), tool_use_behavior="stop_on_first_tool").chat(local)
    reply = await chat.run("look")
    assert (reply.text, reply.stop_reason) == ("sky seen", "stop")
    assert await chat.resume_point() is None


async def test_too_many_turns_fail_the_run_and_it_can_be_resumed(local: LocalStore) -> None:
    chat = Desk().chat(local, max_turns=1)
    with pytest.raises(RunFailed) as caught:
        await chat.run("look")
    assert caught.value.code == "max_turns"
    assert (await chat.resume()).text == "Blue."


async def test_guardrails_fail_the_run_and_keep_what_they_blocked_out_of_the_history(local: LocalStore) -> None:
    @input_guardrail(run_in_parallel=False)
    async def polite(context: Any, agent: Any, given: str | list[TResponseInputItem]) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, "rude" in str(given))

    @output_guardrail
    async def secret(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, "secret" in said)

    agent = Agent[Any](name="a", model=script("the secret"), input_guardrails=[polite], output_guardrails=[secret])
    for id, said in (("s", "rude"), ("t", "nice")):
        with pytest.raises(RunFailed) as caught:
            await OpenAIAgent(agent).session(id, store=local).run(said)
        assert caught.value.code == "guardrail_tripped"
        assert await items(local, id) == [{"role": "user", "content": said}]


async def test_tool_that_ran_before_a_guardrail_tripped_keeps_its_result(local: LocalStore) -> None:
    ran = asyncio.Event()

    @input_guardrail
    async def late(context: Any, agent: Any, given: str | list[TResponseInputItem]) -> GuardrailFunctionOutput:
        await ran.wait()
        return GuardrailFunctionOutput(None, len(given) == 1)

    @function_tool
    async def pay() -> str:
        """Pay."""
        ran.set()
        return "paid"

    agent = Agent[Any](name="a", model=script(Say("", [call("pay")]), "Done."), tools=[pay], input_guardrails=[late])
    chat = OpenAIAgent(agent).session("s", store=local)
    with pytest.raises(RunFailed) as caught:
        await chat.run("pay")
    assert caught.value.code == "guardrail_tripped"
    assert (await chat.run("again")).text == "Done."
    outputs = [item["output"] for item in await items(local) if item.get("type") == "function_call_output"]
    assert outputs[0] == "paid"


async def test_cancelled_run_answers_its_calls(local: LocalStore) -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait."""
        if not entered.is_set():
            entered.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()
        return "waited"

    agent = OpenAIAgent(Agent(name="a", model=script(Say("", [call("wait")]), "Done."), tools=[wait]))
    chat = agent.session("s", store=local)
    id = str(uuid.uuid4())
    run = asyncio.create_task(chat.run("one", id=id))
    await entered.wait()
    await (await local.engine(agent)).cancel("local", id)
    with pytest.raises(RunFailed) as caught:
        await run
    assert caught.value.code == "cancelled"
    await ended.wait()
    assert (await items(local))[-1]["output"] == CANCELLED_RESULT
    assert (await chat.run("two")).text == "Done."


async def test_tool_that_may_run_again_does_after_a_crash(local: LocalStore) -> None:
    """Its outcome got lost; here the run was failed by a tool beside it."""
    tries: list[str] = []

    def broken(x: int) -> str:
        """Break."""
        tries.append("broken")
        if len(tries) == 1:
            raise ValueError
        return "worked"

    tool = function_tool(broken, failure_error_function=None)
    agent = Agent[Any](name="a", model=script(Say("", [call("broken", x=1)]), "Done."), tools=[tool])
    chat = OpenAIAgent(agent, rerun_safe={"broken"}).session("s", store=local)
    with pytest.raises(RunFailed):
        await chat.run("do")
    assert (await chat.resume()).text == "Done."
    assert (await items(local))[2]["output"] == "worked"


async def test_unknown_tool_fails_the_run_and_leaves_a_history_to_go_on_from(local: LocalStore) -> None:
    chat = failing([function_call("nothing", {}, call_id="c")], [assistant_message("Better.")]).session(
        "s", store=local
    )
    with pytest.raises(RunFailed):
        await chat.run("hi")
    assert (await chat.resume()).text == "Better."


async def test_provider_error(local: LocalStore) -> None:
    error = APIConnectionError(message="no route", request=None)  # type: ignore[arg-type]
    chat = failing(ModelStep.raise_error(error), [assistant_message("Here I am.")]).session("s", store=local)
    with pytest.raises(RunFailed) as caught:
        await chat.run("hi")
    assert caught.value.code == "provider_error"
    point = await chat.resume_point()
    assert point is not None
    assert (point.kind, point.cause) == (ResumeKind.CALL_MODEL, "provider_error")
    assert (await chat.resume()).text == "Here I am."


def cut(text: str, reason: Any) -> ModelStep:
    """Return a response of the Responses API that was cut off."""
    output: list[Any] = [assistant_message(text).model_copy(update={"status": "incomplete"})] if text else []
    response = Response(
        id="resp_1", created_at=0, model="m", object="response", output=output, parallel_tool_calls=True,
        tool_choice="auto", tools=[], status="incomplete", incomplete_details=IncompleteDetails(reason=reason),
    )  # fmt: skip
    delta = ResponseTextDeltaEvent(
        content_index=0, delta=text, item_id="m", logprobs=[], output_index=0, sequence_number=0,
        type="response.output_text.delta",
    )  # fmt: skip
    end = ResponseIncompleteEvent(response=response, sequence_number=1, type="response.incomplete")
    return ModelStep.stream([delta, end] if text else [end])


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [("Once upon", ResumeKind.CONTINUE_RESPONSE, CONTINUE_TEXT), ("", ResumeKind.RETRY_RESPONSE, RETRY_TEXT)],
)
async def test_response_that_was_cut_by_the_output_limit_goes_on(
    local: LocalStore, text: str, kind: ResumeKind, told: str
) -> None:
    model = ScriptedModel([cut(text, "max_output_tokens"), [assistant_message(" a time.", item_id="m2")]])
    chat = OpenAIAgent(Agent(name="a", model=model)).session("s", store=local)
    reply = await chat.run("tell")
    assert (reply.text, reply.stop_reason) == (text, "length")
    point = await chat.resume_point()
    assert point is not None
    assert point.kind is kind
    events = [event async for event in chat.stream_resume()]
    assert events[-1]["reply"].text == " a time."
    assert events[0] == {"type": "agent.resume", "kind": kind.value}
    assert model.calls[1].input[-1] == {"role": "user", "content": told}
    assert await chat.resume_point() is None


async def test_refused_and_filtered_responses_are_kept_from_the_model(local: LocalStore) -> None:
    refusal = ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed",
        content=[ResponseOutputRefusal(refusal="No.", type="refusal")],
    )  # fmt: skip
    for id, step, stop in (("s", [refusal], "refusal"), ("t", cut("Bad", "content_filter"), "content_filter")):
        model = ScriptedModel([step, [assistant_message("Fine.", item_id="m2")]])
        chat = OpenAIAgent(Agent(name="a", model=model, output_type=Weather if id == "s" else None)).session(
            id, store=local
        )
        reply = await chat.run("evil")
        assert (reply.text, reply.stop_reason) == ("No." if id == "s" else "Bad", stop)
        with pytest.raises(AgentResumeError) as caught:
            await chat.resume()
        assert caught.value.reason == "refused"
        assert await items(local, id) == [{"role": "user", "content": "evil"}]


async def test_reasoning_is_kept_with_its_encrypted_content(local: LocalStore) -> None:
    thought = ResponseReasoningItem(id="rs_1", type="reasoning", summary=[], encrypted_content="xyz")
    look = function_call("look", {"at": "sky"}, call_id="c", item_id="fc_1")
    desk = Desk()
    desk.agent.model = ScriptedModel([[thought, look], [assistant_message("Blue.")]])
    desk.agent.model_settings = ModelSettings(store=False)
    await desk.chat(local).run("look")
    assert (await items(local))[1]["encrypted_content"] == "xyz"


async def test_custom_tool_is_journalled_too(local: LocalStore) -> None:
    did: list[str] = []

    async def invoke(context: Any, given: str) -> str:
        did.append(f"{given} {current_tool_call().call_id}")
        return "ran"

    asked = ResponseCustomToolCall(call_id="call_x", input="ls", name="run", type="custom_tool_call")
    whole = cut("", None).stream_events[0].response.model_copy(update={"status": "completed", "output": [asked]})  # type: ignore[index,union-attr]
    end = ResponseCompletedEvent(response=whole, sequence_number=1, type="response.completed")
    tool = CustomTool(name="run", description="Run.", on_invoke_tool=invoke)
    model = ScriptedModel([ModelStep.stream([end]), [assistant_message("Done.")]])
    chat = OpenAIAgent(Agent[Any](name="a", model=model, tools=[tool])).session("s", store=local)
    events = [event async for event in chat.stream("run")]
    assert events[-1]["reply"].text == "Done."
    assert did == ["ls call_x"]
    assert [one["output"] for one in events if one["type"] == "agent.tool.finished"] == ["ran"]
    assert (await items(local))[2] == {"type": "custom_tool_call_output", "call_id": "call_x", "output": "ran"}


async def test_two_runs_of_one_session_do_not_mix(local: LocalStore) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait."""
        entered.set()
        await go.wait()
        return "waited"

    agent = OpenAIAgent(Agent(name="a", model=script(Say("", [call("wait")]), "Done."), tools=[wait]))
    first = asyncio.create_task(agent.session("s", store=local).run("one"))
    await entered.wait()
    with pytest.raises(SessionBusy):
        await agent.session("s", store=local).run("two")
    with pytest.raises(SessionBusy):
        await StoreSession("s", local).add_items([{"role": "user", "content": "three"}])
    go.set()
    assert (await first).text == "Done."


async def test_session_that_was_kept_before_goes_on(local: LocalStore) -> None:
    """A conversation that a plain `Runner.run` had on a `StoreSession` is gone on with by an agent that was wrapped later."""
    dangling: Any = {"type": "function_call", "call_id": "call_x", "name": "look", "arguments": "{}"}
    await StoreSession("s", local).add_items([{"role": "user", "content": "old"}, dangling])
    views: list[History] = []
    assert (await talker(views).session("s", store=local).run("new")).text == "Hello there."
    assert [one["content"] for one in views[0]] == ["old", "", INTERRUPTED_RESULT, "new"]


def test_server_takes_an_agent_as_it_is(store_url: str) -> None:
    assert recognise("no agent") is None
    desk = Desk()
    found = recognise(desk.agent)
    assert found is not None
    with TestClient(DurableAgentServer(found, store=store_url)) as client:
        answer = client.post(
            "/api/invocations", json={"id": "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11", "session_id": "s", "input": "look"}
        ).json()
        assert (answer["status"], answer["output"]["text"]) == ("completed", "Blue.")
        assert client.get("/api/sessions/s/resume-point").json() == {"active": None, "point": None}


async def test_fork_leaves_out_a_step_that_is_under_way(local: LocalStore) -> None:
    """A copy made while tools run has no call of theirs; one made behind them has them with their results."""
    reached = [asyncio.Event(), asyncio.Event()]
    go_on = [asyncio.Event(), asyncio.Event()]

    @function_tool
    async def wait(number: int) -> str:
        """Wait."""
        reached[number].set()
        await go_on[number].wait()
        return f"waited {number}"

    steps = [Say("First.", [call("wait", f"call_{number}", number=number)]) for number in range(2)]
    agent = OpenAIAgent(Agent(name="a", model=script(*steps, "Done."), tools=[wait]))
    run = asyncio.create_task(agent.session("s", store=local).run("go"))
    for number in range(2):
        await reached[number].wait()
        await SessionStore(local).fork("s", f"copy {number}")
        go_on[number].set()
    await run
    await SessionStore(local).fork("s", "whole")
    for copy, calls in (("copy 0", []), ("copy 1", ["call_0"]), ("whole", ["call_0", "call_1"])):
        kept = await items(local, copy)
        assert [one["call_id"] for one in kept if "arguments" in one] == calls
        assert [one["call_id"] for one in kept if "output" in one] == calls
        if copy != "whole":
            assert (await agent.session(copy, store=local).resume()).text == "Done."

"""The SDK's own models of both wires, against a provider on this machine that takes only well-formed conversations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from outlast import AgentResumeError
from outlast.adapters import LocalStore
from outlast.core.resume import CONTINUE_TEXT, RETRY_TEXT, ResumeKind
from outlast.testing.scripted import History, Say, Script, ScriptedCall
from outlast_openai import OpenAIAgent
from outlast_openai.provider import Provider, Refused, check_items, check_messages

pytestmark = pytest.mark.anyio

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}

set_tracing_disabled(True)


@pytest.fixture(params=MODELS)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def talking(
    local: LocalStore, wire: str, *answers: Say | str, views: list[History] | None = None
) -> AsyncIterator[Any]:
    """Give a chat with a model that says things over a wire, and see that it was never sent what it would refuse."""
    script = Script(*answers, on_call=None if views is None else views.append)
    with Provider({"m": script}) as provider:
        async with AsyncOpenAI(api_key="none", base_url=provider.url, max_retries=0) as client:

            @function_tool
            def look(at: str) -> str:
                """Look."""
                return f"{at} seen"

            agent = Agent[Any](name="a", model=MODELS[wire]("m", openai_client=client), tools=[look])
            yield OpenAIAgent(agent).session("s", store=local)
        assert provider.problems == []


async def test_parallel_calls_and_another_turn(local: LocalStore, wire: str) -> None:
    calls = [ScriptedCall("look", {"at": at}, f"call_{at}") for at in ("sky", "sea")]
    async with talking(local, wire, Say("Wait.", calls), "Blue.") as chat:
        assert [(await chat.run(text)).text for text in ("look", "again")] == ["Blue.", "Blue."]


CUTS = [
    (Say("The three rea", stop_reason="length"), ResumeKind.CONTINUE_RESPONSE, CONTINUE_TEXT),
    (Say(stop_reason="length"), ResumeKind.RETRY_RESPONSE, RETRY_TEXT),
]


@pytest.mark.parametrize(("cut", "kind", "told"), CUTS, ids=["text", "nothing"])
async def test_answer_cut_by_the_output_limit_is_gone_on_from(
    local: LocalStore, wire: str, cut: Say, kind: ResumeKind, told: str
) -> None:
    # BR-15
    views: list[History] = []

    class Once(Script):
        def answer(self, history: History) -> Say:
            super().answer(history)
            return cut if history[-1]["content"] == "why?" else Say("sons are these.")

    with Provider({"m": Once("", on_call=views.append)}) as provider:
        async with AsyncOpenAI(api_key="none", base_url=provider.url, max_retries=0) as client:
            agent = Agent[Any](name="a", model=MODELS[wire]("m", openai_client=client))
            chat = OpenAIAgent(agent).session("s", store=local)
            reply = await chat.run("why?")
            assert (reply.text, reply.stop_reason) == (cut.text, "length")
            point = await chat.resume_point()
            assert point is not None
            assert point.kind is kind
            assert (await chat.resume()).text == "sons are these."
    said = [message["content"] for message in views[-1]]
    assert said == ["why?", *([cut.text] if cut.text else []), told]
    assert provider.problems == []


@pytest.mark.parametrize(
    ("said", "stop", "reason"),
    [
        (Say("Bad wo", stop_reason="content_filter"), "content_filter", "refused"),
        (Say(stop_reason="content_filter"), "content_filter", "refused"),
        (Say("I must not.", stop_reason="refusal"), "refusal", "refused"),
        (Say("Hello."), "stop", "completed"),
    ],
    ids=["filtered", "all filtered", "refused", "completed"],
)
async def test_what_a_model_did_not_want_to_say_is_no_place_to_go_on_from(
    local: LocalStore, wire: str, said: Say, stop: str, reason: str
) -> None:
    views: list[History] = []
    async with talking(local, wire, said, views=views) as chat:
        assert (await chat.run("hi")).stop_reason == stop
        with pytest.raises(AgentResumeError) as caught:
            await chat.resume()
        assert caught.value.reason == reason
        assert (await chat.run("and now?")).stop_reason == stop
    shown = [message["content"] for message in views[-1]]
    assert shown == (["hi", "Hello.", "and now?"] if reason == "completed" else ["hi", "and now?"])


async def test_stream_that_does_not_say_why_it_ended(local: LocalStore) -> None:
    async with talking(local, "chat", Say("The three rea", stop_reason="unknown")) as chat:
        assert (await chat.run("why?")).stop_reason == "unknown"
        with pytest.raises(AgentResumeError) as caught:
            await chat.resume()
        assert caught.value.reason == "unknown_stop"


async def test_conversation_that_is_too_long_fails_and_is_not_tried_again(local: LocalStore, wire: str) -> None:
    # BR-73
    views: list[History] = []
    async with talking(local, wire, Say(stop_reason="context_full"), views=views) as chat:
        for calls in (1, 2):
            for again in (chat.run("hi"), chat.resume()):
                with pytest.raises(AgentResumeError) as caught:
                    await again
                assert caught.value.reason == "context_full"
            assert len(views) == calls


CALL: Any = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}"}
RESULT: Any = {"type": "function_call_output", "call_id": "c", "output": "x"}
REASONING: Any = {"type": "reasoning", "id": "rs", "summary": []}
ASKED: Any = {"role": "assistant", "tool_calls": [{"id": "c"}]}


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([CALL], "do not belong together"),
        ([CALL, {"role": "user", "content": "x"}, RESULT], "no tool output found"),
        ([RESULT], "no tool call found"),
        ([CALL, RESULT, {**CALL, "id": "other"}, RESULT], "do not belong together"),
        ([CALL, CALL, RESULT], "duplicate item"),
        ([CALL, RESULT, REASONING], "without its required following item"),
        ([{"role": "user", "content": "x"}, {**CALL, "id": "follower"}, RESULT], "without its required 'reasoning'"),
        ([{**CALL, "note": 1}, RESULT], "unknown parameters"),
        ([], "missing"),
    ],
)
def test_provider_refuses_items_as_the_real_one_does(items: list[Any], problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        check_items(items, {"follower": "rs"})


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ASKED], "did not have response messages"),
        ([ASKED, {"role": "user", "content": "x"}], "did not have response messages"),
        ([{"role": "tool", "tool_call_id": "c", "content": "x"}], "must be a response"),
        ([{"role": "assistant"}], "needs content"),
        ([], "empty"),
    ],
)
def test_provider_refuses_messages_as_the_real_one_does(messages: list[Any], problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        check_messages(messages)

"""The chat model with the real client of OpenAI, against a server that plays what a provider sends."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from outlast import Agent, RunFailed, open_store
from outlast.adapters.native import asking
from outlast.adapters.native.openai_chat import OpenAIChatModel
from outlast.testing.serving import ServerThread

pytestmark = pytest.mark.anyio

KEY = "sk-secret"


class Provider:
    """Plays answers in order: chunks, or a status and an error. Keeps the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, request: Request) -> Any:
        self.requests.append(await request.json())
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            return JSONResponse({"error": answer[1]}, answer[0])

        async def frames() -> AsyncIterator[str]:
            for one in answer:
                yield f"data: {json.dumps(one)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setattr(asking, "RETRY_SECONDS", 0)
    found = Provider()
    with ServerThread(found.app) as server:
        found.url = f"{server.url}/v1"
        yield found


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def call(arguments: str, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return {"index": 0, "function": function, **more}


USAGE = {**chunk(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def run(provider: Provider, message: Any = "hi") -> Any:
    async with (
        openai.AsyncOpenAI(api_key=KEY, base_url=provider.url, max_retries=0) as client,
        open_store("memory") as store,
    ):
        agent = Agent(OpenAIChatModel("m", client=client, temperature=0), tools=[add])
        return await agent.session("s", store=store).run(message)


async def test_a_turn_with_a_tool_over_the_wire(provider: Provider) -> None:
    provider.answers = [
        [
            chunk(role="assistant", reasoning_content="hm"),
            chunk(content="Let me "),
            chunk(content="see."),
            chunk(tool_calls=[call("", id="c1", type="function", name="add")]),
            chunk(tool_calls=[call('{"a": 1,')]),
            chunk("tool_calls", tool_calls=[call('"b": 2}')]),
            USAGE,
        ],
        [chunk(content="Three."), chunk("stop"), USAGE],
    ]
    reply = await run(provider, [{"role": "user", "content": [{"type": "text", "text": "1+2?"}]}])
    assert (reply.text, reply.usage) == ("Three.", {"input_tokens": 6, "output_tokens": 8})
    assert reply.messages[0]["reasoning"] == "hm"
    first, second = provider.requests
    assert (first["model"], first["temperature"], first["tools"][0]["function"]["name"]) == ("m", 0, "add")
    assert second["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "1+2?"}]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1,"b": 2}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("odd", "unknown")],
)
async def test_how_an_answer_ended_is_kept(provider: Provider, finish: str, reason: str) -> None:
    provider.answers = [[chunk(content="a"), chunk(finish)]]
    assert (await run(provider)).stop_reason == reason


async def test_a_refusal_is_one(provider: Provider) -> None:
    provider.answers = [[chunk(refusal="No."), chunk("stop")]]
    reply = await run(provider)
    assert (reply.text, reply.stop_reason) == ("No.", "refusal")


async def test_a_full_context_is_an_end_and_not_an_error(provider: Provider) -> None:
    provider.answers = [(400, {"message": "too long", "code": "context_length_exceeded"})]
    assert (await run(provider)).stop_reason == "context_full"


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_provider_that_is_down_for_a_moment_is_asked_again(provider: Provider, status: int) -> None:
    provider.answers = [(status, {"message": "later"}), [chunk(content="a"), chunk("stop")]]
    assert (await run(provider)).text == "a"


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([(401, {"message": f"bad key {KEY}", "code": "invalid_api_key"})], "provider_refused"),
        ([(500, {})] * 3, "provider_unavailable"),
        ([(429, {})] * 3, "provider_rate_limited"),
        ([[chunk(content="a")]], "provider_error"),
    ],
)
async def test_a_provider_that_fails_fails_the_run_and_no_secret_is_told(
    provider: Provider, answers: list[Any], code: str
) -> None:
    provider.answers = answers
    with pytest.raises(RunFailed) as caught:
        await run(provider)
    assert caught.value.code == code
    assert KEY not in str(caught.value)


async def test_a_provider_that_is_not_there_fails_the_run(provider: Provider) -> None:
    provider.url = "http://127.0.0.1:9/v1"
    with pytest.raises(RunFailed) as caught:
        await run(provider)
    assert caught.value.code == "provider_unavailable"

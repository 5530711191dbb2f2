"""The SDK's own models of both wires against a local provider that takes only well-formed conversations, killed and not."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from outlast import open_store
from outlast.testing.effects import EffectsLog
from outlast.testing.kill import KillAt, KillHarness
from outlast_openai import OpenAIAgent

ID = "5f0d8f3c-0d0b-4a53-9d7f-5f5f3a9c1b11"
MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}

set_tracing_disabled(True)


# The provider ---------------------------------------------------------------------------------------------------------


def problem_of_responses(items: list[Any]) -> str | None:
    """Say what the Responses API would refuse: an open call, a result without one, reasoning that nothing follows."""
    calls, results = [], []
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            calls.append(item["call_id"])
        elif kind == "function_call_output":
            results.append(item["call_id"])
        elif results != calls:
            return f"no tool output found for {set(calls) - set(results)}"
        if kind == "reasoning" and items[place + 1 : place + 2] == []:
            return "reasoning was provided without its required following item"
    ids = [item["id"] for item in items if item.get("id")]
    if len(ids) != len(set(ids)):
        return "duplicate item"
    return None if results == calls and len(set(calls)) == len(calls) else f"calls {calls}, results {results}"


def problem_of_chat(messages: list[Any]) -> str | None:
    """Say what the Chat Completions API would refuse."""
    expected: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not expected or expected.pop(0) != message["tool_call_id"]:
                return "a tool message must follow its tool call"
        elif expected:
            return f"these tool calls have no response: {expected}"
        expected += [call["id"] for call in message.get("tool_calls", ())]
    return f"these tool calls have no response: {expected}" if expected else None


def responses_events(turn: int) -> Iterator[dict[str, Any]]:
    if turn == 0:
        output: list[dict[str, Any]] = [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ENC"}]
        output += [
            {"type": "function_call", "id": f"fc_{one}", "call_id": f"call_{one}_of_a_long_name", "name": "pay",
             "arguments": json.dumps({"x": one}), "status": "completed"}
            for one in (1, 2)
        ]  # fmt: skip
    else:
        content = [{"type": "output_text", "text": "All is paid.", "annotations": []}]
        output = [
            {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": "completed", "content": content}
        ]
    usage = {
        "input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    response = {
        "id": f"resp_{turn}", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": output,
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
    }  # fmt: skip
    for place, item in enumerate(output):
        yield {"type": "response.output_item.added", "output_index": place, "item": item, "sequence_number": place}
        yield {"type": "response.output_item.done", "output_index": place, "item": item, "sequence_number": place}
    yield {"type": "response.completed", "sequence_number": 9, "response": response}


def chat_events(turn: int) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": f"chat_{turn}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }

    if turn == 0:
        for place, one in enumerate((1, 2)):
            function = {"name": "pay", "arguments": json.dumps({"x": one})}
            asked = {"index": place, "id": f"call_{one}_of_a_long_name", "type": "function", "function": function}
            yield chunk({"role": "assistant", "tool_calls": [asked]})
        yield chunk({}, "tool_calls")
    else:
        yield chunk({"role": "assistant", "content": "All is "})
        yield chunk({"content": "paid."})
        yield chunk({}, "stop")


class Provider(BaseHTTPRequestHandler):
    """Asks for two tools at once, then says that all is paid; answers 400 to a conversation that is not well formed."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        history = body.get("input") or body["messages"]
        problem = (problem_of_responses if "input" in body else problem_of_chat)(history)
        if problem is not None:
            self._answer(400, "application/json", json.dumps({"error": {"message": problem, "code": "invalid"}}))
            return
        turn = int("_of_a_long_name" in json.dumps(history))
        events = (responses_events if "input" in body else chat_events)(turn)
        self._answer(200, "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in events))

    def _answer(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


# Runs -----------------------------------------------------------------------------------------------------------------


async def run(url: str, folder: str, wire: str, provider: str) -> Any:
    effects = EffectsLog(Path(folder) / "effects")

    @function_tool
    async def pay(x: int) -> str:
        """Pay."""
        effects.append(f"pay {x}")
        return f"paid {x}"

    async with AsyncOpenAI(api_key="none", base_url=provider, max_retries=0) as client, open_store(url) as store:
        model = MODELS[wire]("m", openai_client=client)
        chat = OpenAIAgent(Agent(name="a", model=model, tools=[pay])).session("s", store=store)
        paid, thanked = await chat.run("pay", id=ID), await chat.run("thanks")
        calls = [call["id"] for message in paid.messages for call in message.get("tool_calls", ())]
        return {"said": [paid.text, thanked.text], "calls": calls}


@pytest.fixture(scope="module")
def harness() -> Iterator[KillHarness]:
    with KillHarness(preload=[__file__], timeout_seconds=20) as harness:
        yield harness


@pytest.mark.parametrize("wire", MODELS)
@pytest.mark.parametrize(
    "place",
    [
        None,
        KillAt("items.after_commit", 1),
        KillAt("items.after_commit", 2),
        KillAt("journal.started.after_commit", 1),
        KillAt("journal.done.after_commit", 1),
        KillAt("items.before_commit", 3),
        KillAt("items.after_commit", 3),
        KillAt("finish.before_commit", 1),
    ],
    ids=str,
)
def test_provider_takes_every_conversation(
    harness: KillHarness, provider: str, tmp_path: Path, wire: str, place: KillAt | None
) -> None:
    where = {"url": f"sqlite:///{tmp_path / 'state.db'}", "folder": str(tmp_path), "wire": wire, "provider": provider}
    if place is not None:
        assert harness.run(run, where, kill=place).killed
    result = harness.run(run, where).result
    assert result == {
        "said": ["All is paid."] * 2,
        "calls": ["call_1_of_a_long_name", "call_2_of_a_long_name"],
    }
    effects = EffectsLog(tmp_path / "effects").read()
    assert len(effects) == len(set(effects))

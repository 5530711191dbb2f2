"""A provider for tests, on this machine: it says what scripts tell it, over the wire of the Responses API and of Chat
Completions, and refuses each conversation that OpenAI would refuse.
"""

import json
import re
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from outlast.core.transcript import Message
from outlast_openai.messages import Row, entries

Sent = Mapping[str, Any]

_USAGE = {
    "input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}  # fmt: skip
_CHAT_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FIELDS = {
    "message": {"type", "id", "role", "status", "content", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status", "namespace"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
}
_PARTS = {"assistant": {"output_text", "refusal"}, "user": {"input_text", "input_image", "input_file"}}


class Provider:
    """Serves models by the names of their scripts, within a `with` block. `url` is the `base_url` of clients."""

    def __init__(self, scripts: Mapping[str, Any]) -> None:
        self.scripts = dict(scripts)
        self.problems: list[str] = []
        """Why it refused requests."""
        self.failures = 0
        """How many of the next requests are answered with an error of the server."""
        self.followers: dict[str, str] = {}
        """Reasoning items, by the ids of the items that were said behind them."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"provider": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Refused(Exception):
    """What the provider says to a request that is not well formed, or too long."""

    code = "invalid"


class TooLong(Refused):
    code = "context_length_exceeded"


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.provider.failures > 0:
            self.provider.failures -= 1
            self._answer(500, "application/json", json.dumps({"error": {"message": "try again"}}))
            return
        try:
            said = self._said(body)
        except Refused as error:
            if not isinstance(error, TooLong):
                self.provider.problems.append(str(error))
            self._answer(400, "application/json", json.dumps({"error": {"message": str(error), "code": error.code}}))
            return
        if body.get("stream"):
            self._answer(200, "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in said[1]))
        else:
            self._answer(200, "application/json", json.dumps(said[0]))

    def _said(self, body: Sent) -> tuple[Any, Iterable[Any]]:
        script = self.provider.scripts[body["model"]]
        tools = body.get("tools")
        if self.path.endswith("/responses"):
            items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
            check_items(items, self.provider.followers)
            rows = [Row(str(at), item) for at, item in enumerate(items)]
            said = _not_too_long(script.answer([entry.message.as_json() for entry in entries(rows)]))
            response = _response(said, self.provider.followers)
            return response, _events(response)
        check_messages(body["messages"])
        if body.get("tool_choice") not in (None, "none") and not tools:
            raise Refused("'tool_choice' is only allowed when 'tools' are specified")
        said = _not_too_long(script.answer([Message.of_json(message).as_json() for message in body["messages"]]))
        return _completion(said, body["model"]), _chunks(said, body["model"])

    def _answer(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


# What is refused ------------------------------------------------------------------------------------------------------


def check_items(items: Sequence[Sent], followers: Mapping[str, str]) -> None:
    """Raise Refused for what the Responses API would refuse. `followers` has the reasoning behind which items were said."""
    ids = [item["id"] for item in items if item.get("id")]
    if len(ids) != len(set(ids)):
        raise Refused("duplicate item found with one id")
    calls: list[str] = []
    results: list[str] = []
    for place, item in enumerate(items):
        _check_item(item)
        kind, behind = item.get("type", "message"), items[place + 1] if place + 1 < len(items) else None
        if kind == "reasoning" and (behind is None or followers.get(str(behind.get("id"))) != item["id"]):
            raise Refused(f"item {item['id']!r} of type 'reasoning' was provided without its required following item")
        if (owner := followers.get(str(item.get("id")))) and (place == 0 or items[place - 1].get("id") != owner):
            raise Refused(f"item {item['id']!r} was provided without its required 'reasoning' item: {owner!r}")
        if kind == "function_call":
            calls.append(item["call_id"])
        elif kind == "function_call_output":
            results.append(item["call_id"])
            if item["call_id"] not in calls:
                raise Refused(f"no tool call found for function call output with call_id {item['call_id']}")
        elif kind == "message" and set(calls) != set(results):
            raise Refused(f"no tool output found for function call {sorted(set(calls) - set(results))}")
    if sorted(calls) != sorted(results) or len(calls) != len(set(calls)):
        raise Refused(f"calls {calls} and results {results} do not belong together")
    if results != calls:
        raise Refused(f"the results {results} are not in the order of the calls {calls}")
    if not items:
        raise Refused("missing required parameter: 'input'")


def _check_item(item: Sent) -> None:
    kind = item.get("type", "message")
    unknown = set(item) - _FIELDS.get(kind, set())
    if unknown:
        raise Refused(f"unknown parameters of an item of type {kind!r}: {sorted(unknown)}")
    for name in ("arguments", "name", "call_id"):
        if not isinstance(item.get(name, ""), str):
            raise Refused(f"{name} must be text")
    if not isinstance(output := item.get("output", ""), str):
        _check_parts(output, _PARTS["user"])
    if kind == "message" and not isinstance(item["content"], str):
        _check_parts(item["content"], _PARTS.get(item["role"], set()))


def _check_parts(parts: Sequence[Sent], kinds: Collection[str]) -> None:
    wrong = [part["type"] for part in parts if part["type"] not in kinds]
    if wrong or not parts:
        raise Refused(f"invalid parts: {wrong}; supported are {sorted(kinds)}")


def check_messages(messages: Sequence[Sent]) -> None:
    """Raise Refused for what the Chat Completions API would refuse."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not waiting or waiting.pop(0) != message["tool_call_id"]:
                raise Refused("messages with role 'tool' must be a response to a preceding message with 'tool_calls'")
            if not isinstance(message["content"], str):
                _check_parts(message["content"], {"text"})
            continue
        if waiting:
            raise Refused(f"'tool_call_ids' did not have response messages: {waiting}")
        if message["role"] not in ("system", "developer", "user", "assistant"):
            raise Refused(f"invalid role {message['role']!r}")
        calls = message.get("tool_calls") or []
        if message.get("content") is None and not calls:
            raise Refused("a message needs content or tool_calls")
        waiting = [call["id"] for call in calls]
        if len(waiting) != len(set(waiting)):
            raise Refused("duplicate tool call ids")
    if waiting:
        raise Refused(f"'tool_call_ids' did not have response messages: {waiting}")
    if not messages:
        raise Refused("messages is empty")


# What is said ---------------------------------------------------------------------------------------------------------


def _not_too_long(said: Any) -> Any:
    if said.stop_reason == "context_full":
        raise TooLong("this model's maximum context length is exceeded")
    return said


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _response(said: Any, followers: dict[str, str]) -> dict[str, Any]:
    """Say something by the Responses API: each time with reasoning that must stay before what follows it."""
    reason = _INCOMPLETE.get(said.stop_reason or "")
    status = "incomplete" if reason else "completed"
    output: list[dict[str, Any]] = []
    if said.text:
        content: dict[str, Any] = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        if said.stop_reason == "refusal":
            content = {"type": "refusal", "refusal": said.text}
        output.append(
            {"type": "message", "id": _id("msg"), "role": "assistant", "status": status, "content": [content]}
        )
    for call, call_id in zip(said.calls, said.call_ids(), strict=True):
        output.append(
            {"type": "function_call", "id": _id("fc"), "call_id": call_id, "name": call.name,
             "arguments": json.dumps(dict(call.arguments)), "status": "completed"}
        )  # fmt: skip
    if output and not reason:
        reasoning: dict[str, Any] = {"type": "reasoning", "id": _id("rs"), "summary": [], "encrypted_content": "gAAA"}
        followers[output[0]["id"]] = reasoning["id"]
        output.insert(0, reasoning)
    return {
        "id": _id("resp"), "object": "response", "created_at": 1, "status": status, "model": "m", "output": output,
        "incomplete_details": {"reason": reason} if reason else None, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "usage": _USAGE,
    }  # fmt: skip


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    number = 0
    begun = {**response, "status": "in_progress", "output": [], "incomplete_details": None, "usage": None}
    yield {"type": "response.created", "sequence_number": number, "response": begun}
    for place, item in enumerate(response["output"]):
        at = {"output_index": place, "sequence_number": (number := number + 1)}
        yield {"type": "response.output_item.added", "item": item, **at}
        if item["type"] == "message" and item["content"][0]["type"] == "output_text":
            for piece in re.findall(r"\S+\s*", item["content"][0]["text"]):
                delta = {"item_id": item["id"], "content_index": 0, "delta": piece, "logprobs": []}
                yield {"type": "response.output_text.delta", **delta, **at}
        yield {"type": "response.output_item.done", "item": item, **at}
    yield {"type": f"response.{response['status']}", "sequence_number": number + 1, "response": response}


def _finish(said: Any) -> str:
    reason = "stop" if said.stop_reason == "refusal" else said.stop_reason
    return reason or ("tool_calls" if said.calls else "stop")


def _calls(said: Any) -> list[dict[str, Any]]:
    return [
        {"index": place, "id": id, "type": "function",
         "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
        for place, (call, id) in enumerate(zip(said.calls, said.call_ids(), strict=True))
    ]  # fmt: skip


def _completion(said: Any, model: str) -> dict[str, Any]:
    """Say something by Chat Completions."""
    calls = [{name: value for name, value in call.items() if name != "index"} for call in _calls(said)]
    message = {"role": "assistant", "content": said.text or None, "tool_calls": calls or None}
    choice = {"index": 0, "message": message, "finish_reason": _finish(said), "logprobs": None}
    return {
        "id": _id("chatcmpl"), "object": "chat.completion", "created": 1, "model": model, "choices": [choice],
        "usage": _CHAT_USAGE,
    }  # fmt: skip


def _chunks(said: Any, model: str) -> Iterator[dict[str, Any]]:
    head = {"id": _id("chatcmpl"), "object": "chat.completion.chunk", "created": 1, "model": model}
    text = "refusal" if said.stop_reason == "refusal" else "content"
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    deltas += [{text: piece} for piece in said.pieces()]
    deltas += [{"tool_calls": [call]} for call in _calls(said)]
    for delta in deltas:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    if said.stop_reason != "unknown":
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(said)}]}
        yield {**head, "choices": [], "usage": _CHAT_USAGE}

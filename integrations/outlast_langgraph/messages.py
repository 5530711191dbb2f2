"""Between LangChain's messages and the neutral forms: inputs, outputs, stop reasons, transcripts."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_messages
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from outlast.adapters.inputs import InputMessage, refuse
from outlast.adapters.journal import ToolCall
from outlast.core.errors import NotJSON
from outlast.core.jsontext import encode
from outlast.core.transcript import CallRequest, Message, Role, StopReason

INTERNAL = "outlast_internal"
"""Marks, in a message's `additional_kwargs`, one that a resume added."""

_SERDE = JsonPlusSerializer()

_FIELDS = ("finish_reason", "stop_reason", "stopReason", "status")
"""Where providers say why they stopped: OpenAI and Google, Anthropic, Bedrock, and OpenAI's Responses."""

_STOPS = {
    **{reason.value: reason for reason in StopReason},  # which scripted models use
    "end_turn": StopReason.STOP,
    "stop_sequence": StopReason.STOP,
    "completed": StopReason.STOP,
    "function_call": StopReason.TOOL_CALLS,
    "tool_use": StopReason.TOOL_CALLS,
    "max_tokens": StopReason.MAX_OUTPUT,
    "max_output_tokens": StopReason.MAX_OUTPUT,
    "pause_turn": StopReason.PAUSED,
    "safety": StopReason.CONTENT_FILTER,
    "recitation": StopReason.CONTENT_FILTER,
    "blocklist": StopReason.CONTENT_FILTER,
    "prohibited_content": StopReason.CONTENT_FILTER,
    "spii": StopReason.CONTENT_FILTER,
    "guardrail_intervened": StopReason.CONTENT_FILTER,
    "content_filtered": StopReason.CONTENT_FILTER,
    "model_context_window_exceeded": StopReason.CONTEXT_FULL,
    "malformed_function_call": StopReason.MALFORMED_CALL,
    "unexpected_tool_call": StopReason.MALFORMED_CALL,
    "malformed_tool_use": StopReason.MALFORMED_CALL,
    "malformed_model_output": StopReason.MALFORMED_CALL,
}


def messages_of(values: Any, key: str) -> list[AnyMessage]:
    """Return the messages of a state, whatever form the state has."""
    if isinstance(values, list):
        return [message for message in values if isinstance(message, BaseMessage)]  # type: ignore[misc]
    found = values.get(key) if isinstance(values, Mapping) else getattr(values, key, None)
    return [one for one in found if isinstance(one, BaseMessage)] if isinstance(found, list | tuple) else []  # type: ignore[misc]


def from_input(messages: Sequence[InputMessage], invocation_id: str) -> list[AnyMessage]:
    """Make the messages of a run. The last one is named after the run, so that it enters the history once."""
    made = []
    for place, message in enumerate(messages, start=1 - len(messages)):
        fields = {"role": message.role, "content": message.content, **message.fields}
        try:
            (one,) = convert_to_messages([fields])
        except (ValueError, NotImplementedError, KeyError, TypeError, AttributeError) as error:
            raise refuse(str(error).splitlines()[0]) from error
        one.id = message.id or (invocation_id if place == 0 else f"{invocation_id}:{-place}")
        made.append(one)
    return made  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The calls of the last model answer that have no result."""

    answer: AIMessage
    calls: tuple[ToolCall, ...]


def open_calls(messages: Sequence[AnyMessage]) -> OpenCalls | None:
    """Return the unanswered calls of the last model answer, or None. Two calls of one id need two results."""
    for index in range(len(messages) - 1, -1, -1):
        answer = messages[index]
        if isinstance(answer, AIMessage):
            results = [m.tool_call_id for m in messages[index + 1 :] if isinstance(m, ToolMessage)]
            left = []
            for call in tool_calls(answer):
                if call.call_id in results:
                    results.remove(call.call_id)
                else:
                    left.append(call)
            return OpenCalls(answer, tuple(left)) if left else None
    return None


def tool_calls(answer: AIMessage) -> list[ToolCall]:
    """Return the calls a model answer asks for, with their keys in the journal."""
    return [
        ToolCall.of(answer.id or "?", index, call_id=call["id"], name=call["name"], arguments=call["args"])
        for index, call in enumerate(answer.tool_calls)
    ]


def stop_reason(answer: AIMessage) -> StopReason:
    """Say why the model stopped, whichever provider it is of."""
    if answer.tool_calls:
        return StopReason.TOOL_CALLS
    if answer.invalid_tool_calls:
        return StopReason.MALFORMED_CALL
    if answer.additional_kwargs.get("refusal") or _has_refusal(answer.content):
        return StopReason.REFUSED
    metadata = answer.response_metadata
    incomplete = metadata.get("incomplete_details")
    reason = incomplete.get("reason") if isinstance(incomplete, Mapping) else None
    word = reason or next(filter(None, map(metadata.get, _FIELDS)), None)
    if not word:
        blocked = metadata.get("prompt_feedback") or {}
        return StopReason.CONTENT_FILTER if blocked.get("block_reason") else StopReason.STOP
    return _STOPS.get(_once(str(word).lower()), StopReason.UNKNOWN)


def _has_refusal(content: Any) -> bool:
    """Look for what OpenAI's Responses give in the place of text, with the status of an answer that is complete."""
    return isinstance(content, list) and any(isinstance(one, dict) and one.get("type") == "refusal" for one in content)


def _once(word: str) -> str:
    """Undo what merging chunks does to a word that two of them carry: "stopstop"."""
    repeated = re.fullmatch(r"(.+?)\1+", word)
    return repeated[1] if repeated and repeated[1] in _STOPS else word


def told(message: BaseMessage) -> Any:
    """Return the content of a message as clients are told it."""
    return if_json(message.content, str(message.content))


def if_json(value: Any, otherwise: Any) -> Any:
    """Return a value, or, when JSON cannot hold it, the other one."""
    try:
        encode(value)
    except NotJSON:
        return otherwise
    return value


def encoded(value: Any) -> Any:
    """Return a value of the framework as JSON that `decoded` takes, or None for one that cannot be stored."""
    try:
        type_, body = _SERDE.dumps_typed(value)
    except Exception:  # noqa: BLE001 - whatever a serialiser of unknown values raises
        return None
    return [type_, base64.b64encode(body).decode("ascii")]


def decoded(value: Any) -> Any:
    """Return what `encoded` was given."""
    type_, body = value
    return _SERDE.loads_typed((type_, base64.b64decode(body)))


def usage_of(answer: BaseMessage) -> dict[str, Any]:
    """Return the token counts a provider gave for an answer."""
    return dict(getattr(answer, "usage_metadata", None) or {})


def as_json(message: BaseMessage) -> dict[str, Any]:
    """Return a message as it stands in the output of a run."""
    if isinstance(message, AIMessage):
        said: dict[str, Any] = {"role": "assistant", "content": told(message), "id": message.id}
        if message.tool_calls:
            said["tool_calls"] = [
                {"id": call["id"], "name": call["name"], "arguments": call["args"]} for call in message.tool_calls
            ]
        return said | {"stop_reason": stop_reason(message).value}
    if isinstance(message, ToolMessage):
        return {
            "role": "tool", "content": told(message), "id": message.id, "tool_call_id": message.tool_call_id,
            "name": message.name, "status": message.status,
        }  # fmt: skip
    role = {"human": "user", "system": "system"}.get(message.type, message.type)
    return {"role": role, "content": told(message), "id": message.id}


def transcript(messages: Iterable[BaseMessage]) -> list[Message]:
    """Return a history in the neutral terms of the rules about interruptions."""
    entries = []
    for message in messages:
        if isinstance(message, AIMessage):
            calls = tuple(CallRequest(call["id"] or "", call["name"]) for call in message.tool_calls)
            entries.append(Message(Role.ASSISTANT, message.text, calls, stop=stop_reason(message)))
        elif isinstance(message, ToolMessage):
            entries.append(Message(Role.TOOL, message.text, call_id=message.tool_call_id))
        elif isinstance(message, HumanMessage):
            internal = bool(message.additional_kwargs.get(INTERNAL))
            entries.append(Message(Role.INTERNAL if internal else Role.USER, message.text))
        else:
            entries.append(Message(Role.SYSTEM, message.text))
    return entries

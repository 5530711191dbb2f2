"""A conversation in neutral terms: what is stored of one that is kept as items, and what the rules of resuming look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from outlast.core import jsontext
from outlast.core.errors import InvalidRequest


class Role(StrEnum):
    """Who wrote a message. `internal` ones are added by a resume and reach providers as user messages."""

    SYSTEM = "system"
    USER = "user"
    INTERNAL = "internal"
    ASSISTANT = "assistant"
    TOOL = "tool"


class StopReason(StrEnum):
    """Why a model stopped, in one vocabulary for all providers."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    MAX_OUTPUT = "length"
    PAUSED = "paused"
    REFUSED = "refusal"
    CONTENT_FILTER = "content_filter"
    CONTEXT_FULL = "context_full"
    MALFORMED_CALL = "malformed_call"
    INTERRUPTED = "aborted"
    ERROR = "error"
    UNKNOWN = "unknown"


Content = str | Sequence[Mapping[str, Any]]
"""Text, or parts such as `{"type": "text", "text": …}`; parts of other types pass through as they are."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call a model asked for. `id` is the provider's and need not be unique."""

    id: str
    name: str
    arguments: str = ""
    """The text the model gave, whether or not that is JSON."""
    awaits_approval: bool = False
    """Nobody has decided about it. This is not stored with the message: the approvals of the history say it."""

    @property
    def parsed(self) -> dict[str, Any] | None:
        """The arguments as a JSON object, or None when they are none. No text at all is an object without members."""
        if not self.arguments.strip():
            return {}
        try:
            value = jsontext.parse(self.arguments.encode())
        except (InvalidRequest, UnicodeEncodeError):
            return None
        return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `call_id` and `failed` are for tool results, what comes after them for what a model said.

    An adapter that keeps its history as items stores `as_json`, and reads it by `of_json`. One that keeps it elsewhere
    fills in what the rules of resuming need: role, text, calls, call ids and stop reasons.
    """

    role: Role
    content: Content = ""
    calls: tuple[CallRequest, ...] = ()
    call_id: str | None = None
    failed: bool = False
    stop: StopReason = StopReason.STOP
    reasoning: str = ""
    model: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of the content, whatever its form."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part["text"] for part in self.content if part["type"] == "text")

    @property
    def silent(self) -> bool:
        """Whether it says nothing: no text but white space, and no other part. Reasoning is not said."""
        return not self.text.strip() and (
            isinstance(self.content, str) or all(p["type"] == "text" for p in self.content)
        )

    def as_json(self) -> dict[str, Any]:
        """Return the form that is stored and shown."""
        content = self.content if isinstance(self.content, str) else [dict(part) for part in self.content]
        shown: dict[str, Any] = {"role": self.role.value, "content": content}
        if self.role is Role.TOOL:
            return shown | {"tool_call_id": self.call_id, "failed": self.failed}
        if self.role is not Role.ASSISTANT:
            return shown
        if self.calls:
            shown["tool_calls"] = [_shown(call) for call in self.calls]
        more = {"reasoning": self.reasoning, "model": self.model, "usage": dict(self.usage)}
        return shown | {"stop_reason": self.stop.value} | {key: value for key, value in more.items() if value}

    @classmethod
    def of_json(cls, value: Any) -> "Message":
        """Read the stored form. Raise InvalidRequest whose `field` is the path to what is wrong in it.

        Members it does not know are left out, and so is null; a stop reason it does not know becomes `UNKNOWN`.
        """
        role = _of(Role, value.get("role")) if isinstance(value, Mapping) else None
        if role is None:
            raise _wrong("role", f"a message is an object with a role: {', '.join(Role)}")
        for name, owner in _OWNERS.items():
            if value.get(name) and role is not owner:
                raise _wrong(name, f"only a message of the role {owner} has {name}")
        call_id = _typed(value, "tool_call_id", str, None)
        if role is Role.TOOL and call_id is None:
            raise _wrong("tool_call_id", "a tool message names its call")
        calls = tuple(
            _call_of(call, f"tool_calls[{at}]") for at, call in enumerate(_typed(value, "tool_calls", list, []))
        )
        stop = _typed(value, "stop_reason", str, StopReason.TOOL_CALLS if calls else StopReason.STOP) or StopReason.STOP
        return cls(
            role,
            _content_of(value.get("content")),
            calls,
            call_id if role is Role.TOOL else None,
            _typed(value, "failed", bool, False),
            _of(StopReason, stop) or StopReason.UNKNOWN,
            _typed(value, "reasoning", str, ""),
            _typed(value, "model", str, None) or None,
            _typed(value, "usage", Mapping, {}),
        )


AWAITS = "outlast.awaits"
"""A member of an item that is no message: the ids of the items without which what it begins is no whole step."""

Transcript = Sequence[Message]

_OWNERS = {
    "tool_calls": Role.ASSISTANT, "stop_reason": Role.ASSISTANT, "reasoning": Role.ASSISTANT, "model": Role.ASSISTANT,
    "usage": Role.ASSISTANT, "tool_call_id": Role.TOOL, "failed": Role.TOOL,
}  # fmt: skip
"""Whose messages have what; others would lose it when they are stored."""

_KINDS = {str: "text", bool: "true or false", list: "a list", Mapping: "an object"}

E = TypeVar("E", bound=StrEnum)


def open_calls(transcript: Transcript) -> dict[int, CallRequest]:
    """Return the calls of the last answer that have no result, by their place in it; earlier answers do not count.

    Each result answers one call: two calls of one id need two results.
    """
    last = last_answer(transcript)
    if last is None:
        return {}
    answered = [message.call_id for message in transcript[last + 1 :] if message.role is Role.TOOL]
    left = {}
    for place, call in enumerate(transcript[last].calls):
        if call.id in answered:
            answered.remove(call.id)
        else:
            left[place] = call
    return left


def last_answer(transcript: Transcript) -> int | None:
    """Return where the last message of a model is."""
    return next((at for at in reversed(range(len(transcript))) if transcript[at].role is Role.ASSISTANT), None)


def _of(kind: type[E], value: Any) -> E | None:
    try:
        return kind(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _wrong(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_message", field=field)


def _typed(value: Mapping[str, Any], name: str, kind: type, otherwise: Any, at: str = "") -> Any:
    """Return a member of a type, or the other value when it is not there or null."""
    found = value.get(name)
    if found is None:
        return otherwise
    if not isinstance(found, kind):
        raise _wrong(f"{at}{name}", f"{at}{name} is {_KINDS[kind]}")
    return found


def _content_of(content: Any) -> Content:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _wrong("content", "content is text or a list of parts")
    for index, part in enumerate(content):
        at = f"content[{index}]"
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise _wrong(at, "a part of the content is an object with a type")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise _wrong(f"{at}.text", "a part of the type text has a text")
    return content


def _shown(call: CallRequest) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def _call_of(value: Any, at: str) -> CallRequest:
    """Read a call: ours, or one in the form of OpenAI's chat completions."""
    if not isinstance(value, Mapping):
        raise _wrong(at, "a tool call is an object")
    function = value.get("function")
    called, inner = (function, f"{at}.function.") if isinstance(function, Mapping) else (value, f"{at}.")
    named = ((value, "id", f"{at}."), (called, "name", inner), (called, "arguments", inner))
    for source, name, prefix in named:
        if not isinstance(source.get(name), str):
            raise _wrong(f"{prefix}{name}", "a tool call has an id, a name, and arguments as text")
    return CallRequest(value["id"], called["name"], called["arguments"])

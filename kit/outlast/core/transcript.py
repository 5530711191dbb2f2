"""A conversation in neutral terms: just what the rules about interruptions need to know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from outlast.core.errors import InvalidRequest


class Role(StrEnum):
    """Who wrote an entry. `internal` entries are added by a resume and reach providers as user messages."""

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


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call a model asked for. `id` is the provider's and need not be unique."""

    id: str
    name: str
    awaits_approval: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One message. `call_id` is set for tool results, `calls` and `stop` for what a model said."""

    role: Role
    text: str = ""
    calls: tuple[CallRequest, ...] = ()
    call_id: str | None = None
    stop: StopReason = StopReason.STOP


Transcript = Sequence[Entry]

Content = str | Sequence[Mapping[str, Any]]
"""Text, or parts such as `{"type": "text", "text": …}`; parts of other types pass through as they are."""


@dataclass(frozen=True, slots=True)
class MessageCall:
    """A tool call as a model made it; `arguments` is the text it gave, whether or not that is JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a history that is kept as items. Its JSON form is `as_json`; `of_json` reads it."""

    role: Role
    content: Content = ""
    calls: tuple[MessageCall, ...] = ()
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
        return "".join(str(part.get("text", "")) for part in self.content if part.get("type") == "text")

    def entry(self) -> Entry:
        """Return what the rules about interruptions look at."""
        calls = tuple(CallRequest(call.id, call.name) for call in self.calls)
        return Entry(self.role, self.text, calls, self.call_id, self.stop)

    def as_json(self) -> dict[str, Any]:
        """Return the form that is stored and shown."""
        content = self.content if isinstance(self.content, str) else [dict(part) for part in self.content]
        shown: dict[str, Any] = {"role": self.role.value, "content": content}
        if self.role is Role.TOOL:
            return shown | {"tool_call_id": self.call_id, "failed": self.failed}
        if self.role is not Role.ASSISTANT:
            return shown
        if self.calls:
            shown["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments} for call in self.calls
            ]
        more = {"reasoning": self.reasoning, "model": self.model, "usage": dict(self.usage)}
        return shown | {"stop_reason": self.stop.value} | {key: value for key, value in more.items() if value}

    @classmethod
    def of_json(cls, value: Any) -> "Message":
        """Read the stored form. Raise InvalidRequest that names what is wrong in it."""
        if not isinstance(value, Mapping) or _of(Role, value.get("role")) is None:
            raise _wrong("role", f"a message is an object with a role: {', '.join(Role)}")
        role, content, call_id = Role(value["role"]), value.get("content"), value.get("tool_call_id")
        if not (content is None or isinstance(content, str) or _are_parts(content)):
            raise _wrong("content", "content is text or a list of parts with a type")
        if role is Role.TOOL and not isinstance(call_id, str):
            raise _wrong("tool_call_id", "a tool message names its call")
        if role is Role.TOOL:
            return cls(role, content or "", call_id=call_id, failed=value.get("failed") is True)
        if role is not Role.ASSISTANT:
            return cls(role, content or "")
        calls = value.get("tool_calls") or []
        if not isinstance(calls, list):
            raise _wrong("tool_calls", "tool_calls is a list")
        stop = value.get("stop_reason", StopReason.TOOL_CALLS if calls else StopReason.STOP)
        usage, model = value.get("usage"), value.get("model")
        return cls(
            role,
            content or "",
            tuple(_call_of(call) for call in calls),
            stop=_of(StopReason, stop) or StopReason.UNKNOWN,
            reasoning=str(value.get("reasoning") or ""),
            model=model if isinstance(model, str) and model else None,
            usage=dict(usage) if isinstance(usage, Mapping) else {},
        )


E = TypeVar("E", bound=StrEnum)


def _of(kind: type[E], value: Any) -> E | None:
    return kind(value) if isinstance(value, str) and value in set(kind) else None


def _wrong(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_message", field=field)


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content
    )


def _call_of(value: Any) -> MessageCall:
    """Read a call: ours, or one in the form of OpenAI's chat completions."""
    if not isinstance(value, Mapping):
        raise _wrong("tool_calls", "a tool call is an object")
    function = value.get("function")
    called = function if isinstance(function, Mapping) else value
    id, name, arguments = value.get("id"), called.get("name"), called.get("arguments")
    if not (isinstance(id, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise _wrong("tool_calls", "a tool call has an id, a name, and arguments as text")
    return MessageCall(id, name, arguments)


def open_calls(transcript: Transcript) -> list[CallRequest]:
    """Return the calls of the last assistant entry that have no result; earlier entries do not count."""
    last = max((index for index, entry in enumerate(transcript) if entry.role is Role.ASSISTANT), default=None)
    if last is None:
        return []
    answered = [entry.call_id for entry in transcript[last + 1 :] if entry.role is Role.TOOL]
    left = []
    for call in transcript[last].calls:
        if call.id in answered:
            answered.remove(call.id)
        else:
            left.append(call)
    return left

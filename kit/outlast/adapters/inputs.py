"""What agents accept as input, whatever the framework: text, a message, messages, or answers to a waiting run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.core.errors import RunFailed

EXPECTED = (
    'a string, {"message": …}, {"messages": […]}, or a list of {"role", "content"} messages; '
    'content is a string or a list of parts such as {"type": "text", "text": "…"}; or {"resume": …}'
)
ROLES = frozenset({"user", "assistant", "system", "developer", "tool"})

_ID = re.compile(r"[\x21-\x7e]{1,128}")

Content = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class InputMessage:
    """One message of an input. `fields` has everything beyond role, content and id as it was sent."""

    role: str
    content: Content
    id: str | None
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Messages:
    """New messages."""

    messages: tuple[InputMessage, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """Decisions and answers for a run that waits for a person."""

    value: Any


def parse(value: Any) -> Messages | Answers:
    """Read an input. Raise RunFailed (`invalid_input`) that says what is accepted."""
    if isinstance(value, Mapping) and set(value) == {"resume"}:
        return Answers(value["resume"])
    messages = tuple(_message(item) for item in _items(value))
    if not messages:
        raise refuse("no message in it")
    return Messages(messages)


def message_id(input: object, index: int, *, invocation_id: str) -> str:
    """Name an input message: what the user named it, else by the run, so that it is stored once.

    Raise RunFailed (`invalid_input`) for a name that no item may have.
    """
    if isinstance(input, Messages) and (id := input.messages[index].id) is not None:
        if not _ID.fullmatch(id):
            raise RunFailed("invalid_input", "a message id is 1 to 128 visible ASCII characters")
        return id
    return f"{invocation_id}:input:{index}"


def refuse(problem: str, expected: str = EXPECTED) -> RunFailed:
    return RunFailed("invalid_input", f"the input is not understood ({problem}); expected {expected}")


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping) and set(value) == {"message"}:
        return [value["message"]]
    if isinstance(value, Mapping) and set(value) == {"messages"} and isinstance(value["messages"], list):
        return value["messages"]
    if isinstance(value, Mapping):
        raise refuse(f"an object with the keys {sorted(map(str, value))}")
    raise refuse(f"a value of type {type(value).__name__}")


def _message(item: Any) -> InputMessage:
    if isinstance(item, str):
        return InputMessage("user", item, None, {})
    if not isinstance(item, Mapping):
        raise refuse(f"a message of type {type(item).__name__}")
    role = item.get("role", "user")
    if not isinstance(role, str) or role not in ROLES:
        raise refuse(f"the role {role!r}")
    if "content" not in item:
        raise refuse("a message without content")
    id = item.get("id")
    if id is not None and not isinstance(id, str):
        raise refuse("a message id that is no string")
    fields = {key: field for key, field in item.items() if key not in ("role", "content", "id")}
    return InputMessage(role, _content(item["content"]), id, fields)


def _content(content: Any) -> Content:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refuse(f"content of type {type(content).__name__}")
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise refuse("a content part without a type")
        if part["type"] == "text" and not isinstance(part.get("text"), str):
            raise refuse("a text part without text")
    return [dict(part) for part in parts]

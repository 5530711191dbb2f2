from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.errors import InvalidRequest
from outlast.core.transcript import Message, MessageCall, Role, StopReason

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["role", "content", "tool_calls", "tool_call_id", "failed", "stop_reason", "reasoning", "model", "usage"]
LIKE_MESSAGES = st.fixed_dictionaries(
    {}, optional={name: JSON | st.sampled_from(["user", "assistant", "tool"]) for name in FIELDS}
)


@pytest.mark.parametrize(
    "message",
    [
        Message(Role.USER, "a\x00\ud800"),
        Message(Role.USER, [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        Message(Role.INTERNAL, "go on"),
        Message(
            Role.ASSISTANT, "", (MessageCall("c", "f", "{"),), stop=StopReason.TOOL_CALLS, usage={"input_tokens": 1}
        ),
        Message(Role.ASSISTANT, "a", stop=StopReason.MAX_OUTPUT, reasoning="hm", model="m"),
        Message(Role.TOOL, "no", call_id="c", failed=True),
    ],
)
def test_a_message_survives_its_json_form(message: Message) -> None:
    assert Message.of_json(message.as_json()) == message


def test_a_call_in_the_form_of_chat_completions_is_understood() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = Message.of_json({"role": "assistant", "content": None, "tool_calls": [call]})
    assert (message.calls, message.stop) == ((MessageCall("c", "f", "{}"),), StopReason.TOOL_CALLS)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "role"), ({}, "role"), ({"role": []}, "role"), ({"role": "user", "content": 7}, "content"),
        ({"role": "tool", "content": ""}, "tool_call_id"), ({"role": "assistant", "tool_calls": 7}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "tool_calls"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_and_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Message.of_json(value)
    assert caught.value.field == field


@given(JSON | LIKE_MESSAGES)
def test_any_json_is_a_message_or_refused(value: Any) -> None:
    try:
        message = Message.of_json(value)
    except InvalidRequest:
        return
    assert Message.of_json(message.as_json()) == message

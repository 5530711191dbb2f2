from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.errors import InvalidRequest
from outlast.core.transcript import CallRequest, Message, Role, StopReason

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
CALLS = [{"id": "c", "name": "f", "arguments": "{}"}]
FIELDS = ["role", "content", "tool_calls", "tool_call_id", "failed", "stop_reason", "reasoning", "model", "usage"]
LIKE_MESSAGES = st.fixed_dictionaries(
    {}, optional={name: JSON | st.sampled_from(["user", "assistant", "tool", CALLS]) for name in FIELDS}
)


@pytest.mark.parametrize(
    "message",
    [
        Message(Role.USER, "a\x00\ud800"),
        Message(Role.USER, [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        Message(Role.INTERNAL, "go on"),
        Message(
            Role.ASSISTANT, "", (CallRequest("c", "f", "{"),), stop=StopReason.TOOL_CALLS, usage={"input_tokens": 1}
        ),
        Message(Role.ASSISTANT, "a", stop=StopReason.MAX_OUTPUT, reasoning="hm", model="m"),
        Message(Role.ASSISTANT, "", (CallRequest("c", "f", "{}"), CallRequest("c", "f", ""))),
        Message(Role.TOOL, "no", call_id="c", failed=True),
    ],
)
def test_a_message_survives_its_json_form(message: Message) -> None:
    assert Message.of_json(message.as_json()) == message


def test_a_call_in_the_form_of_chat_completions_is_understood() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = Message.of_json({"role": "assistant", "content": None, "tool_calls": [call]})
    assert (message.calls, message.stop) == ((CallRequest("c", "f", "{}"),), StopReason.TOOL_CALLS)


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": [1]}', {"a": [1]}), ("", {}), (" ", {}), ("{", None), ("[1]", None), ('{"a": NaN}', None),
        ('"\ud800"', None), ("[" * 100_000, None),
    ],
)  # fmt: skip
def test_arguments_are_parsed_where_they_are_an_object(arguments: str, parsed: Any) -> None:
    assert CallRequest("c", "f", arguments).parsed == parsed


@pytest.mark.parametrize(
    ("content", "silent"),
    [
        ("", True), (" \n", True), ("a", False), ([], True), ([{"type": "text", "text": " "}], True),
        ([{"type": "text", "text": ""}, {"type": "text", "text": "a"}], False), ([{"type": "image"}], False),
    ],
)  # fmt: skip
def test_a_message_is_silent_when_it_says_and_shows_nothing(content: Any, silent: bool) -> None:
    assert Message(Role.ASSISTANT, content, reasoning="hm").silent is silent


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "role"), ({}, "role"), ({"role": []}, "role"), ({"role": "user", "content": 7}, "content"),
        ({"role": "user", "content": ["a"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "image"}, {"type": "text"}]}, "content[1].text"),
        ({"role": "user", "content": "a", "tool_calls": CALLS}, "tool_calls"),
        ({"role": "user", "content": "a", "tool_call_id": "c"}, "tool_call_id"),
        ({"role": "assistant", "failed": True}, "failed"),
        ({"role": "tool", "content": ""}, "tool_call_id"), ({"role": "tool", "tool_call_id": 7}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "c", "failed": "yes"}, "failed"),
        ({"role": "assistant", "tool_calls": 7}, "tool_calls"),
        ({"role": "assistant", "tool_calls": [*CALLS, 7]}, "tool_calls[1]"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "tool_calls[0].name"),
        ({"role": "assistant", "tool_calls": [{**CALLS[0], "arguments": {}}]}, "tool_calls[0].arguments"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
         "tool_calls[0].function.arguments"),
        ({"role": "assistant", "stop_reason": 7}, "stop_reason"), ({"role": "assistant", "usage": [1]}, "usage"),
        ({"role": "assistant", "reasoning": ["hm"]}, "reasoning"), ({"role": "assistant", "model": 7}, "model"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused_and_named(value: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Message.of_json(value)
    assert caught.value.field == field
    assert caught.value.code == "invalid_message"


def test_a_stop_reason_that_is_not_known_is_unknown() -> None:
    assert Message.of_json({"role": "assistant", "content": "a", "stop_reason": "bored"}).stop is StopReason.UNKNOWN


@given(JSON | LIKE_MESSAGES)
def test_any_json_is_a_message_or_refused(value: Any) -> None:
    try:
        message = Message.of_json(value)
    except InvalidRequest:
        return
    assert Message.of_json(message.as_json()) == message

from typing import Any

import pytest

from outlast.adapters.inputs import Answers, InputMessage, Messages, parse
from outlast.core.errors import RunFailed


def user(content: Any, id: str | None = None) -> InputMessage:
    return InputMessage("user", content, id, {})


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [user("hi")]),
        ({"message": "hi"}, [user("hi")]),
        ({"message": {"content": "hi", "id": "m1"}}, [user("hi", "m1")]),
        ({"messages": [{"role": "user", "content": "hi"}, "there"]}, [user("hi"), user("there")]),
        ([{"role": "system", "content": "be kind"}, "hi"], [InputMessage("system", "be kind", None, {}), user("hi")]),
        ([{"content": ["a", {"type": "image", "url": "x"}]}],
         [user([{"type": "text", "text": "a"}, {"type": "image", "url": "x"}])]),
        ([{"role": "tool", "content": "42", "tool_call_id": "c1"}],
         [InputMessage("tool", "42", None, {"tool_call_id": "c1"})]),
    ],
)  # fmt: skip
def test_accepted_shapes(value: Any, messages: list[InputMessage]) -> None:
    assert parse(value) == Messages(tuple(messages))


def test_answers_are_passed_as_they_are() -> None:
    assert parse({"resume": {"any": ["json"]}}) == Answers({"any": ["json"]})


@pytest.mark.parametrize(
    "value",
    [
        None, 7, True, [], {}, {"text": "hi"}, {"message": "hi", "more": 1}, {"messages": "hi"}, [7], [{"role": "user"}],
        [{"role": "boss", "content": "hi"}], [{"role": ["user"], "content": "hi"}], [{"content": 7}], [{"content": [{"text": "hi"}]}],
        [{"content": [{"type": "text"}]}], [{"content": "hi", "id": 7}],
    ],
)  # fmt: skip
def test_anything_else_says_what_was_expected(value: Any) -> None:
    with pytest.raises(RunFailed, match="expected a string") as caught:
        parse(value)
    assert caught.value.code == "invalid_input"

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core import jsontext
from outlast.core.errors import InvalidRequest, NotJSON

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_every_json_value_survives(value: Any) -> None:
    text = jsontext.encode(value)
    assert text.isascii()
    assert jsontext.decode(text) == value
    assert jsontext.parse(text.encode()) == value


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", {"k\x00": "\udfff"}, 10**30, 2512292042121000001])
def test_nul_lone_surrogates_and_big_integers_are_kept(value: Any) -> None:
    # BR-38, BR-40
    assert jsontext.decode(jsontext.encode(value)) == value


def test_key_order_is_kept() -> None:
    assert jsontext.encode({"b": 1, "a": 2}) == '{"b":1,"a":2}'


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"score": [1, float("inf")]}, "$.score[1]"),
        ({"a": {"b": {1, 2}}}, "$.a.b"),
        ([b"bytes"], "$[0]"),
        ({(1, 2): "tuple key"}, "$"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(value: Any, path: str) -> None:
    # BR-39
    with pytest.raises(NotJSON) as caught:
        jsontext.encode(value)
    assert caught.value.path == path


def test_a_circular_value_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotJSON):
        jsontext.encode(value)


@pytest.mark.parametrize("depth", [jsontext.MAX_DEPTH + 1, 1_000, 20_000, 200_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    # BR-41
    body = b"[" * depth + b"]" * depth
    with pytest.raises(InvalidRequest, match=f"deeper than {jsontext.MAX_DEPTH} levels"):
        jsontext.parse(body)


def test_the_deepest_allowed_value_is_accepted_everywhere() -> None:
    body = b"[" * jsontext.MAX_DEPTH + b"]" * jsontext.MAX_DEPTH
    assert jsontext.encode(jsontext.parse(body)) == body.decode()


def test_brackets_in_strings_do_not_count_as_depth() -> None:
    value = {"text": "[{" * 1000 + '"\\"' * 10}
    assert jsontext.parse(jsontext.encode(value).encode()) == value


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'{"a": Infinity}', b"\xff", b'"\xed\xa0\x80"', b"1" * 5000])
def test_untrusted_bytes_that_are_not_json_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        jsontext.parse(body)
    assert caught.value.code == "invalid_json"


def test_fingerprints_ignore_key_order_and_tell_number_types_apart() -> None:
    assert jsontext.fingerprint({"a": 1, "b": [2]}) == jsontext.fingerprint({"b": [2], "a": 1})
    assert len({jsontext.fingerprint(value) for value in (1, 1.0, True, "1", None)}) == 5

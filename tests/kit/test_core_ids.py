from typing import Any

import pytest

from outlast.core import ids
from outlast.core.errors import InvalidRequest

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def test_capitals_name_the_same_invocation() -> None:
    # BR-44
    assert ids.invocation_id(UUID.upper()) == UUID


@pytest.mark.parametrize("text", [UUID.replace("-", ""), f"{{{UUID}}}", f"urn:uuid:{UUID}", UUID + " ", "", None, 7])
def test_other_spellings_of_a_uuid_are_refused(text: Any) -> None:
    # BR-44
    with pytest.raises(InvalidRequest) as caught:
        ids.invocation_id(text)
    assert caught.value.code == "invalid_id"


@pytest.mark.parametrize("text", ["a", "x" * 512, "a/b c", "é", "e\u0301", " ", "\u2028"])
def test_a_session_id_is_kept_as_it_is(text: str) -> None:
    assert ids.session_id(text) == text


@pytest.mark.parametrize("text", ["", "x" * 513, "a\x00", "a\n", "\x85", "\ud800", None, 1])
def test_a_session_id_that_no_url_or_log_should_see_is_refused(text: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ids.session_id(text)
    assert caught.value.code == "invalid_session_id"

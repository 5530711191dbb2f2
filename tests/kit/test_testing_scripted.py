"""Scripted models: what a script cannot say is refused where it is written, not in the run that plays it."""

import pytest

from outlast.core.transcript import StopReason
from outlast.testing.scripted import Say


def test_every_stop_reason_can_be_said() -> None:
    assert [Say("Hi", stop_reason=word).stop_reason for word in StopReason] == list(StopReason)


@pytest.mark.parametrize("word", ["pause", "max_tokens", "STOP", ""])
def test_another_word_is_refused_with_those_there_are(word: str) -> None:
    with pytest.raises(ValueError, match="one of stop, tool_calls, length, paused, refusal,") as refused:
        Say("Hi", stop_reason=word)
    assert repr(word) in str(refused.value)

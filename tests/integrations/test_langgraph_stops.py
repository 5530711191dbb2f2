"""Why a model stopped, told from what LangChain's integrations of the providers put into an answer."""

from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call

from outlast.core.transcript import StopReason
from outlast_langgraph.messages import stop_reason

CALL = {"tool_calls": [tool_call(name="pay", args={}, id="c")]}
REFUSAL = {"type": "refusal", "refusal": "I must not."}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"response_metadata": {"finish_reason": "stop"}}, "stop"),
        ({"response_metadata": {"stop_reason": "end_turn"}}, "stop"),
        ({"response_metadata": {"stop_reason": "stop_sequence"}}, "stop"),
        ({"response_metadata": {"finish_reason": "STOP"}}, "stop"),
        ({"response_metadata": {"status": "completed"}}, "stop"),
        ({}, "stop"),
        # Two chunks had the word, and merging joins texts.
        ({"response_metadata": {"finish_reason": "stopstop"}}, "stop"),
        ({"response_metadata": {"finish_reason": "tool_calls"}, **CALL}, "tool_calls"),
        ({"response_metadata": {"finish_reason": "stop"}, **CALL}, "tool_calls"),
        ({"invalid_tool_calls": [invalid_tool_call(name="pay", args="{", id="c")]}, "malformed_call"),
        ({"response_metadata": {"finish_reason": "MALFORMED_FUNCTION_CALL"}}, "malformed_call"),
        ({"response_metadata": {"finish_reason": "length"}}, "length"),
        ({"response_metadata": {"stop_reason": "max_tokens"}}, "length"),
        ({"response_metadata": {"finish_reason": "MAX_TOKENS"}}, "length"),
        (
            {"response_metadata": {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}},
            "length",
        ),
        (
            {"response_metadata": {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}},
            "content_filter",
        ),
        ({"response_metadata": {"finish_reason": "content_filter"}}, "content_filter"),
        ({"response_metadata": {"finish_reason": "SAFETY"}}, "content_filter"),
        ({"response_metadata": {"prompt_feedback": {"block_reason": "SAFETY"}}}, "content_filter"),
        ({"response_metadata": {"stop_reason": "refusal"}, "content": []}, "refusal"),
        ({"response_metadata": {"finish_reason": "stop"}, "additional_kwargs": {"refusal": "I must not."}}, "refusal"),
        ({"response_metadata": {"status": "completed"}, "content": [REFUSAL]}, "refusal"),
        ({"response_metadata": {"stop_reason": "pause_turn"}}, "paused"),
        ({"response_metadata": {"stop_reason": "model_context_window_exceeded"}}, "context_full"),
        ({"response_metadata": {"stopReason": "end_turn"}}, "stop"),
        ({"response_metadata": {"stopReason": "max_tokens"}}, "length"),
        ({"response_metadata": {"stopReason": "guardrail_intervened"}}, "content_filter"),
        ({"response_metadata": {"stopReason": "malformed_tool_use"}}, "malformed_call"),
        ({"response_metadata": {"finish_reason": "a new word"}}, "unknown"),
    ],
)
def test_stop_reasons_of_the_providers(answer: dict[str, Any], reason: str) -> None:
    assert stop_reason(AIMessage(**{"content": "", **answer})) == reason


@pytest.mark.parametrize("reason", StopReason)
def test_neutral_words_are_understood(reason: StopReason) -> None:
    assert stop_reason(AIMessage("", response_metadata={"finish_reason": reason.value})) is reason

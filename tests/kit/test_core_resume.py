"""The table of what the end of a history means."""

import pytest

from outlast.core.errors import AgentResumeError
from outlast.core.resume import ResumeKind, find_resume_point, require_resume_point
from outlast.core.transcript import CallRequest, Message, Role, StopReason

USER = Message(Role.USER, "hi")
INTERNAL = Message(Role.INTERNAL, "go on")
EMPTY = Message(Role.ASSISTANT, "")


def said(text: str = "done", stop: StopReason = StopReason.STOP) -> Message:
    return Message(Role.ASSISTANT, text, stop=stop)


def asked(*ids: str, approval: bool = False) -> Message:
    calls = tuple(CallRequest(id, "t", awaits_approval=approval) for id in ids)
    return Message(Role.ASSISTANT, calls=calls, stop=StopReason.TOOL_CALLS)


def result(id: str) -> Message:
    return Message(Role.TOOL, "42", call_id=id)


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([USER], ResumeKind.CALL_MODEL),
        ([USER, said(), USER], ResumeKind.CALL_MODEL),
        ([USER, said("The three rea", StopReason.MAX_OUTPUT), INTERNAL], ResumeKind.CALL_MODEL),
        ([USER, asked("c1", "c2"), result("c2"), result("c1")], ResumeKind.CALL_MODEL),
        ([USER, said("wait", StopReason.PAUSED)], ResumeKind.CALL_MODEL),
        ([USER, asked("c1")], ResumeKind.RECOVER_TOOLS),
        ([USER, asked("c1", "c2"), result("c1")], ResumeKind.RECOVER_TOOLS),
        ([USER, said("hal", StopReason.INTERRUPTED)], ResumeKind.RETRY_RESPONSE),
        ([USER, EMPTY], ResumeKind.RETRY_RESPONSE),
        ([USER, said("", StopReason.MALFORMED_CALL)], ResumeKind.RETRY_RESPONSE),
        ([USER, said("The three rea", StopReason.MAX_OUTPUT)], ResumeKind.CONTINUE_RESPONSE),
        ([USER, asked("c1", approval=True)], ResumeKind.AWAIT_APPROVAL),
    ],
)
def test_resume_point(entries: list[Message], kind: ResumeKind) -> None:
    point = find_resume_point(entries)
    assert point is not None
    assert point.kind is kind
    assert point.description


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([], "empty"),
        ([USER, said()], "completed"),
        ([USER, EMPTY, INTERNAL, EMPTY], "completed"),
        ([USER, said("no", StopReason.REFUSED)], "refused"),
        ([USER, said("no", StopReason.CONTENT_FILTER)], "refused"),
        ([USER, said("much", StopReason.CONTEXT_FULL)], "context_full"),
        ([USER, said("odd", StopReason.UNKNOWN)], "unknown_stop"),
        ([USER, result("c1")], "malformed"),
        ([USER, asked("c1"), result("c2")], "malformed"),
        ([USER, asked("c1"), result("c1"), result("c1")], "malformed"),
        ([USER, asked("c1", "c1")], "malformed"),
    ],
)
def test_nothing_to_resume(entries: list[Message], reason: str) -> None:
    assert find_resume_point(entries) is None
    with pytest.raises(AgentResumeError) as caught:
        require_resume_point(entries)
    assert caught.value.reason == reason


def test_only_calls_of_the_last_answer_count() -> None:
    """A provider uses its call ids again: an old result answers no new call."""
    point = find_resume_point([USER, asked("c1"), result("c1"), said(), USER, asked("c1")])
    assert point is not None
    assert [call.id for call in point.unanswered_tool_calls] == ["c1"]

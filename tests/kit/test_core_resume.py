"""The table of what the end of a history means, and what resuming appends to it."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.core.errors import RESUME_REASONS, AgentResumeError
from outlast.core.resume import (
    CANCELLED_RESULT,
    CONTINUE_TEXT,
    INTERRUPTED_RESULT,
    NOT_APPROVED_RESULT,
    NOT_RUN_RESULT,
    RETRY_TEXT,
    ResumeKind,
    ResumePoint,
    ToolAnswer,
    close_open_calls,
    find_resume_point,
    for_model,
    repair,
    require_resume_point,
)
from outlast.core.transcript import CallRequest, Message, Role, StopReason, Transcript, open_calls

SYSTEM = Message(Role.SYSTEM, "be brief")
USER = Message(Role.USER, "hi")
INTERNAL = Message(Role.INTERNAL, "go on")
EMPTY = Message(Role.ASSISTANT, "")
CUT = Message(Role.ASSISTANT, "The three rea", stop=StopReason.MAX_OUTPUT)
THOUGHT = Message(Role.ASSISTANT, reasoning="The user greets me.")
PICTURE = Message(Role.ASSISTANT, [{"type": "image", "url": "x"}])


def said(text: str = "done", stop: StopReason = StopReason.STOP) -> Message:
    return Message(Role.ASSISTANT, text, stop=stop)


def asked(*ids: str, approval: bool = False, text: str = "", stop: StopReason = StopReason.TOOL_CALLS) -> Message:
    calls = tuple(CallRequest(id, f"tool_{id}", awaits_approval=approval) for id in ids)
    return Message(Role.ASSISTANT, text, calls, stop=stop)


def result(id: str, text: str = "42", *, failed: bool = False) -> Message:
    return Message(Role.TOOL, text, call_id=id, failed=failed)


WAITING = Message(Role.ASSISTANT, calls=(CallRequest("c1", "look"), CallRequest("c2", "pay", awaits_approval=True)))

POINTS = [
    # a user or internal message
    ([USER], ResumeKind.CALL_MODEL),
    ([INTERNAL], ResumeKind.CALL_MODEL),
    ([USER, said(), USER], ResumeKind.CALL_MODEL),
    ([USER, CUT, INTERNAL], ResumeKind.CALL_MODEL),
    ([USER, EMPTY, USER], ResumeKind.CALL_MODEL),
    ([USER, USER], ResumeKind.CALL_MODEL),  # BR-18: the same text twice is two turns
    ([SYSTEM, USER, SYSTEM], ResumeKind.CALL_MODEL),
    # tool results, all in, also cancelled ones
    ([USER, asked("c1", "c2"), result("c2"), result("c1")], ResumeKind.CALL_MODEL),
    ([USER, asked("c1"), result("c1", CANCELLED_RESULT, failed=True)], ResumeKind.CALL_MODEL),
    ([USER, asked("c1"), SYSTEM, result("c1"), SYSTEM], ResumeKind.CALL_MODEL),
    ([USER, asked("c1", "c2"), result("c1"), INTERNAL, result("c2")], ResumeKind.CALL_MODEL),
    ([USER, asked("c1"), USER, result("c1")], ResumeKind.CALL_MODEL),
    ([USER, asked("c1", approval=True), result("c1")], ResumeKind.CALL_MODEL),
    ([USER, asked("c1", text="Let me", stop=StopReason.MAX_OUTPUT), result("c1")], ResumeKind.CALL_MODEL),
    # a step the provider paused
    ([USER, said("wait", StopReason.PAUSED)], ResumeKind.CALL_MODEL),
    ([USER, said("", StopReason.PAUSED)], ResumeKind.CALL_MODEL),
    # tool calls without results
    ([USER, asked("c1")], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1"), SYSTEM], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1", "c2"), result("c1")], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1", "c2"), result("c1"), INTERNAL], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1"), USER], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1", approval=True), USER], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1"), result("c1"), said(), USER, asked("c1")], ResumeKind.RECOVER_TOOLS),
    *(([USER, asked("c1", text="Let me", stop=stop)], ResumeKind.RECOVER_TOOLS) for stop in StopReason),
    ([USER, asked("c1", approval=True, stop=StopReason.MAX_OUTPUT)], ResumeKind.RECOVER_TOOLS),
    ([USER, asked("c1", approval=True, stop=StopReason.INTERRUPTED)], ResumeKind.RECOVER_TOOLS),
    # an interrupted or empty response, a malformed call
    ([USER, said("hal", StopReason.INTERRUPTED)], ResumeKind.RETRY_RESPONSE),
    ([USER, said("", StopReason.INTERRUPTED), INTERNAL, said("", StopReason.INTERRUPTED)], ResumeKind.RETRY_RESPONSE),
    ([USER, said("hal", StopReason.ERROR)], ResumeKind.RETRY_RESPONSE),
    ([USER, EMPTY], ResumeKind.RETRY_RESPONSE),
    ([USER, said(" \n")], ResumeKind.RETRY_RESPONSE),
    ([USER, EMPTY, USER, EMPTY], ResumeKind.RETRY_RESPONSE),
    ([USER, said("", StopReason.INTERRUPTED), INTERNAL, EMPTY], ResumeKind.RETRY_RESPONSE),
    ([USER, asked("c1"), result("c1"), EMPTY], ResumeKind.RETRY_RESPONSE),
    ([USER, THOUGHT], ResumeKind.RETRY_RESPONSE),  # BR-16
    ([USER, said("", StopReason.TOOL_CALLS)], ResumeKind.RETRY_RESPONSE),
    ([USER, said("", StopReason.MALFORMED_CALL)], ResumeKind.RETRY_RESPONSE),
    ([USER, said("Let me", StopReason.MALFORMED_CALL)], ResumeKind.RETRY_RESPONSE),
    ([USER, said("", StopReason.MAX_OUTPUT)], ResumeKind.RETRY_RESPONSE),
    # a response that was cut by the output limit
    ([USER, CUT], ResumeKind.CONTINUE_RESPONSE),
    ([USER, CUT, INTERNAL, CUT], ResumeKind.CONTINUE_RESPONSE),  # BR-15: a second cut, too
    # an approval that nobody answered
    ([USER, asked("c1", approval=True)], ResumeKind.AWAIT_APPROVAL),
    ([USER, WAITING], ResumeKind.AWAIT_APPROVAL),
    ([USER, WAITING, result("c1"), SYSTEM], ResumeKind.AWAIT_APPROVAL),
]

REASONS = [
    ([], "empty"),
    ([SYSTEM], "empty"),
    ([USER, said()], "completed"),
    ([said("Welcome.")], "completed"),
    ([USER, said(), SYSTEM], "completed"),
    ([USER, PICTURE], "completed"),
    ([USER, EMPTY, EMPTY], "completed"),
    ([USER, EMPTY, INTERNAL, EMPTY], "completed"),
    ([USER, THOUGHT, INTERNAL, SYSTEM, THOUGHT], "completed"),
    ([USER, said("no", StopReason.REFUSED)], "refused"),
    ([USER, said("", StopReason.REFUSED)], "refused"),
    ([USER, said("no", StopReason.CONTENT_FILTER)], "refused"),
    ([USER, said("much", StopReason.CONTEXT_FULL)], "context_full"),
    ([USER, said("odd", StopReason.UNKNOWN)], "unknown_stop"),
    ([USER, result("c1")], "malformed"),
    ([USER, said(), USER, result("c1")], "malformed"),
    ([USER, asked("c1"), result("c2")], "malformed"),
    ([USER, asked("c1"), result("c2"), result("c1")], "malformed"),
    ([USER, asked("c1"), result("c1"), said(), result("c1")], "malformed"),
    ([USER, asked("c1"), result("c1"), result("c1")], "malformed"),
    ([USER, asked("c1"), result("c1"), result("c1"), USER], "malformed"),
    # BR-14: two calls of one id
    ([USER, asked("c1", "c1")], "malformed"),
    ([USER, asked("c1", "c1"), result("c1")], "malformed"),
    ([USER, asked("c1", "c1"), USER], "malformed"),
]


@pytest.mark.parametrize(("messages", "kind"), POINTS)
def test_resume_point(messages: list[Message], kind: ResumeKind) -> None:
    point = find_resume_point(messages)
    assert point is not None
    assert point.kind is kind
    assert point.description


@pytest.mark.parametrize(("messages", "reason"), REASONS)
def test_nothing_to_resume(messages: list[Message], reason: str) -> None:
    assert find_resume_point(messages) is None
    for refuse in (require_resume_point, repair):
        with pytest.raises(AgentResumeError) as caught:
            refuse(messages)
        assert caught.value.reason == reason
        assert str(caught.value) == f"this session cannot be resumed: {RESUME_REASONS[reason]}"


def test_every_reason_has_a_row() -> None:
    """But one: what awaits a person has a resume point."""
    assert {reason for _, reason in REASONS} == RESUME_REASONS.keys() - {"awaiting_approval"}


def test_a_stray_result_does_not_stop_a_conversation_that_went_on() -> None:
    assert require_resume_point([result("c0"), USER]).kind is ResumeKind.CALL_MODEL
    messages = [asked("c1"), result("c0"), USER]
    assert repair(messages) == [result("c1", INTERRUPTED_RESULT, failed=True)]


def test_only_calls_of_the_last_answer_count() -> None:
    """A provider uses its call ids again: an old result answers no new call."""
    point = find_resume_point([USER, asked("c1"), result("c1"), said(), USER, asked("c1")])
    assert point is not None
    assert [call.id for call in point.unanswered_tool_calls] == ["c1"]
    assert repair([asked("c1"), said(), USER]) == []


@pytest.mark.parametrize(
    ("point", "description"),
    [
        (
            ResumePoint(ResumeKind.RECOVER_TOOLS),
            "Tool calls have no result; each is answered, then the model is called.",
        ),
        (
            require_resume_point([asked("a")]),
            "Calls of tool_a have no result; each is answered, then the model is called.",
        ),
        (
            require_resume_point([asked("a", "b", "c"), result("b")]),
            "Calls of tool_a and tool_c have no result; each is answered, then the model is called.",
        ),
        (
            require_resume_point([asked("a", "b", "c", "d", "e")]),
            "Calls of tool_a, tool_b, tool_c and 2 more have no result; each is answered, then the model is called.",
        ),
        (ResumePoint(ResumeKind.AWAIT_APPROVAL), "A person has to decide first."),
        (require_resume_point([WAITING]), "A person has to decide about pay first."),
        (
            ResumePoint(ResumeKind.AWAIT_APPROVAL, (CallRequest("1", "pay"), CallRequest("2", "pay"))),
            "A person has to decide about pay first.",
        ),
    ],
)
def test_a_description_names_the_tools(point: ResumePoint, description: str) -> None:
    assert point.description == description


@pytest.mark.parametrize(
    ("messages", "added"),
    [
        ([USER], []),
        ([USER, said("wait", StopReason.PAUSED)], []),
        ([USER, asked("c1"), result("c1")], []),
        ([USER, EMPTY], [Message(Role.INTERNAL, RETRY_TEXT)]),
        ([USER, THOUGHT], [Message(Role.INTERNAL, RETRY_TEXT)]),
        ([USER, CUT, INTERNAL, CUT], [Message(Role.INTERNAL, CONTINUE_TEXT)]),
        (
            [USER, asked("c1", "c2", "c3"), result("c2")],
            [result("c1", INTERRUPTED_RESULT, failed=True), result("c3", INTERRUPTED_RESULT, failed=True)],
        ),
        ([asked("c1", approval=True), USER], [result("c1", NOT_APPROVED_RESULT, failed=True)]),
    ],
)
def test_repair(messages: list[Message], added: list[Message]) -> None:
    assert repair(messages) == added


def test_a_call_gets_the_outcome_that_is_known_of_it() -> None:
    outcomes = {
        0: ToolAnswer("21 °C", failed=False),
        1: ToolAnswer("no such city"),
        2: ToolAnswer(NOT_RUN_RESULT),
        4: ToolAnswer("for a call that has its result"),
        9: ToolAnswer("for no call"),
    }
    assert repair([USER, asked("a", "b", "c", "d", "e"), result("e")], outcomes) == [
        result("a", "21 °C"),
        result("b", "no such city", failed=True),
        result("c", NOT_RUN_RESULT, failed=True),
        result("d", INTERRUPTED_RESULT, failed=True),
    ]


def test_nothing_is_added_while_a_person_has_to_decide() -> None:
    with pytest.raises(AgentResumeError) as caught:
        repair([USER, WAITING], {0: ToolAnswer("known")})
    assert caught.value.reason == "awaiting_approval"
    rejected = ToolAnswer("rejected: too much")
    assert repair([USER, WAITING], {1: rejected}) == [
        result("c1", INTERRUPTED_RESULT, failed=True),
        result("c2", "rejected: too much", failed=True),
    ]


def test_a_new_message_closes_open_calls_first() -> None:
    """BR-11."""
    closing = close_open_calls([USER, WAITING], outcomes={0: ToolAnswer("42", failed=False)})
    assert closing == [result("c1", "42"), result("c2", NOT_APPROVED_RESULT, failed=True)]
    assert require_resume_point([USER, WAITING, *closing, USER]).kind is ResumeKind.CALL_MODEL
    assert close_open_calls([USER, said()]) == close_open_calls([USER, THOUGHT]) == close_open_calls([]) == []


def test_cancelling_answers_open_calls_as_cancelled() -> None:
    closing = close_open_calls([USER, asked("c1", "c2"), result("c1")], ToolAnswer(CANCELLED_RESULT))
    assert closing == [result("c2", CANCELLED_RESULT, failed=True)]


def test_two_calls_of_one_id_get_two_results_when_the_conversation_goes_on() -> None:
    """BR-14."""
    messages = [USER, asked("c1", "c1")]
    closing = close_open_calls(messages, outcomes={1: ToolAnswer("B", failed=False)})
    assert closing == [result("c1", INTERRUPTED_RESULT, failed=True), result("c1", "B")]
    assert require_resume_point([*messages, *closing, USER]).kind is ResumeKind.CALL_MODEL


def test_a_cut_answer_can_be_continued_again_and_again() -> None:
    """BR-15: the partial text stays where it is, once."""
    messages = [USER]
    for number in range(5):
        messages.append(said(f"part {number}", StopReason.MAX_OUTPUT))
        assert require_resume_point(messages).kind is ResumeKind.CONTINUE_RESPONSE
        messages += repair(messages)
        assert require_resume_point(messages).kind is ResumeKind.CALL_MODEL
    assert [one.text for one in messages if one.role is Role.ASSISTANT] == [f"part {number}" for number in range(5)]


IDS = st.sampled_from("abc")
STOPS = st.sampled_from(StopReason)
TEXTS = st.sampled_from(["", " ", "x"])
CALLS = st.builds(CallRequest, IDS, st.just("t"), awaits_approval=st.booleans())
MESSAGES = st.one_of(
    st.sampled_from([SYSTEM, USER, INTERNAL, PICTURE, THOUGHT]),
    st.builds(said, TEXTS, STOPS),
    st.builds(Message, st.just(Role.ASSISTANT), TEXTS, st.lists(CALLS, min_size=1, max_size=3).map(tuple), stop=STOPS),
    st.builds(result, IDS),
    st.builds(result, IDS),
)
TRANSCRIPTS = st.lists(MESSAGES, max_size=8)
OUTCOMES = st.dictionaries(st.integers(0, 2), st.builds(ToolAnswer, TEXTS, st.booleans()))


def results_fit(messages: Transcript) -> bool:
    """Say whether the last answer has exactly one result for each call."""
    last = max((at for at, one in enumerate(messages) if one.role is Role.ASSISTANT), default=None)
    if last is None:
        return True
    calls = Counter[str | None](call.id for call in messages[last].calls)
    results = Counter(one.call_id for one in messages[last + 1 :] if one.role is Role.TOOL)
    return all(results[id] == count for id, count in calls.items())


def reason_of(messages: Sequence[Message]) -> str | None:
    try:
        require_resume_point(messages)
    except AgentResumeError as error:
        return error.reason
    return None


@given(TRANSCRIPTS)
def test_any_history_has_a_point_or_a_reason(messages: list[Message]) -> None:
    point, reason = find_resume_point(messages), reason_of(messages)
    assert (point is None) == (reason is not None)
    assert reason is None or reason in RESUME_REASONS
    if point is not None:
        assert list(point.unanswered_tool_calls) == list(open_calls(messages).values())
        opened = point.kind in (ResumeKind.RECOVER_TOOLS, ResumeKind.AWAIT_APPROVAL)
        assert bool(point.unanswered_tool_calls) == opened


@given(TRANSCRIPTS, OUTCOMES)
def test_what_is_repaired_is_ready_for_the_model(messages: list[Message], outcomes: dict[int, ToolAnswer]) -> None:
    """So nothing loops: the second repair has nothing to do."""
    before = list(messages)
    try:
        added = repair(messages, outcomes)
    except AgentResumeError:
        return
    finally:
        assert messages == before
    repaired = [*messages, *added]
    assert results_fit(repaired)
    assert require_resume_point(repaired).kind is ResumeKind.CALL_MODEL
    assert repair(repaired, outcomes) == []


@given(TRANSCRIPTS, OUTCOMES)
def test_a_new_message_goes_on_from_any_history(messages: list[Message], outcomes: dict[int, ToolAnswer]) -> None:
    """But from one that has more results than calls: only a later answer leaves that behind."""
    closed = [*messages, *close_open_calls(messages, outcomes=outcomes), USER]
    assert not open_calls(closed)
    assert reason_of(closed) == (None if results_fit(closed) else "malformed")
    if results_fit(closed):
        assert require_resume_point(closed).kind is ResumeKind.CALL_MODEL
    assert reason_of([*closed, said()]) == "completed"


@given(TRANSCRIPTS)
def test_what_a_model_is_sent_is_what_providers_accept(messages: list[Message]) -> None:
    # BR-16, BR-19
    before, sent = list(messages), for_model(messages)
    assert messages == before
    assert for_model(sent) == sent
    rest, spoken = iter(sent), [one for one in messages if one.role not in (Role.ASSISTANT, Role.TOOL)]
    for one in rest:
        assert one.role is not Role.TOOL
        assert one.role is not Role.ASSISTANT or one.calls or not one.silent
        assert [next(rest).call_id for _ in one.calls] == [call.id for call in one.calls]
    assert [one for one in sent if one.role not in (Role.ASSISTANT, Role.TOOL)] == spoken


def test_a_result_behind_a_later_message_is_sent_behind_its_call() -> None:
    asking = asked("a", "b")
    sent = for_model([USER, asking, result("b"), USER, result("a", "late"), INTERNAL])
    assert sent == [USER, asking, result("a", "late"), result("b"), USER, INTERNAL]


def test_a_call_that_nobody_ever_answered_is_sent_with_the_interrupted_result() -> None:
    asking = asked("a")
    missing = Message(Role.TOOL, INTERRUPTED_RESULT, call_id="a", failed=True)
    assert for_model([USER, asking, USER, said()]) == [USER, asking, missing, USER, said()]

"""How a history was interrupted, and so what resuming it does.

A response with calls is judged by its calls, whatever stopped it. A provider refuses a history with an open call, so that
asking again, or to go on, would fail: the calls are answered first. None of them is run by resuming. In a response that
was cut (`MAX_OUTPUT`, `MALFORMED_CALL`, `INTERRUPTED`, `ERROR`) the last call may be cut in a place where it still looks
whole, so that no person is asked to approve one either: they are answered, and the model calls again what it still wants.

What a user says after open calls is kept, and the calls are answered behind it, for nothing earlier is changed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, assert_never

from outlast.core import times
from outlast.core.errors import AgentResumeError
from outlast.core.transcript import (
    CallRequest,
    Content,
    Message,
    Role,
    StopReason,
    Transcript,
    last_answer,
    open_calls,
)

INTERRUPTED_RESULT = (
    "The process stopped while this call was under way. The call may have finished, finished in part, or never begun, "
    "so its effects may or may not exist. Look at the current state before you call it again."
)
"""The answer to a call whose outcome nobody knows. It is marked as failed."""

NOT_RUN_RESULT = "The run stopped before this call began. It did not run, so it has no effects."
"""The answer to a call that provably never began. It is marked as failed."""

CANCELLED_RESULT = (
    "The run was cancelled before this call had a result. The call may have finished, finished in part, or never begun, "
    "so its effects may or may not exist. Look at the current state before you call it again."
)
"""The answer to a call that was open when its run was cancelled. It is marked as failed."""

NOT_APPROVED_RESULT = "Nobody approved this call. It did not run, so it has no effects."
"""The answer to a call whose approval was still open when the conversation went on. It is marked as failed."""

REJECTED_RESULT = "A person refused this call. It did not run, so it has no effects."
"""The answer to a call that a person decided against. It is marked as failed."""

RETRY_TEXT = (
    "Your last response was interrupted and cannot be used. Do not continue it: give the whole response again from the "
    "beginning."
)
CONTINUE_TEXT = (
    "Your last response was cut off by the output limit. Go on exactly where it stopped, without repeating anything and "
    "without an introduction."
)


class ResumeKind(StrEnum):
    """What resuming does first."""

    CALL_MODEL = "call_model"
    RECOVER_TOOLS = "recover_tools"
    RETRY_RESPONSE = "retry_response"
    CONTINUE_RESPONSE = "continue_response"
    AWAIT_APPROVAL = "await_approval"


NAMED_TOOLS = 3
"""Names in a description; of more only the number is told."""

_CUT = frozenset({StopReason.MAX_OUTPUT, StopReason.MALFORMED_CALL, StopReason.INTERRUPTED, StopReason.ERROR})

_DESCRIPTIONS = {
    ResumeKind.CALL_MODEL: "The model has not answered yet; it is called.",
    ResumeKind.RECOVER_TOOLS: "Tool calls have no result; each is answered, then the model is called.",
    ResumeKind.RETRY_RESPONSE: "The last response cannot be used; the model is asked for it again.",
    ResumeKind.CONTINUE_RESPONSE: "The last response was cut off; the model is asked to go on.",
    ResumeKind.AWAIT_APPROVAL: "A person has to decide first.",
}


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an interrupted history stands."""

    kind: ResumeKind
    unanswered_tool_calls: tuple[CallRequest, ...] = ()
    interrupted_at: int | None = None
    """When the last run ended, or, where its process died, stored its last: milliseconds since 1970 UTC."""
    cause: str | None = None
    """`worker_died`, `cancelled`, `provider_error`, `shutdown` or `unknown`."""
    partial_text: str | None = None
    """What was streamed before it stopped."""
    approvals: tuple[Mapping[str, Any], ...] = ()
    """What a person has to decide, as in the `interrupt` of the run that asked."""

    @property
    def description(self) -> str:
        """A sentence for people, which names the tools whose calls are open."""
        calls = self.unanswered_tool_calls
        if self.kind is ResumeKind.AWAIT_APPROVAL:
            calls = tuple(call for call in calls if call.awaits_approval) or calls
        tools = _listed([call.name for call in calls])
        match self.kind:
            case ResumeKind.RECOVER_TOOLS if tools:
                return f"Calls of {tools} have no result; each is answered, then the model is called."
            case ResumeKind.AWAIT_APPROVAL if tools:
                return f"A person has to decide about {tools} first."
        return _DESCRIPTIONS[self.kind]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a call is answered with: the result of its tool, or, marked as failed, why there is none."""

    content: Content
    failed: bool = True


def find_resume_point(transcript: Transcript) -> ResumePoint | None:
    """Return where a history was interrupted, or None when there is nothing to resume."""
    found = _judge(transcript)
    return found if isinstance(found, ResumePoint) else None


def require_resume_point(transcript: Transcript) -> ResumePoint:
    """Return where a history was interrupted. Raise AgentResumeError with the reason when nothing can be resumed."""
    found = _judge(transcript)
    if isinstance(found, ResumePoint):
        return found
    raise AgentResumeError(found)


def repair(transcript: Transcript, outcomes: Mapping[int, ToolAnswer] | None = None) -> list[Message]:
    """Return what resuming appends to a history before it calls the model; nothing earlier is changed.

    `outcomes` has what the journal knows of the calls of the last answer, by their place in it, for providers use their
    ids again. An open call without one gets the interrupted result, or, where an approval was still open, that it was not
    approved. Raise AgentResumeError with the reason when nothing can be resumed, and with `awaiting_approval` while a
    call that waits for a person has no outcome.
    """
    known, point = outcomes or {}, require_resume_point(transcript)
    match point.kind:
        case ResumeKind.CALL_MODEL:
            return []
        case ResumeKind.RETRY_RESPONSE:
            return [Message(Role.INTERNAL, RETRY_TEXT)]
        case ResumeKind.CONTINUE_RESPONSE:
            return [Message(Role.INTERNAL, CONTINUE_TEXT)]
        case ResumeKind.AWAIT_APPROVAL:
            if any(call.awaits_approval and place not in known for place, call in open_calls(transcript).items()):
                raise AgentResumeError("awaiting_approval")
            return close_open_calls(transcript, outcomes=known)
        case ResumeKind.RECOVER_TOOLS:
            return close_open_calls(transcript, outcomes=known)
        case _:
            assert_never(point.kind)


def close_open_calls(
    transcript: Transcript,
    answer: ToolAnswer | None = None,
    *,
    outcomes: Mapping[int, ToolAnswer] | None = None,
) -> list[Message]:
    """Return a result for each open call of the last answer, to be put before a new message or where a run is cancelled.

    `outcomes` is that of `repair`. What it does not know gets `answer`, by default the interrupted result; a call whose
    approval is open was not approved and did not run. Also a history that cannot be resumed can be closed.
    """
    known, rest = outcomes or {}, answer or ToolAnswer(INTERRUPTED_RESULT)
    closed = []
    for place, call in open_calls(transcript).items():
        given = known.get(place) or (ToolAnswer(NOT_APPROVED_RESULT) if call.awaits_approval else rest)
        closed.append(Message(Role.TOOL, given.content, call_id=call.id, failed=given.failed))
    return closed


def for_model(transcript: Transcript) -> list[Message]:
    """Return a history as providers accept it; what is stored stays as it is.

    Each call has one result right behind its answer, in the order of the calls: a result that came later is moved there,
    one that is missing is the interrupted result. A result that answers no call, and an answer that says nothing, are
    left out.
    """
    seen: list[Message] = []
    starts = [at for at, message in enumerate(transcript) if message.role is Role.ASSISTANT]
    for first, behind in zip([0, *starts], [*starts, len(transcript)], strict=True):
        part = transcript[first:behind]
        answers = [message for message in part if message.role is Role.TOOL]
        rest = [message for message in part if message.role is not Role.TOOL]
        if rest and rest[0].role is Role.ASSISTANT:
            answer = rest.pop(0)
            if answer.calls or not answer.silent:
                seen.append(answer)
            seen.extend(_taken(answers, call) for call in answer.calls)
        seen.extend(rest)
    return seen


def _taken(answers: list[Message], call: CallRequest) -> Message:
    """Take the result of a call out of some results."""
    found = next((message for message in answers if message.call_id == call.id), None)
    if found is None:
        return Message(Role.TOOL, INTERRUPTED_RESULT, call_id=call.id, failed=True)
    answers.remove(found)
    return found


def _judge(transcript: Transcript) -> ResumePoint | str:
    """Return the point, or the reason why there is none."""
    messages = [message for message in transcript if message.role is not Role.SYSTEM]
    if not messages:
        return "empty"
    last = messages[-1]
    if last.role is Role.ASSISTANT and not last.calls:
        return _judge_response(messages, last)
    asked = last_answer(messages)
    if asked is None:
        return _judge_calls(Message(Role.ASSISTANT), messages)
    return _judge_calls(messages[asked], messages[asked + 1 :])


def _judge_calls(answer: Message, since: Sequence[Message]) -> ResumePoint | str:
    """Judge a history by the calls of its last answer and what was added since."""
    left = open_calls([answer, *since])
    if _is_malformed(answer, since, closed=not left):
        return "malformed"
    if not left:
        return ResumePoint(ResumeKind.CALL_MODEL)
    # A user who goes on without deciding has decided: the call is not approved.
    decidable = answer.stop not in _CUT and not any(message.role is Role.USER for message in since)
    waiting = decidable and any(call.awaits_approval for call in left.values())
    return ResumePoint(ResumeKind.AWAIT_APPROVAL if waiting else ResumeKind.RECOVER_TOOLS, tuple(left.values()))


def _is_malformed(answer: Message, since: Sequence[Message], *, closed: bool) -> bool:
    """Say whether calls and results do not belong together.

    A stray result, and calls that share an id, are let pass when they are behind a later message: the conversation went
    on, and must be able to again after a crash.
    """
    asked = Counter(call.id for call in answer.calls)
    results = Counter(message.call_id for message in since if message.role is Role.TOOL)
    if any(results[id] > count for id, count in asked.items()):
        return True
    spoken = max((at for at, message in enumerate(since) if message.role in (Role.USER, Role.INTERNAL)), default=-1)
    if any(message.call_id not in asked for message in since[spoken + 1 :]):
        return True
    went_on = closed and spoken >= 0 and spoken == len(since) - 1
    return len(asked) < len(answer.calls) and not went_on


def _judge_response(messages: Sequence[Message], last: Message) -> ResumePoint | str:
    """Judge a history that ends with a response without calls."""
    match last.stop:
        case StopReason.PAUSED:
            return ResumePoint(ResumeKind.CALL_MODEL)
        case StopReason.INTERRUPTED | StopReason.ERROR | StopReason.MALFORMED_CALL:
            return ResumePoint(ResumeKind.RETRY_RESPONSE)
        case StopReason.MAX_OUTPUT:
            # Where all of the output went into reasoning there is nothing to go on from.
            return ResumePoint(ResumeKind.RETRY_RESPONSE if last.silent else ResumeKind.CONTINUE_RESPONSE)
        case StopReason.REFUSED | StopReason.CONTENT_FILTER:
            return "refused"
        case StopReason.CONTEXT_FULL:
            return "context_full"
        case StopReason.UNKNOWN:
            return "unknown_stop"
        case StopReason.STOP | StopReason.TOOL_CALLS:
            over = not last.silent or _is_finished_and_silent(messages[:-1])
            return "completed" if over else ResumePoint(ResumeKind.RETRY_RESPONSE)
        case _:
            assert_never(last.stop)


def _is_finished_and_silent(before: Sequence[Message]) -> bool:
    """Say whether the model had nothing to say just before, too. What a user says begins anew; a cut says nothing."""
    last = next((message for message in reversed(before) if message.role is not Role.INTERNAL), None)
    if last is None or last.role is not Role.ASSISTANT or last.calls:
        return False
    return last.silent and last.stop in (StopReason.STOP, StopReason.TOOL_CALLS)


def _listed(names: Sequence[str]) -> str:
    """Join names for a sentence, each once: `a, b, c and 2 more`."""
    unique = [name for name in dict.fromkeys(names) if name]
    named, more = unique[:NAMED_TOOLS], len(unique) - NAMED_TOOLS
    if more > 0:
        return f"{', '.join(named)} and {more} more"
    return " and ".join(part for part in (", ".join(named[:-1]), *named[-1:]) if part)


def point_as_json(point: ResumePoint) -> dict[str, Any]:
    """Return a resume point as the HTTP API shows it."""
    return {
        "kind": point.kind, "description": point.description, "cause": point.cause,
        "partial_text": point.partial_text, "approvals": list(point.approvals),
        "unanswered_tool_calls": [asdict(one) for one in point.unanswered_tool_calls],
        "interrupted_at": None if point.interrupted_at is None else times.shown(point.interrupted_at),
    }  # fmt: skip


def point_of_json(value: Mapping[str, Any]) -> ResumePoint:
    """Read a resume point as the HTTP API shows it."""
    at = value.get("interrupted_at")
    calls = [
        CallRequest(call["id"], call["name"], call.get("arguments", ""), bool(call.get("awaits_approval")))
        for call in value.get("unanswered_tool_calls", ())
    ]
    return ResumePoint(
        ResumeKind(value["kind"]),
        tuple(calls),
        None if at is None else times.milliseconds(at),
        value.get("cause"),
        value.get("partial_text"),
        tuple(value.get("approvals", ())),
    )

"""How a history was interrupted, and so what resuming it does."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from outlast.core.errors import AgentResumeError
from outlast.core.transcript import CallRequest, Message, Role, StopReason, Transcript, open_calls

INTERRUPTED_RESULT = (
    "The process stopped while this call was under way. The call may have finished, finished in part, or never begun, "
    "so its effects may or may not exist. Look at the current state before you call it again."
)
"""The answer to a call whose outcome nobody knows. It is marked as failed."""

NOT_RUN_RESULT = "The process stopped before this call began. It did not run, so it has no effects."
"""The answer to a call that provably never began. It is marked as failed."""

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


_DESCRIPTIONS = {
    ResumeKind.CALL_MODEL: "The model has not answered yet; it is called.",
    ResumeKind.RECOVER_TOOLS: "Tool calls have no result; each is answered, then the model is called.",
    ResumeKind.RETRY_RESPONSE: "The last response cannot be used; the model is asked for it again.",
    ResumeKind.CONTINUE_RESPONSE: "The last response was cut off; the model is asked to go on.",
    ResumeKind.AWAIT_APPROVAL: "A person has to decide first.",
}


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where an interrupted history stands. `description` is a sentence for people."""

    kind: ResumeKind
    unanswered_tool_calls: tuple[CallRequest, ...] = ()
    interrupted_at: int | None = None
    """Milliseconds since 1970 UTC, where the record of the run says it."""
    cause: str | None = None
    """`worker_died`, `cancelled`, `provider_error`, `shutdown` or `unknown`."""
    partial_text: str | None = None
    """What was streamed before it stopped."""

    @property
    def description(self) -> str:
        return _DESCRIPTIONS[self.kind]


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


def _judge(transcript: Transcript) -> ResumePoint | str:
    """Return the point, or the reason why there is none."""
    entries = [entry for entry in transcript if entry.role is not Role.SYSTEM]
    if not entries:
        return "empty"
    last = entries[-1]
    if last.role is Role.ASSISTANT and not last.calls:
        return _judge_response(entries, last)
    if last.role in (Role.USER, Role.INTERNAL):
        return ResumePoint(ResumeKind.CALL_MODEL)
    return _judge_calls(entries)


def _judge_calls(entries: list[Message]) -> ResumePoint | str:
    """The history ends with tool calls or with results of some of them."""
    asked = max((index for index, entry in enumerate(entries) if entry.role is Role.ASSISTANT), default=None)
    if asked is None:
        return "malformed"
    ids = [call.id for call in entries[asked].calls]
    results = [entry.call_id for entry in entries[asked + 1 :] if entry.role is Role.TOOL]
    unique = len(set(ids)) == len(ids) and len(set(results)) == len(results)
    if not unique or not set(results) <= set(ids):
        return "malformed"
    left = tuple(open_calls(entries).values())
    if not left:
        return ResumePoint(ResumeKind.CALL_MODEL)
    waiting = any(call.awaits_approval for call in left)
    return ResumePoint(ResumeKind.AWAIT_APPROVAL if waiting else ResumeKind.RECOVER_TOOLS, left)


def _judge_response(entries: list[Message], last: Message) -> ResumePoint | str:
    match last.stop:
        case StopReason.PAUSED:
            return ResumePoint(ResumeKind.CALL_MODEL)
        case StopReason.INTERRUPTED | StopReason.ERROR | StopReason.MALFORMED_CALL:
            return ResumePoint(ResumeKind.RETRY_RESPONSE)
        case StopReason.MAX_OUTPUT:
            return ResumePoint(ResumeKind.CONTINUE_RESPONSE)
        case StopReason.REFUSED | StopReason.CONTENT_FILTER:
            return "refused"
        case StopReason.CONTEXT_FULL:
            return "context_full"
        case StopReason.UNKNOWN:
            return "unknown_stop"
    return "completed" if last.text or _empty_before(entries) else ResumePoint(ResumeKind.RETRY_RESPONSE)


def _empty_before(entries: list[Message]) -> bool:
    """Say whether the response before the last one was empty too: then the model has nothing to say."""
    said = [entry for entry in entries if entry.role is Role.ASSISTANT]
    return len(said) > 1 and not said[-2].text and not said[-2].calls


def point_of_json(value: Mapping[str, Any]) -> ResumePoint:
    """Read a resume point as the HTTP API shows it."""
    at = value.get("interrupted_at")
    return ResumePoint(
        ResumeKind(value["kind"]),
        tuple(CallRequest(call["id"], call["name"]) for call in value.get("unanswered_tool_calls", ())),
        None if at is None else round(datetime.fromisoformat(at).timestamp() * 1000),
        value.get("cause"),
        value.get("partial_text"),
    )

"""A conversation in neutral terms: just what the rules about interruptions need to know."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Who wrote an entry. `internal` entries are added by a resume and reach providers as user messages."""

    SYSTEM = "system"
    USER = "user"
    INTERNAL = "internal"
    ASSISTANT = "assistant"
    TOOL = "tool"


class StopReason(StrEnum):
    """Why a model stopped, in one vocabulary for all providers."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    MAX_OUTPUT = "length"
    PAUSED = "paused"
    REFUSED = "refusal"
    CONTENT_FILTER = "content_filter"
    CONTEXT_FULL = "context_full"
    MALFORMED_CALL = "malformed_call"
    INTERRUPTED = "aborted"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call a model asked for. `id` is the provider's and need not be unique."""

    id: str
    name: str
    awaits_approval: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """One message. `call_id` is set for tool results, `calls` and `stop` for what a model said."""

    role: Role
    text: str = ""
    calls: tuple[CallRequest, ...] = ()
    call_id: str | None = None
    stop: StopReason = StopReason.STOP


Transcript = Sequence[Entry]


def open_calls(transcript: Transcript) -> list[CallRequest]:
    """Return the calls of the last assistant entry that have no result; earlier entries do not count."""
    last = max((index for index, entry in enumerate(transcript) if entry.role is Role.ASSISTANT), default=None)
    if last is None:
        return []
    answered = [entry.call_id for entry in transcript[last + 1 :] if entry.role is Role.TOOL]
    left = []
    for call in transcript[last].calls:
        if call.id in answered:
            answered.remove(call.id)
        else:
            left.append(call)
    return left

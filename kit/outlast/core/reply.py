"""What a run ended with, as whoever asked for it sees it: the same in process and over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.core.errors import RESUME_REASONS, AgentResumeError, RunFailed


@dataclass(frozen=True, slots=True)
class Reply:
    """How a run ended. `interrupt` says what a person has to decide before the session goes on.

    `text` is the last that the agent said, also of a run that waits for a person.
    """

    invocation_id: str
    text: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, Any] | None = None
    stop_reason: str | None = None
    interrupt: Mapping[str, Any] | None = None
    output: Any = None
    """All that the agent returned."""

    @classmethod
    def of(
        cls,
        id: str,
        *,
        output: Any = None,
        interrupt: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> "Reply":
        """Make the reply of what a run ended with."""
        said = output if isinstance(output, Mapping) else interrupt or {}
        return cls(
            id, str(said.get("text", "")), said.get("messages", ()), said.get("usage", usage), said.get("stop_reason"),
            interrupt, output,
        )  # fmt: skip


def ended(
    id: str,
    status: str,
    *,
    output: Any = None,
    error: Mapping[str, str] | None = None,
    interrupt: Mapping[str, Any] | None = None,
    usage: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the last event of a stream; it has the reply, or the error."""
    event: dict[str, Any] = {"type": "agent.run.finished", "invocation_id": id, "status": status, "reply": None}
    if status == "failed":
        return event | {"error": dict(error or {})}
    reply = Reply.of(id, output=output, interrupt=interrupt, usage=usage)
    return event | {"output": output, "interrupt": interrupt, "reply": reply}


def reply_of(event: Mapping[str, Any]) -> Reply:
    """Return the reply of the last event. Raise RunFailed or AgentResumeError for a run that failed."""
    if (error := event.get("error")) is not None:
        if error["code"] in RESUME_REASONS:
            raise AgentResumeError(error["code"], error["message"])
        raise RunFailed(error["code"], error["message"])
    reply: Reply = event["reply"]
    return reply

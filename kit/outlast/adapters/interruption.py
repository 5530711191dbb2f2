"""What the record of a session's last run adds to its resume point: when and why it ended, and what was said until then."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from outlast.adapters.approvals import shown
from outlast.core import jsontext
from outlast.core.records import ApprovalStatus, Invocation, Status
from outlast.core.resume import ResumeKind, ResumePoint
from outlast.store.store import Store

PAGE = 500

_CAUSES = {
    "cancelled": "cancelled",
    "timeout": "cancelled",
    "attempts_exhausted": "worker_died",
    "interrupted_without_recovery": "worker_died",
}


async def explained(store: Store, principal: str, session_id: str, point: ResumePoint) -> ResumePoint:
    """Return the point with what the last run of the session tells. Reads only."""
    found = await store.read.listed(
        principal, session_id=session_id, status=None, agent=None, metadata={}, before=None, limit=1
    )
    if point.kind is ResumeKind.AWAIT_APPROVAL:
        waiting = await store.read.approvals_listed(
            principal, status=ApprovalStatus.OPEN, session_id=session_id, before=None, limit=PAGE
        )
        point = replace(point, approvals=(*map(shown, reversed(waiting)), *point.approvals))
    if not found or found[0].status is Status.COMPLETED:
        return point
    return replace(
        point,
        interrupted_at=found[0].finished_at,
        cause=_cause(found[0]),
        partial_text=await _unfinished_text(store, found[0].number),
    )


def _cause(run: Invocation) -> str | None:
    if run.status is Status.INTERRUPTED:
        return None
    if not run.status.final:
        # Somebody asks while the run is not final: in a process that found its worker dead.
        return "worker_died"
    code = jsontext.decode(run.error)["code"] if run.error is not None else ""
    return _CAUSES.get(code, "provider_error" if code.startswith("provider_") else "unknown")


async def _unfinished_text(store: Store, number: int) -> str | None:
    """Return the text of the last answer that was streamed and is in no history."""
    said, after = _Said(), 0
    while page := await store.read.events(number, after=after, limit=PAGE):
        after = page[-1].position
        for entry in page:
            if '"type":"agent.' in entry.text:
                said.take(jsontext.decode(entry.text))
    return said.text or None


class _Said:
    """The text of the newest answer, as long as it is not stored."""

    def __init__(self) -> None:
        self.text = ""
        self._texts: set[str] = set()

    def take(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"type": "agent.message.started"}:
                self.text = ""
            case {"type": "agent.part.started", "kind": "text", "part_id": str(part)}:
                self._texts.add(part)
            case {"type": "agent.part.delta", "part_id": str(part), "delta": str(delta)} if part in self._texts:
                self.text += delta
            case {"type": "agent.message.finished", "stored": True}:
                self.text = ""

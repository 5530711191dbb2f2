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
    if not found:
        return point
    run = found[0]
    if run.status is Status.COMPLETED:
        return replace(point, interrupted_at=run.finished_at)
    said = await _said(store, run.number)
    return replace(
        point,
        interrupted_at=run.finished_at or said.at or run.started_at,
        cause=_cause(run),
        partial_text=said.text or None,
    )


def _cause(run: Invocation) -> str | None:
    if run.status is Status.INTERRUPTED:
        return None
    if not run.status.final:
        # Somebody asks while the run is not final, in process: its worker is dead, or handed it back.
        handed_back = run.status is Status.QUEUED and run.attempt > 0 and not run.suspect
        return "shutdown" if handed_back else "worker_died"
    code = jsontext.decode(run.error)["code"] if run.error is not None else ""
    return _CAUSES.get(code, "provider_error" if code.startswith("provider_") else "unknown")


async def _said(store: Store, number: int) -> "_Said":
    """Read what a run said last."""
    said, after = _Said(), 0
    while page := await store.read.events(number, after=after, limit=PAGE):
        after, said.at = page[-1].position, page[-1].at
        for entry in page:
            if '"type":"agent.' in entry.text:
                said.take(jsontext.decode(entry.text))
    return said


class _Said:
    """The text of the newest answer, as long as it is in no history, and when the last event was stored."""

    def __init__(self) -> None:
        self.text = ""
        self.at: int | None = None
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

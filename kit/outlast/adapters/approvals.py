"""Decisions of people about tool calls, for every adapter: asked once, decided once, bound to the arguments shown.

A run that asks stores the question with the model's answer, and ends `interrupted`. A later run of the session brings
the decisions: `{"decisions": [{"id", "type": "approve" | "edit" | "reject", …}]}`. Nothing runs before they are stored.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from outlast.adapters.events import Event
from outlast.adapters.history import History
from outlast.adapters.inputs import refuse
from outlast.adapters.journal import Outcome, ToolCall
from outlast.core import jsontext
from outlast.core.errors import RunFailed
from outlast.core.records import Approval, ApprovalStatus, Interrupt
from outlast.core.resume import NOT_APPROVED_RESULT, REJECTED_RESULT
from outlast.engine.context import InvocationContext
from outlast.store import approvals
from outlast.store.grouped import Part

EXPECTED = '{"resume": {"decisions": [{"id": "…", "type": "approve"}]}}, where type is approve, edit or reject'
NOT_GIVEN = object()


class DecisionType(StrEnum):
    """What a person decided."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision. `arguments` are what to run with, and of an approval what was shown, where the client says it."""

    id: str
    type: DecisionType
    arguments: Any = NOT_GIVEN
    message: str | None = None

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"type": self.type.value}
        if self.arguments is not NOT_GIVEN:
            shown["arguments"] = self.arguments
        return shown | ({} if self.message is None else {"message": self.message})


def parse(value: Any) -> list[Decision]:
    """Read the decisions of an input. Raise RunFailed (`invalid_input`) that says what is accepted."""
    found = value.get("decisions") if isinstance(value, Mapping) and set(value) == {"decisions"} else None
    if not isinstance(found, list) or not found:
        raise refuse("no decisions in it", EXPECTED)
    decisions = [_decision(one) for one in found]
    if len({one.id for one in decisions}) < len(decisions):
        raise refuse("two decisions about one call", EXPECTED)
    return decisions


def _decision(value: Any) -> Decision:
    if not isinstance(value, Mapping) or not isinstance(value.get("id"), str):
        raise refuse("a decision without an id", EXPECTED)
    if value.get("type") not in set(DecisionType):
        raise refuse(f"a decision of the type {value.get('type')!r}", EXPECTED)
    if unknown := set(value) - {"id", "type", "arguments", "message"}:
        raise refuse(f"a decision with {sorted(map(str, unknown))}", EXPECTED)
    kind, message = DecisionType(value["type"]), value.get("message")
    if kind is DecisionType.EDIT and "arguments" not in value:
        raise refuse("an edit without arguments", EXPECTED)
    if message is not None and not isinstance(message, str):
        raise refuse("a message of a decision that is no text", EXPECTED)
    return Decision(value["id"], kind, value.get("arguments", NOT_GIVEN), message)


def ask(scope: str, calls: Sequence[ToolCall]) -> tuple[list[Part], list[Event]]:
    """Return what asks a person about calls, for the write that stores the model's answer."""
    if not calls:
        return [], []
    asked = [(call.key, call.call_id, call.name, jsontext.encode(call.arguments)) for call in calls]
    events: list[Event] = [
        {"type": "agent.approval.requested", "approval_id": call.key, "call_id": call.call_id, "name": call.name,
         "input": call.arguments, "allowed": [*DecisionType]}
        for call in calls
    ]  # fmt: skip
    return [approvals.ask(scope, asked)], events


async def decide(
    context: InvocationContext, history: History, decisions: Sequence[Decision], calls: Collection[ToolCall]
) -> None:
    """Store decisions about `calls`, all or none; those that this run stored before stay.

    Raises RunFailed: `approval_mismatch` for another call or other arguments than were shown, and
    `approval_already_decided`. Then nothing is stored.
    """
    known, waiting = await history.approvals([one.id for one in decisions]), {call.key: call for call in calls}
    number = context.lease[0]
    for one in decisions:
        _check(one, known.get(one.id), waiting.get(one.id), number)
    new = [one for one in decisions if known[one.id].status is ApprovalStatus.OPEN]
    if new:
        parts = [approvals.decide(history.scope, one.id, jsontext.encode(one.as_json())) for one in new]
        await context.write(events=[_answered(one, context.principal) for one in new], parts=parts, progress=True)


def _check(decision: Decision, row: Approval | None, call: ToolCall | None, number: int) -> None:
    if row is None:
        raise RunFailed("approval_mismatch", f"this session has no approval {decision.id!r}")
    if row.status is not ApprovalStatus.OPEN and row.decided_by != number:
        how = "was decided already" if row.status is ApprovalStatus.DECIDED else "is closed: the conversation went on"
        raise RunFailed("approval_already_decided", f"the approval {decision.id!r} {how}")
    if row.status is ApprovalStatus.OPEN and call is None:
        raise RunFailed("approval_mismatch", f"the call of the approval {decision.id!r} does not wait")
    shown = jsontext.decode(row.arguments)
    claimed = [] if call is None else [call.arguments]
    if decision.type is DecisionType.APPROVE and decision.arguments is not NOT_GIVEN:
        claimed.append(decision.arguments)
    if any(jsontext.fingerprint(one) != jsontext.fingerprint(shown) for one in claimed):
        raise RunFailed(
            "approval_mismatch", f"the approval {decision.id!r} was asked for a call with the arguments {row.arguments}"
        )


def _answered(decision: Decision, by: str) -> Event:
    verdict = "rejected" if decision.type is DecisionType.REJECT else "approved"
    event: Event = {"type": "agent.approval.answered", "approval_id": decision.id, "decision": verdict, "by": by}
    if decision.type is DecisionType.EDIT:
        event["payload"] = {"arguments": decision.arguments}
    return event | ({} if decision.message is None else {"reason": decision.message})


def decision_of(row: Approval) -> Decision | None:
    """Return what was decided about a call, or None when nothing was."""
    if row.decision is None:
        return None
    stored = jsontext.decode(row.decision)
    return Decision(row.key, DecisionType(stored["type"]), stored.get("arguments", NOT_GIVEN), stored.get("message"))


def denial(row: Approval) -> Outcome | None:
    """Return what a call is answered with that must not run, or None for one that may."""
    if row.status is ApprovalStatus.CLOSED:
        return Outcome("denied", NOT_APPROVED_RESULT)
    decision = decision_of(row)
    if decision is None or decision.type is not DecisionType.REJECT:
        return None
    said = f" They said: {decision.message}" if decision.message else ""
    return Outcome("denied", REJECTED_RESULT + said)


def interrupt(rows: Sequence[Approval]) -> Interrupt:
    """Say what a run waits for that ends so."""
    return Interrupt("approval_required", tuple(shown(row) for row in rows))


def shown(row: Approval) -> dict[str, Any]:
    """Return an open approval as people see it."""
    return {
        "id": row.key, "call_id": row.call_id, "name": row.name, "arguments": jsontext.decode(row.arguments),
        "allowed": [*DecisionType],
    }  # fmt: skip

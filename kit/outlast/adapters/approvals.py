"""What people decide, for every adapter: asked once, decided once, bound to what was shown.

A run that needs a person notes its questions and ends `interrupted`. A later run of the session brings the answers:
`{"decisions": [{"id", "type": "approve" | "edit" | "reject" | "respond", …}]}` about tool calls, `{"answers": {id: …}}` to
questions of a graph. Nothing runs before they are stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from outlast.adapters.events import Event
from outlast.adapters.history import History
from outlast.adapters.inputs import refuse
from outlast.adapters.journal import Outcome, ToolCall
from outlast.core import jsontext, times
from outlast.core.conversations import ApprovalRequest, approval_of_json
from outlast.core.errors import RunFailed
from outlast.core.records import Approval, ApprovalKind, ApprovalStatus, Interrupt
from outlast.core.resume import NOT_APPROVED_RESULT, REJECTED_RESULT
from outlast.engine.context import InvocationContext
from outlast.store import approvals
from outlast.store.grouped import Part

EXPECTED = '{"resume": {"decisions": [{"id": "…", "type": "approve"}]}}, where type is approve, edit, reject or respond'
NOT_GIVEN = object()
_EDITED = "A person changed the arguments of this call to {arguments}; with these it ran.\n\n"


class DecisionType(StrEnum):
    """What a person decided about a call; `respond` answers it in the tool's place."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    RESPOND = "respond"


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


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question: any JSON."""

    id: str
    value: Any

    def as_json(self) -> dict[str, Any]:
        return {"type": "answer", "value": self.value}


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask. `arguments` are the call's, or the value of a question; `details` are shown beside them."""

    key: str
    arguments: Any
    kind: ApprovalKind = ApprovalKind.APPROVAL
    name: str = ""
    call_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def about(cls, call: ToolCall) -> "Question":
        """Ask about a call, under the key that it has in the journal."""
        return cls(call.key, call.arguments, name=call.name, call_id=call.call_id)

    def as_json(self) -> dict[str, Any]:
        """Return what is asked as people see it."""
        if self.kind is ApprovalKind.QUESTION:
            return {"id": self.key, "value": self.arguments, **self.details}
        about = {"id": self.key, "call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return about | {"allowed": [*DecisionType], **self.details}


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
    if not isinstance(value.get("type"), str) or value["type"] not in set(DecisionType):
        raise refuse(f"a decision of the type {value.get('type')!r}", EXPECTED)
    if unknown := set(value) - {"id", "type", "arguments", "message"}:
        raise refuse(f"a decision with {sorted(map(str, unknown))}", EXPECTED)
    kind, message = DecisionType(value["type"]), value.get("message")
    if kind is DecisionType.EDIT and "arguments" not in value:
        raise refuse("an edit without arguments", EXPECTED)
    if message is not None and not isinstance(message, str):
        raise refuse("a message of a decision that is no text", EXPECTED)
    if message is None and kind is DecisionType.RESPOND:
        raise refuse("a response without a message", EXPECTED)
    return Decision(value["id"], kind, value.get("arguments", NOT_GIVEN), message)


def ask(scope: str, questions: Sequence[Question]) -> tuple[list[Part], list[Event]]:
    """Return what asks a person, for a write that makes it true that these questions are open, and no others."""
    asked = [
        approvals.Asked(
            one.key, one.kind, one.call_id, one.name, jsontext.encode(one.arguments), jsontext.encode(dict(one.details))
        )
        for one in questions
    ]
    return [approvals.close(scope, but=[one.key for one in questions]), approvals.ask(scope, asked)], [
        _requested(one) for one in questions
    ]


def close(scope: str) -> Part:
    """Let nobody decide any more about what is open, in the write that goes on without."""
    return approvals.close(scope)


def _requested(question: Question) -> Event:
    event: Event = {"type": "agent.approval.requested", "approval_id": question.key}
    if question.kind is ApprovalKind.QUESTION:
        return event | {"payload": question.arguments}
    about = {"call_id": question.call_id, "name": question.name, "input": question.arguments}
    return event | about | {"allowed": question.details.get("allowed", [*DecisionType])}


async def decide(
    context: InvocationContext, history: History, decisions: Sequence[Decision | Answer], waiting: Mapping[str, Any]
) -> None:
    """Store decisions, all or none; those that this run stored before stay.

    `waiting` has the arguments, as they are now, of what waits, by key. Raises RunFailed: `approval_mismatch` for
    something else, or other arguments, than what was shown, `approval_already_decided`, and `invalid_input`. Then nothing
    is stored.
    """
    known, number = await history.approvals([one.id for one in decisions]), context.lease[0]
    for one in decisions:
        _check(one, known.get(one.id), waiting, number)
    new = [one for one in decisions if known[one.id].status is ApprovalStatus.OPEN]
    if new:
        parts = [approvals.decide(history.scope, one.id, jsontext.encode(one.as_json())) for one in new]
        await context.write(events=[_answered(one, context.principal) for one in new], parts=parts, progress=True)


def _check(decision: Decision | Answer, row: Approval | None, waiting: Mapping[str, Any], number: int) -> None:
    id = decision.id
    if row is None:
        raise RunFailed("approval_mismatch", f"nothing in this session waits under the id {id!r}")
    if row.status is not ApprovalStatus.OPEN and row.decided_by != number:
        how = "was decided already" if row.status is ApprovalStatus.DECIDED else "is closed: the conversation went on"
        raise RunFailed("approval_already_decided", f"the approval {id!r} {how}")
    if (row.kind is ApprovalKind.QUESTION) is not isinstance(decision, Answer):
        raise RunFailed("approval_mismatch", f"{id!r} is a {row.kind}")
    if row.status is ApprovalStatus.OPEN and id not in waiting:
        raise RunFailed("approval_mismatch", f"what the approval {id!r} is about does not wait")
    shown_, claimed = jsontext.decode(row.arguments), [waiting[id]] if id in waiting else []
    if isinstance(decision, Decision):
        _check_allowed(decision, row)
        if decision.type is DecisionType.APPROVE and decision.arguments is not NOT_GIVEN:
            claimed.append(decision.arguments)
    if any(jsontext.fingerprint(one) != jsontext.fingerprint(shown_) for one in claimed):
        raise RunFailed("approval_mismatch", f"the approval {id!r} was asked for with the arguments {row.arguments}")


def _check_allowed(decision: Decision, row: Approval) -> None:
    allowed = jsontext.decode(row.details).get("allowed")
    if allowed and decision.type not in allowed:
        raise refuse(f"{decision.type} about {row.name!r}", f"one of {', '.join(allowed)}")


def _answered(decision: Decision | Answer, by: str) -> Event:
    event: Event = {"type": "agent.approval.answered", "approval_id": decision.id}
    if isinstance(decision, Answer):
        return event | {"decision": "value", "payload": decision.value, "by": by}
    verdict = {DecisionType.REJECT: "rejected", DecisionType.RESPOND: "value"}.get(decision.type, "approved")
    event |= {"decision": verdict, "by": by}
    if decision.type is DecisionType.EDIT:
        event["payload"] = {"arguments": decision.arguments}
    return event | ({} if decision.message is None else {"reason": decision.message})


def decision_of(row: Approval) -> Decision | None:
    """Return what was decided about a call, or None when nothing was."""
    if row.decision is None:
        return None
    stored = jsontext.decode(row.decision)
    return Decision(row.key, DecisionType(stored["type"]), stored.get("arguments", NOT_GIVEN), stored.get("message"))


def answer_to(row: Approval) -> Outcome | None:
    """Return what a call is answered with that a person did not let run, or None for one that may."""
    if row.status is ApprovalStatus.CLOSED:
        return Outcome("denied", NOT_APPROVED_RESULT)
    decision = decision_of(row)
    if decision is not None and decision.type is DecisionType.RESPOND:
        return Outcome("ok", decision.message)
    if decision is None or decision.type is not DecisionType.REJECT:
        return None
    said = f" They said: {decision.message}" if decision.message else ""
    return Outcome("denied", REJECTED_RESULT + said)


def answer_when_closed(row: Approval | None) -> Outcome | None:
    """Return what a call is answered with that nobody decides about any more, or None where no person was asked."""
    if row is None:
        return None
    return answer_to(row._replace(status=ApprovalStatus.CLOSED) if row.status is ApprovalStatus.OPEN else row)


def as_decided(row: Approval | None, call: ToolCall) -> tuple[ToolCall, str]:
    """Return a call that may run with the arguments a person gave it, and what its result begins with to say so."""
    decision = None if row is None else decision_of(row)
    if decision is None or decision.type is not DecisionType.EDIT:
        return call, ""
    given = decision.arguments
    text = given if isinstance(given, str) else jsontext.encode(given)
    return replace(call, arguments=given), _EDITED.format(arguments=text)


def refuse_waiting(rows: Sequence[Approval], number: int) -> None:
    """Refuse a run of new messages that was accepted before something was asked, which it would close."""
    if any(row.status is ApprovalStatus.OPEN and row.newest_run >= number for row in rows):
        raise RunFailed(
            "approval_open",
            "this run waited when an approval was asked for, which it would have closed; decide, or send it again",
        )


def interrupt(rows: Sequence[Approval], text: str, messages: Iterable[Mapping[str, Any]]) -> Interrupt:
    """Say what a run waits for that ends so, what its model said to it, and the messages of the run so far."""
    asked = [shown(row) for row in rows if row.kind is ApprovalKind.APPROVAL]
    questions = [shown(row) for row in rows if row.kind is ApprovalKind.QUESTION]
    return Interrupt(
        "approval_required" if asked else "input_required", tuple(asked), tuple(questions), text, tuple(messages)
    )


def shown(row: Approval) -> dict[str, Any]:
    """Return what was asked as people see it."""
    arguments, details = jsontext.decode(row.arguments), jsontext.decode(row.details)
    return Question(row.key, arguments, row.kind, row.name, row.call_id, details).as_json()


def request_of(row: Approval) -> ApprovalRequest:
    """Return what is stored as clients see it."""
    about = {"session_id": row.session_id, "agent": row.agent, "invocation_id": row.invocation_id}
    state = {
        "kind": row.kind,
        "status": row.status,
        "decision": None if row.decision is None else jsontext.decode(row.decision),
    }
    at = {
        "created_at": times.shown(row.created_at),
        "decided_at": None if row.decided_at is None else times.shown(row.decided_at),
    }
    return approval_of_json({**shown(row), **about, **state, **at})

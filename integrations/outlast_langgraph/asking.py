"""What a graph asks people: its interrupts as questions of the session, and their answers as what the graph goes on with.

`HumanInTheLoopMiddleware` asks about tool calls, several in one interrupt or each in its own; whatever else a graph
interrupts with is a question whose answer is any JSON.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph.types import Interrupt as GraphInterrupt
from langgraph.types import StateSnapshot

from outlast.adapters import approvals
from outlast.adapters.approvals import NOT_GIVEN, Answer, Decision, DecisionType, Question
from outlast.adapters.history import History
from outlast.adapters.inputs import refuse
from outlast.adapters.journal import Outcome, ToolCall
from outlast.adapters.run import Run
from outlast.core.errors import RunFailed
from outlast.core.jsontext import decode, encode, fingerprint
from outlast.core.records import Approval, ApprovalKind, ApprovalStatus, Interrupt
from outlast.core.resume import NOT_APPROVED_RESULT, ResumeKind, ResumePoint
from outlast_langgraph.messages import if_json

BREAKPOINT = "breakpoint:"
"""Begins the ids of questions whether a graph may go on that was compiled with `interrupt_before` or `interrupt_after`."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One interrupt with its questions. `single`: it is gone on with by one decision and not by a list."""

    interrupt: GraphInterrupt[Any]
    questions: tuple[Question, ...]
    single: bool = False


def interrupts_of(snapshot: StateSnapshot) -> Sequence[GraphInterrupt[Any]]:
    """Return what a graph that came to a halt waits for: its interrupts, or leave to go on behind a breakpoint."""
    if snapshot.interrupts or not snapshot.next:
        return snapshot.interrupts
    checkpoint = snapshot.config["configurable"].get("checkpoint_id", "")
    return [GraphInterrupt({"next": list(snapshot.next)}, f"{BREAKPOINT}{checkpoint}")]


async def may_pass(run: Run, snapshot: StateSnapshot) -> bool:
    """Say whether a person let a graph go on from where it stands, for which it has a breakpoint."""
    key = interrupts_of(snapshot)[0].id
    row = (await run.history.approvals([key])).get(key)
    return row is not None and row.status is ApprovalStatus.DECIDED


async def ask(run: Run, interrupts: Sequence[GraphInterrupt[Any]], text: str) -> Interrupt:
    """Note what a graph waits for, and nothing else, as open questions of the session. Returns them with what was said.

    Without a session nobody could answer: then the run fails with `approval_needs_session`.
    """
    if run.context.session_id is None:
        raise RunFailed(
            "approval_needs_session",
            "the graph asks a person, whose answer comes by another run of the session; give this run a session_id",
        )
    questions = await _opened(run, await _asked(run, interrupts))
    rows = await run.history.approvals([question.key for question in questions])
    return approvals.interrupt([rows[question.key] for question in questions], text)


async def _opened(run: Run, asked: Sequence[_Asked]) -> list[Question]:
    """Make it true that these questions are noted, and no others are open."""
    questions = [question for one in asked for question in one.questions]
    known = await run.history.approvals([question.key for question in questions])
    parts, events = approvals.ask(run.history.scope, questions)
    new = [event for event in events if event["approval_id"] not in known]
    await run.context.write(parts=parts, events=new, progress=True)
    return questions


async def answer(run: Run, interrupts: Sequence[GraphInterrupt[Any]], value: Any) -> dict[str, Any]:
    """Store the answers of an input and return what each interrupt goes on with.

    Raises RunFailed: `invalid_input`, `answer_ambiguous`, `approval_mismatch`, `approval_already_decided`.
    """
    asked = await _asked(run, interrupts, answering=True)
    waiting = {question.key: question.arguments for question in await _opened(run, asked)}
    decisions = _read(asked, value)
    going = _going(asked, decisions)
    await approvals.decide(run.context, run.history, decisions, waiting)
    return going


def _going(asked: Sequence[_Asked], decisions: Sequence[Decision | Answer]) -> dict[str, Any]:
    """Return what the interrupts that were decided go on with, by their ids."""
    given: dict[str, Decision | Answer] = {one.id: one for one in decisions}
    going: dict[str, Any] = {}
    for one in asked:
        found = [given[question.key] for question in one.questions if question.key in given]
        if not found:
            continue
        if len(found) < len(one.questions):
            names = ", ".join(question.key for question in one.questions)
            raise refuse(
                f"a decision about some calls of one question; decide together about {names}", approvals.EXPECTED
            )
        told = [_told(question, decision) for question, decision in zip(one.questions, found, strict=True)]
        batch = one.questions[0].kind is ApprovalKind.APPROVAL and not one.single
        going[one.interrupt.id] = {"decisions": told} if batch else told[0]
    return going


async def awaited(history: History, interrupts: Sequence[GraphInterrupt[Any]]) -> ResumePoint | None:
    """Return what a graph with these interrupts waits for, where a person could decide something.

    Interrupts that were never noted count too, and are told here: they came about where no run saw them.
    """
    questions = [question for one in interrupts for question in _questions(one).questions]
    known = await history.approvals([question.key for question in questions])
    new = tuple(question.as_json() for question in questions if question.key not in known)
    return ResumePoint(ResumeKind.AWAIT_APPROVAL, approvals=new) if new or await _open(history) else None


async def _open(history: History) -> list[Approval]:
    return [row for row in await history.undecided() if row.status is ApprovalStatus.OPEN]


async def close(run: Run) -> None:
    """Let nobody answer any more what is open: new messages come instead. Raises RunFailed (`approval_open`)."""
    opened = await _open(run.history)
    approvals.refuse_waiting(opened, run.context.lease[0])
    if opened:
        await run.context.write(parts=[approvals.close(run.history.scope)])


async def drop(run: Run) -> None:
    """Let nobody answer any more what is open: the graph does not wait for it."""
    if await _open(run.history):
        await run.context.write(parts=[approvals.close(run.history.scope)])


def unapproved(undecided: Sequence[Approval], call: ToolCall) -> Outcome | None:
    """Return the answer of a call about which a person was asked and did not decide; None for any other.

    The middleware does not name calls in a batch, so that they are told by name and arguments.
    """
    for row in undecided:
        if row.kind is not ApprovalKind.APPROVAL or row.name != call.name or row.call_id not in (None, call.call_id):
            continue
        if row.arguments == encode(call.arguments):
            return Outcome("denied", NOT_APPROVED_RESULT)
    return None


def _read(asked: Sequence[_Asked], value: Any) -> Sequence[Decision | Answer]:
    """Read an input's answers; any JSON is one where there is exactly one question."""
    questions = [question for one in asked for question in one.questions]
    about_calls = any(question.kind is ApprovalKind.APPROVAL for question in questions)
    if about_calls and isinstance(value, Mapping) and set(value) == {"decisions"}:
        return approvals.parse(value)
    if isinstance(value, Mapping) and set(value) == {"answers"}:
        if not isinstance(value["answers"], Mapping) or not value["answers"]:
            raise refuse("answers that are no object", '{"resume": {"answers": {"<id>": …}}}')
        return [Answer(str(id), given) for id, given in value["answers"].items()]
    if about_calls:
        raise refuse("no decisions in it", approvals.EXPECTED)
    if len(questions) > 1:
        raise RunFailed(
            "answer_ambiguous", 'several questions are open; answer with {"resume": {"answers": {"<id>": …}}}'
        )
    return [Answer(questions[0].key, value)]


async def _asked(run: Run, interrupts: Sequence[GraphInterrupt[Any]], *, answering: bool = False) -> list[_Asked]:
    """Return what interrupts ask, under keys that no earlier question has.

    A task that asks again may do so under the id of its first question. With `answering`, what this run has just decided
    is what it is about, for its worker died before the graph heard of it.
    """
    found = []
    for one in map(_questions, interrupts):
        found.append(replace(one, questions=tuple([await _named(run, q, answering) for q in one.questions])))
    return found


async def _named(run: Run, question: Question, answering: bool) -> Question:
    key, count = question.key, 1
    while (row := (await run.history.approvals([key])).get(key)) is not None:
        same = fingerprint(question.arguments) == fingerprint(decode(row.arguments))
        if same and row.status is ApprovalStatus.OPEN:
            break
        if same and answering and row.decided_by == run.context.lease[0]:
            break
        count += 1
        key = f"{question.key}.{count}"
    return replace(question, key=key)


def _questions(interrupt: GraphInterrupt[Any]) -> _Asked:
    value = interrupt.value
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        return _Asked(interrupt, tuple(_batch(interrupt.id, value)))
    if isinstance(value, Mapping) and value.get("type") == "tool_approval" and "name" in value:
        details = {"interrupt_id": interrupt.id, "description": value.get("description")}
        about = Question(
            f"{interrupt.id}:0", value.get("args"), name=value["name"], call_id=value.get("tool_call_id"),
            details=details | _schema(interrupt),
        )  # fmt: skip
        return _Asked(interrupt, (about,), single=True)
    asked = if_json(value, repr(value))
    return _Asked(interrupt, (Question(interrupt.id, asked, ApprovalKind.QUESTION, details=_schema(interrupt)),))


def _batch(id: str, value: Mapping[str, Any]) -> list[Question]:
    configs = {config.get("action_name"): config for config in value.get("review_configs", [])}
    return [
        Question(
            f"{id}:{index}",
            request.get("args") or request.get("arguments"),
            name=request["name"],
            details={
                "interrupt_id": id,
                "description": request.get("description"),
                "allowed": list(configs.get(request["name"], {}).get("allowed_decisions", [])) or [*DecisionType],
            },
        )
        for index, request in enumerate(value["action_requests"])
    ]


def _schema(interrupt: GraphInterrupt[Any]) -> dict[str, Any]:
    schema = interrupt.response_schema
    return {"response_schema": schema} if isinstance(schema, dict) else {}


def _told(question: Question, decision: Decision | Answer) -> Any:
    """Return a decision in the middleware's form, or an answer as it is."""
    if isinstance(decision, Answer):
        return decision.value
    told: dict[str, Any] = {"type": decision.type.value}
    if decision.type is DecisionType.EDIT:
        arguments = {} if decision.arguments is NOT_GIVEN else decision.arguments
        told["edited_action"] = {"name": question.name, "args": arguments}
    return told | ({} if decision.message is None else {"message": decision.message})

"""What is stored, as plain values. Fields that hold JSON keep its text, so that nothing is lost by reading it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from outlast.core import jsontext


class Status(StrEnum):
    """Where an invocation is. Only the last three are final, and no other final word is ever added."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def final(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)


class Kind(StrEnum):
    """What the client asked for: a new message, or to resume the session as it stands."""

    MESSAGE = "message"
    RESUME = "resume"


class OnActive(StrEnum):
    """What to do when the session has an unfinished invocation."""

    QUEUE = "queue"
    REJECT = "reject"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Request:
    """One checked client request. `input` and `config` are JSON text; `fingerprint` is the request's identity."""

    principal: str
    id: str
    session_id: str | None
    agent: str
    kind: Kind
    input: str
    config: str
    fingerprint: str
    on_active: OnActive = OnActive.QUEUE
    timeout_seconds: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        principal: str,
        id: str,
        session_id: str | None,
        agent: str,
        input: Any,
        config: Mapping[str, Any] | None = None,
        kind: Kind = Kind.MESSAGE,
        on_active: OnActive = OnActive.QUEUE,
        timeout_seconds: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> "Request":
        """Encode the JSON parts once and compute the identity. Raise NotJSON for a value JSON cannot hold."""
        text, config_text = jsontext.encode(input), jsontext.encode(dict(config or {}))
        identity = jsontext.fingerprint([session_id, agent, kind, input, config or {}])
        return cls(
            principal, id, session_id, agent, kind, text, config_text, identity, on_active, timeout_seconds,
            dict(metadata or {}),
        )  # fmt: skip


class Invocation(NamedTuple):
    """One stored invocation. Times are milliseconds since 1970 UTC by the database's clock, and only shown."""

    number: int
    principal: str
    id: str
    session_number: int | None
    agent: str
    kind: Kind
    status: Status
    fingerprint: str
    input: str
    config: str
    metadata: str
    attempt: int
    crashes: int
    epoch: int
    holder: str | None
    cancel: str | None
    suspect: bool
    timeout_ms: int | None
    last_position: int
    output: str | None
    error: str | None
    interrupt: str | None
    usage: str | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    session_id: str | None


class Event(NamedTuple):
    """One stored entry of an invocation's log. `text` is the event's JSON text."""

    position: int
    attempt: int
    at: int
    text: str


class StoredSession(NamedTuple):
    """One stored session. `labels` is JSON text; `active` is the invocation that is not final, where it was asked for."""

    number: int
    principal: str
    id: str
    agent: str
    actor_id: str
    parent_id: str | None
    root_id: str
    forked_from: str | None
    labels: str
    last_item: int
    created_at: int
    last_activity: int
    active: str | None = None

    @property
    def scope(self) -> str:
        """The name of its history in the store."""
        return f"s{self.number}"


class StoredItem(NamedTuple):
    """One stored item of a session. `item` is JSON text; `invocation_id` is the run that stored it, while it is kept."""

    position: int
    id: str
    item: str
    created_at: int
    invocation_number: int | None
    invocation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ends: a final status and the JSON texts that go with it."""

    status: Status
    output: str | None = None
    error: str | None = None
    interrupt: str | None = None
    usage: str | None = None

    @classmethod
    def failed(cls, code: str, message: str, usage: str | None = None) -> "Outcome":
        return cls(Status.FAILED, error=jsontext.encode({"code": code, "message": message}), usage=usage)


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Returned by a handler whose run needs a person: the run ends `interrupted` and says what for.

    `text` is what the agent said to it.
    """

    reason: str
    approvals: tuple[Mapping[str, Any], ...] = ()
    questions: tuple[Mapping[str, Any], ...] = ()
    text: str = ""

    def as_json(self) -> str:
        said = {"text": self.text} if self.text else {}
        return jsontext.encode(
            {"reason": self.reason, "approvals": list(self.approvals), "questions": list(self.questions), **said}
        )


class ApprovalStatus(StrEnum):
    """Where the question is whether a tool call may run. Closed: the conversation went on, and nobody can decide."""

    OPEN = "open"
    DECIDED = "decided"
    CLOSED = "closed"


class ApprovalKind(StrEnum):
    """Whether a person decides about a tool call, or answers a question of the agent."""

    APPROVAL = "approval"
    QUESTION = "question"


class Approval(NamedTuple):
    """What a person has to decide: about a tool call with its arguments, or a question, whose value `arguments` is.

    `arguments`, `details` and `decision` are JSON text; `key` names it in its history. `newest_run` is the number of the
    newest run of the session that had been accepted when it was asked.
    """

    number: int
    key: str
    session_id: str | None
    agent: str
    invocation_id: str | None
    newest_run: int
    kind: ApprovalKind
    call_id: str | None
    name: str
    arguments: str
    details: str
    status: ApprovalStatus
    decision: str | None
    decided_by: int | None
    created_at: int
    decided_at: int | None


class CallState(StrEnum):
    """Where a journalled side effect is."""

    PENDING = "pending"
    STARTED = "started"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Call:
    """One row of the tool journal. `token` names the one execution that may run; `outcome` is JSON text."""

    scope: str
    key: str
    state: CallState
    invocation_number: int
    epoch: int
    token: str
    call_id: str | None
    name: str
    arguments: str | None
    outcome: str | None
    started_position: int | None
    finished_position: int | None

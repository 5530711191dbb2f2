"""Conversations, approvals and memories as users see them, in process and over HTTP. Times are milliseconds since 1970 UTC."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.core import ids, jsontext
from outlast.core.errors import InvalidRequest
from outlast.core.records import ApprovalKind, ApprovalStatus
from outlast.core.times import milliseconds, shown

DEFAULT_AGENT = "agent"
"""The name of an agent that is given none."""

LARGEST_PAGE = 500
"""Entries of a list in one page."""

MOST_LISTED = 1000
"""Memories that a list returns at once."""

JSON_LINES = "application/jsonl"
"""The media type of an export."""


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation."""

    id: str
    agent: str
    """The agent that may run in it."""
    actor_id: str
    """On whose behalf; a label that the caller chose."""
    parent: str | None
    """The session this one is a child of."""
    root: str
    """The first of its ancestors; a session without parent is its own root."""
    forked_from: str | None
    labels: Mapping[str, str]
    active: str | None
    """The invocation that is not final yet."""
    created_at: int
    last_activity: int


@dataclass(frozen=True, slots=True)
class SessionItem:
    """One entry of a session's history. Positions rise, and may have gaps where items were removed."""

    id: str
    position: int
    content: dict[str, Any]
    created_at: int
    invocation_id: str | None
    """The run that stored it, as long as that is kept."""


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A part of a list of sessions; `cursor` is None on the last one."""

    sessions: list[Session]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person has to decide, or did: about a tool call, or a question of the agent."""

    id: str
    """What a decision, or an answer, names; within its session."""
    kind: ApprovalKind
    status: ApprovalStatus
    session_id: str
    agent: str
    invocation_id: str | None
    """The run that asked, as long as that is kept."""
    name: str | None
    """The tool's; None of a question, as `call_id` is."""
    call_id: str | None
    arguments: Any
    """The call's; of a question what is asked."""
    allowed: Sequence[str]
    """Types of decision that are accepted; empty of a question, whose answer is any JSON."""
    details: Mapping[str, Any]
    """What the agent shows beside it, such as a `description`."""
    decision: Mapping[str, Any] | None
    created_at: int
    decided_at: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory: a text at a path."""

    path: str
    content: str
    actor_id: str
    session_id: str | None
    created_at: int
    updated_at: int


@dataclass(frozen=True, slots=True)
class MemorySearchResult:
    """A memory that was found; a higher score is a better match, within one search."""

    memory: Memory
    score: float


def session_line(session: Session) -> str:
    """Return a session as the first line of an export."""
    return jsontext.encode(
        {
            "type": "session", "id": session.id, "agent": session.agent, "actor_id": session.actor_id,
            "labels": dict(session.labels),
        }
    )  # fmt: skip


def item_line(item: SessionItem) -> str:
    """Return an item as a line of an export."""
    return jsontext.encode({"type": "item", "id": item.id, "content": item.content})


def session_as_json(session: Session) -> dict[str, Any]:
    """Return a session as the HTTP API shows it."""
    return {
        "id": session.id, "agent": session.agent, "actor_id": session.actor_id, "parent": session.parent,
        "root": session.root, "forked_from": session.forked_from, "labels": dict(session.labels),
        "active": session.active, "created_at": shown(session.created_at),
        "last_activity": shown(session.last_activity),
    }  # fmt: skip


def session_of_json(value: Mapping[str, Any]) -> Session:
    """Read a session as the HTTP API shows it."""
    return Session(
        value["id"], value["agent"], value["actor_id"], value["parent"], value["root"], value["forked_from"],
        value["labels"], value["active"], milliseconds(value["created_at"]), milliseconds(value["last_activity"]),
    )  # fmt: skip


def item_as_json(item: SessionItem) -> dict[str, Any]:
    """Return an item as the HTTP API shows it."""
    return {
        "id": item.id, "position": item.position, "created_at": shown(item.created_at),
        "invocation_id": item.invocation_id, "content": item.content,
    }  # fmt: skip


def item_of_json(value: Mapping[str, Any]) -> SessionItem:
    """Read an item as the HTTP API shows it."""
    at = milliseconds(value["created_at"])
    return SessionItem(value["id"], value["position"], value["content"], at, value["invocation_id"])


def approval_as_json(approval: ApprovalRequest) -> dict[str, Any]:
    """Return an approval as the HTTP API shows it."""
    about: dict[str, Any] = {"id": approval.id}
    named = {"call_id": approval.call_id, "name": approval.name}
    about |= {
        field: text for field, text in named.items() if approval.kind is ApprovalKind.APPROVAL or text is not None
    }
    about[_ASKED[approval.kind]] = approval.arguments
    about |= {"allowed": list(approval.allowed)} if approval.allowed else {}
    return about | {
        **approval.details, "kind": approval.kind, "session_id": approval.session_id, "agent": approval.agent,
        "invocation_id": approval.invocation_id, "status": approval.status, "decision": approval.decision,
        "created_at": shown(approval.created_at),
        "decided_at": None if approval.decided_at is None else shown(approval.decided_at),
    }  # fmt: skip


def approval_of_json(value: Mapping[str, Any]) -> ApprovalRequest:
    """Read an approval as the HTTP API shows it."""
    kind, decided_at = ApprovalKind(value["kind"]), value["decided_at"]
    return ApprovalRequest(
        value["id"], kind, ApprovalStatus(value["status"]), value["session_id"], value["agent"], value["invocation_id"],
        value.get("name"), value.get("call_id"), value[_ASKED[kind]], value.get("allowed", ()),
        {field: shown for field, shown in value.items() if field not in _APPROVAL_FIELDS}, value["decision"],
        milliseconds(value["created_at"]), None if decided_at is None else milliseconds(decided_at),
    )  # fmt: skip


_ASKED = {ApprovalKind.APPROVAL: "arguments", ApprovalKind.QUESTION: "value"}
_APPROVAL_FIELDS = {*ApprovalRequest.__slots__, *_ASKED.values()}


def memory_as_json(memory: Memory) -> dict[str, Any]:
    """Return a memory as the HTTP API shows it."""
    return {
        "path": memory.path, "content": memory.content, "actor_id": memory.actor_id, "session_id": memory.session_id,
        "created_at": shown(memory.created_at), "updated_at": shown(memory.updated_at),
    }  # fmt: skip


def memory_of_json(value: Mapping[str, Any]) -> Memory:
    """Read a memory as the HTTP API shows it."""
    return Memory(
        value["path"], value["content"], value["actor_id"], value["session_id"],
        milliseconds(value["created_at"]), milliseconds(value["updated_at"]),
    )  # fmt: skip


def memory_cursor(path: str, session_id: str | None) -> str:
    """Return the cursor of a list that goes on behind a memory."""
    return urlsafe_b64encode(f"{path}\n{session_id or ''}".encode()).decode()


def memory_place(cursor: str) -> tuple[str, str | None]:
    """Return the path and the session that a cursor stands for. Raise ValueError for one that is none."""
    path, session_id = urlsafe_b64decode(cursor).decode().split("\n")
    return ids.memory_place((path, session_id or None))


async def lines_of(export: Iterable[str] | AsyncIterable[str]) -> list[str]:
    """Return the lines of what `export` gave, also while it is given, or as one text. Raise InvalidRequest."""
    if isinstance(export, str):
        return export.split("\n")
    lines = [line async for line in export] if isinstance(export, AsyncIterable) else ids.objects(export, "lines")
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise InvalidRequest(f"line {number} is no text", code="invalid_import", field=f"line {number}")
    return lines

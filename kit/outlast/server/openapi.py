"""The description of the hand-made routes, for /docs and generated clients."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from outlast.core.conversations import JSON_LINES
from outlast.core.records import ApprovalKind, ApprovalStatus, Kind, OnActive, Status
from outlast.sessions.memory import MAX_CONTENT, MOST_FOUND

Schema = dict[str, Any]

_ANY: Schema = {"description": "Any JSON value."}
_ID: Schema = {"type": "string", "format": "uuid"}
_TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_STATUS: Schema = {"type": "string", "enum": list(Status)}
_URLS: dict[str, Schema] = {"status_url": {"type": "string"}, "events_url": {"type": "string"}}


def _object(properties: Mapping[str, Schema], required: list[str], description: str) -> Schema:
    return {"type": "object", "description": description, "required": required, "properties": dict(properties)}


SCHEMAS: dict[str, Schema] = {
    "InvocationRequest": {
        **_object(
            {
                "id": {**_ID, "description": "Made by the client, so that the request can be repeated safely."},
                "input": _ANY,
                "session_id": {**_TEXT_OR_NULL, "maxLength": 512, "description": "The conversation it belongs to."},
                "stream": {"type": "boolean", "default": False, "description": "Answer with server-sent events."},
                "background": {"type": "boolean", "default": False, "description": "Answer 202 at once."},
                "agent": {**_TEXT_OR_NULL, "description": "Required when the server has several."},
                "config": {"type": ["object", "null"], "description": "Settings that the agent declared."},
                "on_active": {"type": "string", "enum": list(OnActive), "default": OnActive.QUEUE},
                "timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Seconds."},
                "metadata": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
            },
            ["input"],
            "Either `id` or the Idempotency-Key header names the request.",
        ),
        "additionalProperties": False,
    },
    "Invocation": _object(
        {
            "id": _ID,
            "session_id": _TEXT_OR_NULL,
            "agent": {"type": "string"},
            "status": _STATUS,
            "kind": {"type": "string", "enum": list(Kind)},
            "attempt": {"type": "integer"},
            "created_at": _TIME,
            "started_at": _TIME,
            "finished_at": _TIME,
            "output": {"description": "What the handler returned; only when completed."},
            "error": _object(
                {"code": {"type": "string"}, "message": {"type": "string"}}, ["code", "message"], "Only when failed."
            ),
            "interrupt": {
                "type": "object",
                "description": "What it needs a person for, the text and the messages so far; only when interrupted.",
            },
            "usage": {"type": ["object", "null"]},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            **_URLS,
        },
        ["id", "session_id", "status", "kind", "attempt", *_URLS],
        "`completed`, `failed` and `interrupted` are final.",
    ),
    "AcceptedInvocation": _object(
        {"id": _ID, "session_id": _TEXT_OR_NULL, "status": _STATUS, **_URLS},
        ["id", "session_id", "status", *_URLS],
        "Stored; it reaches a final state on some worker.",
    ),
    "Session": _object(
        {
            "id": {"type": "string"},
            "agent": {"type": "string"},
            "actor_id": {"type": "string", "description": "On whose behalf; a label that the client chose."},
            "parent": _TEXT_OR_NULL,
            "root": {"type": "string"},
            "forked_from": _TEXT_OR_NULL,
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "active": {**_TEXT_OR_NULL, "description": "The invocation that is not final yet."},
            "created_at": _TIME,
            "last_activity": _TIME,
        },
        ["id", "agent", "actor_id", "root", "labels", "active"],
        "A conversation.",
    ),
    "SessionItem": _object(
        {
            "id": {"type": "string"},
            "position": {"type": "integer"},
            "created_at": _TIME,
            "invocation_id": {**_TEXT_OR_NULL, "description": "The run that stored it."},
            "content": {"type": "object"},
        },
        ["id", "position", "content"],
        "One entry of a conversation's history.",
    ),
    "Approval": _object(
        {
            "id": {"type": "string", "description": "Names it in a decision."},
            "session_id": {"type": "string"},
            "agent": {"type": "string"},
            "invocation_id": {**_TEXT_OR_NULL, "description": "The run that asked, while it is kept."},
            "kind": {"type": "string", "enum": list(ApprovalKind)},
            "call_id": _TEXT_OR_NULL,
            "name": {"type": "string", "description": "The tool; of an approval."},
            "arguments": {"description": "What the tool would be called with; of an approval."},
            "allowed": {"type": "array", "items": {"type": "string"}, "description": "Decisions; of an approval."},
            "value": {"description": "What is asked; of a question."},
            "status": {"type": "string", "enum": list(ApprovalStatus)},
            "decision": {"type": ["object", "null"]},
            "created_at": _TIME,
            "decided_at": _TIME,
        },
        ["id", "session_id", "agent", "kind", "status"],
        "What a person decides, by an invocation of the session whose input has `resume`.",
    ),
    "Memory": _object(
        {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "actor_id": {"type": "string", "description": "Whom it is about."},
            "session_id": {**_TEXT_OR_NULL, "description": "The conversation it is limited to."},
            "created_at": _TIME,
            "updated_at": _TIME,
        },
        ["path", "content", "actor_id", "session_id"],
        "A text at a path.",
    ),
    "MemorySearchResult": _object(
        {"score": {"type": "number"}, "memory": {"$ref": "#/components/schemas/Memory"}},
        ["score", "memory"],
        "A higher score is a better match, within one search.",
    ),
    "Problem": _object(
        {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "code": {"type": "string", "description": "What a program looks at."},
        },
        ["type", "title", "status", "detail", "code"],
        "RFC 9457.",
    ),
}


def described(schema: Schema, prefix: str) -> Schema:
    """Add the hand-made routes to an OpenAPI document and return it."""
    schema.setdefault("components", {}).setdefault("schemas", {}).update(SCHEMAS)
    schema.setdefault("paths", {}).update({f"{prefix}{path}": item for path, item in _PATHS.items()})
    return schema


def describe(app: FastAPI, prefix: str) -> None:
    """Make an app's document describe these routes too."""
    own = app.openapi
    app.openapi = lambda: described(own(), prefix)  # type: ignore[method-assign]  # FastAPI's documented way


def _json(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _answer(description: str, content: Schema | None = None) -> Schema:
    return {"description": description} if content is None else {"description": description, "content": content}


def _page(item: Schema) -> Schema:
    properties: dict[str, Schema] = {"items": {"type": "array", "items": item}, "next_cursor": _TEXT_OR_NULL}
    return {"application/json": {"schema": _object(properties, list(properties), "One page.")}}


def _query(name: str, schema: Schema, description: str, place: str = "query") -> Schema:
    return {"name": name, "in": place, "required": False, "schema": schema, "description": description}


def _operation(summary: str, name: str, answers: Mapping[str, Schema], tag: str = "invocations", **more: Any) -> Schema:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "tags": [tag],
        "summary": summary,
        "operationId": name,
        "responses": {**answers, "default": _answer("A problem.", problem)},
        **more,
    }


_STREAM: Schema = {"text/event-stream": {"schema": {"type": "string"}}}
_EVENT = _object(
    {"position": {"type": "integer"}, "attempt": {"type": "integer"}, "at": _TIME, "event": _ANY},
    ["position", "attempt", "at", "event"],
    "One entry of the log.",
)
_ONE: Schema = {"parameters": [{"name": "id", "in": "path", "required": True, "schema": _ID}]}
_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}, "Items in a page.")
_LAST_EVENT_ID = _query("Last-Event-ID", {"type": "integer"}, "The same as `after`; the larger counts.", "header")
_AFTER = _query("after", {"type": "integer", "minimum": 0, "default": 0}, "The last position that was seen.")

_PATHS: dict[str, Schema] = {
    "/api/invocations": {
        "post": _operation(
            "Run the agent. The same id again returns the same invocation.",
            "create_invocation",
            {
                "200": _answer("The final invocation, or its events.", {**_json("Invocation"), **_STREAM}),
                "202": _answer("It goes on in the background.", _json("AcceptedInvocation")),
            },
            requestBody={"required": True, "content": _json("InvocationRequest")},
            parameters=[
                _query("Idempotency-Key", _ID, "In place of `id`.", "header"),
                _query("Prefer", {"type": "string"}, "`wait=N`: answer 202 after N seconds.", "header"),
            ],
        ),
        "get": _operation(
            "List invocations, newest first. `metadata.<label>=<value>` filters by a label.",
            "list_invocations",
            {"200": _answer("One page.", _page({"$ref": "#/components/schemas/Invocation"}))},
            parameters=[
                _query("session_id", {"type": "string"}, "Of one session."),
                _query("status", _STATUS, "In one status."),
                _query("agent", {"type": "string"}, "Of one agent."),
                _query("cursor", {"type": "string"}, "The `next_cursor` of the page before."),
                _LIMIT,
            ],
        ),
    },
    "/api/invocations/{id}": {
        **_ONE,
        "get": _operation("Get an invocation.", "get_invocation", {"200": _answer("It.", _json("Invocation"))}),
        "delete": _operation("Remove a final invocation.", "delete_invocation", {"204": _answer("Removed.")}),
    },
    "/api/invocations/{id}/events": {
        **_ONE,
        "get": _operation(
            "Follow the log to its end, or page through it as JSON.",
            "get_invocation_events",
            {"200": _answer("The events after the cursor.", {**_STREAM, **_page(_EVENT)})},
            parameters=[_AFTER, _LAST_EVENT_ID, _LIMIT],
        ),
    },
    "/api/invocations/{id}/cancel": {
        **_ONE,
        "post": _operation(
            "Stop an invocation; one that runs is given time to stop.",
            "cancel_invocation",
            {
                "200": _answer("It is final.", _json("Invocation")),
                "202": _answer("It was asked to stop.", _json("Invocation")),
            },
        ),
    },
}


def _of_sessions(summary: str, name: str, status: str, content: Schema | None, **more: Any) -> Schema:
    return _operation(summary, name, {status: _answer("Done.", content)}, "sessions", **more)


def _fields(*required: str, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if not required:
        return {"content": {"application/json": {"schema": schema}}}
    return {"required": True, "content": {"application/json": {"schema": {**schema, "required": list(required)}}}}


_NAME: Schema = {"type": "string", "maxLength": 512}
_LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_CURSOR = _query("cursor", {"type": "string"}, "The `next_cursor` of the page before.")
_SESSION: Schema = {"parameters": [{"name": "session_id", "in": "path", "required": True, "schema": _NAME}]}
_ITEMS = _page({"$ref": "#/components/schemas/SessionItem"})

_PATHS |= {
    "/api/sessions": {
        "post": _of_sessions(
            "Make a session. The same session again is returned as it is.",
            "create_session",
            "201",
            _json("Session"),
            requestBody={
                "content": {
                    **_fields(id=_NAME, agent=_NAME, actor_id=_NAME, parent=_NAME, labels=_LABELS)["content"],
                    JSON_LINES: {"schema": {"type": "string", "description": "What was exported."}},
                }
            },
            parameters=[_query("id", _NAME, "Another name for what was exported.")],
        ),
        "get": _of_sessions(
            "List sessions, newest first. `labels.<label>=<value>` filters by a label.",
            "list_sessions",
            "200",
            _page({"$ref": "#/components/schemas/Session"}),
            parameters=[
                *(_query(name, _NAME, "A filter.") for name in ("agent", "actor_id", "parent")),
                _CURSOR,
                _LIMIT,
            ],
        ),
    },
    "/api/sessions/{session_id}": {
        **_SESSION,
        "get": _of_sessions("Get a session.", "get_session", "200", _json("Session")),
        "patch": _of_sessions(
            "Set labels; null removes one.",
            "update_session",
            "200",
            _json("Session"),
            requestBody=_fields(labels=_LABELS),
        ),
        "delete": _of_sessions(
            "Remove a session with its items and runs.",
            "delete_session",
            "204",
            None,
            parameters=[_query("force", {"type": "boolean", "default": False}, "With its descendants.")],
        ),
    },
    "/api/sessions/{session_id}/items": {
        **_SESSION,
        "get": _of_sessions(
            "Page through the items.",
            "list_session_items",
            "200",
            _ITEMS,
            parameters=[_AFTER, _LIMIT, _query("order", {"type": "string", "enum": ["asc", "desc"]}, "Of positions.")],
        ),
        "post": _of_sessions(
            "Append items, all or none; with a `key`, once.",
            "append_session_items",
            "201",
            _ITEMS,
            requestBody=_fields(items={"type": "array", "items": {"type": "object"}}, key={"type": "string"}),
        ),
        "delete": _of_sessions("Remove all items.", "clear_session", "200", {"application/json": {}}),
    },
    "/api/sessions/{session_id}/items/pop": {
        **_SESSION,
        "post": _of_sessions(
            "Remove the last item and return it.", "pop_session_item", "200", {"application/json": {}}
        ),
    },
    "/api/sessions/{session_id}/fork": {
        **_SESSION,
        "post": _of_sessions(
            "Copy a session, up to and with an item, or up to a checkpoint.",
            "fork_session",
            "201",
            _json("Session"),
            requestBody=_fields(id=_NAME, checkpoint_id=_NAME, up_to_item_id=_NAME, actor_id=_NAME, labels=_LABELS),
        ),
    },
    "/api/sessions/{session_id}/messages": {
        **_SESSION,
        "get": _of_sessions(
            "Page through its messages, oldest first, wherever its agent keeps them.",
            "list_session_messages",
            "200",
            _page({"type": "object"}),
            parameters=[_AFTER, _LIMIT],
        ),
    },
    "/api/sessions/{session_id}/resume-point": {
        **_SESSION,
        "get": _of_sessions("How it was interrupted.", "get_resume_point", "200", {"application/json": {}}),
    },
    "/api/sessions/{session_id}/state": {
        **_SESSION,
        "get": _of_sessions(
            "The state its agent keeps of it, now or at a checkpoint.",
            "get_session_state",
            "200",
            {"application/json": {}},
            parameters=[_query("checkpoint_id", _NAME, "The id of a checkpoint of its history.")],
        ),
        "post": _of_sessions(
            "Change its state, or go on from an earlier one, changed.",
            "update_session_state",
            "200",
            {"application/json": {}},
            requestBody=_fields(values={}, as_node=_NAME, checkpoint_id=_NAME),
        ),
    },
    "/api/sessions/{session_id}/history": {
        **_SESSION,
        "get": _of_sessions(
            "Page through its states, newest first.",
            "list_session_states",
            "200",
            _page({"type": "object"}),
            parameters=[_query("before", _NAME, "The id of a checkpoint, such as the last `next_cursor`."), _LIMIT],
        ),
    },
    "/api/sessions/{session_id}/resume": {
        **_SESSION,
        "post": _of_sessions(
            "Go on where it was interrupted; answered like `create_invocation`.",
            "resume_session",
            "200",
            {**_json("Invocation"), **_STREAM},
            requestBody=_fields(id=_ID, stream={"type": "boolean"}, background={"type": "boolean"}),
        ),
    },
}

_PATHS |= {
    "/api/approvals": {
        "get": _operation(
            "List what waits, or waited, for a person, newest first.",
            "list_approvals",
            {"200": _answer("One page.", _page({"$ref": "#/components/schemas/Approval"}))},
            "approvals",
            parameters=[
                _query("status", {"type": "string", "enum": list(ApprovalStatus)}, "In one status."),
                _query("session_id", _NAME, "Of one session."),
                _CURSOR,
                _LIMIT,
            ],
        )
    }
}


def _of_memories(summary: str, name: str, status: str, content: Schema | None, **more: Any) -> Schema:
    return _operation(summary, name, {status: _answer("Done.", content)}, "memories", **more)


_CONTENT: Schema = {"type": "string", "maxLength": MAX_CONTENT}
_KEY: Schema = {
    **_NAME,
    "minLength": 1,
    "description": "Of the client's making: the same change again changes nothing.",
}
_OWNER = [
    _query("actor_id", _NAME, "Whom it is about; the caller unless it is given."),
    _query("session_id", _NAME, "Limited to one conversation."),
]
_ENTRY: Schema = {"parameters": [{**_query("path", _NAME, "Of the memory."), "required": True}, *_OWNER]}
_BEST = {"type": "integer", "minimum": 1, "maximum": MOST_FOUND, "default": 10}
_FOUND = _page({"$ref": "#/components/schemas/MemorySearchResult"})

_PATHS |= {
    "/api/memories": {
        "post": _of_memories(
            "Add a memory at a path that has none.",
            "add_memory",
            "201",
            _json("Memory"),
            requestBody=_fields(
                "path", "content", path=_NAME, content=_CONTENT, actor_id=_NAME, session_id=_NAME, key=_KEY
            ),
        ),
        "get": _of_memories(
            "List memories by path; of every conversation unless one is named.",
            "list_memories",
            "200",
            _page({"$ref": "#/components/schemas/Memory"}),
            parameters=[
                _query("path", _NAME, "At exactly this path."),
                _query("path_prefix", _NAME, "Whose path begins so."),
                *_OWNER,
                _CURSOR,
                _LIMIT,
            ],
        ),
    },
    "/api/memories/entry": {
        **_ENTRY,
        "get": _of_memories("Get a memory.", "get_memory", "200", _json("Memory")),
        "put": _of_memories(
            "Store a memory, whatever was at the path; with `append`, behind what is there.",
            "put_memory",
            "200",
            _json("Memory"),
            requestBody=_fields("content", content=_CONTENT, append={"type": "boolean", "default": False}, key=_KEY),
        ),
        "patch": _of_memories(
            "Replace the content of a memory.",
            "update_memory",
            "200",
            _json("Memory"),
            requestBody=_fields("content", content=_CONTENT, key=_KEY),
        ),
        "delete": _of_memories("Remove a memory.", "delete_memory", "204", None),
    },
    "/api/memories/search": {
        "get": _of_memories(
            "Find the memories that have any word of a text, the best first.",
            "search_memories",
            "200",
            _FOUND,
            parameters=[
                {**_query("q", {"type": "string"}, "What to look for."), "required": True},
                *_OWNER,
                _query("limit", _BEST, "Memories at most."),
            ],
        ),
        "post": _of_memories(
            "The same for a text that is too long, or too private, for a URL.",
            "search_memories_for_long_text",
            "200",
            _FOUND,
            requestBody=_fields("text", text=_CONTENT, actor_id=_NAME, session_id=_NAME, limit=_BEST),
        ),
    },
}


def _of_operations(summary: str, name: str, media_type: str = "text/plain") -> Schema:
    content = {media_type: {"schema": {"type": "object" if media_type == "application/json" else "string"}}}
    return {"get": _operation(summary, name, {"200": _answer("It.", content)}, "operations")}


_PATHS |= {
    "/livez": _of_operations("The process works; restart it when this fails.", "get_livez"),
    "/readyz": _of_operations("Send requests here.", "get_readyz"),
    "/startupz": _of_operations("The start is over.", "get_startupz"),
    "/metrics": _of_operations("In the Prometheus text format.", "get_metrics"),
    "/api/agent": _of_operations(
        "Name, version, framework and capabilities of the agents.", "get_agent", "application/json"
    ),
}

"""The description of the hand-made routes, for /docs and generated clients."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from outlast.core.conversations import JSON_LINES
from outlast.core.records import ApprovalKind, ApprovalStatus, Kind, OnActive, Status
from outlast.core.resume import ResumeKind
from outlast.sessions.memory import MAX_CONTENT, MOST_FOUND

Schema = dict[str, Any]

_ANY: Schema = {"description": "Any JSON value."}
_ID: Schema = {"type": "string", "format": "uuid"}
_TIME: Schema = {"type": ["string", "null"], "format": "date-time"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_STATUS: Schema = {"type": "string", "enum": list(Status), "description": "The last three are final."}
_URLS: dict[str, Schema] = {
    "status_url": {"type": "string", "description": "Where it is found."},
    "events_url": {"type": "string", "description": "Where its events are followed."},
}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(item: Schema, description: str) -> Schema:
    return {"type": "array", "items": item, "description": description}


def _time(description: str) -> Schema:
    return {**_TIME, "description": description}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _text_or_null(description: str) -> Schema:
    return {**_TEXT_OR_NULL, "description": description}


_LABELS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "Labels by which it is found.",
}
_INVOCATION_ID: Schema = {**_ID, "description": "Made by the client that asked for it."}
_SESSION_ID = _text_or_null("The conversation it belongs to.")


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
                "on_active": {
                    "type": "string",
                    "enum": list(OnActive),
                    "default": OnActive.QUEUE,
                    "description": "What to do when the session has a run that is not final.",
                },
                "timeout": {
                    "type": ["number", "null"],
                    "exclusiveMinimum": 0,
                    "description": "Longest run, in seconds.",
                },
                "metadata": {**_LABELS, "type": ["object", "null"]},
            },
            ["input"],
            "Either `id` or the Idempotency-Key header names the request.",
        ),
        "additionalProperties": False,
    },
    "Invocation": _object(
        {
            "id": _INVOCATION_ID,
            "session_id": _SESSION_ID,
            "agent": _text("Who was asked."),
            "status": _STATUS,
            "kind": {"type": "string", "enum": list(Kind), "description": "What it was made for."},
            "attempt": {"type": "integer", "description": "Which attempt it is in, from 1; 0 before the first."},
            "created_at": _time("When it was accepted."),
            "started_at": _time("When its first attempt began."),
            "finished_at": _time("When it became final."),
            "output": {"description": "What the handler returned; only when completed."},
            "error": _object(
                {"code": _text("What a program looks at."), "message": _text("For people.")},
                ["code", "message"],
                "Only when failed.",
            ),
            "interrupt": {
                "type": "object",
                "description": "What it needs a person for, the text and the messages so far; only when interrupted.",
            },
            "usage": {"type": ["object", "null"], "description": "What its models used, such as `input_tokens`."},
            "metadata": _LABELS,
            **_URLS,
        },
        ["id", "session_id", "status", "kind", "attempt", *_URLS],
        "`completed`, `failed` and `interrupted` are final.",
    ),
    "AcceptedInvocation": _object(
        {"id": _INVOCATION_ID, "session_id": _SESSION_ID, "status": _STATUS, **_URLS},
        ["id", "session_id", "status", *_URLS],
        "Stored; it reaches a final state on some worker.",
    ),
    "Session": _object(
        {
            "id": _text("Its name."),
            "agent": _text("Whose conversation it is."),
            "actor_id": _text("On whose behalf; a label that the client chose."),
            "parent": _text_or_null("The session that it was made for."),
            "root": _text("The session at the top of those; itself when it has no parent."),
            "forked_from": _text_or_null("The session it is a copy of."),
            "labels": _LABELS,
            "active": _text_or_null("The invocation that is not final yet."),
            "created_at": _time("When it was made."),
            "last_activity": _time("When something was last stored in it."),
        },
        ["id", "agent", "actor_id", "root", "labels", "active"],
        "A conversation.",
    ),
    "SessionItem": _object(
        {
            "id": _text("Its name in the session."),
            "position": {"type": "integer", "description": "Later items have higher ones; there may be gaps."},
            "created_at": _time("When it was stored."),
            "invocation_id": _text_or_null("The run that stored it."),
            "content": {"type": "object", "description": "The item as it was given."},
        },
        ["id", "position", "content"],
        "One entry of a conversation's history.",
    ),
    "Approval": _object(
        {
            "id": _text("Names it in a decision."),
            "session_id": _text("The conversation that waits."),
            "agent": _text("Who asks."),
            "invocation_id": _text_or_null("The run that asked, while it is kept."),
            "kind": {"type": "string", "enum": list(ApprovalKind), "description": "A tool call, or any question."},
            "call_id": _text_or_null("The call of the model that waits."),
            "name": {"type": "string", "description": "The tool; of an approval."},
            "arguments": {"description": "What the tool would be called with; of an approval."},
            "allowed": {"type": "array", "items": {"type": "string"}, "description": "Decisions; of an approval."},
            "value": {"description": "What is asked; of a question."},
            "status": {"type": "string", "enum": list(ApprovalStatus), "description": "Whether it still waits."},
            "decision": {"type": ["object", "null"], "description": "What the person decided."},
            "created_at": _time("When it was asked."),
            "decided_at": _time("When it was decided."),
        },
        ["id", "session_id", "agent", "kind", "status"],
        "What a person decides, by an invocation of the session whose input has `resume`.",
    ),
    "Memory": _object(
        {
            "path": _text("Names it."),
            "content": _text("The text."),
            "actor_id": _text("Whom it is about."),
            "session_id": _text_or_null("The conversation it is limited to."),
            "created_at": _time("When it was first stored."),
            "updated_at": _time("When it was last changed."),
        },
        ["path", "content", "actor_id", "session_id"],
        "A text at a path.",
    ),
    "MemorySearchResult": _object(
        {
            "score": {"type": "number", "description": "How well it matches."},
            "memory": {**_ref("Memory"), "description": "What was found."},
        },
        ["score", "memory"],
        "A higher score is a better match, within one search.",
    ),
    "Event": _object(
        {
            "position": {"type": "integer", "description": "1, 2, 3, … over all attempts."},
            "attempt": {"type": "integer", "description": "The attempt that emitted it."},
            "at": _time("When it was stored."),
            "event": _ANY,
        },
        ["position", "attempt", "at", "event"],
        "One entry of the log.",
    ),
    "ResumePoint": _object(
        {
            "kind": {"type": "string", "enum": list(ResumeKind), "description": "What comes next."},
            "description": _text("The same as a sentence for people."),
            "cause": _text_or_null(
                "Why it stopped: `worker_died`, `cancelled`, `provider_error`, `shutdown` or `unknown`."
            ),
            "partial_text": _text_or_null("What was streamed before it stopped."),
            "approvals": _list({"type": "object"}, "What a person has to decide."),
            "unanswered_tool_calls": _list({"type": "object"}, "Calls of the model that have no result."),
            "interrupted_at": _time("When it stopped."),
        },
        ["kind"],
        "Where an interrupted conversation stands. A server with handlers of its own answers what its handler says.",
    ),
    "State": _object(
        {
            "checkpoint_id": _text_or_null("Names it; null where there is none yet."),
            "parent_checkpoint_id": _text_or_null("The one before it."),
            "created_at": _time("When it was stored."),
            "values": {"description": "The state itself, in JSON."},
            "next": _list({"type": "string"}, "The nodes whose turn it is."),
            "tasks": _list({"type": "object"}, "What those nodes have to do, with their questions and errors."),
            "metadata": {"type": "object", "description": "How it came to be."},
        },
        ["checkpoint_id", "parent_checkpoint_id", "created_at", "values", "next", "tasks", "metadata"],
        "What a graph keeps of a conversation.",
    ),
    "Agent": _object(
        {
            "name": _text("How requests name it."),
            "framework": _text("What it is made with."),
            "capabilities": _object(
                {
                    "recover": {"type": "boolean", "description": "Whether it goes on after a crash."},
                    "resume": {"type": "boolean", "description": "Whether interrupted sessions can be resumed."},
                    "config": _list({"type": "string"}, "What a request may set in `config`."),
                },
                ["recover", "resume", "config"],
                "What it can do.",
            ),
        },
        ["name", "framework", "capabilities"],
        "An agent of this server.",
    ),
    "Problem": _object(
        {
            "type": _text("`about:blank`: there is no page about it."),
            "title": _text("The status in words."),
            "status": {"type": "integer", "description": "The status of the answer."},
            "detail": _text("What is wrong, and what to do."),
            "code": _text("What a program looks at."),
            "field": _text("The field or parameter that is wrong, where it is one."),
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
    return {"application/json": {"schema": _ref(name)}}


def _json_object(description: str, **properties: Schema) -> Schema:
    return {"application/json": {"schema": _object(properties, list(properties), description)}}


def _answer(description: str, content: Schema | None = None) -> Schema:
    return {"description": description} if content is None else {"description": description, "content": content}


def _page(item: Schema) -> Schema:
    properties = {
        "items": _list(item, "In order."),
        "next_cursor": _text_or_null("Of the next page; null on the last."),
    }
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


_STREAM: Schema = {
    "text/event-stream": {
        "schema": _text(
            "Each event of the log is a frame: `id` is its position, `event` its type where it has a plain one, `data` the "
            "event in one line of JSON. The last frame is `event: end` with the invocation, and no `id`. Without it the "
            "stream was cut: send `Last-Event-ID`, and it goes on behind it. Comments keep the connection alive."
        ),
        "example": 'id: 1\nevent: step\ndata: {"type":"step","number":1}\n\nevent: end\ndata: {"status":"completed"}\n\n',
    }
}
_ONE: Schema = {
    "parameters": [
        {"name": "id", "in": "path", "required": True, "schema": _ID, "description": "Of the invocation."},
    ]
}
_LIMIT = _query("limit", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}, "Items in a page.")
_PROPERTIES = SCHEMAS["InvocationRequest"]["properties"]
_RUN = {
    "200": _answer("The final invocation, or its events.", {**_json("Invocation"), **_STREAM}),
    "202": _answer("It goes on in the background.", _json("AcceptedInvocation")),
}
_IDEMPOTENCY_KEY = _query("Idempotency-Key", _ID, "In place of `id`.", "header")
_LAST_EVENT_ID = _query("Last-Event-ID", {"type": "integer"}, "The same as `after`; the larger counts.", "header")
_AFTER = _query("after", {"type": "integer", "minimum": 0, "default": 0}, "The last position that was seen.")

_PATHS: dict[str, Schema] = {
    "/api/invocations": {
        "post": _operation(
            "Run the agent. The same id again returns the same invocation.",
            "create_invocation",
            _RUN,
            requestBody={"required": True, "content": _json("InvocationRequest")},
            parameters=[
                _IDEMPOTENCY_KEY,
                _query("Prefer", {"type": "string"}, "`wait=N`: answer 202 after N seconds.", "header"),
            ],
        ),
        "get": _operation(
            "List invocations, newest first. `metadata.<label>=<value>` filters by a label.",
            "list_invocations",
            {"200": _answer("One page.", _page(_ref("Invocation")))},
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
            {"200": _answer("The events after the cursor.", {**_STREAM, **_page(_ref("Event"))})},
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


def _or_null(name: str, description: str) -> Schema:
    return {"anyOf": [_ref(name), {"type": "null"}], "description": description}


def _fields(*required: str, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if not required:
        return {"content": {"application/json": {"schema": schema}}}
    return {"required": True, "content": {"application/json": {"schema": {**schema, "required": list(required)}}}}


_NAME: Schema = {"type": "string", "maxLength": 512}
_KEY: Schema = {
    **_NAME,
    "minLength": 1,
    "description": "Of the client's making: the same change again changes nothing.",
}
_CURSOR = _query("cursor", {"type": "string"}, "The `next_cursor` of the page before.")
_SESSION: Schema = {
    "parameters": [
        {"name": "session_id", "in": "path", "required": True, "schema": _NAME, "description": "Of the session."}
    ]
}
_ITEMS = _page(_ref("SessionItem"))

_PATHS |= {
    "/api/sessions": {
        "post": _of_sessions(
            "Make a session. The same session again is returned as it is.",
            "create_session",
            "201",
            _json("Session"),
            requestBody={
                "content": {
                    **_fields(
                        id={**_NAME, "description": "Made up unless it is given."},
                        agent={**_NAME, "description": "Required when the server has several."},
                        actor_id={**_NAME, "description": "On whose behalf; the caller unless it is given."},
                        parent={**_NAME, "description": "The session that it is made for."},
                        labels=_LABELS,
                    )["content"],
                    JSON_LINES: {"schema": {"type": "string", "description": "What was exported."}},
                }
            },
            parameters=[_query("id", _NAME, "Another name for what was exported.")],
        ),
        "get": _of_sessions(
            "List sessions, newest first. `labels.<label>=<value>` filters by a label.",
            "list_sessions",
            "200",
            _page(_ref("Session")),
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
            requestBody=_fields("items", items=_list({"type": "object"}, "In order."), key=_KEY),
        ),
        "delete": _of_sessions(
            "Remove all items.",
            "clear_session",
            "200",
            _json_object("What was done.", removed={"type": "integer", "description": "How many there were."}),
        ),
    },
    "/api/sessions/{session_id}/items/pop": {
        **_SESSION,
        "post": _of_sessions(
            "Remove the last item and return it.",
            "pop_session_item",
            "200",
            _json_object("What was removed.", item=_or_null("SessionItem", "Null where there was none.")),
        ),
    },
    "/api/sessions/{session_id}/fork": {
        **_SESSION,
        "post": _of_sessions(
            "Copy a session, up to and with an item, or up to a checkpoint.",
            "fork_session",
            "201",
            _json("Session"),
            requestBody=_fields(
                id={**_NAME, "description": "Of the copy; made up unless it is given."},
                checkpoint_id={**_NAME, "description": "The last state to copy, of an agent that keeps states."},
                up_to_item_id={**_NAME, "description": "The last item to copy."},
                actor_id={**_NAME, "description": "On whose behalf the copy is."},
                labels=_LABELS,
            ),
        ),
    },
    "/api/sessions/{session_id}/messages": {
        **_SESSION,
        "get": _of_sessions(
            "Page through its messages, oldest first, wherever its agent keeps them.",
            "list_session_messages",
            "200",
            _page({"type": "object", "description": "A message as its framework has it."}),
            parameters=[_AFTER, _LIMIT],
        ),
    },
    "/api/sessions/{session_id}/resume-point": {
        **_SESSION,
        "get": _of_sessions(
            "How it was interrupted.",
            "get_resume_point",
            "200",
            _json_object(
                "How it stands.",
                active=_text_or_null("The invocation that is not final yet; then there is no point."),
                point=_or_null("ResumePoint", "Null where nothing was interrupted."),
            ),
        ),
    },
    "/api/sessions/{session_id}/state": {
        **_SESSION,
        "get": _of_sessions(
            "The state its agent keeps of it, now or at a checkpoint.",
            "get_session_state",
            "200",
            _json("State"),
            parameters=[_query("checkpoint_id", _NAME, "The id of a checkpoint of its history.")],
        ),
        "post": _of_sessions(
            "Change its state, or go on from an earlier one, changed.",
            "update_session_state",
            "200",
            _json("State"),
            requestBody=_fields(
                "values",
                values={"description": "What a node would have written."},
                as_node={**_NAME, "description": "In whose name; what comes after that node is next."},
                checkpoint_id={**_NAME, "description": "The state to go on from; the newest unless it is given."},
            ),
        ),
    },
    "/api/sessions/{session_id}/history": {
        **_SESSION,
        "get": _of_sessions(
            "Page through its states, newest first.",
            "list_session_states",
            "200",
            _page(_ref("State")),
            parameters=[_query("before", _NAME, "The id of a checkpoint, such as the last `next_cursor`."), _LIMIT],
        ),
    },
    "/api/sessions/{session_id}/resume": {
        **_SESSION,
        "post": _operation(
            "Go on where it was interrupted; answered like `create_invocation`.",
            "resume_session",
            _RUN,
            "sessions",
            requestBody=_fields(
                id=_PROPERTIES["id"], stream=_PROPERTIES["stream"], background=_PROPERTIES["background"]
            ),
            parameters=[_IDEMPOTENCY_KEY],
        ),
    },
}

_PATHS |= {
    "/api/approvals": {
        "get": _operation(
            "List what waits, or waited, for a person, newest first.",
            "list_approvals",
            {"200": _answer("One page.", _page(_ref("Approval")))},
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


_CONTENT: Schema = {"type": "string", "maxLength": MAX_CONTENT, "description": "The text."}
_APPEND: Schema = {"type": "boolean", "default": False, "description": "Put it behind what is there."}
_PATH: Schema = {**_NAME, "description": "Names it, such as `preferences/food`."}
_ABOUT: dict[str, Schema] = {
    "actor_id": {**_NAME, "description": "Whom it is about; the caller unless it is given."},
    "session_id": {**_NAME, "description": "Limited to one conversation."},
}
_OWNER = [_query(name, _NAME, about["description"]) for name, about in _ABOUT.items()]
_ENTRY: Schema = {"parameters": [{**_query("path", _NAME, "Of the memory."), "required": True}, *_OWNER]}
_BEST = {"type": "integer", "minimum": 1, "maximum": MOST_FOUND, "default": 10, "description": "Memories at most."}
_FOUND = _page(_ref("MemorySearchResult"))

_PATHS |= {
    "/api/memories": {
        "post": _of_memories(
            "Add a memory at a path that has none.",
            "add_memory",
            "201",
            _json("Memory"),
            requestBody=_fields("path", "content", path=_PATH, content=_CONTENT, **_ABOUT, key=_KEY),
        ),
        "get": _of_memories(
            "List memories by path; of every conversation unless one is named.",
            "list_memories",
            "200",
            _page(_ref("Memory")),
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
            requestBody=_fields("content", content=_CONTENT, append=_APPEND, key=_KEY),
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
            requestBody=_fields("text", text={**_CONTENT, "description": "What to look for."}, **_ABOUT, limit=_BEST),
        ),
    },
}


_PLAIN: Schema = {"text/plain": {"schema": {"type": "string"}}}


def _of_operations(summary: str, name: str, content: Schema = _PLAIN) -> Schema:
    return {"get": _operation(summary, name, {"200": _answer("It.", content)}, "operations")}


_PATHS |= {
    "/livez": _of_operations("The process works; restart it when this fails.", "get_livez"),
    "/readyz": _of_operations("Send requests here.", "get_readyz"),
    "/startupz": _of_operations("The start is over.", "get_startupz"),
    "/metrics": _of_operations("In the Prometheus text format.", "get_metrics"),
    "/api/agent": _of_operations(
        "Name, version, framework and capabilities of the agents.",
        "get_agent",
        {
            "application/json": {
                "schema": _object(
                    {
                        "version": _text("Of outlast."),
                        "agents": _list(_ref("Agent"), "All of them."),
                        **SCHEMAS["Agent"]["properties"],
                    },
                    ["version", "agents"],
                    "The agents. The only one is told at the top, too.",
                )
            }
        },
    ),
}

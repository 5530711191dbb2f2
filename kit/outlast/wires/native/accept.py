"""A request's JSON body and its Idempotency-Key, checked by hand, as the record that is stored."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.core import ids
from outlast.core.errors import InvalidRequest
from outlast.core.records import Kind, OnActive, Request

MAX_TIMEOUT_SECONDS = 10 * 365 * 86_400.0
SHORTEST_TIMEOUT_SECONDS = 0.001
"""Times are stored in milliseconds, and 0 means that there is no limit."""

_UNSEARCHABLE = re.compile(r"[\x00\ud800-\udfff]")
"""What PostgreSQL cannot compare inside a JSON text."""

_OPTIONS = ("id", "stream", "background", "agent", "config", "on_active", "timeout", "metadata")
_MESSAGE_FIELDS = frozenset((*_OPTIONS, "session_id", "input"))
_RESUME_FIELDS = frozenset(_OPTIONS)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one client asks: a request, and how to be answered (which is not part of the request's identity)."""

    request: Request
    stream: bool
    background: bool


def message(body: Any, *, idempotency_key: str | None, principal: str, agents: Collection[str]) -> Ask:
    """Check the body of `POST /api/invocations`. Raise InvalidRequest, or NotJSON for a number JSON cannot hold."""
    given = fields(body, _MESSAGE_FIELDS)
    if "input" not in given:
        raise _bad("input", "`input` is required; any JSON value will do")
    session_id = given.get("session_id")
    return _ask(
        given,
        idempotency_key=idempotency_key,
        principal=principal,
        agents=agents,
        kind=Kind.MESSAGE,
        session_id=None if session_id is None else ids.session_id(session_id),
    )


def resume(body: Any, *, session_id: str, idempotency_key: str | None, principal: str, agents: Collection[str]) -> Ask:
    """Check the body of `POST /api/sessions/{id}/resume`: the same fields without `input` and `session_id`."""
    return _ask(
        fields(body, _RESUME_FIELDS),
        idempotency_key=idempotency_key,
        principal=principal,
        agents=agents,
        kind=Kind.RESUME,
        session_id=ids.session_id(session_id),
    )


def _ask(
    fields: Mapping[str, Any],
    *,
    idempotency_key: str | None,
    principal: str,
    agents: Collection[str],
    kind: Kind,
    session_id: str | None,
) -> Ask:
    request = Request.of(
        principal=principal,
        id=_id(fields.get("id"), idempotency_key),
        session_id=session_id,
        agent=agent(fields.get("agent"), agents),
        input=fields.get("input"),
        config=_config(fields.get("config")),
        kind=kind,
        on_active=_on_active(fields.get("on_active")),
        timeout_seconds=_timeout(fields.get("timeout")),
        metadata=_metadata(fields.get("metadata")),
    )
    return Ask(request, stream=_flag(fields, "stream"), background=_flag(fields, "background"))


def fields(body: Any, known: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a body. Raise InvalidRequest for one that is not `known`."""
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    unknown = sorted(set(body) - known)
    if unknown:
        raise _bad(
            unknown[0], f"unknown field {_shown(unknown[0])}; known are {', '.join(sorted(known))}", "unknown_field"
        )
    return body


def _id(value: Any, idempotency_key: str | None) -> str:
    """Both the field and the header may name the request, if they agree."""
    if value is None and idempotency_key is None:
        raise _bad("id", "`id` is required: a UUID that the client makes, so that the request can be repeated")
    from_body = None if value is None else ids.invocation_id(value)
    if idempotency_key is None:
        assert from_body is not None
        return from_body
    from_header = ids.invocation_id(_unquoted(idempotency_key))
    if from_body is not None and from_body != from_header:
        raise _bad("id", "`id` and the Idempotency-Key header name different requests", "id_mismatch")
    return from_header


def _unquoted(header: str) -> str:
    header = header.strip()
    return header[1:-1] if len(header) > 1 and header[0] == header[-1] == '"' else header


def agent(value: Any, agents: Collection[str]) -> str:
    """Return the agent that a body names, or the only one. Raise InvalidRequest."""
    if value is None:
        if len(agents) == 1:
            return next(iter(agents))
        raise _bad("agent", f"`agent` is required here; this server has {', '.join(sorted(agents))}", "agent_required")
    if not isinstance(value, str):
        raise _bad("agent", "`agent` must be a string")
    if value not in agents:
        raise _bad("agent", f"there is no agent {_shown(value)}; this server has {', '.join(sorted(agents))}",
                   "unknown_agent")  # fmt: skip
    return value


def _config(value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise _bad("config", "`config` must be an object")
    return value


def _on_active(value: Any) -> OnActive:
    if value is None:
        return OnActive.QUEUE
    if not isinstance(value, str) or value not in set(OnActive):
        raise _bad("on_active", f"`on_active` must be one of {', '.join(OnActive)}")
    return OnActive(value)


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    # The comparison comes before float(), which refuses integers that are too big; it also refuses infinities.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIMEOUT_SECONDS:
        raise _bad("timeout", "`timeout` must be a number of seconds greater than 0 and at most 315360000, ten years")
    return max(float(value), SHORTEST_TIMEOUT_SECONDS)


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    labels = ids.labels(value, "metadata")
    if any(_UNSEARCHABLE.search(text) for pair in labels.items() for text in pair):
        raise _bad("metadata", "`metadata` must not hold NUL characters or lone surrogates")
    return labels


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _bad(name, f"`{name}` must be true or false")
    return value


def _shown(text: str) -> str:
    """Quote a client's text for a message: ASCII, one line, short."""
    return ascii(text[:64])


def _bad(field: str, message: str, code: str = "invalid_field") -> InvalidRequest:
    return InvalidRequest(message, code=code, field=field)

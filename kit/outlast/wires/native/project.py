"""Records as JSON text, and logs as server-sent events. Stored JSON texts are spliced in, never parsed and written again.

A frame is LF lines of ASCII, so neither a line break nor U+2028 in an event can end it early.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from outlast.core import jsontext, times
from outlast.core.records import Event, Invocation

RETRY_MS = 1000
OPENING = f"retry: {RETRY_MS}\n\n".encode("ascii")
"""What every stream begins with, so that headers and a first byte leave at once."""
KEEP_ALIVE = b": keep-alive\n\n"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_FIRST_KEY = re.compile(r'\{"type":"([A-Za-z0-9._-]{1,128})"[,}]')
_RESERVED = frozenset(("end", "error", "open", "message"))


def invocation(record: Invocation, base: str) -> str:
    """Return the invocation object as JSON text. `base` comes before `/api`: the root path and prefix of the server."""
    result = ""
    for name in ("output", "error", "interrupt"):
        if (text := getattr(record, name)) is not None:
            result += f'"{name}":{text},'
    url = _url(record.id, base)
    return (
        f'{{"id":"{record.id}","session_id":{jsontext.encode(record.session_id)},'
        f'"agent":{jsontext.encode(record.agent)},"status":"{record.status}","kind":"{record.kind}",'
        f'"attempt":{record.attempt},"created_at":{time(record.created_at)},"started_at":{time(record.started_at)},'
        f'"finished_at":{time(record.finished_at)},{result}"usage":{record.usage or "null"},'
        f'"metadata":{record.metadata},"status_url":{url}","events_url":{url}/events"}}'
    )


def accepted(record: Invocation, base: str) -> str:
    """Return the body of a 202: where the invocation is to be found."""
    url = _url(record.id, base)
    return (
        f'{{"id":"{record.id}","session_id":{jsontext.encode(record.session_id)},"status":"{record.status}",'
        f'"status_url":{url}","events_url":{url}/events"}}'
    )


def status_path(id: str, base: str) -> str:
    """Return the path of one invocation."""
    return f"{base}/api/invocations/{id}"


def invocations(records: Sequence[Invocation], base: str, next_cursor: int | None) -> str:
    """Return one page of a list."""
    return page([invocation(record, base) for record in records], next_cursor)


def events(entries: Sequence[Event], next_cursor: int | None) -> str:
    """Return one page of a log."""
    return page(
        [
            f'{{"position":{entry.position},"attempt":{entry.attempt},"at":{time(entry.at)},"event":{entry.text}}}'
            for entry in entries
        ],
        next_cursor,
    )


def frame(position: int, text: str) -> bytes:
    """Return the frame of one stored event."""
    name = event_name(text)
    event = "" if name is None else f"event: {name}\n"
    return f"id: {position}\n{event}data: {text}\n\n".encode("ascii")


def end(record: Invocation, base: str) -> bytes:
    """Return the last frame of a stream. It has no id: it is made from the record, not from the log."""
    return f"event: end\ndata: {invocation(record, base)}\n\n".encode("ascii")


def event_name(text: str) -> str | None:
    """Return the name that the event gives its frame, if it has one that is safe and means nothing else."""
    if found := _FIRST_KEY.match(text):
        name: Any = found[1]
    elif text.startswith("{") and '"type":' in text:
        name = json.loads(text).get("type")
    else:
        return None
    safe = isinstance(name, str) and _NAME.fullmatch(name) is not None and name not in _RESERVED
    return name if safe else None


def page(items: Sequence[str], next_cursor: int | str | None) -> str:
    """Return one page of a list of JSON texts. A cursor needs no escape in JSON."""
    cursor = "null" if next_cursor is None else f'"{next_cursor}"'
    return f'{{"items":[{",".join(items)}],"next_cursor":{cursor}}}'


def _url(id: str, base: str) -> str:
    """Return the start of a JSON string."""
    return jsontext.encode(status_path(id, base))[:-1]


def time(milliseconds: int | None) -> str:
    """Return a time as a JSON string."""
    if milliseconds is None:
        return "null"
    return f'"{times.shown(milliseconds)}"'

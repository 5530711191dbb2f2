"""The query of a request, checked: a mistyped filter must not list everything."""

import re
from collections.abc import Mapping, Sequence

from starlette.requests import Request

from outlast.core import ids
from outlast.core.conversations import LARGEST_PAGE
from outlast.core.errors import InvalidRequest

PAGE = 50

_INTEGER = re.compile(r"[0-9]{1,18}")


def query(request: Request, known: Sequence[str], *, labels: str | None = None) -> dict[str, str]:
    """Return the query. Raise InvalidRequest for a name that is not `known` and does not begin with `labels.`."""
    query = dict(request.query_params)
    for name in query:
        if name not in known and not (labels and name.startswith(f"{labels}.")):
            names = ", ".join(sorted(known)) or "none"
            raise InvalidRequest(
                f"unknown query parameter {name[:64]!a}; known are {names}", code="unknown_parameter", field=name
            )
    return query


def labelled(query: Mapping[str, str], labels: str) -> dict[str, str]:
    """Return the labels that a query asks for by `labels.<label>=<value>`."""
    prefix = f"{labels}."
    return {name.removeprefix(prefix): value for name, value in query.items() if name.startswith(prefix)}


def name(query: Mapping[str, str], field: str) -> str | None:
    """Return a name to look for. Raise InvalidRequest for one that nothing can have."""
    try:
        return ids.session_id(query[field]) if field in query else None
    except InvalidRequest:
        raise InvalidRequest(f"`{field}` is not a name", code="invalid_parameter", field=field) from None


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return a switch of a query, off unless it says otherwise."""
    if query.get(name, "false") not in ("true", "false"):
        raise InvalidRequest(f"`{name}` must be true or false", code="invalid_parameter", field=name)
    return query.get(name) == "true"


def limit(text: str | None, *, most: int = LARGEST_PAGE) -> int:
    """Return the size of a page."""
    if text is None:
        return PAGE
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= most:
        raise InvalidRequest(f"`limit` must be between 1 and {most}", code="invalid_parameter", field="limit")
    return int(text)


def position(text: str | None) -> int:
    """Return a cursor; without one, the beginning."""
    if not text:
        return 0
    if not _INTEGER.fullmatch(text):
        raise InvalidRequest("a cursor must be an integer that this server gave", code="invalid_cursor", field="after")
    return int(text)

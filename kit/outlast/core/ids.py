"""What a client chooses, checked where every way to a store passes: names, which are a UUID or short texts, and options."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from outlast.core.errors import InvalidRequest

MAX_SESSION_ID = 512
"""Characters."""
LARGEST = 2**63 - 1
"""What a database can count to."""

MAX_LABELS = 65_536
"""Characters of all labels of something together, names and values: lists show them."""

_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Unicode's categories Cc and Cs."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def invocation_id(text: object) -> str:
    """Return the canonical lower-case form of a dashed UUID, or raise InvalidRequest (`invalid_id`)."""
    if not isinstance(text, str) or not _UUID.fullmatch(text):
        raise InvalidRequest(
            "`id` must be a UUID such as 0f8fad5b-d9cb-469f-a165-70867728950e", code="invalid_id", field="id"
        )
    return text.lower()


def session_id(text: object) -> str:
    """Return `text` unchanged when it can name a session, else raise InvalidRequest (`invalid_session_id`)."""
    if not isinstance(text, str) or not 1 <= len(text) <= MAX_SESSION_ID:
        raise _bad_session(f"`session_id` must be a string of 1 to {MAX_SESSION_ID} characters")
    if _UNNAMEABLE.search(text):
        raise _bad_session("`session_id` must not hold control characters or lone surrogates")
    return text


def name(value: object, field: str, *, code: str = InvalidRequest.code) -> str:
    """Return `value` unchanged when it could name a session, else raise InvalidRequest with `code` and `field`."""
    try:
        return session_id(value)
    except InvalidRequest:
        raise InvalidRequest(
            f"`{field}` must be a string of 1 to {MAX_SESSION_ID} characters without control characters",
            code=code,
            field=field,
        ) from None


def memory_path(value: object, field: str = "path") -> str:
    """Return `value` unchanged when it can name a memory, else raise InvalidRequest (`invalid_path`)."""
    return name(value, field, code="invalid_path")


def memory_place(value: object, field: str = "after") -> tuple[str, str | None]:
    """Return the path and the session of a memory unchanged, or raise InvalidRequest (`invalid_cursor`)."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidRequest(f"`{field}` must be a path and a session", code="invalid_cursor", field=field)
    return memory_path(value[0], field), None if value[1] is None else session_id(value[1])


def limit(value: object, most: int = LARGEST, *, least: int = 1) -> int:
    """Return `value` unchanged when it is a number from `least` to `most`, or raise InvalidRequest (`invalid_parameter`)."""
    if not _is_number(value, least, most):
        raise InvalidRequest(f"`limit` must be between {least} and {most}", code="invalid_parameter", field="limit")
    return value


def position(value: object, field: str) -> int:
    """Return `value` unchanged when it can be where a list goes on, else raise InvalidRequest (`invalid_cursor`)."""
    if not _is_number(value, 0, LARGEST):
        raise InvalidRequest(f"`{field}` must be an integer that was given", code="invalid_cursor", field=field)
    return value


def flag(value: object, field: str) -> bool:
    """Return `value` unchanged when it is true or false, else raise InvalidRequest (`invalid_field`)."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"`{field}` must be true or false", code="invalid_field", field=field)
    return value


def labels(value: object, field: str = "labels", *, removable: bool = False) -> dict[str, Any]:
    """Return labels, none for None, or raise InvalidRequest; with `removable`, a label may be None."""
    allowed = str | None if removable else str
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(text, allowed) for name, text in value.items()
    ):
        raise InvalidRequest(f"`{field}` must be an object of strings", code="invalid_field", field=field)
    if sum(len(name) + len(text or "") for name, text in value.items()) > MAX_LABELS:
        raise InvalidRequest(
            f"`{field}` have more than {MAX_LABELS} characters together", code="invalid_field", field=field
        )
    return dict(value)


def objects(value: object, field: str) -> list[Any]:
    """Return the members of what may hold objects, or raise InvalidRequest (`invalid_field`)."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise InvalidRequest(f"`{field}` must be a list of objects", code="invalid_field", field=field)
    return list(value)


def _is_number(value: object, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _bad_session(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_session_id", field="session_id")

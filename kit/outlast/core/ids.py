"""The names a client chooses: the invocation id (a UUID), and short texts for everything else."""

import re
from collections.abc import Mapping

from outlast.core.errors import InvalidRequest

MAX_SESSION_ID = 512
"""Characters."""

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


def labels(found: Mapping[str, str], field: str) -> Mapping[str, str]:
    """Return labels unchanged, or raise InvalidRequest (`invalid_field`) when they are too long together."""
    if sum(len(name) + len(value) for name, value in found.items()) > MAX_LABELS:
        raise InvalidRequest(
            f"`{field}` have more than {MAX_LABELS} characters together", code="invalid_field", field=field
        )
    return found


def limit(value: object, most: int) -> int:
    """Return `value` unchanged when it is a number from 1 to `most`, else raise InvalidRequest (`invalid_parameter`)."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidRequest(f"`limit` must be between 1 and {most}", code="invalid_parameter", field="limit")
    return value


def _bad_session(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_session_id", field="session_id")

"""JSON as stored: compact ASCII text. NUL, lone surrogates, big integers and key order survive on every database."""

import hashlib
import json
import math
import re
from array import array
from itertools import accumulate
from typing import Any

from outlast.core.errors import InvalidRequest, NotJSON

MAX_DEPTH = 200
"""Levels of nesting; deeper values are refused so that every reader's recursion limit is far away."""

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True).encode

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def encode(value: Any) -> str:
    """Return `value` as compact ASCII JSON text. Raise NotJSON with the path of what JSON cannot hold."""
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _explain(value, error) from None
    if _too_deep(text):
        raise NotJSON(f"nested deeper than {MAX_DEPTH} levels")
    return text


def decode(text: str) -> Any:
    """Return the value of text that `encode` made."""
    return json.loads(text)


def fingerprint(value: Any) -> str:
    """Return a digest that is equal for equal JSON values: key order is ignored; 1, 1.0 and true differ."""
    try:
        text = _encode_sorted(value)
    except TypeError:
        raise NotJSON("an object whose keys are of different types") from None
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse(body: bytes) -> Any:
    """Return the value of untrusted JSON bytes. Raise InvalidRequest (`invalid_json`) with the reason."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidRequest(f"the JSON is nested deeper than {MAX_DEPTH} levels", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error.reason}", code="invalid_json") from None
    except ValueError as error:
        raise InvalidRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    if _bytes_too_deep(body):
        raise InvalidRequest(f"the JSON is nested deeper than {MAX_DEPTH} levels", code="invalid_json")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _too_deep(text: str) -> bool:
    # Most texts are shorter than the brackets would be.
    return len(text) > 2 * MAX_DEPTH and _bytes_too_deep(text.encode("ascii"))


def _bytes_too_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRINGS.sub(b"", body).translate(_STEPS, _NOT_BRACKETS)
    return max(accumulate(array("b", brackets)), default=0) > MAX_DEPTH


def _explain(value: Any, error: Exception) -> NotJSON:
    if isinstance(error, RecursionError):
        return NotJSON(f"nested deeper than {MAX_DEPTH} levels")
    return _find(value, "$", 0) or NotJSON(str(error))


def _find(value: Any, path: str, depth: int) -> NotJSON | None:
    """Walk to the first part that cannot be encoded."""
    if value is None or isinstance(value, str | bool | int):
        return None
    if depth > MAX_DEPTH:
        return NotJSON("a circular reference or too deep nesting", path=path)
    if isinstance(value, float):
        return None if math.isfinite(value) else NotJSON(f"{value} is not a JSON number", path=path)
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int | float | bool | None):
                return NotJSON(f"a key of type {type(key).__name__}", path=path)
            if found := _find(item, f"{path}.{key}", depth + 1):
                return found
        return None
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if found := _find(item, f"{path}[{index}]", depth + 1):
                return found
        return None
    return NotJSON(f"a value of type {type(value).__name__}", path=path)

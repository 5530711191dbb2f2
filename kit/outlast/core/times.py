"""Times as the HTTP API shows them, and spans of time as people write them."""

import re
from datetime import UTC, datetime
from functools import lru_cache

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def milliseconds(text: str) -> int:
    """Return milliseconds since 1970 UTC."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def shown(milliseconds: int) -> str:
    """Return a time as text, of milliseconds since 1970 UTC."""
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


def seconds(span: str) -> float:
    """Return the seconds of a span such as 90s, 12h, 30d or 8w. Raise ValueError for any other text."""
    found = _SPAN.fullmatch(span)
    if found is None:
        raise ValueError(f"{span!r} is no span of time such as 90s, 12h, 30d or 8w")
    return float(found[1]) * _SECONDS[found[2]]


@lru_cache
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
